"""How long an answer may take, from how long answers took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.roles.round_trips import BULK_BYTES, FIRST_S, RTO_S_MAX, RTO_S_MIN, RoundTrips

SIZES = st.integers(0, 1 << 26)
TRIPS = st.lists(st.tuples(st.floats(1e-6, 100.0), SIZES), max_size=50)


def measured(*trips: tuple[float, int]) -> RoundTrips:
    """A record of (time, size of the request)."""
    found = RoundTrips()
    for trip_s, size in trips:
        found.took(trip_s, size, 0.0)
    return found


@given(TRIPS, SIZES)
def test_it_is_always_within_its_bounds(trips: list[tuple[float, int]], size: int) -> None:
    assert RTO_S_MIN <= measured(*trips).rto_s(size) <= RTO_S_MAX


@given(TRIPS, SIZES, SIZES)
def test_more_bytes_under_way_never_shorten_it(
    trips: list[tuple[float, int]], one: int, other: int
) -> None:
    record = measured(*trips)
    less, more = sorted((one, other))
    assert record.rto_s(less) <= record.rto_s(more)


@given(st.floats(0.06, 4.0), SIZES)
def test_on_a_steady_way_it_is_the_round_trip_and_the_bytes(trip_s: float, size: int) -> None:
    """RFC 6298: after a hundred equal round trips the variation is gone."""
    record = measured((BULK_BYTES / 1e7, BULK_BYTES), *[(trip_s, 100)] * 100)
    expected = min(max(trip_s + size / 1e7, RTO_S_MIN), RTO_S_MAX)
    assert record.rto_s(size) == pytest.approx(expected, rel=0.01)


def test_before_anything_is_known_it_is_a_second() -> None:
    assert RoundTrips().rto_s(0) == FIRST_S


def test_a_way_that_varies_is_given_more_time() -> None:
    steady = measured(*[(0.3, 0)] * 50)
    shaky = measured(*[(0.1, 0), (0.5, 0)] * 25)
    assert shaky.rto_s(0) > 2 * steady.rto_s(0)


def test_a_way_that_becomes_narrow_is_believed_after_a_while() -> None:
    record = measured((BULK_BYTES / 1e9, BULK_BYTES))
    assert record.rto_s(10_000_000) == pytest.approx(FIRST_S + 0.01)
    for _ in range(80):
        record.took(BULK_BYTES / 1e6, BULK_BYTES, 0.0)
    assert record.rto_s(10_000_000) > FIRST_S + 2.0
