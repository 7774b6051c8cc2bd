"""ReceiveBuffer: however the stream is cut, the same frames come out, from bounded memory."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops_protocol.buffer import NEED_DATA, Destination, ReceiveBuffer
from aiops_protocol.checksum import crc32c
from aiops_protocol.codec import encode
from aiops_protocol.control import Leave, NodeReport, Span
from aiops_protocol.errors import (
    BadMagic,
    ChecksumMismatch,
    LocalProtocolError,
    MalformedFrame,
    RemoteProtocolError,
)
from aiops_protocol.frames import Ack, Assign, Control, Flag, Frame, Ping, Push, Reject, Value
from aiops_protocol.limits import (
    CONTROL_BYTES_MAX,
    META_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    STAGING_BYTES,
    KiB,
    MiB,
)
from protocol_strategies import any_frame
from wire_bytes import cut, handmade, receive, received, wire

LARGE = bytes(range(256)) * 400  # 100 KB


def value(request_id: int, payload: bytes = LARGE) -> Value:
    return Value(request_id=request_id, version=3, payload=payload)


def put(buffer: ReceiveBuffer, data: bytes) -> None:
    """Let bytes arrive that fit what the buffer offers next."""
    memory = buffer.get_buffer()
    memory[: len(data)] = data
    buffer.received(len(data))


# --- cutting ----------------------------------------------------------------------------------


@given(
    st.lists(any_frame(), max_size=8),
    st.lists(st.integers(0, 200_000), max_size=12),
    st.booleans(),
)
def test_any_cutting_of_the_stream_gives_the_same_frames(
    frames: list[Frame], places: list[int], routed: bool
) -> None:
    destination: Destination | None = None
    if routed:
        destination = lambda frame, size: memoryview(bytearray(size))  # noqa: E731
    data = wire(*frames)
    assert received(cut(data, places), destination) == frames


def test_byte_by_byte() -> None:
    frames: list[Frame] = [Ping(1), value(2, LARGE[:20_000]), Ack(request_id=3), Ping(4)]
    data = wire(*frames)
    assert received(data[i : i + 1] for i in range(len(data))) == frames


@pytest.mark.parametrize(
    "frame",
    [
        value(1, LARGE[:17_000]),
        Push(request_id=1, payload=LARGE[:16_400], keys=bytes(range(8)), flags=int(Flag.KEY_LIST)),
        Control(Leave(clean=False, reason="x" * 1000)),
    ],
    ids=str,
)
def test_all_two_way_splits_of_a_large_frame(frame: Frame) -> None:
    """Also where the payload goes to a destination, and a small frame follows."""
    data = wire(frame, Ping(7))
    for place in range(len(data) + 1):
        assert received(cut(data, [place])) == [frame, Ping(7)], place


@pytest.mark.parametrize("total", [*range(16_370, 16_400), *range(65_520, 65_560)])
def test_frames_about_as_large_as_a_threshold(total: int) -> None:
    """Around what waits in the staging buffer, and around all of it."""
    frame = Reject(request_id=1, payload=b"odd")
    size = (total - len(wire(value(1, b"")))) & ~3
    for frames in ([value(1, LARGE[:size])], [frame, value(2, LARGE[:size]), frame]):
        data = wire(*frames)
        assert received([data]) == frames
        assert received(cut(data, [40, 70, 100, len(data) - 1])) == frames


def test_many_small_frames_fill_the_staging_buffer_to_its_last_byte() -> None:
    """Compaction moves a half frame to the front while nothing of it is lost."""
    frames = [Ack(request_id=i, seq=i) for i in range(5000)]
    data = wire(*frames)
    assert STAGING_BYTES % len(wire(frames[0])) == 0
    assert received([data]) == frames
    for chunk in (STAGING_BYTES - 1, 40_001, 4_097, 33):
        assert received(cut(data, range(0, len(data), chunk))) == frames


def test_the_longest_metadata_arrives_behind_other_frames() -> None:
    """Half the staging buffer is used when metadata comes that needs more than the other half."""
    marks = memoryview(bytearray(b"".join(i.to_bytes(8, "little") for i in range(4096))))
    long = Push(request_id=1, ranges=bytes(marks), end=4095, payload=LARGE)
    small = [Ack(request_id=i) for i in range(511)]
    frames: list[Frame] = [*small, long, *small]
    data = wire(*frames)
    for places in ([], [32_704], [32_704 + 24], range(0, len(data), 16_000)):
        assert received(cut(data, places)) == frames


# --- large payloads and who receives them --------------------------------------------------------


class Recording:
    """A destination that remembers what it was asked and gives what it was told to give."""

    def __init__(self, *memories: memoryview | None) -> None:
        self.asked: list[tuple[Frame, int]] = []
        self.memories = list(memories)

    def __call__(self, frame: Frame, size: int) -> memoryview | None:
        self.asked.append((frame, size))
        return self.memories.pop(0) if self.memories else None


def test_a_large_payload_is_received_straight_into_its_destination() -> None:
    memory = memoryview(bytearray(len(LARGE)))
    destination = Recording(memory)
    buffer = ReceiveBuffer(destination)
    put(buffer, wire(value(9))[:100])
    assert buffer.next_frame() is NEED_DATA
    assert destination.asked == [(value(9, b""), len(LARGE))]
    offered = buffer.get_buffer()
    assert len(offered) == len(LARGE) - (100 - 64)
    offered[:] = LARGE[36:]
    buffer.received(len(offered))
    frame = buffer.next_frame()
    assert isinstance(frame, Value)
    assert frame.payload is memory  # the owner may compare by identity
    assert memory == LARGE


def test_a_destination_may_decline() -> None:
    destination = Recording(None)
    assert received(cut(wire(value(9)), [100]), destination) == [value(9)]


def test_keys_are_not_known_yet_when_the_destination_is_asked() -> None:
    """The key list is the first section of the payload, and still on its way."""
    keys = b"".join(i.to_bytes(8, "little") for i in (3, 5, 8))
    push = Push(request_id=1, keys=keys, flags=int(Flag.KEY_LIST), payload=LARGE)
    destination = Recording(memoryview(bytearray(len(keys) + len(LARGE))))
    assert received(cut(wire(push), [90]), destination) == [push]
    (asked, size) = destination.asked[0]
    assert isinstance(asked, Push)
    assert (asked.keys, asked.payload, size) == (b"", b"", len(keys) + len(LARGE))


@pytest.mark.parametrize(
    "memory",
    [
        memoryview(bytearray(len(LARGE) - 1)),
        memoryview(bytearray(len(LARGE) + 1)),
        memoryview(b""),
        memoryview(bytes(len(LARGE))),  # read-only
        memoryview(bytearray(len(LARGE))).cast("f"),
        memoryview(bytearray(4 * len(LARGE))).cast("f"),
    ],
)
def test_a_destination_of_the_wrong_size_is_our_own_fault(memory: memoryview) -> None:
    """Without the check the rest of the payload would be taken for frames."""
    with pytest.raises(LocalProtocolError, match="bytes"):
        received(cut(wire(value(1)), [80]), Recording(memory))


def test_only_data_frames_ask_for_a_destination() -> None:
    """A long report of a node belongs to nobody's array."""
    spans: list[Span] = [("pull", i, 2, None) for i in range(4000)]
    report = Control(NodeReport(spans=spans))
    destination = Recording()
    assert received(cut(wire(report), [30, 20_000]), destination) == [report]
    assert destination.asked == []


