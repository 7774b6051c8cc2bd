"""Collective calls among the workers of a job: results and agreement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import aiops
from aiops.consistency import BSP
from aiops.errors import (
    BarrierTimeout,
    CollectiveAborted,
    CollectiveMismatch,
    CollectiveTimeout,
    UsageError,
)
from aiops.optim import Add
from aiops.runtime.ring_desk import RingDesk
from aiops.workers.ring import Ring
from apart import by_transport, run_members
from local_jobs import local_job, together, turns, until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@pytest.fixture(autouse=True, params=["tcp", "shared-memory", "hosts"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run every test over each: nothing that a ring promises depends on how its calls travel."""
    return by_transport(request.param, monkeypatch)


def values(rank: int, shape: Any, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(rank).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
async def test_all_members_get_the_same_bits(size: int) -> None:
    shapes = [(), (0,), (3,), (7, 5), (400_000,)]

    async def member(worker: aiops.Worker, ring: Ring) -> list[bytes]:
        assert (ring.rank, ring.world_size) == (worker.rank, size)
        results = []
        for shape in shapes:
            for algorithm in ("auto", "ring", "recursive-doubling", "halving-doubling", "tree"):
                array = values(worker.rank, shape)
                await ring.all_reduce(array, algorithm=algorithm)
                results.append(array.tobytes())
        return results

    results = await run_members(size, member)
    for number, columns in enumerate(zip(*results, strict=True)):
        assert len(set(columns)) == 1
        shape = shapes[number // 5]
        exact = np.sum([values(rank, shape, np.float64) for rank in range(size)], axis=0)
        found = np.frombuffer(columns[0], np.float32).reshape(shape)
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


async def test_every_kind_of_call() -> None:
    async def member(worker: aiops.Worker, ring: Ring) -> None:
        rank, size = ring.rank, ring.world_size
        everybody = [values(other, (5, 3)) for other in range(size)]
        for op, expected in {
            "mean": np.mean(everybody, axis=0),
            "max": np.max(everybody, axis=0),
            "min": np.min(everybody, axis=0),
        }.items():
            array = values(rank, (5, 3))
            await ring.all_reduce(array, op)  # type: ignore[arg-type]
            np.testing.assert_allclose(array, expected, rtol=1e-5)
        array = values(rank, (5, 3))
        chunk = await ring.reduce_scatter(array)
        low, high = 15 * rank // size, 15 * (rank + 1) // size
        np.testing.assert_allclose(chunk, np.sum(everybody, axis=0).reshape(-1)[low:high], 1e-4)
        assert (array == values(rank, (5, 3))).all()
        stacked = await ring.all_gather(array)
        assert (stacked == np.array(everybody)).all()
        await ring.broadcast(array, root=2)
        assert (array == everybody[2]).all()
        wide = values(rank, 9, np.float64)
        await ring.all_reduce(wide)
        np.testing.assert_allclose(wide, sum(values(other, 9, np.float64) for other in range(size)))

    await run_members(4, member)


@pytest.mark.parametrize("part", [slice(2, -2), slice(1, None), slice(None, -1)])
async def test_nearly_all_of_a_shared_array(part: slice) -> None:
    """What is left out of the call stays as it is, also where its pages could change places."""

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        whole = ring.empty(400_000)
        for _ in range(3):
            given = [values(rank, whole.shape) for rank in range(3)]
            whole[:] = expected = given[ring.rank].copy()
            await ring.all_reduce(whole[part], "max")
            expected[part] = np.max(given, axis=0)[part]
            assert (whole == expected).all()

    await run_members(3, member)


async def test_lists_strided_arrays_and_handles() -> None:
    async def member(worker: aiops.Worker, ring: Ring) -> None:
        arrays = [values(ring.rank, shape) for shape in ((3, 4), (), (100_000,), (2,))]
        strided = values(ring.rank, (6, 8))[::2, ::3]
        first = ring.all_reduce_async([*arrays, strided], bucket_bytes=1000)
        other = values(ring.rank, 11)
        second = ring.all_reduce_async(other, "max")
        await asyncio.gather(first, second)
        expected = [sum(values(r, shape) for r in range(3)) for shape in ((3, 4), (), (100_000,))]
        for array, right in zip(arrays, expected, strict=False):
            np.testing.assert_allclose(array, right, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            strided, sum(values(r, (6, 8)) for r in range(3))[::2, ::3], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(other, np.max([values(r, 11) for r in range(3)], axis=0))

    await run_members(3, member)


@pytest.mark.parametrize("size", [2, 3, 5])
async def test_in_the_order_of_ranks_the_bits_are_those_of_bsp(size: int) -> None:
    count = 200_003

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        table = await worker.table("sum", count, optimizer=Add(), consistency=BSP(reduce="mean"))
        gradient = values(worker.rank, count)
        await table.push(gradient)
        await worker.tick()
        await ring.all_reduce(gradient, "mean", order="rank")
        served = await table.pull()
        assert gradient.tobytes() == served.tobytes()

    await run_members(size, member, servers=2)


async def test_a_barrier_lets_nobody_pass_before_all_have_come() -> None:
    arrived = [0] * 5

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        for visit in range(1, 11):
            await turns(worker.rank * 3 % 7)
            arrived[ring.rank] = visit
            await ring.barrier()
            assert min(arrived) >= visit

    await run_members(5, member)


async def test_calls_of_one_who_is_ahead_wait_for_the_others() -> None:
    """Small arrays travel at once, the rest of large ones when the other side has begun."""

    async def patient(worker: aiops.Worker, ring: Ring) -> None:
        arrays = [values(ring.rank, count) for count in (10, 1_000_000, 10)]
        if ring.rank == 1:
            await asyncio.sleep(0.05)
        await asyncio.gather(*(ring.all_reduce_async(array) for array in arrays))
        np.testing.assert_allclose(
            arrays[1], sum(values(rank, 1_000_000) for rank in range(3)), rtol=1e-3, atol=1e-5
        )

    await run_members(3, patient)


async def test_a_call_while_another_task_forms_the_ring_anew_is_refused() -> None:
    """The others could be through with it and form the ring before its end is heard here."""

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.full(200_000, 1, np.float32)
        await ring.barrier()
        if ring.rank == 0:
            formed = asyncio.ensure_future(ring.reform())
            await asyncio.sleep(0)
            for call in (ring.all_reduce(array), ring.all_reduce_async(array), ring.barrier()):
                with pytest.raises(UsageError, match=r"await the reform\(\) of another task first"):
                    await call
            formed.cancel()  # which takes it back
            await asyncio.wait((formed,))
        await ring.all_reduce(array)
        assert (array == 3).all()
        await ring.reform()
        await ring.barrier()

    await run_members(3, member)


# --- disagreement ---


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (lambda ring: ring.all_reduce(np.ones(3, np.float32)), 4, r"\(3,\).*\(4,\)"),
        (lambda ring: ring.all_reduce(np.ones(4, np.float64)), 4, "float64.*float32"),
        (lambda ring: ring.all_reduce(np.ones(4, np.float32), "max"), 4, "max.*sum"),
        (
            lambda ring: ring.all_reduce(np.ones(4, np.float32), order="rank"),
            4,
            "chain.*doubling|hier",
        ),
        (lambda ring: ring.barrier(), 4, "barrier.*all_reduce"),
        (lambda ring: ring.broadcast(np.ones(4, np.float32)), 4, "broadcast.*all_reduce"),
    ],
    ids=["shape", "dtype", "op", "order", "kind", "sequence"],
)
async def test_a_mismatch_is_an_error_on_all_that_names_both_sides(
    one: Callable[[Ring], Awaitable[None]], other: int, words: str
) -> None:
    import re

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.full(other, 7, np.float32)
        with pytest.raises(CollectiveMismatch) as caught:
            await (one(ring) if ring.rank == 1 else ring.all_reduce(array))
        text = str(caught.value)
        first, second = words.split(".*")
        assert re.search(first, text), text
        assert re.search(second, text), text
        assert "worker 1 (worker-1)" in text
        assert (array == 7).all()
        with pytest.raises(CollectiveAborted, match="formed anew"):
            await ring.all_reduce(array)
        await ring.reform()
        await ring.all_reduce(array)
        assert (array == 28).all()

    await run_members(4, member)


async def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    async def member(worker: aiops.Worker, ring: Ring) -> None:
        frozen = np.ones(3, np.float32)
        frozen.flags.writeable = False
        wrong: Callable[[], Awaitable[Any]]
        for wrong in (
            lambda: ring.all_reduce(np.ones(3, np.int32)),
            lambda: ring.all_reduce(frozen),
            lambda: ring.all_reduce(np.ones(3, np.float32), "product"),  # type: ignore[arg-type]
            lambda: ring.all_reduce(np.ones(3, np.float32), timeout_s=-1.0),
            lambda: ring.broadcast(np.ones(3, np.float32), root=9),
        ):
            with pytest.raises(UsageError):
                await wrong()
        array = np.ones(3, np.float32)
        await ring.all_reduce(array)
        assert (array == 2).all()

    await run_members(2, member)


# --- time and cancellation ---


async def test_a_deadline_ends_the_call_for_all_and_names_who_is_missing() -> None:
    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.full(10, 7, np.float32)
        if ring.rank == 2:
            await until(lambda: ring.broken)
            with pytest.raises(CollectiveAborted, match=r"formed anew.*gives up"):
                await ring.all_reduce(array)
        elif ring.rank == 1:
            with pytest.raises(
                CollectiveTimeout, match=r"worker 2 .* ha(s|ve) not begun"
            ) as caught:
                await ring.all_reduce(array, timeout_s=0.2)
            assert caught.value.elapsed_s >= 0.19
            assert isinstance(caught.value, TimeoutError)
        else:
            with pytest.raises(CollectiveAborted, match=r"worker 1 .* gives up.*worker 2"):
                await ring.all_reduce(array)
        assert (array == 7).all()
        await ring.reform()
        await ring.all_reduce(array)
        assert (array == 21).all()

    await run_members(3, member)


async def test_cancelling_ends_the_call_for_all() -> None:
    gone = asyncio.Event()

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.full(100_000, 7, np.float32)
        if ring.rank == 1:  # it comes too late, so that there is something to be cancelled
            await gone.wait()
        call = asyncio.ensure_future(ring.all_reduce(array))
        await turns(1)
        if ring.rank == 0:
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            gone.set()
        else:
            with pytest.raises(CollectiveAborted, match="cancelled") as caught:
                await call
            assert caught.value.cause == "cancelled"
        assert (array == 7).all()
        await ring.reform()
        again = np.ones(3, np.float32)
        await ring.all_reduce(again)
        assert (again == 3).all()

    async def begun(worker: aiops.Worker, ring: Ring) -> None:
        await ring.barrier()
        await member(worker, ring)

    await run_members(3, begun)


# --- coming and going ---


async def test_a_ring_waits_for_all_workers_and_says_who_is_missing() -> None:
    async with (
        local_job() as cluster,
        cluster.connect(name="here") as here,
        cluster.connect(name="lazy") as lazy,
    ):
        with pytest.raises(BarrierTimeout, match=r"worker 1 \(lazy\)") as caught:
            await here.ring("r", timeout_s=0.05)
        assert caught.value.missing == ["worker 1 (lazy): alive, at clock 0"]
        cancelled = asyncio.ensure_future(here.ring("r"))
        await turns(20)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        rings = await together(worker.ring("r", timeout_s=60) for worker in (here, lazy))
        assert [ring.workers for ring in rings] == [[0, 1]] * 2
        assert await here.ring("r") is rings[0]


@pytest.mark.parametrize("turns_later", [0, 5])
async def test_who_cancels_when_the_ring_is_complete_lets_nobody_wait(
    turns_later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler's word has just come, or is on its way when this worker has gone on."""
    formed = RingDesk._formed
    cancelled: list[asyncio.Task[Ring]] = []
    late: list[asyncio.Task[None]] = []

    async def later(*arguments: Any) -> None:
        await turns(turns_later)
        formed(*arguments)

    def cancelling(*arguments: Any) -> None:
        if arguments[0]._postoffice.joined.name != "here" or cancelled[0].cancelling():
            formed(*arguments)
            return
        if turns_later:
            late.append(asyncio.ensure_future(later(*arguments)))
        else:
            formed(*arguments)
        cancelled[0].cancel()

    monkeypatch.setattr(RingDesk, "_formed", cancelling)
    async with (
        local_job() as cluster,
        cluster.connect(name="here") as here,
        cluster.connect(name="there") as there,
    ):
        cancelled.append(asyncio.ensure_future(here.ring("r", timeout_s=60)))

        async def waiting() -> Ring:
            try:
                ring = await there.ring("r", timeout_s=60)
            except CollectiveAborted:  # members of one host meet before it returns
                return await there.ring("r", timeout_s=60)
            with pytest.raises(CollectiveAborted, match=r"worker 0 \(here\)") as caught:
                await ring.all_reduce(np.ones(3, np.float32))
            assert caught.value.cause == "cancelled"
            await ring.reform()
            return ring

        async def again() -> Ring:
            await asyncio.wait(cancelled)
            await together(late)
            assert cancelled[0].cancelled()
            return await here.ring("r", timeout_s=60)

        rings = await together([waiting(), again()])
        assert [(ring.generation, ring.workers) for ring in rings] == [(2, [0, 1])] * 2


async def test_two_rings_at_once() -> None:
    async def work(worker: aiops.Worker) -> None:
        rings = await together(worker.ring(name, timeout_s=60) for name in ("a", "b"))
        for _ in range(3):
            arrays = [np.full(5, worker.rank, np.float32) for _ in rings]
            await together(
                ring.all_reduce(array) for ring, array in zip(rings, arrays, strict=True)
            )
            assert all((array == 3).all() for array in arrays)

    async with local_job() as cluster:
        await cluster.run(work, workers=3)


async def test_a_newcomer_is_let_in_at_the_same_call_of_all() -> None:
    async with local_job() as cluster, cluster.connect() as a, cluster.connect() as b:
        rings = await together(worker.ring("r", timeout_s=60) for worker in (a, b))
        async with cluster.connect() as late:
            entering = asyncio.ensure_future(late.ring("r", timeout_s=60))
            seen = []

            async def steps(ring: Ring) -> None:
                step = 0
                while not ring.wanted:
                    await ring.all_reduce(np.ones(2, np.float32))
                    step += 1
                seen.append(step)
                await ring.reform()

            await together(map(steps, rings))
            rings.append(await entering)
            assert seen[0] == seen[1]
            for place, ring in enumerate(rings):
                assert (ring.rank, ring.world_size, ring.generation) == (place, 3, 2)
                assert ring.newcomers == [2]
                assert not ring.wanted
            weights = [np.full(3, ring.rank + 1, np.float32) for ring in rings]
            await together(
                ring.broadcast(array, root=0) for ring, array in zip(rings, weights, strict=True)
            )
            assert (weights[2] == 1).all()


async def test_who_finishes_leaves_the_ring_and_the_others_go_on() -> None:
    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.ones(4, np.float32)
        await ring.all_reduce(array)
        assert (array == 3).all()
        if ring.rank == 1:
            await worker.finish()
            return
        with pytest.raises(
            CollectiveAborted, match=r"worker 1 \(worker-1\) has finished"
        ) as caught:
            await ring.all_reduce(array)
        assert caught.value.cause == "left"
        assert caught.value.lost == ()
        await ring.reform()
        assert ring.workers == [0, 2]
        await ring.all_reduce(array)
        assert (array == 6).all()

    await run_members(3, member)


async def test_a_lost_member_aborts_the_call_of_all_others() -> None:
    async with local_job(on_worker_loss="continue") as cluster:

        async def work(worker: aiops.Worker) -> None:
            ring = await worker.ring("r", timeout_s=60)
            array = np.full(500_000, 7, np.float32)
            await ring.all_reduce(array)
            if ring.rank == 1:
                raise RuntimeError("gone")
            with pytest.raises(CollectiveAborted, match=r"worker 1 .*is lost.*gone") as caught:
                await ring.all_reduce(array)
            assert caught.value.lost == (1,)
            assert (array == 28).all()
            await ring.reform()
            assert ring.workers == [0, 2, 3]
            await ring.all_reduce(array)
            assert (array == 84).all()

        with pytest.raises(RuntimeError, match="gone"):
            await cluster.run(work, workers=4)
