"""Tell two half-moons apart: one hidden layer of 10, sigmoid, cross-entropy, Adam on the servers.

Two tables, one per layer, that are pulled and pushed at the same time.
"""

import asyncio

import numpy as np

import aiops
from aiops.init import Normal
from aiops.optim import Adam

ROWS, EPOCHS, BATCH, HIDDEN = 2000, 10, 25, 10


def two_moons(random):
    """Make two interleaved half circles with some noise; a column of ones stands for the bias."""
    label = np.arange(ROWS) % 2
    angle = random.uniform(0, np.pi, ROWS)
    x = np.where(label, 1 - np.cos(angle), np.cos(angle))
    y = np.where(label, 0.5 - np.sin(angle), np.sin(angle))
    points = np.stack([x, y, np.ones(ROWS)], axis=1)
    points[:, :2] += 0.1 * random.standard_normal((ROWS, 2))
    return points.astype(np.float32), label.astype(np.float32)[:, None]


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def predict(x, w1, w2):
    hidden = np.tanh(x @ w1)
    return hidden, sigmoid(hidden @ w2)


async def train(worker):
    x, y = two_moons(np.random.default_rng(0))
    mine = worker.shard(ROWS)
    x, y = x[mine], y[mine]
    optimizer = Adam(lr=0.03)
    first = await worker.table("first", (3, HIDDEN), init=Normal(std=0.5), optimizer=optimizer)
    second = await worker.table("second", (HIDDEN, 1), init=Normal(std=0.5), optimizer=optimizer)
    random = np.random.default_rng(worker.rank)
    for epoch in range(EPOCHS):
        order = random.permutation(len(x)).reshape(-1, BATCH)
        async for step in worker.steps(len(order)):
            batch = order[step - epoch * len(order)]
            w1, w2 = await asyncio.gather(first.pull(), second.pull())
            hidden, p = predict(x[batch], w1, w2)
            wrong = (p - y[batch]) / BATCH  # gradient of the mean cross-entropy before the sigmoid
            back = wrong @ w2.T * (1 - hidden**2)
            await asyncio.gather(first.push(x[batch].T @ back), second.push(hidden.T @ wrong))
    return await asyncio.gather(first.pull(), second.pull())


async def main():
    async with aiops.LocalCluster(servers=2) as cluster:
        (w1, w2), *_ = await cluster.run(train, workers=2)
    x, y = two_moons(np.random.default_rng(1))
    _, p = predict(x, w1, w2)
    loss = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
    print(f"test loss {loss:.3f}, accuracy {np.mean((p > 0.5) == y):.3f}")


aiops.run(main())
