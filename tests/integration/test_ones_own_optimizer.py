"""Optimizers of somebody's own that do what they must not: told by name, undone, survived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP
from aiops.errors import RemoteError, UsageError
from aiops.optim import SGD, Optimizer, Steps, register
from aiops.shards.shard import Shard
from aiops_protocol.payload import Float32Array
from local_jobs import local_job, same_bits

F = np.float32


@register
@dataclass(frozen=True, slots=True)
class Wayward(Optimizer):
    """Adds gradients; where one is 13 it does the wrong thing that it is told to, having begun."""

    name: ClassVar[str] = "wayward"
    slots: ClassVar[tuple[str, ...]] = ("sum",)

    wrong: str = "raise"

    def __post_init__(self) -> None:
        if self.wrong == "refuse":
            raise ZeroDivisionError("never")

    def update(
        self,
        values: Float32Array,
        gradient: Float32Array,
        state: Mapping[str, Float32Array],
        step: Steps,
        scratch: Float32Array,
    ) -> Any:
        values += gradient
        state["sum"][...] += gradient
        if not (gradient == 13).any():
            return None
        mutable: Any = state
        match self.wrong:
            case "raise":
                raise ValueError("thirteen")
            case "return":
                return values - gradient
            case "nan":
                values[-1] = np.nan
            case "shape":
                values.shape = (len(values), 1)
            case "shape of state":
                state["sum"].shape = (len(values), 1)
            case "replace":
                mutable["sum"] = state["sum"] + gradient
            case "add":
                mutable["more"] = gradient
            case "exit":
                raise SystemExit(3)
        return None


WRONG = {
    "raise": "ValueError('thirteen')",
    "return": "update returned a ndarray; it must change `values` in place",
    "nan": "update left nan in the values",
    "shape": "update gave values the shape (16, 1); it must stay (16,)",
    "shape of state": "update gave sum the shape (16, 1)",
    "replace": "update put other arrays into the state",
    "add": "update put other arrays into the state",
    "exit": "it asked the server to exit (3)",
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_without_rounds_the_pusher_is_told_and_nothing_has_changed(wrong: str) -> None:
    async with local_job(2) as cluster, cluster.connect() as worker, cluster.connect() as other:
        settings: dict[str, Any] = {"optimizer": Wayward(wrong), "consistency": ASP()}
        table = await worker.table("w", 32, **settings)
        await table.push(np.ones(32, F))
        before = await table.pull()
        with pytest.raises(RemoteError) as caught:
            await table.push(np.full(32, 13, F))
        assert WRONG[wrong] in str(caught.value)
        assert "the optimizer wayward of table w failed" in str(caught.value)
        assert "nothing was changed" in str(caught.value)
        same = await other.table("w")
        assert same_bits(await same.pull(), before)
        await same.push(np.full(32, 2, F))
        assert (await table.pull() == 3).all()
        for server in cluster.servers:
            for served in server._core.tables.values():
                shard = served.rule.shard
                assert isinstance(shard, Shard)
                assert (shard.state["sum"] == 3).all()


@pytest.mark.parametrize("wrong", ["raise", "return", "nan", "shape"])
async def test_with_rounds_the_table_breaks_and_the_others_go_on(wrong: str) -> None:
    """All who take part are told, by their next pull; their ticks and other tables go on."""

    async def train(worker: aiops.Worker) -> tuple[str, float]:
        table = await worker.table("w", 32, optimizer=Wayward(wrong), consistency=BSP("sum"))
        good = await worker.table("good", 3, optimizer=SGD(lr=1.0))
        told = ""
        async for step in worker.steps(6):
            await good.push(np.full(3, -1, F))
            try:
                await table.pull()
                await table.push(np.full(32, 6.5 if step == 2 else 1.0, F))  # two make thirteen
            except RemoteError as error:
                told = told or f"{step}: {error}"
        return told, float((await good.pull())[0])

    async with local_job(2) as cluster:
        for told, good in await cluster.run(train, workers=2):
            assert told.startswith("3: ")
            assert "the optimizer wayward of table w failed" in told
            assert WRONG[wrong].split(";")[0] in told
            assert "in round 2" in told
            assert good == 6.0


async def test_settings_that_only_the_server_refuses_are_told_to_whoever_asks() -> None:
    spoiled = Wayward()
    object.__setattr__(spoiled, "wrong", "refuse")
    async with local_job() as cluster, cluster.connect() as worker:
        with pytest.raises(UsageError, match="refuses its settings: ZeroDivisionError"):
            await worker.table("w", 32, optimizer=spoiled)
        assert (await (await worker.table("w", 32)).pull()).shape == (32,)
