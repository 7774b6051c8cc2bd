"""SPEC.md says what the code does: every number, table and message, in both directions."""

from __future__ import annotations

import re
import struct
from enum import Enum
from pathlib import Path

import msgspec
import pytest

import spec_rows
from aiops_protocol import control, greeting, layout, ring_control
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import (
    CRITICAL_FLAGS,
    FIRST_OPTIONAL_KIND,
    OPTIONAL_FLAGS,
    AckLevel,
    Codec,
    Flag,
    Kind,
)
from aiops_protocol.greeting import HANDSHAKE_MAGIC, Method, Purpose, Role
from aiops_protocol.layout import KNOWN_FLAGS, MAGIC, PAYLOAD_MAX
from protocol_strategies import message_types

SPEC = Path(__file__).resolve().parents[2] / "protocol" / "SPEC.md"
TEXT = SPEC.read_text(encoding="utf-8")
LINES = TEXT.splitlines()

Row = list[str]


def tables() -> list[list[Row]]:
    """Every table of the page as rows of cells; the first row is the header."""
    found: list[list[Row]] = []
    inside = False
    for line in LINES:
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip().strip("`") for cell in line.strip("|").split(" |")]
        if not inside:
            found.append([])
        inside = True
        if not set(line) <= set("|- "):
            found[-1].append([cell.strip() for cell in cells])
    return found


def table(*header: str) -> list[Row]:
    """The rows of the one table with this beginning of a header."""
    (rows,) = [rows for rows in tables() if rows[0][: len(header)] == list(header)]
    return rows[1:]


