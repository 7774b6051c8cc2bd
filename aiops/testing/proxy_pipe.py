"""One direction of one connection through a fault proxy: reads, holds back, delivers.

The sockets are used directly, without transports: only so is it known what the kernel has taken,
and whether an end is a reset or an end of stream. What is to go wrong is decided in `faults`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections import deque
from contextlib import suppress
from typing import Final

from aiops.testing.faults import PIECE_BYTES, Counters, Cut, Line

__all__ = ["ConnectionBroken", "Pipe", "until_ready"]

ARRIVAL_POLL_S: Final = 0.002
ARRIVAL_POLLS_MAX: Final = 1000
"""How long, in polls, an exact cut waits for its last bytes to be acknowledged by the receiver."""

DRAIN_BYTES_MAX: Final = 64 * 1024 * 1024
"""More than kernels keep for one connection: what lies there at a cut counts as lost."""


class ConnectionBroken(Exception):
    """One of the two ends has reset the connection."""


async def until_ready(sock: socket.socket, *, writable: bool = False) -> None:
    """Wait until a socket can be read, or written; cancelling leaves nothing behind."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    (loop.add_writer if writable else loop.add_reader)(sock, tell)
    try:
        await ready
    finally:
        (loop.remove_writer if writable else loop.remove_reader)(sock)


class Pipe:
    """One direction of one connection.

    Parameters
    ----------
    gate
        Not set while the direction is held.
    buffer_bytes
        What may be read and not yet delivered; beyond it the sender has to wait.
    """

    def __init__(
        self,
        source: socket.socket,
        sink: socket.socket,
        line: Line,
        gate: asyncio.Event,
        buffer_bytes: int,
        counters: Counters,
        *,
        upward: bool,
    ) -> None:
        self._source = source
        self._sink = sink
        self._line = line
        self._gate = gate
        self._buffer_bytes = buffer_bytes
        self._counters = counters
        self._upward = upward
        self._pieces: deque[tuple[float, memoryview]] = deque()  # due, bytes; in order
        self._buffered = 0
        self._read_all = False
        self._closed = False
        self._changed = asyncio.Event()

    # --- reading ---

    async def read(self) -> None:
        """Take what the source sends, up to its end."""
        while (piece := await self._next_piece()) is not None:
            self._take(piece)
            while self._buffered >= self._buffer_bytes:
                await self._change()
        self._read_all = True
        self._changed.set()

    async def _next_piece(self) -> bytearray | None:
        while True:
            await until_ready(self._source)
            piece = bytearray(self._line.piece_bytes)
            try:
                size = self._source.recv_into(piece)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:
                await self._gate.wait()  # the news of a reset does not pass a held link either
                raise ConnectionBroken from error
            del piece[size:]
            return piece if size else None

    def _take(self, piece: bytearray) -> None:
        if self._closed:
            self._lose(len(piece))
            return
        self._counters.corrupted += self._line.spoil(piece)
        due = self._line.due(len(piece), asyncio.get_running_loop().time())
        self._pieces.append((due, memoryview(piece)))
        self._buffered += len(piece)
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # --- delivering ---

    async def write(self) -> Cut | None:
        """Deliver what is read, each piece in its time, then the end; or return the cut to make."""
        while not self._closed:
            if self._pieces:
                cut = await self._deliver(*self._pieces[0])
                if cut is not None:
                    return cut
            elif self._read_all:
                await self._gate.wait()
                self.close()
            else:
                await self._change()
        return None

    async def _deliver(self, due: float, piece: memoryview) -> Cut | None:
        wait_s = due - asyncio.get_running_loop().time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        await self._gate.wait()
        if self._closed:
            return None
        cut = self._line.cut(len(piece))
        left = piece if cut is None else piece[: cut.after]
        while left and not self._closed:
            left = left[await self._send(left) :]
            await self._gate.wait()
        if cut is not None and cut.exact:
            await self._arrive()
        if cut is None and not self._closed:
            self._pieces.popleft()
            self._changed.set()
        return cut

    async def _send(self, data: memoryview) -> int:
        try:
            count = self._sink.send(data)
        except (BlockingIOError, InterruptedError):
            await until_ready(self._sink, writable=True)
            return 0
        except OSError as error:
            raise ConnectionBroken from error
        self._buffered -= count
        self._forward(count)
        return count

    async def _arrive(self) -> None:
        """Wait until the receiver has what was delivered: a reset would overtake it."""
        for _ in range(ARRIVAL_POLLS_MAX):
            if not _undelivered(self._sink):
                break
            await asyncio.sleep(ARRIVAL_POLL_S)

    def close(self) -> None:
        """End the stream towards the receiver; what comes from the sender now is swallowed."""
        if self._closed:
            return
        self._closed = True
        self._drop()
        self._changed.set()
        with suppress(OSError):
            self._sink.shutdown(socket.SHUT_WR)

    def forget(self) -> None:
        """Deliver nothing any more and say nothing about it; what still comes is swallowed."""
        self._gate = asyncio.Event()
        self._closed = True
        self._drop()
        self._changed.set()

    # --- counting ---

    def _forward(self, count: int) -> None:
        if self._upward:
            self._counters.forwarded_up += count
        else:
            self._counters.forwarded_down += count

    def _lose(self, count: int) -> None:
        if self._upward:
            self._counters.lost_up += count
        else:
            self._counters.lost_down += count

    def _drop(self) -> None:
        self._lose(self._buffered)
        self._buffered = 0
        self._pieces.clear()

    def count_lost(self) -> None:
        """Count what this direction loses by a reset: read, still unread, and on its way."""
        self._drop()
        self.swallow()
        on_its_way = _undelivered(self._sink)
        self._forward(-on_its_way)
        self._lose(on_its_way)

    def swallow(self) -> bool:
        """Drop what the source has sent and count it as lost; return whether it has ended."""
        scratch = bytearray(PIECE_BYTES)
        total = 0
        try:
            while total < DRAIN_BYTES_MAX:
                size = self._source.recv_into(scratch)
                if not size:
                    return True
                total += size
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True
        finally:
            self._lose(total)
        return False


def _undelivered(sock: socket.socket) -> int:
    """Return how many bytes our kernel has taken and the receiver's has not, where it is told."""
    if sys.platform != "linux":
        return 0
    import fcntl
    import termios

    with suppress(OSError):
        return int(struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    return 0
