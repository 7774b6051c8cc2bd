"""One collective operation of one rank: pieces in, pieces out, no loop and no clock.

It carries out a plan over two arrays: the caller's, which nothing changes until all ranks have
confirmed, and a working array of the same length, in which the result comes about. A piece is
received straight into its place there, combined while it is in the cache, and sent on from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aiops.collective.plan import Plan, SendPiece
from aiops.collective.steps import Combine
from aiops.compression import Codec
from aiops_protocol import frames
from aiops_protocol.checksum import crc32c
from aiops_protocol.codecs import Sparse, Wire, decode_values
from aiops_protocol.errors import MalformedFrame
from aiops_protocol.payload import Buffer

__all__ = ["WORD_BYTES", "Checksum", "Confirmation", "Operation", "UnexpectedPiece"]

WORD_BYTES: Final = 4
"""What peers count in: a float32 is one word, a float64 two."""


RAW: Final = frames.Codec.RAW

BLOCK_BYTES: Final = 256 * 1024
"""So much is combined at a time and then checked, while it is in the cache."""

Array: TypeAlias = NDArray[Any]
Checksum: TypeAlias = Callable[[], int | None]


class UnexpectedPiece(Exception):
    """A peer sent elements that no rank of this operation sends."""


class Operation:
    """One rank's part of one operation.

    Parameters
    ----------
    plan
        What to do.
    source
        The caller's elements, flat and contiguous; only read.
    work
        As long, of the same type; its content does not matter. At the end it has the result in
        `plan.written`.
    reduce
        What becomes of two operands.
    landing
        Memory by peer and lane in which pieces lie until they are combined; kept from one operation
        to the next, because fresh pages cost more than the sum over them.
    codec
        In which form pieces of float32 travel; `None` as they are. Only for plans in which each
        element is finished by one rank and then copied (ring): that rank puts what receivers will
        decode in place of its own values, and the others pass on the bytes that they got.
    """

    __slots__ = (
        "_checksums",
        "_codec",
        "_finished",
        "_held",
        "_item_bytes",
        "_landing",
        "_open",
        "_placed",
        "_ready",
        "_receive_waits",
        "_reduce",
        "_send_waits",
        "_source",
        "_source_bytes",
        "_work",
        "_work_bytes",
        "plan",
    )

    def __init__(
        self,
        plan: Plan,
        source: Array,
        work: Array,
        reduce: np.ufunc,
        landing: dict[tuple[int, int], memoryview] | None = None,
        codec: Codec | None = None,
    ) -> None:
        self.plan = plan
        self._source, self._work, self._reduce = source, work, reduce
        self._source_bytes = source.view(np.uint8).data
        self._work_bytes = work.view(np.uint8).data
        self._item_bytes = source.itemsize
        self._send_waits = list(plan.send_waits)
        self._receive_waits = list(plan.receive_waits)
        self._open = len(plan.sends) + len(plan.receives)
        self._landing = {} if landing is None else landing
        self._codec = codec
        self._finished: dict[tuple[int, int], Wire] = {}  # pieces in the form in which they travel
        self._checksums: dict[int, int] = {}  # of payloads of sends
        self._placed: set[int] = set()  # receives that come straight into the working array
        self._held: dict[int, Array | None] = {}  # came before its turn
        self._ready: dict[int, deque[int]] = {peer: deque() for peer in plan.peers}
        if plan.starts_with_copy:
            work[:] = source
        for number, waits in enumerate(plan.send_waits):
            if not waits:
                self._ready[plan.sends[number].peer].append(number)

    @property
    def finished(self) -> bool:
        """Whether everything was sent and received."""
        return not self._open

    @property
    def lacking(self) -> set[int]:
        """The peers of which pieces are still to come."""
        pieces = zip(self.plan.receives, self._receive_waits, strict=True)
        return {
            piece.peer
            for number, (piece, waits) in enumerate(pieces)
            if waits >= 0 and number not in self._held
        }

    # --- in ---

    def destination(
        self, peer: int, message: int, begin: int, count: int, lane: int = 0
    ) -> memoryview | None:
        """Return where a piece that is coming belongs, or `None` if it needs memory of its own.

        Over each of a peer's lanes one piece can be coming at a time. For the other parameters and
        errors see `receive`.
        """
        number = self._number(peer, message, begin, count)
        piece = self.plan.receives[number]
        if self._receive_waits[number] or self._codec is not None:
            return None
        if piece.combine is not Combine.REPLACE:
            return self._landing_of((peer, lane), count * WORD_BYTES)
        self._placed.add(number)
        return self._work_bytes[piece.begin * self._item_bytes : piece.end * self._item_bytes]

    def _landing_of(self, lane: tuple[int, int], size: int) -> memoryview:
        """Return memory in which a piece lies until it is combined: always the same, so warm."""
        landing = self._landing.get(lane)
        if landing is None or len(landing) < size:
            landing = self._landing[lane] = np.empty(size, np.uint8).data
        return landing[:size]

    def receive(
        self,
        peer: int,
        message: int,
        begin: int,
        count: int,
        payload: Buffer,
        codec: int = RAW,
        parameter: int = 0,
        checksum: Checksum | None = None,
    ) -> None:
        """Take a piece; sends that waited for it become ready.

        Parameters
        ----------
        peer, message
            Whose message, and the how many-eth of that peer's to this rank, from 0.
        begin, count
            Which words (of 4 bytes).
        payload
            Their bytes; what `destination` gave, if it gave anything.
        codec, parameter
            In which form they are.
        checksum
            Returns that of the payload, if it is known; called before this returns, or never.

        What comes before its turn is copied, unless it is in its place already.

        Raises
        ------
        UnexpectedPiece
            The plan has no such piece, or it has come already.
        """
        number = self._number(peer, message, begin, count)
        placed = number in self._placed
        values: Array | None = None
        if not placed and self._codec is None and codec == RAW:
            values = np.frombuffer(payload, self._work.dtype)
        elif not placed:
            values = self._decoded(number, Wire(frames.Codec(codec), parameter, payload), count)
        if number in self._held or self._receive_waits[number] < 0:
            raise UnexpectedPiece(f"word {begin} of message {message} has come twice")
        if self._receive_waits[number]:
            self._held[number] = None if values is None else values.copy()
        else:
            self._apply(number, values, checksum)

    def _decoded(self, number: int, wire: Wire, count: int) -> Array:
        if self._codec is None:
            if wire.codec != RAW:
                raise UnexpectedPiece(f"a piece by codec {wire.codec}")
            return np.frombuffer(wire.payload, self._work.dtype)
        piece = self.plan.receives[number]
        try:
            with np.errstate(all="ignore"):  # what does not fit is infinite, and travels on
                decoded = decode_values(wire.codec, wire.payload, count, wire.parameter)
        except MalformedFrame as error:
            raise UnexpectedPiece(str(error)) from error
        if piece.combine is Combine.REPLACE:
            kept = Wire(wire.codec, wire.parameter, bytes(wire.payload))
            self._finished[piece.begin, piece.end] = kept
        return decoded.dense() if isinstance(decoded, Sparse) else decoded

    def _number(self, peer: int, message: int, begin: int, count: int) -> int:
        first, low, high = self.plan.messages.get((peer, message), (0, 0, 0))
        pieces, words = self.plan.receives, self._item_bytes // WORD_BYTES
        element = begin // words
        if low <= element < high:
            # All pieces of a message but the last are as long as its first one.
            number = first + (element - low) // (pieces[first].end - pieces[first].begin)
            piece = pieces[number]
            if (piece.begin * words, (piece.end - piece.begin) * words) == (begin, count):
                return number
        raise UnexpectedPiece(f"no {count} words from {begin} in message {message} of {peer}")

    def _apply(
        self,
        number: int,
        values: Array | None,
        checksum: Checksum | None = None,
    ) -> None:
        """Combine a piece whose turn it is, and whatever was held back for it."""
        waiting = [(number, values)]
        while waiting:
            number, values = waiting.pop()
            sends, receives = self.plan.after_receive[number]
            passed_on = [send for send in sends if self._passes_on(send, number)]
            known = self._combine(number, values, checked=bool(passed_on))
            if checksum is not None and passed_on and known is None:
                known = checksum()
            checksum = None  # what was held back has none
            if known is not None:
                self._checksums.update(dict.fromkeys(passed_on, known))
            self._receive_waits[number] = -1
            self._open -= 1
            for send in sends:
                self._send_waits[send] -= 1
                if not self._send_waits[send]:
                    self._ready[self.plan.sends[send].peer].append(send)
            waiting += self._released(receives)

    def _released(self, receives: tuple[int, ...]) -> list[tuple[int, Array | None]]:
        released = []
        for number in receives:
            self._receive_waits[number] -= 1
            if not self._receive_waits[number] and number in self._held:
                released.append((number, self._held.pop(number)))
        return released

    def _passes_on(self, send: int, receive: int) -> bool:
        """Whether a send carries the elements of a receive as they are after it."""
        out, into = self.plan.sends[send], self.plan.receives[receive]
        return self._codec is None and (out.begin, out.end) == (into.begin, into.end)

    def _combine(self, number: int, values: Array | None, *, checked: bool) -> int | None:
        """Combine a piece; return the checksum of the result if it was asked for and computed."""
        piece = self.plan.receives[number]
        begin, end = piece.begin, piece.end
        target = self._work[begin:end]
        if piece.combine is Combine.REPLACE:
            if values is not None:
                target[:] = values
            return None
        own = target if piece.own_in_work else self._source[begin:end]
        incoming = target if values is None else values
        first = piece.combine is Combine.INCOMING_FIRST
        one, two = (incoming, own) if first else (own, incoming)
        with np.errstate(all="ignore"):  # infinity less infinity is NaN, and travels on
            if not checked:
                self._reduce(one, two, out=target)
                return None
            checksum = 0
            step = BLOCK_BYTES // self._item_bytes
            for low in range(0, end - begin, step):
                block = target[low : low + step]
                self._reduce(one[low : low + step], two[low : low + step], out=block)
                checksum = crc32c(block.data, checksum)
            return checksum

    # --- out ---

    def ready(self) -> list[int]:
        """Return the peers for which a piece is ready."""
        return [peer for peer, numbers in self._ready.items() if numbers]

    def next_send(self, peer: int) -> tuple[int, SendPiece] | None:
        """Return the next piece for this peer, if one is ready; `sent` removes it."""
        ready = self._ready.get(peer)
        return (ready[0], self.plan.sends[ready[0]]) if ready else None

    def words(self, piece: SendPiece) -> tuple[int, int]:
        """Return the first word of a piece and their number, as the receiver counts them."""
        words = self._item_bytes // WORD_BYTES
        return piece.begin * words, (piece.end - piece.begin) * words

    def wire(self, piece: SendPiece) -> Wire:
        """Return a piece in the form in which it travels."""
        if self._codec is None:
            return Wire(frames.Codec.RAW, 0, self.payload(piece))
        span = (piece.begin, piece.end)
        known = self._finished.get(span)
        if known is not None:
            return known
        values = (self._work if piece.from_work else self._source)[piece.begin : piece.end]
        with np.errstate(all="ignore"):
            encoded = self._codec.encode(values, {}, 0)
            if piece.final:
                values[:] = encoded.dense()
                self._finished[span] = encoded.whole()
        return encoded.whole()

    def checksum(self, number: int) -> int | None:
        """Return the checksum of what a send carries, if it is known."""
        return self._checksums.get(number)

    def payload(self, piece: SendPiece) -> memoryview:
        """Return the bytes of a piece as they are."""
        source = self._work_bytes if piece.from_work else self._source_bytes
        return source[piece.begin * self._item_bytes : piece.end * self._item_bytes]

    def sent(self, number: int) -> None:
        """Note that a piece has left, or been copied if the plan does not let it be borrowed."""
        piece = self.plan.sends[number]
        assert self._ready[piece.peer][0] == number
        self._ready[piece.peer].popleft()
        self._open -= 1
        for released in self._released(self.plan.after_send[number]):
            self._apply(*released)


class Confirmation:
    """The last part of an operation: everybody learns that everybody has the result.

    The dissemination barrier of D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier
    synchronization", IJPP 17(1), 1988: in round k a rank tells the rank 2**k after it. What is told
    is a few bits, and each rank ends with the union of the bits of all.
    """

    __slots__ = ("_heard", "_rank", "_round", "_rounds", "_size", "_started", "flags")

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._rounds = (size - 1).bit_length()
        self._round = 0
        self._heard: dict[int, int] = {}
        self._started = False
        self.flags = 0

    @property
    def started(self) -> bool:
        """Whether this rank has confirmed: from now on the others may have put it into effect."""
        return self._started

    @property
    def done(self) -> bool:
        """Whether all ranks have the result."""
        return self._started and self._round == self._rounds

    @property
    def lacking(self) -> set[int]:
        """The rank from which this one has to hear next, if any."""
        over = self._round == self._rounds
        return set() if over else {(self._rank - (1 << self._round)) % self._size}

    def partners(self) -> list[int]:
        """Return all ranks that this one tells or hears."""
        steps = [1 << k for k in range(self._rounds)]
        return [(self._rank + s) % self._size for s in steps] + [
            (self._rank - s) % self._size for s in steps
        ]

    def start(self, flags: int) -> list[tuple[int, int, int]]:
        """Confirm; return what to send now, as (round, rank, flags)."""
        self._started = True
        self.flags |= flags
        return self._told(0) + self._go_on()

    def heard(self, peer: int, number: int, flags: int) -> list[tuple[int, int, int]]:
        """Take a message; return what to send now.

        Raises
        ------
        UnexpectedPiece
            This peer has nothing to say in this round, or has said it.
        """
        expected = (self._rank - (1 << number)) % self._size if number < self._rounds else -1
        if peer != expected or number in self._heard:
            raise UnexpectedPiece(f"confirmation {number} of member {peer}")
        self._heard[number] = flags
        return self._go_on() if self._started else []

    def _told(self, number: int) -> list[tuple[int, int, int]]:
        if number >= self._rounds:
            return []
        return [(number, (self._rank + (1 << number)) % self._size, self.flags)]

    def _go_on(self) -> list[tuple[int, int, int]]:
        told = []
        while self._round < self._rounds and self._round in self._heard:
            self.flags |= self._heard[self._round]
            self._round += 1
            told += self._told(self._round)
        return told
