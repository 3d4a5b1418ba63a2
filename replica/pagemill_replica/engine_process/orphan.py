"""Tells the engine when the front is gone, whatever became of it.

The front holds the other end of the engine's standard input and writes nothing more to it. When it dies, however it
dies, the kernel closes that end.
"""

from __future__ import annotations

import os
import threading

HARD_EXIT_SECONDS = 10.0
"""So long the engine has to leave by itself: it may be stuck in a device call or in a send to nobody."""


class OrphanWatch:
    """A thread that waits for the end of a file descriptor."""

    def __init__(self, descriptor: int, hard_exit_seconds: float = HARD_EXIT_SECONDS) -> None:
        self._descriptor = descriptor
        self._hard_exit_seconds = hard_exit_seconds
        self._gone = threading.Event()
        self._serving = threading.Event()
        self._left = threading.Event()
        threading.Thread(target=self._watch, name="orphan-watch", daemon=True).start()

    def orphaned(self) -> bool:
        """Whether the front is gone."""
        return self._gone.is_set()

    def serving(self) -> None:
        """From here on the engine looks at `orphaned` itself; before, being orphaned ends the process at once."""
        self._serving.set()
        if self._gone.is_set():
            os._exit(1)

    def leaving(self) -> None:
        """The engine is on its way out and needs no push."""
        self._left.set()

    def _watch(self) -> None:
        try:
            while os.read(self._descriptor, 4096):
                pass
        except OSError:
            pass
        self._gone.set()
        if not self._serving.is_set():
            os._exit(1)
        if not self._left.wait(self._hard_exit_seconds):
            os._exit(1)
