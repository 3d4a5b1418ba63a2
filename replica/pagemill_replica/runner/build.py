"""From settings to a runner."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pagemill_kernels import ops
from pagemill_replica.checkpoint import Checkpoint, ModelConfig, open_checkpoint
from pagemill_replica.model import load
from pagemill_replica.runner.config import RunnerConfig
from pagemill_replica.runner.cpu import CpuRunner
from pagemill_replica.runner.dtypes import has_native_bf16, resolve_dtype
from pagemill_replica.runner.errors import SettingError
from pagemill_replica.runner.memory import plan_kv
from pagemill_replica.runner.system import available_memory, available_processors
from pagemill_replica.runner.threads import use_threads

MAX_BLOCK_SIZE = 256


def build_runner(
    config: RunnerConfig, progress: Callable[[str, float], None], *, checkpoint: Checkpoint | None = None
) -> CpuRunner:
    """Loads the model and allocates its KV cache; `warm_up` comes after it.

    checkpoint: the one at `config.model_path`, where the caller has it open. Raises CheckpointError for a model that
    cannot be served and SettingError, naming the flag, for a setting that model or machine rule out.
    """
    source = checkpoint or open_checkpoint(config.model_path)
    _check(config)
    max_context = resolve_context(config.max_context, source.config)
    dtype = resolve_dtype(config.dtype, has_native_bf16())
    threads = config.threads or available_processors()
    use_threads(threads)
    device = torch.device(config.device)
    decoder = load(source, dtype, device, config.deterministic, progress, max_context=max_context)
    plan = plan_kv(
        available_memory(),
        config.kv_memory_bytes,
        ops.kv_bytes_per_block(decoder.kv_layout(config.block_size)),
        max_context,
        config.block_size,
        config.max_running,
    )
    return CpuRunner(decoder, plan, threads)


def resolve_context(requested: int | None, model: ModelConfig) -> int:
    """The context to serve: at most what the model was made for."""
    if requested is None:
        return model.max_context
    if not 1 <= requested <= model.max_context:
        raise SettingError("--max-context", f"{requested} asked for; the model takes 1 to {model.max_context} tokens")
    return requested


def _check(config: RunnerConfig) -> None:
    if config.device != "cpu":
        raise SettingError("--device", f"{config.device} is not offered; choose cpu")
    if not 1 <= config.block_size <= MAX_BLOCK_SIZE:
        raise SettingError("--block-size", f"{config.block_size} tokens; it must be 1 to {MAX_BLOCK_SIZE}")
    if config.threads is not None and config.threads < 1:
        raise SettingError("--threads", f"{config.threads}; it must be at least 1")
    if config.max_running < 1:
        raise SettingError("--max-running", f"{config.max_running}; it must be at least 1")
    if config.kv_memory_bytes is not None and config.kv_memory_bytes < 1:
        raise SettingError("--kv-memory", f"{config.kv_memory_bytes} bytes; it must be at least 1")
