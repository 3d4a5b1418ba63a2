"""The values that describe a model, equal for every file format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagemill_replica.checkpoint.rope_scaling import RopeScaling


class Family(StrEnum):
    """Model families the decoder computes, named as `architectures` in config.json names them."""

    LLAMA = "LlamaForCausalLM"
    MISTRAL = "MistralForCausalLM"
    QWEN2 = "Qwen2ForCausalLM"
    QWEN3 = "Qwen3ForCausalLM"


SUPPORTED_FAMILIES = ", ".join(Family)

MAX_LAYERS = 1024
"""Several times the deepest model; a damaged config must not make a reader list a billion layers."""
MAX_CONTEXT = 1 << 24
"""Positions; rotation tables are allocated for each, and no published model goes further."""
MAX_WINDOW = (1 << 31) - 1
"""Positions."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a decoder. Sizes are in elements, positions in tokens."""

    family: Family
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    """How the frequencies of rotation are scaled; None: not at all."""
    max_context: int
    """Positions the model was made for, as its file says; a scaling does not change it."""
    tied_embeddings: bool
    """The head is the transposed embedding."""
    attention_bias: bool
    """q, k and v projections add a bias."""
    output_bias: bool
    """The attention's output projection adds a bias."""
    mlp_bias: bool
    """gate, up and down projections add a bias."""
    qk_norm: bool
    """q and k heads pass an RMS norm before rotation."""
    layer_windows: tuple[int, ...]
    """Per layer, how many latest positions (its own included) a token attends to; 0: all."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None

    @property
    def sliding_window(self) -> int:
        """The largest window of any layer; 0 where every layer attends to all positions."""
        return max(self.layer_windows, default=0)

    @property
    def query_size(self) -> int:
        """Width of the q projection."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the k projection, and of the v projection."""
        return self.kv_heads * self.head_dim

    def problem(self) -> str | None:
        """Why no decoder of this shape can exist, or None."""
        sizes = ("vocab_size", "hidden_size", "layers", "heads", "kv_heads", "head_dim", "intermediate_size")
        for name in (*sizes, "max_context"):
            if getattr(self, name) < 1:
                return f"{name} is {getattr(self, name)}; it must be at least 1"
        if self.max_context > MAX_CONTEXT:
            return f"max_context is {self.max_context}; it must be at most {MAX_CONTEXT}"
        if any(not 0 <= window <= MAX_WINDOW for window in self.layer_windows):
            return f"the sliding window is {min(self.layer_windows)}; it must be between 0 and {MAX_WINDOW}"
        if self.heads % self.kv_heads:
            return f"{self.heads} heads cannot share {self.kv_heads} kv heads evenly"
        if self.head_dim % 2:
            return f"head size {self.head_dim} is odd; rotation needs pairs"
        if not 0 < self.rms_eps < 1:
            return f"rms eps is {self.rms_eps}; it must be between 0 and 1"
        if not 1 < self.rope_theta < float("inf"):
            return f"rope theta is {self.rope_theta}; it must be finite and above 1"
        if self.rope_scaling and (unscalable := self.rope_scaling.problem(self.head_dim // 2)):
            return unscalable
        ids = [*self.eos_token_ids, *(i for i in (self.bos_token_id, self.pad_token_id) if i is not None)]
        if any(not 0 <= i < self.vocab_size for i in ids):
            return f"special token ids {sorted(set(ids))} must lie in the vocabulary of {self.vocab_size}"
        return None


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the model's makers advise for sampling; None: they say nothing."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Every id that ends a text, of the model's config and its generation defaults."""

    def problem(self) -> str | None:
        """Why no request could be sampled with these, or None."""
        if self.temperature is not None and self.temperature < 0:
            return f"temperature is {self.temperature}; it must not be negative"
        if self.top_k is not None and self.top_k < 0:
            return f"top_k is {self.top_k}; it must not be negative"
        if self.top_p is not None and not 0 < self.top_p <= 1:
            return f"top_p is {self.top_p}; it must be above 0 and at most 1"
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            return f"min_p is {self.min_p}; it must be between 0 and 1"
        if self.repetition_penalty is not None and self.repetition_penalty <= 0:
            return f"repetition_penalty is {self.repetition_penalty}; it must be above 0"
        return None
