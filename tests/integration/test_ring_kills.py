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
    # Of three members rank 2 shares the host of rank 0, and rank 1 is on another one: it is no
    # lane. Of four there are two on each, and all are.
    "hosts": ("_tell-1", "_fold", "RingPiece-1", "_tell-2", "RingConfirm", "between-5"),
}


@pytest.mark.parametrize(
    ("transport", "others"), [("tcp", 2), ("shared-memory", 2), ("hosts", 2), ("hosts", 3)]
)
async def test_a_member_that_dies_in_any_phase_ends_the_call_and_the_rest_go_on(
    transport: str, others: int, request: pytest.FixtureRequest
) -> None:
    if others == 3 and not request.config.getoption("--ring-kills"):
        pytest.skip("make ring-kills")
    name = f"worker-{others}"
    async with job_of(others, transport) as job:
        survivors = list(job.members.values())
        for phase in PHASES[transport]:
            aborts = [member.counts.get("abort", 0) for member in survivors]
            victim = await job.start(name, phase)
            await victim.end()
            assert (victim.code, "struck" in victim.last) == (None, True), str(victim)
            del job.members[name]
            generation = await job.formed(others, victim.last["formed"]["generation"])
            for member, before in zip(survivors, aborts, strict=True):
                assert member.counts["abort"] == before + 1
                abort = member.last["abort"]
                assert (abort["cause"], abort["lost"]) == ("lost", [others])
                assert f"worker {others} ({name}) is lost" in abort["text"]
                await reaches(member, "call", generation)
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
