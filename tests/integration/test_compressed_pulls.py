"""Compressed pulls: one replica for everybody, the same bits at each version."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP
from aiops.compression import codec_from
from aiops.compression.pull_gate import PullGate
from aiops.compression.pulls import PULL_CANDIDATES, pull_codec
from aiops.consistency import Consistency
from aiops.errors import ConfigError, TableMismatch
from aiops.optim import SGD, Add
from aiops.shards.replica import Replica
from aiops_protocol.payload import Float32Array
from local_jobs import local_job, random_array, rank_ordered_mean, same_bits, until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

SIZE = 150_000  # two segments on one server


def published(cluster: aiops.LocalCluster) -> Float32Array:
    """What the servers have published of the first table."""
    shards = [server._core.tables[1] for server in cluster.servers if 1 in server._core.tables]
    shards.sort(key=lambda shard: shard.begin)
    replicas = [shard.replica._replica for shard in shards if shard.replica is not None]
    return np.concatenate([replica.values for replica in replicas if replica is not None])


def reference(spelling: str, workers: int, steps: int) -> list[Float32Array]:
    """Every version of the replica, by one process."""
    exact = random_array((SIZE,), 99)
    replica = Replica(pull_codec(codec_from(spelling)), exact, 0)
    versions = [replica.values.copy()]
    for step in range(steps):
        gradients = [random_array((SIZE,), step, rank) for rank in range(workers)]
        exact = exact - np.float32(0.1) * rank_ordered_mean(gradients, workers)
        replica.publish(exact, step + 1)
        versions.append(replica.values.copy())
    return versions


@pytest.mark.parametrize("spelling", ["top-k:0.04", "one-bit", "int8", "top-k:0.1+fp16+lz4"])
async def test_every_worker_has_the_replica_of_one_process_at_each_version(spelling: str) -> None:
    """On one server and on three; a joiner gets it whole."""
    expected = reference(spelling, 2, 4)

    async def train(worker: aiops.Worker) -> int:
        table = await worker.table(
            "w", SIZE, init=random_array((SIZE,), 99), optimizer=SGD(lr=0.1),
            pull_compression=spelling,
        )  # fmt: skip
        assert same_bits(await table.pull(), expected[0])
        async for step in worker.steps(4):
            gradient = random_array((SIZE,), step, worker.rank)
            if step % 2:
                values = await table.push_pull(gradient)
                assert same_bits(values, expected[step + 1])
            else:
                await table.push(gradient)
                assert same_bits(await table.pull(), expected[step])
                rows = np.array([7, SIZE - 1])
                assert same_bits(await table.pull(rows), expected[step][rows])
        return int(worker.stats()["bytes"]["pulled"])

    for servers in (1, 3):
        async with local_job(servers) as cluster:
            pulled = await cluster.run(train, workers=2)
            assert same_bits(published(cluster), expected[-1])
            assert max(pulled) < 4 * SIZE * 3  # of six pulls and more
            async with cluster.connect(name="late") as late:
                table = await late.table("w")
                assert same_bits(await table.pull(), expected[-1])


@pytest.mark.parametrize("consistency", [BSP(), ASP()], ids=lambda c: c.mode)
async def test_pulls_at_once_cancelled_and_repeated(consistency: Consistency) -> None:
    """Whatever becomes of single pulls, the copy is the replica or nothing."""
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table(
            "w", SIZE, optimizer=Add(), consistency=consistency, pull_compression="int8"
        )
        out = np.empty(SIZE, np.float32)
        for step in range(6):
            await table.push(random_array((SIZE,), step))
            await worker.tick()
            table.prefetch()
            one, two = await asyncio.gather(table.pull(), table.pull(out=out))
            assert same_bits(one, two)
            cancelled = asyncio.ensure_future(table.pull())
            for _ in range(step):
                await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
            assert same_bits(await table.pull(), one)
            assert same_bits(one, published(cluster))


async def test_without_rounds_a_push_pull_sees_its_push() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table(
            "w", SIZE, optimizer=Add(), consistency=ASP(), pull_compression="int8"
        )
        given = random_array((SIZE,), 1)
        np.testing.assert_allclose(await table.push_pull(given), given, atol=0.05)
        assert table.version > 0


async def test_subscriptions_get_the_replica() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", SIZE, optimizer=Add(), pull_compression="one-bit")
        updates = table.updates()
        version, values = await anext(updates)
        assert version == 0
        assert not values.any()
        await table.push(random_array((SIZE,), 1))
        await worker.tick()
        version, values = await anext(updates)
        assert version == 1
        assert same_bits(values, await table.pull())


@pytest.mark.parametrize("consistency", [BSP(), ASP()], ids=lambda c: c.mode)
@pytest.mark.parametrize("servers", [1, 2])
async def test_auto_gives_the_same_bits_to_all_whatever_they_wish(
    consistency: Consistency, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are, then a codec, another one, as they are again: all that a replica can be."""
    wishes = [0, 0, 3, 3, 1, 4, 4, 0, 0, 2, 0, 2, 2]

    def choose(gate: PullGate) -> bool:
        wish = wishes[turn["now"]]
        gate.chosen = PULL_CANDIDATES[wish if turn["who"] == 0 else 0]
        return gate.chosen == "dense"

    turn = {"now": 0, "who": 0}
    monkeypatch.setattr(PullGate, "choose", choose)
    exact = np.zeros(SIZE, np.float32)
    lossy = 0
    async with (
        local_job(servers) as cluster,
        cluster.connect(name="a") as a,
        cluster.connect(name="b") as b,
    ):
        tables = [
            await worker.table(
                "w", SIZE, optimizer=Add(), consistency=consistency, pull_compression="auto"
            )
            for worker in (a, b)
        ]
        for step in range(len(wishes)):
            turn["now"] = step
            for table in tables:
                await table.push(random_array((SIZE,), step))
            exact += random_array((SIZE,), step)
            if consistency.mode == "asp":
                exact += random_array((SIZE,), step)
            for worker in (a, b):
                await worker.tick()
            pulled = []
            for who, table in enumerate(tables):
                turn["who"] = who
                pulled.append(await table.pull())
            assert same_bits(*pulled)
            assert same_bits(await tables[1].pull(np.array([3, 77])), pulled[0][[3, 77]])
            assert np.linalg.norm(pulled[0] - exact) <= np.linalg.norm(exact)
            lossy += not np.allclose(pulled[0], exact, atol=1e-4)
        stats = a.stats()["compression"]["w"]["pull"]
        choices = a._tables.choices()
        plain = tables[0].core.replica
        assert plain is not None
    assert 0 < lossy < len(wishes) - 3
    assert stats["pulls"] == len(wishes)
    assert stats["bytes_received"] < stats["bytes_meant"] * 0.8
    assert stats["chosen"] == "int8"
    assert choices["w pull"].startswith("int8: ")


