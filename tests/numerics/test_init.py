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
from aiops_protocol.key_list import mix

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


# --- rows of sparse tables ---


def word(seed: int, key: int, pair: int) -> int:
    """The 64 random bits of two columns of a row, in plain integers."""

    def scramble(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    def mixed(number: int) -> int:
        return ~scramble(~number % 2**64) % 2**64

    start = scramble(mixed(key) ^ mixed(seed))
    return scramble((start + (pair + 1) * 0x9E3779B97F4A7C15) % 2**64)


@given(
    keys=st.lists(st.integers(0, 2**64 - 2), unique=True, min_size=1, max_size=5),
    width=st.integers(1, 7),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_row_follows_from_seed_and_key(keys: list[int], width: int, seed: int) -> None:
    """Whatever it is asked for together with, so that servers and orders make no difference."""
    words = mix(np.array(keys, np.uint64))
    uniform = Uniform(-1.0, 3.0, seed=seed).fill_rows(words, width)
    normal = Normal(std=2.0, mean=1.0, seed=seed).fill_rows(words, width)
    for key, even, bell in zip(keys, uniform, normal, strict=True):
        for column in range(width):
            bits = word(seed, key, column // 2)
            high, low = bits >> 32, bits % 2**32
            mine = low if column % 2 else high
            expected = np.float32((mine >> 8) * 2.0**-24) * np.float32(4) + np.float32(-1)
            assert even[column] == expected
            radius, angle = np.sqrt(-2 * np.log((high + 1) / 2**32)), 2 * np.pi * low / 2**32
            standard = radius * (np.sin(angle) if column % 2 else np.cos(angle))
            assert abs(bell[column] - (2 * standard + 1)) <= 1e-6 * (1 + abs(standard))
    assert (Constant(4.0).fill_rows(words, width) == 4).all()


def test_rows_are_spread_as_their_distribution_says() -> None:
    words = mix(np.arange(40_000, dtype=np.uint64))
    normal = Normal(std=1.0, seed=7).fill_rows(words, 5)
    assert abs(normal.mean()) < 0.01
    assert abs(normal.std() - 1) < 0.01
    assert abs((normal**4).mean() - 3) < 0.1
    assert abs(np.corrcoef(normal.T) - np.eye(5)).max() < 0.02
    uniform = Uniform(0.0, 1.0, seed=7).fill_rows(words, 4)
    counts, _ = np.histogram(uniform, bins=10, range=(0, 1))
    assert abs(counts - 16_000).max() < 600
    assert abs(np.corrcoef(uniform.T) - np.eye(4)).max() < 0.02
    other = Normal(std=1.0, seed=8).fill_rows(words, 5)
    assert abs(np.corrcoef(normal[:, 0], other[:, 0])[0, 1]) < 0.02
