"""The histogram for every token."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from pagemill_common.telemetry.fast_histogram import FastHistogram


def test_prometheus_reads_cumulative_buckets_sum_and_count() -> None:
    registry = CollectorRegistry()
    histogram = FastHistogram(registry, "gap_seconds", "Gaps.", "model", (0.1, 1.0))
    histogram.record(0.05, "a", 3)
    histogram.record(0.1, "a")
    histogram.record(0.5, "a")
    histogram.record(7.0, "a")
    histogram.record(0.2, "b")
    text = generate_latest(registry).decode()
    for line in (
        'gap_seconds_bucket{le="0.1",model="a"} 4.0',
        'gap_seconds_bucket{le="1.0",model="a"} 5.0',
        'gap_seconds_bucket{le="+Inf",model="a"} 6.0',
        'gap_seconds_count{model="a"} 6.0',
        'gap_seconds_sum{model="a"} 7.75',
        'gap_seconds_bucket{le="1.0",model="b"} 1.0',
    ):
        assert line in text
