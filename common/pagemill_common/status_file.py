"""The file in which a tier tells whoever started it how far it is.

A JSON object, replaced atomically: `stage`, `fraction` (0 to 1 within the stage), `ready`, `address`,
`metrics_address`, `name`, `pid`, `engine_pid`, `error`.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Status:
    """What the file says."""

    stage: str = "starting"
    fraction: float = 0.0
    ready: bool = False
    address: str | None = None
    metrics_address: str | None = None
    name: str = ""
    pid: int = 0
    engine_pid: int | None = None
    error: str | None = None


class StatusFile:
    """Keeps the status and writes it to `path` at every change; None writes nowhere."""

    def __init__(self, path: Path | None, name: str) -> None:
        self._path = path
        self.status = Status(name=name, pid=os.getpid())
        self._write()

    def update(self, **changes: Any) -> None:
        """Changes fields of Status by name and writes the file if anything differs."""
        changed = replace(self.status, **changes)
        if changed != self.status:
            self.status = changed
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        draft.write_text(json.dumps(asdict(self.status)) + "\n", encoding="utf-8")
        draft.replace(self._path)
