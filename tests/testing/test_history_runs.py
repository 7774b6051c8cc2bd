"""Histories of real runs over TCP: good ones are accepted, those of a broken server are not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import aiops
from aiops.errors import BarrierTimeout, ConfigError, RequestTimeout
from aiops.optim import SGD, Add
from aiops.roles.bulk_rule import BspRule
from aiops.roles.consistency import AspRule, Outcome, Rule
from aiops.shards.shard import Selection
from aiops.testing import ChaosCluster, Faults, Weather
from aiops.testing.history import Verdict, verify
from aiops.testing.history.run import read_runs
from aiops.testing.ledger import TABLES, keep_ledger
from aiops.workers.connecting import Connecting
from aiops_protocol.delivery import Inbox
from aiops_protocol.delivery import Verdict as Judgement
from aiops_protocol.errors import ErrorCode
from aiops_protocol.payload import Float32Array
from local_jobs import guarded

RAIN = Weather(Faults(delay_s=0.0005, jitter_s=0.001), cut_every_s=0.03, seed=5)


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let every worker of the test write its history; return the folder."""
    folder = tmp_path / "made" / "by-need"
    monkeypatch.setenv("AIOPS_HISTORY", str(folder))
    monkeypatch.setenv("AIOPS_HISTORY_VALUES", ",".join((*TABLES, "shared")))
    return folder


def verdict_on(folder: Path) -> Verdict:
    (verdict,) = verify(folder)
    return verdict


async def everything(worker: aiops.Worker) -> None:
    """Use every call that a history has, some of them at the same time."""
    shared = await worker.table("shared", shape=(30, 4), optimizer=Add(), consistency=aiops.ASP())
    rounds = await worker.table("rounds", shape=(60, 1000), optimizer=SGD(lr=0.5))
    ones = np.ones((60, 1000), np.float32)
    async for step in worker.steps(8):
        rounds.prefetch()
        await rounds.pull()
        if step % 2:
            await rounds.push_pull(ones)
        else:
            _ = rounds.push_soon(ones)
            await rounds.assign(ones[:3], rows=[1, 5, 7])
        rows = [worker.rank, 10, 25]
        await asyncio.gather(
            shared.push(np.ones((3, 4), np.float32), rows=rows),
            shared.pull(rows=[25, 3]),
            shared.push_pull(np.full((30, 4), worker.rank + 1.0, np.float32)),
        )
        await worker.barrier("step")
    await worker.finish()
    await rounds.pull()
    await shared.pull()


async def compressed(worker: aiops.Worker) -> None:
    """Pushes and pulls in other forms: what they mean is what is checked."""
    shared = await worker.table(
        "shared", shape=(30, 4), optimizer=Add(), consistency=aiops.ASP(), compression="top-k:0.1"
    )
    rounds = await worker.table(
        "rounds", shape=(60, 1000), compression="int8", pull_compression="one-bit"
    )
    ones = np.ones((60, 1000), np.float32)
    async for _ in worker.steps(6):
        await rounds.pull()
        await rounds.push(ones)
        await shared.push(np.full((30, 4), worker.rank + 1.0, np.float32))
        await shared.pull(rows=[25, 3])
        await shared.push_pull(np.ones((30, 4), np.float32))
    await worker.finish()
    await rounds.pull()


@pytest.mark.parametrize("weather", [Weather(), RAIN], ids=["calm", "rain"])
async def test_a_compressed_run_is_accepted(history: Path, weather: Weather) -> None:
    async with guarded(), ChaosCluster(servers=2, weather=weather) as cluster:
        await cluster.run(compressed, workers=3)
    assert verdict_on(history).violations == []


@pytest.mark.parametrize("weather", [Weather(), RAIN], ids=["calm", "rain"])
async def test_a_run_of_everything_is_accepted(history: Path, weather: Weather) -> None:
    async with guarded(), ChaosCluster(servers=2, weather=weather) as cluster:
        await cluster.run(everything, workers=3)
        assert bool(cluster.counters.cuts) == (weather is RAIN)
    verdict = verdict_on(history)
    assert verdict.violations == []
    assert (verdict.workers, verdict.unknown) == (3, 0)
    assert verdict.tables == {"shared": "asp", "rounds": "bsp"}
    (run,) = read_runs(history)
    kinds = {operation.kind for operation in run.operations}
    assert kinds == {
        "push", "pull", "push_pull", "assign", "seal", "tick", "barrier", "finish"
    }  # fmt: skip


