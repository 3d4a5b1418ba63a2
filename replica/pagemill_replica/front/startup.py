"""Small steps of the start: settings to engine settings, and what the start log says."""

from __future__ import annotations

from pagemill_common import logs
from pagemill_common.capacity import CapacityPool, CapacityUnavailable
from pagemill_replica.engine.messages import Ready
from pagemill_replica.engine_process.config import EngineConfig
from pagemill_replica.front.served import ServedModel
from pagemill_replica.settings import ReplicaSettings

_log = logs.get("pagemill.replica")


def engine_config(settings: ReplicaSettings, served: ServedModel) -> EngineConfig:
    """What the engine process is told."""
    return EngineConfig(
        model_path=str(settings.model_path),
        model_id=served.model_id,
        model_name=served.name,
        fake_runner=settings.fake_runner,
        dtype=settings.dtype,
        device=settings.device,
        deterministic=settings.deterministic,
        block_size=settings.block_size,
        kv_memory_bytes=settings.kv_memory,
        max_context=settings.max_context,
        token_budget=settings.token_budget,
        max_running=settings.max_running,
        threads=settings.threads,
        cache_dir=str(settings.cache_dir),
        otlp_endpoint=settings.otlp_endpoint,
        instance=settings.name,
        log_format=settings.log_format,
        log_level=settings.log_level,
    )


async def tell_of_redis(pool: CapacityPool) -> None:
    """One line that says whether Redis answers, long before the first heartbeat would."""
    try:
        await pool.ping()
    except CapacityUnavailable as trouble:
        _log.warning("redis does not answer; heartbeats will try again", address=pool.address, reason=str(trouble))
    else:
        _log.info("redis answers", address=pool.address, pool=pool.keys.pool)


def log_capacity(ready: Ready) -> None:
    """One line that says what the replica can hold."""
    tokens = ready.num_blocks * ready.block_size
    _log.info(
        "engine ready",
        blocks=ready.num_blocks,
        block_size=ready.block_size,
        tokens=tokens,
        largest_request_tokens=ready.max_request_tokens,
        context_tokens=ready.max_context_tokens,
        concurrency_at_full_length=round(tokens / ready.max_context_tokens, 2),
        kv_mib=round(ready.kv_bytes / 2**20, 1),
        weights_mib=round(ready.weight_bytes / 2**20, 1),
        dtype=ready.dtype,
        device=ready.device,
        deterministic=ready.deterministic,
        warmup_seconds=round(ready.warmup_seconds, 2),
    )
