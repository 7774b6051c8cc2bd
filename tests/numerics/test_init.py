"""Initial values: the same however a table is cut, and distributed as named."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.errors import ConfigError
from aiops.init import BLOCK, Constant, Initializer, Normal, Uniform, initializer_from

ALL = [
    Constant(0.25),
    Normal(std=0.1, mean=2.0, seed=7),
    Normal(std=0.0, mean=1.0),
    Uniform(-3.0, 5.0, seed=2**64 - 1),
]


@given(
    initializer=st.sampled_from(ALL),
    begin=st.integers(0, 3 * BLOCK),
    cuts=st.lists(st.integers(0, 2 * BLOCK), min_size=1, max_size=5),
)
def test_values_do_not_depend_on_how_the_range_is_cut(
    initializer: Initializer, begin: int, cuts: list[int]
) -> None:
    """Each server fills its own part; another number of servers must give the same table."""
    bounds = sorted({begin, *(begin + cut for cut in cuts)})
    whole = initializer.fill(begin, bounds[-1])
    parts = [initializer.fill(low, high) for low, high in pairwise(bounds)]
    assert whole.dtype == np.float32
    assert whole.size == bounds[-1] - begin
    assert b"".join(part.tobytes() for part in parts) == whole.tobytes()


@pytest.mark.parametrize("edge", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_cuts_at_the_edges_of_a_block(edge: int) -> None:
    normal = Normal(seed=3)
    both = np.concatenate([normal.fill(0, edge), normal.fill(edge, 3 * BLOCK)])
    assert both.tobytes() == normal.fill(0, 3 * BLOCK).tobytes()


def test_a_range_far_out_costs_no_more_than_its_block() -> None:
    """Keys go up to 2**64 - 1; the start of the table is never drawn."""
    end = 2**64 - 1
    assert Normal().fill(end - 5, end).size == 5


def test_normal_has_the_mean_and_the_spread_it_names() -> None:
    values = Normal(std=0.5, mean=-1.0, seed=1).fill(0, 400_000).astype(np.float64)
    assert abs(values.mean() + 1.0) < 5 * 0.5 / np.sqrt(values.size)
    assert abs(values.std() - 0.5) < 0.005
    assert np.unique(values).size > 0.9 * values.size / 2


def test_uniform_stays_inside_and_fills_its_interval() -> None:
    values = Uniform(-2.0, 6.0, seed=1).fill(0, 400_000).astype(np.float64)
    assert values.min() >= -2.0
    assert values.max() <= 6.0
    assert abs(values.mean() - 2.0) < 5 * (8.0 / np.sqrt(12.0)) / np.sqrt(values.size)
    assert abs(values.std() - 8.0 / np.sqrt(12.0)) < 0.02


def test_seeds_and_blocks_differ() -> None:
    """A key that ignored one of its halves would repeat itself."""
    first = Normal(seed=0).fill(0, 2 * BLOCK)
    other = Normal(seed=1).fill(0, 2 * BLOCK)
    assert not np.array_equal(first[:BLOCK], first[BLOCK:])
    assert abs(float(np.corrcoef(first, other)[0, 1])) < 0.02
    assert abs(float(np.corrcoef(first[:BLOCK], first[BLOCK:])[0, 1])) < 0.02


@pytest.mark.parametrize("initializer", ALL, ids=repr)
def test_kind_and_settings_are_enough_to_make_an_equal_one(initializer: Initializer) -> None:
    settings = initializer.settings()
    assert all(type(value) in (int, float) for value in settings.values())
    again = initializer_from(initializer.kind, settings)
    assert again == initializer
    assert again.fill(5, 50).tobytes() == initializer.fill(5, 50).tobytes()


@pytest.mark.parametrize("initializer", ALL, ids=repr)
def test_the_array_is_the_callers(initializer: Initializer) -> None:
    first = initializer.fill(0, 10)
    kept = first.copy()
    first += 1.0
    np.testing.assert_array_equal(initializer.fill(0, 10), kept)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Constant(float("nan")), "value"),
        (lambda: Constant(1e39), "float32"),
        (lambda: Normal(std=-0.1), "std"),
        (lambda: Normal(std=1e38), "std"),
        (lambda: Normal(mean=float("inf")), "mean"),
        (lambda: Normal(seed=-1), "seed"),
        (lambda: Normal(seed=2**64), "seed"),
        (lambda: Normal(seed=True), "seed"),
        (lambda: Uniform(1.0, 1.0), "high"),
        (lambda: Uniform(2.0, 1.0), "high"),
        (lambda: Uniform(-3e38, 3e38), "float32"),
        (lambda: initializer_from("glorot", {}), "constant, normal, uniform"),
        (lambda: initializer_from("uniform", {"low": 0.0}), "high"),
        (lambda: initializer_from("normal", {"scale": 0.0}), "scale"),
    ],
)
def test_a_bad_setting_is_named(make: Callable[[], Initializer], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(("begin", "end"), [(-1, 3), (4, 3)])
@pytest.mark.parametrize("initializer", ALL, ids=repr)
def test_an_impossible_range_is_refused(initializer: Initializer, begin: int, end: int) -> None:
    with pytest.raises(ValueError, match="range"):
        initializer.fill(begin, end)
