"""Members of a ring die by SIGKILL, in processes of their own; the others go on.

`make test` kills a member in each phase of a call, `make ring-kills` one of four at two hundred
random moments.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

import aiops

HEARTBEAT_S: Final = 0.5
WITHIN_S: Final = 60.0

PHASES: Final = {
    "tcp": ("RingBegin", "RingPiece-1", "RingPiece-9", "RingConfirm", "between"),
    # Before it says that it has come, and that its part is there; computing, and copying.
    "shared-memory": ("_tell-1", "_tell-2", "_reduce", "_gather", "between"),
}

MEMBER: Final = """
import asyncio, json, os, signal, sys, time, zlib
import numpy as np
import aiops
from aiops.collective.shared import SharedGroup
from aiops.errors import CollectiveAborted
from aiops.runtime.ring_group import RingGroup

phase = sys.argv[1] if len(sys.argv) > 1 else ""
kind, _, number = phase.partition("-")
seen = 0
take = RingGroup.peer_frame

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def counting(group, peer, frame):
    global seen
    if type(frame).__name__ == kind and group.done >= 4:
        seen += 1
        if seen == int(number or 1):
            die()
    take(group, peer, frame)

def dying(call):
    def method(group, *arguments):
        global seen
        if group.done >= 4:
            seen += 1
            if seen == int(number or 1):
                die()
        return call(group, *arguments)
    return method

if hasattr(SharedGroup, kind):
    setattr(SharedGroup, kind, dying(getattr(SharedGroup, kind)))
elif phase:
    RingGroup.peer_frame = counting

def say(event, **facts):
    facts["files"] = len(os.listdir("/proc/self/fd"))
    print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)

async def main():
    async with aiops.connect() as worker:
        told = asyncio.Event()
        asyncio.get_running_loop().add_reader(0, told.set)
        ring = await worker.ring(
            "r", timeout_s=60, call_timeout_s=60, transport=os.environ["RING_TRANSPORT"]
        )
        shared = ring.empty(1_300_000)
        call, generation, over = 0, 0, False
        while not over:
            size = 1_300_000 if call % 3 else 1000
            array = shared if call % 3 == 1 else np.empty(size, np.float32)
            array[:] = worker.rank + 1
            reduced = False
            try:
                if ring.generation != generation:
                    counter = np.full(1, call)
                    counter = counter.astype(np.float64)
                    first = next(i for i in range(ring.world_size) if i not in ring.newcomers)
                    await ring.broadcast(counter, root=first)
                    call, generation = int(counter[0]), ring.generation
                    say("formed", generation=generation, members=ring.workers)
                    continue
                await ring.all_reduce(array)
                reduced = True
                assert (array == sum(rank + 1 for rank in ring.workers)).all()
                say("call", call=call, generation=generation, crc=zlib.crc32(array.tobytes()))
                call += 1
                if phase == "between" and ring.generation == generation and call % 5 == 0:
                    die()
                stop = np.full(1, told.is_set(), np.float32)
                await ring.all_reduce(stop, "max")
                over = bool(stop[0])
            except CollectiveAborted as error:
                assert reduced or (array == worker.rank + 1).all()
                say("abort", cause=error.cause, lost=error.lost, text=str(error))
                await ring.reform()
            else:
                if ring.wanted and not over:
                    await ring.reform()
        say("end", calls=call)

