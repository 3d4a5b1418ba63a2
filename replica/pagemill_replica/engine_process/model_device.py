"""Puts a real model on its device. The one module of this package that imports torch, and only the engine imports it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pagemill_replica.checkpoint import open_checkpoint
from pagemill_replica.engine_process.config import EngineConfig
from pagemill_replica.engine_process.device import Device, Progress, step_limits
from pagemill_replica.runner import RunnerOptions, build_runner


def load(config: EngineConfig, progress: Progress) -> Device:
    """Loads, sizes and warms up. Raises CheckpointError, or ValueError naming the setting at fault."""
    checkpoint = open_checkpoint(Path(config.model_path))
    model = checkpoint.config
    max_context = min(config.max_context or model.max_context, model.max_context)
    limits = step_limits(config, max_context=max_context, vocabulary_size=model.vocab_size)
    options = RunnerOptions(
        dtype=config.dtype,
        device=config.device,
        deterministic=config.deterministic,
        block_size=config.block_size,
        kv_memory_bytes=config.kv_memory_bytes,
        max_context=max_context,
        token_budget=limits.token_budget,
        max_running=limits.max_running,
        threads=config.threads,
    )
    runner = build_runner(checkpoint, options, progress)
    progress("warming up", 0.0)
    started = time.monotonic()
    runner.warm_up()
    warmup_seconds = time.monotonic() - started
    progress("warming up", 1.0)
    return Device(
        runner=runner,
        model_id=config.model_id or checkpoint.identity(_cache_dir(config)),
        max_context=max_context,
        vocabulary_size=model.vocab_size,
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
