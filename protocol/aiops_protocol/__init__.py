"""The wire protocol of aiops, without I/O: bytes <-> frames, key ranges, delivery state.

Usable by itself, by a client in another shell or a test tool. `SPEC.md` beside this package
describes the same bytes for other languages, and `vectors/` holds them as golden examples.
"""

from __future__ import annotations

from aiops_protocol.buffer import NEED_DATA, ReceiveBuffer
from aiops_protocol.codec import decode_body, decode_prefix, encode
from aiops_protocol.connection import Connection, Side, State
from aiops_protocol.delivery import Inbox, Outbox, Verdict
from aiops_protocol.errors import (
    BadMagic,
    ChecksumMismatch,
    ErrorCode,
    FrameTooLarge,
    HandshakeRefused,
    LocalProtocolError,
    MalformedFrame,
    RemoteProtocolError,
    UnexpectedFrame,
    UnknownKind,
    UnsupportedVersion,
    WireError,
)
from aiops_protocol.frames import (
    Ack,
    Assign,
    Control,
    Flag,
    Frame,
    Goodbye,
    Kind,
    Parked,
    Ping,
    Pong,
    Pull,
    Push,
    PushPull,
    Reject,
    RingBegin,
    RingConfirm,
    RingPiece,
    Seal,
    Value,
)
from aiops_protocol.handshake import (
    Authenticator,
    ClientHandshake,
    HandshakeState,
    NoAuthentication,
    Purpose,
    Role,
    ServerHandshake,
)
from aiops_protocol.key_range import KeyRange, Partition, split

__all__ = [
    "NEED_DATA",
    "Ack",
    "Assign",
    "Authenticator",
    "BadMagic",
    "ChecksumMismatch",
    "ClientHandshake",
    "Connection",
    "Control",
    "ErrorCode",
    "Flag",
    "Frame",
    "FrameTooLarge",
    "Goodbye",
    "HandshakeRefused",
    "HandshakeState",
    "Inbox",
    "KeyRange",
    "Kind",
    "LocalProtocolError",
    "MalformedFrame",
    "NoAuthentication",
    "Outbox",
    "Parked",
    "Partition",
    "Ping",
    "Pong",
    "Pull",
    "Purpose",
    "Push",
    "PushPull",
    "ReceiveBuffer",
    "Reject",
    "RemoteProtocolError",
    "RingBegin",
    "RingConfirm",
    "RingPiece",
    "Role",
    "Seal",
    "ServerHandshake",
    "Side",
    "State",
    "UnexpectedFrame",
    "UnknownKind",
    "UnsupportedVersion",
    "Value",
    "Verdict",
    "WireError",
    "decode_body",
    "decode_prefix",
    "encode",
    "split",
]
