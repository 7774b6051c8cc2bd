"""Members of a ring are stopped by SIGSTOP, shortly and for too long, and go on after SIGCONT.

`make test` stops one in two phases over each transport, `make ring-kills` in each phase. It is the
table of docs/explanation/collectives.md.
"""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path
from typing import Final

import pytest

from nursery import Child
from ring_job import WITHIN_S, Job, job_of

PHASES: Final = {
    "tcp": ("RingPiece-1", "RingConfirm", "RingBegin", "RingPiece-9", "between-5"),
    "shared-memory": ("_reduce", "_gather", "_tell-1", "_tell-2", "between-5"),
    # The others are on two hosts, and the victim on one of them.
    "hosts": ("_fold", "RingPiece-1", "_tell-1", "_tell-2", "RingConfirm", "between-5"),
}
CASES: Final = [("tcp", 2), ("shared-memory", 2), ("hosts", 2), ("hosts", 3)]
"""With how many others the victim is; of four on two hosts each takes part between them, of three
the victim does not."""
ALWAYS: Final = 2
POLL_S: Final = 0.01  # nobody is told that a process of somebody else has stopped


def state_of(pid: int) -> str:
    """Return the letter that the system has for the state of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


async def stopped(member: Child) -> None:
    """Wait until a member has been stopped."""
    await member.until(lambda: "struck" in member.last)
    async with asyncio.timeout(WITHIN_S):
        while state_of(member.pid) != "T":
            await asyncio.sleep(POLL_S)


async def short_stop(job: Job, others: int, phase: str) -> None:
    """One that goes on before it is missed costs nobody anything."""
    aborts = {member: member.counts.get("abort", 0) for member in job.members.values()}
    generation = 1 + max(member.last["formed"]["generation"] for member in aborts)
    victim = await job.start(f"worker-{others + 1}", phase, signal.SIGSTOP)
    await stopped(victim)
    victim.signal(signal.SIGCONT)
    calls = victim.counts["call"]
    await victim.until(lambda: victim.counts["call"] > calls + 2)
    assert await job.formed(others + 1) == generation
    for member, before in aborts.items():
        assert member.counts.get("abort", 0) == before
    victim.signal(signal.SIGKILL)
    await victim.end()
    del job.members[f"worker-{others + 1}"]
    await job.formed(others, generation)


async def long_stop(job: Job, others: int, phase: str) -> None:
    """The others go on without one that is silent for too long; it hears of it when it wakes up."""
    survivors = list(job.members.values())
    victim = await job.start(f"worker-{others}", phase, signal.SIGSTOP)
    await stopped(victim)
    del job.members[f"worker-{others}"]
    generation = await job.formed(others, victim.last["formed"]["generation"])
    for member in survivors:
        assert member.last["abort"]["cause"] == "lost"
        assert f"worker {others} (worker-{others}) is lost" in member.last["abort"]["text"]
    calls = [member.counts["call"] for member in survivors]
    victim.signal(signal.SIGCONT)
    await victim.end()  # a replacement under its name would do, too
    assert "error" in victim.last, str(victim)
    assert victim.last["error"]["kind"] == "StaleIncarnation"
    # The connection for heartbeats says it, or that for control, which also says why.
    words = rf"given this worker up: worker {others}( .*)? was declared lost"
    assert re.search(words, victim.last["error"]["text"])
    for member, before in zip(survivors, calls, strict=True):
        await member.until(lambda m=member, n=before: m.counts["call"] > n + 2)  # type: ignore[misc]
        assert member.last["call"]["generation"] == generation


@pytest.mark.parametrize(("transport", "others"), CASES)
async def test_a_member_that_is_stopped(
    transport: str, others: int, request: pytest.FixtureRequest
) -> None:
    """The members compare every result with what it has to be, and their inputs after an abort."""
    everything = request.config.getoption("--ring-kills")
    if others == 3 and not everything:
        pytest.skip("make ring-kills")
    phases = PHASES[transport] if everything else PHASES[transport][:ALWAYS]
    async with job_of(others, transport) as job:
        for number, phase in enumerate(phases):
            if everything or number % ALWAYS:
                await short_stop(job, others, phase)
            if everything or not number % ALWAYS:
                await long_stop(job, others, phase)
        await job.finish()
