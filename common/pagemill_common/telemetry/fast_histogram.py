"""A histogram cheap enough for every message: 1 us to record, where the SDK's takes 30.

It goes to the process's Prometheus registry beside the SDK's instruments and looks like them there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class FastHistogram(Collector):
    """Counts in buckets for each value of one label. Recorded in one thread, read in any."""

    def __init__(
        self, registry: CollectorRegistry, name: str, description: str, label: str, bounds: Sequence[float]
    ) -> None:
        """`name` and `label` are as Prometheus shows them, unit included; `bounds` are the buckets' upper ends."""
        self._name = name
        self._description = description
        self._label = label
        self._bounds = tuple(bounds)
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        registry.register(self)

    def record(self, value: float, of: str, times: int = 1) -> None:
        """Adds `value`, `times` over, for the label's value `of`."""
        counts = self._counts.get(of)
        if counts is None:
            self._sums[of] = 0.0
            counts = self._counts[of] = [0] * (len(self._bounds) + 1)
        counts[bisect_left(self._bounds, value)] += times
        self._sums[of] += value * times

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """What Prometheus reads: cumulative counts."""
        family = HistogramMetricFamily(self._name, self._description, labels=[self._label])
        for of, counts in list(self._counts.items()):
            total, buckets = 0, []
            for bound, count in zip((*map(str, self._bounds), "+Inf"), list(counts), strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric([of], buckets, self._sums[of])
        return [family]
