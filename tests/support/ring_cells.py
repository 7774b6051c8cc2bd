"""Rings in simulated clusters: one fault at one step of one member, and what must hold after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import aiops.workers.ring
from aiops.collective.plan import make_plan
from aiops.errors import AiopsError, CollectiveAborted
from aiops.runtime.ring_group import RingGroup
from aiops.testing.simulation.cluster import SimCluster
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.seal import sealed
from aiops.workers.ring import Ring
from aiops.workers.worker import Worker

HEARTBEAT_S = 0.5
CALLS = 3
ALGORITHMS = ("ring", "recursive-doubling", "chain")
FAULTS = ("kill", "pause", "freeze", "partition", "joiner")
CALL_TIMEOUT_S = 20.0
CALLS_UNTIL_JOINED = 200


class Cell(NamedTuple):
    """One run: how many members, which fault, and after how many frames of the victim."""

    size: int
    fault: str
    step: int

    @property
    def name(self) -> str:
        return f"{self.size}-{self.fault}-{self.step}"

    @property
    def victim(self) -> int:
        return self.step % self.size

    @property
    def algorithm(self) -> str:
        return ALGORITHMS[self.step % len(ALGORITHMS)]


class Told(NamedTuple):
    """What one member has to tell at its end."""

    results: dict[int, tuple[int, bytes]]  # call: generation and bytes
    aborts: list[CollectiveAborted]
    members: dict[int, list[int]]  # generation: worker ranks


def values(rank: int, call: int) -> Any:
    return np.random.default_rng((rank, call)).normal(size=23).astype(np.float32)


async def member(cell: Cell, told: Told, worker: Worker) -> None:
    """Make some calls; after an abort go on with whoever is left, and let in who waits."""
    ring = await worker.ring(
        "r",
        timeout_s=200.0,
        call_timeout_s=CALL_TIMEOUT_S,
        bind=f"{worker.name}:0",
        insecure=True,
        transport="tcp",
    )
    call, generation = 0, 0
    goal = CALLS if cell.fault != "joiner" or not cell.step else CALLS_UNTIL_JOINED
    while call < goal:
        array = values(worker.rank, call)
        before = array.tobytes()
        try:
            if ring.generation != generation:
                call = await agree(ring, call)
                generation = ring.generation
                told.members[generation] = ring.workers
                goal = call + 2 if ring.newcomers else goal
                continue
            await ring.all_reduce(array, algorithm=cell.algorithm)  # type: ignore[arg-type]
            told.results[call] = (generation, array.tobytes())
            call += 1
        except CollectiveAborted as error:
            told.aborts.append(error)
            assert array.tobytes() == before, "an aborted call has changed the array"
            await ring.reform()
        else:
            if ring.wanted:
                await ring.reform()


async def agree(ring: Ring, call: int) -> int:
    """Let newcomers know at which call the others are."""
    number = np.full(1, call, np.float32)
    veteran = next(place for place in range(ring.world_size) if place not in ring.newcomers)
    await ring.broadcast(number, root=veteran)
    return int(number[0])


@contextmanager
def at_step(cell: Cell, strike: Callable[[], object]) -> Iterator[list[int]]:
    """Strike when the victim takes its frame of this number; yields how many it has taken."""
    taken = [0]
    take = RingGroup.peer_frame

    def counting(group: RingGroup, peer: Any, frame: Any) -> None:
        if group._postoffice.joined.rank == cell.victim:
            taken[0] += 1
            if taken[0] == cell.step:
                strike()
        take(group, peer, frame)

    with (
        mock.patch.object(RingGroup, "peer_frame", counting),
        mock.patch.object(aiops.workers.ring, "make_plan", partial(make_plan, least=5)),
    ):
        yield taken


def run_cell(cell: Cell) -> tuple[list[Told], int]:
    """Run one cell; returns what each member tells, and how many frames the victim took."""
    loop = SimLoop(cell.step * 100 + cell.size)
    tellings = [Told({}, [], {}) for _ in range(cell.size + 1)]

    async def body() -> int:
        cluster = SimCluster(
            loop, 1, workers=cell.size, on_worker_loss="continue", heartbeat_s=HEARTBEAT_S
        )
        await cluster.start()
        tasks: dict[int, asyncio.Task[Any]] = {}

        def start(rank: int) -> None:
            tasks[rank] = cluster.worker(f"worker-{rank}", partial(member, cell, tellings[rank]))

        strike: Callable[[], object] = partial(
            loop.call_soon, partial(FATES[cell.fault], cluster, cell, start)
        )
        with at_step(cell, strike if cell.step else lambda: None) as taken:
            for rank in range(cell.size):
                start(rank)
            await end(cell, tasks)
        await cluster.close()
        return taken[0]

    with sealed(loop):
        taken = loop.run_until_complete(asyncio.wait_for(body(), 400))
    strays = list(loop.strays)
    loop.bury()
    assert not strays, strays
    return tellings, taken


async def end(cell: Cell, tasks: dict[int, asyncio.Task[Any]]) -> None:
    """Wait for everybody but the dead; a newcomer may be started meanwhile."""
    seen: set[int] = set()
    while waiting := sorted(set(tasks) - seen):
        for rank in waiting:
            seen.add(rank)
            if rank == cell.victim and cell.fault in ("kill", "freeze") and cell.step:
                continue
            await tasks[rank]
    if cell.fault == "freeze" and cell.step:
        await asyncio.wait([tasks[cell.victim]], timeout=60)
        if tasks[cell.victim].done() and tasks[cell.victim].exception() is not None:
            assert isinstance(tasks[cell.victim].exception(), AiopsError)


def _kill(cluster: SimCluster, cell: Cell, start: Callable[[int], None]) -> None:
    cluster.kill(f"worker-{cell.victim}")


def _stop(seconds: float, cluster: SimCluster, cell: Cell, start: Callable[[int], None]) -> None:
    process = cluster.processes[f"worker-{cell.victim}"]
    process.stop()
    cluster.loop.call_later(seconds, process.go_on)


def _part(cluster: SimCluster, cell: Cell, start: Callable[[int], None]) -> None:
    """Cut the way to the next member until calls have run out of time, then repair it."""
    one, other = (f"worker-{rank % cell.size}" for rank in (cell.victim, cell.victim + 1))
    cluster.network.partition(one, other)
    cluster.loop.call_later(CALL_TIMEOUT_S + 2, cluster.network.repair, one, other)


def _join(cluster: SimCluster, cell: Cell, start: Callable[[int], None]) -> None:
    start(cell.size)


FATES: dict[str, Callable[..., Any]] = {
    "kill": _kill,
    "pause": partial(_stop, 2 * HEARTBEAT_S),
    "freeze": partial(_stop, 20 * HEARTBEAT_S),
    "partition": _part,
    "joiner": _join,
}


def check_cell(cell: Cell, tellings: list[Told]) -> None:
    """All who are left have the same results of the same generations, and the right ones."""
    dead = cell.fault in ("kill", "freeze") and cell.step > 0
    left = [rank for rank in range(cell.size) if not (dead and rank == cell.victim)]
    newcomer = tellings[cell.size]
    if cell.fault == "joiner" and cell.step:
        assert newcomer.results, "the newcomer has made no call"
    for call in tellings[left[0]].results:
        results = {tellings[rank].results[call] for rank in left}
        if call in newcomer.results:
            results.add(newcomer.results[call])
        assert len(results) == 1, f"call {call} ended differently: {results}"
        ((generation, found),) = results
        members = tellings[left[0]].members[generation]
        exact = np.sum([values(rank, call).astype(np.float64) for rank in members], axis=0)
        np.testing.assert_allclose(np.frombuffer(found, np.float32), exact, rtol=1e-4, atol=1e-5)
    if not dead and cell.fault != "partition":
        assert not any(telling.aborts for telling in tellings)
    for rank in left:
        for error in tellings[rank].aborts:
            assert error.ring == "r"
            if dead:
                assert error.lost == (cell.victim,), error
                assert f"worker {cell.victim}" in str(error)
                assert error.elapsed_s <= 8 * HEARTBEAT_S, error