def layout_of(message: str) -> list[Row]:
    """The table of offsets below a heading."""
    start = LINES.index(f"### {message}")
    rows = []
    for line in LINES[start:]:
        if line.startswith("|") and not line.startswith(("|---", "| offset")):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            break
    return rows


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "name", "number", "members"),
    [
        (("kind", "name"), 1, 0, Kind),
        (("role",), 0, 1, Role),
        (("purpose", "number"), 0, 1, Purpose),
        (("method", "bit"), 0, 1, Method),
        (("codec", "name"), 1, 0, Codec),
        (("ack level",), 0, 1, AckLevel),
        (("code", "name"), 1, 0, ErrorCode),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_numbers_are_those_of_the_code(
    header: tuple[str, ...], name: int, number: int, members: type[Enum]
) -> None:
    written = {row[name]: int(row[number]) for row in table(*header)}
    assert written == {member.name: member.value for member in members}


def test_flags_are_those_of_the_code() -> None:
    rows = table("bit", "flag")
    assert {row[1]: 1 << int(row[0]) for row in rows} == {flag.name: flag.value for flag in Flag}
    for bit, name, of, _ in rows:
        flag = 1 << int(bit)
        kinds = {kind.name for kind in Kind if KNOWN_FLAGS.get(kind, 0) & flag}
        if flag & OPTIONAL_FLAGS:
            assert of == "any", name
        else:
            assert kinds == (set() if of == "none yet" else set(of.split(", "))), name
    assert (CRITICAL_FLAGS, OPTIONAL_FLAGS, FIRST_OPTIONAL_KIND) == (0xFF, 0xFF00, 128)


def test_payload_limits_are_those_of_the_code() -> None:
    written = {int(row[0]): int(row[2]) for row in table("kind", "name", "payload at most")}
    assert written == {int(kind): most for kind, most in PAYLOAD_MAX.items()}


def test_limits_are_those_of_the_code() -> None:
    rows = table("limit", "value")
    assert {row[0]: float(row[1]) for row in rows} == spec_rows.limit_values()
    assert all(len(row) == 3 and row[2] for row in rows), "each limit has a reason"


@pytest.mark.parametrize("magic", [MAGIC, HANDSHAKE_MAGIC])
def test_magics_are_those_of_the_code(magic: bytes) -> None:
    assert f"`{magic.hex(' ')}`" in TEXT


# --- offsets ------------------------------------------------------------------------------------


def with_crc(packed: struct.Struct) -> struct.Struct:
    return struct.Struct(packed.format + "I")


LAYOUTS = {
    "GREETING": (
        with_crc(greeting._GREETING),
        (*greeting.Greeting.__struct_fields__, "crc"),
        set(),
    ),
    "HELLO": (with_crc(greeting._HELLO), (*greeting.Hello.__struct_fields__, "crc"), {112}),
    "WELCOME": (
        with_crc(greeting._WELCOME),
        (*greeting.Welcome.__struct_fields__, "crc"),
        {11, 88},
    ),
    "PREFIX": (
        layout.PREFIX_WITH_CRC,
        ("version", "kind", "flags", "meta_bytes", "payload_bytes", "body_crc", "prefix_crc"),
        set(),
    ),
    "REQUEST": (
        layout.REQUEST,
        (
            *("request_id", "seq", "answered_below", "clock", "epoch", "table"),
            *("session", "codec", "ack_level", "count"),
        ),
        set(),
    ),
    "RING": (
        layout.RING,
        (
            "operation",
            "begin",
            "ring",
            "generation",
            "message",
            "count",
            "codec",
            "status",
            "parameter",
        ),
        {34},
    ),
    "REPLY": (
        layout.REPLY,
        ("request_id", "seq", "version", "epoch", "table", "session", "codec", "status", "count"),
        set(),
    ),
}


@pytest.mark.parametrize("message", LAYOUTS)
def test_offsets_are_those_of_the_code(message: str) -> None:
    packed, fields, reserved = LAYOUTS[message]
    rows = layout_of(message)
    end = 0
    for offset, size, name, *_ in rows:
        assert int(offset) == end, name
        end += int(size)
    assert end == packed.size
    assert {int(row[0]) for row in rows if row[2] == "reserved"} == reserved
    named = [row for row in rows if row[2] not in ("magic", "reserved")]
    assert tuple(row[2] for row in named) == fields
    codes = re.findall(r"\d*[a-zA-Z]", packed.format.removeprefix("<"))
    sizes = [struct.calcsize("<" + code) for code in codes if not code.endswith("x")]
    if message == "WELCOME":  # its reserved byte is a field of the format
        del sizes[3]
    has_magic = message not in ("REQUEST", "REPLY", "RING")
    assert [int(row[1]) for row in named] == sizes[has_magic:]


# --- tables that are the code's own --------------------------------------------------------------


@pytest.mark.parametrize(
    "cls",
    [
        *message_types(),
        control.Member,
        control.TableSpec,
        control.ShardPart,
        ring_control.RingMember,
    ],
    ids=lambda cls: cls.__name__,
)
def test_each_control_message_has_its_row(cls: type[msgspec.Struct]) -> None:
    """Senders, fields, types, bounds and defaults. If it fails, this is the row to write."""
    assert spec_rows.message_row(cls) in LINES


def test_no_row_tells_of_a_control_message_that_does_not_exist() -> None:
    written = {row[0] for rows in tables() if rows[0][0] == "message" for row in rows[1:]}
    parts: list[type[msgspec.Struct]] = [
        *(control.Member, control.TableSpec, control.ShardPart, ring_control.RingMember)
    ]
    assert written == {cls.__name__ for cls in [*message_types(), *parts]}


def test_the_states_are_those_of_the_table() -> None:
    rows = ["| " + " | ".join(row) + " |" for row in table("state", "input")]
    assert rows == spec_rows.transition_rows()
    assert spec_rows.diagram() in TEXT


def test_what_each_end_receives_is_that_of_the_table() -> None:
    rows = ["| " + " | ".join(row) + " |" for row in table("purpose", "side")]
    assert rows == spec_rows.receivable_rows()


def test_who_dials_whom_is_that_of_the_table() -> None:
    rows = ["| " + " | ".join(row) + " |" for row in table("accepting")]
    assert rows == spec_rows.admitted_rows()


def test_every_link_within_the_page_has_its_heading() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
        for line in LINES
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= headings
