"""Shares of a step, and runners over a tiny random model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from pagemill_replica.checkpoint import Checkpoint, open_checkpoint
from pagemill_replica.engine.params import Sampling
from pagemill_replica.engine.plan import ScheduledSequence
from pagemill_replica.runner import CpuRunner, RunnerOptions, build_runner
from support.checkpoints import write_folder

GREEDY = Sampling(temperature=0.0)


def make_share(
    tokens: Iterable[int],
    *,
    start: int = 0,
    table: Iterable[int] = (),
    samples: bool = False,
    key: int = 1,
    sampling: Sampling = GREEDY,
    prompt: Iterable[int] = (),
    output: Iterable[int] = (),
    masked: tuple[int, ...] = (),
) -> ScheduledSequence:
    return ScheduledSequence(
        key, list(tokens), start, list(table), samples, sampling, list(prompt), list(output), masked
    )


@pytest.fixture(scope="session")
def share() -> Callable[..., ScheduledSequence]:
    return make_share


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Two layers, a vocabulary of 48, a context of 128."""
    folder: Path = write_folder(tmp_path_factory.mktemp("tiny"))
    return open_checkpoint(folder)


@pytest.fixture(scope="session")
def open_tiny(checkpoint: Checkpoint) -> Callable[..., CpuRunner]:
    def build(**options: Any) -> CpuRunner:
        chosen = {"dtype": "float32", "kv_memory_bytes": 1 << 20, "threads": 1, **options}
        return build_runner(checkpoint, RunnerOptions(**chosen), lambda _stage, _fraction: None)

    return build