@pytest.mark.parametrize("weather", [Weather(), RAIN], ids=["calm", "rain"])
async def test_a_ledger_is_accepted(history: Path, weather: Weather) -> None:
    async with guarded(), ChaosCluster(servers=2, weather=weather) as cluster:
        await cluster.run(lambda worker: keep_ledger(worker, 25), workers=3)
    verdict = verdict_on(history)
    assert verdict.violations == []
    assert verdict.notes == []


async def test_readers_and_late_comers_are_accepted(history: Path) -> None:
    """Who takes part in no round gets the newest version, and who comes late the next round."""
    begun = asyncio.Event()

    async def train(worker: aiops.Worker) -> None:
        table = await worker.table("shared", shape=(40, 5), optimizer=Add())
        table.local.pull_every(0.002)
        async for step in worker.steps(25):
            await table.push(np.ones((40, 5), np.float32))
            if step == 3:
                begun.set()
            await asyncio.sleep(0.002)
        await worker.finish()
        await table.pull()

    async def read(cluster: aiops.LocalCluster) -> None:
        await begun.wait()
        async with cluster.connect("reader") as worker:
            await worker.finish()
            table = await worker.table("shared")
            seen = 0
            async for _, _ in table.updates():
                await table.pull(rows=[1, 39])
                seen += 1
                if seen == 4:
                    break

    async def come_late(cluster: aiops.LocalCluster) -> None:
        await begun.wait()
        async with cluster.connect("late") as worker:
            table = await worker.table("shared")
            for _ in range(3):
                await table.push_pull(np.full((40, 5), 2, np.float32))
                await worker.tick()

    async with guarded(), aiops.LocalCluster(servers=2) as cluster:
        await asyncio.gather(cluster.run(train, workers=2), read(cluster), come_late(cluster))
    verdict = verdict_on(history)
    assert verdict.violations == []
    assert verdict.workers == 4


async def test_unknown_outcomes_are_written_as_such_and_accepted(history: Path) -> None:
    """A push that timed out in a black hole takes effect when the hole is over."""
    async with guarded(), ChaosCluster(servers=1) as cluster:
        (proxy,) = cluster.proxies
        async with cluster.connect("one") as worker:
            table = await worker.table(
                "shared", shape=(4,), optimizer=Add(), consistency=aiops.ASP()
            )
            await table.push(np.array([1, 0, 0, 0], np.float32))
            proxy.hold()
            with pytest.raises(RequestTimeout):
                await table.push(np.array([0, 1, 0, 0], np.float32), timeout_s=0.05)
            cancelled = asyncio.ensure_future(table.push(np.array([0, 0, 1, 0], np.float32)))
            await asyncio.sleep(0)
            cancelled.cancel()
            proxy.release()
            values = await table.pull()
            await table.push(np.array([0, 0, 0, 1], np.float32))
            await table.pull()
        assert values[0] == 1
    verdict = verdict_on(history)
    assert verdict.violations == []
    assert verdict.unknown >= 1


async def test_a_worker_that_is_lost_and_started_again_is_accepted(history: Path) -> None:
    async def die_once(worker: aiops.Worker) -> Float32Array:
        table = await worker.table("shared", shape=(2,), optimizer=Add())
        async for step in worker.steps(4):
            await table.push(np.array([1, worker.rank], np.float32))
            if worker.rank == 1 and worker.incarnation == 1 and step == 2:
                raise RuntimeError("killed")
        return await table.pull()

    async with guarded(), ChaosCluster(servers=1, on_worker_loss="continue") as cluster:
        cluster.scheduler.expect_workers(2)

        async def live(name: str) -> None:
            async with cluster.connect(name) as worker:
                await die_once(worker)

        survivor = asyncio.ensure_future(live("worker-0"))
        with pytest.raises(RuntimeError, match="killed"):
            await live("worker-1")
        await asyncio.gather(survivor, live("worker-1"))
    verdict = verdict_on(history)
    assert verdict.violations == []
    assert verdict.workers == 3


