"""Link: frames over one stream. Handshake, decoding, PING and GOODBYE happen in here.

A link joins a `Stream` (bytes) and a `Connection` (their meaning) and tells its owner three
things: that it is ready, each frame, and, once, that it is lost. What the frames mean to a
role is not known here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final, Protocol

from aiops.errors import AiopsError, ConnectionLost, PeerMisbehaved
from aiops.van.base import Stream
from aiops_protocol.buffer import NEED_DATA
from aiops_protocol.connection import Connection, State
from aiops_protocol.errors import ErrorCode, RemoteProtocolError
from aiops_protocol.frames import Frame, Goodbye, Ping, Pong
from aiops_protocol.handshake import ClientHandshake, Hello, ServerHandshake, Welcome
from aiops_protocol.limits import HANDSHAKE_TIMEOUT_S
from aiops_protocol.payload import Buffer

__all__ = ["Link", "LinkOwner"]

_READY: Final = State.READY  # to look a member up takes 50 ns, and each frame asks for this one

_numbers: Final = itertools.count(1)


class LinkOwner(Protocol):
    """Who a link belongs to. Called from the event loop."""

    def link_ready(self, link: Link) -> None:
        """Take note that the handshake is done: frames may be sent."""
        ...

    def link_frame(self, link: Link, frame: Frame) -> None:
        """Take a frame; a payload that was not given a destination holds until this returns."""
        ...

    def link_pinged(self, link: Link) -> None:
        """Take note that the peer is alive; it is answered right after."""
        ...

    def link_batch_end(self, link: Link) -> None:
        """Take note that all frames that have arrived are handed over."""
        ...

    def link_drained(self, link: Link) -> None:
        """Take note that a stream that was full has room again."""
        ...

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Take note of the end: `None` after a goodbye, otherwise what broke. Called once."""
        ...


