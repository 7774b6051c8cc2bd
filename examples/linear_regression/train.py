"""Linear regression by gradient descent on a cluster with fixed addresses.

    aiops launch --cluster examples/linear_regression/cluster.toml -- \
        python examples/linear_regression/train.py

Every process runs this program. It finds the scheduler in its environment.
"""

import numpy as np

import aiops
from aiops.optim import SGD

ROWS = 2000
TRUTH = np.array([2.0, -3.0, 0.5, 4.0], np.float32)  # the last one is the intercept


def make_data():
    """Make the same rows in every process."""
    random = np.random.default_rng(1)
    x = np.ones((ROWS, len(TRUTH)), np.float32)
    x[:, :-1] = random.standard_normal((ROWS, len(TRUTH) - 1))
    noise = random.standard_normal(ROWS).astype(np.float32)
    return x, x @ TRUTH + np.float32(0.1) * noise


async def main():
    x, y = make_data()
    async with aiops.connect() as worker:
        theta = await worker.table("theta", shape=TRUTH.shape, optimizer=SGD(lr=0.1))
        mine = worker.shard(ROWS)
        x, y = x[mine], y[mine]
        async for _ in worker.steps(100):
            error = x @ await theta.pull() - y
            await theta.push(2 * x.T @ error / len(y))
            worker.publish_metrics(loss=float(np.mean(error**2)))
        found = await theta.pull()
        if worker.rank == 0:
            print("theta", " ".join(f"{value:.2f}" for value in found))


aiops.run(main())
