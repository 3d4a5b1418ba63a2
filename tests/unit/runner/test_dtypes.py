"""Which number format is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagemill_replica.runner import SettingError
from pagemill_replica.runner.dtypes import has_native_bf16, processor_flags, resolve_dtype


@pytest.mark.parametrize(
    ("name", "native", "dtype"),
    [
        ("auto", True, torch.bfloat16),
        ("auto", False, torch.float32),
        ("float32", True, torch.float32),
        ("bfloat16", False, torch.bfloat16),
    ],
)
def test_auto_is_bfloat16_only_where_it_is_native(name: str, native: bool, dtype: torch.dtype) -> None:
    assert resolve_dtype(name, native) == dtype


@pytest.mark.parametrize("name", ["float16", "int8", "", "Float32"])
def test_another_type_is_an_error_that_names_the_choices(name: str) -> None:
    with pytest.raises(SettingError, match=f"--dtype: {name} is not offered.*auto, float32, bfloat16") as error:
        resolve_dtype(name, native_bf16=True)
    assert error.value.flag == "--dtype"


def test_a_processor_without_dot_products_has_no_native_bfloat16() -> None:
    assert not has_native_bf16({"avx2", "fma"})
    # AVX-512 alone converts, it does not multiply.
    assert not has_native_bf16({"avx512f", "avx512_bf16_not"})


@pytest.mark.parametrize("name", ["flags\t\t", "Features\t"])
def test_flags_are_those_of_the_first_processor(tmp_path: Path, name: str) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\n{name}: fpu avx2 bf16\n\nprocessor\t: 1\n{name}: other\n")
    assert processor_flags(file) == {"fpu", "avx2", "bf16"}


def test_a_system_that_says_nothing_has_no_flags(tmp_path: Path) -> None:
    assert processor_flags(tmp_path / "absent") == frozenset()
    (tmp_path / "empty").touch()
    assert processor_flags(tmp_path / "empty") == frozenset()
