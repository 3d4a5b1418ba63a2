"""What a tier says about itself in its status file. Pure but for one read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TierStatus:
    """A status file's content."""

    stage: str = "starting"
    fraction: float = 0.0
    """Of the stage, 0 to 1."""
    ready: bool = False
    address: str | None = None
    """host:port it serves on."""
    name: str = ""
    pid: int | None = None
    engine_pid: int | None = None
    error: str | None = None
    """Why it will not become ready."""


def read_status(path: Path) -> TierStatus:
    """The status in a file; a starting one while there is no file, or none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return TierStatus()
    if not isinstance(found, dict):
        return TierStatus()
    known = {key: found[key] for key in TierStatus.__dataclass_fields__ if found.get(key) is not None}
    return TierStatus(**known)
