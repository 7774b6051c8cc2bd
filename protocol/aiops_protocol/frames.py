"""One frozen class per frame. What each means, who sends it and who receives it.

Data frames are `msgspec.Struct`s: creating one costs 0.2 us, a frozen dataclass 1.7 us, so
the same class serves the hot path, the tests and the vectors. Their bytes are in `codec.py`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import ClassVar, TypeAlias

import msgspec

from aiops_protocol.control import ControlMessage
from aiops_protocol.errors import ErrorCode
from aiops_protocol.payload import Buffer

__all__ = [
    "Ack",
    "AckLevel",
    "Assign",
    "Call",
    "Codec",
    "Control",
    "Flag",
    "Frame",
    "Goodbye",
    "Kind",
    "Known",
    "Parked",
    "Ping",
    "Pong",
    "Pull",
    "Push",
    "PushPull",
    "Query",
    "Reject",
    "Reply",
    "Request",
    "RingBegin",
    "RingConfirm",
    "RingFrame",
    "RingPiece",
    "Seal",
    "Value",
]


class Kind(IntEnum):
    """Second byte of every frame. Kinds from 128 are optional: skipped when unknown."""

    PUSH = 1
    PULL = 2
    PUSH_PULL = 3
    ASSIGN = 4
    SEAL = 5
    QUERY = 6
    CALL = 7
    VALUE = 16
    ACK = 17
    REJECT = 18
    PARKED = 19
    KNOWN = 20
    CONTROL = 32
    PING = 33
    PONG = 34
    GOODBYE = 35
    RING_BEGIN = 48
    RING_PIECE = 49
    RING_CONFIRM = 50


FIRST_OPTIONAL_KIND = 128


class Flag(IntFlag):
    """Flags of a frame. The low eight bits are critical, the high eight optional.

    Each optional flag stands for one 8-byte word at the end of the metadata, in order of bits,
    so that a receiver skips the words of flags that it does not know.
    """

    KEY_LIST = 1 << 0
    """The payload begins with `count` sorted uint64 keys in place of ranges in the metadata."""
    KEY_SIGNATURE = 1 << 1
    """The metadata has the signature of a key list: one that the receiver has cached, or, together
    with KEY_LIST, the one in the payload, which it may cache."""
    CODEC_PARAMETERS = 1 << 2
    """Eight bytes for the codec: how many values the payload means, and a parameter."""
    INITIAL = 1 << 3
    """An ASSIGN that gives a new table its initial values."""
    CONTRIBUTED = 1 << 4
    """A SEAL of a clock in which this worker pushed to the table."""
    FINAL = 1 << 5
    """A SEAL that seals nothing: from this clock on the worker takes part in no round."""
    WEIGHT = 1 << 6
    """The payload of a SEAL is the weight of the contribution, one float64; 1 without it."""
    DEADLINE = 1 << 8
    """The metadata has the milliseconds after which nobody waits for the answer."""
    BASE_VERSION = 1 << 9
    """The metadata has the version that a gradient was computed on, or that a puller knows."""


CRITICAL_FLAGS = 0x00FF
OPTIONAL_FLAGS = 0xFF00


class Codec(IntEnum):
    """How the float32 payload is represented. Later codecs take further numbers."""

    RAW = 0
    LZ4 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT8 = 4
    LEVELS = 5
    SIGNS = 6
    SPARSE = 7
    SPARSE_LEVELS = 8
    SEEDED = 9
    LOW_RANK = 10
    DELTAS = 11


class AckLevel(IntEnum):
    """What an ACK promises; the higher two are reserved for replication and checkpoints."""

    RECEIVED = 0
    APPLIED = 1
    REPLICATED = 2
    DURABLE = 3


NO_BYTES = b""


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Fields common to everything a worker asks of a server on a data connection.

    `begin` and `end` are the one key range of a simple request, both 0 if it names no keys;
    `ranges` holds the raw little-endian (begin, end) pairs of a request with two or more (then
    `begin` and `end` are the first begin and the last end), `keys` a sorted key list (with the flag
    KEY_LIST) and `signature` that of one (with KEY_SIGNATURE). The payload is a buffer of single
    bytes, as `as_bytes` makes it.
    """

    kind: ClassVar[Kind]

    request_id: int
    seq: int = 0
    answered_below: int = 0
    clock: int = 0
    epoch: int = 0
    table: int = 0
    session: int = 0
    codec: int = Codec.RAW
    ack_level: int = AckLevel.APPLIED
    begin: int = 0
    end: int = 0
    ranges: Buffer = NO_BYTES
    keys: Buffer = NO_BYTES
    signature: bytes = NO_BYTES
    flags: int = 0
    deadline_ms: int = 0
    base_version: int = 0
    codec_parameters: int = 0
    payload: Buffer = NO_BYTES

    def __str__(self) -> str:
        return (
            f"{type(self).__name__} request {self.request_id} seq {self.seq} table {self.table} "
            f"[{self.begin}, {self.end}) clock {self.clock}, {len(self.payload)} bytes"
        )


class Push(Request, frozen=True, gc=False, kw_only=True):
    """Worker to server: a gradient or delta for key ranges. Answered by ACK or REJECT."""

    kind = Kind.PUSH


class Pull(Request, frozen=True, gc=False, kw_only=True):
    """Worker to server: send rows of version `clock` or later. Answered by VALUE or REJECT.

    A request for a version that does not exist yet, or with BASE_VERSION for something newer
    than that, waits at the server; PARKED says so.
    """

    kind = Kind.PULL


class PushPull(Request, frozen=True, gc=False, kw_only=True):
    """Worker to server: a push, and the rows as they are right after it. Answered by VALUE.

    For tables without rounds (ASP). In BSP a worker sends PUSH, SEAL and PULL in one write,
    because a seal may only follow the data of all shards.
    """

    kind = Kind.PUSH_PULL


