"""All-reduces of members on several hosts: memory on each host, TCP between them, one agreement.

What every ring promises is in `test_rings.py`, which runs over this, too. Here is what can only
happen with several hosts: unlike hosts, what goes over which way, and a fault at each step.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import numpy as np
import pytest

import aiops
from aiops.collective.member import Reduction
from aiops.collective.shared import supported
from aiops.errors import Closed, CollectiveAborted, CollectiveMismatch, UsageError
from aiops.runtime.ring_hosts import HostsRingGroup
from aiops.workers import ring_links
from aiops.workers.ring import Ring
from apart import on_hosts, run_members
from host_steps import Killed, Moment, watch
from local_jobs import local_job, turns, until

pytestmark = [
    pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"]),
    pytest.mark.skipif(not supported(), reason="shared memory needs Linux"),
]

SUMS: Final[dict[Reduction, Any]] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


def values(rank: int, count: int) -> Any:
    return np.random.default_rng((rank, count)).normal(size=count)


@pytest.mark.parametrize("hosts", [(0, 1, 1, 1), (0, 0, 1, 2, 2, 2), (1, 0, 2, 0, 1), (0, 1, 1, 0)])
async def test_the_same_bits_on_all_hosts(
    hosts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_hosts(monkeypatch, hosts.__getitem__)
    size = len(hosts)
    counts = (0, 1, size - 1, 1001, 50_000, 400_000)

    async def member(worker: aiops.Worker, ring: Ring) -> list[bytes]:
        assert ring.transport == "shared-memory+tcp"
        results = []
        for number, count in enumerate(counts):
            dtype = (np.float32, np.float64)[number % 2]
            given = [values(rank, count) for rank in range(size)]
            for op in SUMS:
                for array in (ring.empty(count, dtype), np.empty(count, dtype)):
                    array[:] = given[ring.rank]
                    await ring.all_reduce(array, op)
                    exact = SUMS[op](given, axis=0)
                    epsilon = size * np.finfo(dtype).eps * np.sum(np.abs(given), axis=0)
                    assert (np.abs(array - exact) <= epsilon).all()
                    results.append(array.tobytes())
        return results

    results = await run_members(size, member)
    assert all(result == results[0] for result in results)
    pairs = zip(results[0][::2], results[0][1::2], strict=True)
    assert all(shared == ordinary for shared, ordinary in pairs)


async def test_what_is_not_a_number_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    on_hosts(monkeypatch, lambda rank: rank % 2)

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.ones(20_000, np.float32)
        array[ring.rank] = np.nan
        array[10_000 + ring.rank] = np.inf
        array[15_000] = (-1.0) ** ring.rank * np.inf
        await ring.all_reduce(array)
        assert np.isnan(array[:4]).all()
        assert np.isposinf(array[10_000:10_004]).all()
        assert np.isnan(array[15_000])
        assert (array[[4, 9_999, 19_999]] == 4).all()

    await run_members(4, member)


async def test_between_hosts_go_the_sums_of_hosts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two lanes sends half of the array to the other host, and nothing within its own."""
    on_hosts(monkeypatch, lambda rank: rank % 2)
    count = 300_000
    sent: dict[int, dict[int, int]] = {}

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = ring.empty(count)
        array[:] = 1.0
        group = ring._group
        assert isinstance(group, HostsRingGroup)
        sent[ring.rank] = {}
        for index, peer in group.peers.items():
            take = peer.place

            def place(frame: Any, size: int, *, index: int = index, take: Any = take) -> Any:
                sent[ring.rank][index] = sent[ring.rank].get(index, 0) + size
                return take(frame, size)

            monkeypatch.setattr(peer, "place", place)
        before = ring.traffic
        await ring.all_reduce(array)
        after = ring.traffic
        assert (array == 4).all()
        lane = 4 * count // 2
        over_tcp, in_memory = lane, 4 * count
        assert after["sent"] - before["sent"] == over_tcp + in_memory
        assert after["received"] - before["received"] == over_tcp + in_memory

    await run_members(4, member)
    for rank, came in sent.items():
        pieces = {index: size for index, size in came.items() if size > 1000}
        assert pieces == {rank ^ 1: 2 * count}


async def test_auto_takes_it_for_long_arrays_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        on_hosts(patch, lambda rank: rank % 2)
        patch.setattr(Ring, "_choose", CHOOSE)

        async def member(worker: aiops.Worker, ring: Ring) -> None:
            assert ring.explain("all_reduce", 10).algorithm != "hierarchical"
            choice = ring.explain("all_reduce", 10_000_000)
            assert choice.algorithm == "hierarchical"
            assert "hierarchical, for it is predicted to be fastest" in str(choice)
            assert ring.explain("broadcast", 10_000_000).algorithm != "hierarchical"
            assert ring.order == [0, 2, 1, 3]  # the other sums cross between the hosts once
            array = np.full(3_000_000, 1.0, np.float32)
            await ring.all_reduce(array)
            assert (array == 4).all()
            assert (await ring.all_gather(array[:2])).shape == (4, 2)
            assert (await ring.reduce_scatter(array[:8])).tolist() == [16.0, 16.0]
            await ring.broadcast(array, root=3)
            await ring.all_reduce(array, order="rank")
            await ring.all_reduce(array, algorithm="ring")
            await ring.all_reduce(array, compression="fp16")
            assert (array == 256).all()

        await run_members(4, member)


