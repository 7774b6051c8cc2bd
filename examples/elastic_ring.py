"""Handwritten digits without servers: four workers in a ring, of which one is killed on its way.

aiops launch --servers 0 --workers 4 --on-worker-loss continue -- python examples/elastic_ring.py

The others take the step again without it, and end with the same weights, to the bit. Whoever comes
in between, such as a worker that is started again, is given what they have.
"""

import os
import signal
import zlib

import numpy as np
from sklearn.datasets import load_digits

import aiops
from aiops.errors import CollectiveAborted

STEPS = 200

pixels, digits = load_digits(return_X_y=True)
shuffled = np.random.default_rng(0).permutation(len(digits))
x, y = (pixels[shuffled] / 16).astype(np.float32), digits[shuffled]


def gradient_at(w, mine):
    p = np.exp(x[mine] @ w)
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(p)), y[mine]] -= 1
    return x[mine].T @ p / len(p)


async def train(worker):
    ring = await worker.ring("digits")
    weights, gradient = np.zeros((64, 10), np.float32), ring.empty((64, 10))
    step, agreed = 0, 1  # who was there from the beginning starts from the same weights
    while step < STEPS:
        if worker.rank == 2 and step == STEPS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            if ring.broken or ring.wanted:
                await ring.reform()
            if ring.generation != agreed:  # who has most gives it to those who have come
                steps = await ring.all_gather(np.array([float(step)]))
                await ring.broadcast(weights, root=int(steps.argmax()))
                step, agreed = int(steps.max()), ring.generation
            gradient[:] = gradient_at(weights, slice(ring.rank, 1500, ring.world_size))
            await ring.all_reduce(gradient, "mean")
        except CollectiveAborted:
            continue  # it has changed nothing, anywhere
        weights -= gradient
        step += 1
    accuracy = np.mean((x[1500:] @ weights).argmax(axis=1) == y[1500:])
    bits = zlib.crc32(weights.tobytes())
    print(f"worker {worker.rank}: ring of {ring.world_size}, accuracy {accuracy:.3f}, {bits:08x}")


async def main():
    async with aiops.connect() as worker:
        await train(worker)


aiops.run(main())
