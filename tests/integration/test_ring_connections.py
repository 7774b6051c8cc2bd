"""Several connections between two members: pieces may come over any of them, in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aiops
from aiops.errors import CollectiveAborted, UsageError
from aiops.runtime.ring_peer import CONNECTIONS_MAX
from aiops.van.link import Link
from aiops.van.tcp_stream import TcpStream
from aiops.workers.ring import Ring
from local_jobs import local_job, until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

COUNT = 400_001  # two pieces of each chunk, with three members


def lanes(ring: Ring) -> list[list[int]]:
    """What has come over each connection, for each other member."""
    return [
        [lane.link.bytes_received for lane in peer.lanes if lane.link is not None]
        for peer in ring._group.peers.values()
    ]


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be acknowledged, so that what was sent before counts as on its way."""

    def sent(stream: TcpStream) -> int:
        link = stream._handler
        assert isinstance(link, Link)
        return link.bytes_sent

    monkeypatch.setattr(TcpStream, "unacknowledged_bytes", property(sent))


async def reduce_all(ring: Ring, **options: Any) -> bytes:
    sums = []
    for number in range(2):
        array = np.random.default_rng(10 * number + ring.rank).standard_normal(COUNT, np.float32)
        await ring.all_reduce(array, **options)
        sums.append(array.tobytes())
    return b"".join(sums)


@pytest.mark.parametrize("options", [{}, {"algorithm": "halving-doubling"}])
async def test_the_bits_do_not_depend_on_the_connections(options: dict[str, Any]) -> None:
    async def member(worker: aiops.Worker) -> bytes:
        ring = await worker.ring("r", transport="tcp", connections=1 if ring_of_one else 3)
        return await reduce_all(ring, **options)

    results = []
    for ring_of_one in (True, False):  # noqa: B007  # read by member
        async with local_job() as cluster:
            results += await cluster.run(member, workers=3)
    assert len(set(results)) == 1


@pytest.mark.usefixtures("spread")
@pytest.mark.parametrize("options", [{}, {"compression": "fp16"}])
async def test_pieces_come_over_all_connections_in_any_order(options: dict[str, Any]) -> None:
    async def member(worker: aiops.Worker) -> tuple[bytes, list[list[int]]]:
        ring = await worker.ring("r", transport="tcp", connections=3)
        return await reduce_all(ring, **options), lanes(ring)

    async with local_job() as cluster:
        results = await cluster.run(member, workers=3)
    assert len({sums for sums, _ in results}) == 1
    for _, received in results:
        assert all(len(some) == 3 for some in received)
        pieces = [size > 100_000 for some in received for size in some]
        assert sum(pieces) > 1, "one connection has carried everything"


async def test_who_dials_says_how_many_connections_there_are() -> None:
    async def member(worker: aiops.Worker) -> list[list[int]]:
        ring = await worker.ring("r", transport="tcp", connections=(2, 4, 1)[worker.rank])
        await reduce_all(ring)
        await ring.barrier()
        return [[len(peer.lanes)] for peer in ring._group.peers.values()]

    async with local_job() as cluster:
        counted = await cluster.run(member, workers=3)
    assert counted[0] == [[2], [2]]
    assert [counted[1][0][0] >= 2, counted[1][1]] == [True, [4]]
    assert counted[2] == [[2], [4]]


async def test_who_is_late_keeps_what_comes_over_all_connections() -> None:
    """As many bytes of pieces as may come early, and the words of the call over each of them."""

    async def member(worker: aiops.Worker) -> None:
        ring = await worker.ring("r", transport="tcp", connections=CONNECTIONS_MAX)
        shapes: list[tuple[int, ...]] = [*[(3, 5 + n % 7) for n in range(100)], (5 * COUNT,)]
        arrays = [np.ones(shape, np.float32) for shape in shapes]
        await ring.barrier()
        if ring.rank == 1:
            early = ring._group._early
            await until(lambda: len(early.of(2)) == 2 + CONNECTIONS_MAX or ring._group._timers)
        await ring.all_reduce(arrays)
        assert all((array == 2).all() for array in arrays)

    async with local_job() as cluster:
        await cluster.run(member, workers=2)


async def test_a_loss_ends_all_connections() -> None:
    async def member(worker: aiops.Worker) -> None:
        ring = await worker.ring("r", transport="tcp", connections=3)
        await reduce_all(ring)
        if worker.rank == 1:
            raise RuntimeError("gone")
        former = ring._group
        with pytest.raises(CollectiveAborted):
            await reduce_all(ring)
        await ring.reform()
        await reduce_all(ring)
        await former.wait_closed()
        assert former.closed

    async with local_job(on_worker_loss="continue") as cluster:
        with pytest.raises(RuntimeError, match="gone"):
            await cluster.run(member, workers=3)


@pytest.mark.parametrize("connections", [0, 9])
async def test_a_number_that_cannot_be(connections: int) -> None:
    async def member(worker: aiops.Worker) -> None:
        await worker.ring("r", transport="tcp", connections=connections)

    async with local_job() as cluster:
        with pytest.raises(UsageError, match=rf"connections is {connections}; it can be 1 to 8"):
            await cluster.run(member, workers=1)


async def test_the_number_of_the_first_ring_holds_for_all() -> None:
    async def member(worker: aiops.Worker) -> None:
        await worker.ring("one", transport="tcp", connections=2)
        await worker.ring("two", transport="tcp")
        await worker.ring("three", transport="tcp", connections=3)

    async with local_job() as cluster:
        with pytest.raises(UsageError, match=r"connections is 3, but .* was 2; give it there"):
            await cluster.run(member, workers=1)