async def test_on_this_link_auto_leaves_values_as_they_are() -> None:
    async with local_job(1) as cluster, cluster.connect() as worker:
        table = await worker.table("w", SIZE, optimizer=Add(), pull_compression="auto")
        for step in range(12):
            await table.push(random_array((SIZE,), step))
            await worker.tick()
            await table.pull()
        stats = worker.stats()["compression"]["w"]["pull"]
        assert stats["chosen"] in PULL_CANDIDATES
        assert "Mbit/s" in stats["reason"]
        worker._reports.send()
        await until(lambda: cluster.status()["workers"][0]["choices"])
        told = cluster.status()["workers"][0]["choices"]
        assert told == {"w pull": f"{stats['chosen']}: {stats['reason']}"}


async def test_both_directions_save_more_than_one() -> None:
    """Top 1 % up and 4 % down take less than a fifteenth of dense, all bytes counted."""

    async def train(worker: aiops.Worker, *settings: str | None) -> int:
        push, pull = settings
        table = await worker.table("w", SIZE, compression=push, pull_compression=pull)
        async for step in worker.steps(12):
            await table.push(random_array((SIZE,), step))
            await table.pull()
        sent: Iterable[dict[str, int]] = worker.stats()["servers"].values()
        return sum(server["sent"] + server["received"] for server in sent) - 4 * SIZE

    async def total(*settings: str | None) -> int:
        async with local_job(2) as cluster:
            return sum(await cluster.run(lambda w: train(w, *settings), workers=1))

    dense = await total(None, None)
    assert await total("top-k:0.01", "top-k:0.04") * 15 < dense
    assert await total("top-k:0.01", None) * 3 > dense


async def test_settings_are_checked_and_agreed() -> None:
    async with local_job(1) as cluster, cluster.connect() as worker:
        with pytest.raises(ConfigError, match="pull_compression cannot be qsgd"):
            await worker.table("w", 9, pull_compression="qsgd")
        with pytest.raises(ConfigError, match="allow_nonfinite"):
            await worker.table("w", 9, pull_compression="int8", allow_nonfinite=True)
        await worker.table("w", 9, pull_compression="int8")
        with pytest.raises(TableMismatch, match="pull_compression"):
            await worker.table("w", 9)
