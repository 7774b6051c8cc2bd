"""Functions of one's own on the servers: what they see, what they return, and how they fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP, SSP
from aiops.consistency import Consistency
from aiops.errors import ConfigError, RemoteError, RequestRejected, UsageError
from aiops.functions import _REGISTERED, ShardView, function_names, server_function
from aiops.optim import SGD, Momentum
from aiops.testing import ChaosCluster, Faults, Weather
from aiops.testing.history import verify
from aiops_protocol.calls import call_payload, called
from aiops_protocol.errors import ErrorCode, MalformedFrame
from aiops_protocol.frames import Call, Value
from local_jobs import guarded, local_job, random_array, same_bits
from served import Served, acked, refusal, replies, values_of

F = np.float32
SHAPE = (40, 3)


@pytest.fixture(autouse=True)
def _functions() -> Iterator[None]:
    """Registered for a test, and forgotten after it."""
    before = dict(_REGISTERED)

    @server_function("norm")
    def norm(part: ShardView, power: float = 2.0) -> Any:
        return np.sum(np.abs(part.values) ** power)

    @server_function("where")
    def where(part: ShardView) -> Any:
        return [part.begin, part.end, *part.shape, part.version, len(part.state)]

    @server_function("scale", changes=True)
    def scale(part: ShardView, by: float) -> None:
        part.values *= F(by)

    @server_function("bad")
    def bad(part: ShardView, how: str) -> Any:
        return misbehave(part, how)

    @server_function("bad-change", changes=True)
    def bad_change(part: ShardView, how: str) -> Any:
        part.values[0] += 1
        return misbehave(part, how)

    yield
    _REGISTERED.clear()
    _REGISTERED.update(before)


def misbehave(part: ShardView, how: str) -> Any:
    match how:
        case "raise":
            raise KeyError("lost")
        case "exit":
            raise SystemExit("bye")
        case "write":
            part.values[0] = 1.0
        case "write state":
            part.state["velocity"][0] = 1.0
        case "text":
            return "seven"
        case "too much":
            return np.zeros(20_000)
        case "shape":
            part.values.shape = (len(part.values), 1)
        case "nan":
            part.values[-1] = np.nan
        case "replace":
            part.values = part.values + 1
        case "return":
            return 1.0
    return None


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
@pytest.mark.parametrize("servers", [1, 3])
async def test_each_shard_returns_what_the_function_makes_of_it(servers: int) -> None:
    init = random_array(SHAPE, 1)
    async with local_job(servers) as cluster, cluster.connect() as worker:
        table = await worker.table("w", SHAPE, init=init, optimizer=Momentum(lr=1.0))
        sums = await table.call("norm", power=1.0)
        assert len(sums) == table.shards == servers
        assert [result.shape for result in sums] == [(1,)] * servers
        assert float(np.sum(sums)) == pytest.approx(float(np.abs(init).sum()), rel=1e-5)
        seen = await table.call("where")
        bounds = [tuple(result[:2]) for result in seen]
        assert bounds == [(part["begin"], part["end"]) for part in table.partition]
        assert [tuple(result[2:]) for result in seen] == [(*SHAPE, 0, 1)] * servers


@pytest.mark.parametrize("consistency", [ASP(), SSP(staleness=1)], ids=str)
async def test_without_rounds_a_change_takes_effect_at_once(consistency: Consistency) -> None:
    init = random_array(SHAPE, 2)
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", SHAPE, init=init, consistency=consistency)
        await table.transform("scale", by=0.5)
        assert same_bits(await table.pull(), init * F(0.5))
        async for _ in worker.steps(3):
            await table.transform("scale", by=2.0)
        assert same_bits(await table.pull(), init * F(4))


async def test_with_rounds_a_change_takes_effect_at_the_close_before_the_gradients() -> None:
    """As an assign of what it makes of the open version; a call sees the worker's version."""

    async def train(worker: aiops.Worker) -> list[float]:
        table = await worker.table("w", 4, init=8.0, optimizer=SGD(lr=1.0), consistency=BSP())
        sums = []
        async for step in worker.steps(3):
            if worker.rank == step == 1:
                await table.transform("scale", by=0.5)
            await table.push(np.full(4, -1, F))
            sums.append(float((await table.call("norm", power=1.0))[0][0]))
        return [*sums, *await table.pull()]

    async with local_job() as cluster:
        # 8, then 9, then halved and one more, and one more
        assert await cluster.run(train, workers=2) == [[32, 36, 22, 6.5, 6.5, 6.5, 6.5]] * 2


@pytest.mark.parametrize("how", ["raise", "exit", "write", "write state", "text", "too much"])
async def test_a_function_that_fails_is_told_and_the_server_goes_on(how: str) -> None:
    words = {
        "raise": "KeyError('lost')",
        "exit": "it asked the server to exit (bye)",
        "write": "read-only",
        "write state": "read-only",
        "text": "it returned a str",
        "too much": "it returned 20000 numbers",
    }
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", SHAPE, init=1.0, optimizer=Momentum(lr=1.0))
        with pytest.raises(RemoteError) as caught:
            await table.call("bad", how=how)
        assert "function bad failed on table w, nothing was changed" in str(caught.value)
        assert words[how] in str(caught.value)
        assert (await table.pull() == 1.0).all()
        assert float(np.sum(await table.call("norm"))) == 120.0


