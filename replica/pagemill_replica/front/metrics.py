"""The replica's instruments."""

from __future__ import annotations

from collections.abc import Callable

from pagemill_common.telemetry import Meters, names
from pagemill_replica.engine.messages import StepReport
from pagemill_replica.front.link import EngineLink
from pagemill_replica.front.record import RequestRecord
from pagemill_replica.front.state import ReplicaView


class ReplicaMetrics:
    """Records finished requests and steps; gauges are read when Prometheus asks."""

    def __init__(self, meters: Meters) -> None:
        histogram, counter = meters.histogram, meters.counter
        self._meters = meters
        self._duration = histogram(names.REQUEST_DURATION, "Time from arrival to the last message.")
        self._ttft = histogram(names.TIME_TO_FIRST_TOKEN, "Time from arrival to the first token.")
        self._per_token = histogram(names.TIME_PER_OUTPUT_TOKEN, "Mean time of a token after the first, by request.")
        self._inter_token = meters.fast_histogram(
            names.INTER_TOKEN_LATENCY, "Between tokens, as they leave the replica.", "model"
        )
        self._queue = histogram(names.QUEUE_TIME, "Time in the engine before the first step.")
        self._tokens = histogram(names.TOKEN_USAGE, "Tokens of a request.", "{token}")
        self._requests = counter(names.REQUESTS, "Requests that ended.", "{request}")
        self._step_time = histogram(names.ENGINE_STEP_TIME, "Time of an engine step.")

    def observe(self, view: ReplicaView, cached_blocks: Callable[[], int], silence: Callable[[], float]) -> None:
        """Registers the gauges. Their readers run in Prometheus' thread and only read plain values."""
        gauge, rising = self._meters.gauge, self._meters.rising

        def of(read: Callable[[ReplicaView], float]) -> Callable[[], float]:
            return lambda: read(view) if view.link is not None else 0.0

        def stat(name: str) -> Callable[[], float]:
            return lambda: float(getattr(view.link.stats, name)) if view.link is not None else 0.0

        gauge(names.REPLICA_WAITING, "Requests waiting in the engine.", stat("waiting"))
        gauge(names.REPLICA_RUNNING, "Requests running in the engine.", stat("running"))
        gauge(names.REPLICA_LIVE, "Requests charged in the ledger.", of(lambda v: _link(v).ledger.live))
        gauge(names.KV_CAPACITY_BLOCKS, "Blocks in the KV cache.", of(lambda v: _link(v).ledger.capacity))
        gauge(names.KV_USED_BLOCKS, "Blocks in use, shared ones once.", stat("used_blocks"))
        gauge(names.KV_CACHED_BLOCKS, "Hashes in the prefix cache.", lambda: float(cached_blocks()))
        gauge(names.KV_COMMITTED_BLOCKS, "Blocks held or promised.", of(lambda v: _link(v).ledger.committed))
        gauge(names.KV_USE, "Share of the KV cache in use.", of(_kv_use))
        rising(names.PREFIX_PROMPT_TOKENS, "Prompt tokens asked for.", stat("prompt_tokens"))
        rising(names.PREFIX_HIT_TOKENS, "Prompt tokens found in the prefix cache.", stat("hit_tokens"))
        rising(names.GENERATED_TOKENS, "Tokens generated.", stat("generated_tokens"))
        rising(names.ENGINE_STEPS, "Engine steps.", stat("steps"))
        rising(names.PREEMPTIONS, "Requests that lost their blocks to others.", stat("preemptions"))
        gauge(names.READY, "1 where the replica takes requests.", lambda: float(not view.why_not_ready()))
        gauge(names.DRAINING, "1 while draining.", lambda: float(view.draining))
        gauge(names.HEARTBEAT_AGE, "Seconds since Redis acknowledged a heartbeat; -1: never.", silence)

    def step(self, report: StepReport) -> None:
        """Takes one engine step."""
        self._step_time.record(report.stats.step_seconds)

    def tokens(self, model: str, seconds: float, count: int) -> None:
        """`count` tokens left together, so long after the ones before."""
        self._inter_token.record(seconds / count, model, count)

    def finished(self, record: RequestRecord) -> None:
        """Takes a request that has ended, well or not."""
        model = {names.ATTR_MODEL: record.model or "unknown", names.ATTR_OPERATION: record.operation}
        self._requests.add(1, {**model, names.ATTR_OUTCOME: record.outcome, names.ATTR_CODE: record.code})
        failed = {} if record.code == "OK" else {names.ATTR_ERROR_TYPE: record.code}
        self._duration.record(record.duration, {**model, **failed})
        if record.prompt_tokens:
            self._tokens.record(record.prompt_tokens, {**model, names.ATTR_TOKEN_TYPE: "input"})
        if record.completion_tokens:
            self._tokens.record(record.completion_tokens, {**model, names.ATTR_TOKEN_TYPE: "output"})
        if record.queue is not None:
            self._queue.record(record.queue, model)
        if record.ttft is not None:
            self._ttft.record(record.ttft, model)
        if record.itl is not None:
            self._per_token.record(record.itl, model)


def _link(view: ReplicaView) -> EngineLink:
    assert view.link is not None
    return view.link


def _kv_use(view: ReplicaView) -> float:
    link = _link(view)
    return link.stats.used_blocks / link.ledger.capacity
