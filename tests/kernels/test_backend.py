"""The CPU backend's objects, warm-up and cache, and what the package imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagemill_kernels import ops
from pagemill_kernels.cpu import jit


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
    module = {"__file__": __file__, "__name__": __name__}
    source = compile("def twice(x):\n    return 2 * x\n", __file__, "exec")

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