@pytest.mark.parametrize("how", ["raise", "shape", "nan", "return", "replace", "write state"])
@pytest.mark.parametrize("consistency", [ASP(), BSP()], ids=str)
async def test_a_change_that_fails_has_changed_nothing(how: str, consistency: Consistency) -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table(
            "w", SHAPE, init=1.0, optimizer=Momentum(lr=1.0), consistency=consistency
        )
        with pytest.raises(RemoteError, match="function bad-change failed on table w"):
            await table.transform("bad-change", how=how)
        async for _ in worker.steps(1):
            await table.transform("scale", by=3.0)
        assert (await table.pull() == 3.0).all()


async def test_what_cannot_be_run_is_refused_with_the_way_out() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", 4, consistency=ASP())
        for call, words in (
            (table.call("nrom"), "unknown function 'nrom'; known are bad, bad-change, norm"),
            (table.call("norm", root=1), "unexpected keyword argument 'root'"),
            (table.transform("scale"), "missing a required argument: 'by'"),
            (table.call("scale", by=1.0), "function scale changes values: use transform"),
            (table.transform("norm"), "function norm only reads: use call"),
        ):
            with pytest.raises((RequestRejected, UsageError)) as caught:
                await call
            assert words in str(caught.value)
        with pytest.raises(UsageError, match="settings are numbers, texts, bools or None"):
            await table.call("norm", power=[2.0])  # type: ignore[arg-type]  # the point
        assert float((await table.call("norm"))[0][0]) == 0.0
        await worker.finish()
        assert float((await table.call("norm"))[0][0]) == 0.0, "reading goes on"
        with pytest.raises(UsageError, match="has finished"):
            await table.transform("scale", by=1.0)


async def test_each_change_happens_once_however_often_connections_are_cut() -> None:
    """Doubling is not a sum: one change too many, or one too few, would be a factor of two."""

    async def train(worker: aiops.Worker) -> list[float]:
        table = await worker.table("w", (50, 60), init=1.0, consistency=ASP())
        for number in range(40):
            await table.transform("scale", by=2.0 if number % 2 else 0.5)
            await table.transform("scale", by=2.0)
            assert len(await table.call("where")) == 2
        await worker.barrier("done")
        return [float(value) for value in np.unique(await table.pull())]

    rain = Weather(Faults(delay_s=0.0005, jitter_s=0.001), cut_every_s=0.05, seed=3)
    async with guarded(), ChaosCluster(servers=2, weather=rain) as cluster:
        assert await cluster.run(train, workers=2) == [[2.0**80]] * 2
        assert cluster.counters.cuts > 2


async def test_a_history_with_functions_holds(tmp_path: Path) -> None:
    """What a function has made of the values nobody else can tell; everything else is checked."""
    async with (
        local_job(2) as cluster,
        aiops.connect(cluster.address, history=tmp_path, heartbeat_thread=False) as worker,
    ):
        for name, consistency in (("a", ASP()), ("b", BSP())):
            table = await worker.table(name, 40, init=1.0, consistency=consistency)
            async for _ in worker.steps(2):
                await table.push(np.ones(40, F))
                await table.transform("scale", by=2.0)
                assert len(await table.call("norm")) == 2
                await table.pull()
    (verdict,) = verify(tmp_path)
    assert not verdict.violations


def test_a_change_that_is_repeated_has_happened_once() -> None:
    served = Served(size=4, consistency="asp")
    served.assign(0, np.ones(4))
    payload = call_payload("scale", {"by": 2.0})
    change = served.mutation(Call, 0, payload=payload)
    assert acked(served.ask(10, change))
    assert acked(served.ask(10, change))
    assert served.values.tolist() == [2.0] * 4
    failing = served.mutation(Call, 0, payload=call_payload("bad-change", {"how": "raise"}))
    for _ in range(2):
        assert refusal(served.ask(10, failing))[0] is ErrorCode.FUNCTION_FAILED
    assert served.values.tolist() == [2.0] * 4
    for wrong in (b"", b"\xff" * 8, payload[:-4]):
        code, _ = refusal(served.ask(10, served.mutation(Call, 0, payload=wrong)))
        assert code is ErrorCode.INVALID_SETTING


def test_a_call_for_a_version_that_is_not_there_waits_for_it() -> None:
    served = Served(size=4, workers=(0, 1))
    call = Call(request_id=7, table=1, clock=1, payload=call_payload("norm", {}))
    assert served.ask(10, call) == []
    served.push(0, np.full(4, -2.0), clock=0)
    served.seal(0, 0)
    answers = replies(served.seal(1, 0, flags=0))
    (value,) = [answer for answer in answers if isinstance(answer, Value)]
    assert values_of(value) == [16.0]


def test_names_belong_to_one_function() -> None:
    assert {"norm", "scale"} <= set(function_names())
    with pytest.raises(ConfigError, match="'norm' already belongs to"):
        server_function("norm")(misbehave)
    with pytest.raises(ConfigError, match="takes no shard"):
        server_function("none")(lambda: None)
    for name in ("", " a", 7, "x" * 65):
        with pytest.raises(ConfigError, match="1 to 64 characters"):
            server_function(name)  # type: ignore[arg-type]  # one of them is a number
    assert "none" not in function_names()


def test_what_is_no_call_is_malformed() -> None:
    payload = call_payload("norm", {"power": 2.0, "fast": True, "mode": "x", "no": None})
    call = called(payload)
    assert (call.function, call.settings) == (
        "norm",
        {"power": 2.0, "fast": True, "mode": "x", "no": None},
    )
    assert len(payload) % 4 == 0
    for wrong in (
        b"",
        payload[:-4],
        payload + bytes(4),
        payload[:4] + b"\xff" * (len(payload) - 4),
        call_payload("a", {})[:-1] + b"\x01",
        (1 << 31).to_bytes(4, "little") + payload[4:],
    ):
        with pytest.raises(MalformedFrame):
            called(wrong)
