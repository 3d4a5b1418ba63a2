"""The CPU backend's objects, warm-up and cache, and what the package imports."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pagemill_kernels import ops
from pagemill_kernels.cpu import attention_kernel, elementwise_rows, jit, panels, sampling_rows

pytestmark = pytest.mark.filterwarnings("error::numba.core.errors.NumbaWarning")


@given(
    block_size=st.sampled_from([1, 8, 16, 20, 32]),
    head_dim=st.sampled_from([8, 16, 20, 64]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_blocks_come_back_as_written(block_size: int, head_dim: int, dtype: torch.dtype) -> None:
    layout = ops.KvLayout(3, 2, head_dim, block_size, dtype)
    kv = ops.alloc_kv(layout, 6, "cpu")
    data = torch.randn(3, 2, 2, block_size, 2, head_dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    ids = torch.tensor([4, 1])
    ops.write_blocks(kv, ids, data)
    assert torch.equal(ops.read_blocks(kv, ids), data)
    assert torch.equal(ops.read_blocks(kv, ids.flip(0)), data.flip(2))
    assert (ops.read_blocks(kv, torch.tensor([0, 2, 3, 5])) == 0).all()


@pytest.mark.parametrize(("block_size", "head_dim"), [(16, 64), (8, 20), (32, 80)])
def test_bytes_per_block_are_what_a_cache_takes(block_size: int, head_dim: int) -> None:
    layout = ops.KvLayout(3, 2, head_dim, block_size, torch.bfloat16)
    assert ops.alloc_kv(layout, 7, "cpu").nbytes == 7 * ops.kv_bytes_per_block(layout)


def test_a_block_of_whole_vectors_carries_no_padding() -> None:
    assert ops.kv_bytes_per_block(ops.KvLayout(30, 3, 64, 16, torch.bfloat16)) == 2 * 30 * 3 * 64 * 16 * 2


def test_unknown_devices_are_named() -> None:
    with pytest.raises(NotImplementedError, match=r"'meta'.*cpu"):
        ops.alloc_kv(ops.KvLayout(1, 1, 8, 16, torch.float32), 1, "meta")


def test_warm_up_reports_each_kernel_and_ends_at_one() -> None:
    seen: list[tuple[str, float]] = []
    layout = ops.KvLayout(2, 1, 64, 16, torch.float32)
    ops.warm_up(layout, [64, 128], "cpu", lambda name, done: seen.append((name, done)))
    assert seen[-1] == ("ready", 1.0)
    assert [done for _, done in seen] == sorted(done for _, done in seen)
    assert {"rms_norm", "rope_write_kv", "paged_attention", "sample"} <= {name for name, _ in seen}


def test_cached_code_is_valid_for_one_state_of_the_sources_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    module = {"__file__": __file__, "__name__": __name__, "numba": numba, "numpy": np}
    lines = (
        "def twice(x):",
        "    out = numpy.empty(x)",
        "    for i in numba.prange(x): out[i] = 2",
        "    return out.sum()",
    )
    source = compile("\n".join(lines), __file__, "exec")

    def build() -> object:
        exec(source, module)
        return jit.kernel(module["twice"])

    def hits() -> int:
        function = build()
        assert function(3) == 6  # type: ignore[operator]
        return sum(function.stats.cache_hits.values())  # type: ignore[attr-defined]

    assert hits() == 0
    assert hits() == 1
    monkeypatch.setattr(jit, "SOURCES_DIGEST", "edited")
    assert hits() == 0


def test_the_digest_of_sources_covers_constants_that_kernels_take_from_other_folders(tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(Path(jit.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__"))
    assert jit.digest_of(package) == jit.SOURCES_DIGEST
    with (package / "philox.py").open("a") as file:
        file.write("ROUNDS = 7\n")
    assert jit.digest_of(package) != jit.SOURCES_DIGEST


def test_kernels_compile_where_no_folder_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A file where each folder should be refuses even root: beside the source, in the cache folder, in the home.
    source = tmp_path / "source.py"
    source.write_text(
        "def twice(x):\n    out = numpy.empty(x)\n    for i in numba.prange(x): out[i] = 2\n    return out.sum()\n"
    )
    for name in ("__pycache__", "cache", "home"):
        (tmp_path / name).touch()
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "cache"))
    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    module = {"__file__": str(source), "__name__": __name__, "numba": numba, "numpy": np}
    exec(compile(source.read_text(), str(source), "exec"), module)
    jit._warn_of_no_cache.cache_clear()
    with caplog.at_level("WARNING"):
        assert jit.kernel(module["twice"])(3) == 6
    assert "NUMBA_CACHE_DIR" in caplog.text


KERNELS = [
    elementwise_rows.norm_rows,
    elementwise_rows.silu_rows,
    elementwise_rows.rope_rows,
    panels.multiply,
    attention_kernel.attend_batch,
    sampling_rows.sample_rows,
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_the_only_parallel_loops_are_those_written_as_such(kernel: Any) -> None:
    # A loop that numba makes of an allocation starts all threads at every call, small ones that run alone included.
    ops.warm_up(ops.KvLayout(1, 1, 64, 16, torch.float32), [64], "cpu")
    written = inspect.getsource(kernel.py_func).count("prange(")
    cache = kernel._cache
    compiled = [Path(cache.cache_path, name).read_bytes() for name in cache._cache_file._load_index().values()]
    assert compiled
    for code in compiled:
        assert len(set(re.findall(rb"numba_parfor_gufunc_0x[0-9a-f]+", code))) == written


def test_a_cache_takes_memory_only_as_it_is_written() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    kv = ops.alloc_kv(ops.KvLayout(4, 4, 64, 16, torch.bfloat16), 1024, "cpu")
    assert kv.nbytes == 64 << 20
    assert resident() - before < kv.nbytes // 4
    assert (ops.read_blocks(kv, torch.tensor([0, 1023])) == 0).all()
    assert all(tensor.data_ptr() % 64 == 0 for tensor in kv.tensors)


@pytest.mark.parametrize(
    "ids", [torch.tensor([2]), torch.tensor([-1]), torch.tensor([[0]]), torch.tensor([True, False])]
)
def test_blocks_that_a_cache_lacks_are_refused(ids: Tensor) -> None:
    kv = ops.alloc_kv(ops.KvLayout(1, 1, 8, 16, torch.float32), 2, "cpu")
    with pytest.raises(ValueError, match="block id"):
        ops.read_blocks(kv, ids)
    with pytest.raises(ValueError, match="block id"):
        ops.write_blocks(kv, ids, torch.ones(1, 2, 1, 16, 1, 8))
    assert (ops.read_blocks(kv, torch.tensor([0, 1])) == 0).all()


def test_data_of_another_shape_is_not_spread_over_blocks() -> None:
    kv = ops.alloc_kv(ops.KvLayout(1, 1, 8, 16, torch.float32), 2, "cpu")
    with pytest.raises(ValueError, match="shape"):
        ops.write_blocks(kv, torch.tensor([0, 1]), torch.ones(1, 2, 1, 16, 1, 8))


ALLOWED = ("numpy", "torch", "triton", "numba", "llvmlite", "safetensors", "pagemill_kernels")

PROGRAM = f"""
import sys
import torch, numba  # what these import themselves is their affair
before = set(sys.modules)

class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in {ALLOWED!r}:
            raise ImportError(f"pagemill_kernels imports {{name}}")

sys.meta_path.insert(0, Blocker())
from pagemill_kernels import ops, philox, reference
weight = ops.pack_weight(torch.ones(4, 4), deterministic=True)
print(ops.linear(torch.ones(1, 4), weight).tolist())
"""


def test_imports_nothing_beyond_numpy_torch_and_numba() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[4.0, 4.0, 4.0, 4.0]]"
