"""Hypothesis strategies for every frame and control message of the protocol."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st
from msgspec import inspect

from aiops_protocol import control, frames
from aiops_protocol.frames import Flag, Frame, Reply, Request
from aiops_protocol.limits import KEYS_PER_FRAME_MAX

EDGES = (0, 1, 2**31, 2**32, 2**53, 2**63, 2**64 - 1)

u64 = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1))
u32 = st.integers(0, 2**32 - 1)
u16 = st.integers(0, 2**16 - 1)
u8 = st.integers(0, 255)

# Small ones most of the time; some above what waits in the staging buffer, some above all of it.
word_counts = st.one_of(st.integers(0, 40), st.sampled_from([3_000, 4_090, 4_100, 16_384, 20_000]))


@st.composite
def words(draw: st.DrawFn, counts: st.SearchStrategy[int] = word_counts) -> bytes:
    """Bytes of 4-byte values; long ones are a pattern, so that they cost nothing to draw."""
    count, seed = draw(counts), draw(u32)
    pattern = np.arange(count, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(seed)
    return pattern.astype(np.uint32).tobytes()


def _sorted_keys(count: st.SearchStrategy[int], most: int) -> st.SearchStrategy[list[int]]:
    keys = st.integers(0, most) | st.integers(max(most - 3, 0), most) | st.integers(0, 50)
    return count.flatmap(lambda n: st.lists(keys, min_size=n, max_size=n, unique=True).map(sorted))


@st.composite
def key_fields(draw: st.DrawFn, *, lists: bool) -> dict[str, Any]:
    """Fields of a request that names no keys, one range, several ranges or a key list."""
    shape = draw(st.sampled_from(["none", "one", "several", *(["list"] if lists else [])]))
    if shape == "none":
        return {}
    if shape == "one":
        size = draw(st.integers(1, 50) | st.just(KEYS_PER_FRAME_MAX))
        begin = min(draw(u64), 2**64 - 1 - size)
        return {"begin": begin, "end": begin + size}
    if shape == "list":
        keys = draw(_sorted_keys(st.integers(0, 9), 2**64 - 2))
        raw = np.array(keys, "<u8").tobytes()
        signature = draw(st.binary(min_size=16, max_size=16))
        return draw(
            st.sampled_from(
                [
                    {"keys": raw, "flags": int(Flag.KEY_LIST)},
                    {"signature": signature, "flags": int(Flag.KEY_SIGNATURE)},
                    {
                        "keys": raw,
                        "signature": signature,
                        "flags": int(Flag.KEY_LIST | Flag.KEY_SIGNATURE),
                    },
                ]
            )
        )
    first = min(draw(u64), 2**64 - 1 - KEYS_PER_FRAME_MAX)
    marks = draw(_sorted_keys(st.integers(2, 6).map(lambda n: 2 * n), KEYS_PER_FRAME_MAX))
    marks = [first + mark for mark in marks]
    touching = draw(st.booleans())
    if touching:  # [a, b) then [b, c): allowed, and not the same as [a, c)
        marks = [marks[0], *(mark for mark in marks[1:-1:2] for _ in range(2)), marks[-1]]
    return {"ranges": np.array(marks, "<u8").tobytes(), "begin": marks[0], "end": marks[-1]}


_OWN_FLAGS: dict[type[Request], tuple[Flag, ...]] = {
    frames.Assign: (Flag.INITIAL,),
    frames.Seal: (Flag.CONTRIBUTED, Flag.FINAL),
}
_WORDS = {
    Flag.CODEC_PARAMETERS: "codec_parameters",
    Flag.DEADLINE: "deadline_ms",
    Flag.BASE_VERSION: "base_version",
}


@st.composite
def requests(draw: st.DrawFn) -> Frame:
    """Any request that a worker could send."""
    cls = draw(st.sampled_from([frames.Push, frames.Pull, frames.PushPull, frames.Assign]))
    cls = draw(st.sampled_from([cls, cls, cls, cls, frames.Seal, frames.Query, frames.Call]))
    seals = cls in (frames.Seal, frames.Query, frames.Call)
    fields: dict[str, Any] = {
        "request_id": draw(u64),
        "seq": draw(u64),
        "answered_below": draw(u64),
        "clock": draw(u64),
        "epoch": draw(u32),
        "table": draw(u32),
        "session": draw(u16),
        "ack_level": draw(u8),
        "flags": 0,
        **draw(key_fields(lists=not seals)),
    }
    for flag in _OWN_FLAGS.get(cls, ()):
        fields["flags"] |= int(flag) if draw(st.booleans()) else 0
    for flag, name in _WORDS.items():
        if not (seals and flag is Flag.CODEC_PARAMETERS) and draw(st.booleans()):
            fields["flags"] |= int(flag)
            fields[name] = draw(u64)
    if cls is frames.Query:
        fields["payload"] = draw(words(st.integers(0, 128).map(lambda entries: 2 + 4 * entries)))
    elif cls is frames.Call:
        fields["payload"] = draw(words(st.integers(0, 100)))
    elif cls not in (frames.Pull, frames.Seal):
        fields["payload"] = draw(words())
    return cls(**fields)  # type: ignore[return-value]  # each is a Frame


@st.composite
def replies(draw: st.DrawFn) -> Frame:
    """Any answer that a server could give."""
    cls = draw(
        st.sampled_from([frames.Value, frames.Ack, frames.Reject, frames.Parked, frames.Known])
    )
    payloads: dict[type[Reply], st.SearchStrategy[bytes]] = {
        frames.Value: words(),
        frames.Ack: st.just(b""),
        frames.Reject: st.text(max_size=200).map(str.encode),
        frames.Parked: words(st.integers(0, 1024)),
        frames.Known: words(st.integers(0, 130)),
    }
    return cls(  # type: ignore[return-value]  # each is a Frame
        request_id=draw(u64),
        seq=draw(u64),
        version=draw(u64),
        epoch=draw(u32),
        table=draw(u32),
        session=draw(u16),
        status=draw(u8),
        count=draw(u32),
        payload=draw(payloads[cls]),
    )


@st.composite
def ring_frames(draw: st.DrawFn) -> Frame:
    """Anything that a member of a ring could send another."""
    cls = draw(st.sampled_from([frames.RingBegin, frames.RingPiece, frames.RingConfirm]))
    payload = b""
    if cls is frames.RingPiece:
        payload = draw(words(word_counts.filter(bool)))
    elif cls is frames.RingBegin:
        payload = draw(st.text(max_size=200)).encode()
    return cls(  # type: ignore[return-value]  # each is a Frame
        operation=draw(u64),
        begin=draw(u64),
        ring=draw(u32),
        generation=draw(u32),
        message=draw(u32),
        count=len(payload) // 4 if cls is frames.RingPiece else draw(u32),
        status=draw(u8),
        payload=payload,
    )


_NAME_ALPHABET = "ABCXYZabcxyz0189._:-"


def of_type(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Any value that msgspec accepts for a field, as far as control messages use its types."""
    match kind:
        case inspect.Metadata(type=inner):
            return of_type(inner)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.IntType(ge=low, le=high):
            low, high = -(2**63) if low is None else low, 2**63 - 1 if high is None else high
            return st.integers(low, high)
        case inspect.FloatType(ge=low, le=high):
            return st.floats(low, high, allow_nan=False)
        case inspect.StrType(min_length=least, max_length=most, pattern=pattern):
            alphabet = st.characters(codec="utf-8") if pattern is None else _NAME_ALPHABET
            return st.text(alphabet, min_size=least or 0, max_size=min(most or 20, 20))
        case inspect.ListType(item_type=item):
            return st.lists(of_type(item), max_size=3)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(of_type(key), of_type(value), max_size=3)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(of_type, items))
        case inspect.UnionType(types=types):
            return st.one_of(*map(of_type, types))
        case inspect.BytesType():
            return st.binary(max_size=30)
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: of_type(field.type) for field in fields})
        case _:
            raise AssertionError(f"no strategy for {kind}")


def message_types() -> list[type[msgspec.Struct]]:
    """Every class that may be the message of a control frame."""
    return list(control.ControlMessage.__args__)


def messages() -> st.SearchStrategy[Any]:
    """Any control message."""
    return st.one_of(*(of_type(inspect.type_info(cls)) for cls in message_types()))


def simple_frames() -> st.SearchStrategy[Frame]:
    """PING, PONG and GOODBYE."""
    return st.one_of(
        st.builds(frames.Ping, u64),
        st.builds(frames.Pong, u64),
        st.builds(frames.Goodbye, u32, st.text(max_size=100)),
    )


def any_frame() -> st.SearchStrategy[Frame]:
    """Any frame that a correct peer could send."""
    return st.one_of(
        requests(), requests(), replies(), replies(), ring_frames(), simple_frames(),
        messages().map(frames.Control),
    )  # fmt: skip
