"""The bodies of the van contract, and a handler that remembers; for every test of streams."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from aiops.van.base import Address, Stream, Van
from aiops.van.memory import MemoryStream, MemoryVan
from aiops.van.tcp import TcpVan
from aiops.van.tcp_stream import TcpStream

GUARD_S = float(os.environ.get("AIOPS_TEST_GUARD_S", "120"))
"""No test takes so long, ten seconds at most on a calm machine; a wait that does has failed."""

BODIES = ("tcp", "tcp-transport", "memory")
ANYWHERE = Address("127.0.0.1", 0)


def make_van(body: str) -> Van:
    """Return a van of the named kind; `tcp-transport` writes through the loop's transport."""
    return MemoryVan() if body == "memory" else TcpVan(direct=body == "tcp")


class Recorder:
    """A handler that keeps what it was told. `buffer_bytes` is the size of what it offers."""

    def __init__(self, stream: Stream, buffer_bytes: int = 65536) -> None:
        self.stream = stream
        self.data = bytearray()
        self.drained_at: list[int] = []  # unsent bytes at each call
        self.losses: list[Exception | None] = []
        self.ended = asyncio.Event()
        self._memory = memoryview(bytearray(buffer_bytes))
        self._progress = asyncio.Event()

    def get_buffer(self) -> memoryview:
        return self._memory

    def received(self, count: int) -> None:
        assert not self.losses, "nothing is called after the end"
        self.data += self._memory[:count]
        self._progress.set()

    def drained(self) -> None:
        assert not self.losses, "nothing is called after the end"
        self.drained_at.append(self.stream.pending_bytes)
        self._progress.set()

    def lost(self, error: Exception | None) -> None:
        self.losses.append(error)
        self.ended.set()
        self._progress.set()

    @property
    def error(self) -> Exception | None:
        """How the stream ended; it must have ended once."""
        assert len(self.losses) == 1
        return self.losses[0]

    async def has(self, count: int) -> bytes:
        """Wait for `count` bytes, or the end, and return all that came."""
        while len(self.data) < count and not self.losses:
            await self.news()
        return bytes(self.data)

    async def news(self) -> None:
        """Wait until this handler is told something."""
        self._progress.clear()
        await self._progress.wait()


class Ends:
    """An `accept` that gives every stream a handler made by `make` and keeps it."""

    def __init__(self, make: Callable[[Stream], Recorder] = Recorder) -> None:
        self.all: list[Recorder] = []
        self._make = make
        self._more = asyncio.Event()

    def __call__(self, stream: Stream) -> Recorder:
        self.all.append(self._make(stream))
        self._more.set()
        return self.all[-1]

    async def number(self, index: int) -> Recorder:
        """Wait for the stream of this number and return its handler."""
        while len(self.all) <= index:
            self._more.clear()
            await self._more.wait()
        return self.all[index]

    async def ended(self) -> None:
        """Wait until all have ended, each once."""
        for recorder in self.all:
            await recorder.ended.wait()
            assert len(recorder.losses) == 1


class Pair:
    """Two connected ends with their handlers: `near` dialled, `far` was accepted."""

    def __init__(self, near: Recorder, far: Recorder) -> None:
        self.near = near
        self.far = far


@asynccontextmanager
async def connected(
    body: str, near_bytes: int = 65536, far_bytes: int = 65536
) -> AsyncIterator[Pair]:
    """Give a connected pair; at the end both streams are ended and nothing may be left."""
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        van = make_van(body)
        near = Ends(lambda stream: Recorder(stream, near_bytes))
        far = Ends(lambda stream: Recorder(stream, far_bytes))
        listener = await van.listen(ANYWHERE, far)
        try:
            await van.dial(listener.address, near)
            pair = Pair(near.all[0], await far.number(0))
        finally:
            await listener.close()
        try:
            yield pair
        finally:
            for end in (pair.near, pair.far):
                end.stream.abort()
                await end.ended.wait()
            for end in (pair.near, pair.far):
                assert len(end.losses) == 1
                assert end.stream.pending_bytes == 0


def stall(stream: Stream) -> None:
    """Let this end read nothing, as when its process is stopped."""
    if isinstance(stream, MemoryStream):
        stream.hold()
    else:
        assert isinstance(stream, TcpStream)
        assert stream._transport is not None
        stream._transport.pause_reading()


def resume(stream: Stream) -> None:
    """Let this end read again."""
    if isinstance(stream, MemoryStream):
        stream.release()
    else:
        assert isinstance(stream, TcpStream)
        assert stream._transport is not None
        stream._transport.resume_reading()


@asynccontextmanager
async def leaving_nothing() -> AsyncIterator[None]:
    """Check that the body leaves no socket and no task behind."""
    tasks_before = asyncio.all_tasks()
    sockets_before = open_sockets()
    yield
    async with asyncio.timeout(GUARD_S):
        while (asyncio.all_tasks() - tasks_before) or open_sockets() != sockets_before:
            gc.collect()  # an object that was only forgotten warns, and warnings are errors
            await asyncio.sleep(0.001)  # the loops close sockets on a later turn


def open_sockets() -> list[str]:
    """Return the names of this process's open sockets; none where that cannot be told."""
    found = []
    for descriptor in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # that of the listing itself is gone by now
            if (name := str(descriptor.readlink())).startswith("socket:"):
                found.append(name)
    return sorted(found)


def pattern(count: int, seed: int = 0) -> bytes:
    """Return bytes in which a loss, a repeat or a swap shows."""
    block = bytes((index * 7 + index // 251 + seed) % 256 for index in range(min(count, 64_007)))
    return (block * (count // max(len(block), 1) + 1))[:count]
