"""Which number format the CPU computes in."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path

import torch

from pagemill_replica.runner.errors import SettingError

NATIVE_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Processor flags of bfloat16 dot products: x86 with AVX-512 or AMX, Arm."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def resolve_dtype(name: str, native_bf16: bool) -> torch.dtype:
    """The type for a `--dtype` of auto, float32 or bfloat16.

    auto is float32 without native bfloat16: converting at every multiplication costs more than the memory it saves.
    """
    if name == "auto":
        return torch.bfloat16 if native_bf16 else torch.float32
    if name not in DTYPES:
        raise SettingError("--dtype", f"{name} is not offered on the CPU; choose auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def has_native_bf16(flags: AbstractSet[str] | None = None) -> bool:
    """Whether processor (by its flags, read from the system where None) and torch's oneDNN both multiply bfloat16."""
    present = processor_flags() if flags is None else flags
    return bool(NATIVE_BF16_FLAGS & present) and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Flags of the first processor listed; empty where the system does not say."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, values = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return frozenset(values.split())
    except OSError:
        pass
    return frozenset()
