"""Members of one ring in processes of their own, that make calls until they are told to stop."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

import aiops
from aiops.roles.restarts import LOSSES_MAX, WINDOW_S
from nursery import Child, Line, Nursery

WITHIN_S: Final = 60.0
KEPT: Final = 1000
"""Results of so many calls are remembered, to be compared with those of members that are late."""

PROGRAM: Final = Path(__file__).resolve().parent / "ring_member.py"


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
            # Everything has had its first use by the third generation. How many files are open
            # goes up and down by a dozen afterwards: it is a matter of who has dialled whom, and
            # of how many connections of generations before are still being closed.
            used = line["files"], line["segments"]
            if member.counts["formed"] <= 3:
                self._used[member] = used
            most = self._used[member][0] + 16, self._used[member][1] + 8
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
