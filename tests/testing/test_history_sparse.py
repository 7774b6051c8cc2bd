"""Histories of sparse tables: delivery, order and rounds are checked, values are not recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP, SSP
from aiops.consistency import Consistency
from aiops.optim import Add
from aiops.testing.history import Verdict, verify
from aiops_protocol.delivery import Inbox
from aiops_protocol.delivery import Verdict as Judgement
from local_jobs import local_job

KEYS = 60


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Record, with the values of every table that is named, as if they were dense."""
    monkeypatch.setenv("AIOPS_HISTORY", str(tmp_path))
    monkeypatch.setenv("AIOPS_HISTORY_VALUES", "asp,bsp,ssp")
    return tmp_path


async def train(worker: aiops.Worker, modes: tuple[Consistency, ...]) -> None:
    tables = [
        await worker.sparse_table(mode.mode, 2, optimizer=Add(), consistency=mode) for mode in modes
    ]
    keys = np.arange(KEYS) * (1 + worker.rank)
    async for _ in worker.steps(5):
        for table in tables:
            await table.pull(keys)
            await table.push(keys, np.ones((KEYS, 2), np.float32))
            await table.assign(keys[:2] + 1_000_000, np.ones((2, 2), np.float32))
    await worker.finish()
    for table in tables:
        await table.pull(keys)


async def verdict_of_a_run(folder: Path, *modes: Consistency) -> Verdict:
    async with local_job(servers=2) as cluster:
        await cluster.run(lambda worker: train(worker, modes), workers=2)
    (verdict,) = verify(folder)
    return verdict


async def test_a_good_run_is_accepted(history: Path) -> None:
    verdict = await verdict_of_a_run(history, ASP(), BSP(), SSP(staleness=1))
    assert not verdict.violations


async def test_a_push_that_was_acknowledged_and_lost_is_found(
    history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes some pushes for repeats."""
    judge = Inbox.judge
    calls = iter(range(10_000))

    def forgetful(self: Inbox, incarnation: int, seq: int, answered_below: int) -> Judgement:
        verdict = judge(self, incarnation, seq, answered_below)
        return Judgement.DUPLICATE if next(calls) % 7 == 6 else verdict

    monkeypatch.setattr(Inbox, "judge", forgetful)
    verdict = await verdict_of_a_run(history, ASP())
    assert verdict.violations