def test_nonsense_in_the_metadata_is_found_before_there_is_memory_for_the_payload() -> None:
    """Also where nobody wants to choose the memory."""
    header = handmade(16, bytes(32), payload_bytes=PAYLOAD_BYTES_MAX)
    for destination in (None, Recording()):
        with pytest.raises(MalformedFrame):
            received([header], destination)
        assert destination is None or destination.asked == []
    with pytest.raises(MalformedFrame):
        received([handmade(32, bytes(8), payload_bytes=CONTROL_BYTES_MAX)])


@pytest.mark.parametrize("place", [70, 16_000, 70_000, -1])
def test_damage_in_a_large_frame_is_found(place: int) -> None:
    data = bytearray(wire(Assign(request_id=1, end=9, payload=LARGE)))
    data[place] ^= 1
    with pytest.raises(RemoteProtocolError):
        received(cut(bytes(data), [100]))


# --- giving memory back -------------------------------------------------------------------------


@pytest.mark.parametrize("arrived", [64, 65, 5_000, len(LARGE) + 63, len(LARGE) + 64])
def test_abandoned_memory_is_never_written_again(arrived: int) -> None:
    """A cancelled pull: its caller owns the array again, the frame still comes out whole."""
    array = bytearray(len(LARGE))
    memory = memoryview(array)
    buffer = ReceiveBuffer(Recording(memory))
    data = wire(value(5), Ping(6))
    early = list(receive(buffer, cut(data[:64], [])))
    early += receive(buffer, [data[64 : min(arrived, len(LARGE) + 63)]])
    if arrived == len(LARGE) + 64:  # all of it is there, and nobody has looked yet
        put(buffer, data[arrived - 1 : arrived])
    assert early == []
    buffer.abandon(memory)
    array[:] = b"\xee" * len(array)
    frames = []
    while (frame := buffer.next_frame()) is not NEED_DATA:
        frames.append(frame)
    frames += receive(buffer, [data[arrived:]])
    assert frames == [value(5), Ping(6)]
    assert set(array) == {0xEE}


