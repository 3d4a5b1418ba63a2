"""Rotary position tables (Su et al. 2021, https://arxiv.org/abs/2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor


def rotation_tables(head_dim: int, theta: float, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position * theta^(-2i / head_dim), float32 [positions, head_dim / 2] each.

    Every product is float32, as transformers computes them, so that large positions round alike.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    frequencies = 1.0 / (theta**exponents)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    return angles.cos().to(device), angles.sin().to(device)
