"""Training while some workers send nonsense, and while some have more samples than others."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP, Worker
from aiops.consistency import Consistency
from aiops.errors import ConfigError, UsageError
from aiops.optim import SGD, Add
from aiops.trainers.data import load
from aiops.trainers.models import Softmax
from aiops_protocol.payload import Float32Array
from bits import same_bits

F = np.float32
WORKERS = 7
STEPS = 60


@pytest.mark.skipif(find_spec("sklearn") is None, reason="the data comes with scikit-learn")
@pytest.mark.parametrize(
    ("mode", "liars", "factor", "lr", "low", "high"),
    [
        (BSP(), 0, 0, 0.5, 0.9, 1),
        (BSP(), 2, -10, 0.5, 0, 0.2),
        (BSP(reduce="median"), 2, -10, 0.5, 0.9, 1),
        (BSP(reduce="trimmed_mean", trim=2), 2, -10, 0.5, 0.9, 1),
        (BSP(reduce="majority_sign"), 3, -1, 0.005, 0.85, 1),
    ],
    ids=["mean-calm", "mean", "median", "trimmed", "majority"],
)
async def test_what_bears_workers_that_lie(
    mode: BSP, liars: int, factor: float, lr: float, low: float, high: float
) -> None:
    """The mean is lost with two of seven; the robust ones still learn the digits."""
    digits = load("digits", seed=0)
    model = Softmax(digits.features, digits.classes)

    async def train(worker: Worker) -> Float32Array:
        table = await worker.table(
            "w",
            shape=(model.size,),
            init=model.initial(0),
            optimizer=SGD(lr=lr),
            consistency=mode,
        )
        rng = np.random.default_rng(worker.rank)
        async for _ in worker.steps(STEPS):
            rows = rng.integers(len(digits.x_train), size=32)
            x, y = digits.x_train[rows], digits.y_train[rows]
            _, gradient = model.loss_and_gradient(await table.pull(), x, y)
            lies = worker.rank >= WORKERS - liars
            await table.push(gradient * F(factor) if lies else gradient)
        return await table.pull()

    async with aiops.LocalCluster(servers=2) as cluster:
        weights = (await cluster.run(train, workers=WORKERS))[0]
    accuracy = model.metrics(weights, digits.x_test, digits.y_test)["accuracy"]
    assert low <= accuracy <= high


@pytest.mark.parametrize("servers", [1, 3])
async def test_the_mean_goes_by_samples(servers: int) -> None:
    """Bit for bit what one process computes, in the order of ranks."""
    size = 100
    gradients = [np.linspace(-1, rank + 1, size).astype(F) for rank in range(3)]

    async def train(worker: Worker) -> Float32Array:
        table = await worker.table("w", shape=(size,), optimizer=Add())
        samples = 10 * worker.rank + 1
        await table.push(gradients[worker.rank], weight=samples)
        await worker.tick()
        waiting = table.push_soon(gradients[worker.rank], weight=1)
        await worker.tick()
        await waiting
        return await table.push_pull(gradients[worker.rank], weight=samples)

    async with aiops.LocalCluster(servers=servers) as cluster:
        values = await cluster.run(train, workers=3)
    weighted = gradients[0] * F(1) + gradients[1] * F(11) + gradients[2] * F(21)
    plain = np.divide(gradients[0] + gradients[1] + gradients[2], F(3))
    expected = np.divide(weighted, F(33)) + plain + np.divide(weighted, F(33))
    assert all(same_bits(found, expected) for found in values)


async def test_weights_that_mean_nothing_are_refused() -> None:
    async with aiops.LocalCluster(servers=1) as cluster, cluster.connect() as worker:
        table = await worker.table("w", shape=(2,), optimizer=Add())
        one = np.ones(2, F)
        for weight in (0, -1, np.nan, np.inf, "many", True, 1e40):
            with pytest.raises(UsageError, match=r"weight is .* above 0"):
                await table.push(one, weight=weight)  # type: ignore[arg-type]
        await table.push(one, weight=2)
        await table.push(one, weight=2.0)
        await table.push(one)
        with pytest.raises(
            UsageError, match=r"weight=3, but what .* in this clock has the weight 2"
        ):
            await table.push(one, weight=3)
        await worker.tick()
        assert (await table.pull()).tolist() == [3, 3]
        await table.push(one)
        with pytest.raises(
            UsageError, match=r"weight=3, but what .* in this clock has the weight 1"
        ):
            await table.push(one, weight=3)
        await table.push(one, weight=1)  # as if it had not been given
        modes: dict[str, Consistency] = {"asp": ASP(), "sum": BSP("sum"), "median": BSP("median")}
        for name, mode in modes.items():
            other = await worker.table(name, shape=(2,), optimizer=Add(), consistency=mode)
            with pytest.raises(UsageError, match='only in tables with rounds and reduce="mean"'):
                await other.push(one, weight=2)


async def test_a_trim_that_leaves_nothing_is_refused_before_anything_is_made() -> None:
    async def train(worker: Worker) -> None:
        with pytest.raises(ConfigError, match="trim=1 leaves nothing of 2 workers"):
            await worker.table("w", shape=(2,), consistency=BSP("trimmed_mean", trim=1))

    async with aiops.LocalCluster(servers=1) as cluster:
        await cluster.run(train, workers=2)


async def test_a_push_that_is_refused_leaves_no_weight() -> None:
    """Its clock may go on with another push, whose weight is 1 as if the first had never been."""

    async def train(worker: Worker) -> float:
        table = await worker.table("w", shape=(2,), optimizer=Add())
        wrong = np.ones(3, F)
        if worker.rank == 0:
            with pytest.raises(UsageError, match="shape"):
                await table.push(wrong, weight=7)
            with pytest.raises(UsageError, match="shape"):
                await table.push_soon(wrong, weight=7)
            with pytest.raises(UsageError, match="shape"):
                await table.push_pull(wrong, weight=7)
        await table.push(np.full(2, worker.rank, F))
        await worker.tick()
        return float((await table.pull())[0])

    async with aiops.LocalCluster(servers=1) as cluster:
        assert await cluster.run(train, workers=2) == [0.5, 0.5]
