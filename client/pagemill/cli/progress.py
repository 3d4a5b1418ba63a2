"""Shows how far a local stack's start is."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from pagemill.local.status import TierStatus

COMPILING = "warm-up"
"""The stage in which a replica compiles its kernels, unless an earlier start has left them on disk."""
_HINT = "compiling kernels, first time: ~1 minute"
HINT_SECONDS = 4.0
"""A warm-up that goes on for longer compiles."""


class _Stage(ProgressColumn):
    """The stage's name; for one that takes long, why."""

    def render(self, task: Task) -> Text:
        stage, since = task.fields["stage"], task.fields["since"]
        compiles = stage == COMPILING and task.get_time() - since >= HINT_SECONDS
        return Text(_HINT if compiles else stage)


class StartProgress:
    """A bar for each process on a terminal; elsewhere a line whenever one enters another stage."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._tasks: dict[str, TaskID] = {}
        self._stages: dict[str, str] = {}
        self._bars = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.fields[name]}"),
            BarColumn(bar_width=16),
            _Stage(Column(no_wrap=True, overflow="ellipsis")),
            TimeElapsedColumn(),
            console=console,
            get_time=clock,
            transient=True,
        )

    def __call__(self, name: str, status: TierStatus) -> None:
        """A process's status has changed."""
        stage = "ready" if status.ready else status.stage.replace("_", " ")
        if self._console.is_terminal:
            self._draw(name, stage, status)
        elif self._stages.get(name) != stage:
            why = f" ({_HINT})" if stage == COMPILING else ""
            self._console.print(f"{name}: {stage}{why}", soft_wrap=True)
        self._stages[name] = stage

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def _draw(self, name: str, stage: str, status: TierStatus) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task("", name=name, stage=stage, since=0.0, total=1.0)
        if self._stages.get(name) != stage:
            self._bars.update(self._tasks[name], since=self._bars.get_time())
        fraction = 1.0 if status.ready else min(0.99, max(0.0, status.fraction))
        # A stage that cannot say how far it is moves the bar to and fro.
        self._bars.update(self._tasks[name], completed=fraction, total=1.0 if fraction else None, stage=stage)
