"""Key ranges against plain Python models of sets and lists."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops_protocol.key_range import (
    ALIGNMENT_ELEMENTS,
    KeyRange,
    Partition,
    Ranges,
    cut_ranges,
    flat_indices,
    rows_to_ranges,
    split,
)
from aiops_protocol.limits import TABLE_ELEMENTS_MAX

sizes = st.one_of(st.integers(0, 300), st.integers(0, TABLE_ELEMENTS_MAX))
servers = st.integers(1, 17)


@st.composite
def range_lists(draw: st.DrawFn, most: int = 120) -> Ranges:
    """Sorted disjoint ranges, touching ones included."""
    marks = sorted(draw(st.sets(st.integers(0, most), max_size=16)))
    pieces = [pair for pair in pairwise(marks) if draw(st.booleans())]
    return np.array(pieces, np.uint64).reshape(-1, 2)


def keys_of(ranges: Ranges) -> list[int]:
    return [key for begin, end in ranges.tolist() for key in range(begin, end)]


# --- one range ------------------------------------------------------------------------------


@given(*[st.integers(0, 40)] * 4)
def test_intersection_is_that_of_the_sets(a: int, b: int, c: int, d: int) -> None:
    left, right = KeyRange(min(a, b), max(a, b)), KeyRange(min(c, d), max(c, d))
    common = set(range(*left)) & set(range(*right))
    found = left.intersect(right)
    assert set(range(*found)) == common if found else not common
    assert left.intersect(right) == right.intersect(left)
    assert left.size == len(range(*left))


def test_a_range_reads_as_mathematics_writes_it() -> None:
    assert str(KeyRange(0, 2**64 - 1)) == "[0, 18446744073709551615)"


# --- split and partition ------------------------------------------------------------------------


@given(sizes, servers, st.sampled_from([1, 16, 64]))
def test_split_tiles_exactly_and_evenly(elements: int, parts: int, alignment: int) -> None:
    ranges = split(elements, parts, alignment)
    assert len(ranges) == parts
    assert ranges[0].begin == 0
    assert ranges[-1].end == elements
    assert all(left.end == right.begin for left, right in pairwise(ranges))
    assert all(part.begin % alignment == 0 or part.begin == elements for part in ranges)
    largest, smallest = (f(part.size for part in ranges) for f in (max, min))
    assert smallest >= 0
    assert largest - smallest <= 2 * alignment - 1  # one unit, and the short last one


@given(sizes, servers, st.integers(0, 40))
def test_a_balanced_partition_tiles_exactly(elements: int, count: int, first: int) -> None:
    partition = Partition.balanced(elements, count, first)
    ranges = [part for _, part in partition.parts]
    owners = [owner for owner, _ in partition.parts]
    assert partition.size == elements
    assert [ranges[0].begin, ranges[-1].end] == [0, elements]
    assert all(left.end == right.begin for left, right in pairwise(ranges))
    assert all(part.size for part in ranges) or elements == 0
    assert owners == [(first + i) % count for i in range(len(owners))]
    units = -(-elements // ALIGNMENT_ELEMENTS)
    assert len(ranges) == max(1, min(units, count))  # more servers than units: one unit each


@given(st.integers(1, 400), servers, st.data())
def test_each_key_has_the_owner_of_its_part(elements: int, count: int, data: st.DataObject) -> None:
    partition = Partition.balanced(elements, count)
    key = data.draw(st.integers(0, elements - 1))
    (owner,) = [owner for owner, part in partition.parts if part.begin <= key < part.end]
    assert partition.owner_of(key) == owner


@pytest.mark.parametrize("key", [-1, 40, 2**64 - 1])
def test_a_key_outside_has_no_owner(key: int) -> None:
    with pytest.raises(IndexError, match="outside"):
        Partition.balanced(40, 2).owner_of(key)


@given(st.integers(0, 300), servers, st.integers(-20, 330), st.integers(-20, 330))
def test_cutting_gives_the_pieces_of_the_parts(
    elements: int, count: int, begin: int, end: int
) -> None:
    """Also for ranges that reach out of the table, lie outside or are reversed."""
    partition = Partition.balanced(elements, count)
    pieces = list(partition.cut(begin, end))
    asked = KeyRange(begin, end)
    touched = [
        (index, common)
        for index, (_, part) in enumerate(partition.parts)
        if (common := part.intersect(asked)) is not None
    ]
    assert pieces == touched


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "at least one"),
        ([(0, KeyRange(1, 5))], "starts at key 0"),
        ([(0, KeyRange(0, -5))], "reversed"),
        ([(0, KeyRange(0, 5)), (1, KeyRange(6, 9))], "without gaps"),
        ([(0, KeyRange(0, 5)), (1, KeyRange(4, 9))], "without gaps"),
        ([(0, KeyRange(0, 0)), (1, KeyRange(0, 9))], "without gaps"),
        ([(0, KeyRange(0, 9)), (1, KeyRange(9, 9))], "without gaps"),
        ([(0, KeyRange(0, 10)), (1, KeyRange(10, 5)), (2, KeyRange(5, 20))], "without gaps"),
    ],
)
def test_what_is_no_partition_is_refused(parts: list[tuple[int, KeyRange]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Partition(parts)


# --- lists of ranges ------------------------------------------------------------------------------


@given(
    st.sets(st.integers(0, 60)),
    st.integers(0, 5),
    st.sampled_from([np.int64, np.int32, np.uint32, np.uint64]),
)
def test_rows_become_the_ranges_of_their_elements(
    rows: set[int], width: int, kind: type[np.integer[np.typing.NBitBase]]
) -> None:
    ranges = rows_to_ranges(np.array(sorted(rows), kind), width)
    elements = [row * width + i for row in sorted(rows) for i in range(width)]
    assert keys_of(ranges) == elements
    assert all(left < right for (_, left), (right, _) in pairwise(ranges.tolist()))  # none touch
    assert ranges.dtype == np.uint64


@given(range_lists(), st.sets(st.integers(0, 130), max_size=8))
def test_cut_ranges_holds_the_same_keys_in_smaller_pieces(ranges: Ranges, bounds: set[int]) -> None:
    pieces = cut_ranges(ranges, sorted(bounds))
    assert keys_of(pieces) == keys_of(ranges)
    for begin, end in pieces.tolist():
        assert begin < end
        assert not any(begin < bound < end for bound in bounds)
    # No more cuts than asked for: each piece begins with a range or at a bound.
    begins = set(ranges[:, 0].tolist()) | bounds
    assert all(begin in begins for begin, _ in pieces.tolist())


def test_cut_ranges_at_the_largest_keys() -> None:
    top = 2**64 - 1
    ranges = np.array([[2**63 - 1, 2**63 + 1], [top - 2, top]], np.uint64)
    assert cut_ranges(ranges, [2**63, top - 1]).tolist() == [
        [2**63 - 1, 2**63],
        [2**63, 2**63 + 1],
        [top - 2, top - 1],
        [top - 1, top],
    ]


@given(range_lists(), st.integers(0, 20))
def test_flat_indices_are_all_keys_in_order(ranges: Ranges, offset: int) -> None:
    assert flat_indices(ranges, offset).tolist() == [key - offset for key in keys_of(ranges)]
    assert flat_indices(ranges).dtype == np.int64


@given(st.integers(1, 300), servers, st.sets(st.integers(0, 99), min_size=1))
def test_rows_reach_every_owner_once(elements: int, count: int, rows: set[int]) -> None:
    """As a push of rows does it: to ranges, cut at the parts, each piece to its owner."""
    width = 3
    partition = Partition.balanced(100 * width, count)
    bounds = [part.begin for _, part in partition.parts]
    pieces = cut_ranges(rows_to_ranges(np.array(sorted(rows)), width), bounds)
    owned = [bisect_right(bounds, begin) - 1 for begin, _ in pieces.tolist()]
    for index, (begin, end) in zip(owned, pieces.tolist(), strict=True):
        _, part = partition.parts[index]
        assert part.begin <= begin < end <= part.end
    assert len(keys_of(pieces)) == len(rows) * width
