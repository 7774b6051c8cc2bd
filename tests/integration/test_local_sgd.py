"""Local steps on a real cluster: the bits of one process, the bytes, and what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiops
from aiops import ASP, LocalSGD, Quorum
from aiops.errors import AiopsError, ConfigError, UsageError
from aiops.local_sgd import DILOCO
from aiops.optim import SGD, AdamW, Momentum, Optimizer
from aiops_protocol.key_range import split
from aiops_protocol.payload import Float32Array
from local_jobs import local_job, random_array, rank_ordered_mean, same_bits

SHAPE = (7, 5)
SIZE = 35
F = np.float32


def start() -> Float32Array:
    return random_array(SHAPE, 99)


class Stepped:
    """Values and the state of an optimizer, in one process."""

    def __init__(self, optimizer: Optimizer, values: Float32Array) -> None:
        self.values = values
        self._optimizer = optimizer
        self._state = {slot: np.zeros_like(values) for slot in optimizer.slots}
        self._steps = 0

    def step(self, gradient: Float32Array) -> None:
        self._steps += 1
        self._optimizer.update(
            self.values, gradient.copy(), self._state, self._steps, np.empty_like(self.values)
        )


def in_one_process(
    workers: int, steps: int, every: int, outer: Optimizer, fragments: int, delay: int, mixing: F
) -> Iterator[list[Float32Array]]:
    """Yield the values of all workers before each local step, and at last those of the servers."""
    period, inner = every // fragments, AdamW(lr=0.05)
    locals_ = [Stepped(inner, start().reshape(-1)) for _ in range(workers)]
    parts = [slice(piece.begin, piece.end) for piece in split(SIZE, fragments, alignment=1)]
    servers = [Stepped(outer, start().reshape(-1)[part].copy()) for part in parts]
    came = [server.values.copy() for server in servers]
    under_way: list[int] = []
    clocks = -(-steps // period)

    def take_in() -> None:
        for p in under_way:
            came[p] = servers[p].values.copy()
            for local in locals_:
                if mixing:
                    local.values[parts[p]] = local.values[parts[p]] * mixing + came[p] * F(
                        1 - mixing
                    )
                else:
                    local.values[parts[p]] = came[p]
        under_way.clear()

    for clock in range(clocks):
        if not delay:
            take_in()
        for i in range(min(period, steps - clock * period)):
            if i and i == delay:
                take_in()
            yield [local.values.copy() for local in locals_]
            for rank, local in enumerate(locals_):
                local.step(random_array((SIZE,), clock * period + i, rank))
        take_in()
        for p in range(fragments) if clock + 1 == clocks else [clock % fragments]:
            changes = [came[p] - local.values[parts[p]] for local in locals_]
            servers[p].step(rank_ordered_mean(changes, workers))
            under_way.append(p)
    yield [np.concatenate([server.values for server in servers])] * workers


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("servers", "steps", "every", "outer", "fragments", "delay", "mixing"),
    [
        (1, 12, 4, DILOCO, 1, 0, None),
        (3, 13, 4, DILOCO, 1, 0, None),
        (2, 17, 6, Momentum(lr=0.5, momentum=0.5), 3, 0, None),
        (2, 22, 8, DILOCO, 2, 2, None),
        (2, 22, 8, SGD(lr=1.0), 2, 3, 0.25),
        (2, 5, 1, DILOCO, 1, 0, None),
    ],
)
async def test_bits_are_those_of_one_process(
    servers: int, steps: int, every: int, outer: Optimizer, fragments: int, delay: int, mixing: Any
) -> None:
    kept = F((0.5 if delay else 0.0) if mixing is None else mixing)
    expected = list(in_one_process(3, steps, every, outer, fragments, delay, kept))

    async def train(worker: aiops.Worker) -> None:
        local = await LocalSGD.open(
            *(worker, "w", start()),
            every=every,
            outer=outer,
            inner=AdamW(lr=0.05),
            fragments=fragments,
            delay=delay,
            mixing=mixing,
        )
        seen = []
        async for step in local.steps(steps):
            seen.append(step)
            assert same_bits(local.values.reshape(-1), expected[step][worker.rank])
            local.apply(random_array(SHAPE, step, worker.rank))
        assert seen == list(range(steps))
        assert same_bits((await local.pull()).reshape(-1), expected[-1][0])
        assert worker.clock == -(-steps // (every // fragments))

    async with local_job(servers) as cluster:
        await cluster.run(train, workers=3)


@pytest.mark.parametrize("every", [5, 20])
async def test_bytes_are_those_of_every_step_divided(every: int) -> None:
    """Exactly the values, and headers of at most one per cent."""
    init, steps = np.zeros(20_000, F), 40

    async def pushed_and_pulled(local_steps: int | None) -> tuple[int, int]:
        async with local_job(2) as cluster, cluster.connect() as worker:
            if local_steps is None:
                table = await worker.table("w", init.shape, init=0.0)
                async for _ in worker.steps(steps):
                    await table.pull()
                    await table.push(init)
                await table.pull()
            else:
                local = await LocalSGD.open(worker, "w", init, every=local_steps)
                before = dict(worker.stats()["bytes"])
                async for _ in local.steps(steps):
                    pass
                await local.pull()
                assert before["pushed"] >= init.nbytes, "the initial values, once"
                after = worker.stats()["bytes"]
                return (after["pushed"] - before["pushed"], after["pulled"] - before["pulled"])
            counts = worker.stats()["bytes"]
            return counts["pushed"], counts["pulled"]

    pushed, pulled = await pushed_and_pulled(every)
    rounds = steps // every
    assert rounds * init.nbytes <= pushed <= 1.01 * rounds * init.nbytes
    assert (rounds + 1) * init.nbytes <= pulled <= 1.01 * (rounds + 1) * init.nbytes
    pushed_each, _ = await pushed_and_pulled(None)
    assert pushed <= 1.01 * pushed_each / every


async def test_an_outer_rate_of_one_is_the_mean_of_the_workers() -> None:
    """FedAvg: four workers that have gone 1, 2, 3 and 4 up meet at 2.5."""

    async def train(worker: aiops.Worker) -> float:
        local = await LocalSGD.open(worker, "w", np.zeros((), F), every=2, outer=SGD(lr=1.0))
        async for _ in local.steps(2):
            local.values += (worker.rank + 1) / 2
        return float(await local.pull())

    async with local_job() as cluster:
        assert await cluster.run(train, workers=4) == [2.5] * 4


async def test_without_rounds_each_change_counts_in_full() -> None:
    """GEO-SGD: what all workers have added is in the values, to the last one."""

    async def train(worker: aiops.Worker) -> float:
        local = await LocalSGD.open(
            worker, "w", np.zeros(3, F), every=3, outer=SGD(lr=1.0), consistency=ASP()
        )
        async for _ in local.steps(10 + worker.rank):
            local.values += 1.0
        await worker.barrier("done")
        return float((await local.pull())[0])

    async with local_job(2) as cluster:
        assert await cluster.run(train, workers=3) == [10 + 11 + 12] * 3


async def test_one_that_hangs_holds_up_nobody_in_a_quorum() -> None:
    """Three of four are enough. The fourth sleeps for all rounds but the first two."""
    rounds, over = 12, asyncio.Event()
    done: set[int] = set()

    async def train(worker: aiops.Worker) -> float:
        local = await LocalSGD.open(
            *(worker, "w", np.zeros(2000, F)),
            every=5,
            outer=SGD(lr=1.0),
            consistency=Quorum(minimum=3, grace_s=0.02),
        )
        await worker.barrier("open")
        async for step in local.steps(5 * rounds):
            local.values += 1.0
            if worker.rank == 3 and step == 12:
                await over.wait()  # for ever, if the others waited for this one
                break
        if worker.rank == 3:
            return 0.0
        value = float((await local.pull())[0])
        done.add(worker.rank)
        if len(done) == 3:
            over.set()
        return value

    async with local_job(2, on_worker_loss="continue") as cluster:
        results = await cluster.run(train, workers=4)
    assert results[:3] == [5 * rounds] * 3, "each round is the mean of those who came: 5 up"


async def test_a_quorum_and_fragments_do_not_go_together() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        with pytest.raises(ConfigError, match="use fragments=1"):
            await LocalSGD.open(
                *(worker, "w", np.zeros(4, F)),
                every=4,
                fragments=2,
                consistency=Quorum(minimum=1),
            )


async def test_changes_travel_compressed() -> None:
    """Half the bytes each way, and the values of the servers in the end."""

    async def moved(**compression: Any) -> tuple[int, int, float]:
        async with local_job(2) as cluster, cluster.connect() as worker:
            local = await LocalSGD.open(
                *(worker, "w", np.zeros(20_000, F)), every=2, outer=SGD(lr=1.0), **compression
            )
            before = dict(worker.stats()["bytes"])
            async for _ in local.steps(20):
                local.values += 0.25
            value = float((await local.pull())[7])
            after = worker.stats()["bytes"]
            return *(after[way] - before[way] for way in ("pushed", "pulled")), value

    pushed, pulled, value = await moved()
    half = await moved(compression="fp16", pull_compression="fp16")
    assert half[0] < 0.51 * pushed
    assert half[1] < 0.65 * pulled, "the first pull is whole"
    assert half[2] == pytest.approx(value, rel=1e-3)


async def test_a_second_loop_goes_on_and_a_break_sends_nothing() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        async for _ in worker.steps(3):  # a loop of its own, before
            pass
        local = await LocalSGD.open(worker, "w", np.zeros(1, F), every=4, outer=SGD(lr=1.0))
        assert [step async for step in local.steps(6)] == [0, 1, 2, 3, 4, 5]
        assert worker.clock == 5
        async for step in local.steps(4):
            local.values += 1.0
            assert step == 6
            break
        assert (await local.pull())[0] == 0.0
        assert [step async for step in local.steps(3)] == [10, 11, 12]


async def test_all_stop_at_one_clock() -> None:
    async def train(worker: aiops.Worker) -> tuple[int, int]:
        local = await LocalSGD.open(worker, "w", np.zeros(1, F), every=4)
        taken = 0
        async for step in local.steps(1000):
            taken += 1
            if worker.rank == 1 and step == 9:
                await worker.stop("enough")
        return taken, worker.clock

    async with local_job() as cluster:
        first, second = await cluster.run(train, workers=2)
    assert first == second
    assert first[0] == 4 * first[1] < 1000


async def test_a_restarted_worker_goes_on_at_its_clock() -> None:
    """With the values of the servers: its own, and its optimizer's state, went with it."""
    async with local_job(on_worker_loss="continue") as cluster:

        async def first_life() -> None:
            async with cluster.connect("a") as worker:
                local = await LocalSGD.open(worker, "w", np.zeros(1, F), every=4)
                async for step in local.steps(20):
                    local.values -= 1.0
                    if step == 9:
                        raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await first_life()
        async with cluster.connect("a") as worker:
            local = await LocalSGD.open(worker, "w", np.zeros(1, F), every=4)
            steps = [step async for step in local.steps(20)]
            assert steps == list(range(8, 20))
            assert worker.clock == 5


