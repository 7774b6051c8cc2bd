"""Rings whose order is measured: all members agree on it, sums follow it, and faults are outlived.

What order follows from what links is `tests/collective/test_topology.py`; how quick the links of
the machine are that runs this does not matter here.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiops
from aiops.errors import CollectiveAborted, CollectiveMismatch, UsageError
from aiops.workers import ring_links
from aiops.workers.ring import Ring
from aiops.workers.ring_links import measured_links
from local_jobs import local_job

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


async def measured(worker: aiops.Worker, name: str = "r", topology: str = "measured") -> Ring:
    return await worker.ring(
        name, timeout_s=60, call_timeout_s=60, transport="tcp", topology=topology
    )


def slow_from_0_to_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a message take 1 ms and 1 MiB some more, but a second between these two."""

    async def links(group: Any, timeout_s: float) -> Any:
        row = np.full((group.size, 2), (4e-3, 2e-3))
        if group.index < 2:
            row[1 - group.index, 1] = 1.0
        return row

    monkeypatch.setattr("aiops.workers.ring_links.measured_links", links)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_all_members_have_one_order_and_the_same_bits(size: int) -> None:
    async def member(worker: aiops.Worker) -> tuple[list[int], bytes, bytes]:
        ring = await measured(worker)
        array = np.random.default_rng(ring.rank).standard_normal(1001)
        chunk = await ring.reduce_scatter(array)
        await ring.all_reduce(array, algorithm="ring")
        low, high = (1001 * place // size for place in (ring.rank, ring.rank + 1))
        assert np.allclose(chunk, array[low:high])  # chunk i is of rank i in any order
        in_order = np.random.default_rng(ring.rank).standard_normal(1001)
        await ring.all_reduce(in_order, order="rank")
        return ring.order, array.tobytes(), in_order.tobytes()

    async with local_job() as cluster:
        results = await cluster.run(member, workers=size)
    assert sorted(results[0][0]) == list(range(size))
    assert all(result == results[0] for result in results)
    fold = np.random.default_rng(0).standard_normal(1001)
    for rank in range(1, size):
        fold += np.random.default_rng(rank).standard_normal(1001)
    assert results[0][2] == fold.tobytes()


async def test_times_of_less_than_a_millisecond_are_seen() -> None:
    """The clock of uvloop has whole ones, in which a message over loopback takes none."""

    async def member(worker: aiops.Worker) -> None:
        ring = await worker.ring("r", timeout_s=60, transport="tcp")
        row = await measured_links(ring._group, 60)
        assert (row[1 - ring.rank] > 0).all()
        assert len({second % 1e-3 for second in row[1 - ring.rank]}) > 1

    async with local_job() as cluster:
        await cluster.run(member, workers=2)


async def test_sums_go_round_in_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured link from 0 to 1 is made slow, so these two are not neighbours."""

    slow_from_0_to_1(monkeypatch)

    async def member(worker: aiops.Worker) -> tuple[list[int], set[int]]:
        ring = await measured(worker)
        array = np.full(4000, ring.rank + 1, np.float32)
        await ring.all_reduce(array, algorithm="ring")
        assert (array == 10).all()
        peers = {plan.plan.peers for call, plan in ring._known.items() if call.op}
        return ring.order, {peer for some in peers for peer in some}

    async with local_job() as cluster:
        results = await cluster.run(member, workers=4)
    assert [order for order, _ in results] == [[0, 2, 1, 3]] * 4
    assert [peers for _, peers in results] == [{2, 3}, {2, 3}, {0, 1}, {0, 1}]


async def test_auto_knows_the_links_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of algorithms that send as many bytes only the ring can go round a slow link."""
    slow_from_0_to_1(monkeypatch)

    async def member(worker: aiops.Worker) -> tuple[list[str], str]:
        ring = await measured(worker)
        unmeasured = await measured(worker, "other", "rank")
        assert "40 us per message" in str(unmeasured.explain("all_reduce", 1))
        choices = [ring.explain("all_reduce", count) for count in (1, 1 << 20)]
        for choice in choices:
            assert choice.link.alpha_s == pytest.approx(1e-3, rel=0.01)
            await ring.all_reduce(np.zeros(choice.size_bytes // 4, np.float32))
        chosen = [str(choice.algorithm) for choice in choices]
        assert {call.algorithm for call in ring._known if call.op} == set(chosen)
        return chosen, str(choices)

    async with local_job() as cluster:
        results = await cluster.run(member, workers=4)
    assert results[0][0] == ["recursive-doubling", "ring"]
    assert all(result == results[0] for result in results)


async def test_a_member_lost_while_links_are_measured_costs_a_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def one_dies(group: Any, timeout_s: float) -> Any:
        if group.size == 4 and group.index == 1:
            raise RuntimeError("gone")
        return await measured_links(group, timeout_s)

    monkeypatch.setattr("aiops.workers.ring_links.measured_links", one_dies)
    sums = []

    async def member(worker: aiops.Worker) -> None:
        ring = await measured(worker)
        array = np.ones(3, np.float32)
        await ring.all_reduce(array)
        sums.append((ring.generation, ring.workers, float(array[0])))

    async with local_job(on_worker_loss="continue") as cluster:
        with pytest.raises(RuntimeError, match="gone"):
            await cluster.run(member, workers=4)
    assert sums == [(2, [0, 2, 3], 3.0)] * 3


async def test_who_cancels_between_two_measurements_lets_nobody_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links_of = ring_links.measured_links
    between = asyncio.Event()

    async def links(group: Any, timeout_s: float) -> Any:
        row = await links_of(group, timeout_s)
        if group.index == 1 and group.formed.generation == 1:
            between.set()
            await asyncio.Event().wait()
        return row

    monkeypatch.setattr(ring_links, "measured_links", links)

    async def member(worker: aiops.Worker) -> int:
        first = asyncio.ensure_future(measured(worker))
        if worker.rank == 1:
            await between.wait()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
        else:
            with pytest.raises(CollectiveAborted, match=r"worker 1 .* has cancelled its entry"):
                await first
        return (await measured(worker)).generation

    async with local_job() as cluster:
        assert await cluster.run(member, workers=3) == [2] * 3


async def test_it_is_measured_anew_when_the_ring_is_formed_anew() -> None:
    async def member(worker: aiops.Worker) -> tuple[int, list[int]]:
        ring = await measured(worker)
        await ring.reform()
        return ring.generation, ring.order

    async with local_job() as cluster:
        results = await cluster.run(member, workers=3)
    assert results == [(2, [0, 1, 2])] * 3


async def test_members_that_differ_in_topology_are_told_so() -> None:
    async def member(worker: aiops.Worker) -> None:
        ring = await measured(worker, topology="measured" if worker.rank else "rank")
        await ring.all_reduce(np.ones(3, np.float32))

    async with local_job() as cluster:
        with pytest.raises(CollectiveMismatch, match="measuring"):
            await cluster.run(member, workers=2)


async def test_a_topology_that_there_is_not() -> None:
    async def member(worker: aiops.Worker) -> None:
        await measured(worker, topology="star")

    async with local_job() as cluster:
        with pytest.raises(UsageError, match=r'topology is .star.; it can be "rank" or "measured"'):
            await cluster.run(member, workers=1)
