"""Members of a ring die by SIGKILL, in processes of their own; the others go on.

`make test` kills a member in each phase of a call, `make ring-kills` one of four at two hundred
random moments.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
from typing import Final

import pytest

from ring_job import job_of, reaches

HEARTBEAT_S: Final = 0.5
ROUNDS: Final = 200
PHASES: Final = {
    "tcp": ("RingBegin", "RingPiece-1", "RingPiece-9", "RingConfirm", "between-5"),
    # Before it says that it has come, and that its part is there; computing, and copying.
    "shared-memory": ("_tell-1", "_tell-2", "_reduce", "_gather", "between-5"),
    # Rank 2 shares the host of rank 0; rank 1 is on another one.
    "hosts": ("_tell-1", "_fold", "RingPiece-1", "_tell-2", "RingConfirm", "between-5"),
}


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


@pytest.mark.parametrize("transport", PHASES)
async def test_half_of_a_ring_dies_at_once(transport: str) -> None:
    """Over hosts these two are all of a host, and those that are left are alone on theirs."""
    async with job_of(4, transport) as job:
        generation = await job.formed(4)
        killed = [job.kill("worker-1"), job.kill("worker-3")]
        await asyncio.gather(*killed)
        await job.formed(2, generation)
        for member in job.members.values():
            assert member.last["abort"]["cause"] == "lost"
            assert set(member.last["abort"]["lost"]) <= {1, 3}
            await reaches(member, "call", generation + 1)
        await job.finish()


def shared_names() -> set[str]:
    """Names of shared memory; semaphores are those of other programs."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


@pytest.mark.skipif("not config.getoption('--ring-kills')", reason="make ring-kills")
@pytest.mark.parametrize("transport", PHASES)
async def test_two_hundred_members_die_at_random_moments(transport: str) -> None:
    """A replacement comes at once, or when the others have gone on without it."""
    seed = os.environ.get("AIOPS_SEED", "ring")
    chance = random.Random(seed)
    told_s: list[float] = []
    formed_s: list[float] = []
    named = shared_names()
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
    assert shared_names() <= named
    for what, times in (("told", told_s), ("in the next generation", formed_s)):
        print(f"{what} after {statistics.median(times):.2f} s, at most {max(times):.2f} s")
    assert statistics.median(told_s) < 8 * HEARTBEAT_S
