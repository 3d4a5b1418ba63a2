"""What is wrong with a checkpoint, in one line."""

from __future__ import annotations

from pathlib import Path


class CheckpointError(Exception):
    """A model file that cannot be served: the file at fault and the reason, one line.

    Raised for files that are missing, truncated, corrupt, contradict each other, or hold what is not supported.
    """

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(file, reason)
        self.file = file
        self.reason = reason

    def __str__(self) -> str:
        """`file: reason`, without line breaks whatever a file held."""
        return " ".join(f"{self.file}: {self.reason}".split())
