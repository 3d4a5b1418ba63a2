"""Metrics through the OpenTelemetry SDK, read by Prometheus from a port of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry

from pagemill_common.listen import refusal
from pagemill_common.telemetry import names
from pagemill_common.telemetry.fast_histogram import FastHistogram
from pagemill_common.telemetry.metrics_port import MetricsPort

Value = float | Mapping[str, float]


class Meters:
    """Makes the instruments of a process. Names and bucket bounds come from `telemetry.names`."""

    def __init__(self, resource: Resource) -> None:
        self.registry = CollectorRegistry()
        reader = PrometheusMetricReader(scope_info_enabled=False, registry=self.registry)
        views = [
            View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(bounds))
            for name, bounds in names.BUCKETS.items()
        ]
        self._provider = MeterProvider(metric_readers=[reader], resource=resource, views=views, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("pagemill")
        self._port: MetricsPort | None = None

    def counter(self, name: str, description: str, unit: str = "1") -> Counter:
        """A sum that only rises: `.add(amount, {label: value})`."""
        return self._meter.create_counter(name, unit=unit, description=description)

    def histogram(self, name: str, description: str, unit: str = "s") -> Histogram:
        """A distribution: `.record(value, {label: value})`."""
        return self._meter.create_histogram(name, unit=unit, description=description)

    def fast_histogram(self, name: str, description: str, label: str) -> FastHistogram:
        """A distribution of seconds by one label, for what is recorded with every token."""
        shown = f"{name.replace('.', '_')}_seconds"
        return FastHistogram(self.registry, shown, description, label, names.BUCKETS[name])

    def gauge(
        self, name: str, description: str, read: Callable[[], Value], *, label: str = "", unit: str = "1"
    ) -> None:
        """A value read when Prometheus asks, from another thread: `read` must not block nor need the loop.

        It returns a number, or numbers by the value of `label`.
        """
        self._meter.create_observable_gauge(name, [gauge_callback(read, label)], unit=unit, description=description)

    def rising(self, name: str, description: str, read: Callable[[], float], unit: str = "1") -> None:
        """A sum kept elsewhere and read when Prometheus asks, as `gauge`."""
        self._meter.create_observable_counter(name, [gauge_callback(read, "")], unit=unit, description=description)

    def listen(self, address: str) -> MetricsPort:
        """Serves /metrics on host:port; port 0 takes a free one. Raises ListenError, which names flag and address."""
        host, _, port = address.rpartition(":")
        try:
            self._port = MetricsPort(self.registry, host, int(port))
        except OSError as failure:
            raise refusal("--metrics-listen", address, failure) from failure
        return self._port

    def shutdown(self) -> None:
        """Closes the port and the instruments."""
        if self._port is not None:
            self._port.close()
            self._port = None
        self._provider.shutdown()


def gauge_callback(read: Callable[[], Value], label: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """What the SDK calls: turns `read()` into observations."""

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        value = read()
        if isinstance(value, Mapping):
            return [Observation(amount, {label: name}) for name, amount in value.items()]
        return [Observation(value)]

    return observe
