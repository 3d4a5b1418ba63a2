"""Puts a real model on its device. Of this package only this module imports torch, and only the engine imports it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pagemill_common import logs
from pagemill_replica.checkpoint import open_checkpoint
from pagemill_replica.engine_process.config import EngineConfig
from pagemill_replica.engine_process.device import Device, Progress, step_limits
from pagemill_replica.runner import RunnerOptions, build_runner

_log = logs.get("pagemill.engine")


def load(config: EngineConfig, progress: Progress) -> Device:
    """Loads, sizes and warms up. Raises CheckpointError, SettingError, or ValueError naming the setting at fault."""
    checkpoint = open_checkpoint(Path(config.model_path))
    vocabulary_size = checkpoint.config.vocab_size
    # Settings are checked before the weights are read: that takes long.
    limits = step_limits(config, max_context=checkpoint.config.max_context, vocabulary_size=vocabulary_size)
    options = RunnerOptions(
        dtype=config.dtype,
        device=config.device,
        deterministic=config.deterministic,
        block_size=config.block_size,
        kv_memory_bytes=config.kv_memory_bytes,
        max_context=config.max_context,
        token_budget=limits.token_budget,
        max_running=limits.max_running,
        threads=config.threads,
    )
    runner = build_runner(checkpoint, options, progress)
    started = time.monotonic()
    runner.warm_up(progress)
    warmup_seconds = time.monotonic() - started
    _log.info(
        "model is warm",
        model=config.model_name or checkpoint.path.name,
        dtype=runner.dtype,
        threads=runner.threads,
        weight_bytes=runner.weight_bytes,
        warmup_seconds=round(warmup_seconds, 2),
        token_budget=limits.token_budget,
        max_running=limits.max_running,
    )
    return Device(
        runner=runner,
        model_id=config.model_id or checkpoint.identity(_cache_dir(config)),
        max_context=runner.max_context,
        vocabulary_size=vocabulary_size,
        kv_bytes=runner.kv_bytes,
        weight_bytes=runner.weight_bytes,
        dtype=runner.dtype,
        device=runner.device,
        deterministic=runner.deterministic,
        warmup_seconds=warmup_seconds,
    )


def _cache_dir(config: EngineConfig) -> Path:
    if config.cache_dir is not None:
        return Path(config.cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagemill"
