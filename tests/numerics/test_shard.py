"""A shard steps as plain numpy would, however the table is cut and the request is shaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.optim import SGD, Adam, Add, Assign, Momentum, Optimizer
from aiops.shard import BLOCK_ELEMENTS, Selection, Shard, select, selected_elements
from aiops_protocol.key_range import Partition
from aiops_protocol.payload import Float32Array
from bits import odd_values, same_bits

F = np.float32
OPTIMIZERS = [
    SGD(lr=0.3),
    Momentum(lr=0.1),
    Momentum(lr=0.1, nesterov=True),
    Adam(),
    Add(),
    Assign(),
]
optimizers = st.sampled_from(OPTIMIZERS)
seeds = st.integers(0, 2**32 - 1)
# Around nothing, one element, and the bounds of blocks.
sizes = st.sampled_from(
    [0, 1, 2, 15, 16, 17, 100, BLOCK_ELEMENTS - 1, BLOCK_ELEMENTS, BLOCK_ELEMENTS + 1, 150_000]
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def naive(
    optimizer: Optimizer, values: Float32Array, gradients: Sequence[Float32Array]
) -> Float32Array:
    """All elements at once, in one array."""
    values = values.copy()
    state = {slot: np.zeros_like(values) for slot in optimizer.slots}
    for step, gradient in enumerate(gradients, start=1):
        optimizer.update(values, gradient.copy(), state, step, np.empty_like(values))
    return values


def cut(size: int, shards: int, optimizer: Optimizer, values: Float32Array) -> list[Shard]:
    return [
        Shard(part.begin, part.end, optimizer, values[part.begin : part.end].copy())
        for _, part in Partition.balanced(size, shards).parts
    ]


def joined(shards: Sequence[Shard]) -> Float32Array:
    return np.concatenate([shard.values for shard in shards])


def ranges_of(pairs: Sequence[tuple[int, int]]) -> bytes:
    return np.asarray(pairs, "<u8").tobytes()


@given(optimizer=optimizers, size=sizes, shards=st.integers(1, 5), seed=seeds)
def test_whole_pushes_equal_plain_numpy_over_any_number_of_shards(
    optimizer: Optimizer, size: int, shards: int, seed: int
) -> None:
    values = odd_values(seed, size)
    gradients = [odd_values(seed + 1 + i, size) for i in range(3)]
    parts = cut(size, shards, optimizer, values)
    for gradient in gradients:
        for part in parts:
            part.apply(slice(0, part.size), gradient[part.begin : part.end].copy())
    assert same_bits(joined(parts), naive(optimizer, values, gradients))


@given(optimizer=optimizers, shards=st.integers(1, 5), workers=st.integers(1, 5), seed=seeds)
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("size", [1, 33, BLOCK_ELEMENTS, 150_000])
def test_a_round_is_a_left_fold_in_the_order_given_and_one_division(
    optimizer: Optimizer, size: int, shards: int, workers: int, seed: int, mean: bool
) -> None:
    values = odd_values(seed, size)
    rounds = [[odd_values(seed + 10 * r + w + 1, size) for w in range(workers)] for r in range(2)]
    parts = cut(size, shards, optimizer, values)
    totals = []
    for number, contributions in enumerate(rounds, start=1):
        for part in parts:
            mine = [c[part.begin : part.end] for c in contributions]
            part.step(mine, workers if mean else None, number)
        total = contributions[0].copy()
        for contribution in contributions[1:]:
            total = total + contribution
        totals.append(np.divide(total, F(workers)) if mean else total)
    assert same_bits(joined(parts), naive(optimizer, values, totals))


@given(
    optimizer=optimizers,
    seed=seeds,
    pairs=st.lists(
        st.tuples(st.integers(0, 140_000), st.integers(1, 3000)), min_size=1, max_size=9
    ),
)
def test_many_ranges_step_exactly_the_elements_they_name(
    optimizer: Optimizer, seed: int, pairs: list[tuple[int, int]]
) -> None:
    size, offset = 150_000, 64
    disjoint: list[tuple[int, int]] = []
    for begin, length in sorted(pairs):
        begin = max(begin, disjoint[-1][1] if disjoint else 0)
        disjoint.append((begin, begin + length))
    values, gradient = odd_values(seed, size), odd_values(seed + 1, size)
    shard = Shard(offset, offset + size, optimizer, values.copy())
    raw = ranges_of([(begin + offset, end + offset) for begin, end in disjoint])
    where = select(0, 0, raw, offset)
    touched = np.concatenate([np.arange(begin, end) for begin, end in disjoint])
    assert selected_elements(where) == touched.size
    shard.apply(where, gradient[touched])
    expected = values.copy()
    expected[touched] = naive(optimizer, values, [gradient])[touched]
    assert same_bits(shard.values, expected)
    assert same_bits(shard.read(where), expected[touched])


@given(seed=seeds, pushes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 10)), max_size=6))
def test_partial_pushes_step_the_blocks_that_they_touch(
    seed: int, pushes: list[tuple[int, int]]
) -> None:
    """With Adam a block's step number counts how often the block was stepped."""
    tenth, size = BLOCK_ELEMENTS // 5, 2 * BLOCK_ELEMENTS
    shard = Shard(0, size, Adam(), np.zeros(size, F))
    values, mean, square = (np.zeros(size, F) for _ in range(3))
    steps = [0, 0]
    for i, (first, count) in enumerate(pushes):
        begin, end = first * tenth, min((first + count) * tenth, size)
        gradient = odd_values(seed + i, end - begin)
        shard.apply(slice(begin, end), gradient.copy())
        for block in (0, 1):
            low = max(begin, block * BLOCK_ELEMENTS)
            high = min(end, (block + 1) * BLOCK_ELEMENTS)
            if low < high:
                steps[block] += 1
                state = {"mean": mean[low:high], "square": square[low:high]}
                piece = gradient[low - begin : high - begin].copy()
                Adam().update(values[low:high], piece, state, steps[block], np.empty(size, F))
    assert same_bits(shard.values, values)


