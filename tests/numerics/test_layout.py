"""The pieces of a call: they name each element that was asked for, once, where it is stored."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.errors import UsageError
from aiops.tables.layout import Layout, Piece
from aiops_protocol.control import ShardPart
from aiops_protocol.key_range import Partition
from aiops_protocol.limits import RANGES_PER_FRAME_MAX, SEGMENT_ELEMENTS

SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 12), min_size=1, max_size=3).map(tuple),
    st.tuples(st.integers(1, 6), st.integers(1, 3 * SEGMENT_ELEMENTS // 2)),
    st.tuples(st.integers(1, 4 * SEGMENT_ELEMENTS)),
)


def layout_of(shape: tuple[int, ...], servers: int, first: int = 0) -> Layout:
    partition = Partition.balanced(prod(shape), servers, first)
    parts = [ShardPart(server=rank, begin=p.begin, end=p.end) for rank, p in partition.parts]
    return Layout("w", shape, parts)


def keys_of(piece: Piece) -> np.ndarray[Any, np.dtype[np.int64]]:
    if not piece.ranges:
        return np.arange(piece.begin, piece.end)
    pairs = np.frombuffer(piece.ranges, "<u8").astype(np.int64).reshape(-1, 2)
    assert pairs[0, 0] == piece.begin
    assert pairs[-1, 1] == piece.end
    return np.concatenate([np.arange(begin, end) for begin, end in pairs])


def check_pieces(layout: Layout, pieces: list[Piece], expected: Any) -> None:
    """Every piece fits one frame of one shard, and together they are the expected keys."""
    ranges = layout.describe()
    position = 0
    for piece in pieces:
        keys = keys_of(piece)
        assert keys.size == piece.stop - piece.start <= SEGMENT_ELEMENTS
        assert piece.start == position
        position = piece.stop
        assert len(piece.ranges) // 16 <= RANGES_PER_FRAME_MAX
        part = ranges[piece.shard]
        assert part["begin"] <= piece.begin
        assert piece.end <= part["end"]
    together = np.concatenate([np.empty(0, np.int64), *map(keys_of, pieces)])
    assert np.array_equal(together, expected)


@given(shape=SHAPES, servers=st.integers(1, 17), first=st.integers(0, 20))
def test_the_whole_table(shape: tuple[int, ...], servers: int, first: int) -> None:
    layout = layout_of(shape, servers, first)
    choice = layout.choose(None, "pull")
    assert choice.shape == shape
    assert choice.pieces, "an empty table still has a shard that answers"
    check_pieces(layout, choice.pieces, np.arange(prod(shape)))
    assert {piece.shard for piece in choice.pieces} == set(range(len(layout.servers)))
    assert sum(part["bytes"] for part in layout.describe()) == 4 * prod(shape)


@given(data=st.data(), shape=SHAPES.filter(bool), servers=st.integers(1, 7))
def test_some_rows(data: st.DataObject, shape: tuple[int, ...], servers: int) -> None:
    layout = layout_of(shape, servers)
    keys = np.arange(prod(shape)).reshape(shape)
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, shape[0])] * 2)))
    choice = layout.choose(slice(low, high), "pull")
    assert choice.shape == keys[low:high].shape
    check_pieces(layout, choice.pieces, keys[low:high].ravel())

    numbers = data.draw(
        st.lists(st.integers(0, shape[0] - 1), max_size=30) if shape[0] else st.just([])
    )
    choice = layout.choose(numbers, "pull")
    unique = sorted(set(numbers))
    assert choice.unique is not None
    assert choice.order is not None
    assert choice.unique.tolist() == unique
    assert choice.unique[choice.order].tolist() == numbers
    assert choice.shape == (len(numbers), *shape[1:])
    check_pieces(layout, choice.pieces, keys[np.array(unique, np.int64)].ravel())


def test_more_rows_than_one_frame_may_name() -> None:
    layout = layout_of((3 * RANGES_PER_FRAME_MAX, 2), 2)
    numbers = np.arange(0, 3 * RANGES_PER_FRAME_MAX, 2)
    pieces = layout.choose(numbers, "push").pieces
    keys = np.stack([2 * numbers, 2 * numbers + 1], axis=1).ravel()
    check_pieces(layout, pieces, keys)
    assert len(pieces) == 2


def test_all_rows_by_number_are_as_few_pieces_as_the_whole() -> None:
    layout = layout_of((100, 50_000), 3)
    whole = layout.choose(None, "push").pieces
    pieces = layout.choose(range(100), "push").pieces
    check_pieces(layout, pieces, np.arange(5_000_000))
    assert len(pieces) <= len(whole) + len(layout.servers)


def test_an_index_of_any_kind_is_a_bound() -> None:
    class Index:
        def __index__(self) -> int:
            return 2

    layout = layout_of((5,), 1)
    assert layout.choose(slice(Index(), np.int8(4)), "pull").shape == (2,)
    with pytest.raises(UsageError, match="bound '1'"):
        layout.choose(slice("1", 2), "pull")
