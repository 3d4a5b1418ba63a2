"""Tables of metrics, read from a Prometheus page on which every instrument has been recorded once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import INVALID_SPAN, NoOpTracer
from prometheus_client.metrics_core import Metric

from doc_tables.markdown import code, table
from pagemill_common.telemetry import Meters, Telemetry
from pagemill_replica.engine.messages import EngineStats, StepReport
from pagemill_replica.front.metrics import ReplicaMetrics
from pagemill_replica.front.record import RequestRecord
from pagemill_replica.front.state import ReplicaView
from pagemill_replica.front.watch import WatchHub
from pagemill_router.telemetry import RouterTelemetry

_ANY: dict[str, Any] = {"str": "x", "float": 1.0, "int": 1}


class NotedMeters(Meters):
    """Also knows the names of all instruments that were made, recorded or not."""

    def __init__(self) -> None:
        super().__init__(Resource.create())
        self.names: list[str] = []

    def counter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Notes the name."""
        self.names.append(name)
        return super().counter(name, *args, **kwargs)

    def histogram(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Notes the name."""
        self.names.append(name)
        return super().histogram(name, *args, **kwargs)

    def gauge(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Notes the name."""
        self.names.append(name)
        super().gauge(name, *args, **kwargs)

    def rising(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Notes the name."""
        self.names.append(name)
        super().rising(name, *args, **kwargs)


def router_metrics() -> str:
    """One row for each metric of a router."""
    meters = NotedMeters()
    telemetry = RouterTelemetry(Telemetry(NoOpTracer(), meters, None))
    telemetry.watch(
        queued=lambda: 0.0, streams=lambda: 0.0, replicas=lambda: {"ready": 1.0}, modes=lambda: {"redis": 1.0}
    )
    for name, method in inspect.getmembers(telemetry, inspect.ismethod):
        if not name.startswith("_") and name not in ("watch", "span"):
            _record(method)
    return _rows(meters)


def replica_metrics() -> str:
    """One row for each metric of a replica."""
    meters = NotedMeters()
    metrics = ReplicaMetrics(meters)
    metrics.observe(ReplicaView("x", "x", WatchHub()), lambda: 0, lambda: 0.0)
    metrics.step(StepReport([], [], EngineStats(**dict.fromkeys(EngineStats.__dataclass_fields__, 0))))
    metrics.tokens("x", 1.0, 1)
    told = {"prompt_tokens": 1, "completion_tokens": 1, "queue": 1.0, "ttft": 1.0, "itl": 1.0, "code": "INTERNAL"}
    metrics.finished(RequestRecord(span=INVALID_SPAN, arrived=0.0, **told))
    return _rows(meters)


def _record(method: Callable[..., Any]) -> None:
    parameters = inspect.signature(method).parameters.values()
    method(**{parameter.name: _ANY[str(parameter.annotation)] for parameter in parameters})


def _rows(meters: NotedMeters) -> str:
    families = [family for family in meters.registry.collect() if family.samples and family.name != "target"]
    for name in meters.names:
        if not any(family.name.startswith(name.replace(".", "_")) for family in families):
            raise ValueError(
                f"the metric {name} is not recorded in docs/doc_tables/metrics.py, so its labels are unknown"
            )
    return table(("name", "type", "labels", "meaning"), sorted(map(_row, families)))


def _row(family: Metric) -> tuple[str, str, str, str]:
    labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return code(name), family.type, ", ".join(map(code, labels)), family.documentation
