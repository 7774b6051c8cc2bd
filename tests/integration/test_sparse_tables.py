"""Rows of a sparse table behave as entries of a dictionary, wherever they are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import aiops
from aiops import ASP, BSP, SSP, Quorum
from aiops.consistency import Consistency
from aiops.errors import ConfigError, RemoteError, TableMismatch, UsageError
from aiops.init import Normal
from aiops.optim import FTRL, SGD, Adam, Add, Momentum, Optimizer
from aiops_cli.status import picture
from aiops_protocol.limits import ROW_WIDTH_MAX
from aiops_protocol.payload import Float32Array
from local_jobs import SyncJob, local_job, same_bits, together
from row_model import RowModel, summed

F = np.float32
BOTH = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


def gradients(count: int, width: int, *seed: int) -> Float32Array:
    return np.random.default_rng([count, width, *seed]).normal(size=(count, width)).astype(F)


# --- one worker, any sequence of calls ---


@pytest.fixture(scope="module", params=[1, 2, 3])
def job(request: pytest.FixtureRequest) -> Iterator[SyncJob]:
    with SyncJob(servers=request.param) as job:
        yield job


any_key = st.integers(0, 30) | st.integers(0, 2**64 - 2) | st.just(2**63)
key_lists = st.lists(any_key, max_size=30)
kinds = st.sampled_from([list, np.uint64])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(st.tuples(st.sampled_from(["push", "assign", "pull"]), key_lists, kinds)),
    optimizer=st.sampled_from([SGD(lr=0.3), Adam(lr=0.1), FTRL(lr=0.1, l1=0.1)]),
    layout=st.sampled_from(["hashed", "range"]),
    width=st.sampled_from([1, 4]),
)
def test_calls_have_the_effect_they_have_on_a_dictionary(
    job: SyncJob, calls: list[Any], optimizer: Optimizer, layout: str, width: int
) -> None:
    init = Normal(std=1.0, seed=5)
    table = job.sparse_table(
        width, init=init, optimizer=optimizer, consistency=ASP(), layout=layout
    )
    model = RowModel(width, optimizer, init)
    for number, (verb, keys, kind) in enumerate([*calls, ("pull", [1, 2, 2, 2**64 - 2], list)]):
        given_keys = keys if kind is list else np.array(keys, kind)
        rows = gradients(len(keys), width, number)
        if verb == "push":
            job.run(table.push(given_keys, rows))
            model.push(keys, rows)
        elif verb == "assign" and len(set(keys)) == len(keys):
            job.run(table.assign(given_keys, rows))
            model.assign(keys, rows)
        else:
            pulled = job.run(table.pull(given_keys))
            # Repeated rows are summed pairwise when there are many: the last bit may differ.
            np.testing.assert_allclose(pulled, model.pull(keys), rtol=1e-5, atol=1e-6)


# --- many workers, rounds, servers ---


@BOTH
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize(
    "optimizer", [SGD(lr=0.3), Momentum(lr=0.1), Adam(lr=0.01)], ids=lambda o: o.name
)
async def test_rounds_are_the_rank_ordered_mean_of_each_row(
    servers: int, optimizer: Optimizer
) -> None:
    """The bits of every version are those of one process with a dictionary, for any number of
    servers; a worker whose keys lie on one server only counts on all of them."""
    steps, workers, width = 6, 3, 5
    init = Normal(std=1.0, seed=1)
    model = RowModel(width, optimizer, init)
    asked = np.array([*range(40), 2**64 - 2], np.uint64)
    versions = [model.pull(asked)]
    pushed: dict[tuple[int, int], list[tuple[list[int], Float32Array]]] = {}
    for step in range(steps):
        totals: dict[int, Float32Array] = {}
        for rank in range(workers):
            rng = np.random.default_rng([step, rank])
            pushes = []
            for number in range(rank + 1):
                keys = rng.choice(asked, [1, 7, 30][rank], replace=False).tolist()
                pushes.append((keys, gradients(len(keys), width, step, rank, number)))
            pushed[step, rank] = pushes
            together_ = [key for keys, _ in pushes for key in keys]
            mine = summed(together_, np.concatenate([rows for _, rows in pushes]))
            for key, row in mine.items():
                totals[key] = totals[key] + row if key in totals else row
        for key, total in totals.items():
            model.step(key, total / F(workers), step)
        versions.append(model.pull(asked))

    async def train(worker: aiops.Worker) -> None:
        table = await worker.sparse_table("e", width, init=init, optimizer=optimizer)
        async for step in worker.steps(steps):
            assert same_bits(await table.pull(asked), versions[step])
            for keys, rows in pushed[step, worker.rank]:
                result = await table.push(keys, rows)
                assert result.status == "applied"
            await table.pull(asked[:3])
        assert same_bits(await table.pull(asked), versions[steps])
        assert table.version == steps

    async with local_job(servers=servers) as cluster:
        await cluster.run(train, workers=workers)


async def test_large_calls_travel_in_segments_that_cut_no_row() -> None:
    """Rows that are no divisor of a segment; more keys than one frame may name, by far."""
    async with local_job(servers=2) as cluster, cluster.connect() as worker:
        for width, count in [(1, 200_000), (37, 15_000), (ROW_WIDTH_MAX, 9)]:
            table = await worker.sparse_table(
                f"w{width}", width, optimizer=Add(), consistency=ASP(), init=0.5
            )
            keys = np.random.default_rng(width).permutation(count)
            rows = np.arange(count, dtype=F)[:, None] + np.zeros(width, F)
            expected = np.full((count, width), 0.5, F)
            for order in (keys, keys[::-1]):
                await table.push(order, rows)
                expected[order] += rows
            out = np.empty((count, width), F)
            assert (await table.pull(np.arange(count), out=out)) is out
            assert same_bits(out, expected)


@BOTH
async def test_concurrent_workers_lose_and_double_nothing() -> None:
    async def train(worker: aiops.Worker) -> None:
        table = await worker.sparse_table("n", 2, optimizer=Add(), consistency=ASP())
        rng = np.random.default_rng(worker.rank)
        for _ in range(20):
            keys = rng.integers(0, 500, 200)
            await together(table.push(part, np.ones((len(part), 2), F)) for part in (keys, keys))
        await worker.barrier("pushed")
        counts = await table.pull(np.arange(500))
        assert counts.sum() == 3 * 20 * 2 * 200 * 2

    async with local_job(servers=2) as cluster:
        await cluster.run(train, workers=3)


@BOTH
async def test_a_cancelled_push_happens_whole_or_not_at_all() -> None:
    keys = np.arange(100_000)
    async with local_job(servers=2) as cluster, cluster.connect() as worker:
        table = await worker.sparse_table("c", 4, optimizer=Add(), consistency=ASP())
        for turns in range(4):
            push = asyncio.ensure_future(table.push(keys, np.ones((keys.size, 4), F)))
            for _ in range(turns):
                await asyncio.sleep(0)
            push.cancel()
            await asyncio.wait([push])
        await worker.tick()
        counts = await table.pull(keys)
        assert (counts == counts[0, 0]).all()


# --- what is refused ---


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([-1], "-1 is no key"),
        ([2**64 - 1], "2\\*\\*64-1 is no key"),
        (np.array([3, 2**64 - 1], np.uint64), "2\\*\\*64-1 is no key"),
        ([2**64], "integers from 0"),
        ([True, False], r"not bool \(numpy.flatnonzero\(mask\)"),
        (np.array([True]), "not bool"),
        ([1.5], "must be integers"),
        (np.ones(3, F), "must be integers"),
        (["a"], "must be integers"),
        ([[1, 2]], "one dimension"),
        ([[1], [2, 3]], "different lengths"),
        (5, "one dimension"),
    ],
)
async def test_what_is_no_key_is_an_error_of_the_call(keys: Any, words: str) -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.sparse_table("t", 2, optimizer=Add(), consistency=ASP())
        rows = np.ones((1, 2), F)
        for call in (table.pull(keys), table.push(keys, rows), table.assign(keys, rows)):
            with pytest.raises(UsageError, match=words):
                await call


async def test_wrong_arrays_and_repeated_assignments_change_nothing() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.sparse_table("t", 2, optimizer=Add(), consistency=ASP())
        wrong: list[tuple[Any, str]] = [
            (np.ones((3, 1), F), "shape"),
            (np.ones((2, 2), F), "shape"),
            (np.ones((3, 2)), "float64"),
            (np.full((3, 2), np.nan, F), "nan"),
        ]
        for array, words in wrong:
            with pytest.raises(UsageError, match=words):
                await table.push([1, 2, 3], array)
        with pytest.raises(UsageError, match="named twice"):
            await table.assign([1, 2, 1], np.ones((3, 2), F))
        with pytest.raises(UsageError, match="out has shape"):
            await table.pull([1], out=np.empty((2, 2), F))
        assert (await table.pull([])).shape == (0, 2)
        assert (await table.push([], np.empty((0, 2), F))).version == 0
        assert not (await table.pull([1, 2, 3])).any()
        assert cluster.servers[0]._core.sparse_tables() == {"t": (0, 0)}
        await worker.finish()
        with pytest.raises(UsageError, match="finished"):
            await table.push([1], np.ones((1, 2), F))


async def test_settings_that_cannot_be() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"width": 0}, "width is 0"),
            ({"width": ROW_WIDTH_MAX + 1}, "1 to 65536"),
            ({"width": 2, "layout": "sorted"}, "layout"),
            ({"width": 2, "init": np.zeros(2, F)}, "init is an array"),
            ({"width": 2, "optimizer": "sgd"}, "optimizer"),
        ]
        for settings_, words in wrong:
            with pytest.raises((ConfigError, UsageError), match=words):
                await worker.sparse_table("t", **settings_)
        with pytest.raises(UsageError, match="no table"):
            await worker.sparse_table("t")
        table = await worker.sparse_table("t", 2)
        assert await worker.sparse_table("t") is table
        with pytest.raises(TableMismatch, match="layout"):
            await worker.sparse_table("t", 2, layout="range")
        with pytest.raises(UsageError, match="sparse one"):
            await worker.table("t")
        await worker.table("d", (2,))
        with pytest.raises(UsageError, match="dense one"):
            await worker.sparse_table("d")


async def test_the_other_kind_of_a_name_is_refused_by_its_kind() -> None:
    """Also by a worker that has not opened it, and whatever else differs."""
    sparse = "a sparse table of width 4 and layout hashed"
    dense = r"a dense table of shape \[3, 2\]"
    async with local_job() as cluster, cluster.connect() as first, cluster.connect() as second:
        await first.sparse_table("s", 4, optimizer=FTRL(lr=0.1), consistency=ASP())
        await first.table("d", (3, 2))
        for worker in (first, second):
            words = f"^table s exists .*: it is {sparse}, not {dense}; .* worker.sparse_table$"
            with pytest.raises(TableMismatch, match=words):
                await worker.table("s", (3, 2))
            words = f"^table d exists .*: it is {dense}, not {sparse}; .* worker.table$"
            with pytest.raises(TableMismatch, match=words):
                await worker.sparse_table("d", 4, optimizer=FTRL(lr=0.1), consistency=ASP())


async def test_a_server_without_memory_refuses_new_rows_and_lives_on() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        budget = cluster.servers[0]._core._budget
        budget.limit = budget.taken + 1_000_000
        for consistency in (ASP(), BSP()):
            table = await worker.sparse_table(
                consistency.mode, 16, optimizer=Add(), consistency=consistency
            )
            await table.push([1], np.ones((1, 16), F))
            with pytest.raises(RemoteError, match="memory"):
                await table.push(np.arange(100, 20_100), np.ones((20_000, 16), F))
            await worker.tick()
            assert (await table.pull([1]) == 1).all()


async def test_status_tells_rows_and_bytes() -> None:
    async with local_job(servers=2) as cluster, cluster.connect() as worker:
        table = await worker.sparse_table("emb", 8, optimizer=Add(), consistency=ASP())
        await table.push(np.arange(5_000), np.ones((5_000, 8), F))
        for server in cluster.servers:
            assert server._core.sparse_tables()["emb"][1] == server._core.memory_bytes
            server._report()
        while True:
            (shown,) = cluster.status()["tables"]
            if sum(part["rows"] for part in shown["ranges"]) == 5_000:
                break
            await asyncio.sleep(0)
        assert shown["layout"] == "hashed"
        for part, server in zip(shown["ranges"], cluster.servers, strict=True):
            assert abs(part["rows"] - 2_500) < 300
            assert part["bytes"] == server._core.memory_bytes
        assert f"{shown['ranges'][0]['rows']} rows" in shown_tables(cluster.status())


def shown_tables(document: dict[str, Any]) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(picture(document))
    return captured.get()


@pytest.mark.parametrize(
    ("consistency", "expected"),
    [
        (SSP(staleness=2), [1, 3]),
        (Quorum(minimum=3, grace_s=5.0), [1 / 3, 1]),
        (BSP(reduce="median"), [0, 1]),
        (BSP(reduce="trimmed_mean", trim=1), [0, 1]),
        (BSP(reduce="majority_sign"), [1, 1]),
        (BSP(reduce="sum"), [1, 3]),
    ],
    ids=str,
)
async def test_every_rule_does_with_rows_what_it_does_with_elements(
    consistency: Consistency, expected: list[float]
) -> None:
    """Of three workers one has pushed row 1, all have pushed row 2; a dense table beside it."""
    steps = 4

    async def train(worker: aiops.Worker) -> tuple[Float32Array, Float32Array]:
        rows = await worker.sparse_table("r", 2, optimizer=Add(), consistency=consistency)
        dense = await worker.table("d", (2, 2), optimizer=Add(), consistency=consistency)
        keys = [1, 2] if worker.rank == 0 else [2]
        async for _ in worker.steps(steps):
            await rows.pull(keys)
            await dense.pull()
            await rows.push(keys, np.ones((len(keys), 2), F))
            await dense.push(np.array([[worker.rank == 0] * 2, [1, 1]], F))
        await worker.barrier("pushed")
        await worker.finish()
        return await rows.pull([1, 2]), await dense.pull()

    async with local_job(servers=2) as cluster:
        for rows, dense in await cluster.run(train, workers=3):
            np.testing.assert_allclose(rows[:, 0], np.array(expected) * steps, rtol=1e-6)
            assert same_bits(rows, dense)
