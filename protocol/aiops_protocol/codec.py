"""Frames <-> bytes: one encoder and one decoder per family of frames.

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

from aiops_protocol.carrying import check_codec, check_own_codec
from aiops_protocol.checksum import crc32c, joined
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
    OPTIONAL_FLAGS,
    Ack,
    Assign,
    Call,
    Control,
    Frame,
    Goodbye,
    Kind,
    Known,
    Parked,
    Ping,
    Pong,
    Pull,
    Push,
    PushPull,
    Query,
    Reject,
    Reply,
    Request,
    RingFrame,
    Seal,
    Value,
)
from aiops_protocol.key_list import keys_in, take_keys, take_ranges
from aiops_protocol.layout import (
    GOODBYE,
    HAS_WORDS,
    KEY_LIST,
    KEY_SIGNATURE,
    KNOWN_FLAGS,
    KNOWN_OPTIONAL,
    MAGIC,
    NAMES_KEYS,
    PAYLOAD_MAX,
    PREFIX,
    PREFIX_CRC,
    PREFIX_WITH_CRC,
    RANGE,
    REPLY,
    REQUEST,
    WEIGHT,
    WORD,
    WORD_FLAGS,
)
from aiops_protocol.limits import (
    CONTROL_BYTES_MAX,
    KEYS_PER_FRAME_MAX,
    KEYS_PER_LIST_MAX,
    META_BYTES_MAX,
    PROTOCOL_VERSION_MAX,
    RANGES_PER_FRAME_MAX,
    SIGNATURE_BYTES,
    TEXT_BYTES_MAX,
)
from aiops_protocol.payload import Buffer
from aiops_protocol.ring_codec import RING_FRAMES, decode_ring, encode_ring

__all__ = ["MAGIC", "Prefix", "announce", "decode_body", "decode_prefix", "encode"]

_REQUEST_BYTES: Final = REQUEST.size
_REPLY_BYTES: Final = REPLY.size

# Bound once: a call through an imported name makes a method object each time (0.1 us a frame).
_pack_prefix, _unpack_prefix = PREFIX.pack, PREFIX_WITH_CRC.unpack_from
_pack_crc = PREFIX_CRC.pack
_pack_request, _unpack_request = REQUEST.pack, REQUEST.unpack_from
_pack_reply, _unpack_reply = REPLY.pack, REPLY.unpack_from
_pack_range, _unpack_range = RANGE.pack, RANGE.unpack_from
_pack_word, _unpack_word = WORD.pack, WORD.unpack_from

_control_encoder = msgspec.msgpack.Encoder()
_control_decoder: msgspec.msgpack.Decoder[ControlMessage] = msgspec.msgpack.Decoder(ControlMessage)

_REQUESTS: Final[Mapping[int, type[Request]]] = {
    cls.kind: cls for cls in (Push, Pull, PushPull, Assign, Seal, Query, Call)
}
_REPLIES: Final[Mapping[int, type[Reply]]] = {
    cls.kind: cls for cls in (Value, Ack, Reject, Parked, Known)
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
        return self.kind in PAYLOAD_MAX


_new_tuple: Final = tuple.__new__  # Prefix(...) itself goes through Python and costs 0.1 us more


def decode_prefix(buffer: Buffer, offset: int = 0) -> Prefix:
    """Check the 24 bytes at `offset` and return the lengths they announce.

    Raises
    ------
    BadMagic, UnsupportedVersion, ChecksumMismatch, UnknownKind, FrameTooLarge
        In that order of checking; no length is believed before the CRC holds.
    """
    magic, version, kind, flags, meta_bytes, payload_bytes, body_crc, prefix_crc = _unpack_prefix(
        buffer, offset
    )
    if magic != MAGIC:
        raise BadMagic(f"the peer sent {bytes(magic).hex()}, not the start of an aiops frame")
    if version > PROTOCOL_VERSION_MAX or version == 0:
        raise UnsupportedVersion(f"frame of protocol version {version}")
    if crc32c(memoryview(buffer)[offset : offset + 20]) != prefix_crc:
        raise ChecksumMismatch("the CRC-32C of a frame prefix is wrong")
    payload_max = PAYLOAD_MAX.get(kind)
    if payload_max is None:
        if kind < FIRST_OPTIONAL_KIND:
            raise UnknownKind(f"frame kind {kind} is critical and not known to this version")
        payload_max = CONTROL_BYTES_MAX
    elif flags & CRITICAL_FLAGS & ~KNOWN_FLAGS.get(kind, 0):
        raise UnknownKind(f"critical flags {flags & CRITICAL_FLAGS:#x} on frame kind {kind}")
    if meta_bytes > META_BYTES_MAX:
        raise FrameTooLarge(f"{meta_bytes} bytes of metadata, at most {META_BYTES_MAX} allowed")
    if payload_bytes > payload_max:
        raise FrameTooLarge(
            f"{payload_bytes} bytes of payload in frame kind {kind}, at most {payload_max} allowed"
        )
    return _new_tuple(Prefix, (kind, flags, meta_bytes, payload_bytes, body_crc))


def decode_body(prefix: Prefix, meta: Buffer, payload: Buffer = b"") -> Frame:
    """Build the frame from its checked prefix, whole metadata and payload.

    The CRC of the body is the caller's to check, because a large payload arrives in pieces.

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
    if kind in RING_FRAMES:
        meta_bytes = len(meta) - (_words_after(prefix, meta) if prefix.flags else 0)
        return decode_ring(kind, meta, meta_bytes, payload, prefix.payload_bytes)
    return _SIMPLE[kind](meta[: len(meta) - _words_after(prefix, meta)], payload)


