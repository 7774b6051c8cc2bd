"""Histograms and byte counters: bounded error, exact merging, refused nonsense."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.observability.metrics import (
    BUCKETS,
    SECONDS_MAX,
    ByteCounters,
    LatencyHistogram,
    bucket_bounds_s,
)

durations = st.floats(min_value=0.0, max_value=2 * SECONDS_MAX, allow_nan=False)
measurable = st.floats(min_value=1e-6, max_value=SECONDS_MAX, exclude_max=True)


def recorded(samples: list[float]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for sample in samples:
        histogram.record(sample)
    return histogram


@given(st.lists(measurable, min_size=1), st.floats(0.0, 1.0))
def test_a_quantile_is_within_a_few_percent_of_the_sample_at_its_rank(
    samples: list[float], q: float
) -> None:
    exact = sorted(samples)[max(math.ceil(q * len(samples)), 1) - 1]
    got = recorded(samples).quantile(q)
    assert got is not None
    assert abs(got - exact) <= 0.033 * exact


@given(st.lists(durations), st.lists(durations))
def test_merging_is_the_same_as_recording_both(first: list[float], second: list[float]) -> None:
    merged = recorded(first)
    merged.merge(recorded(second))
    assert merged == recorded(second + first)
    assert merged.count == len(first) + len(second)


@given(st.lists(durations))
def test_the_wire_form_brings_back_every_count(samples: list[float]) -> None:
    histogram = recorded(samples)
    counts = histogram.to_counts()
    assert all(counts.values())
    assert LatencyHistogram.from_counts(counts) == histogram


@given(st.integers(0, int(SECONDS_MAX * 1e9) - 1))
def test_a_duration_lies_in_the_bucket_that_counts_it(nanoseconds: int) -> None:
    """record() computes the bucket in place; this ties it to the bounds that quantiles use."""
    (bucket,) = recorded([(nanoseconds + 0.5) * 1e-9]).to_counts()
    low_s, high_s = bucket_bounds_s(bucket)
    assert low_s <= (nanoseconds + 0.5) * 1e-9 < high_s


def test_buckets_tile_the_whole_span() -> None:
    bounds = [bucket_bounds_s(bucket) for bucket in range(BUCKETS)]
    assert bounds[0][0] == 0.0
    assert bounds[-1][1] >= SECONDS_MAX
    for (_, high_s), (low_s, _) in pairwise(bounds):
        assert high_s == low_s


def test_too_long_is_counted_in_the_last_bucket() -> None:
    assert recorded([SECONDS_MAX, 1e9, math.inf]).to_counts() == {BUCKETS - 1: 3}


def test_an_empty_histogram_has_no_quantile() -> None:
    assert LatencyHistogram().quantile(0.99) is None
    assert LatencyHistogram().summary() == {"count": 0, "p50_s": None, "p99_s": None}


def test_summary_names_the_median_and_the_tail() -> None:
    summary = recorded([0.001] * 98 + [1.0] * 2).summary()
    assert summary["count"] == 100
    assert summary["p50_s"] == pytest.approx(0.001, rel=0.04)
    assert summary["p99_s"] == pytest.approx(1.0, rel=0.04)


@pytest.mark.parametrize("nonsense", [-1e-9, -1.0, math.nan, -math.inf])
def test_a_negative_duration_is_refused_and_counts_nothing(nonsense: float) -> None:
    """A worker that subtracts the times of two hosts must hear of it."""
    histogram = LatencyHistogram()
    with pytest.raises(ValueError, match="duration"):
        histogram.record(nonsense)
    assert histogram.count == 0


@pytest.mark.parametrize("counts", [{-1: 1}, {BUCKETS: 1}, {0: -1}])
def test_counts_of_a_peer_are_checked(counts: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="latency bucket"):
        LatencyHistogram.from_counts(counts)


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_a_quantile_outside_zero_and_one_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        recorded([1.0]).quantile(q)


@given(st.lists(st.dictionaries(st.sampled_from(ByteCounters.__slots__), st.integers(0, 2**63))))
def test_byte_counters_add_up(snapshots: list[dict[str, int]]) -> None:
    total = ByteCounters()
    for snapshot in snapshots:
        total.add(snapshot)
    for name, value in total.snapshot().items():
        assert value == sum(snapshot.get(name, 0) for snapshot in snapshots)


def test_a_snapshot_stays_as_it_was() -> None:
    counters = ByteCounters()
    counters.push_sent += 7
    before = counters.snapshot()
    counters.push_sent += 1
    assert before["push_sent"] == 7
    assert counters.snapshot()["push_sent"] == 8
    assert repr(counters) == "<ByteCounters push_sent=8>"


def test_a_counter_of_a_newer_version_is_left_out() -> None:
    counters = ByteCounters()
    counters.add({"replicate_sent": 5, "pull_sent": 3})
    assert counters.snapshot() == ByteCounters().snapshot() | {"pull_sent": 3}


def test_a_negative_count_of_a_peer_is_refused() -> None:
    with pytest.raises(ValueError, match="push_sent"):
        ByteCounters().add({"push_sent": -1})
