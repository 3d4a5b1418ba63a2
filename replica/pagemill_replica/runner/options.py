"""How a runner computes, whatever the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Settings of the runner, as the replica's command line gives them."""

    dtype: str = "auto"
    """auto, bfloat16 or float32; auto is bfloat16 where the processor multiplies it natively."""
    device: str = "cpu"
    deterministic: bool = False
    """A row's result never depends on its neighbours, nor on how a sequence was cut into steps."""
    block_size: int = 16
    """Tokens in a KV block."""
    kv_memory_bytes: int | None = None
    """Bytes for keys and values; None: see `memory.plan_kv`."""
    max_context: int | None = None
    """Tokens of prompt and output together; None: what the model was made for."""
    token_budget: int = 2048
    """Most tokens in a step: what a step's memory is reckoned for."""
    max_running: int = 256
    """Most sequences in a step."""
    threads: int | None = None
    """Processor threads; None: the processors that this process may use."""
