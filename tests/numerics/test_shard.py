"""A shard steps as plain numpy would, however the table is cut and the request is shaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.optim import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Add,
    Assign,
    Momentum,
    Optimizer,
    ProximalSGD,
    RMSProp,
    Schedule,
    Step,
    Steps,
    WarmUp,
)
from aiops.shards.reduction import Mean, Sum
from aiops.shards.shard import BLOCK_ELEMENTS, Selection, Shard, select, selected_elements
from aiops_protocol.key_range import Partition
from aiops_protocol.payload import Float32Array
from bits import odd_values, same_bits

F = np.float32
OPTIMIZERS = [
    SGD(lr=0.3),
    Momentum(lr=0.1),
    Momentum(lr=0.1, nesterov=True),
    Adam(),
    AdamW(),
    Adagrad(),
    RMSProp(),
    FTRL(l1=0.01, l2=0.1),
    ProximalSGD(lr=0.1, l1=0.01, l2=0.1),
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
            part.step(mine, Mean() if mean else Sum(), number)
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


@given(
    seed=seeds,
    shards=st.integers(1, 3),
    pushes=st.lists(
        st.one_of(
            st.tuples(st.integers(0, 11), st.integers(1, 12)),
            st.lists(st.integers(0, 11), min_size=1, max_size=5, unique=True),
        ),
        min_size=1,
        max_size=6,
    ),
)
@pytest.mark.parametrize("optimizer", [Adam(), AdamW(lr=0.1)])
def test_each_element_counts_its_own_steps(
    optimizer: Optimizer, shards: int, seed: int, pushes: list[tuple[int, int] | list[int]]
) -> None:
    """Pushes of ranges and of rows, over any number of shards, as if each element were alone."""
    rows, width = 12, BLOCK_ELEMENTS // 5
    size = rows * width
    start = odd_values(seed, size)
    parts = cut(size, shards, optimizer, start)
    counts, alone = [0] * rows, start.reshape(rows, width).copy()
    state = [{slot: np.zeros(width, F) for slot in optimizer.slots} for _ in range(rows)]
    for i, push in enumerate(pushes):
        chosen = (
            sorted(push)
            if isinstance(push, list)
            else list(range(push[0], min(rows, push[0] + push[1])))
        )
        gradient = odd_values(seed + 1 + i, size).reshape(rows, width)
        for row in chosen:
            counts[row] += 1
            optimizer.update(
                alone[row], gradient[row].copy(), state[row], counts[row], np.empty(width, F)
            )
        touched = np.concatenate([np.arange(row * width, (row + 1) * width) for row in chosen])
        for part in parts:
            mine = touched[(touched >= part.begin) & (touched < part.end)] - part.begin
            if mine.size:
                given_ = gradient.reshape(-1)[mine + part.begin]
                whole = isinstance(push, tuple)
                part.apply(slice(int(mine[0]), int(mine[-1]) + 1) if whole else mine, given_)
    assert same_bits(joined(parts), alone.reshape(-1))


def test_a_block_that_all_its_elements_have_caught_up_in_counts_once_again() -> None:
    """What was expanded for rows does not stay expanded, or slow, for ever."""
    shard = Shard(0, 4, Adam(), np.zeros(4, F))
    shard.apply(slice(0, 2), np.ones(2, F))
    assert [list(np.asarray(steps)) for steps in shard._steps] == [[1, 1, 0, 0]]
    shard.apply(slice(2, 4), np.ones(2, F))
    shard.apply(slice(0, 4), np.ones(4, F))
    assert shard._steps == [2]


def test_a_schedule_goes_by_the_furthest_clock_and_never_back() -> None:
    shard = Shard(0, 1, SGD(lr=Schedule(1.0, Step(every=10, times=0.5))), np.zeros(1, F))
    seen = []
    for clock in (0, 9, 10, 3, 25):
        before = float(shard.values[0])
        shard.apply(slice(0, 1), np.ones(1, F), clock)
        seen.append(before - float(shard.values[0]))
    assert seen == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_a_schedule_goes_by_rounds_where_there_are_some() -> None:
    shard = Shard(0, 1, SGD(lr=Schedule(1.0, WarmUp(4))), np.zeros(1, F))
    for number in (1, 2, 5):
        shard.step([np.ones(1, F)], Sum(), number)
    assert shard.values[0] == -(0.25 + 0.5 + 1.0)


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
    shard.step([nothing], Mean(), 1)
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
        step: Steps,
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
    with pytest.raises(ZeroDivisionError):
        shard.step([np.full(size, 0.0, F), np.arange(size, dtype=F)], Sum(), 3)
    assert (shard.values == 3).all()
    assert (shard.state["seen"] == 2).all()
