"""The index of a sparse shard is a dictionary from keys to numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.shards.sparse.index import BUCKET, RowIndex
from aiops_protocol.key_list import KEY_END, Keys, mix

near = st.integers(0, 3000)
"""Keys that fall into few buckets: what the evenly spread ones never do."""


def distinct(numbers: list[int]) -> Keys:
    return np.unique(np.array(numbers, np.uint64))


@given(batches=st.lists(st.lists(st.integers(0, 2**64 - 2) | near, max_size=60), max_size=12))
def test_every_key_is_found_under_its_number_and_no_other(batches: list[list[int]]) -> None:
    index = RowIndex()
    known: dict[int, int] = {}
    for batch in batches:
        keys = distinct([key for key in batch if key not in known])
        numbers = np.arange(len(known), len(known) + keys.size, dtype=np.uint32)
        index.insert(keys, numbers)
        known.update(zip(keys.tolist(), numbers.tolist(), strict=True))
        index.validate()
    asked = distinct([*known, *range(0, 3000, 7), 2**64 - 2])
    assert index.find(asked).tolist() == [known.get(key, -1) for key in asked.tolist()]
    assert index.size == len(known)


@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_it_grows_and_stays_compact(order: str) -> None:
    """At most 30 bytes for each row, and few steps for a look-up, in whatever steps they come.

    A push is a sorted list that is cut into frames: each has the keys of one part of the range.
    """
    index = RowIndex()
    rng = np.random.default_rng(1)
    keys = mix(np.arange(60_000, dtype=np.uint64))
    keys = np.sort(keys) if order == "sorted" else rng.permutation(keys)
    for start in range(0, keys.size, 7_000):
        part = np.sort(keys[start : start + 7_000])
        index.insert(part, np.arange(start, start + part.size, dtype=np.uint32))
        index.validate()
    assert index.nbytes <= 30 * keys.size
    assert index.nbytes == index.bytes_with(0)
    full = (index._keys[:, -1] != KEY_END).astype(int)
    runs = np.diff(np.flatnonzero(np.diff(np.concatenate([[0], full, [0]]))))[::2]
    assert runs.max() <= 30  # buckets that a look-up may have to go through


def test_full_buckets_pass_their_keys_on_also_at_the_end() -> None:
    """All keys of one bucket, the last: what does not fit goes on at the first one."""
    index = RowIndex()
    keys = np.arange(2**32 - 5 * BUCKET, 2**32, dtype=np.uint64)
    index.insert(keys, np.arange(keys.size, dtype=np.uint32))
    index.validate()
    assert index.find(keys).tolist() == list(range(keys.size))
    assert index.find(np.array([0, 2**32 - 5 * BUCKET - 1], np.uint64)).tolist() == [-1, -1]


def test_what_it_will_need_is_what_it_takes() -> None:
    index = RowIndex()
    keys = mix(np.arange(20_000, dtype=np.uint64))
    for more in (1, 300, 1_000, 18_000):
        expected = index.bytes_with(more)
        index.reserve(more)
        assert index.nbytes == expected
        first = index.size
        index.insert(keys[first : first + more], np.arange(first, first + more, dtype=np.uint32))
        assert index.nbytes == expected
