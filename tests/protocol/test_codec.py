"""Frames to bytes and back: nothing is lost, and what no receiver takes is not sent."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given

from aiops_protocol.codec import decode_prefix, encode
from aiops_protocol.control import BarrierEnter, Leave, StopVote
from aiops_protocol.errors import (
    BadMagic,
    ChecksumMismatch,
    FrameTooLarge,
    LocalProtocolError,
    MalformedFrame,
    RemoteProtocolError,
    UnknownKind,
    UnsupportedVersion,
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
    Pull,
    Push,
    PushPull,
    Reject,
    Seal,
    Value,
)
from aiops_protocol.limits import (
    CONTROL_BYTES_MAX,
    KEYS_PER_FRAME_MAX,
    KEYS_PER_LIST_MAX,
    META_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PREFIX_BYTES,
    RANGES_PER_FRAME_MAX,
    TEXT_BYTES_MAX,
)
from protocol_strategies import any_frame, u64
from wire_bytes import decode, handmade, wire

REQUEST_META = struct.Struct("<QQQQIIHBBI")
REPLY_META = struct.Struct("<QQQIIHBBI")


def request_meta(*, codec: int = 0, count: int = 0) -> bytes:
    return REQUEST_META.pack(1, 2, 3, 4, 5, 6, 7, codec, 1, count)


def reply_meta(*, codec: int = 0) -> bytes:
    return REPLY_META.pack(1, 2, 3, 4, 5, 6, codec, 0, 0)


def ranges(*pairs: tuple[int, int]) -> bytes:
    return np.array(pairs, "<u8").tobytes()


@given(any_frame())
def test_decoding_an_encoded_frame_gives_the_frame(frame: Frame) -> None:
    assert decode(wire(frame)) == frame


@given(any_frame())
def test_a_frame_says_what_it_is_in_one_line(frame: Frame) -> None:
    """Also with a payload of megabytes: it goes into logs and error texts."""
    assert len(str(frame)) < 400 or isinstance(frame, Goodbye)


# --- overhead -------------------------------------------------------------------------------


def test_a_small_push_costs_at_most_96_bytes() -> None:
    push = Push(request_id=2**40, seq=2**40, clock=2**40, begin=2**40, end=2**40 + 1)
    header, payload = encode(msgspec.structs.replace(push, payload=b"four"))
    assert len(header) <= 96
    assert bytes(payload) == b"four"


@pytest.mark.parametrize("frame", [Push, PushPull, Assign, Value])
def test_overhead_at_1_mb_is_below_a_thousandth(frame: type[Push] | type[Value]) -> None:
    header, payload = encode(frame(request_id=1, payload=bytes(10**6)))
    assert len(header) < len(payload) / 1000


def test_the_largest_metadata_fits_its_limit() -> None:
    pairs = ranges(*((4 * i, 4 * i + 2) for i in range(RANGES_PER_FRAME_MAX)))
    flags = int(Flag.CODEC_PARAMETERS | Flag.DEADLINE | Flag.BASE_VERSION)
    frame = Push(request_id=1, ranges=pairs, end=4 * RANGES_PER_FRAME_MAX - 2, flags=flags)
    header, _ = encode(frame)
    assert len(header) - PREFIX_BYTES <= META_BYTES_MAX
    assert decode(header) == frame


def test_one_range_more_is_refused_though_it_would_fit() -> None:
    pairs = ranges(*((4 * i, 4 * i + 2) for i in range(RANGES_PER_FRAME_MAX + 1)))
    meta = request_meta(count=RANGES_PER_FRAME_MAX + 1) + pairs
    assert len(meta) < META_BYTES_MAX
    with pytest.raises(MalformedFrame, match="at most 2048"):
        decode(handmade(1, meta))


# --- what encode refuses ----------------------------------------------------------------------

KEYS = struct.pack("<3Q", 1, 5, 9)

UNSENDABLE: list[Frame] = [
    Push(request_id=2**64),
    Push(request_id=-1),
    Push(request_id=1, table=2**32),
    Push(request_id=1, session=2**16),
    Push(request_id=1, ack_level=256),
    Push(request_id=1, end=2**64),
    Push(request_id=1, begin=7, end=3),
    Push(request_id=1, begin=7, end=7),
    Push(request_id=1, begin=0, end=KEYS_PER_FRAME_MAX + 1),
    Push(request_id=1, ranges=struct.pack("<4Q", 0, 9, 10, 2**63), end=2**63),
    Push(request_id=1, codec=1),
    Push(request_id=1, flags=int(Flag.INITIAL)),
    Push(request_id=1, flags=int(Flag.KEY_SIGNATURE)),
    Push(request_id=1, flags=int(Flag.KEY_SIGNATURE), signature=bytes(15)),
    Push(request_id=1, flags=int(Flag.KEY_SIGNATURE), signature=bytes(16), keys=KEYS),
    Push(request_id=1, flags=int(Flag.KEY_LIST), signature=bytes(16), keys=KEYS),
    Push(request_id=1, signature=bytes(16)),
    Push(request_id=1, flags=int(Flag.WEIGHT)),
    Push(request_id=1, flags=1 << 15),
    Push(request_id=1, flags=1 << 16),
    Push(request_id=1, keys=KEYS),
    Push(request_id=1, keys=KEYS[:-1], flags=int(Flag.KEY_LIST)),
    Push(request_id=1, keys=KEYS, end=9, flags=int(Flag.KEY_LIST)),
    Push(request_id=1, ranges=bytes(40)),
    Push(request_id=1, ranges=bytes(16 * (RANGES_PER_FRAME_MAX + 1))),
    Push(request_id=1, flags=int(Flag.DEADLINE), deadline_ms=2**64),
    Push(request_id=1, payload=bytes(PAYLOAD_BYTES_MAX + 4)),
    Seal(request_id=1, flags=int(Flag.CODEC_PARAMETERS)),
    Seal(request_id=1, payload=b"four"),
    Ack(request_id=1, version=2**64),
    Ack(request_id=1, status=256),
    Ack(request_id=1, flags=1),
    Ack(request_id=1, payload=b"four"),
    Value(request_id=1, codec=1),
    Value(request_id=1, payload=bytes(PAYLOAD_BYTES_MAX + 4)),
    Reject(request_id=1, payload=bytes(TEXT_BYTES_MAX + 1)),
    Parked(request_id=1, payload=bytes(9000)),
    Ping(2**64),
    Goodbye(2**32, ""),
    Control(Leave(clean=True, reason="x" * CONTROL_BYTES_MAX)),
    Control(Leave(clean=True, reason="\ud800")),
    Control(StopVote(clock=2**64)),
]


@pytest.mark.parametrize("frame", UNSENDABLE, ids=str)
def test_what_no_receiver_takes_is_refused_at_the_sender(frame: Frame) -> None:
    """A mistake is named where it was made, not by a peer that closes the connection."""
    with pytest.raises(LocalProtocolError):
        encode(frame)


@pytest.mark.parametrize("text", ["é" * 600, "x" * 1023 + "é", "a\ud800b", "x" * 10**6])
def test_a_goodbye_gets_through_whatever_its_text(text: str) -> None:
    frame = decode(wire(Goodbye(3, text)))
    assert isinstance(frame, Goodbye)
    assert len(frame.text.encode()) <= TEXT_BYTES_MAX
    assert "\ufffd" not in frame.text


# --- what the prefix check refuses, in which order ----------------------------------------------

PREFIXES = [
    (handmade(1, magic=b"GET ", version=9, damage_prefix=1), BadMagic),
    (handmade(1, version=9, damage_prefix=1), UnsupportedVersion),
    (handmade(1, version=0), UnsupportedVersion),
    (handmade(99, damage_prefix=1), ChecksumMismatch),
    (handmade(0), UnknownKind),
    (handmade(99, meta_bytes=2**32 - 1), UnknownKind),
    (handmade(1, flags=1 << 3, meta_bytes=2**32 - 1), UnknownKind),
    (handmade(33, flags=1), UnknownKind),
    (handmade(17, flags=1 << 7), UnknownKind),
    (handmade(1, meta_bytes=META_BYTES_MAX + 1), FrameTooLarge),
    (handmade(1, payload_bytes=PAYLOAD_BYTES_MAX + 1), FrameTooLarge),
    (handmade(2, payload_bytes=8 * KEYS_PER_LIST_MAX + 1), FrameTooLarge),
    (handmade(5, payload_bytes=9), FrameTooLarge),
    (handmade(32, payload_bytes=CONTROL_BYTES_MAX + 1), FrameTooLarge),
    (handmade(200, payload_bytes=CONTROL_BYTES_MAX + 1), FrameTooLarge),
    (handmade(200, meta_bytes=META_BYTES_MAX + 1), FrameTooLarge),
]


@pytest.mark.parametrize(("data", "error"), PREFIXES)
def test_a_prefix_is_checked_in_the_documented_order(
    data: bytes, error: type[RemoteProtocolError]
) -> None:
    """Magic, version, checksum, kind, lengths: each says more only if the one before holds."""
    with pytest.raises(error) as caught:
        decode_prefix(data)
    assert caught.value.code == error.code


# --- what is malformed behind right checksums ---------------------------------------------------

BODIES = [
    (handmade(1, request_meta()[:-1]), "metadata in a Push"),
    (handmade(1, request_meta(count=1)), "within a key range"),
    (handmade(1, request_meta(count=1) + ranges((5, 5))), "empty, reversed"),
    (handmade(1, request_meta(count=1) + ranges((6, 5))), "empty, reversed"),
    (handmade(1, request_meta(count=2) + ranges((1, 2))), "within the key ranges"),
    (handmade(1, request_meta(count=2) + ranges((1, 3), (2, 4))), "overlapping"),
    (handmade(1, request_meta(count=2) + ranges((5, 6), (1, 2))), "out of order"),
    (handmade(1, request_meta(count=2) + ranges((1, 1), (2, 4))), "empty"),
    (handmade(1, request_meta(count=1) + ranges((5, 6 + KEYS_PER_FRAME_MAX))), "too long"),
    (handmade(1, request_meta(count=1) + ranges((0, 2**64 - 1))), "too long"),
    (handmade(1, request_meta(count=2) + ranges((1, 2), (3, 2**64 - 1))), "keys in ranges"),
    (handmade(1, request_meta(count=2) + ranges((0, 9), (9, KEYS_PER_FRAME_MAX))), None),
    (handmade(1, request_meta(count=2) + ranges((0, 9), (9, KEYS_PER_FRAME_MAX + 1))), "keys in"),
    (handmade(1, request_meta(count=2**32 - 1)), "at most 2048"),
    (handmade(1, request_meta() + bytes(8)), "belong to nothing"),
    (handmade(1, request_meta(codec=1)), "codec 1"),
    (handmade(1, request_meta(), b"12345"), "whole float32"),
    (handmade(1, request_meta(), flags=1 << 2), "within an optional field"),
    (handmade(1, request_meta() + bytes(7), flags=1 << 8), "within an optional field"),
    (handmade(1, request_meta() + bytes(8), flags=3 << 12), "within an optional field"),
    (handmade(1, request_meta(count=3), KEYS[:16], flags=1), "do not fit"),
    (handmade(1, request_meta(count=2), KEYS[8:] + KEYS[:8], flags=1), None),
    (handmade(1, request_meta(count=2), KEYS[8:16] + KEYS[:8], flags=1), "unsorted"),
    (handmade(1, request_meta(count=2), KEYS[:8] * 2, flags=1), "repeats"),
    (handmade(1, request_meta(count=1), b"\xff" * 8, flags=1), "2\\*\\*64-1"),
    (handmade(2, request_meta(count=2), KEYS, flags=1), "in a Pull"),
    (handmade(2, request_meta(), b"four"), "in a Pull"),
    (handmade(16, reply_meta() + bytes(8)), "metadata in a Value"),
    (handmade(16, reply_meta()[:-4]), "metadata in a Value"),
    (handmade(16, reply_meta(), flags=1 << 9), "metadata in a Value"),
    (handmade(17, b"", flags=1 << 9), "within an optional field"),
    (handmade(16, reply_meta(codec=7)), "codec 7"),
    (handmade(16, reply_meta(), b"123"), "payload in a Value"),
    (handmade(19, reply_meta(), b"12"), "payload in a Parked"),
    (handmade(32, b"", b""), "control message"),
    (handmade(32, bytes(8), msgspec.msgpack.encode({"type": "StatusRequest"})), "metadata"),
    (handmade(32, b"", msgspec.msgpack.encode({"type": "StatusRequest"}) + b"\0"), "control"),
    (handmade(32, b"", flags=1 << 8), "within an optional field"),
    (handmade(33, bytes(7)), "Ping"),
    (handmade(34, bytes(16)), "Pong"),
    (handmade(35, bytes(4)), "Goodbye"),
]


@pytest.mark.parametrize(("data", "words"), BODIES)
def test_fields_that_contradict_each_other_are_malformed(data: bytes, words: str | None) -> None:
    if words is None:
        decode(data)
        return
    with pytest.raises(MalformedFrame, match=words):
        decode(data)


@given(count=u64.map(lambda value: value % 2**32), payload=u64.map(lambda value: value % 64))
def test_any_count_against_any_payload(count: int, payload: int) -> None:
    """A key list never reaches past its payload, whatever is claimed."""
    data = handmade(1, request_meta(count=count), bytes(range(payload)), flags=int(Flag.KEY_LIST))
    try:
        frame = decode(data)
    except MalformedFrame:
        return
    assert isinstance(frame, Push)
    assert len(frame.keys) == 8 * count <= payload
    assert len(frame.payload) == payload - 8 * count


# --- what a later version may add ----------------------------------------------------------------

CARRIERS: list[Frame] = [
    Push(request_id=1, begin=2, end=3, payload=b"four", flags=int(Flag.DEADLINE), deadline_ms=9),
    Pull(request_id=1),
    Seal(request_id=1, flags=int(Flag.FINAL)),
    Value(request_id=1, payload=b"four"),
    Reject(request_id=1, payload=b"no"),
    Control(BarrierEnter(name="a", generation=1, timeout_s=1.0)),
    Ping(5),
    Goodbye(0, "bye"),
]


@pytest.mark.parametrize("frame", CARRIERS, ids=str)
def test_optional_flags_of_a_later_version_are_skipped(frame: Frame) -> None:
    """Each unknown optional flag brings one word at the end of the metadata, and no harm."""
    header, payload = encode(frame)
    _, _, _, flags, *_ = struct.unpack_from("<4sBBHIII", header)
    later = header[PREFIX_BYTES:] + struct.pack("<2Q", 2**64 - 1, 77)
    data = handmade(frame.kind, later, bytes(payload), flags=flags | 1 << 12 | 1 << 15)
    assert decode(data) == frame


def test_a_word_for_another_kind_is_harmless() -> None:
    """A DEADLINE on an answer or a ping means nothing and is not an error."""
    assert decode(handmade(33, struct.pack("<2Q", 5, 9), flags=int(Flag.DEADLINE))) == Ping(5)


def test_unknown_fields_of_a_control_message_are_ignored() -> None:
    message = {"type": "StopVote", "clock": 3, "of_a_later_version": {"a": [1, 2]}}
    assert decode(handmade(32, b"", msgspec.msgpack.encode(message))) == Control(StopVote(clock=3))


def test_every_kind_can_be_sent() -> None:
    kinds = {cls.kind for cls in Frame.__args__}
    assert kinds == set(Kind)
