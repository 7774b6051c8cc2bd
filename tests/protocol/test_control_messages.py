"""Control messages: typed, bounded in size and depth, and from their senders only."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import islice, product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from msgspec import inspect
from msgspec.msgpack import encode as packed

from aiops_protocol import control, limits
from aiops_protocol.control import BarrierEnter, Join, Leave
from aiops_protocol.errors import MalformedFrame
from aiops_protocol.frames import Control
from aiops_protocol.greeting import Role
from aiops_protocol.limits import CONTROL_BYTES_MAX, TEXT_BYTES_MAX, MiB
from aiops_protocol.message import Message
from aiops_protocol.ring_control import RingMember
from protocol_strategies import message_types, messages
from wire_bytes import decode, handmade, wire

MEMORY_MAX = 16 * MiB
"""What the largest message may cost while it is decoded: sixteen times its bytes."""


def decoded(payload: bytes) -> Any:
    frame = decode(handmade(32, b"", payload))
    assert isinstance(frame, Control)
    return frame.message


@given(messages())
def test_every_message_survives_the_way(message: Any) -> None:
    assert decode(wire(Control(message))) == Control(message)


def test_every_message_has_a_sender_and_a_docstring_that_names_it() -> None:
    parts: set[type[Message]] = {control.Member, control.TableSpec, control.ShardPart, RingMember}
    for cls in message_types():
        assert issubclass(cls, Message)
        assert cls.senders, cls
        assert cls.senders <= set(Role)
        words = (cls.__doc__ or "").split(":")[0].lower()
        for role in cls.senders if len(cls.senders) == 1 else ():
            assert role.name.lower() in words, cls
    assert all(not cls.senders for cls in parts)
    assert set(Message.__subclasses__()) == {*message_types(), *parts}


# --- names and texts ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "a b", "a\n", "\na", "a\x1b[2J", "ä", "a" * 65, "a/b", "\u202eabc", "a\0"]
)
def test_a_name_that_could_spoil_a_log_line_is_refused(name: str) -> None:
    with pytest.raises(MalformedFrame):
        decoded(packed({"type": "BarrierEnter", "name": name, "generation": 1, "timeout_s": 1}))
    if name:
        with pytest.raises(MalformedFrame):
            decoded(packed({"type": "Join", "role": "worker", "name": name}))


@pytest.mark.parametrize("name", ["a", "worker-0", "a.b_c:d-9", "A" * 64])
def test_a_plain_name_passes(name: str) -> None:
    message = BarrierEnter(name=name, generation=1, timeout_s=1.0)
    assert decoded(packed(message)) == message
    assert decoded(packed(Join(role="worker", name=name))).name == name


@pytest.mark.parametrize("host", ["", "10.0.0.1", "::1", "fe80::1%eth0", "node-3.example.org"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    assert decoded(packed(Join(role="server", host=host))).host == host
    with pytest.raises(MalformedFrame):
        decoded(packed(Join(role="server", host=host + "\n")))


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), -1.0, -1e-9, 1e300, "1", None])
def test_a_span_of_time_is_a_number_that_a_clock_can_reach(timeout: Any) -> None:
    """NaN would never be over, and would spoil the order of every queue of deadlines."""
    with pytest.raises(MalformedFrame):
        decoded(
            packed({"type": "BarrierEnter", "name": "a", "generation": 1, "timeout_s": timeout})
        )


def test_a_text_has_at_most_1024_characters() -> None:
    assert decoded(packed(Leave(clean=False, reason="ä" * TEXT_BYTES_MAX))).clean is False
    with pytest.raises(MalformedFrame):
        decoded(packed(Leave(clean=False, reason="x" * (TEXT_BYTES_MAX + 1))))


# --- size and depth ---------------------------------------------------------------------------


def is_bounded(kind: inspect.Type) -> bool:
    """Whether every collection and text within a type has an upper bound."""
    match kind:
        case inspect.Metadata(type=inner):
            return is_bounded(inner)
        case inspect.StrType(max_length=most) | inspect.BytesType(max_length=most):
            return most is not None
        case inspect.ListType(item_type=item, max_length=most):
            return most is not None and is_bounded(item)
        case inspect.DictType(key_type=key, value_type=value, max_length=most):
            return most is not None and is_bounded(key) and is_bounded(value)
        case inspect.TupleType(item_types=types) | inspect.UnionType(types=types):
            return all(map(is_bounded, types))
        case inspect.StructType(fields=fields):
            return all(is_bounded(field.type) for field in fields)
        case _:
            return isinstance(
                kind,
                inspect.IntType | inspect.FloatType | inspect.BoolType | inspect.NoneType,
            )


@pytest.mark.parametrize("cls", message_types())
def test_every_collection_of_a_message_is_bounded(cls: type[msgspec.Struct]) -> None:
    """A small item costs one byte on the wire and a hundred in memory."""
    assert is_bounded(inspect.type_info(cls))


def keys(count: int) -> list[bytes]:
    letters = b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return [b"\xa3" + bytes(key) for key in islice(product(letters, repeat=3), count)]


def array(items: int, item: bytes) -> bytes:
    return b"\xdd" + struct.pack(">I", items) + item * items


def mapping(names: list[bytes], value: bytes) -> bytes:
    return b"\xdf" + struct.pack(">I", len(names)) + b"".join(name + value for name in names)


def report(field: bytes, value: bytes) -> bytes:
    return b"\x82\xa4type\xaaNodeReport" + bytes([0xA0 + len(field)]) + field + value


MEMBER = packed(control.Member(role="s", rank=1, name="a", incarnation=1))
PART = packed(control.ShardPart(server=1, begin=0, end=1))
BUCKETS = b"\xde\x04\x00" + b"".join(b"\xcd" + struct.pack(">H", i) + b"\x01" for i in range(1024))

HEAVY = {
    "empty dicts": report(b"latency", mapping(keys(limits.REPORT_HISTOGRAMS_MAX), b"\x80")),
    "histograms": report(b"latency", mapping(keys(limits.REPORT_HISTOGRAMS_MAX), BUCKETS)),
    "spans": report(b"spans", array(limits.REPORT_SPANS_MAX, b"\x94\xa3abc\xcd\x7f\xff\x01\x02")),
    "rounds": report(
        b"rounds", mapping(keys(limits.TABLES_MAX), b"\x92\x01\xdc\x00\xf0" + b"\x01" * 240)
    ),
    "members": b"\x86\xa4type\xacClusterState\xa5epoch\x01\xa5ready\xc3\xb0expected_servers\x01"
    b"\xb0expected_workers\x01\xa7members" + array(limits.MEMBERS_MAX, MEMBER),
    "parts": b"\x86\xa4type\xabTableOpened\xa4call\x01\xa5table\x01\xacfrom_version\x00\xa4spec"
    + packed(
        control.TableSpec(
            name="a", shape=[], init_kind="a", init={}, optimizer="a", optimizer_settings={},
            consistency="a", consistency_settings={},
        )
    )
    + b"\xa5parts"
    + array(limits.PARTS_MAX, PART),
    "ignored field": report(b"later", array(1_000_000, b"\x80")),
}  # fmt: skip

TOO_MUCH = {
    "a huge list": report(b"spans", b"\xdd\xff\xff\xff\xff"),
    "a huge map": report(b"counters", b"\xdf\xff\xff\xff\xff"),
    "a huge text": report(b"spans", b"\x91\x94\xdb\xff\xff\xff\xff"),
    "one span more": report(b"spans", array(limits.REPORT_SPANS_MAX + 1, b"\x94\xa0\x00\x00\x00")),
    "200,000 spans": report(b"spans", array(200_000, b"\x94\xa0\x00\x00\x00")),
    "200,000 dicts": report(b"latency", mapping(keys(200_000), b"\x80")),
    "a million dimensions": b"\x83\xa4type\xabAttachTable\xa4call\x01\xa4spec\x81\xa5shape"
    + array(1_000_000, b"\x01"),
    "nested arrays": report(b"later", b"\x91" * 1_000_000 + b"\xc0"),
    "nested maps": report(b"later", b"\x81\xa0" * 400_000 + b"\xc0"),
    "a nested name": b"\x82\xa4type\xa4Join\xa4name" + b"\x91" * 1_000_000 + b"\xc0",
}


@pytest.mark.parametrize("name", [*HEAVY, *TOO_MUCH])
def test_a_message_never_costs_much_more_than_its_bytes(name: str) -> None:
    payload = (HEAVY | TOO_MUCH)[name]
    assert len(payload) <= CONTROL_BYTES_MAX
    tracemalloc.start()
    try:
        if name in HEAVY:
            assert decoded(payload) is not None
        else:
            with pytest.raises(MalformedFrame):
                decoded(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - 3 * len(payload) < (MEMORY_MAX if name in HEAVY else MiB)
