"""What the contributions of a round become, against plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiops import BSP
from aiops.errors import ConfigError
from aiops.shards.reduction import (
    MajoritySign,
    Mean,
    Median,
    Reduction,
    Sum,
    TrimmedMean,
    reduction_from,
)
from aiops_protocol.payload import Float32Array
from bits import odd_values, same_bits

F = np.float32
SIZE = 37

counts = st.integers(1, 9)
seeds = st.integers(0, 2**32 - 1)


def reduced(
    reduction: Reduction, pieces: list[Float32Array], weights: list[float] | None = None
) -> Float32Array:
    kept = [piece.copy() for piece in pieces]
    out = np.full(pieces[0].size, 123, F)
    with np.errstate(all="ignore"):
        reduction.reduce(pieces, weights, out)
    assert all(map(same_bits, kept, pieces)), "what was given is left alone"
    return out


def usual(seed: int, count: int) -> list[Float32Array]:
    """Gradients as they are, with ties and zeros among them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((count, SIZE)).astype(F)
    values[rng.random((count, SIZE)) < 0.2] = 0
    return list(values)


@given(seed=seeds, count=counts)
def test_sum_and_mean_are_left_folds(seed: int, count: int) -> None:
    pieces = [odd_values(seed + i, SIZE) for i in range(count)]
    with np.errstate(all="ignore"):
        total = pieces[0].copy()
        for piece in pieces[1:]:
            total = total + piece
        mean = np.divide(total, F(count))
    assert same_bits(reduced(Sum(), pieces), total)
    assert same_bits(reduced(Mean(), pieces), mean)


@given(seed=seeds, weights=st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=6))
def test_the_weighted_mean(seed: int, weights: list[float]) -> None:
    pieces = usual(seed, len(weights))
    total = pieces[0] * F(weights[0])
    for piece, weight in zip(pieces[1:], weights[1:], strict=True):
        total = total + piece * F(weight)
    found = reduced(Mean(), pieces, weights)
    assert same_bits(found, np.divide(total, F(sum(weights))))
    exact = np.average(np.stack(pieces).astype(float), axis=0, weights=weights)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-6)


@given(seed=seeds, count=counts)
def test_equal_weights_are_the_plain_mean(seed: int, count: int) -> None:
    """To the bit where multiplying is exact."""
    pieces = usual(seed, count)
    assert same_bits(reduced(Mean(), pieces, [1.0] * count), reduced(Mean(), pieces))
    assert same_bits(reduced(Mean(), pieces, [32.0] * count), reduced(Mean(), pieces))


def trimmed(pieces: Float32Array, trim: int) -> Any:
    rows = np.sort(pieces, axis=0)[trim : len(pieces) - trim]
    return rows.astype(float).mean(axis=0)


@given(seed=seeds, count=counts, trim=st.integers(1, 5))
def test_the_robust_ones_are_what_numpy_says(seed: int, count: int, trim: int) -> None:
    pieces = usual(seed, count)
    stack = np.stack(pieces)
    np.testing.assert_array_equal(reduced(Median(), pieces), np.median(stack, axis=0))
    votes = np.sign(np.sign(stack).sum(axis=0))
    np.testing.assert_array_equal(reduced(MajoritySign(), pieces), votes)
    taken = min(trim, (count - 1) // 2)
    found = reduced(TrimmedMean(trim), pieces)
    np.testing.assert_allclose(found, trimmed(stack, taken), rtol=1e-5, atol=1e-7)


@given(seed=seeds, count=counts, order=st.randoms(use_true_random=False))
@pytest.mark.parametrize("reduction", [Median(), TrimmedMean(2), MajoritySign()])
def test_the_robust_ones_do_not_depend_on_the_order(
    reduction: Reduction, seed: int, count: int, order: Any
) -> None:
    pieces = usual(seed, count)
    first = reduced(reduction, pieces)
    order.shuffle(pieces)
    np.testing.assert_array_equal(reduced(reduction, pieces), first)


@settings(max_examples=30)
@given(seed=seeds, count=st.integers(1, 5), at=st.integers(1, SIZE - 1))
@pytest.mark.parametrize(
    "reduction", [Mean(), Sum(), Median(), TrimmedMean(1), MajoritySign()], ids=lambda r: r.name
)
def test_pieces_of_a_shard_give_the_pieces_of_the_whole(
    reduction: Reduction, seed: int, count: int, at: int
) -> None:
    pieces = [odd_values(seed + i, SIZE) for i in range(count)]
    whole = reduced(reduction, pieces)
    low, high = ([p[cut] for p in pieces] for cut in (slice(0, at), slice(at, None)))
    parts = np.concatenate([reduced(reduction, low), reduced(reduction, high)])
    assert same_bits(parts, whole)


@pytest.mark.parametrize("reduction", [Mean(), Sum(), Median(), TrimmedMean(1), MajoritySign()])
def test_nan_is_not_hidden(reduction: Reduction) -> None:
    pieces = [np.array([1, value], F) for value in (0, 1, np.nan, 2, 3)]
    found = reduced(reduction, pieces)
    assert np.isnan(found).tolist() == [False, True]


def test_two_that_lie_of_seven_move_the_mean_and_not_the_median() -> None:
    honest = [np.array([1.0], F)] * 5
    pieces = [*honest, np.array([-10], F), np.array([-10], F)]
    assert reduced(Mean(), pieces)[0] < 0
    assert reduced(Median(), pieces)[0] == reduced(TrimmedMean(2), pieces)[0] == 1
    assert reduced(MajoritySign(), pieces)[0] == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BSP(reduce="max"), 'must be one of "mean", "sum", "median"'),  # type: ignore[arg-type]
        (lambda: BSP(reduce="trimmed_mean"), "trim is None"),
        (lambda: BSP(reduce="trimmed_mean", trim=0), "trim is 0"),
        (lambda: BSP(reduce="trimmed_mean", trim=True), "trim is True"),
        (lambda: BSP(reduce="median", trim=2), 'trim=2 is for reduce="trimmed_mean"'),
        (lambda: BSP(reduce="trimmed_mean", trim=2).check_workers(4), "nothing of 4 workers"),
    ],
)
def test_nonsense_is_refused_in_the_words_of_the_call(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_what_travels_names_the_same_reduction() -> None:
    for mode in (BSP(), BSP("sum"), BSP("median"), BSP("trimmed_mean", 2), BSP("majority_sign")):
        settings = mode.settings()
        found = reduction_from(settings["reduce"], settings.get("trim"))
        assert found is not None
        assert found.name == mode.reduce
    BSP("trimmed_mean", 2).check_workers(5)
    BSP().check_workers(1)
    assert reduction_from("max") is reduction_from(None) is None
    assert reduction_from("trimmed_mean", 0) is None
