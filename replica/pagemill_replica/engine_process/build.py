"""Builds the engine that a configuration asks for: checkpoint, runner, core."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from pagemill_common.block_hash import BlockHasher
from pagemill_replica.engine.core import EngineCore
from pagemill_replica.engine.messages import Ready
from pagemill_replica.engine.testing import Script, ScriptedRunner
from pagemill_replica.engine_process.config import EngineConfig
from pagemill_replica.engine_process.device import Device, Progress, step_limits


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine that is warm, and what the front is told of it."""

    core: EngineCore
    ready: Ready


def build_engine(config: EngineConfig, progress: Progress, clock: Callable[[], float]) -> BuiltEngine:
    """Loads and warms up everything. Raises whatever is wrong with configuration, checkpoint or device."""
    script = config.script
    if script is not None:
        device = _made_up(config, script, progress)
    else:
        # Imported here because a made-up model needs neither torch nor numba, which take seconds to import.
        from pagemill_replica.engine_process.model_device import load

        device = load(config, progress)
    limits = step_limits(config, max_context=device.max_context, vocabulary_size=device.vocabulary_size)
    hasher = BlockHasher(config.model_id or device.model_id, "", config.block_size)
    core = EngineCore(device.runner, hasher, limits, clock)
    ready = Ready(
        pid=os.getpid(),
        num_blocks=device.runner.num_blocks,
        block_size=device.runner.block_size,
        max_context_tokens=device.max_context,
        max_request_tokens=core.max_request_tokens,
        kv_bytes=device.kv_bytes,
        weight_bytes=device.weight_bytes,
        dtype=device.dtype,
        device=device.device,
        deterministic=device.deterministic,
        warmup_seconds=device.warmup_seconds,
    )
    return BuiltEngine(core, ready)


def _made_up(config: EngineConfig, script: Script, progress: Progress) -> Device:
    for quarter in range(4):
        progress("loading weights", quarter / 4)
        time.sleep(script.load_delay / 4)
    return Device(
        runner=ScriptedRunner(script, script.blocks, config.block_size),
        model_id=hashlib.sha256(config.model_path.encode()).hexdigest(),
        max_context=min(config.max_context or script.context, script.context),
        vocabulary_size=script.vocab,
        kv_bytes=0,
        weight_bytes=0,
        dtype="float32",
        device="cpu",
        deterministic=True,
        warmup_seconds=0.0,
    )
