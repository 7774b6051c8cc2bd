"""Every parameter of the public API gets values that were not meant: only errors of aiops come out.

Which calls there are, and what their parameters are called, is read from the code.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiops
import aiops.collective
import aiops.testing
import aiops.testing.history
import aiops.trainers
import aiops.trainers.sparse
from aiops import ASP
from aiops.errors import AiopsError
from local_jobs import local_job

F = np.float32
DEAD = "127.0.0.1:1"
WRONG: tuple[Any, ...] = (
    *(None, 5, -1, 0, True, 1.5, float("nan"), float("inf"), 10**400, np.float64(1), 1j),
    *("x", "", "\0", "\u00e9" * 3000, b"x", [], [1, "a"], (), {}, object(), int, lambda: 0),
    *(np.ones(3), np.ones((2, 2), F), np.array("x")),
)
# What an argument must be for the others to be looked at.
GOOD: Mapping[str, Any] = {
    **{"name": "n", "lr": 0.1, "size": 3, "l1": 0.1, "shape": (3,), "threshold": 0.1, "rank": 0},
    **{"world_size": 2, "minimum": 1, "codec": "fp16", "target": DEAD, "steps": 3, "value": 1.0},
    **{"scheduler": DEAD, "text": "x", "after": 3, "every": 3, "max_norm": 1.0, "settings": {}},
    **{"gradients": np.ones(3, F), "features": 3, "classes": 2, "hidden": (3,), "factors": 2},
    **{"low": 0.0, "high": 1.0, "rows": 9, "batch_size": 3, "part": 0, "parts": 1, "count": 3},
    **{"array": np.ones(3, F), "arrays": [np.ones(3, F)], "kind": "all_reduce", "n": 3},
    **{"grad": np.ones(3, F), "grads": np.ones((2, 2), F), "keys": [1, 2], "function": "f"},
    **{"reason": "why", "train": lambda worker: asyncio.sleep(0), "workers": 1, "state": {}},
    **{"faults": aiops.testing.Faults(), "chance": random.Random(1)},
    **{"cls": aiops.optim.SGD, "folder": "f", "source": "digits", "path": "/nowhere", "model": "x"},
}
PACKAGES = (
    *(aiops, aiops.optim, aiops.compression, aiops.init, aiops.filters, aiops.functions),
    *(aiops.collective, aiops.testing, aiops.testing.history, aiops.trainers),
    aiops.trainers.sparse,
)
# Results, which users only read, and what takes objects that only aiops makes.
NOT_CALLED = {
    *("PushResult", "Choice", "Counters", "Dataset", "Evaluation", "Progress", "WorkerReport"),
    *("Verdict", "Violation", "Batch", "ShardView", "ServerFunction", "InProcessMember", "Ring"),
    *("Worker", "CustomerHandle", "Table", "SparseTable", "LocalCopy", "LocalSGD", "check"),
    *("final_report", "render", "train", "train_sparse", "area_under_curve", "log_loss", "run"),
    *("Member", "Model", "register", "server_function"),
}


def public_calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    for package in PACKAGES:
        names = getattr(package, "__all__", [name for name in vars(package) if name[0].isupper()])
        for name in names:
            value = getattr(package, name)
            ours = getattr(value, "__module__", "").startswith("aiops")
            abstract = inspect.isclass(value) and (
                inspect.isabstract(value) or issubclass(value, BaseException)
            )
            if ours and callable(value) and name not in NOT_CALLED and not abstract:
                yield f"{package.__name__}.{name}", value


def parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(call).parameters.values()
    return [parameter for parameter in found if parameter.kind in kinds]


def cases(call: Callable[..., Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return calls with one wrong argument each, and a few words about it."""
    known = parameters(call)
    needed = {p.name: GOOD.get(p.name) for p in known if p.default is inspect.Parameter.empty}
    for parameter in known:
        for value in WRONG:
            words = f"{parameter.name}={value!r:.40}"
            yield words, needed | {parameter.name: value}


def escaped(error: BaseException) -> str:
    """Say where an error that is none of aiops came from; empty if it may."""
    if isinstance(error, AiopsError | TimeoutError):
        return ""
    return f"{type(error).__name__}: {error} at {traceback.extract_tb(error.__traceback__)[-1]}"


def names(case: tuple[str, Callable[..., Any]]) -> str:
    return case[0]


@pytest.mark.parametrize("case", list(public_calls()), ids=names)
def test_what_is_called_first_says_what_is_wrong(
    case: tuple[str, Callable[..., Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for words, arguments in cases(case[1]):
        try:
            made = case[1](**arguments)
            if inspect.iscoroutine(made):
                made.close()
        except BaseException as error:
            found += [f"{words}: {escaped(error)}"] if escaped(error) else []
    assert found == []


async def checked(what: str, call: Callable[..., Any]) -> list[str]:
    """Call with every wrong argument; return what escaped."""
    found = []
    for words, arguments in cases(call):
        if "timeout_s" in inspect.signature(call).parameters:
            arguments = {"timeout_s": 5.0} | arguments
        try:
            made = call(**arguments)
            if hasattr(made, "__anext__"):
                await anext(made, None)
                await made.aclose()
            elif inspect.isawaitable(made):
                await made
        except BaseException as error:
            found += [f"{what}({words}): {escaped(error)}"] if escaped(error) else []
    return found


async def test_what_a_worker_is_called_with() -> None:
    """Names of tables and rings that are right are made, so every call has one of its own."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("t", 3, consistency=ASP())
        sparse = await worker.sparse_table("s", 2, consistency=ASP())
        ring = await worker.ring("r")
        member = aiops.collective.InProcessRing(1).member(0)
        await table.pull()
        calls: list[Callable[..., Any]] = [
            *(worker.table, worker.sparse_table, worker.shard, worker.customer, worker.steps),
            *(worker.barrier, worker.ring, worker.load_state_dict, table.pull, table.push),
            *(table.push_soon, table.assign, table.push_pull, table.load_compression_state),
            *(table.local.apply, table.local.use, table.local.pull_every),
            *(sparse.pull, sparse.push, sparse.assign, worker.customer("c").open),
        ]
        for each in (ring, member):
            calls += [each.all_reduce, each.all_reduce_async, each.all_gather, each.broadcast]
            calls += [each.reduce_scatter, each.barrier, each.explain]
        calls += [ring.reform]
        found = []
        for call in calls:
            found += await checked(call.__qualname__, call)
        assert found == []


@pytest.mark.parametrize("verb", ["expect_workers", "will_not_come", "stop", "close"])
async def test_what_a_scheduler_is_told(verb: str) -> None:
    async with aiops.Scheduler(workers=2) as scheduler:
        assert await checked(verb, getattr(scheduler, verb)) == []


@pytest.mark.parametrize("role", ["Scheduler", "Server", "LocalCluster", "FaultProxy"])
async def test_what_a_role_is_started_with(role: str) -> None:
    """A socket, for example, is only used when the door is opened."""
    made = getattr(aiops, role, None) or getattr(aiops.testing, role)
    found = []
    async with aiops.Scheduler() as scheduler:
        given = {"scheduler": scheduler.address, "heartbeat_thread": False, "connect_timeout_s": 5}
        for words, arguments in cases(made):
            try:
                async with made(**((given if role == "Server" else {}) | arguments)):
                    pass
            except BaseException as error:
                found += [f"{words}: {escaped(error)}"] if escaped(error) else []
    assert found == []
