"""A plain script without asyncio, as one of the workers of a cluster.

aiops launch --servers 1 --workers 2 -- python examples/blocking_script.py
"""

import numpy as np

import aiops.blocking
from aiops.optim import SGD

with aiops.blocking.connect() as worker:
    random = np.random.default_rng(worker.rank)
    center = worker.table("center", shape=(3,), optimizer=SGD(lr=0.2))
    for _ in worker.steps(50):
        points = random.normal([1.0, 2.0, 3.0], 0.1, size=(100, 3)).astype(np.float32)
        center.push(center.pull() - points.mean(axis=0))
    print(f"worker {worker.rank}: {np.round(center.pull(), 1)}")