aiops.run(main())
"""


class Member:
    """A process that makes calls until it is told to stop, and what it has said so far."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.news = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for text in self.process.stdout:
            try:
                self.lines.append(json.loads(text))
            except ValueError:
                self.lines.append({"event": "", "text": text.decode()})
            self.news.set()
        self.news.set()

    async def wait_for(self, event: str, seen: int = 0, **facts: Any) -> dict[str, Any]:
        """Return the first line like this behind the first `seen` lines."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                for line in self.lines[seen:]:
                    if line["event"] == event and facts.items() <= line.items():
                        return line
                assert not self._reading.done(), f"{self.name} is gone: {self.lines[-5:]}"
                self.news.clear()
                await self.news.wait()

    async def end(self) -> int:
        """Wait for its end; returns the exit code."""
        async with asyncio.timeout(WITHIN_S):
            code = await self.process.wait()
            await self._reading
        return code


class Job:
    """Members of one ring, and a cluster in this process."""

    def __init__(self, cluster: aiops.LocalCluster, transport: str) -> None:
        self.cluster = cluster
        self.transport = transport
        self.members: dict[str, Member] = {}
        self.all: list[Member] = []

    async def start(self, name: str, phase: str = "") -> Member:
        """Start a member; its death is of the given phase, if any."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MEMBER, *([phase] if phase else [])),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={
                **os.environ,
                "AIOPS_SCHEDULER": self.cluster.address,
                "AIOPS_NAME": name,
                "RING_TRANSPORT": self.transport,
            },
        )
        member = self.members[name] = Member(name, process)
        self.all.append(member)
        return member

    async def formed(self, size: int) -> None:
        """Wait until all members are in one generation of this size."""
        for member in self.members.values():
            async with asyncio.timeout(WITHIN_S):
                while True:
                    sizes = [len(x["members"]) for x in member.lines if x["event"] == "formed"]
                    if sizes and sizes[-1] == size:
                        break
                    assert member.process.returncode is None, member.lines[-5:]
                    member.news.clear()
                    await member.news.wait()

    def check(self) -> None:
        """Whoever has made a call of a generation has the same bits as the others."""
        results: dict[tuple[int, int], set[int]] = {}
        for member in self.all:
            for line in member.lines:
                assert line["event"], line
                if line["event"] == "call":
                    results.setdefault((line["generation"], line["call"]), set()).add(line["crc"])
        assert all(len(crcs) == 1 for crcs in results.values())

    async def finish(self) -> None:
        """Let all stop after one common call; nobody may have crashed or kept a file open."""
        for member in self.members.values():
            assert member.process.stdin is not None
            member.process.stdin.write(b"x")
        for member in self.members.values():
            assert await member.end() == 0, member.lines[-10:]
            files = [line["files"] for line in member.lines if line["event"] == "call"]
            assert files[-1] <= max(files[:10]) + 8, files


@asynccontextmanager
async def job_of(size: int, transport: str) -> AsyncIterator[Job]:
    """Run members until the end of the block."""
    async with aiops.LocalCluster(on_worker_loss="continue") as cluster:
        cluster.scheduler.expect_workers(size)
        job = Job(cluster, transport)
        try:
            for rank in range(size):
                await job.start(f"worker-{rank}")
            await job.formed(size)
            yield job
        finally:
            for member in job.all:
                if member.process.returncode is None:
                    member.process.kill()
                await member.end()


@pytest.mark.parametrize("transport", PHASES)
async def test_a_member_that_dies_in_any_phase_ends_the_call_and_the_rest_go_on(
    transport: str,
) -> None:
    async with job_of(2, transport) as job:
        survivors = list(job.members.values())
        for number, phase in enumerate(PHASES[transport]):
            seen = [len(member.lines) for member in survivors]
            victim = await job.start("worker-2", phase)
            assert await victim.end() == -signal.SIGKILL
            del job.members["worker-2"]
            for member, before in zip(survivors, seen, strict=True):
                abort = await member.wait_for("abort", before)
                assert (abort["cause"], abort["lost"]) == ("lost", [2])
                assert "worker 2 (worker-2) is lost" in abort["text"]
                await member.wait_for("call", before, generation=3 + 2 * number)
        await job.finish()
        job.check()


@pytest.mark.skipif("not config.getoption('--ring-kills')", reason="make ring-kills")
@pytest.mark.parametrize("transport", PHASES)
async def test_two_hundred_members_die_at_random_moments(transport: str) -> None:
    chance = random.Random(os.environ.get("AIOPS_SEED", "ring"))
    slowest_s = 0.0
    async with job_of(4, transport) as job:
        for _ in range(200):
            await asyncio.sleep(chance.uniform(0.0, 0.15))
            name = chance.choice(list(job.members))
            victim = job.members.pop(name)
            seen = {member: len(member.lines) for member in job.members.values()}
            loop = asyncio.get_running_loop()
            victim.process.kill()
            killed_at = loop.time()
            await victim.end()
            for member, before in seen.items():
                await member.wait_for("formed", before)
            slowest_s = max(slowest_s, loop.time() - killed_at)
            await job.start(name)
            await job.formed(4)
        await job.finish()
        job.check()
    print(f"slowest: {slowest_s:.2f} s from a death to the next generation")
    assert slowest_s < 8 * HEARTBEAT_S
