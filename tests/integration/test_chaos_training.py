"""Digits over a bad network: the weights are those of a calm day, and little is sent twice.

The short one is part of all tests; `make chaos` trains for 440 steps.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import pytest

import aiops
from aiops.testing import ChaosCluster, Faults, Weather
from aiops.trainers import TrainConfig, data
from aiops.trainers.loop import train
from aiops_protocol.payload import Float32Array
from local_jobs import guarded

WORKERS, SERVERS = 4, 2
NET = {"model": "mlp", "hidden": (256, 128), "optimizer": "momentum", "lr": 0.05}
"""50,826 values, of which each server has 100 KB."""

RAIN = Faults(delay_s=0.02, jitter_s=0.02)


class Trained(NamedTuple):
    """The weights, and what the workers say of their connections."""

    weights: Float32Array
    stats: dict[str, Any]


async def trained(cluster: aiops.LocalCluster, steps: int) -> list[Trained]:
    """Train in a cluster; returns what each worker has in the end."""
    config = TrainConfig(steps=steps, **NET)  # type: ignore[arg-type]
    digits = data.load("digits")

    async def work(worker: aiops.Worker) -> Trained:
        await train(worker, digits, config.make_model(digits), config)
        table = await worker.table("model")
        return Trained(await table.pull(), worker.stats())

    return await cluster.run(work, workers=WORKERS)


async def compare(steps: int, weather: Weather) -> dict[str, float]:
    """Train on a calm day and in this weather; returns figures of the latter."""
    async with guarded(), aiops.LocalCluster(servers=SERVERS) as calm:
        expected = await trained(calm, steps)
    started = time.monotonic()
    async with ChaosCluster(servers=SERVERS, weather=weather) as cluster:
        found = await trained(cluster, steps)
        took_s = time.monotonic() - started
        counters, holes = cluster.counters, cluster.storm.black_holes
    for worker in found:
        np.testing.assert_array_equal(worker.weights, expected[0].weights)
    links = [link for worker in found for link in worker.stats["servers"].values()]
    return {
        "seconds": round(took_s, 1),
        "cuts": counters.cuts,
        "black holes": holes,
        "forwarded": counters.forwarded,
        "lost": counters.lost,
        "sent again": sum(worker.stats["bytes"]["retransmitted"] for worker in found),
        "reconnections": sum(link["reconnections"] for link in links),
        "asked": sum(link["asked"] for link in links),
        "replaced": sum(link["replaced"] for link in links),
    }


async def test_a_storm_does_not_change_a_bit_and_little_is_sent_twice() -> None:
    weather = Weather(RAIN, cut_every_s=0.4, black_hole_every_s=2.0, black_hole_s=0.8, seed=33)
    figures = await compare(20, weather)
    assert figures["cuts"] >= 3, figures
    assert figures["black holes"] >= 1, figures
    assert figures["sent again"] <= 2 * figures["lost"], figures


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_whole_training_under_cuts_jitter_and_black_holes(seed: int) -> None:
    """A cut a second, 20 to 40 ms each way, and every 20 s nothing passes for 3 s."""
    weather = Weather(RAIN, cut_every_s=1.0, black_hole_every_s=20.0, black_hole_s=3.0, seed=seed)
    figures = await compare(440, weather)
    print(f"\n440 steps, seed {seed}: {figures}")
    assert figures["cuts"] >= 20, figures
    assert figures["black holes"] >= 2, figures
    assert figures["sent again"] <= 2 * figures["lost"], figures
