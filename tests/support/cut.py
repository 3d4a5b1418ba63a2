"""A connection that can be broken: passes bytes to an address until it is told to."""

from __future__ import annotations

import asyncio
import contextlib


class Cut:
    """Listens while its `async with` block lasts."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._behind = (host, int(port))
        self._passing: dict[asyncio.Task[None], set[asyncio.StreamWriter]] = {}
        self.connections = 0
        self.address = ""

    async def __aenter__(self) -> Cut:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._server.close()
        self.break_all()
        if self._passing:
            await asyncio.wait(self._passing)

    def break_all(self) -> None:
        """Breaks every connection there is; the next ones pass."""
        for writers in self._passing.values():
            for writer in writers:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        behind_reader, behind_writer = await asyncio.open_connection(*self._behind)
        task = asyncio.current_task()
        assert task is not None
        self._passing[task] = {writer, behind_writer}
        task.add_done_callback(self._passing.pop)
        await asyncio.gather(_pass(reader, behind_writer), _pass(behind_reader, writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    writer.transport.abort()
