"""Connection: handshake and frames of one connection, without any I/O.

What moves it: bytes that arrive (`get_buffer`, `received`, `next_frame`), and the words of
the owner (`open`, `encode`). It checks that each frame is legal for the purpose, side and
state of the connection; the table of what may pass is `RECEIVABLE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from aiops_protocol.buffer import NEED_DATA, Destination, NeedData, ReceiveBuffer
from aiops_protocol.codec import encode
from aiops_protocol.errors import LocalProtocolError, UnexpectedFrame
from aiops_protocol.frames import Frame, Kind
from aiops_protocol.handshake import (
    ClientHandshake,
    HandshakeState,
    Purpose,
    ServerHandshake,
)
from aiops_protocol.payload import Buffer

__all__ = ["RECEIVABLE", "TRANSITIONS", "Connection", "Side", "State"]


class Side(Enum):
    """Which end of a connection this is."""

    DIALLED = "dialled"
    ACCEPTED = "accepted"


class State(Enum):
    """Life of a connection."""

    HANDSHAKE = "handshake"
    READY = "ready"
    DRAINING = "draining"
    """The peer said GOODBYE: nothing more will come, answers may still go."""
    CLOSED = "closed"


class Input(Enum):
    """What moves a connection from state to state."""

    WELCOME = "welcome"
    FRAME = "frame"
    GOODBYE = "goodbye"
    END = "end of stream"
    ERROR = "error"


TRANSITIONS: Final[Mapping[tuple[State, Input], State]] = {
    (State.HANDSHAKE, Input.WELCOME): State.READY,
    (State.HANDSHAKE, Input.END): State.CLOSED,
    (State.HANDSHAKE, Input.ERROR): State.CLOSED,
    (State.READY, Input.FRAME): State.READY,
    (State.READY, Input.GOODBYE): State.DRAINING,
    (State.READY, Input.END): State.CLOSED,
    (State.READY, Input.ERROR): State.CLOSED,
    (State.DRAINING, Input.END): State.CLOSED,
    (State.DRAINING, Input.ERROR): State.CLOSED,
    (State.CLOSED, Input.END): State.CLOSED,
    (State.CLOSED, Input.ERROR): State.CLOSED,
}
"""What is not in here is illegal and raises `UnexpectedFrame`."""

_BOTH: Final = frozenset({Kind.PING, Kind.PONG, Kind.GOODBYE})
_REQUESTS: Final = frozenset({Kind.PUSH, Kind.PULL, Kind.PUSH_PULL, Kind.ASSIGN, Kind.SEAL})
_REPLIES: Final = frozenset({Kind.VALUE, Kind.ACK, Kind.REJECT, Kind.PARKED})

RECEIVABLE: Final[Mapping[tuple[Purpose, Side], frozenset[Kind]]] = {
    (Purpose.CONTROL, Side.ACCEPTED): _BOTH | {Kind.CONTROL},
    (Purpose.CONTROL, Side.DIALLED): _BOTH | {Kind.CONTROL},
    (Purpose.DATA, Side.ACCEPTED): _BOTH | _REQUESTS,
    (Purpose.DATA, Side.DIALLED): _BOTH | _REPLIES,
    (Purpose.HEARTBEAT, Side.ACCEPTED): _BOTH,
    (Purpose.HEARTBEAT, Side.DIALLED): _BOTH,
}


class Connection:
    """One connection from its first byte to its last.

    Parameters
    ----------
    handshake
        The side of the handshake that this end plays.
    destination
        Where large payloads are received (see `ReceiveBuffer`).
    """

    __slots__ = ("_buffer", "_fixed", "_receivable", "_received", "_replies", "handshake", "state")

    def __init__(
        self,
        handshake: ServerHandshake | ClientHandshake,
        destination: Destination | None = None,
    ) -> None:
        self.handshake = handshake
        self.state = State.HANDSHAKE
        self._buffer = ReceiveBuffer(destination)
        self._fixed = memoryview(bytearray(handshake.needed))
        self._received = 0
        self._replies: list[bytes] = []
        self._receivable: frozenset[Kind] = frozenset()

    def open(self) -> bytes:
        """Return what this side sends first: the greeting, or nothing."""
        return self.handshake.start() if isinstance(self.handshake, ServerHandshake) else b""

    def get_buffer(self) -> memoryview:
        """Return memory for the next bytes; never empty."""
        if self.state is State.HANDSHAKE:
            return self._fixed[self._received :]
        return self._buffer.get_buffer()

    def received(self, count: int) -> None:
        """Note that `count` bytes have arrived; during the handshake this may answer.

        Raises
        ------
        RemoteProtocolError
            The other side is not a peer, or refuses this one. Answers in `take_replies` are
            to be sent all the same.
        """
        if self.state is not State.HANDSHAKE:
            self._buffer.received(count)
            return
        self._received += count
        handshake = self.handshake
        try:
            if self._received < len(self._fixed):
                handshake.check_head(bytes(self._fixed[: self._received]))
                return
            reply = handshake.receive(bytes(self._fixed))
        except Exception:
            self._move(Input.ERROR)
            raise
        if reply:
            self._replies.append(reply)
        self._received = 0
        if handshake.state is HandshakeState.READY:
            self._move(Input.WELCOME)
            self._receivable = RECEIVABLE[self._purpose(), self._side()]
        elif handshake.state is HandshakeState.FAILED:
            self._move(Input.ERROR)
        else:
            self._fixed = memoryview(bytearray(handshake.needed))

    def take_replies(self) -> list[bytes]:
        """Return the handshake bytes to send now."""
        replies, self._replies = self._replies, []
        return replies

    def next_frame(self) -> Frame | NeedData:
        """Return the next whole frame, or `NEED_DATA`.

        Raises
        ------
        RemoteProtocolError
            The peer broke the protocol; the connection must end with the error's code.
        """
        if self.state is State.HANDSHAKE or self.state is State.CLOSED:
            return NEED_DATA
        try:
            frame = self._buffer.next_frame()
        except Exception:
            self._move(Input.ERROR)
            raise
        if frame is NEED_DATA:
            return NEED_DATA
        if frame.kind not in self._receivable:
            self._move(Input.ERROR)
            raise UnexpectedFrame(f"a {frame.kind.name} frame is not for this side to receive")
        self._move(Input.GOODBYE if frame.kind is Kind.GOODBYE else Input.FRAME)
        return frame

    def encode(self, frame: Frame) -> tuple[bytes, Buffer]:
        """Return the bytes of a frame to send; `LocalProtocolError` unless ready to send."""
        if self.state is not State.READY and self.state is not State.DRAINING:
            raise LocalProtocolError(
                f"{frame} cannot be sent: the connection is {self.state.value}"
            )
        return encode(frame)

    def ended(self) -> bool:
        """Note the end of the stream; True if it was clean, that is after a GOODBYE."""
        clean = self.state is State.DRAINING and not self._buffer.mid_frame
        self._move(Input.END)
        return clean

    def _purpose(self) -> Purpose:
        if isinstance(self.handshake, ServerHandshake):
            assert self.handshake.hello is not None
            return Purpose(self.handshake.hello.purpose)
        return self.handshake.purpose

    def _side(self) -> Side:
        accepted = isinstance(self.handshake, ServerHandshake)
        return Side.ACCEPTED if accepted else Side.DIALLED

    def _move(self, cause: Input) -> None:
        after = TRANSITIONS.get((self.state, cause))
        if after is None:
            raise UnexpectedFrame(f"{cause.value} while the connection is {self.state.value}")
        self.state = after