CHOOSE: Final = Ring._choose


async def test_compression_costs_what_is_lost_between_hosts_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums of a host are exact; one rounding of each host's, and one of the total, are not."""
    on_hosts(monkeypatch, lambda rank: rank % 2)
    count = 100_000

    async def member(worker: aiops.Worker, ring: Ring) -> tuple[bytes, int]:
        array = values(ring.rank, count).astype(np.float32)
        before = ring.traffic["sent"]
        await ring.all_reduce(array, "mean", compression="fp16")
        exact = np.mean([values(rank, count).astype(np.float32) for rank in range(4)], axis=0)
        assert np.abs(array - exact).max() < 8 * 2.0**-11
        with pytest.raises(UsageError, match="algorithm is 'tree'; it can be hierarchical"):
            await ring.all_reduce(array, compression="fp16", algorithm="tree")
        return array.tobytes(), ring.traffic["sent"] - before - 4 * count

    results = await run_members(4, member)
    assert len({bits for bits, _ in results}) == 1
    assert {sent for _, sent in results} == {2 * count // 2}  # half an array by each lane


async def test_who_insists_on_memory_is_refused_on_several_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As anywhere: `hosts_of` is not replaced here."""

    async def work(worker: aiops.Worker) -> None:
        worker._rings.apart = f"-{worker.rank % 2}"
        with pytest.raises(UsageError, match="cannot share memory with the other members"):
            await worker.ring("r", timeout_s=30, transport="shared-memory")

    async with local_job() as cluster:
        await cluster.run(work, workers=3)


@pytest.mark.parametrize("when", ["ahead", "since then", "in the first call"])
async def test_who_goes_another_way_is_found_although_its_host_waits_for_it(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks 0 and 1 wait in memory for 2 and 3, and those are in another call over TCP: since then,
    or since before the first two came; in a first call nobody is connected yet."""
    number = 1 if when == "in the first call" else 2
    on_hosts(monkeypatch, lambda rank: rank % 2)

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.full(1000, 7, np.float32)
        if number == 2:
            await ring.barrier()
        if when == "ahead" and ring.rank < 2:
            await until(lambda: {2, 3} == {peer.index for peer, _ in ring._group._early.of(2)})
        with pytest.raises(CollectiveMismatch) as caught:
            await (ring.barrier() if ring.rank > 1 else ring.all_reduce(array, timeout_s=5))
        assert "barrier()" in str(caught.value)
        assert f"operation {number} of ring grads" in str(caught.value)
        assert (array == 7).all()
        await ring.reform()
        await ring.all_reduce(array)
        assert (array == 28).all()

    await run_members(4, member)


async def test_a_deadline_names_who_of_the_host_has_no_part_of_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_hosts(monkeypatch, lambda rank: rank % 2)

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.full(1000, 7, np.float32)
        await ring.all_reduce(array)
        if ring.rank == 2:
            part: Any = ring._group.part  # type: ignore[attr-defined]
            monkeypatch.setattr(part, "complete", lambda *given: asyncio.Event().wait())
        call = asyncio.ensure_future(ring.all_reduce(array, timeout_s=60 if ring.rank else 0.2))
        await until(lambda: ring.broken)
        if ring.rank == 2:
            call.cancel()  # it would wait for ever
        else:
            with pytest.raises(CollectiveAborted, match=r"worker 2 \(.*\) has not its part of the"):
                await call
        assert (array == 28).all()

    await run_members(4, member)


async def test_when_nothing_works_any_more_who_waits_for_its_host_hears_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the scheduler is lost: nobody says anything about the ring then."""
    on_hosts(monkeypatch, lambda rank: rank % 2)

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.full(1000, 7, np.float32)
        await ring.barrier()
        if ring.rank == 2:
            await until(lambda: ring.broken)
            return
        call = asyncio.ensure_future(ring.all_reduce(array))
        await turns(10)
        if ring.rank == 0:
            ring._desk.failed(Closed("the job is over"))
        with pytest.raises(Closed if ring.rank == 0 else CollectiveAborted):
            await call
        assert (array == 7).all()

    await run_members(4, member)


async def test_members_of_a_host_that_differ_in_compression_hear_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_hosts(monkeypatch, lambda rank: rank % 2)

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.full(1000, 7, np.float32)
        with pytest.raises(CollectiveMismatch) as caught:
            await ring.all_reduce(array, compression="fp16" if ring.rank < 2 else None)
        assert "compressed by fp16" in str(caught.value)
        assert "differ in compression: worker " in str(caught.value)
        assert ring.broken
        assert (array == 7).all()

    await run_members(4, member)


async def test_hosts_change_with_the_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two on two hosts need TCP alone; with a third one two share memory, until it leaves."""
    on_hosts(monkeypatch, lambda rank: rank % 2)

    async def work(worker: aiops.Worker) -> list[tuple[str, int]]:
        seen = []

        async def add(ring: Ring) -> None:
            array = np.ones(50_000, np.float32)
            await ring.all_reduce(array)
            seen.append((ring.transport, int(array[-1])))

        ring = await worker.ring("r", timeout_s=60, call_timeout_s=60)
        await add(ring)
        await ring.barrier()
        if ring.rank == 2:
            await ring.leave()
            return seen
        await until(lambda: ring.broken)
        await ring.reform()
        await add(ring)
        return seen

    async with local_job() as cluster:
        cluster.scheduler.expect_workers(3)
        results = await cluster.run(work, workers=3)
    both = ("shared-memory+tcp", 3)
    assert results == [[both, ("tcp", 2)], [both, ("tcp", 2)], [both]]


# --- a fault at each step ---

COUNT: Final = 40_000
MOMENTS: Final = 14
"""More than there are: the last ones find nothing to stop, and the call ends well."""


async def reduce_in_the_end(worker: aiops.Worker, ring: Ring, array: Any) -> None:
    """Go on with those who are left, as often as the ring has to be formed anew."""
    array[:] = worker.rank + 1
    while True:
        try:
            await ring.all_reduce(array)
            break
        except CollectiveAborted:
            assert (array == worker.rank + 1).all()
            await ring.reform()
    assert (array == sum(rank + 1 for rank in ring.workers)).all()


@pytest.mark.parametrize("step", range(1, MOMENTS + 1))
@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("fate", ["pause", "freeze", "freeze beside", "kill"])
async def test_a_fault_at_each_step(
    fate: str, victim: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have the result, or none has and all inputs are as they were; then the rest go on.

    "freeze" holds a member until one of the other host has given the call up, "freeze beside"
    until one of its own has, which then writes into its array. Then it goes on.
    """
    on_hosts(monkeypatch, lambda rank: rank % 2)
    moment = Moment(step, killed=fate == "kill")
    frozen = fate.startswith("freeze")
    impatient = (victim + (2 if fate == "freeze beside" else 1)) % 4
    outcomes: dict[int, str] = {}

    async def give_up(call: asyncio.Future[None]) -> None:
        await moment.comes_or(call)
        await turns(30)
        call.cancel()

    async def thaw(call: asyncio.Future[None], ring: Ring) -> None:
        await moment.comes_or(call)
        if frozen and not call.done():
            # Who has confirmed before it gives up ends the call for itself alone.
            await until(lambda: ring.broken or impatient in outcomes)
        await turns(30)
        moment.go_on.set()

    async def reduce(ring: Ring, array: Any) -> None:
        call = asyncio.ensure_future(ring.all_reduce(array))
        if frozen and ring.rank == impatient:
            await give_up(call)
        if fate != "kill" and ring.rank == victim:
            await thaw(call, ring)
        try:
            await call
            outcomes[ring.rank] = "done"
        except CollectiveAborted:
            outcomes[ring.rank] = "given up"
        except asyncio.CancelledError:
            outcomes[ring.rank] = "cancelled"
            assert (array == ring.rank + 1).all()
            array[:] = 1e6  # it is its own again
            await turns(200)

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = ring.empty(COUNT) if ring.rank < 2 else np.empty(COUNT, np.float32)
        await ring.all_reduce(array)  # the second one finds everything made
        if ring.rank == victim:
            part = ring._group.part  # type: ignore[attr-defined]
            watch(part, moment)
            moment.armed = True
        array[:] = ring.rank + 1
        await reduce(ring, array)
        moment.armed = False
        expected = {"done": 10, "given up": ring.rank + 1, "cancelled": 1e6}[outcomes[ring.rank]]
        assert (array == expected).all()
        await reduce_in_the_end(worker, ring, array)

    if fate == "kill":
        try:
            await run_members(4, member, on_worker_loss="continue")
        except Killed:
            assert moment.there.is_set()
    else:
        await run_members(4, member)
    said = {what for what in outcomes.values() if what != "cancelled"}
    assert len(said) == 1, outcomes
    if fate == "pause" or not moment.there.is_set():
        assert "given up" not in said


async def test_links_that_are_alike_leave_the_members_of_a_host_behind_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def alike(group: Any, timeout_s: float) -> Any:
        return np.full((group.size, 1 + ring_links.REPEATS), 0.01)

    on_hosts(monkeypatch, lambda rank: rank % 2)
    monkeypatch.setattr(ring_links, "measured_links", alike)

    async def member(worker: aiops.Worker, ring: Ring) -> tuple[list[int], list[int]]:
        measured = await worker.ring("measured", topology="measured")
        return ring.order, measured.order

    assert await run_members(4, member) == 4 * [([0, 2, 1, 3], [0, 2, 1, 3])]
