"""A connection that breaks on one side: passes bytes to an address until it is told to."""

from __future__ import annotations

import asyncio
import contextlib


class Cut:
    """Listens while its `async with` block lasts."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._behind = (host, int(port))
        self._callers: set[asyncio.StreamWriter] = set()
        self._behind_writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.address = ""

    async def __aenter__(self) -> Cut:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._server.close()
        for writer in self._callers | self._behind_writers:
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(self._serving)

    def break_off(self) -> None:
        """Callers lose every connection there is; the other side hears nothing of it. The next ones pass."""
        for writer in self._callers:
            writer.transport.abort()
        self._callers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        behind_reader, behind_writer = await asyncio.open_connection(*self._behind)
        self._callers.add(writer)
        self._behind_writers.add(behind_writer)
        await asyncio.gather(_pass(reader, behind_writer), _pass(behind_reader, writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the reading side ends; what the writing side no longer takes is lost."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
