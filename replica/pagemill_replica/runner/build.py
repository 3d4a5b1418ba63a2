"""From settings to a runner."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pagemill_kernels import ops
from pagemill_replica.checkpoint import Checkpoint, ModelConfig
from pagemill_replica.model import load
from pagemill_replica.runner.cpu import CpuRunner
from pagemill_replica.runner.dtypes import has_native_bf16, resolve_dtype
from pagemill_replica.runner.errors import SettingError
from pagemill_replica.runner.memory import plan_kv, step_bytes
from pagemill_replica.runner.options import RunnerOptions
from pagemill_replica.runner.system import available_memory, available_processors
from pagemill_replica.runner.threads import resolve_threads, use_threads

MAX_BLOCK_SIZE = 256


def build_runner(checkpoint: Checkpoint, options: RunnerOptions, progress: Callable[[str, float], None]) -> CpuRunner:
    """Loads the model and allocates its KV cache; `warm_up` comes after it.

    progress: a stage's name and the fraction of it that is done. Raises CheckpointError for files that cannot be read
    and SettingError, a ValueError that names the flag, for a setting that model or machine rule out.
    """
    _check(options)
    max_context = resolve_context(options.max_context, checkpoint.config)
    dtype = resolve_dtype(options.dtype, has_native_bf16())
    threads = resolve_threads(options.threads, available_processors())
    use_threads(threads)
    decoder = load(
        checkpoint, dtype, torch.device(options.device), options.deterministic, progress, max_context=max_context
    )
    working = step_bytes(checkpoint.config, options.token_budget, options.max_running, dtype.itemsize)
    plan = plan_kv(
        max(0, available_memory() - working),
        options.kv_memory_bytes,
        ops.kv_bytes_per_block(decoder.kv_layout(options.block_size)),
        max_context,
        options.block_size,
        options.max_running,
    )
    return CpuRunner(decoder, plan, threads)


def resolve_context(requested: int | None, model: ModelConfig) -> int:
    """The context to serve: at most what the model was made for."""
    if requested is None:
        return model.max_context
    if not 1 <= requested <= model.max_context:
        raise SettingError("--max-context", f"{requested} asked for; the model takes 1 to {model.max_context} tokens")
    return requested


def _check(options: RunnerOptions) -> None:
    if options.device != "cpu":
        raise SettingError("--device", f"{options.device} is not offered; choose cpu")
    if not 1 <= options.block_size <= MAX_BLOCK_SIZE:
        raise SettingError("--block-size", f"{options.block_size} tokens; it must be 1 to {MAX_BLOCK_SIZE}")
    if options.token_budget < 1:
        raise SettingError("--token-budget", f"{options.token_budget}; it must be at least 1")
    if options.max_running < 1:
        raise SettingError("--max-running", f"{options.max_running}; it must be at least 1")
    if options.kv_memory_bytes is not None and options.kv_memory_bytes < 1:
        raise SettingError("--kv-memory", f"{options.kv_memory_bytes} bytes; it must be at least 1")
