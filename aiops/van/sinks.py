"""Where the bytes of a TCP stream go: straight into the socket, or through a transport.

`SocketSink` is the usual one. It writes on a duplicate of the descriptor that the transport reads
from, because `transport.write` cannot give what a stream promises: it keeps views of the caller's
memory (uvloop, asyncio from 3.12 on) or joins and copies (3.11), sends only on the next turn
(uvloop), and never tells which bytes are still unsent. `TransportSink` does without those gains and
works wherever a transport does: on event loops that cannot watch a descriptor, and under TLS. There
a failed write ends the stream at once, and with it what the peer said last.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from aiops_protocol.payload import Buffer

if sys.platform == "linux":
    import fcntl
    import termios

__all__ = ["PIECES_PER_CALL_MAX", "Sink", "SocketSink", "TransportSink", "unacknowledged"]

PIECES_PER_CALL_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024) if hasattr(os, "sysconf") else 16
"""Buffers in one vectored write: what the system allows, 16 being the least that any does."""

TRANSPORT_BYTES_MAX: Final = 256 * 1024
"""Put into a transport at once. Asyncio 3.11 moves the rest of its buffer after each write to the
socket, which is quadratic in this number."""

_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)
"""A program may have given SIGPIPE back its default action; a lost peer must not end it."""


class Sink(Protocol):
    """Takes bytes without ever waiting."""

    @property
    def unsent(self) -> int:
        """Bytes taken and not yet in the kernel's hands."""
        ...

    def send(self, chunks: Sequence[Buffer]) -> int:
        """Take what fits now and return its number of bytes; an OSError is the stream's end."""
        ...

    def watch(self) -> None:
        """Call `writable` (given when the sink was made) each time that more fits."""
        ...

    def unwatch(self) -> None:
        """Stop that."""
        ...

    def finish(self) -> None:
        """Tell the peer that nothing more will come; call it when everything is sent."""
        ...

    def close(self, *, reset: bool) -> None:
        """Let go of the socket; `reset` drops also what the kernel has not sent. Idempotent."""
        ...


class SocketSink:
    """Write to a socket of our own, at once, and know exactly what went out."""

    unsent = 0

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, writable: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._writable = writable
        self._watching = False

    def send(self, chunks: Sequence[Buffer]) -> int:
        """Take what fits now and return its number of bytes; an OSError is the stream's end."""
        try:
            if len(chunks) == 1:
                return self._sock.send(chunks[0], _NO_SIGNAL)
            return self._sock.sendmsg(chunks, (), _NO_SIGNAL)
        except BlockingIOError:
            return 0

    def watch(self) -> None:
        """Have the loop call `writable` while there is room in the socket."""
        if not self._watching:
            self._loop.add_writer(self._sock.fileno(), self._writable)
            self._watching = True

    def unwatch(self) -> None:
        """Stop that."""
        if self._watching:
            self._watching = False
            self._loop.remove_writer(self._sock.fileno())

    def finish(self) -> None:
        """Send FIN; the reading half stays open."""
        with suppress(OSError):  # the peer has gone first
            self._sock.shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool) -> None:
        """Close the duplicate; the order matters, a closed descriptor cannot be unwatched."""
        if self._sock.fileno() >= 0:
            self.unwatch()
            if reset:
                _reset_on_close(self._sock)
            self._sock.close()


class TransportSink:
    """Write through a transport, in pieces, each copied first."""

    def __init__(self, transport: asyncio.Transport, writable: Callable[[], None]) -> None:
        self._transport = transport
        self._writable = writable
        self._paused = False
        self._watching = False
        self._closed = False
        # A transport that holds anything is paused: then what it holds is all that we gave it.
        transport.set_write_buffer_limits(high=0)

    @property
    def unsent(self) -> int:
        """Bytes that the transport holds and will still send."""
        return 0 if self._closed else self._transport.get_write_buffer_size()

    def send(self, chunks: Sequence[Buffer]) -> int:
        """Take one piece if the last one has gone."""
        if self._paused:
            return 0
        piece = bytearray()
        for chunk in chunks:
            piece += memoryview(chunk)[: TRANSPORT_BYTES_MAX - len(piece)]
        self._transport.write(piece)
        return len(piece)

    def watch(self) -> None:
        """Have `writable` called when the transport is empty."""
        self._watching = True

    def unwatch(self) -> None:
        """Stop that."""
        self._watching = False

    def pause(self) -> None:
        """Note that the transport holds bytes; it calls this from within its `write`."""
        self._paused = True

    def resume(self) -> None:
        """Note that the transport is empty."""
        self._paused = False
        if self._watching:
            self._writable()

    def finish(self) -> None:
        """End the sending half; TLS has no half, there the whole transport ends."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def close(self, *, reset: bool) -> None:
        """Have the socket reset if asked for; the transport closes it."""
        self._watching = False
        self._closed = True
        if reset:
            _reset_on_close(self._transport.get_extra_info("socket"))


def unacknowledged(descriptor: int) -> int:
    """Return how many bytes the kernel has sent or will send, and has no acknowledgement for.

    0 where the system does not tell, and for a socket that is closed.
    """
    if sys.platform == "linux" and descriptor >= 0:
        with suppress(OSError):
            answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
            return int.from_bytes(answer, sys.byteorder)
    return 0


def _reset_on_close(sock: Any) -> None:
    """Make the end of a socket a reset, so that the kernel keeps nothing for a peer given up."""
    with suppress(OSError, AttributeError, ValueError):  # closed already, or no real socket
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
