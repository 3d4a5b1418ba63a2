"""Rotary position tables (Su et al. 2021, https://arxiv.org/abs/2104.09864) and the scaling of their frequencies.

Every product is float32 and in the order in which transformers computes it, so that large positions round alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pagemill_replica.checkpoint.rope_scaling import FrequencyFactors, LinearScaling, Llama3Scaling, RopeScaling


def rotation_tables(
    head_dim: int, theta: float, positions: int, device: torch.device, *, scaling: RopeScaling | None = None
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position * frequency, float32 [positions, head_dim / 2] each.

    Pair i of a head has the frequency theta^(-2i / head_dim), in radians a position, as `scaling` changes it.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    frequencies = _scaled(1.0 / (theta**exponents), scaling)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    return angles.cos().to(device), angles.sin().to(device)


def _scaled(frequencies: Tensor, scaling: RopeScaling | None) -> Tensor:
    match scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case FrequencyFactors(factors):
            return frequencies / torch.tensor(factors, dtype=torch.float32)
        case Llama3Scaling():
            return _llama3(frequencies, scaling)


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Frequencies divided where their wave is long, kept where it is short, blended between (Llama 3.1)."""
    low, high, context = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_context
    wavelengths = 2 * math.pi / frequencies
    share_kept = (context / wavelengths - low) / (high - low)
    blended = (1 - share_kept) * frequencies / scaling.factor + share_kept * frequencies
    long, short = wavelengths > context / low, wavelengths < context / high
    return torch.where(long, frequencies / scaling.factor, torch.where(short, frequencies, blended))
