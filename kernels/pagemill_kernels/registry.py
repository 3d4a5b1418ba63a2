"""How a backend registers what it implements of the operators that `ops` declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_library = torch.library.Library("pagemill", "IMPL")  # type: ignore[no-untyped-call]


def implement(name: str, function: Callable[..., Any], *dispatch_keys: str) -> None:
    """Makes `function` the operator `name` for tensors of these dispatch keys ("CPU", "CUDA", ...)."""
    for key in dispatch_keys:
        _library.impl(name, function, key)  # type: ignore[no-untyped-call]