class Link:
    """One connection that speaks frames; made in the `accept` callback of a van.

    Attributes
    ----------
    number
        Unique in the process: the peer id by which cores name the connection.
    tag
        The owner's own word for who is at the other end; part of error texts.
    owner
        Whom the link tells; may be exchanged at any moment.
    goodbye
        The GOODBYE that the peer sent, if it did.
    bytes_sent, bytes_received
        Including handshake and headers. After the end, what has really left this process.
    """

    def __init__(
        self,
        stream: Stream,
        handshake: ServerHandshake | ClientHandshake,
        owner: LinkOwner,
        *,
        destination: Callable[[Frame, int], memoryview | None] | None = None,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        tag: str = "",
    ) -> None:
        self.number = next(_numbers)
        self.stream = stream
        self.tag = tag
        self.goodbye: Goodbye | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self.owner = owner
        self._connection = Connection(handshake, destination)
        self._error: AiopsError | None = None
        self._said_goodbye = False
        self._closing = False
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._timer: asyncio.TimerHandle | None = loop.call_later(
            handshake_timeout_s, self._handshake_late, handshake_timeout_s
        )
        opening = self._connection.open()
        if opening:
            self._write(opening)

    def __str__(self) -> str:
        return f"{self.tag} at {self.stream.remote}" if self.tag else self.stream.remote

    @property
    def ready(self) -> bool:
        """Whether frames may be sent."""
        return self._connection.state is _READY and not self._closing

    @property
    def hello(self) -> Hello:
        """What the dialling side said of itself; for the accepting side of a ready link."""
        handshake = self._connection.handshake
        assert isinstance(handshake, ServerHandshake)
        assert handshake.hello is not None
        return handshake.hello

    @property
    def nonce(self) -> bytes:
        """What makes this connection unlike any other; for the dialling side."""
        handshake = self._connection.handshake
        assert isinstance(handshake, ClientHandshake)
        return handshake.nonce

    @property
    def welcome(self) -> Welcome:
        """The limits that the accepting side told; for the dialling side of a ready link."""
        handshake = self._connection.handshake
        assert isinstance(handshake, ClientHandshake)
        assert handshake.welcome is not None
        return handshake.welcome

    # --- sending ---

    def send(self, frame: Frame, *, borrowed: bool = False, checksum: int | None = None) -> None:
        """Send a frame; what the kernel does not take at once is copied, unless borrowed.

        `checksum` is that of the payload, if it is known. Lost links ignore it.
        """
        if self.ready:
            header, payload = self._connection.encode(frame, checksum)
            self.send_encoded(header, payload, borrowed=borrowed)

    def send_together(self, small: Frame, large: Frame) -> None:
        """Send two frames in one write, borrowing the payload of the second.

        Two writes would be two system calls, of which the first wakes the receiver for nothing.
        """
        if self.ready:
            parts = [*self._connection.encode(small), *self._connection.encode(large)]
            self.bytes_sent += sum(map(len, parts))
            self.stream.write(*parts, borrowed=True)

    def send_encoded(self, header: Buffer, payload: Buffer, *, borrowed: bool) -> None:
        """Send a frame that is already bytes, for example once more over a new connection."""
        if self.ready:
            self.bytes_sent += len(header) + len(payload)
            if len(payload):
                self.stream.write(header, payload, borrowed=borrowed)
            else:
                self.stream.write(header)

    def _write(self, data: bytes) -> None:
        self.bytes_sent += len(data)
        self.stream.write(data)

    def close(self, code: ErrorCode = ErrorCode.OK, text: str = "") -> None:
        """Say goodbye, send what is pending, and end. Idempotent."""
        if self._closing:
            return
        if self.ready:
            self.send(Goodbye(code, text))
            self._said_goodbye = True
        self._closing = True
        self.stream.close()

    def abort(self, error: AiopsError | None = None) -> None:
        """End at once; `error` is what the owner is told."""
        self._error = self._error or error
        self._closing = True
        self.stream.abort()

    @property
    def ended(self) -> bool:
        """Whether the stream has ended, and the owner been told."""
        return self._ended.done()

    async def wait_lost(self) -> None:
        """Wait for the end of a link that was closed or aborted.

        A closed stream ends within `CLOSE_TIMEOUT_S`, so this does, too. A loop that stops
        before would cut the connection.
        """
        await asyncio.shield(self._ended)

    def payload_checksum(self) -> int | None:
        """Return the checksum of the payload of the frame that is handed on just now, if known."""
        return self._connection.payload_checksum()

    def abandon(self, memory: memoryview) -> None:
        """Do not write into this memory any more, even if its frame is half received."""
        self._connection.abandon(memory)

    # --- receiving: StreamHandler ---

    def get_buffer(self) -> memoryview:
        """Return memory for the next bytes."""
        return self._connection.get_buffer()

    def received(self, count: int) -> None:
        """Parse what has arrived and hand on every whole frame."""
        self.bytes_received += count
        connection = self._connection
        shaking = connection.state is not _READY and connection.state is State.HANDSHAKE
        try:
            connection.received(count)
            if shaking and not self._shake():
                return
            while (frame := connection.next_frame()) is not NEED_DATA:
                if isinstance(frame, Ping):
                    self.owner.link_pinged(self)
                    self.send(Pong(frame.token))
                elif isinstance(frame, Goodbye):
                    self.goodbye = frame
                else:
                    self.owner.link_frame(self, frame)
        except RemoteProtocolError as error:
            self._misbehaved(error)
            return
        self.owner.link_batch_end(self)
        if self.goodbye is not None:
            # The peer sends nothing more: end from this side too, without a word of our own.
            self._closing = True
            self.stream.close()

    def _shake(self) -> bool:
        """Carry the handshake on; return whether frames may follow in the same bytes."""
        for reply in self._connection.take_replies():
            self._write(reply)
        if self._connection.state is State.READY:
            self._stop_timer()
            self.owner.link_ready(self)
            return True
        if self._connection.state is State.CLOSED:  # refused: the peer has been told why
            self._error = ConnectionLost(f"{self} was refused in the handshake")
            self._closing = True
            self.stream.close()
        return False

    def _misbehaved(self, error: RemoteProtocolError) -> None:
        self._error = PeerMisbehaved(f"{self}: {error.message}")
        self._error.__cause__ = error
        if self._connection.state is State.FAILED:  # one last word: why
            header, text = self._connection.encode(Goodbye(error.code, error.message[:200]))
            self._write(header + bytes(text))
        elif not isinstance(self._connection.handshake, ClientHandshake):
            for reply in self._connection.take_replies():
                self._write(reply)
        self._closing = True
        self.stream.close()

    def _handshake_late(self, timeout_s: float) -> None:
        self._timer = None
        self.abort(
            PeerMisbehaved(
                f"{self}: no handshake within {timeout_s:g} s; is it an aiops node, and awake?"
            )
        )

    def drained(self) -> None:
        """Tell the owner that there is room in the stream."""
        self.owner.link_drained(self)

    def lost(self, error: Exception | None) -> None:
        """Tell the owner how it ended."""
        self._stop_timer()
        self.bytes_sent -= self.stream.unsent_bytes
        clean = self._connection.ended() or self._said_goodbye
        self._closing = True
        if self._error is None and not clean:
            detail = f": {error}" if error is not None else " without a goodbye"
            self._error = ConnectionLost(
                f"the connection to {self} ended{detail}", peer=str(self), retryable=True
            )
            self._error.__cause__ = error
        if not self._ended.done():
            self._ended.set_result(None)
        self.owner.link_lost(self, self._error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
