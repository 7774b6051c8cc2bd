"""Tests of a training of one's own, with the fixture `local_cluster` that aiops brings.

    pytest examples/test_my_training.py

`train` stands for your code. The first test says that it learns, the second that two workers get
exactly what one process would compute.
"""

import numpy as np
import pytest

from aiops.optim import SGD

pytestmark = pytest.mark.asyncio  # not needed with asyncio_mode = "auto"

STEPS, LR = 50, 0.1
X = np.random.default_rng(0).standard_normal((200, 5)).astype(np.float32)
Y = X @ np.arange(5, dtype=np.float32)


def gradient(theta, rows):
    return 2 * X[rows].T @ (X[rows] @ theta - Y[rows]) / len(X[rows])


async def train(worker):
    theta = await worker.table("theta", (5,), optimizer=SGD(lr=LR))
    rows = worker.shard(len(X))
    async for _ in worker.steps(STEPS):
        await theta.push(gradient(await theta.pull(), rows))
    return await theta.pull()


async def test_it_learns(local_cluster):
    for theta in await local_cluster.run(train, workers=3):
        np.testing.assert_allclose(theta, np.arange(5), atol=0.01)


async def test_two_workers_compute_what_one_process_would(local_cluster):
    expected = np.zeros(5, np.float32)
    for _ in range(STEPS):
        parts = [gradient(expected, rows) for rows in (slice(0, 100), slice(100, 200))]
        expected -= np.float32(LR) * ((parts[0] + parts[1]) / np.float32(2))
    first, second = await local_cluster.run(train, workers=2)
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, expected)
