"""The contract of a transport: streams of bytes between nodes, whatever carries them.

A `Stream` is one open byte stream; a `StreamHandler` owns what arrives on it; a `Van` makes
streams by dialling and listening. TCP, memory and simulated networks implement this same
contract, and one test suite runs over all of them. Frames are not known here (see `link.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeAlias

from aiops_protocol.payload import Buffer

__all__ = ["Accept", "Address", "Listener", "Stream", "StreamHandler", "Van"]

WRITE_HIGH_WATER_BYTES: Final = 1024 * 1024
"""A stream that has more than this unsent is full: one segment."""

WRITE_LOW_WATER_BYTES: Final = 256 * 1024
"""At or below this a stream that was full reports `drained`, early enough to stay busy."""


class Address(NamedTuple):
    """Host (name, IPv4 or IPv6 without brackets) and port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class StreamHandler(Protocol):
    """What a stream calls, always from the event loop, never from within a call of the owner's.

    An exception raised here ends the stream, and only that one: `lost` gets it.
    """

    def get_buffer(self) -> memoryview:
        """Return writable memory, in bytes, for what arrives next; never empty.

        It is filled and `received` called before anything else happens on the loop, or not at
        all: between two turns no stream holds memory of its handler.
        """
        ...

    def received(self, count: int) -> None:
        """Take note that `count` bytes were put into what `get_buffer` returned.

        What is written to this stream meanwhile leaves together when this returns, or at `flush`.
        """
        ...

    def drained(self) -> None:
        """Take note that a stream that was full has fallen to the low-water mark."""
        ...

    def lost(self, error: Exception | None) -> None:
        """Take note of the end, by the peer (`None`: end of stream) or by an error.

        Called exactly once for each stream, also after `close` and `abort`; nothing is called
        after it. Everything that arrived before the end was handed over before, also when it
        was a write of ours that failed.
        """
        ...


class Stream(ABC):
    """One open byte stream. All methods are synchronous and never block.

    Attributes
    ----------
    local, remote
        Addresses of the two ends, for messages.
    pending_bytes
        Bytes accepted by `write` and not yet taken by the kernel (or the other end).
    unsent_bytes
        After the end of the stream: bytes that were accepted and never handed on.
    batch_bytes
        If not 0, the handler need not hear of less than this while more of a buffer is missing: a
        process that shares its processor is woken less often. A handler that sets it promises
        that a longer buffer of its own is filled before the peer waits for an answer.
    """

    unsent_bytes: int = 0
    batch_bytes: int = 0

    local: str
    remote: str

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """Bytes accepted by `write` and not yet handed on."""

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes accepted by `write` of which nothing says yet that the other host has them.

        Costs a system call; equal to `pending_bytes` where the system does not tell.
        """
        return self.pending_bytes

    @property
    def full(self) -> bool:
        """Whether more than one segment is unsent: the owner should wait for `drained`."""
        return self.pending_bytes > WRITE_HIGH_WATER_BYTES

    @abstractmethod
    def write(self, *buffers: Buffer, borrowed: bool = False) -> None:
        """Send the buffers, in order, after everything written before.

        Large writes go out at once as far as the kernel takes them, and so does the first small
        one of a turn of the loop; further small ones leave together at its end. What could not
        be sent at once is copied before `write` returns, unless `borrowed`: then the caller
        keeps the content unchanged until `pending_bytes` is zero, `own` was called or the stream
        is lost. After `close`, `abort` or the loss of the stream, writing does nothing, and so
        does a write that fails (`lost` tells).
        """

    @abstractmethod
    def flush(self) -> None:
        """Hand everything to the kernel that it takes now, without waiting for the turn's end."""

    @abstractmethod
    def own(self) -> None:
        """Copy all borrowed bytes that are still unsent: the lender wants its memory back."""

    @abstractmethod
    def close(self) -> None:
        """Send what is pending, then end the stream; `lost` follows when the peer has seen it.

        The handler hears nothing more until then; what the peer still sends is thrown away.
        `lost(None)` means that everything was sent. A peer that does not read, or does not end
        its side, must not keep the stream alive: after `CLOSE_TIMEOUT_S` it is aborted, with an
        error if bytes were still unsent. Repeating it is harmless.
        """

    @abstractmethod
    def abort(self) -> None:
        """End the stream at once and drop what is pending; `lost(None)` follows. Idempotent.

        The peer sees a reset where there is such a thing, and may lose what it has not read yet.
        """


CLOSE_TIMEOUT_S: Final = 2.0
"""How long a closing stream may take to send its last bytes and to see the peer's end."""

Accept: TypeAlias = Callable[[Stream], StreamHandler]
"""Makes the handler of a new stream; called before anything else of the stream, and may write to
it. If it raises, the stream is aborted; `dial` passes the exception on."""


class Listener(ABC):
    """An open door; `address` is the real one, with the port that port 0 became."""

    address: Address

    @abstractmethod
    async def close(self) -> None:
        """Accept nobody any more and free the port; open streams are not touched. Idempotent."""


class Van(Protocol):
    """Makes streams."""

    async def listen(self, address: Address, accept: Accept) -> Listener:
        """Open a door at `address`; port 0 takes a free port.

        Raises
        ------
        ConfigError
            The address is taken, not ours, or cannot be resolved; the message names it and
            says what to do.
        """
        ...

    async def dial(self, address: Address, accept: Accept) -> Stream:
        """Open a stream to `address`, once, without retrying.

        Cancelling leaves nothing behind; a handler that was made already is told by `lost`.

        Raises
        ------
        DialFailed
            Nobody listens, the name does not resolve, or the network is unreachable.
        """
        ...
