"""Settings that the runner cannot work with."""

from __future__ import annotations


class SettingError(ValueError):
    """A setting that this machine or model rules out; `flag` is the command-line flag to change."""

    def __init__(self, flag: str, reason: str) -> None:
        super().__init__(f"{flag}: {reason}")
        self.flag = flag
        self.reason = reason
