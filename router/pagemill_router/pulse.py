"""A signal that wakes everyone who waits, and nobody who comes later."""

from __future__ import annotations

import asyncio


class Pulse:
    """Lives in one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Wakes all who wait."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Returns at the next `fire`."""
        await self._event.wait()
