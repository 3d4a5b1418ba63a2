"""Shows how far a local stack's start is."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from pagemill.local.status import TierStatus


class StartProgress:
    """A bar for each process on a terminal; elsewhere a line whenever one enters another stage."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[str, TaskID] = {}
        self._stages: dict[str, str] = {}
        self._bars = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.fields[name]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[stage]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )

    def __call__(self, name: str, status: TierStatus) -> None:
        """A process's status has changed."""
        stage = "ready" if status.ready else status.stage.replace("_", " ")
        if self._console.is_terminal:
            self._draw(name, stage, status)
        elif self._stages.get(name) != stage:
            self._console.print(f"{name}: {stage}", soft_wrap=True)
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
            self._tasks[name] = self._bars.add_task("", name=name, stage=stage, total=1.0)
        fraction = 1.0 if status.ready else min(0.99, max(0.0, status.fraction))
        # A stage that cannot say how far it is moves the bar to and fro.
        self._bars.update(self._tasks[name], completed=fraction, total=1.0 if fraction else None, stage=stage)
