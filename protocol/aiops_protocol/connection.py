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
from aiops_protocol.control import ControlMessage
from aiops_protocol.errors import LocalProtocolError, UnexpectedFrame
from aiops_protocol.frames import Control, Frame, Goodbye, Kind
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
    FAILED = "failed"
    """The peer broke the protocol: what it sends is dropped; a GOODBYE may tell it why."""
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
    (State.READY, Input.ERROR): State.FAILED,
    (State.DRAINING, Input.END): State.CLOSED,
    (State.DRAINING, Input.ERROR): State.FAILED,
    (State.FAILED, Input.END): State.CLOSED,
    (State.CLOSED, Input.END): State.CLOSED,
}
"""What is not in here is illegal and raises `UnexpectedFrame`."""

_READY: Final = State.READY  # to look a member up takes 50 ns, and every frame asks for this one

_BOTH: Final = frozenset({Kind.PING, Kind.PONG, Kind.GOODBYE})
_REQUESTS: Final = frozenset(
    {Kind.PUSH, Kind.PULL, Kind.PUSH_PULL, Kind.ASSIGN, Kind.SEAL, Kind.QUERY, Kind.CALL}
)
_REPLIES: Final = frozenset({Kind.VALUE, Kind.ACK, Kind.REJECT, Kind.PARKED, Kind.KNOWN})
_PIECES: Final = frozenset({Kind.RING_BEGIN, Kind.RING_PIECE, Kind.RING_CONFIRM})

RECEIVABLE: Final[Mapping[tuple[Purpose, Side], frozenset[Kind]]] = {
    (Purpose.CONTROL, Side.ACCEPTED): _BOTH | {Kind.CONTROL},
    (Purpose.CONTROL, Side.DIALLED): _BOTH | {Kind.CONTROL},
    (Purpose.DATA, Side.ACCEPTED): _BOTH | _REQUESTS,
    (Purpose.DATA, Side.DIALLED): _BOTH | _REPLIES,
    (Purpose.HEARTBEAT, Side.ACCEPTED): _BOTH,
    (Purpose.HEARTBEAT, Side.DIALLED): _BOTH,
    (Purpose.PEER, Side.ACCEPTED): _BOTH | _PIECES,
    (Purpose.PEER, Side.DIALLED): _BOTH | _PIECES,
}


DISCARD_BYTES: Final = 4096
"""What is read at a time from a peer whose bytes do not matter any more."""


class Connection:
    """One connection from its first byte to its last.

    Parameters
    ----------
    handshake
        The side of the handshake that this end plays.
    destination
        Where large payloads are received (see `ReceiveBuffer`).
    """

    __slots__ = (
        "_buffer",
        "_fixed",
        "_receivable",
        "_received",
        "_replies",
        "_said_goodbye",
        "handshake",
        "state",
    )

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
        self._said_goodbye = False

    def open(self) -> bytes:
        """Return what this side sends first: the greeting, or nothing."""
        return self.handshake.start() if isinstance(self.handshake, ServerHandshake) else b""

    def get_buffer(self) -> memoryview:
        """Return memory for the next bytes; never empty."""
        if self.state is State.HANDSHAKE:
            return self._fixed[self._received :]
        if self.state is State.FAILED or self.state is State.CLOSED:
            return memoryview(bytearray(DISCARD_BYTES))
        return self._buffer.get_buffer()

    def received(self, count: int) -> None:
        """Note that `count` bytes have arrived; during the handshake this may answer.

        A hello that is refused is no error: `take_replies` has the refusal to send, and the
        state is CLOSED.

        Raises
        ------
        RemoteProtocolError
            The other side is not a peer, or refuses this one.
        """
        if self.state is State.HANDSHAKE:
            self._shake(count)
        elif self.state is State.READY or self.state is State.DRAINING:
            self._buffer.received(count)

    def _shake(self, count: int) -> None:
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
            self._receivable = RECEIVABLE[handshake.purpose, self._side()]
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
            The peer broke the protocol. Tell it the error's code in a GOODBYE and end.
        """
        if self.state is not _READY and self.state is not State.DRAINING:
            return NEED_DATA
        try:
            frame = self._buffer.next_frame()
            if frame is NEED_DATA:
                return NEED_DATA
            kind = frame.kind
            if kind not in self._receivable:
                raise UnexpectedFrame(f"a {kind.name} frame is not for this side to receive")
            if isinstance(frame, Goodbye):
                self._move(Input.GOODBYE)
            elif self.state is not _READY:  # in which a frame changes nothing
                self._move(Input.FRAME)
            elif isinstance(frame, Control):
                self._check_sender(frame.message)
        except Exception:
            self._move(Input.ERROR)
            raise
        return frame

    def encode(self, frame: Frame, checksum: int | None = None) -> tuple[bytes, Buffer]:
        """Return the bytes of a frame to send, whose payload may have a known checksum.

        Raises
        ------
        LocalProtocolError
            The connection is not ready, or has failed (then only a GOODBYE may go), or this
            side has said GOODBYE already; or no receiver would accept the frame.
        """
        state = self.state
        if (state is not _READY and state is not State.DRAINING) or self._said_goodbye:
            last_word = state is State.FAILED and frame.kind is Kind.GOODBYE
            if self._said_goodbye or not last_word:
                after = " after GOODBYE" if self._said_goodbye else ""
                raise LocalProtocolError(f"{frame} cannot be sent: {state.value}{after}")
        encoded = encode(frame, checksum)
        if isinstance(frame, Goodbye):
            self._said_goodbye = True
        return encoded

    def payload_checksum(self) -> int | None:
        """Return the checksum of the payload of the newest frame, if that is known."""
        return self._buffer.payload_checksum()

    def abandon(self, memory: memoryview) -> None:
        """Never write to this memory again (see `ReceiveBuffer.abandon`)."""
        self._buffer.abandon(memory)

    def ended(self) -> bool:
        """Note the end of the stream; True if it was clean, that is after a GOODBYE."""
        clean = self.state is State.DRAINING and not self._buffer.mid_frame
        self._move(Input.END)
        return clean

    def _check_sender(self, message: ControlMessage) -> None:
        role = self.handshake.peer_role
        if role not in message.senders:
            raise UnexpectedFrame(
                f"a {type(message).__name__} is not for a {role.name.lower()} to send"
            )

    def _side(self) -> Side:
        accepted = isinstance(self.handshake, ServerHandshake)
        return Side.ACCEPTED if accepted else Side.DIALLED

    def _move(self, cause: Input) -> None:
        after = TRANSITIONS.get((self.state, cause))
        if after is None:
            raise UnexpectedFrame(f"{cause.value} while the connection is {self.state.value}")
        self.state = after
