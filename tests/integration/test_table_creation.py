"""Tables: created once whoever comes first, joined by the others, refused with the difference."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP
from aiops.errors import (
    ConfigError,
    KeyRangeNotOwned,
    RemoteError,
    RequestTimeout,
    TableMismatch,
    UsageError,
)
from aiops.init import Constant, Normal, Uniform
from aiops.optim import SGD, Adam, Add, Momentum
from aiops_protocol.payload import Float32Array
from local_jobs import local_job, random_array, same_bits, together, until
from van_bodies import resume, stall


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize(
    ("init", "expected"),
    [
        (0.0, np.zeros((70, 3), np.float32)),
        (1, np.ones((70, 3), np.float32)),
        (-2.5, np.full((70, 3), -2.5, np.float32)),
        (Constant(3.0), np.full((70, 3), 3.0, np.float32)),
        (Normal(std=0.5, seed=7), Normal(std=0.5, seed=7).fill(0, 210).reshape(70, 3)),
        (Uniform(-1.0, 1.0, seed=3), Uniform(-1.0, 1.0, seed=3).fill(0, 210).reshape(70, 3)),
        (random_array((70, 3), 1), random_array((70, 3), 1)),
        (np.asfortranarray(random_array((70, 3), 1)), random_array((70, 3), 1)),
        (random_array((140, 3), 1)[::2], random_array((140, 3), 1)[::2]),
    ],
    ids=["0.0", "1", "-2.5", "constant", "normal", "uniform", "array", "fortran", "strided"],
)
async def test_initial_values(servers: int, init: Any, expected: Float32Array) -> None:
    async with local_job(servers) as cluster, cluster.connect() as worker:
        table = await worker.table("w", (70, 3), init=init, consistency=ASP())
        assert same_bits(await table.pull(), expected)


@pytest.mark.parametrize(
    "shape", [(), 0, (0,), 1, 3, (3,), [3], (0, 5), (5, 0), (2, 3, 4), (1,) * 20], ids=str
)
@pytest.mark.parametrize("consistency", [BSP(), ASP()], ids=["bsp", "asp"])
async def test_any_shape(shape: Any, consistency: Any) -> None:
    """Three floats over four servers, one number, and nothing at all."""
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    async with local_job(4) as cluster, cluster.connect() as worker:
        table = await worker.table("w", shape, init=2.0, optimizer=Add(), consistency=consistency)
        assert table.shape == dims
        two = np.full(dims, 2.0, np.float32)
        assert same_bits(await table.pull(), two)
        await table.push(two)
        await worker.tick()
        assert same_bits(await table.pull(), two + two)
        await table.assign(two)
        await worker.tick()
        assert same_bits(await table.push_pull(two), two + two)
        version, values = await anext(table.updates())
        assert same_bits(values, two + two)
        assert version == table.version
        assert same_bits(table.local.values, two + two)
        out = np.empty(dims, np.float32)
        assert await table.pull(out=out) is out
        assert same_bits(out, two + two)
        covered = sum(part["end"] - part["begin"] for part in table.partition)
        assert covered == two.size


async def test_a_scalar_may_be_pushed_to_a_table_of_one_number() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", (), optimizer=Add(), consistency=ASP())
        await table.push(np.float32(3))  # type: ignore[arg-type]  # numpy makes these of 0-d arrays
        assert (await table.pull()).item() == 3
        with pytest.raises(UsageError, match="float32, not float"):
            await table.push(3.0)  # type: ignore[arg-type]  # that is the point


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
@pytest.mark.parametrize("size", [4, 100, 700_000])
async def test_the_first_creators_values_win_whoever_comes_first(size: int) -> None:
    """Six workers offer six arrays: one of them is what everybody pulls."""

    async def train(worker: aiops.Worker) -> Float32Array:
        for _ in range(worker.rank % 3):
            await asyncio.sleep(0)
        mine = np.full(size, worker.rank, np.float32)
        table = await worker.table("w", size, init=mine)
        mine[:] = 99  # the table has its own copy
        return await table.pull()

    async with local_job(3) as cluster:
        results = await cluster.run(train, workers=6)
    winner = results[0][0]
    assert winner in range(6)
    assert all((result == winner).all() for result in results)


async def test_who_was_to_initialise_may_die() -> None:
    """The next who has values is asked for them."""
    async with local_job(on_worker_loss="continue") as cluster, cluster.connect() as second:
        first = await cluster.connect()
        created = asyncio.ensure_future(first.table("w", 4, init=np.full(4, 1, np.float32)))
        await until(lambda: cluster.status()["tables"])
        joined = asyncio.ensure_future(second.table("w", 4, init=np.full(4, 2, np.float32)))
        await first.close(RuntimeError("died"))
        created.cancel()
        values = await (await joined).pull()
        assert (values == values[0]).all()
        await asyncio.gather(created, return_exceptions=True)


async def test_a_table_is_joined_by_its_name_alone() -> None:
    async with local_job(2) as cluster, cluster.connect() as a, cluster.connect() as b:
        first = await a.table("w", (30, 2), init=1.5, optimizer=Adam(lr=0.1), consistency=ASP())
        second = await b.table("w")
        assert (second.name, second.shape, second.has_rounds) == ("w", (30, 2), False)
        assert second.partition == first.partition
        assert (await second.pull() == 1.5).all()
        assert repr(second) == "<Table w shape=(30, 2) version=0>"


async def test_an_unknown_table() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        await worker.table("known", 4)
        with pytest.raises(UsageError, match=r"no table w .*there is: known.*shape= creates it"):
            await worker.table("w")
        table = await worker.table("w", 4)  # and the name is still free
        assert (await table.pull() == 0).all()


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"shape": (4, 1)}, r"shape is \[4\], not \[4, 1\]"),
        ({"init": 1.0}, r"init is .*0.0.*, not .*1.0"),
        ({"init": Normal()}, "init_kind is constant, not normal"),
        ({"init": np.zeros(4, np.float32)}, "init_kind is constant, not values"),
        ({"optimizer": SGD(lr=0.2)}, r"lr.*0.1.* not .*0.2"),
        ({"optimizer": Momentum(lr=0.1)}, "optimizer is sgd, not momentum"),
        ({"consistency": ASP()}, "consistency is bsp, not asp"),
        ({"consistency": BSP(reduce="sum")}, "mean.* not .*sum"),
        ({"allow_nonfinite": True}, "allow_nonfinite is False, not True"),
    ],
    ids=lambda value: str(list(value)) if isinstance(value, dict) else "",
)
async def test_other_settings_are_refused_with_the_difference(
    change: dict[str, Any], difference: str
) -> None:
    settings: dict[str, Any] = {"shape": 4, "init": 0.0, "optimizer": SGD(lr=0.1)}
    async with local_job() as cluster, cluster.connect() as a, cluster.connect() as b:
        await a.table("w", **settings)
        for worker in (a, b):
            with pytest.raises(TableMismatch, match=f"table w exists.*{difference}"):
                await worker.table("w", **{**settings, **change})
        await b.table("w", **settings)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"shape": -1}, "shape -1"),
        ({"shape": (3, -1)}, r"shape \(3, -1\)"),
        ({"shape": 2.5}, "whole number"),
        ({"shape": "4"}, "whole number"),
        ({"shape": (True,)}, "whole number"),
        ({"shape": (1,) * 65}, "cannot travel"),
        ({"shape": (2**63,)}, "cannot travel"),
        ({"shape": (2**40, 2**40)}, "elements"),
        ({"init": np.zeros(5, np.float32)}, r"init.*shape \(5,\), expected \(4,\)"),
        ({"init": np.zeros(4)}, "float64"),
        ({"init": np.full(4, np.nan, np.float32)}, r"value at \(0,\) is nan"),
        ({"init": float("nan")}, "value"),
        ({"init": "zeros"}, "value"),
        ({"init": None}, "value"),
        ({"optimizer": 0.1}, r"optimizer is 0.1.*SGD\(lr=0.1\)"),
        ({"optimizer": SGD}, r"optimizer is <class"),
        ({"consistency": "bsp"}, r"consistency is 'bsp'; pass BSP\(\), SSP\("),
        ({"consistency": BSP}, r"pass BSP\(\), SSP\("),
        ({"name": ""}, "name"),
        ({"name": "a b"}, "letters, digits"),
        ({"name": "x" * 65}, "1 to 64"),
        ({"name": "line\n"}, "letters, digits"),
        ({"name": 7}, "name is 7"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": "x"}, "timeout_s is 'x'"),
    ],
    ids=str,
)
async def test_wrong_settings_change_nothing(settings: dict[str, Any], why: str) -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        with pytest.raises((ConfigError, UsageError), match=why):
            await worker.table(**{"name": "w", "shape": 4, **settings})
        assert cluster.status()["tables"] == []
        assert (await (await worker.table("w", 4)).pull() == 0).all()


async def test_values_that_are_not_finite_may_be_allowed() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table(
            "w", 4, init=values, optimizer=Add(), consistency=ASP(), allow_nonfinite=True
        )
        assert same_bits(await table.pull(), values)
        await table.push(values)
        assert np.isnan((await table.pull())[0])


async def test_a_table_larger_than_memory_is_refused_with_the_sum() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        with pytest.raises(RemoteError, match=r"needs \d+ bytes.*contributions \d+.*add servers"):
            await worker.table("w", (2**20, 2**20))
        table = await worker.table("w", 4)
        assert (await table.pull() == 0).all()


async def test_the_same_table_opened_twice_at_once_is_one_table() -> None:
    """Two handles would number their pushes twice, and one's would be taken for repeats."""
    async with local_job(2) as cluster, cluster.connect() as worker:
        first, second, third = await together(
            worker.table("w", 64, optimizer=Add(), consistency=ASP()) for _ in range(3)
        )
        assert first is second is third
        await together(table.push(np.ones(64, np.float32)) for table in (first, second, third))
        assert (await first.pull() == 3).all()


