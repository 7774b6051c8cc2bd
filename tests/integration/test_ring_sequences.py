"""Random sequences of calls that are cancelled, late, different or left: all or nothing, each time.

The same numbers choose the same sequence; when a member is cancelled is counted in turns of the
loop. `make test` runs a few, `make ring-matrix` many.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest

import aiops
from aiops.collective.shared import supported
from aiops.errors import CollectiveAborted, CollectiveMismatch
from aiops.workers.ring import Ring
from apart import on_hosts
from local_jobs import local_job, together, turns

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

FEW: Final = 3
MANY: Final = range(FEW, 100)
ROUNDS: Final = 12
COUNTS: Final = (0, 1, 1000, 16_384, 16_385, 50_000, 300_000)
"""Some go on a board of shared memory, some not; the last one's pages change places."""
FORMS: Final = ("ordinary", "shared", "part of shared", "strided")
FAILED: Final = {"aborted", "mismatch"}
SCRIBBLE: Final = 12345.0


def array_of(ring: Ring, form: str, given: Any) -> Any:
    """Return an array with these values that lies where `form` says."""
    count = given.size
    if form == "shared":
        array = ring.empty(count, given.dtype)
    elif form == "part of shared":
        array = ring.empty(count + 3, given.dtype)[2:-1]
    else:
        array = np.empty(2 * count, given.dtype)[::2] if form == "strided" else given.copy()
    array[:] = given
    return array


class Plan:
    """One call, and what each member does to it."""

    def __init__(self, choice: random.Random, size: int) -> None:
        self.seed = choice.randrange(1 << 30)
        self.count = choice.choice(COUNTS)
        self.dtype = choice.choice((np.float32, np.float64))
        self.op = choice.choice(("sum", "mean", "max", "min"))
        self.order = choice.choice(("any", "rank"))
        self.forms = choice.choices(FORMS, k=size)
        self.starts = [choice.choice((0, 0, choice.randrange(60))) for _ in range(size)]
        self.cancels = [choice.choice((None, None, choice.randrange(90))) for _ in range(size)]
        self.differs = choice.choice((None,) * 5 + (choice.randrange(size),))
        self.leaves = choice.choice((None,) * 9 + (choice.randrange(size),))

    def given(self, rank: int) -> Any:
        values = np.random.default_rng((self.seed, rank)).standard_normal(self.count)
        return values.astype(self.dtype)

    async def perform(self, ring: Ring) -> tuple[str, Any]:
        """Return how it has ended, and the array."""
        me = ring.rank
        await turns(self.starts[me])
        if self.leaves == me:
            await ring.leave()
        array = array_of(ring, self.forms[me], self.given(me))
        op = {"max": "min"}.get(self.op, "max") if self.differs == me else self.op
        call = ring.all_reduce_async(array, op, order=self.order)  # type: ignore[arg-type]
        cancelled_after = self.cancels[me]
        if cancelled_after is not None:
            await turns(cancelled_after)
            call.cancel()
        try:
            await call
        except asyncio.CancelledError:
            array[:] = SCRIBBLE  # it is its own again, and nobody may see this
            return "cancelled", array
        except CollectiveMismatch:
            return "mismatch", array
        except CollectiveAborted:
            return "aborted", array
        return "done", array

    def check(self, ends: Sequence[tuple[str, Any]]) -> None:
        """All have the same result, or none has, and all arrays are as they were."""
        size = len(ends)
        said = {what for what, _ in ends} - {"cancelled"}
        assert len(said) < 2 or said == FAILED, said
        given = np.array([self.given(rank) for rank in range(size)])
        results = set()
        for rank, (what, array) in enumerate(ends):
            if what == "cancelled":
                assert (array == SCRIBBLE).all()
            elif what in FAILED:
                assert (array == given[rank]).all()
            else:
                results.add(array.tobytes())
                self._compare(array, given)
        assert len(results) < 2

    def _compare(self, array: Any, given: Any) -> None:
        total = given[0].copy()
        ufunc = {"max": np.maximum, "min": np.minimum}.get(self.op, np.add)
        for values in given[1:]:
            total = ufunc(total, values)
        if self.op == "mean":
            total = total / self.dtype(len(given))
        if self.order == "rank":
            assert (array == total).all()
        else:
            np.testing.assert_allclose(array, total, rtol=1e-4, atol=1e-4)


async def formed_anew(rings: Sequence[Ring]) -> None:
    """Go on with all members; who has left comes back, perhaps after the others have gone on."""

    async def whole(ring: Ring) -> None:
        await ring.reform()
        while ring.world_size < len(rings):
            await ring.barrier()
            if ring.wanted:
                await ring.reform()

    if any(ring.broken for ring in rings):
        await together([whole(ring) for ring in rings])
    assert len({ring.generation for ring in rings}) == 1
    await together([ring.barrier() for ring in rings])


@pytest.mark.parametrize("transport", ["tcp", "shared-memory", "hosts"])
@pytest.mark.parametrize("seeds", [*[(seed,) for seed in range(FEW)], MANY], ids=str)
async def test_random_sequences(
    seeds: Sequence[int],
    transport: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if seeds is MANY and not request.config.getoption("--ring-matrix"):
        pytest.skip("make ring-matrix")
    if transport != "tcp" and not supported():
        pytest.skip("shared memory needs Linux")
    for seed in seeds:
        choice = random.Random(f"{transport} {seed}")
        size = choice.randint(2, 5)
        hosts = [choice.randrange(2) for _ in range(size)]
        with monkeypatch.context() as patch:
            if transport == "hosts":
                on_hosts(patch, hosts.__getitem__)
            await sequence(choice, size, "auto" if transport == "hosts" else transport)


async def sequence(choice: random.Random, size: int, transport: str) -> None:
    """Let members make calls that end in any way, and go on after each that has failed."""
    async with local_job(servers=0) as cluster:
        workers: list[aiops.Worker] = [await cluster.connect() for _ in range(size)]
        rings = await together(
            [
                worker.ring("r", timeout_s=30, call_timeout_s=30, transport=transport)
                for worker in workers
            ]
        )
        for _ in range(ROUNDS):
            plans = [Plan(choice, size) for _ in range(choice.choice((1, 1, 3)))]

            async def follow(ring: Ring, plans: Sequence[Plan] = plans) -> list[tuple[str, Any]]:
                ends = []
                for plan in plans:
                    ends.append(await plan.perform(ring))
                    if ring.broken:
                        break
                return ends

            ends = await together([follow(ring) for ring in rings])
            for number, plan in enumerate(plans):
                some = [of[number] for of in ends if len(of) > number]
                if len(some) == size:
                    plan.check(some)
                else:  # some have heard of the end of the ring before they came to this call
                    assert all(what != "done" for what, _ in some)
            await formed_anew(rings)
        await together([worker.close() for worker in workers])