def test_abandoning_by_another_view_or_the_whole_array() -> None:
    """The caller knows its array; the segment under way is a part of it."""
    array = bytearray(3 * len(LARGE))
    for lender in (memoryview(array), memoryview(array)[len(LARGE) : len(LARGE) + 4]):
        buffer = ReceiveBuffer(Recording(memoryview(array)[len(LARGE) : 2 * len(LARGE)]))
        data = wire(value(5))
        assert list(receive(buffer, [data[:90]])) == []
        buffer.abandon(lender)
        array[:] = bytes(len(array))
        assert list(receive(buffer, [data[90:]])) == [value(5)]
        assert not any(array)


def test_abandoning_other_memory_changes_nothing() -> None:
    memory = memoryview(bytearray(len(LARGE)))
    buffer = ReceiveBuffer(Recording(memory))
    buffer.abandon(memory)  # nothing is on its way
    assert list(receive(buffer, [wire(value(5))[:90]])) == []
    for other in (memoryview(bytearray(len(LARGE))), memoryview(b""), memoryview(bytearray(1))):
        buffer.abandon(other)
    assert list(receive(buffer, [wire(value(5))[90:]])) == [value(5)]
    assert memory == LARGE


# --- strangers, and frames of later versions ------------------------------------------------------


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1", b"\x16\x03\x01\x02", b"S", b"\x8bAPX", b"\0"])
def test_a_stranger_is_known_by_its_first_bytes(head: bytes) -> None:
    """It may never send a whole prefix."""
    with pytest.raises(BadMagic):
        received([head])
    with pytest.raises(BadMagic):
        received([wire(Ping(1)) + head])


@pytest.mark.parametrize("size", [0, 9, 16_000, 17_000, 80_000, CONTROL_BYTES_MAX])
def test_an_unknown_optional_kind_is_skipped(size: int) -> None:
    """Whatever its flags, metadata and size; nobody is asked where to put it."""
    unknown = handmade(128 + size % 100, b"later" * 3, bytes(size), flags=0xFFFF)
    data = wire(Ping(1)) + unknown + unknown + wire(Ping(2))
    destination = Recording()
    for places in ([], [60], [60, 5_000, 40_000], [len(data) - 40]):
        assert received(cut(data, places), destination) == [Ping(1), Ping(2)]
    assert destination.asked == []


def test_a_damaged_unknown_kind_is_not_skipped() -> None:
    for size in (9, 80_000):
        with pytest.raises(ChecksumMismatch):
            received(cut(handmade(200, b"", bytes(size), damage_body=1), [50]))


# --- bounds ---------------------------------------------------------------------------------------


def test_mid_frame_tells_a_cut_stream_from_an_ended_one() -> None:
    data = wire(value(1, LARGE[:20_000]))
    buffer = ReceiveBuffer()
    assert not buffer.mid_frame
    for place in (1, 24, 63, 64, 65, 19_000):
        buffer = ReceiveBuffer()
        assert list(receive(buffer, [data[:place]])) == []
        assert buffer.mid_frame
    assert list(receive(buffer, [data[19_000:]])) == [value(1, LARGE[:20_000])]
    assert not buffer.mid_frame


