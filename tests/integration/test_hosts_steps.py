"""Three hosts and two calls, one behind the other: a member goes away at each step of either.

The first host has one member, so one of each other host takes part in the exchange between them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import numpy as np
import pytest

import aiops
from aiops.collective.shared import supported
from aiops.errors import CollectiveAborted
from aiops.workers.ring import Ring
from apart import on_hosts, run_members
from host_steps import Killed, Moment, watch
from local_jobs import turns

pytestmark = [
    pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"]),
    pytest.mark.skipif(not supported(), reason="shared memory needs Linux"),
]

HOSTS: Final = (0, 1, 1, 2, 2)
SIZE: Final = len(HOSTS)
COUNT: Final = 20_000
TOTAL: Final = SIZE * (SIZE + 1) // 2
STEPS: Final = {0: 9, 1: 25, 2: 25}
"""By victim, more than there are: alone on its host, a lane, and none."""
ALWAYS: Final = 13
"""Every so many-eth step is taken always; `make ring-matrix` takes each."""
FATES: Final = ("cancel", "leave", "deadline", "kill")


async def outcome_of(call: asyncio.Future[None]) -> str:
    try:
        await call
    except CollectiveAborted:
        return "given up"
    except asyncio.CancelledError:
        return "cancelled"
    return "done"


@pytest.mark.parametrize("victim", STEPS)
@pytest.mark.parametrize("fate", FATES)
async def test_who_goes_away_at_any_step(
    fate: str, victim: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_hosts(monkeypatch, HOSTS.__getitem__)
    every = request.config.getoption("--ring-matrix")
    first = 1 if every else 2 + (5 * FATES.index(fate) + 3 * victim) % 8
    for step in range(first, STEPS[victim] + 1, 1 if every else ALWAYS):
        await go_away(fate, victim, step)


async def strike(fate: str, moment: Moment, ring: Ring, calls: list[asyncio.Task[None]]) -> None:
    """Let the victim do what it does when it has come to its step."""
    await moment.comes_or(asyncio.ensure_future(asyncio.wait(calls)))
    await turns(30)
    open_calls = [call for call in calls if not call.done()]
    if fate == "cancel" and open_calls:
        open_calls[0].cancel()
    elif fate == "leave":
        await ring.leave()
    elif fate == "deadline" and open_calls:
        await asyncio.wait(calls, timeout=0.4)  # the others have less
    moment.go_on.set()


async def killed(calls: list[asyncio.Task[None]]) -> None:
    """Raise `Killed` if one of the calls has."""
    await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
    if calls[0].done() and isinstance(calls[0].exception(), Killed):
        calls[1].add_done_callback(lambda call: call.cancelled() or call.exception())
        raise Killed
    await asyncio.wait(calls)
    if isinstance(calls[1].exception(), Killed):
        raise Killed


async def go_on(ring: Ring, rank: int) -> None:
    """Make a call with those that are left."""
    array = np.empty(COUNT, np.float32)
    array[:] = rank + 1
    while True:
        try:
            await ring.all_reduce(array)
            break
        except CollectiveAborted:
            assert (array == rank + 1).all()
            await ring.reform()
    assert (array == sum(rank + 1 for rank in ring.workers)).all()


async def go_away(fate: str, victim: int, step: int) -> None:
    """Each call is in effect for all, or for none and all inputs are as they were; the second one
    is not without the first. Then the rest go on."""
    moment = Moment(step, killed=fate == "kill")
    outcomes: dict[int, list[str]] = {}
    went_on: list[int] = []

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        rank = ring.rank
        arrays = [ring.empty(COUNT), np.empty(COUNT, np.float32)]
        await ring.all_reduce(arrays)  # the next ones find everything made
        await ring.barrier()
        if rank == victim:
            part: Any = ring._group.part  # type: ignore[attr-defined]
            watch(part, moment)
            moment.armed = True
        for array in arrays:
            array[:] = rank + 1
        limit_s = 0.1 if fate == "deadline" and rank != victim else 60.0
        calls = [ring.all_reduce_async(array, timeout_s=limit_s) for array in arrays]
        if fate == "kill":
            await killed(calls)
        elif rank == victim:
            await strike(fate, moment, ring, calls)
        outcomes[rank] = [await outcome_of(call) for call in calls]
        moment.armed = False
        for array, what in zip(arrays, outcomes[rank], strict=True):
            assert (array == (TOTAL if what == "done" else rank + 1)).all(), what
        if rank != victim or fate != "leave":
            await go_on(ring, rank)
            went_on.append(rank)

    try:
        await run_members(SIZE, member, on_worker_loss="continue")
    except Killed:
        assert moment.there.is_set()
    check(fate, victim, moment, outcomes, went_on)


def check(
    fate: str, victim: int, moment: Moment, outcomes: dict[int, list[str]], went_on: list[int]
) -> None:
    gone = [victim] if fate == "leave" or (fate == "kill" and moment.there.is_set()) else []
    assert sorted([*went_on, *gone]) == list(range(SIZE))
    for number in range(2):
        said = {what[number] for what in outcomes.values()} - {"cancelled"}
        assert len(said) == 1, outcomes
    assert all(what != ["given up", "done"] for what in outcomes.values())
