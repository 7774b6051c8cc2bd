"""Agreement: BSP under faults that kill nobody gives the weights of a single process, bit for bit.

In life: synchronous training while connections break, links slow down and nodes stall. In most
runs pushes, or pulls, or both are compressed: then also what is held back must have been charged
once for each push, however often it was sent. In every third run rows of a sparse table are
trained besides, compressed or not.
"""

from __future__ import annotations

import asyncio

import numpy as np

from aiops.compression import codec_from
from aiops.compression.compressor import Compressor
from aiops.compression.pulls import pull_codec
from aiops.consistency import BSP
from aiops.optim import SGD
from aiops.shards.replica import Replica
from aiops.testing.simulation.cluster import SimCluster
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.nemesis import Nemesis
from aiops.testing.simulation.scenarios.common import HEARTBEAT_S, Broken, all_end, count
from aiops.testing.simulation.scenarios.trained_rows import TrainedRows
from aiops.workers.worker import Worker
from aiops_protocol.codecs import mix
from aiops_protocol.payload import Float32Array

__all__ = ["agreement"]

SHAPE = (7, 11)
RATE = np.float32(0.1)
STEPS_TO_A_BARRIER = 6

PUSHES = (
    None, "top-k:0.1", "one-bit:16", "qsgd:4:block=16", "dgc:0.1", "top-k:0.2+fp16+lz4", "int8:16",
    "int4:16:stochastic=true", "fp8:16", "fp16", "bf16", "ternary", "random-k:0.2", "agc:16",
    "power-sgd:1", "top-k:0.1:sampled=true:compact=true", "lz4",
)  # fmt: skip
PULLS = (None, None, "one-bit", "top-k:0.3", "int8", "int4", "fp8", "fp16", "bf16", "top-k:0.1+lz4")


async def agreement(
    loop: SimLoop, seen: dict[str, int], *, workers: int = 3, servers: int = 2, steps: int = 20
) -> None:
    """Train under faults; compare with the same arithmetic done in one place."""
    draw = mix(loop.seed)  # not from the loop: what happens else in the run stays as it is
    push, pull = PUSHES[draw % len(PUSHES)], PULLS[draw // len(PUSHES) % len(PULLS)]
    count(seen, "pushes compressed", push is not None)
    count(seen, "pulls compressed", pull is not None)
    rows = TrainedRows(draw // 64) if draw // 32 % 3 == 0 else None
    count(seen, "rows trained", rows is not None)
    cluster = SimCluster(loop, servers, workers=workers, heartbeat_s=HEARTBEAT_S)
    await cluster.start()
    arrived: dict[int, int] = {}  # by step, at the barrier

    async def train(worker: Worker) -> Float32Array:
        table = await worker.table(
            "weights",
            shape=SHAPE,
            init=0.5,
            optimizer=SGD(lr=float(RATE)),
            consistency=BSP(),
            compression=push,
            pull_compression=pull,
        )
        if rows is not None:
            await rows.open(worker)
        async for step in worker.steps(steps):
            if step % STEPS_TO_A_BARRIER == 0:
                arrived[step] = arrived.get(step, 0) + 1
                await worker.barrier("all")
                if arrived[step] != workers:
                    raise Broken(f"the barrier of step {step} opened for {arrived[step]} workers")
            weights = await table.pull()
            await asyncio.sleep(loop.rng.expovariate(30))
            if _takes_part(worker.rank, step):
                await table.push(_gradient(worker.rank, step, weights))
                if rows is not None:
                    await rows.push(worker, step)
        if rows is not None:
            await rows.check(worker, workers, steps, _takes_part)
        return await table.pull()

    names = [f"worker-{rank}" for rank in range(workers)]
    running = [cluster.worker(name, train) for name in names]
    victims = [*names, *(f"server-{index}" for index in range(servers))]
    nemesis = Nemesis(cluster, victims, mean_pause_s=0.15, gentle_s=2 * HEARTBEAT_S)
    await nemesis.run(2.0)
    for kind, times in nemesis.injected.items():
        count(seen, kind, times)
    await all_end(running)
    await cluster.close()
    expected = _alone(workers, steps, push, pull)
    for task in running:
        if task.result().tobytes() != expected.tobytes():
            raise Broken("the weights are not those of a single process")


def _takes_part(rank: int, step: int) -> bool:
    return (rank + step) % 4 != 0


def _gradient(rank: int, step: int, weights: Float32Array) -> Float32Array:
    source = np.random.Generator(np.random.Philox(key=[rank, step]))
    noise = source.standard_normal(SHAPE, np.float32)
    return weights * np.float32(0.3) + noise


def _alone(workers: int, steps: int, push: str | None, pull: str | None) -> Float32Array:
    weights: Float32Array = np.full(SHAPE, 0.5, np.float32)
    senders = [
        Compressor(codec_from(push or "dense"), SHAPE, mix(*b"weights", rank))
        for rank in range(workers)
    ]
    replica = Replica(pull_codec(codec_from(pull)), weights.reshape(-1), 0) if pull else None
    for step in range(steps):
        ranks = [rank for rank in range(workers) if _takes_part(rank, step)]
        given = weights if replica is None else replica.values.reshape(SHAPE)
        arrived = [
            senders[rank].encode(_gradient(rank, step, given).reshape(-1)).dense().reshape(SHAPE)
            for rank in ranks
        ]
        total = arrived[0]
        for other in arrived[1:]:
            total = total + other
        weights = weights - RATE * (total / np.float32(len(ranks)))
        if replica is not None:
            replica.publish(weights.reshape(-1), step + 1)
    return weights if replica is None else replica.values.reshape(SHAPE)
