"""Optimizers on the rows of sparse tables: the textbook, and rows cut to a norm."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiops
from aiops.errors import ConfigError
from aiops.init import Constant
from aiops.optim import SGD, Adam, AdamW, Optimizer
from aiops.optim.clipping import refuse_row_limit
from aiops.roles.memory import Budget
from aiops.shards.reduction import Sum
from aiops.shards.sparse import SparseShard
from aiops.shards.sparse.shard import KeyedRows
from aiops_protocol.key_list import KEY_END
from aiops_protocol.payload import Float32Array
from textbook import ALL, reference

F = np.float32


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_200_steps_of_rows_equal_the_textbook_over_one_to_three_shards(
    optimizer: Optimizer,
) -> None:
    """Of 30 rows a third is pushed in each step; each row is stepped as if it were alone."""
    width, rng = 3, np.random.default_rng(8)
    keys = np.sort(rng.choice(2**32, 30, replace=False).astype(np.uint64))
    start = np.full(width, 0.25, F)
    pushed: dict[int, list[Float32Array]] = {int(key): [] for key in keys}
    bounds = [[0, KEY_END], [0, int(keys[11]), KEY_END], [0, int(keys[3]), int(keys[20]), KEY_END]]
    shards = [
        [ranged(low, high, width, optimizer, 0.25) for low, high in pairwise(cut)] for cut in bounds
    ]
    for step in range(200):
        chosen = np.sort(rng.choice(keys, 10, replace=False))
        rows = rng.standard_normal((10, width), dtype=F)
        for key, row in zip(chosen, rows, strict=True):
            pushed[int(key)].append(row)
        for parts in shards:
            for part in parts:
                mine = (chosen >= part.begin) & (chosen < part.end)
                if not mine.any():
                    continue
                if step % 2:
                    part.apply(chosen[mine], rows[mine].reshape(-1))
                else:
                    part.step([KeyedRows(chosen[mine], rows[mine])], Sum(), step + 1)
    alone = []
    for gradients_ in pushed.values():
        row, state = start.copy(), {slot: np.zeros(width, F) for slot in optimizer.slots}
        for number, gradient in enumerate(gradients_, start=1):
            optimizer.update(row, gradient.copy(), state, number, np.empty(width, F))
        alone.append(row)
        if not isinstance(optimizer, Adam | AdamW):  # those round their corrections once
            np.testing.assert_array_equal(row, reference(optimizer, start, gradients_, F))
        wide = reference(optimizer, start, gradients_, np.float64)
        np.testing.assert_allclose(row, wide, rtol=2e-4, atol=2e-4)
    for parts in shards:
        got = [part.read(keys[(keys >= part.begin) & (keys < part.end)]) for part in parts]
        assert np.concatenate(got).tobytes() == np.concatenate(alone).tobytes()


def ranged(begin: int, end: int, width: int, optimizer: Optimizer, value: float) -> SparseShard:
    return SparseShard(
        begin,
        end,
        width,
        hashed=False,
        optimizer=optimizer,
        initializer=Constant(value),
        memory=Budget(1 << 40),
    )


@given(
    norms=st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 300.0, np.nan, np.inf]), min_size=1),
    width=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_row_is_cut_to_its_norm_and_to_nobody_elses(
    norms: list[float], width: int, seed: int
) -> None:
    rows = np.random.default_rng(seed).standard_normal((len(norms), width), dtype=F)
    rows *= np.array(norms, F)[:, None]
    ours = ranged(0, KEY_END, width, SGD(lr=1.0, clip_row=1.0), 0.0)
    ours.apply(np.arange(len(norms), dtype=np.uint64), rows.reshape(-1).copy())
    got = -ours.read(np.arange(len(norms), dtype=np.uint64)).reshape(-1, width)
    for row, cut in zip(rows, got, strict=True):
        norm = float(np.sqrt(np.square(row.astype(np.float64)).sum()))
        wanted = row * F(1.0 / norm) if 1.0 < norm < np.inf else row
        np.testing.assert_allclose(cut, wanted, rtol=1e-6)
        alone = ranged(0, KEY_END, width, SGD(lr=1.0, clip_row=1.0), 0.0)
        alone.apply(np.zeros(1, np.uint64), row.copy())
        assert (-alone.read(np.zeros(1, np.uint64))).tobytes() == cut.tobytes()


async def test_rows_are_cut_in_sparse_tables_and_refused_in_dense_ones() -> None:
    optimizer = Adam(lr=0.1, clip_row=0.5)
    for where in ("table w", "use", "LocalSGD: inner"):
        with pytest.raises(ConfigError, match=f"{where}: Adam has clip_row=0.5"):
            refuse_row_limit(optimizer, where)
    with pytest.raises(ConfigError, match="clip_row is 0"):
        SGD(lr=1.0, clip_row=0.0)
    async with aiops.LocalCluster(2) as cluster, cluster.connect() as worker:
        with pytest.raises(ConfigError, match="clip_by_global_norm on the worker"):
            await worker.table("w", (4, 2), optimizer=SGD(lr=1.0, clip_row=1.0))
        table = await worker.sparse_table("e", 2, optimizer=SGD(lr=1.0, clip_row=5.0))
        async for _ in worker.steps(1):
            await table.push([7, 9], np.array([[3, 4], [30, 40]], F))
        assert (await table.pull([7, 9])).tolist() == [[-3, -4], [-3, -4]]
