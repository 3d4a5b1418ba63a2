"""From a checkpoint to a decoder on a device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pagemill_kernels import ops
from pagemill_replica.checkpoint import Checkpoint
from pagemill_replica.checkpoint.layout import EMBEDDING, FINAL_NORM, HEAD, layer_name
from pagemill_replica.model.decoder import Decoder, DecoderWeights, LayerWeights
from pagemill_replica.model.rope import rotation_tables
from pagemill_replica.model.weights import read_stacked, read_tensor

Progress = Callable[[str, float], None]
"""Called with a stage's name and the fraction of it that is done."""

STAGE = "weights"


def load(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    deterministic: bool,
    progress: Progress,
    *,
    max_context: int | None = None,
) -> Decoder:
    """Reads and packs every weight in `dtype`; `max_context` positions can be computed (default: the model's).

    Raises CheckpointError where a file cannot be read.
    """
    weights = _Loader(checkpoint, dtype, device, deterministic, progress).weights(
        max_context or checkpoint.config.max_context
    )
    return Decoder(checkpoint.config, weights, dtype, device, deterministic)


class _Loader:
    """Reads tensors by name, counts bytes, reports progress."""

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, deterministic: bool, progress: Progress
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._deterministic = deterministic
        self._progress = progress
        self._stored = max(1, sum(entry.nbytes for entry in checkpoint.entries.values()))
        self._read = 0
        self._seen: set[int] = set()
        self._nbytes = 0

    def weights(self, positions: int) -> DecoderWeights:
        config = self._checkpoint.config
        self._progress(STAGE, 0.0)
        embedding = self._tensor(EMBEDDING)
        layers = tuple(self._layer(index) for index in range(config.layers))
        final_norm = self._tensor(FINAL_NORM)
        head = self._pack(embedding, None) if config.tied_embeddings else self._projection(HEAD.removesuffix(".weight"))
        cos, sin = rotation_tables(
            config.head_dim, config.rope_theta, positions, self._device, scaling=config.rope_scaling
        )
        self._count(cos)
        self._count(sin)
        self._progress(STAGE, 1.0)
        return DecoderWeights(embedding, layers, final_norm, head, cos, sin, self._nbytes)

    def _layer(self, index: int) -> LayerWeights:
        config = self._checkpoint.config
        attention, mlp = layer_name(index, "self_attn."), layer_name(index, "mlp.")
        return LayerWeights(
            input_norm=self._tensor(layer_name(index, "input_layernorm.weight")),
            qkv=self._projection(*(f"{attention}{part}_proj" for part in "qkv")),
            output=self._projection(f"{attention}o_proj"),
            post_norm=self._tensor(layer_name(index, "post_attention_layernorm.weight")),
            gate_up=self._projection(f"{mlp}gate_proj", f"{mlp}up_proj"),
            down=self._projection(f"{mlp}down_proj"),
            q_norm=self._tensor(f"{attention}q_norm.weight") if config.qk_norm else None,
            k_norm=self._tensor(f"{attention}k_norm.weight") if config.qk_norm else None,
            window=config.layer_windows[index],
        )

    def _tensor(self, name: str) -> Tensor:
        entry = self._checkpoint.entries[name]
        tensor = read_tensor(entry, self._dtype).to(self._device)
        self._count(tensor)
        self._advance(entry.nbytes)
        return tensor

    def _projection(self, *names: str) -> ops.PackedWeight:
        """Projections of one input fused into one weight, outputs side by side in the order of `names`."""
        weight = self._stack([f"{name}.weight" for name in names])
        biases = [f"{name}.bias" for name in names]
        bias = self._stack(biases) if biases[0] in self._checkpoint.entries else None
        return self._pack(weight, bias)

    def _stack(self, names: list[str]) -> Tensor:
        entries = [self._checkpoint.entries[name] for name in names]
        stacked = read_stacked(entries, self._dtype).to(self._device)
        self._advance(sum(entry.nbytes for entry in entries))
        return stacked

    def _pack(self, weight: Tensor, bias: Tensor | None) -> ops.PackedWeight:
        packed = ops.pack_weight(weight, bias, deterministic=self._deterministic)
        if not all(self._is_counted(tensor) for tensor in packed.tensors):
            self._nbytes += packed.nbytes
        return packed

    def _count(self, tensor: Tensor) -> None:
        self._seen.add(tensor.untyped_storage().data_ptr())
        self._nbytes += tensor.nbytes

    def _is_counted(self, tensor: Tensor) -> bool:
        """Whether a packed tensor shares memory with one counted before; oneDNN's own tensors share none."""
        return tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() in self._seen

    def _advance(self, nbytes: int) -> None:
        self._read += nbytes
        self._progress(STAGE, min(1.0, self._read / self._stored))