def announce(prefix: Prefix, meta: Buffer) -> Frame | None:
    """Check the metadata of a frame whose payload is still on its way.

    Returns
    -------
    frame : Frame or None
        The frame without its payload (and without its key list, which is part of it): it tells
        where the payload belongs. `None` for a kind whose payload has no owner yet.

    Raises
    ------
    MalformedFrame
        The metadata is wrong already, so nothing needs to be allocated for the payload.
    """
    if prefix.kind in _REQUESTS or prefix.kind in _REPLIES or prefix.kind in RING_FRAMES:
        return decode_body(prefix, meta)
    if prefix.kind == Kind.CONTROL:
        _check_no_metadata(meta[: len(meta) - _words_after(prefix, meta)])
    return None


def _words_after(prefix: Prefix, meta: Buffer) -> int:
    """Return the bytes of optional words at the end of metadata that has no use for any."""
    size = 8 * (prefix.flags & OPTIONAL_FLAGS).bit_count()
    if size > len(meta):
        raise MalformedFrame("the metadata ends within an optional field")
    return size


def _decode_request(cls: type[Request], prefix: Prefix, meta: Buffer, payload: Buffer) -> Frame:
    size, flags = prefix.meta_bytes, prefix.flags
    if size < _REQUEST_BYTES:
        raise MalformedFrame(f"{size} bytes of metadata in a {cls.__name__}")
    (request_id, seq, answered_below, clock, epoch, table, session, codec, level, count) = (
        _unpack_request(meta)
    )
    count_max = KEYS_PER_LIST_MAX if flags & KEY_LIST else RANGES_PER_FRAME_MAX
    if count > count_max:
        raise MalformedFrame(f"{count} ranges or keys, at most {count_max} in a frame")
    if codec:  # RAW is 0
        check_codec(codec, flags, cls)
    elif prefix.payload_bytes & 3:
        raise MalformedFrame(f"{prefix.payload_bytes} bytes of payload are not whole float32")
    if cls is Pull and prefix.payload_bytes != (8 * count if flags & KEY_LIST else 0):
        raise MalformedFrame(f"{prefix.payload_bytes} bytes of payload in a Pull of {count} keys")
    if cls is Seal and prefix.payload_bytes != (8 if flags & WEIGHT else 0):
        raise MalformedFrame(f"{prefix.payload_bytes} bytes of payload in a Seal, flags {flags:#x}")
    offset = _REQUEST_BYTES
    ranges: Buffer = b""
    keys: Buffer = b""
    signature = b""
    begin = end = 0
    if flags & NAMES_KEYS:
        if 8 * count > prefix.payload_bytes or (count and not flags & KEY_LIST):
            raise MalformedFrame(f"{count} keys do not fit {prefix.payload_bytes} payload bytes")
        if flags & KEY_SIGNATURE:
            if size < offset + SIGNATURE_BYTES:
                raise MalformedFrame("the metadata ends within a signature")
            signature = bytes(meta[offset : offset + SIGNATURE_BYTES])
            offset += SIGNATURE_BYTES
        if payload and flags & KEY_LIST:
            keys, payload = take_keys(payload, count)
    elif count == 1:
        if size < offset + 16:
            raise MalformedFrame("the metadata ends within a key range")
        begin, end = _unpack_range(meta, offset)
        if not 0 < end - begin <= KEYS_PER_FRAME_MAX:
            raise MalformedFrame(f"key range [{begin}, {end}) is empty, reversed or too long")
        offset += 16
    elif count:
        ranges, begin, end = take_ranges(meta, offset, count)
        offset += 16 * count
    words: Sequence[int] = _ABSENT
    if flags & HAS_WORDS:
        words, offset = _decode_words(flags, meta, offset)
        flags &= KNOWN_FLAGS[prefix.kind]
    if offset != size:
        raise MalformedFrame(f"{size - offset} bytes of metadata that belong to nothing")
    return cls(  # type: ignore[return-value]  # the six subclasses of Request are all Frames
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
        signature=signature,
        flags=flags,
        codec_parameters=words[0],
        deadline_ms=words[1],
        base_version=words[2],
        payload=payload,
    )


