"""Calls with things that were not meant: an error of aiops says so, and nothing has happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP
from aiops.compression import PowerSGD
from aiops.errors import AiopsError, ConfigError, UsageError
from aiops.optim import SGD, Add
from local_jobs import local_job

DEAD = "127.0.0.1:1"


async def nothing(worker: aiops.Worker) -> None:
    """Train nothing."""


ROLES: list[tuple[Callable[[], Any], str]] = [
    (lambda: aiops.Scheduler(servers="1"), "servers is '1'"),  # type: ignore[arg-type]
    (lambda: aiops.Scheduler(servers=True), "servers is True"),
    (lambda: aiops.Scheduler(workers=1.5), "workers is 1.5"),  # type: ignore[arg-type]
    (lambda: aiops.Scheduler(min_workers="1"), "min_workers is '1'"),  # type: ignore[arg-type]
    (lambda: aiops.Scheduler(heartbeat_s="1"), "heartbeat_s is '1'"),  # type: ignore[arg-type]
    (lambda: aiops.Scheduler(join_timeout_s="1"), "join_timeout_s"),  # type: ignore[arg-type]
    (lambda: aiops.Scheduler(trace="no"), "trace is 'no'"),  # type: ignore[arg-type]
    (lambda: aiops.Scheduler(5), "bind is 5; write host:port"),  # type: ignore[arg-type]
    (lambda: aiops.Scheduler("http://127.0.0.1:0"), "write host:port"),
    (lambda: aiops.Scheduler(" 127.0.0.1:0"), "write host:port"),
    (lambda: aiops.Scheduler("127.0.0.1:\u0661"), "write host:port"),
    (lambda: aiops.Server(DEAD, name="\u00e9"), "the server's name"),
    (lambda: aiops.Server(DEAD, connect_timeout_s=float("nan")), "connect_timeout_s is nan"),
    (lambda: aiops.Server(DEAD, memory_limit_bytes="1G"), "memory_limit"),  # type: ignore[arg-type]
    (lambda: aiops.Server(("127.0.0.1", 1)), "write host:port"),  # type: ignore[arg-type]
    (lambda: aiops.Scheduler().address, "not started"),
    (lambda: aiops.Scheduler().status(), "not started"),
    (lambda: aiops.Server(DEAD).address, "not started"),
    (lambda: aiops.Server(DEAD).rank, "not started"),
    (lambda: aiops.Scheduler(sock=5), "sock is 5; pass a TCP socket"),  # type: ignore[arg-type]
    (lambda: aiops.Server(DEAD, sock="x"), "sock is 'x'; pass a"),  # type: ignore[arg-type]
    (lambda: aiops.Scheduler("0.0.0.0:0", insecure="no"), "insecure is 'no'"),  # type: ignore[arg-type]
    (lambda: aiops.Scheduler(van=5), "van is 5; pass one of aiops.van"),  # type: ignore[arg-type]
    (lambda: aiops.connect(DEAD, history=5), "history is 5"),  # type: ignore[arg-type]
    (lambda: SGD(lr=10**400), "lr is 1000"),
    (lambda: PowerSGD(shapes=(3,)), r"shapes is \(3,\)"),  # type: ignore[arg-type]
    (lambda: PowerSGD(shapes=3), "shapes is 3"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "why"), ROLES)
async def test_settings_of_another_type_are_refused_before_anything_starts(
    call: Callable[[], Any], why: str
) -> None:
    with pytest.raises(AiopsError, match=why):
        call()


async def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    async with aiops.LocalCluster(servers=np.int64(2)) as cluster:  # type: ignore[arg-type]
        assert await cluster.run(nothing, workers=np.int64(2)) == [None, None]  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout_s", [float("nan"), 0, -1, "5"])
async def test_the_time_to_wait_for_a_status_is_checked(timeout_s: Any) -> None:
    with pytest.raises(UsageError, match="timeout_s"):
        await aiops.fetch_status(DEAD, timeout_s=timeout_s)


async def test_a_running_worker_survives_what_was_not_meant() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        with pytest.raises(ConfigError, match="allow_nonfinite is 'no'"):
            await worker.table("w", 2, allow_nonfinite="no")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="allow_nonfinite is 0"):
            await worker.sparse_table("s", 2, allow_nonfinite=0)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="loss is 'x'; it must be a number"):
            worker.publish_metrics(loss="x")  # type: ignore[arg-type]
        for state in (None, [1], {3: np.ones(1)}):
            with pytest.raises(ConfigError, match="load_state_dict"):
                worker.load_state_dict(state)  # type: ignore[arg-type]
        table = await worker.table("w", 2, consistency=ASP(), optimizer=Add())
        with pytest.raises(ConfigError, match="period_s is '1'"):
            table.local.pull_every("1")  # type: ignore[arg-type]
        sparse = await worker.sparse_table("s", 2, consistency=ASP(), optimizer=Add())
        with pytest.raises(UsageError, match="masked arrays"):
            await sparse.pull(np.ma.masked_array([1, 2], mask=[False, True]))
        with pytest.raises(ConfigError, match="workers is '2'"):
            await cluster.run(nothing, workers="2")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="train is 5"):
            await cluster.run(5)  # type: ignore[arg-type]
        await table.push(np.ones(2, np.float32))
        assert (await table.pull() == 1).all()


async def test_a_closed_cluster_says_that_it_is_closed() -> None:
    async with aiops.LocalCluster() as cluster:
        pass
    for call in (lambda: cluster.address, cluster.connect):
        with pytest.raises(ConfigError, match="closed"):
            call()
    with pytest.raises(ConfigError, match="closed"):
        await cluster.run(nothing)
