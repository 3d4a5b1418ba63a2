"""The file in which a tier tells whoever started it how far it is.

A JSON object, replaced atomically: `stage`, `fraction` (0 to 1 within the stage), `ready`, `address`,
`metrics_address`, `name`, `pid`, `engine_pid`, `error`.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pagemill_common import logs

_log = logs.get("pagemill.status")


class StatusFileError(Exception):
    """The file cannot be written; the message names the flag, the path and why."""


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
    """Keeps the status and writes it to `path` at every change; None writes nowhere.

    Only the first write can fail its caller: what a process does is worth more than telling of it.
    """

    def __init__(self, path: Path | None, name: str) -> None:
        """Writes for the first time. Raises StatusFileError."""
        self._path = path
        self._failing = False
        self.status = Status(name=name, pid=os.getpid())
        try:
            self._write()
        except (OSError, ValueError) as failure:
            raise StatusFileError(f"--status-file {path}: {_reason(failure)}") from failure

    def update(self, **changes: Any) -> None:
        """Changes fields of Status by name and writes the file if anything differs.

        A write that fails is logged, once until one succeeds, and tried again at the next change.
        """
        changed = replace(self.status, **changes)
        if changed == self.status:
            return
        self.status = changed
        try:
            self._write()
        except (OSError, ValueError) as failure:
            if not self._failing:
                _log.error("the status file cannot be written", path=str(self._path), reason=_reason(failure))
            self._failing = True
        else:
            self._failing = False

    def _write(self) -> None:
        if self._path is None:
            return
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            draft.write_text(json.dumps(asdict(self.status)) + "\n", encoding="utf-8")
            draft.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise


def _reason(failure: Exception) -> str:
    return getattr(failure, "strerror", None) or str(failure)