_ABSENT: Final = (0, 0, 0)


def _decode_words(flags: int, meta: Buffer, offset: int) -> tuple[list[int], int]:
    """Read the 8-byte words of these flags; those of unknown flags are skipped."""
    unknown = (flags & OPTIONAL_FLAGS & ~KNOWN_OPTIONAL).bit_count()
    known = [flag for flag in WORD_FLAGS if flags & flag]
    if len(meta) < offset + 8 * (len(known) + unknown):
        raise MalformedFrame("the metadata ends within an optional field")
    words = [0, 0, 0]
    for flag in known:
        (words[WORD_FLAGS.index(flag)],) = _unpack_word(meta, offset)
        offset += 8
    return words, offset + 8 * unknown


def _decode_reply(cls: type[Reply], prefix: Prefix, meta: Buffer, payload: Buffer) -> Frame:
    words = _words_after(prefix, meta) if prefix.flags else 0
    if prefix.meta_bytes - words != _REPLY_BYTES:
        raise MalformedFrame(f"{prefix.meta_bytes} bytes of metadata in a {cls.__name__}")
    (request_id, seq, version, epoch, table, session, codec, status, count) = _unpack_reply(meta)
    if codec:
        check_codec(codec, 0, cls)
    elif prefix.payload_bytes & 3 and cls is not Reject:
        raise MalformedFrame(f"{prefix.payload_bytes} bytes of payload in a {cls.__name__}")
    return cls(  # type: ignore[return-value]  # the five subclasses of Reply are all Frames
        request_id=request_id,
        seq=seq,
        version=version,
        epoch=epoch,
        table=table,
        session=session,
        codec=codec,
        status=status,
        count=count,
        payload=payload,
    )


def _check_no_metadata(meta: Buffer) -> None:
    if len(meta):
        raise MalformedFrame(f"{len(meta)} bytes of metadata in a Control, which has none")


def _decode_control(meta: Buffer, payload: Buffer) -> Frame:
    _check_no_metadata(meta)
    try:
        return Control(_control_decoder.decode(payload))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(f"a control message is not valid: {error}") from error


def _decode_token(cls: type[Ping] | type[Pong]) -> Callable[[Buffer, Buffer], Frame]:
    def decode(meta: Buffer, payload: Buffer) -> Frame:
        if len(meta) != 8:
            raise MalformedFrame(f"{len(meta)} bytes of metadata in a {cls.__name__}")
        return cls(_unpack_word(meta)[0])

    return decode


def _decode_goodbye(meta: Buffer, payload: Buffer) -> Frame:
    if len(meta) != 8:
        raise MalformedFrame(f"{len(meta)} bytes of metadata in a Goodbye")
    code, _ = GOODBYE.unpack(meta)
    return Goodbye(code, bytes(payload).decode("utf-8", "replace"))


_SIMPLE: Final[Mapping[int, Callable[[Buffer, Buffer], Frame]]] = {
    Kind.CONTROL: _decode_control,
    Kind.PING: _decode_token(Ping),
    Kind.PONG: _decode_token(Pong),
    Kind.GOODBYE: _decode_goodbye,
}