class Assign(Request, frozen=True, gc=False, kw_only=True):
    """Worker to server: set rows to these values. Answered by ACK or REJECT."""

    kind = Kind.ASSIGN


class Seal(Request, frozen=True, gc=False, kw_only=True):
    """Worker to server: my contribution to round `clock` of this table is whole.

    With FINAL it seals no round: I take part in none from this clock on. Answered by ACK.
    """

    kind = Kind.SEAL


class Query(Request, frozen=True, gc=False, kw_only=True):
    """Worker to server: what has become of these requests of mine? Answered by KNOWN.

    The payload is as `queries.py` makes it. Changes nothing but where the answers of requests
    that wait are sent: over this connection, if it asks about itself.
    """

    kind = Kind.QUERY


class Call(Request, frozen=True, gc=False, kw_only=True):
    """Worker to server: run this function on your part of the table; see `calls.py`.

    With a seq it is a mutation, answered by ACK. With seq 0 it only reads, waits like a PULL for
    version `clock`, and is answered by VALUE: what the function has returned.
    """

    kind = Kind.CALL


class Reply(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Fields common to everything a server answers; `request_id` matches the request."""

    kind: ClassVar[Kind]

    request_id: int
    seq: int = 0
    version: int = 0
    epoch: int = 0
    table: int = 0
    session: int = 0
    codec: int = Codec.RAW
    status: int = ErrorCode.OK
    count: int = 0
    flags: int = 0
    payload: Buffer = NO_BYTES

    def __str__(self) -> str:
        return (
            f"{type(self).__name__} to request {self.request_id} table {self.table} "
            f"version {self.version} status {self.status}, {len(self.payload)} bytes"
        )


class Value(Reply, frozen=True, gc=False, kw_only=True):
    """Server to worker: the rows asked for, in the order asked, at `version`."""

    kind = Kind.VALUE


class Ack(Reply, frozen=True, gc=False, kw_only=True):
    """Server to worker: mutation `seq` has reached the level it asked for."""

    kind = Kind.ACK


class Reject(Reply, frozen=True, gc=False, kw_only=True):
    """Server to worker: no, for the reason `status`; the payload is a short UTF-8 text."""

    kind = Kind.REJECT


class Parked(Reply, frozen=True, gc=False, kw_only=True):
    """Server to worker: the request waits by rule of consistency.

    The payload is `count` uint32, the worker ranks that are waited for, and then as many: by how
    many clocks each is behind the request.
    """

    kind = Kind.PARKED


class Known(Reply, frozen=True, gc=False, kw_only=True):
    """Server to worker: what has become of each request of a QUERY; see `queries.py`."""

    kind = Kind.KNOWN


class RingFrame(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Fields common to what the members of a ring send each other; see SPEC.md, "Rings".

    `operation` counts the collective operations of this `generation` of the ring from 1. A piece
    is the words (of 4 bytes) [begin, begin + count) of message number `message` of its sender to
    this receiver in that operation.
    """

    kind: ClassVar[Kind]

    operation: int
    ring: int
    generation: int
    begin: int = 0
    message: int = 0
    count: int = 0
    codec: int = Codec.RAW
    status: int = 0
    parameter: int = 0
    payload: Buffer = NO_BYTES

    def __str__(self) -> str:
        return (
            f"{type(self).__name__} ring {self.ring} generation {self.generation} operation "
            f"{self.operation} message {self.message} [{self.begin}, {self.begin + self.count}), "
            f"{len(self.payload)} bytes"
        )


class RingBegin(RingFrame, frozen=True, gc=False, kw_only=True):
    """Worker to worker: I have begun this operation; the payload says in words which it is.

    From now on the receiver of this may send all pieces of the operation: their memory is there.
    """

    kind = Kind.RING_BEGIN


class RingPiece(RingFrame, frozen=True, gc=False, kw_only=True):
    """Worker to worker: elements to combine with, or to put in place of, the receiver's own."""

    kind = Kind.RING_PIECE


class RingConfirm(RingFrame, frozen=True, gc=False, kw_only=True):
    """Worker to worker: I, and those I have heard of, have the whole result of this operation.

    `message` is the round of the dissemination; bit 0 of `status`: somebody waits to enter.
    """

    kind = Kind.RING_CONFIRM


class Control(msgspec.Struct, frozen=True):
    """Either direction on a control connection: one typed message (see `control.py`)."""

    kind: ClassVar[Kind] = Kind.CONTROL

    message: ControlMessage

    def __str__(self) -> str:
        return f"Control {type(self.message).__name__}"


class Ping(msgspec.Struct, frozen=True, gc=False):
    """Either direction: are you there? `token` comes back in the PONG."""

    kind: ClassVar[Kind] = Kind.PING

    token: int = 0


class Pong(msgspec.Struct, frozen=True, gc=False):
    """Either direction: the answer to a PING."""

    kind: ClassVar[Kind] = Kind.PONG

    token: int = 0


class Goodbye(msgspec.Struct, frozen=True):
    """Either direction: the end is intended. An end of stream without it is a crash.

    `code` is 0 for a clean end, otherwise why the sender ends the connection.
    """

    kind: ClassVar[Kind] = Kind.GOODBYE

    code: int = ErrorCode.OK
    text: str = ""


Frame: TypeAlias = (
    Push
    | Pull
    | PushPull
    | Assign
    | Seal
    | Query
    | Call
    | Value
    | Ack
    | Reject
    | Parked
    | RingBegin
    | RingPiece
    | RingConfirm
    | Known
    | Control
    | Ping
    | Pong
    | Goodbye
)