async def test_a_server_without_dedup_is_found_out(
    history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent again after a cut is then applied again."""

    def credulous(self: Inbox, incarnation: int, seq: int, answered_below: int) -> Judgement:
        return Judgement.APPLY

    monkeypatch.setattr(Inbox, "judge", credulous)
    monkeypatch.setattr(Inbox, "record", lambda *arguments: None)
    async with guarded(), ChaosCluster(servers=2) as cluster:
        for proxy in cluster.proxies:
            proxy.set("down", cut_every_bytes=2_001)
        await cluster.run(lambda worker: keep_ledger(worker, 40), workers=2)
        assert cluster.counters.cuts > 10
    verdict = verdict_on(history)
    assert "exactly-once" in {violation.promise for violation in verdict.violations}


@pytest.mark.parametrize("counts", [True, False], ids=["version", "values"])
@pytest.mark.parametrize("rule", [AspRule, BspRule])
async def test_a_server_that_forgets_a_push_is_found_out(
    history: Path, monkeypatch: pytest.MonkeyPatch, rule: type[Rule], counts: bool
) -> None:
    """It acknowledges the seventh push without having looked at it."""
    push, calls = rule.push, iter(range(10**6))

    def forgetful(
        self: Rule, rank: int, clock: int, where: Selection, gradient: Float32Array
    ) -> Outcome:
        if next(calls) == 6:
            if not counts:
                return ErrorCode.OK
            gradient = np.zeros_like(gradient)
        return push(self, rank, clock, where, gradient)

    monkeypatch.setattr(rule, "push", forgetful)
    async with guarded(), ChaosCluster(servers=1) as cluster:
        await cluster.run(lambda worker: keep_ledger(worker, 12), workers=2)
    verdict = verdict_on(history)
    assert "exactly-once" in {violation.promise for violation in verdict.violations}


async def test_the_folder_can_be_given_to_connect(tmp_path: Path) -> None:
    async with guarded(), aiops.LocalCluster() as cluster:
        job = cluster.scheduler.job
        async with connect(cluster, tmp_path) as worker:
            await worker.barrier("b")
    assert verdict_on(tmp_path / f"{job[:8]}-worker-0-1.jsonl").holds


async def test_a_folder_that_cannot_be_written_is_said_before_anything_begins(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("in the way")
    async with guarded(), aiops.LocalCluster(on_worker_loss="continue") as cluster:
        with pytest.raises(ConfigError, match="cannot write the history"):
            await connect(cluster, tmp_path / "file")
        async with cluster.connect() as worker:
            assert worker.world_size == 1


def connect(cluster: aiops.LocalCluster, folder: Path) -> Connecting:
    return aiops.connect(cluster.address, history=folder, heartbeat_thread=False)


async def test_without_a_history_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIOPS_HISTORY", raising=False)
    async with guarded(), aiops.LocalCluster() as cluster, cluster.connect() as worker:
        assert worker.main_customer.witness is None


async def test_a_killed_worker_leaves_what_it_had_begun(history: Path) -> None:
    """Nothing that may have taken effect is missing when a process dies without a word."""
    async with guarded(), aiops.LocalCluster() as cluster, cluster.connect("w") as worker:
        table = await worker.table("shared", shape=(4,), optimizer=Add(), consistency=aiops.ASP())
        await table.push(np.ones(4, np.float32))
        (run,) = read_runs(history)
        (push,) = run.workers[0].of_kind("push")
        assert push.outcome in ("ok", "unknown")
        assert push.parts[0].asked.values == [1, 1, 1, 1]


async def test_an_error_is_the_users_and_in_the_history_too(history: Path) -> None:
    async with (
        guarded(),
        aiops.LocalCluster() as cluster,
        cluster.connect("patient") as worker,
        cluster.connect("absent"),
    ):
        with pytest.raises(BarrierTimeout):
            await worker.barrier("never", timeout_s=0.01)
    (run,) = read_runs(history)
    (barrier,) = run.workers[0].of_kind("barrier")
    assert barrier.outcome == "unknown"
    assert barrier.error.startswith("BarrierTimeout")
    assert [worker.closed.clean for worker in run.workers if worker.closed] == [True, True]
