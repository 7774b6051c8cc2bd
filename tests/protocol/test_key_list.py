"""Keys, their mixed order, and the signatures of key lists."""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops_protocol.errors import MalformedFrame
from aiops_protocol.key_list import KEY_END, are_sorted, as_keys, mix, signature, take_keys, unmix

keys = st.lists(st.integers(0, 2**64 - 1), max_size=20)


def mixed(key: int) -> int:
    """SPEC.md, word for word."""
    x = ~key % 2**64
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 % 2**64
    x ^= x >> 27
    x = x * 0x94D049BB133111EB % 2**64
    x ^= x >> 31
    return ~x % 2**64


@given(keys)
def test_mixing_is_that_of_the_specification_and_can_be_undone(numbers: list[int]) -> None:
    given = np.array(numbers, np.uint64)
    assert mix(given).tolist() == [mixed(number) for number in numbers]
    assert unmix(mix(given)).tolist() == numbers
    assert mix(unmix(given)).tolist() == numbers


def test_what_is_no_key_stays_none() -> None:
    assert mix(np.array([KEY_END], np.uint64)).tolist() == [KEY_END]


def test_mixed_neighbours_fill_equal_parts_equally() -> None:
    """Row numbers of a matrix and multiples of a stride, over five servers."""
    for step in (1, 16, 2**20, 2**40):
        words = mix(np.arange(50_000, dtype=np.uint64) * np.uint64(step))
        counts, _ = np.histogram(words.astype(np.float64), bins=5, range=(0.0, 2.0**64))
        assert (abs(counts - 10_000) < 500).all()


@given(keys)
def test_a_list_is_sorted_if_every_key_is_larger_than_the_one_before(numbers: list[int]) -> None:
    rising = all(a < b for a, b in pairwise(numbers)) and KEY_END not in numbers
    given = np.array(numbers, np.uint64)
    assert are_sorted(given) is rising
    if rising:
        listed, rest = take_keys(given.tobytes() + b"rest", len(numbers))
        assert as_keys(listed).tolist() == numbers
        assert bytes(rest) == b"rest"
    else:
        with pytest.raises(MalformedFrame, match=r"unsorted, repeats a key or holds 2\*\*64-1"):
            take_keys(given.tobytes(), len(numbers))


def test_a_signature_is_over_the_whole_list() -> None:
    """Lists that differ only in their last key, far behind the first 64 KiB, must not be one."""
    long = np.arange(100_000, dtype="<u8")
    other = long.copy()
    other[-1] += 1
    assert signature(long.tobytes()) != signature(other.tobytes())
    assert signature(long.tobytes()) != signature(long[:-1].tobytes())
    assert signature(long.tobytes()) == blake2b(long.tobytes(), digest_size=16).digest()
