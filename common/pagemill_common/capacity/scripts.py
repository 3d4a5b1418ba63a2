"""The Lua scripts, as the server gets them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its text and the SHA-1 under which a server keeps it."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Script:
        """A script of this text."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def read_lua(name: str) -> str:
    """The text of one packaged .lua file."""
    return resources.files("pagemill_common.capacity").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


class ScriptSet:
    """The scripts of the pool, each with what they share put before it.

    `clock` is Lua text that defines `now_ms()`. What the package ships reads the server's TIME; no argument or key
    can change that. Tests bring their own text to move time.
    """

    def __init__(self, clock: str | None = None) -> None:
        prelude = (clock if clock is not None else read_lua("clock")) + "\n" + read_lua("common") + "\n"
        self.heartbeat = Script.of(prelude + read_lua("heartbeat"))
        self.reserve = Script.of(prelude + read_lua("reserve"))
        self.release = Script.of(prelude + read_lua("release"))
