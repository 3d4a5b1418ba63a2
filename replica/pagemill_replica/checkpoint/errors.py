"""What is wrong with a checkpoint, in one line."""

from __future__ import annotations

from pathlib import Path

MAX_REASON = 800
"""Characters of a reason that are shown; a hostile file can hold names of any length."""

AGAIN = "copy or download it again"
"""What to do about a damaged file."""


class CheckpointError(Exception):
    """A model file that cannot be served: the file at fault and the reason, one line.

    Raised for files that are missing, truncated, corrupt, contradict each other, or hold what is not supported.
    """

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(file, reason)
        self.file = file
        self.reason = reason

    def __str__(self) -> str:
        """`file: reason`, one printable line of bounded length whatever a file held."""
        reason = self.reason
        if len(reason) > MAX_REASON:
            # The end says what to do.
            reason = f"{reason[: MAX_REASON * 3 // 4]} ... {reason[-MAX_REASON // 4 :]}"
        line = " ".join(f"{self.file}: {reason}".split())
        return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
