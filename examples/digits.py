"""Learn to read handwritten digits: two servers and four workers, over TCP, in one process."""

import numpy as np
from sklearn.datasets import load_digits

import aiops
from aiops.optim import SGD

pixels, digits = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(digits))
x, y = (pixels[order] / 16).astype(np.float32), digits[order]


async def train(worker):
    weights = await worker.table("weights", shape=(64, 10), optimizer=SGD(lr=1.0))
    mine = worker.shard(1500)  # this worker's part of the rows; the other 297 are for the test
    async for _ in worker.steps(200):
        w = await weights.pull()
        p = np.exp(x[mine] @ w)
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(p)), y[mine]] -= 1
        await weights.push(x[mine].T @ p / len(p))
    return await weights.pull()


async def main():
    async with aiops.LocalCluster(servers=2) as cluster:
        w, *_ = await cluster.run(train, workers=4)
    print(f"test accuracy {np.mean((x[1500:] @ w).argmax(axis=1) == y[1500:]):.3f}")


aiops.run(main())