async def test_values_that_are_no_numbers_are_not_sent() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        local = await LocalSGD.open(worker, "w", np.zeros(3, F), every=2)
        steps = local.steps(4)
        for _ in range(2):
            await anext(steps)
        local.values[1] = np.nan
        with pytest.raises(UsageError, match=r"push to table w: the value at \(1,\) is nan"):
            await anext(steps)


@given(
    every=st.sampled_from([1, 2, 6, 12]),
    fragments=st.sampled_from([1, 2, 3]),
    loops=st.lists(st.integers(0, 30), min_size=1, max_size=4),
)
def test_every_step_is_yielded_once(every: int, fragments: int, loops: list[int]) -> None:
    """Over a stand-in for a worker, whatever the loops and the settings."""
    if every % fragments:
        fragments = 1
    worker = _Alone()

    async def run() -> list[int]:
        local = await LocalSGD.open(
            worker, "w", np.zeros(6, F), every=every, fragments=fragments, outer=SGD(lr=1.0)
        )
        seen = []
        for n in loops:
            async for step in local.steps(n):
                seen.append(step)
                local.values += 1.0
        return [*seen, int((await local.pull()).min()), int(local.values.max())]

    *seen, lowest, highest = aiops.run(run())
    assert seen == list(range(sum(loops)))
    assert lowest == highest == sum(loops), "each loop sends everything at its end"


