"""Training gives the bits that one process with plain numpy would give."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP
from aiops.consistency import Consistency
from aiops.optim import FTRL, SGD, Adam, Add, Cosine, Momentum, Optimizer, Schedule, WarmUp
from aiops_protocol.payload import Float32Array
from local_jobs import local_job, random_array, rank_ordered_mean, same_bits, together

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

SHAPE = (37, 11)  # 407 elements: no cut at a multiple of 16 falls on a row


def start() -> Float32Array:
    return random_array(SHAPE, 99)


@pytest.mark.parametrize("consistency", [BSP(), ASP(), BSP(reduce="sum")], ids=str)
async def test_one_worker_is_plain_sgd_over_100_steps(consistency: Consistency) -> None:
    """Whatever the rule: with one worker there is nobody to wait for or to average with."""
    expected = start()
    for step in range(100):
        expected = expected - np.float32(0.1) * random_array(SHAPE, step)
    async with local_job(servers=2) as cluster, cluster.connect() as worker:
        table = await worker.table(
            "w", SHAPE, init=start(), optimizer=SGD(lr=0.1), consistency=consistency
        )
        async for step in worker.steps(100):
            await table.push(random_array(SHAPE, step))
        assert same_bits(await table.pull(), expected)


def reference(
    optimizer: Optimizer, workers: int, steps: int, *, mean: bool = True
) -> list[Float32Array]:
    """Every version of the table, by one process."""
    values = start().reshape(-1)
    state = {slot: np.zeros(values.size, np.float32) for slot in optimizer.slots}
    versions = [values.copy()]
    for step in range(steps):
        gradients = [random_array(SHAPE, step, rank).reshape(-1) for rank in range(workers)]
        total = rank_ordered_mean(gradients, workers if mean else None)
        optimizer.at(step).update(values, total, state, step + 1, np.empty_like(values))
        versions.append(values.copy())
    return versions


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize(
    ("optimizer", "reduce"),
    [
        (SGD(lr=0.3), "mean"),
        (SGD(lr=0.3), "sum"),
        (Momentum(lr=0.1, momentum=0.9, nesterov=True), "mean"),
        (Adam(lr=0.01), "mean"),
        (FTRL(lr=0.1, l1=0.1), "mean"),
        (Momentum(lr=Schedule(0.1, WarmUp(3), Cosine(6))), "mean"),
    ],
    ids=["sgd-mean", "sgd-sum", "momentum", "adam", "ftrl", "schedule"],
)
async def test_four_workers_are_the_rank_ordered_mean(
    servers: int, optimizer: Optimizer, reduce: str
) -> None:
    """Every worker sees every version, and the number of servers does not show."""
    steps = 12
    versions = reference(optimizer, 4, steps, mean=reduce == "mean")

    async def train(worker: aiops.Worker) -> None:
        table = await worker.table(
            "w",
            SHAPE,
            init=start(),
            optimizer=optimizer,
            consistency=BSP(reduce=reduce),  # type: ignore[arg-type]  # "mean" or "sum"
        )
        async for step in worker.steps(steps):
            values = await table.pull()
            assert same_bits(values.reshape(-1), versions[step])
            await asyncio.sleep(0 if (worker.rank + step) % 3 else 0.001)  # vary who comes first
            await table.push(random_array(SHAPE, step, worker.rank))
        assert same_bits((await table.pull()).reshape(-1), versions[steps])

    async with local_job(servers) as cluster:
        await cluster.run(train, workers=4)


@pytest.mark.parametrize("servers", [1, 2, 3])
async def test_rows_that_are_pushed_apart_step_as_if_each_were_alone(servers: int) -> None:
    """Adam's correction by each row's own steps, the rate by the worker's clock, at any cut."""
    optimizer = Adam(lr=Schedule(0.1, WarmUp(2), Cosine(8)))
    expected, counts = start(), [0] * len(start())
    state = {slot: np.zeros(SHAPE, np.float32) for slot in optimizer.slots}
    async with local_job(servers) as cluster, cluster.connect() as worker:
        table = await worker.table("w", SHAPE, init=start(), optimizer=optimizer, consistency=ASP())
        async for step in worker.steps(6):
            for push, rows in enumerate([[0, 3 * step, 36], range(step, 30, 7), None]):
                chosen = np.unique(np.arange(SHAPE[0]) if rows is None else rows)
                gradient = random_array((len(chosen), SHAPE[1]), step, push)
                await table.push(gradient, None if rows is None else chosen)
                for i, row in enumerate(chosen):
                    counts[row] += 1
                    optimizer.at(step).update(
                        expected[row],
                        gradient[i].copy(),
                        {slot: array[row] for slot, array in state.items()},
                        counts[row],
                        np.empty(SHAPE[1], np.float32),
                    )
        assert same_bits(await table.pull(), expected)


async def test_linear_regression_is_theta_minus_lr_times_gradient() -> None:
    features, targets = random_array((64, 5), 1), random_array((64,), 2)
    lr = np.float32(0.05)

    def gradient(theta: Float32Array) -> Float32Array:
        return (features.T @ (features @ theta - targets) / np.float32(64)).astype(
            np.float32, copy=False
        )

    expected = np.zeros(5, np.float32)
    async with local_job() as cluster, cluster.connect() as worker:
        theta = await worker.table("theta", 5, optimizer=SGD(lr=0.05))
        async for _ in worker.steps(50):
            await theta.push(gradient(await theta.pull()))
            expected = expected - lr * gradient(expected)
        assert same_bits(await theta.pull(), expected)


async def test_no_integer_push_is_lost_in_asp() -> None:
    """Eight workers at once, whole tables and rows, in one sum that float32 holds exactly."""

    async def train(worker: aiops.Worker) -> None:
        table = await worker.table("n", (50, 40), optimizer=Add(), consistency=ASP())
        for step in range(20):
            await table.push(np.full((50, 40), worker.rank + 1, np.float32))
            await table.push(np.ones((3, 40), np.float32), rows=[step, 20, step])

    async with local_job(servers=3) as cluster:
        await cluster.run(train, workers=8)
        async with cluster.connect() as reader:
            values = await (await reader.table("n")).pull()
    expected = np.full((50, 40), 20 * sum(range(1, 9)), np.float32)
    expected[:20] += 2 * 8
    expected[20] += 20 * 8
    assert same_bits(values, expected)


async def naive_step(table: aiops.Table) -> None:
    """Pull, add one, set: what a key-value store without an updater makes people write."""
    values = await table.pull()
    await table.assign(values + np.float32(1))


async def right_step(table: aiops.Table) -> None:
    await table.push(np.ones(4, np.float32))


async def test_a_naive_client_loses_updates_and_push_does_not() -> None:
    """Two workers in lockstep: both read the same values, and one set overwrites the other."""
    async with (
        local_job() as cluster,
        cluster.connect() as left,
        cluster.connect() as right,
    ):
        tables = [
            [
                await worker.table(name, 4, optimizer=Add(), consistency=ASP())
                for worker in (left, right)
            ]
            for name in ("naive", "pushed")
        ]
        for _ in range(10):
            await together(naive_step(table) for table in tables[0])
            await together(right_step(table) for table in tables[1])
        naive, pushed = [await pair[0].pull() for pair in tables]
    assert (pushed == 20).all()
    assert (naive < 20).all()