@pytest.mark.parametrize("size", [4, BLOCK_ELEMENTS + 4])
def test_a_gradient_that_may_not_be_written_is_left_alone(size: int) -> None:
    gradient = odd_values(1, size)
    gradient.flags.writeable = False
    before = gradient.copy()
    shard = Shard(0, size, SGD(lr=0.5), np.ones(size, F))
    shard.apply(slice(0, size), gradient)
    assert same_bits(gradient, before)
    assert same_bits(shard.values, np.ones(size, F) - F(0.5) * before)


def test_an_empty_shard_takes_everything_and_does_nothing() -> None:
    shard = Shard(0, 0, Adam(), np.empty(0, F))
    nothing = np.empty(0, F)
    shard.apply(slice(0, 0), nothing)
    shard.write(slice(0, 0), nothing)
    shard.step([nothing], 1, 1)
    assert shard.read(slice(0, 0)).size == shard.size == 0


@dataclass(frozen=True, slots=True)
class Brittle(Optimizer):
    """Changes everything, then fails where a gradient is 13."""

    name: ClassVar[str] = "brittle"
    slots: ClassVar[tuple[str, ...]] = ("seen",)

    def update(
        self,
        values: Float32Array,
        gradient: Float32Array,
        state: Mapping[str, Float32Array],
        step: int,
        scratch: Float32Array,
    ) -> None:
        values += step
        state["seen"][:] = step
        if (gradient == 13).any():
            raise ZeroDivisionError("thirteen")


@pytest.mark.parametrize(
    "where", [slice(0, BLOCK_ELEMENTS + 9), slice(5, 9), np.array([1, 3, BLOCK_ELEMENTS + 2])]
)
def test_when_an_optimizer_raises_nothing_has_changed(where: Selection) -> None:
    """Also in blocks that were stepped already: the failed one is the last of several."""
    size = BLOCK_ELEMENTS + 9
    shard = Shard(0, size, Brittle(), np.zeros(size, F))
    shard.apply(slice(0, size), np.zeros(size, F))
    gradient = np.zeros(selected_elements(where), F)
    gradient[-1] = 13
    with pytest.raises(ZeroDivisionError):
        shard.apply(where, gradient)
    assert (shard.values == 1).all()
    assert (shard.state["seen"] == 1).all()
    shard.apply(slice(0, size), np.zeros(size, F))
    assert (shard.values == 3).all(), "the step number is that of the second step"
