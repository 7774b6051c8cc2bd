"""Whole clusters behind fault proxies: what a training gets is what it gets on a calm day."""

from __future__ import annotations

import asyncio
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiops
from aiops.errors import ConfigError
from aiops.optim import Add, Momentum
from aiops.testing import ChaosCluster, Faults, Weather
from aiops_protocol.payload import Float32Array
from local_jobs import guarded

WORKERS = 3


async def train(worker: aiops.Worker) -> Float32Array:
    """Push pseudo-random gradients for some steps; returns the weights of the end."""
    table = await worker.table("weights", shape=(600, 50), optimizer=Momentum(lr=0.1))
    chance = np.random.default_rng(worker.rank)
    async for _ in worker.steps(30):
        weights = await table.pull()
        gradient = chance.standard_normal(table.shape, dtype=np.float32)
        await table.push(gradient + weights)
    return await table.pull()


async def count(worker: aiops.Worker) -> Float32Array:
    """Add 1 to everything, 60 times, without waiting for anybody."""
    table = await worker.table("counts", shape=(500, 60), optimizer=Add(), consistency=aiops.ASP())
    for _ in range(60):
        await table.push(np.ones(table.shape, np.float32))
    await worker.barrier("all-pushed")
    return await table.pull()


async def test_servers_behind_proxies_are_found_where_they_advertise() -> None:
    """The scheduler's check of an advertised address goes through the proxy like everybody."""
    async with guarded(), ChaosCluster(servers=2, scheduler_too=True) as cluster:
        assert cluster.scheduler_proxy is not None
        assert cluster.address == cluster.scheduler_proxy.address
        await cluster.run(train, workers=2)
        addresses = [server["address"] for server in cluster.status()["servers"]]
        assert addresses == [proxy.address for proxy in cluster.proxies]
        for proxy in cluster.proxies:
            assert proxy.counters.connections >= 3  # the check, and the workers
            assert proxy.counters.forwarded_up > 100_000
        assert cluster.counters.lost == 0


async def test_cuts_and_jitter_do_not_change_a_bit() -> None:
    async with guarded(), aiops.LocalCluster(servers=2) as cluster:
        calm = await cluster.run(train, workers=WORKERS)
    rain = Weather(Faults(delay_s=0.001, jitter_s=0.002), cut_every_s=0.05, seed=1)
    async with guarded(), ChaosCluster(servers=2, weather=rain) as cluster:
        wet = await cluster.run(train, workers=WORKERS)
        assert cluster.counters.cuts > 2
        assert cluster.status()["bytes"]["retransmitted"] <= 4 * cluster.counters.lost
    for weights in wet:
        np.testing.assert_array_equal(weights, calm[0])


@pytest.mark.parametrize("seed", [1, 2])
async def test_each_push_counts_once_however_often_connections_are_cut(seed: int) -> None:
    async with guarded(), ChaosCluster(servers=2, weather=Weather(seed=seed)) as cluster:
        for proxy in cluster.proxies:
            proxy.set("up", cut_every_bytes=700_001)
            proxy.set("down", cut_every_bytes=100_001)
        for counts in await cluster.run(count, workers=WORKERS):
            np.testing.assert_array_equal(counts, 60 * WORKERS)
        assert cluster.counters.cuts > 10


async def test_damaged_bytes_are_never_applied() -> None:
    """Fault matrix, row 14: the checksum ends the connection, and everything is sent again."""
    async with guarded(), ChaosCluster(servers=1) as cluster:
        for proxy in cluster.proxies:
            proxy.set(corrupt_every_bytes=3_000_000)
        for counts in await cluster.run(count, workers=WORKERS):
            np.testing.assert_array_equal(counts, 60 * WORKERS)
        assert cluster.counters.corrupted > 3


async def test_a_black_hole_delays_and_nothing_else() -> None:
    async with guarded(), ChaosCluster(servers=2) as cluster:
        running = asyncio.ensure_future(cluster.run(count, workers=WORKERS))
        while cluster.counters.forwarded_up < 1_000_000:
            await asyncio.sleep(0.001)
        for proxy in cluster.proxies:
            proxy.hold()
        await asyncio.sleep(0.3)
        assert not running.done()
        for proxy in cluster.proxies:
            proxy.release()
        for counts in await running:
            np.testing.assert_array_equal(counts, 60 * WORKERS)
        assert cluster.counters.lost == 0
        assert cluster.status()["bytes"]["retransmitted"] == 0


async def test_a_storm_ends_with_the_cluster_also_within_a_black_hole() -> None:
    weather = Weather(black_hole_every_s=0.02, black_hole_s=0.015)
    async with guarded(), ChaosCluster(servers=1, weather=weather) as cluster:
        await cluster.run(count, workers=1)
        while cluster.storm.black_holes < 3:
            await asyncio.sleep(0.001)


@given(
    st.integers(0, 1000),
    st.none() | st.floats(0.01, 10),
    st.none() | st.tuples(st.floats(0.01, 5), st.floats(5.1, 60)),
)
def test_the_weather_is_known_from_its_seed(
    seed: int, cut_every_s: float | None, holes: tuple[float, float] | None
) -> None:
    hole_s, every_s = holes or (1.0, None)
    weather = Weather(
        cut_every_s=cut_every_s, black_hole_every_s=every_s, black_hole_s=hole_s, seed=seed
    )
    changes = list(islice(weather.changes(), 100))
    assert changes == list(islice(weather.changes(), 100))
    assert changes == sorted(changes)
    assert bool(changes) == (cut_every_s is not None or holes is not None)
    cuts = [change.at_s for change in changes if change.what == "cut"]
    for earlier, later in pairwise([0.0, *cuts]):
        assert cut_every_s is not None
        assert 0.49 * cut_every_s <= later - earlier <= 1.51 * cut_every_s
    holds = [change.what for change in changes if change.what != "cut"]
    assert holds == ["hold", "release"] * (len(holds) // 2) + ["hold"] * (len(holds) % 2)


def test_a_black_hole_must_end_before_the_next() -> None:
    with pytest.raises(ConfigError, match="black hole"):
        Weather(black_hole_every_s=2.0, black_hole_s=2.0)
    with pytest.raises(ConfigError, match="cut_every_s"):
        Weather(cut_every_s=0)