def test_whoever_does_not_take_frames_is_told_so() -> None:
    """An empty buffer would kill a transport with a riddle."""
    buffer = ReceiveBuffer()
    data = wire(*[Ping(i) for i in range(STAGING_BYTES // 32)])
    put(buffer, data)
    with pytest.raises(LocalProtocolError, match="taken"):
        buffer.get_buffer()


@pytest.mark.parametrize("step", [49_153, 50_000, 60_001, 65_535])
def test_there_is_always_room_for_a_good_read(step: int) -> None:
    """A read of a few bytes costs as much as one of many."""
    stream = wire(*[value(i, LARGE[: 4 * (i % 4000)]) for i in range(0, 9000, 7)])
    buffer = ReceiveBuffer()
    while stream:
        memory = buffer.get_buffer()
        assert len(memory) >= min(16 * KiB, len(stream))
        count = min(step, len(memory), len(stream))
        memory[:count] = stream[:count]
        stream = stream[count:]
        buffer.received(count)
        while buffer.next_frame() is not NEED_DATA:
            pass
    assert not buffer.mid_frame


def test_small_frames_wait_in_staging_and_larger_ones_are_routed() -> None:
    """Routing costs more than a copy of 16 KiB."""
    for total, asked in ((16 * KiB, 0), (16 * KiB + 4, 1)):
        destination = Recording()
        frame = value(1, LARGE[: total - 64])
        assert received(cut(wire(frame), [64]), destination) == [frame]
        assert len(destination.asked) == asked


def test_the_reader_looks_not_far_ahead_between_large_frames() -> None:
    """What lands in staging must be copied, so little of the next payload should."""
    buffer = ReceiveBuffer()
    list(receive(buffer, [wire(value(1))[:100]]))
    list(receive(buffer, [wire(value(1))[100:]]))
    assert len(buffer.get_buffer()) == 16 * KiB
    assert list(receive(buffer, [wire(Ping(1))])) == [Ping(1)]
    assert len(buffer.get_buffer()) == STAGING_BYTES


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 5, 16, 17, 18, 19, 32, 33, 34, 35, 128, 255])
def test_a_length_alone_never_takes_memory(kind: int) -> None:
    """A thousand prefixes that claim all they can, good or bad, and nothing behind them."""
    claims = [
        handmade(kind, meta_bytes=meta, payload_bytes=payload)
        for meta in (0, 48, META_BYTES_MAX, 2**32 - 1)
        for payload in (MiB, PAYLOAD_BYTES_MAX, 2**31, 2**32 - 1)
    ]
    buffers = [ReceiveBuffer(Recording()) for _ in claims]
    tracemalloc.start()
    try:
        for buffer, claim in zip(buffers, claims, strict=True):
            put(buffer, claim)
            try:
                assert buffer.next_frame() is NEED_DATA
            except RemoteProtocolError:
                continue
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A control frame or an unknown kind has no metadata to wait for: its own limit is its bound.
    ready = kind == 32 or kind >= 128
    assert peak < 64 * KiB + (CONTROL_BYTES_MAX if ready else 0)


def test_payloads_of_small_frames_hold_until_the_next_bytes() -> None:
    """Several frames of one read stand side by side, none is overwritten by parsing another."""
    frames = [value(i, LARGE[i : i + 40]) for i in range(20)]
    buffer = ReceiveBuffer()
    put(buffer, wire(*frames) + wire(value(99))[:300])
    taken = []
    while (frame := buffer.next_frame()) is not NEED_DATA:
        taken.append(frame)
    assert taken == frames  # compares the views, after the large frame has begun


def test_the_checksum_of_a_large_payload_is_known_until_the_next_frame() -> None:
    buffer = ReceiveBuffer()
    assert buffer.payload_checksum() is None
    known = []
    for frame in (value(1), value(2, LARGE[4:]), value(3, b"tiny")):
        data = memoryview(wire(frame))
        while data:
            place = buffer.get_buffer()
            count = min(len(place), len(data))
            place[:count] = data[:count]
            buffer.received(count)
            data = data[count:]
            if buffer.next_frame() is not NEED_DATA:
                known.append(buffer.payload_checksum())
    assert known == [crc32c(LARGE), crc32c(LARGE[4:]), None]


def test_a_known_checksum_gives_the_same_bytes() -> None:
    frame = value(1)
    assert encode(frame, crc32c(LARGE)) == encode(frame)
