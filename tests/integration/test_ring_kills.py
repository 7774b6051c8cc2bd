"""Members of a ring die by SIGKILL, in processes of their own; the others go on.

`make test` kills a member in each phase of a call, `make ring-kills` one of four at two hundred
random moments.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest

import aiops
from aiops.roles.restarts import LOSSES_MAX, WINDOW_S
from nursery import Child, Line, Nursery

HEARTBEAT_S: Final = 0.5
WITHIN_S: Final = 60.0
ROUNDS: Final = 200
KEPT: Final = 1000
"""Results of so many calls are remembered, to be compared with those of members that are late."""

PROGRAM: Final = Path(__file__).resolve().parents[1] / "support" / "ring_member.py"
PHASES: Final = {
    "tcp": ("RingBegin", "RingPiece-1", "RingPiece-9", "RingConfirm", "between-5"),
    # Before it says that it has come, and that its part is there; computing, and copying.
    "shared-memory": ("_tell-1", "_tell-2", "_reduce", "_gather", "between-5"),
}


async def reaches(member: Child, event: str, generation: int, size: int | None = None) -> None:
    """Wait until the newest line of an event is of a generation that is as high (and as large)."""

    def there() -> bool:
        line = member.last.get(event)
        return (
            line is not None
            and line["generation"] >= generation
            and size in (None, len(line.get("members", ())))
        )

    await member.until(there)


class Job:
    """Members of one ring, and a cluster in this process."""

    def __init__(self, cluster: aiops.LocalCluster, nursery: Nursery, transport: str) -> None:
        self.cluster = cluster
        self.nursery = nursery
        self.transport = transport
        self.members: dict[str, Child] = {}
        self._results: dict[tuple[int, int], int] = {}
        self._used: dict[Child, tuple[int, int]] = {}
        self._wrong: list[str] = []
        self._deaths: dict[str, deque[float]] = {}
        self._names = (f"worker-{number}" for number in count(100))

    async def start(
        self, name: str, phase: str = "", number: signal.Signals = signal.SIGKILL
    ) -> Child:
        """Start a member; the signal strikes it in the given phase, if any."""
        member = await self.nursery.start(
            *(name, self.cluster.address, name, self.transport, phase, str(int(number))),
            heard=self._heard,
        )
        self.members[name] = member
        return member

    def _heard(self, member: Child, line: Line) -> None:
        if line["event"] == "formed":
            # Everything has had its first use by the third generation.
            used = line["files"], line["segments"]
            if member.counts["formed"] <= 3:
                self._used[member] = used
            most = self._used[member][0] + 8, self._used[member][1] + 8
            if used[0] > most[0] or used[1] > most[1]:
                self._wrong.append(f"{member.name} keeps files and segments: {used}")
        elif line["event"] == "call":
            key = line["generation"], line["call"]
            if self._results.setdefault(key, line["crc"]) != line["crc"]:
                self._wrong.append(f"call {key} ended differently on {member.name}")
            while len(self._results) > KEPT:
                del self._results[next(iter(self._results))]

    async def formed(self, size: int, after: int = 0) -> int:
        """Wait until all members are in one generation of this size; returns its number."""

        for member in list(self.members.values()):
            await reaches(member, "formed", after + 1, size)
        (generation,) = {m.last["formed"]["generation"] for m in self.members.values()}
        return int(generation)

    async def kill(self, name: str) -> float:
        """Kill a member; returns when."""
        victim = self.members.pop(name)
        victim.signal(signal.SIGKILL)
        at = time.monotonic()
        self._deaths.setdefault(name, deque(maxlen=LOSSES_MAX)).append(at)
        await victim.end()
        return at

    def name_like(self, name: str) -> str:
        """Return a name for the next member: this one, unless it would be refused by now."""
        deaths = self._deaths[name]
        often = len(deaths) == LOSSES_MAX and time.monotonic() - deaths[0] < 2 * WINDOW_S
        return next(self._names) if often else name

    async def finish(self) -> None:
        """Let all stop after one common call; nobody may have crashed."""
        for member in self.members.values():
            member.say("x")
        for member in self.members.values():
            await member.end()
            assert (member.code, "end" in member.last) == (0, True), str(member)
        self.check()

    def check(self) -> None:
        """All results were the same everywhere, and nobody has kept files or memory."""
        assert not self._wrong, self._wrong[:3]


@asynccontextmanager
async def job_of(size: int, transport: str) -> AsyncIterator[Job]:
    """Run members until the end of the block."""
    async with (
        aiops.LocalCluster(on_worker_loss="continue") as cluster,
        Nursery(PROGRAM, WITHIN_S) as nursery,
    ):
        cluster.scheduler.expect_workers(size)
        job = Job(cluster, nursery, transport)
        for rank in range(size):
            await job.start(f"worker-{rank}")
        await job.formed(size)
        yield job


@pytest.mark.parametrize("transport", PHASES)
async def test_a_member_that_dies_in_any_phase_ends_the_call_and_the_rest_go_on(
    transport: str,
) -> None:
    async with job_of(2, transport) as job:
        survivors = list(job.members.values())
        for phase in PHASES[transport]:
            aborts = [member.counts.get("abort", 0) for member in survivors]
            victim = await job.start("worker-2", phase)
            await victim.end()
            assert (victim.code, "struck" in victim.last) == (None, True), str(victim)
            del job.members["worker-2"]
            generation = await job.formed(2, victim.last["formed"]["generation"])
            for member, before in zip(survivors, aborts, strict=True):
                assert member.counts["abort"] == before + 1
                abort = member.last["abort"]
                assert (abort["cause"], abort["lost"]) == ("lost", [2])
                assert "worker 2 (worker-2) is lost" in abort["text"]
                await reaches(member, "call", generation)
        await job.finish()


@pytest.mark.skipif("not config.getoption('--ring-kills')", reason="make ring-kills")
@pytest.mark.parametrize("transport", PHASES)
async def test_two_hundred_members_die_at_random_moments(transport: str) -> None:
    """A replacement comes at once, or when the others have gone on without it."""
    seed = os.environ.get("AIOPS_SEED", "ring")
    chance = random.Random(seed)
    told_s: list[float] = []
    formed_s: list[float] = []
    named = set(os.listdir("/dev/shm"))
    async with job_of(4, transport) as job:
        generation = await job.formed(4)
        for number in range(int(os.environ.get("AIOPS_ROUNDS", ROUNDS))):
            await asyncio.sleep(chance.uniform(0.0, 0.15))
            name = chance.choice(list(job.members))
            killed_at = await job.kill(name)
            survivors = list(job.members.values())
            if chance.random() < 0.5:
                await job.start(job.name_like(name))
            else:
                await job.formed(3, generation)
                await job.start(job.name_like(name))
            for member in survivors:
                await reaches(member, "formed", generation + 1)
                told_s.append(member.last["abort"]["at"] - killed_at)
                formed_s.append(member.last["formed"]["at"] - killed_at)
            generation = await job.formed(4, generation)
            job.check()
            if number % 10 == 9:
                print(f"{transport}, seed {seed}: {number + 1} rounds", flush=True)
        await job.finish()
    assert set(os.listdir("/dev/shm")) <= named
    for what, times in (("told", told_s), ("in the next generation", formed_s)):
        print(f"{what} after {statistics.median(times):.2f} s, at most {max(times):.2f} s")
    assert statistics.median(told_s) < 8 * HEARTBEAT_S
