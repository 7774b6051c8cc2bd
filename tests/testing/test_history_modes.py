"""Histories of real SSP and quorum runs: good ones are accepted, those of broken rules are not."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP, SSP, Quorum
from aiops.optim import Add
from aiops.roles import quorum_rule
from aiops.roles.bounded import SspRule
from aiops.testing import ChaosCluster, Faults, Weather
from aiops.testing.history import Verdict, verify
from local_jobs import guarded

RAIN = Weather(Faults(delay_s=0.0005, jitter_s=0.001), cut_every_s=0.05, seed=5)
NAMES = ("asp", "ssp", "drop", "next", "weighted", "median", "slowest")


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let every worker of the test write its history; return the folder."""
    monkeypatch.setenv("AIOPS_HISTORY", str(tmp_path / "history"))
    monkeypatch.setenv("AIOPS_HISTORY_VALUES", ",".join(NAMES))
    return tmp_path / "history"


def verdict_on(folder: Path) -> Verdict:
    (verdict,) = verify(folder)
    return verdict


async def every_mode(worker: aiops.Worker) -> dict[str, dict[int, int]]:
    """Change tables of all modes in uneven steps, and read them all the time."""
    rng = random.Random(worker.rank)
    shape = (40,)
    modes: dict[str, aiops.consistency.Consistency] = {
        "asp": ASP(),
        "ssp": SSP(staleness=1),
        "drop": Quorum(2, grace_s=0),
        "next": Quorum(2, grace_s=0.002, late="next"),
        "weighted": BSP(),
        "median": BSP(reduce="median"),
        "slowest": BSP(drop_slowest=1),
    }
    tables = {
        name: await worker.table(name, shape, optimizer=Add(), consistency=mode)
        for name, mode in modes.items()
    }
    ones = np.ones(shape, np.float32)
    await worker.barrier("open")
    for step in range(8 + 2 * worker.rank):
        for name, table in tables.items():
            await table.pull()
            weight = rng.randint(1, 5) if table.core.takes_weights else None
            if rng.random() < 0.9:
                value = np.float32(2 ** (worker.rank % 4) * (1 + step % 7))
                await table.push(ones * value, weight=weight)
            if name == "asp":
                await asyncio.sleep(rng.choice([0, 0.002, 0.004]))
        await worker.tick()
    await worker.finish()
    for table in tables.values():
        await table.pull()
    await worker.barrier("end")
    counted = worker.stats()["tables"]
    return {name: counted[name]["staleness"] for name in ("asp", "ssp")}


@pytest.mark.parametrize("weather", [Weather(), RAIN], ids=["calm", "rain"])
async def test_runs_of_every_mode_are_accepted(history: Path, weather: Weather) -> None:
    async with guarded(), ChaosCluster(servers=2, weather=weather) as cluster:
        counts = await cluster.run(every_mode, workers=3)
    verdict = verdict_on(history)
    assert verdict.violations == []
    modes = {"asp": "asp", "ssp": "ssp", "drop": "quorum", "next": "quorum", "weighted": "bsp"}
    assert verdict.tables == {**modes, "median": "bsp", "slowest": "quorum"}
    for name in ("asp", "ssp"):
        merged: dict[int, int] = {}
        for count in counts:
            for bucket, number in count[name].items():
                merged[bucket] = merged.get(bucket, 0) + number
        assert verdict.staleness[name] == dict(sorted(merged.items())), "as the checker counts it"
        assert max(merged) > 0


async def slow_and_fast(worker: aiops.Worker) -> None:
    """Worker 1 begins when worker 0 is two clocks ahead, one more than it may be."""
    table = await worker.table("ssp", (4,), optimizer=Add(), consistency=SSP(staleness=1))
    await worker.barrier("open")
    if worker.rank:
        await worker.barrier("ahead")
    for step in range(6):
        await table.pull()
        if step == 2 and not worker.rank:
            await worker.barrier("ahead")
        await table.push(np.ones(4, np.float32))
        await worker.tick()
    await worker.barrier("end")


async def test_a_gate_that_is_too_wide_is_found(
    history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wide(self: SspRule, version: int) -> bool:
        return self.floor.value >= version - self._staleness - 1

    monkeypatch.setattr(SspRule, "readable", wide)
    async with guarded(), aiops.LocalCluster(servers=1) as cluster:
        await cluster.run(slow_and_fast, workers=2)
    assert "staleness" in {violation.promise for violation in verdict_on(history).violations}


async def test_a_contribution_that_is_dropped_from_one_shard_is_found(
    history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards that carry another decision out than the one that was made."""
    close = quorum_rule.QuorumRule.close

    def forgetful(self: quorum_rule.QuorumRule) -> list[int]:
        if not self.rounds.leads and len(self._decisions[0]) > 1:
            self._decisions[0] = self._decisions[0][1:]
        return close(self)

    async def push(worker: aiops.Worker) -> None:
        table = await worker.table(
            "drop", (40,), optimizer=Add(), consistency=Quorum(2, grace_s=5, reduce="sum")
        )
        for _ in range(3):
            await table.push(np.full(40, 10**worker.rank, np.float32))
            await worker.tick()
            await table.pull()

    monkeypatch.setattr(quorum_rule.QuorumRule, "close", forgetful)
    async with guarded(), aiops.LocalCluster(servers=2) as cluster:
        await cluster.run(push, workers=3)
    verdict = verdict_on(history)
    assert "exactly-once" in {violation.promise for violation in verdict.violations}