class _AloneTable:
    """One worker's table: a push takes effect at once."""

    def __init__(self, init: Float32Array) -> None:
        self.values = init.copy()

    async def pull(self, *, out: Float32Array) -> Float32Array:
        np.copyto(out, self.values)
        return out

    async def push(self, gradient: Float32Array) -> None:
        self.values -= gradient


class _Alone:
    """A worker without a cluster."""

    planned = 0

    async def table(self, name: str, *, init: Float32Array, **_: object) -> _AloneTable:
        return _AloneTable(init)

    async def steps(self, n: int, /) -> Any:
        clocks = range(self.planned, self.planned + n)
        self.planned += n
        for clock in clocks:
            yield clock

    def span(self, name: str, step: int) -> Any:
        return np.errstate()


OPEN_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"every": 0}, "every is 0"),
    ({"every": 10, "fragments": 3}, "fragments must divide every"),
    ({"every": 60, "fragments": 30}, "none may be empty"),
    ({"every": 10, "delay": 10}, "delay is 10"),
    ({"every": 10, "delay": 1, "mixing": 1.0}, "mixing is 1.0"),
    ({"every": 10, "inner": "adam"}, "inner is 'adam'"),
    ({"every": 10, "outer": "adam"}, "optimizer is 'adam'"),
    ({"every": 10, "init": [1.0]}, "init is [1.0]"),
    ({"every": 10, "init": np.zeros(3)}, "init: the array is float64"),
    ({"every": 10, "init": np.array([np.inf], F)}, "init: the value at (0,) is inf"),
]


async def test_what_is_wrong_is_named() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        for number, (settings, words) in zip(count(), OPEN_WRONG, strict=False):
            init = settings.pop("init", np.zeros(20, F))
            with pytest.raises(ConfigError) as caught:
                await LocalSGD.open(worker, f"t{number}", init, **settings)
            assert words in str(caught.value)
            assert isinstance(caught.value, AiopsError)
        local = await LocalSGD.open(worker, "w", np.zeros(2, F), every=2)
        with pytest.raises(UsageError, match="no inner optimizer"):
            local.apply(np.zeros(2, F))
