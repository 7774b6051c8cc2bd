"""The checksum of frames against another library, and against the value in the standard."""

from __future__ import annotations

import crc32c as another
from hypothesis import given
from hypothesis import strategies as st

from aiops_protocol.checksum import crc32c, joined


def test_the_value_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1), st.integers(0, 70))
def test_same_as_another_library_of_any_memory(data: bytes, before: int, skip: int) -> None:
    view = memoryview(bytearray(data))[skip:]
    assert crc32c(view, before) == another.crc32c(view, before)


@given(st.binary(max_size=300), st.binary(max_size=3000))
def test_goes_on_from_what_came_before(head: bytes, rest: bytes) -> None:
    assert crc32c(rest, crc32c(head)) == crc32c(head + rest)


@given(st.binary(max_size=300), st.binary(max_size=3000))
def test_joins_and_parts_without_reading_again(head: bytes, rest: bytes) -> None:
    whole = crc32c(head + rest)
    assert joined(crc32c(head), crc32c(rest), len(rest)) == whole
    assert joined(crc32c(head), whole, len(rest)) == crc32c(rest)


@given(st.binary(min_size=48, max_size=48), st.integers(1, 1 << 21))
def test_joins_any_length(head: bytes, size: int) -> None:
    rest = b"\x5a" * size
    assert joined(crc32c(head), crc32c(rest), size) == crc32c(rest, crc32c(head))
