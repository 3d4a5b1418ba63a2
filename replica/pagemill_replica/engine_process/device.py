"""A device with a model on it, as the process edge sees it, and the settings it runs under."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagemill_replica.engine.limits import EngineLimits
from pagemill_replica.engine.plan import Runner
from pagemill_replica.engine_process.config import EngineConfig

MAX_RUNNING = 256
"""Most sequences in a step where the configuration does not say."""
TOKEN_BUDGETS = {"cpu": 512, "cuda": 2048}
"""Most tokens in a step, by kind of device, where the configuration does not say."""

Progress = Callable[[str, float], None]
"""Stage and fraction of start-up."""


@dataclass(frozen=True, slots=True)
class Device:
    """A warm runner, and what it is."""

    runner: Runner
    model_id: str
    max_context: int
    vocabulary_size: int
    kv_bytes: int
    weight_bytes: int
    dtype: str
    device: str
    deterministic: bool
    warmup_seconds: float


def step_limits(config: EngineConfig, *, max_context: int, vocabulary_size: int) -> EngineLimits:
    """The scheduler's settings. Raises ValueError naming the field at fault."""
    budget = config.token_budget or TOKEN_BUDGETS.get(config.device.partition(":")[0], TOKEN_BUDGETS["cpu"])
    return EngineLimits(
        max_context_tokens=max_context,
        token_budget=budget,
        max_running=config.max_running or min(MAX_RUNNING, budget),
        watermark=config.watermark,
        vocabulary_size=vocabulary_size,
    )