async def test_the_same_name_at_once_with_other_settings() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        results = await asyncio.gather(
            worker.table("w", 4), worker.table("w", 5), return_exceptions=True
        )
        assert isinstance(results[0], aiops.Table)
        assert isinstance(results[1], TableMismatch)


@pytest.mark.parametrize("turns", range(8))
async def test_cancelling_an_opening_leaves_nobody_waiting(turns: int) -> None:
    """It goes on by itself; this worker seals the table although nobody here holds it."""
    async with local_job(2) as cluster, cluster.connect() as worker, cluster.connect() as other:
        opening = asyncio.ensure_future(worker.table("w", 64, optimizer=Add(), init=ones(64)))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        theirs = await other.table("w", 64, optimizer=Add(), init=ones(64))
        await worker._tables.opened()
        await theirs.push(ones(64))
        await other.tick()
        await worker.tick()
        if cluster.status()["tables"] and worker._tables.all:
            assert (await theirs.pull() == 2).all()
        mine = await worker.table("w")
        assert (await mine.pull())[0] in (1, 2)


async def test_an_opening_that_is_out_of_time_goes_on() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        control = cluster.servers[0]._control.link
        assert control is not None
        stall(control.stream)
        with pytest.raises(RequestTimeout, match=r"opening table w: no answer.*background"):
            await worker.table("w", 4, timeout_s=0.05)
        resume(control.stream)
        table = await worker.table("w", 4)
        assert (await table.pull() == 0).all()


async def test_many_tables_spread_over_the_servers() -> None:
    async with local_job(3) as cluster, cluster.connect() as worker:
        tables = await together(worker.table(f"t{i}", 4, init=float(i)) for i in range(30))
        owners = [table.partition[0]["server"] for table in tables]
        assert sorted(owners.count(server) for server in range(3)) == [10, 10, 10]
        values = await together(table.pull() for table in tables)
        assert [int(value[0]) for value in values] == list(range(30))
        await worker.tick()


async def test_a_pull_of_keys_that_a_server_does_not_hold_is_refused() -> None:
    """Such as from a worker with a wrong map; nothing is answered with other elements."""
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", 64)
        table.core.layout.servers.reverse()
        with pytest.raises(KeyRangeNotOwned, match=r"holds \["):
            await table.pull()
        table.core.layout.servers.reverse()
        assert (await table.pull() == 0).all()


def ones(size: int) -> Float32Array:
    return np.ones(size, np.float32)
