"""How messages are cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.collective import schedule
from aiops.collective.plan import PIECE_ELEMENTS, make_plan, piece_elements
from aiops_protocol.limits import PAYLOAD_BYTES_MAX


@given(st.integers(0, 1 << 40), st.integers(1, PIECE_ELEMENTS))
def test_pieces_get_longer_where_enough_of_them_stay(message: int, least: int) -> None:
    size = piece_elements(message, least)
    assert size in (least, 2 * least, 4 * least)
    assert size == least or 4 * size <= message
    longer = piece_elements(message + 1, least)
    assert longer >= size
    if message >= 16 * least:
        assert size == 4 * least


def test_the_longest_piece_of_float64_is_the_largest_payload() -> None:
    assert piece_elements(1 << 40) * 8 == PAYLOAD_BYTES_MAX


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling", "chain", "tree"])
@given(world_size=st.integers(2, 6), count=st.integers(0, 400))
def test_both_ends_cut_alike(algorithm: schedule.Algorithm, world_size: int, count: int) -> None:
    plans = [
        make_plan(schedule.all_reduce(algorithm, rank, world_size, count), 3)
        for rank in range(world_size)
    ]
    sent = sorted(
        (rank, piece.peer, piece.message, piece.begin, piece.end)
        for rank, plan in enumerate(plans)
        for piece in plan.sends
    )
    received = sorted(
        (piece.peer, rank, piece.message, piece.begin, piece.end)
        for rank, plan in enumerate(plans)
        for piece in plan.receives
    )
    assert sent == received


def test_what_is_sent_last_of_each_element_is_final() -> None:
    """Of a ring these are the finished chunks; partial sums are not, for a codec looks at this."""
    for rank in range(4):
        plan = make_plan(schedule.all_reduce("ring", rank, 4, 4000))
        assert [piece.final for piece in plan.sends] == [False] * 3 + [True] * 3
