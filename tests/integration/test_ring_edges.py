"""Rings at their edges: what is rounded away, and lists of hundreds of arrays."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiops
from aiops.errors import CollectiveAborted, CollectiveMismatch
from aiops.runtime.ring_desk import RingDesk
from aiops.workers.ring import Ring
from aiops_protocol.frames import RingBegin, RingPiece
from apart import by_transport, run_members
from local_jobs import until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@pytest.fixture(autouse=True, params=["tcp", "shared-memory", "hosts"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run every test over each."""
    return by_transport(request.param, monkeypatch)


@pytest.mark.parametrize("count", [10, 50_000])
async def test_a_mean_that_is_rounded_is_no_error(count: int) -> None:
    """Also where numpy was told to raise one: the others have the result by then."""

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.full(count, 1e-45 * (ring.rank == 0), np.float32)
        await ring.all_reduce(array, "mean")
        assert (array == 0).all()
        await ring.reduce_scatter(np.full(count, 1e-45 * ring.rank, np.float32), "mean")

    with np.errstate(all="raise"):
        await run_members(3, member)


@pytest.mark.parametrize("differs", ["op", "the last shape"])
async def test_a_mismatch_in_a_list_of_hundreds_is_found(differs: str) -> None:
    """The words in which members compare their calls are bounded, what they say is not."""

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        other = ring.rank == 1
        shapes = [*[(3, 1 + number % 7) for number in range(400)], (6, 2)]
        if differs == "the last shape" and other:
            shapes[-1] = (2, 6)
        arrays = [np.full(shape, 7, np.float32) for shape in shapes]
        op = "max" if differs == "op" and other else "sum"
        with pytest.raises(CollectiveMismatch) as caught:
            await ring.all_reduce(arrays, op)  # type: ignore[arg-type]
        assert all((array == 7).all() for array in arrays)
        if differs == "op":
            assert 'op="max"' in str(caught.value)
            assert 'op="sum"' in str(caught.value)
        assert len(str(caught.value)) < 1024

    await run_members(4, member)


async def test_a_piece_that_came_early_and_fits_nothing_ends_the_call_for_all(
    transport: str,
) -> None:
    if transport != "tcp":
        pytest.skip("nothing comes early but over TCP")

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        await ring.barrier()
        group = ring._group
        if ring.rank == 0:
            piece = RingPiece(
                operation=2,
                ring=group.formed.ring,
                generation=1,
                begin=10**6,
                message=9,
                count=1,
                payload=bytes(4),
            )
            group.peer_frame(group.peers[1], piece)
        array = np.ones(10, np.float32)
        with pytest.raises(CollectiveAborted, match=r"worker 1 .* sent no 1 words from 1000000"):
            await ring.all_reduce(array, timeout_s=10)
        assert (array == 1).all()

    await run_members(2, member)


async def test_wrong_frames_for_a_ring_that_is_not_formed_here_end_its_call_and_no_more(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are kept until the scheduler says that it is formed, and the talk with it goes on."""
    if transport != "tcp":
        pytest.skip("members of one host do not connect over TCP")
    formed = RingDesk._formed
    late: list[asyncio.Task[None]] = []

    async def formed_late(desk: RingDesk, seat: object, message: object) -> None:
        await until(lambda: any(kept.frames for kept in desk._strangers.values()))
        formed(desk, seat, message)  # type: ignore[arg-type]

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        await ring.barrier()
        if ring.rank == 1:

            def put_off(desk: RingDesk, *told: object) -> None:
                if desk is ring._desk and not late:
                    late.append(asyncio.create_task(formed_late(desk, *told)))
                else:
                    formed(desk, *told)  # type: ignore[arg-type]

            monkeypatch.setattr(RingDesk, "_formed", put_off)
        await worker.barrier("put-off")
        await ring.reform()
        if ring.rank == 0:
            group = ring._group
            ahead = RingBegin(operation=100, ring=group.formed.ring, generation=2)
            group.peers[1].dial(group._van, group._postoffice, 10.0)
            group.peers[1].send(ahead)
        else:
            await late[0]
        array = np.ones(10, np.float32)
        with pytest.raises(CollectiveAborted, match=r"operation 100 .* too far ahead"):
            await ring.all_reduce(array, timeout_s=10)
        await ring.reform()
        await ring.all_reduce(array)
        assert (array == 2).all()

    await run_members(2, member)
