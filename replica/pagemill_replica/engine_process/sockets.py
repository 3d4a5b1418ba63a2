"""The front's end of the two sockets to the engine, driven by its event loop."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable

import zmq

_LONGEST_SOCKET_PATH = 100
"""Linux allows 107 bytes for the path of a socket."""
_CONNECT_POLL_SECONDS = 0.001


class FrontSockets:
    """Two one-way sockets in a folder that only this user can enter.

    The receiving one has its descriptor in the event loop. That descriptor is edge-triggered, so that each wake-up
    reads until nothing is left; nothing else ever reads from that socket.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_frame: Callable[[bytes], None]) -> None:
        """`on_frame` must not raise."""
        self._loop = loop
        self._on_frame = on_frame
        self._folder = _private_folder()
        self._closed = False
        self.to_engine = f"ipc://{self._folder}/to_engine"
        self.from_engine = f"ipc://{self._folder}/from_engine"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._out = self._context.socket(zmq.PUSH)
        # Bounded by the replica's ledger, which admits no more than the engine can hold.
        self._out.set_hwm(0)
        self._out.bind(self.to_engine)
        self._in = self._context.socket(zmq.PULL)
        self._in.bind(self.from_engine)
        self._descriptor = int(self._in.getsockopt(zmq.FD))
        loop.add_reader(self._descriptor, self.drain)
        self.drain()

    def send(self, frame: bytes) -> bool:
        """Queues a frame, without ever waiting. Returns whether there is an engine that takes it."""
        try:
            self._out.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            # The queue has no bound, so what is missing is the other end.
            return False
        return True

    async def connected(self) -> None:
        """Waits until the engine's other socket is there: its two connections come up independently of each other."""
        while not self._closed and not self._out.poll(0, zmq.POLLOUT):  # noqa: ASYNC110 - zmq has no event for it
            await asyncio.sleep(_CONNECT_POLL_SECONDS)

    def drain(self) -> None:
        """Hands over every frame that has come."""
        while not self._closed:
            try:
                frame = self._in.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_frame(frame)

    def close(self) -> None:
        """Closes both sockets and removes the folder. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._descriptor)
        self._out.close(linger=0)
        self._in.close(linger=0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)


def _private_folder() -> str:
    folder = tempfile.mkdtemp(prefix="pagemill-")
    if len(os.fsencode(folder)) + len("/from_engine") <= _LONGEST_SOCKET_PATH:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix="pagemill-", dir="/tmp")