def encode(frame: Frame, checksum: int | None = None) -> tuple[bytes, Buffer]:
    """Return prefix, metadata and keys; and the values or whatever follows, not copied.

    Parameters
    ----------
    checksum
        CRC-32C of the payload of a frame without keys, if that is known already.

    Raises
    ------
    LocalProtocolError
        No receiver would accept the frame: it is too large, or a field is out of its range.
    """
    kind = frame.kind
    flags = 0
    try:
        if isinstance(frame, Request):
            meta, payload = _encode_request(frame)
            flags = frame.flags
            if type(frame) is Seal and len(payload) != (8 if flags & WEIGHT else 0):
                raise LocalProtocolError(f"{frame}: 8 bytes with WEIGHT, none without")
            if flags and flags & ~KNOWN_FLAGS[kind]:
                raise LocalProtocolError(f"{frame}: flags {flags:#x} are not for a {kind.name}")
        elif isinstance(frame, Reply):
            meta, payload = _encode_reply(frame), frame.payload
        elif isinstance(frame, RingFrame):
            meta, payload = encode_ring(frame), frame.payload
        else:
            meta, payload = _encode_simple(frame)
    except (struct.error, OverflowError, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"{frame}: a field does not fit its place: {error}") from error
    keys: Buffer = frame.keys if flags & KEY_LIST else b""  # type: ignore[union-attr]  # a Request
    size = len(keys) + len(payload)
    if size > PAYLOAD_MAX[kind]:
        raise LocalProtocolError(
            f"{frame}: {size} bytes of payload, at most {PAYLOAD_MAX[kind]} are allowed"
        )
    crc = crc32c(meta)
    if checksum is not None:
        crc = joined(crc, checksum, size)
    elif size:
        crc = crc32c(payload, crc32c(keys, crc) if keys else crc)
    prefix = _pack_prefix(MAGIC, PROTOCOL_VERSION_MAX, kind, flags, len(meta), size, crc)
    return b"".join((prefix, _pack_crc(crc32c(prefix)), meta, keys)), payload


def _encode_request(frame: Request) -> tuple[bytes, Buffer]:
    payload = frame.payload
    ranges: Buffer = frame.ranges
    begin, end, flags = frame.begin, frame.end, frame.flags
    if flags & NAMES_KEYS:
        count = len(frame.keys) // 8
        size = SIGNATURE_BYTES if flags & KEY_SIGNATURE else 0
        if (
            ranges
            or end
            or len(frame.keys) % 8
            or count > (KEYS_PER_LIST_MAX if flags & KEY_LIST else 0)
            or len(frame.signature) != size
        ):
            raise LocalProtocolError(
                f"{frame}: at most {KEYS_PER_LIST_MAX} whole keys with KEY_LIST, {size} bytes of "
                "signature, and no ranges"
            )
        ranges = frame.signature
    elif ranges:
        count = len(ranges) // 16
        if len(ranges) % 16 or count > RANGES_PER_FRAME_MAX:
            raise LocalProtocolError(
                f"{frame}: {count} ranges in {len(ranges)} bytes, at most {RANGES_PER_FRAME_MAX}"
            )
        if keys_in(np.frombuffer(ranges, "<u8")) > KEYS_PER_FRAME_MAX:
            raise LocalProtocolError(f"{frame}: over {KEYS_PER_FRAME_MAX} keys in its ranges")
    elif 0 < end - begin <= KEYS_PER_FRAME_MAX:
        count = 1
        ranges = _pack_range(begin, end)
    else:
        count = 0
        if begin or end or frame.keys or frame.signature:
            raise LocalProtocolError(f"{frame}: no range of 1 to {KEYS_PER_FRAME_MAX} keys")
    if frame.codec:
        check_own_codec(frame)
    fixed = _pack_request(
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
    if not flags & HAS_WORDS:
        return fixed + ranges, payload
    values = (frame.codec_parameters, frame.deadline_ms, frame.base_version)
    words = b"".join(
        _pack_word(value) for flag, value in zip(WORD_FLAGS, values, strict=True) if flags & flag
    )
    return b"".join((fixed, ranges, words)), payload


def _encode_reply(frame: Reply) -> bytes:
    if frame.flags:
        raise LocalProtocolError(f"{frame}: flags {frame.flags:#x}")
    if frame.codec:
        check_own_codec(frame)
    return _pack_reply(
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
        # The text may come from any exception, and this is no place to fail: cut and replace.
        text = frame.text.encode("utf-8", "replace")[:TEXT_BYTES_MAX]
        return GOODBYE.pack(frame.code, 0), text.decode("utf-8", "ignore").encode()
    return _pack_word(frame.token), b""
