"""Bytes of sparse L1 logistic regression: plain, with cached key lists, and with the KKT filter.

    python benchmarks/l1_filters.py [--rounds 120]

Four workers and two servers in this process over loopback. The data is made: 6,000 rows of 20,000
features, 40 in each row, drawn by Zipf's law with exponent 0.8; labels from 200 hidden weights.
Prints for each run what went over the wire in each direction, and the objective that all reach.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import aiops
from aiops.filters import KktFilter
from aiops.optim import ProximalSGD
from aiops.roles import key_lists
from aiops_protocol.payload import Float32Array

ROWS, FEATURES, PER_ROW, WORKERS, SERVERS = 6_000, 20_000, 40, 4, 2
L1, LR = 2e-3, 0.5


class Data(NamedTuple):
    """Features of each row, and its label, -1 or 1. Every value is 1."""

    features: NDArray[np.int64]
    labels: Float32Array

    def margins(self, weights: Float32Array) -> Float32Array:
        """Label times prediction of each row."""
        products: Float32Array = weights[self.features].sum(axis=1)
        return products * self.labels


def made(seed: int = 5) -> Data:
    """Make the data."""
    rng = np.random.default_rng(seed)
    chance = 1 / np.arange(1, FEATURES + 1) ** 0.8
    features = rng.choice(FEATURES, (ROWS, PER_ROW), p=chance / chance.sum())
    hidden = np.zeros(FEATURES, np.float32)
    hidden[rng.choice(2_000, 200, replace=False)] = rng.normal(size=200)
    scores = hidden[features].sum(axis=1)
    labels = np.where(rng.random(ROWS) < 1 / (1 + np.exp(-scores)), 1, -1)
    return Data(features, labels.astype(np.float32))


class Result(NamedTuple):
    """Bytes of pushes and pulls with their answers and all headers, and how it ended."""

    push: int
    pull: int
    objective: float
    weights: Float32Array
    filtered: float


async def train(worker: aiops.Worker, data: Data, rounds: int, filtering: bool) -> Result:
    """Train one worker's part of the rows."""
    mine = worker.shard(ROWS)
    keys, local = np.unique(data.features[mine], return_inverse=True)
    part = Data(local.reshape(-1, PER_ROW), data.labels[mine])
    table = await worker.sparse_table("w", 1, optimizer=ProximalSGD(lr=LR, l1=L1))
    chosen = KktFilter(keys.size, L1, slack=0.1, read_all_every=20 if filtering else 1)
    weights = np.zeros(keys.size, np.float32)
    async for _ in worker.steps(rounds):
        wanted = chosen.to_pull()
        weights[wanted] = (await table.pull(keys[wanted]))[:, 0]
        slopes = -part.labels / (1 + np.exp(part.margins(weights))) / len(part.labels)
        share = np.repeat(slopes, PER_ROW)
        gradient = np.bincount(part.features.ravel(), share, keys.size).astype(np.float32)
        active = chosen.to_push(weights, gradient)
        if not filtering:
            active = np.arange(keys.size)
        await table.push(keys[active], gradient[active, None])
    counted = worker.main_customer.bytes
    push = counted.push_sent + counted.push_received
    pull = counted.pull_sent + counted.pull_received
    final = (await table.pull(np.arange(FEATURES)))[:, 0]
    loss = float(np.logaddexp(0, -data.margins(final).astype(np.float64)).mean())
    objective = loss + L1 * float(np.abs(final).sum())
    return Result(push, pull, objective, final, chosen.filtered)


async def run(data: Data, rounds: int, filtering: bool) -> Result:
    """Run a cluster; return the sums over its workers."""
    async with aiops.LocalCluster(servers=SERVERS) as cluster:

        async def train_one(worker: aiops.Worker) -> Result:
            return await train(worker, data, rounds, filtering)

        results = await cluster.run(train_one, workers=WORKERS)
    first = results[0]
    return Result(
        sum(result.push for result in results),
        sum(result.pull for result in results),
        first.objective,
        first.weights,
        float(np.mean([result.filtered for result in results])),
    )


@contextmanager
def without_cache() -> Iterator[Any]:
    """Let no list be long enough to be cached."""
    with mock.patch.object(key_lists, "CACHED_KEYS_MIN", 1 << 60) as patched:
        yield patched


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=120)
    rounds = parser.parse_args().rounds
    data = made()
    with without_cache():
        plain = aiops.run(run(data, rounds, filtering=False))
    cached = aiops.run(run(data, rounds, filtering=False))
    filtered = aiops.run(run(data, rounds, filtering=True))
    assert cached.weights.tobytes() == plain.weights.tobytes()
    total = plain.push + plain.pull
    for name, result in (("plain", plain), ("cached lists", cached), ("KKT filter", filtered)):
        print(
            f"{name:13} push {result.push / 1e6:6.2f} MB ({plain.push / result.push:5.1f}x less), "
            f"pull {result.pull / 1e6:6.2f} MB ({plain.pull / result.pull:5.1f}x less), "
            f"both {total / (result.push + result.pull):5.1f}x; "
            f"objective {result.objective:.6f}, {np.count_nonzero(result.weights)} weights"
        )
    print(f"the filter left out {filtered.filtered:.1%} of the gradients")


if __name__ == "__main__":
    main()
