"""Frames <-> bytes. All struct formats of frames are here, each written once.

    prefix     24 bytes: magic, version, kind, flags, lengths, CRC of the body, CRC of these
    metadata   fixed fields of the kind, then ranges, then optional fields
    payload    float32 values (after a key list, if any), or msgpack, or text

Nothing here allocates from a length that has not been checked; `buffer.py` asks for the
prefix first and for the rest only when `decode_prefix` has accepted it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from crc32c import crc32c

from aiops_protocol.control import ControlMessage
from aiops_protocol.errors import (
    BadMagic,
    ChecksumMismatch,
    FrameTooLarge,
    LocalProtocolError,
    MalformedFrame,
    UnknownKind,
    UnsupportedVersion,
)
from aiops_protocol.frames import (
    CRITICAL_FLAGS,
    FIRST_OPTIONAL_KIND,
    Ack,
    Assign,
    Codec,
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
    Reply,
    Request,
    Seal,
    Value,
)
from aiops_protocol.limits import (
    CONTROL_BYTES_MAX,
    META_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PROTOCOL_VERSION_MAX,
    RANGES_PER_FRAME_MAX,
)
from aiops_protocol.payload import Buffer

__all__ = ["MAGIC", "Prefix", "decode_body", "decode_prefix", "encode"]

MAGIC: Final = b"\x8bAPS"
"""The first byte is neither ASCII (HTTP, SSH) nor a TLS record type."""

_PREFIX: Final = struct.Struct("<4sBBHIII")
_PREFIX_CRC: Final = struct.Struct("<I")
_REQUEST: Final = struct.Struct("<QQQQIIHBBI")
_REPLY: Final = struct.Struct("<QQQIIHBBI")
_RANGE: Final = struct.Struct("<QQ")
_WORD: Final = struct.Struct("<Q")
_GOODBYE: Final = struct.Struct("<II")

_REQUEST_BYTES: Final = _REQUEST.size
_REPLY_BYTES: Final = _REPLY.size

TEXT_BYTES_MAX: Final = 1024
"""A refusal is a sentence, not a document."""

_control_encoder = msgspec.msgpack.Encoder()
_control_decoder: msgspec.msgpack.Decoder[ControlMessage] = msgspec.msgpack.Decoder(ControlMessage)

KEY_MAX: Final = 2**64 - 1
"""2**64-1 is never a key, so that the end of a range always fits."""

_REQUESTS: Final[Mapping[int, type[Request]]] = {
    Kind.PUSH: Push,
    Kind.PULL: Pull,
    Kind.PUSH_PULL: PushPull,
    Kind.ASSIGN: Assign,
    Kind.SEAL: Seal,
}
_REPLIES: Final[Mapping[int, type[Reply]]] = {
    Kind.VALUE: Value,
    Kind.ACK: Ack,
    Kind.REJECT: Reject,
    Kind.PARKED: Parked,
}
_PAYLOAD_MAX: Final[Mapping[int, int]] = {
    Kind.PUSH: PAYLOAD_BYTES_MAX,
    Kind.PULL: 8 * RANGES_PER_FRAME_MAX,
    Kind.PUSH_PULL: PAYLOAD_BYTES_MAX,
    Kind.ASSIGN: PAYLOAD_BYTES_MAX,
    Kind.SEAL: 0,
    Kind.VALUE: PAYLOAD_BYTES_MAX,
    Kind.ACK: 0,
    Kind.REJECT: TEXT_BYTES_MAX,
    Kind.PARKED: 4 * 1024,
    Kind.CONTROL: CONTROL_BYTES_MAX,
    Kind.PING: 0,
    Kind.PONG: 0,
    Kind.GOODBYE: TEXT_BYTES_MAX,
}
_KNOWN_FLAGS: Final[Mapping[int, int]] = {
    **dict.fromkeys(
        (Kind.PUSH, Kind.PULL, Kind.PUSH_PULL),
        int(Flag.KEY_LIST | Flag.CODEC_PARAMETERS | Flag.DEADLINE | Flag.BASE_VERSION),
    ),
    Kind.ASSIGN: int(Flag.KEY_LIST | Flag.CODEC_PARAMETERS | Flag.DEADLINE | Flag.INITIAL),
    Kind.SEAL: int(Flag.CONTRIBUTED | Flag.FINAL | Flag.DEADLINE),
}


class Prefix(NamedTuple):
    """The checked prefix of a frame: what follows and how much of it."""

    kind: int
    flags: int
    meta_bytes: int
    payload_bytes: int
    body_crc: int

    @property
    def known(self) -> bool:
        """False for an optional kind of a later version, to be skipped."""
        return self.kind in _PAYLOAD_MAX


def decode_prefix(buffer: Buffer, offset: int = 0) -> Prefix:
    """Check the 24 bytes at `offset` and return the lengths they announce.

    Raises
    ------
    BadMagic, UnsupportedVersion, ChecksumMismatch, UnknownKind, FrameTooLarge
        In that order of checking; no length is believed before the CRC holds.
    """
    magic, version, kind, flags, meta_bytes, payload_bytes, body_crc = _PREFIX.unpack_from(
        buffer, offset
    )
    if magic != MAGIC:
        raise BadMagic(f"the peer sent {bytes(magic).hex()}, not the start of an aiops frame")
    (prefix_crc,) = _PREFIX_CRC.unpack_from(buffer, offset + 20)
    if crc32c(memoryview(buffer)[offset : offset + 20]) != prefix_crc:
        raise ChecksumMismatch("the CRC-32C of a frame prefix is wrong")
    if version > PROTOCOL_VERSION_MAX or version == 0:
        raise UnsupportedVersion(f"frame of protocol version {version}")
    payload_max = _PAYLOAD_MAX.get(kind)
    if payload_max is None:
        if kind < FIRST_OPTIONAL_KIND:
            raise UnknownKind(f"frame kind {kind} is critical and not known to this version")
        payload_max = CONTROL_BYTES_MAX
    elif flags & CRITICAL_FLAGS & ~_KNOWN_FLAGS.get(kind, 0):
        raise UnknownKind(f"critical flags {flags & CRITICAL_FLAGS:#x} on frame kind {kind}")
    if meta_bytes > META_BYTES_MAX:
        raise FrameTooLarge(f"{meta_bytes} bytes of metadata, at most {META_BYTES_MAX} allowed")
    if payload_bytes > payload_max:
        raise FrameTooLarge(
            f"{payload_bytes} bytes of payload in frame kind {kind}, at most {payload_max} allowed"
        )
    return Prefix(kind, flags, meta_bytes, payload_bytes, body_crc)


def decode_body(prefix: Prefix, meta: Buffer, payload: Buffer = b"") -> Frame:
    """Build the frame from its checked prefix, whole metadata and payload.

    The CRC of the body is the caller's to check, because a large payload arrives in pieces.
    With a payload still on its way, pass none: the frame then tells where the payload belongs.

    Raises
    ------
    MalformedFrame
        Lengths or ranges contradict each other, or a message has the wrong fields.
    """
    kind = prefix.kind
    request = _REQUESTS.get(kind)
    if request is not None:
        return _decode_request(request, prefix, meta, payload)
    reply = _REPLIES.get(kind)
    if reply is not None:
        return _decode_reply(reply, prefix, meta, payload)
    return _SIMPLE[kind](meta, payload)


def _decode_request(cls: type[Request], prefix: Prefix, meta: Buffer, payload: Buffer) -> Frame:
    size, flags = prefix.meta_bytes, prefix.flags
    if size < _REQUEST_BYTES:
        raise MalformedFrame(f"{size} bytes of metadata in a {cls.__name__}")
    (request_id, seq, answered_below, clock, epoch, table, session, codec, level, count) = (
        _REQUEST.unpack_from(meta)
    )
    if count > RANGES_PER_FRAME_MAX:
        raise MalformedFrame(f"{count} ranges or keys, at most {RANGES_PER_FRAME_MAX} in a frame")
    if codec != Codec.RAW:
        raise MalformedFrame(f"codec {codec} is not known to this version")
    offset = _REQUEST_BYTES
    ranges: Buffer = b""
    keys: Buffer = b""
    begin = end = 0
    if flags & _KEY_LIST:
        if 8 * count > prefix.payload_bytes:
            raise MalformedFrame(f"{count} keys do not fit {prefix.payload_bytes} payload bytes")
        if payload:
            keys, payload = _decode_keys(payload, count)
    elif count == 1:
        if size < offset + 16:
            raise MalformedFrame("the metadata ends within a key range")
        begin, end = _RANGE.unpack_from(meta, offset)
        if begin >= end:
            raise MalformedFrame(f"key range [{begin}, {end}) is empty or reversed")
        offset += 16
    elif count:
        ranges, begin, end = _decode_ranges(meta, offset, count)
        offset += 16 * count
    optional: Sequence[int] = _ABSENT
    if flags & _OPTIONAL_MASK:
        optional, offset = _decode_optional(flags, meta, offset)
    if offset != size:
        raise MalformedFrame(f"{size - offset} bytes of metadata that belong to nothing")
    return cls(  # type: ignore[return-value]  # the five subclasses of Request are all Frames
        request_id=request_id,
        seq=seq,
        answered_below=answered_below,
        clock=clock,
        epoch=epoch,
        table=table,
        session=session,
        codec=codec,
        ack_level=level,
        begin=begin,
        end=end,
        ranges=ranges,
        keys=keys,
        flags=flags,
        codec_parameters=optional[0],
        deadline_ms=optional[1],
        base_version=optional[2],
        payload=payload,
    )


# Plain integers: `&` with an IntFlag costs a microsecond and a request has few.
_KEY_LIST: Final = int(Flag.KEY_LIST)
_OPTIONAL_FIELDS: Final = (int(Flag.CODEC_PARAMETERS), int(Flag.DEADLINE), int(Flag.BASE_VERSION))
_OPTIONAL_MASK: Final = sum(_OPTIONAL_FIELDS)


_ABSENT: Final = (0, 0, 0)


def _decode_optional(flags: int, meta: Buffer, offset: int) -> tuple[list[int], int]:
    optional = [0, 0, 0]
    for index, flag in enumerate(_OPTIONAL_FIELDS):
        if flags & flag:
            if len(meta) < offset + 8:
                raise MalformedFrame("the metadata ends within an optional field")
            (optional[index],) = _WORD.unpack_from(meta, offset)
            offset += 8
    return optional, offset


def _decode_ranges(meta: Buffer, offset: int, count: int) -> tuple[Buffer, int, int]:
    raw = memoryview(meta)[offset : offset + 16 * count]
    if len(raw) != 16 * count:
        raise MalformedFrame("the metadata ends within the key ranges")
    marks = np.frombuffer(raw, "<u8")
    if not (marks[0::2] < marks[1::2]).all() or not (marks[1:-1:2] <= marks[2::2]).all():
        raise MalformedFrame("key ranges are empty, reversed, overlapping or out of order")
    return bytes(raw), int(marks[0]), int(marks[-1])


def _decode_keys(payload: Buffer, count: int) -> tuple[Buffer, Buffer]:
    view = memoryview(payload)
    keys = np.frombuffer(view[: 8 * count], "<u8")
    if count and (int(keys[-1]) == KEY_MAX or not (keys[:-1] < keys[1:]).all()):
        raise MalformedFrame("a key list is unsorted, repeats a key or holds 2**64-1")
    return view[: 8 * count], view[8 * count :]


def _decode_reply(cls: type[Reply], prefix: Prefix, meta: Buffer, payload: Buffer) -> Frame:
    if prefix.meta_bytes != _REPLY_BYTES:
        raise MalformedFrame(f"{prefix.meta_bytes} bytes of metadata in a {cls.__name__}")
    (request_id, seq, version, epoch, table, session, codec, status, count) = _REPLY.unpack_from(
        meta
    )
    if codec != Codec.RAW:
        raise MalformedFrame(f"codec {codec} is not known to this version")
    return cls(  # type: ignore[return-value]  # the four subclasses of Reply are all Frames
        request_id=request_id,
        seq=seq,
        version=version,
        epoch=epoch,
        table=table,
        session=session,
        codec=codec,
        status=status,
        count=count,
        flags=prefix.flags,
        payload=payload,
    )


def _decode_control(meta: Buffer, payload: Buffer) -> Frame:
    if len(meta):
        raise MalformedFrame("a control frame carries no metadata")
    try:
        return Control(_control_decoder.decode(payload))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(f"a control message is not valid: {error}") from error


def _decode_token(cls: type[Ping] | type[Pong]) -> Callable[[Buffer, Buffer], Frame]:
    def decode(meta: Buffer, payload: Buffer) -> Frame:
        if len(meta) != 8:
            raise MalformedFrame(f"{len(meta)} bytes of metadata in a {cls.__name__}")
        return cls(_WORD.unpack(meta)[0])

    return decode


def _decode_goodbye(meta: Buffer, payload: Buffer) -> Frame:
    if len(meta) != 8:
        raise MalformedFrame(f"{len(meta)} bytes of metadata in a Goodbye")
    code, _ = _GOODBYE.unpack(meta)
    return Goodbye(code, bytes(payload).decode("utf-8", "replace"))


_SIMPLE: Final[Mapping[int, Callable[[Buffer, Buffer], Frame]]] = {
    Kind.CONTROL: _decode_control,
    Kind.PING: _decode_token(Ping),
    Kind.PONG: _decode_token(Pong),
    Kind.GOODBYE: _decode_goodbye,
}


def encode(frame: Frame) -> tuple[bytes, Buffer]:
    """Return prefix with metadata, and the payload (not copied, perhaps empty).

    Raises
    ------
    LocalProtocolError
        The frame is larger than any receiver accepts.
    """
    if isinstance(frame, Request):
        meta, payload = _encode_request(frame)
        flags = frame.flags
    elif isinstance(frame, Reply):
        meta, payload, flags = _encode_reply(frame), frame.payload, frame.flags
    else:
        meta, payload = _encode_simple(frame)
        flags = 0
    kind = frame.kind
    size = len(payload)
    if size > _PAYLOAD_MAX[kind]:
        raise LocalProtocolError(
            f"{frame}: {size} bytes of payload, at most {_PAYLOAD_MAX[kind]} are allowed"
        )
    crc = crc32c(meta)
    if size:
        crc = crc32c(payload, crc)
    prefix = _PREFIX.pack(MAGIC, PROTOCOL_VERSION_MAX, kind, flags, len(meta), size, crc)
    return b"".join((prefix, _PREFIX_CRC.pack(crc32c(prefix)), meta)), payload


def _encode_request(frame: Request) -> tuple[bytes, Buffer]:
    payload = frame.payload
    ranges: Buffer = frame.ranges
    if frame.flags & _KEY_LIST:
        count = len(frame.keys) // 8
        payload = b"".join((frame.keys, payload))
    elif ranges:
        count = len(ranges) // 16
    elif frame.end > frame.begin:
        count = 1
        ranges = _RANGE.pack(frame.begin, frame.end)
    else:
        count = 0
    if count > RANGES_PER_FRAME_MAX:
        raise LocalProtocolError(f"{frame}: {count} ranges, at most {RANGES_PER_FRAME_MAX}")
    fixed = _REQUEST.pack(
        frame.request_id,
        frame.seq,
        frame.answered_below,
        frame.clock,
        frame.epoch,
        frame.table,
        frame.session,
        frame.codec,
        frame.ack_level,
        count,
    )
    if not frame.flags & _OPTIONAL_MASK:
        return fixed + ranges, payload
    values = (frame.codec_parameters, frame.deadline_ms, frame.base_version)
    optional = b"".join(
        _WORD.pack(value)
        for flag, value in zip(_OPTIONAL_FIELDS, values, strict=True)
        if frame.flags & flag
    )
    return b"".join((fixed, ranges, optional)), payload


def _encode_reply(frame: Reply) -> bytes:
    return _REPLY.pack(
        frame.request_id,
        frame.seq,
        frame.version,
        frame.epoch,
        frame.table,
        frame.session,
        frame.codec,
        frame.status,
        frame.count,
    )


def _encode_simple(frame: Any) -> tuple[bytes, Buffer]:
    if isinstance(frame, Control):
        return b"", _control_encoder.encode(frame.message)
    if isinstance(frame, Goodbye):
        text = frame.text.encode()[:TEXT_BYTES_MAX]
        return _GOODBYE.pack(frame.code, 0), text
    return _WORD.pack(frame.token), b""
