"""Rings whose members share memory, all of them or those of a host: what only memory can do."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiops
from aiops.collective.shared import Doorbell
from aiops.collective.shared.pages import create_segment
from aiops.errors import CollectiveAborted
from aiops.runtime.ring_meeting import MeetingRingGroup
from aiops.workers.ring import Ring
from apart import by_transport, run_members
from local_jobs import local_job, until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@pytest.fixture(autouse=True, params=["shared-memory", "hosts"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run every test for one host, and for several."""
    return by_transport(request.param, monkeypatch)


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), MemoryError("nothing left")])
async def test_without_memory_to_share_the_call_ends_for_all(
    error: Exception, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error on all members, and nobody waits."""

    def none_for_large(size: int) -> Any:
        if size > 1_000_000:
            raise error
        return create_segment(size)

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.full(400_000, 7, np.float32)
        await ring.barrier()
        monkeypatch.setattr("aiops.collective.shared.memory.create_segment", none_for_large)
        with pytest.raises(CollectiveAborted, match=str(error.args[-1])):
            await ring.all_reduce(array)
        assert (array == 7).all()
        await until(lambda: ring.broken)
        monkeypatch.setattr("aiops.collective.shared.memory.create_segment", create_segment)
        await ring.reform()
        await ring.all_reduce(array)
        assert (array == 21).all()

    await run_members(3, member)


async def test_a_member_that_is_lost_while_all_connect_keeps_nobody_waiting(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet = Doorbell.meet
    last = 1 if transport == "hosts" else 2

    async def one_dies(bell: Doorbell, group: str, index: int, *arguments: Any) -> Any:
        if index == last:  # which the others wait for: it is the one that dials
            raise RuntimeError("gone")
        return await meet(bell, group, index, *arguments)

    monkeypatch.setattr(Doorbell, "meet", one_dies)
    async with local_job(on_worker_loss="continue") as cluster:

        async def work(worker: aiops.Worker) -> None:
            async def begin() -> None:
                ring = await worker.ring("r", timeout_s=60)
                await ring.barrier()  # who is alone on its host has not waited for anybody

            with pytest.raises(CollectiveAborted, match="is lost: RuntimeError: gone"):
                await begin()
            ring = await worker.ring("r", timeout_s=60)
            if ring.broken:
                await ring.reform()
            assert ring.world_size == 2
            await ring.barrier()

        with pytest.raises(RuntimeError, match="gone"):
            await cluster.run(work, workers=3)


@pytest.mark.parametrize("late", [False, True])
async def test_a_member_that_is_lost_while_the_ring_is_formed_anew_costs_another_generation(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`reform` ends well and the next call says it, whether it is heard of while the members of a
    host connect, or (`late`) before a member has begun to."""
    meet = MeetingRingGroup.meet

    async def one_dies(group: MeetingRingGroup, *arguments: Any) -> None:
        if group.formed.generation == 2:
            if group.index == 2:
                raise RuntimeError("gone")
            if late:
                await until(lambda: group.over)
        await meet(group, *arguments)

    monkeypatch.setattr(MeetingRingGroup, "meet", one_dies)
    went_on = []

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        await ring.barrier()
        if ring.rank == 0:
            await ring.leave()
        with pytest.raises(CollectiveAborted):
            await ring.barrier()
        await ring.reform()
        with pytest.raises(CollectiveAborted, match="is lost: RuntimeError: gone"):
            await ring.all_reduce(np.ones(10, np.float32))
        await ring.reform()
        array = np.ones(50_000, np.float32)
        await ring.all_reduce(array)
        assert (array == 3).all()
        went_on.append(ring.rank)

    with pytest.raises(RuntimeError, match="gone"):
        await run_members(4, member, on_worker_loss="continue")
    assert sorted(went_on) == [0, 1, 2]


async def test_memory_of_a_generation_goes_with_it_not_with_the_next_garbage_collection(
    transport: str,
) -> None:
    """An error keeps the frames that it has passed, and what they look at."""

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:aiops-ring")

    async def member(worker: aiops.Worker, ring: Ring) -> list[int]:
        seen = []
        for _ in range(4):
            await ring.barrier()
            if ring.rank:
                await ring.leave()
            with pytest.raises(CollectiveAborted):
                await ring.all_reduce(np.ones(100_000, np.float32))
            await ring.reform()
            await ring.barrier()
            seen.append(mapped())
        return seen

    gc.disable()
    try:
        for seen in await run_members(3, member):
            assert max(seen) <= seen[0], seen
    finally:
        gc.enable()
