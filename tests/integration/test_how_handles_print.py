"""What a public object says of itself in a debugger or a log: its name, its state, its address."""

from __future__ import annotations

import re

import numpy as np
import pytest

import aiops
from aiops.collective import CompressedReducer, InProcessRing
from aiops.errors import ConfigError
from aiops.filters import KktFilter, SignificanceFilter
from aiops.testing import FaultProxy
from aiops.trainers import Softmax

WHERE = r"127\.0\.0\.1:\d+"
DEAD = "127.0.0.1:1"


def says(thing: object, pattern: str) -> bool:
    return re.fullmatch(pattern, repr(thing)) is not None


async def test_roles_say_who_they_are_where_and_whether_they_run() -> None:
    scheduler, server = aiops.Scheduler(), aiops.Server(DEAD, name="s")
    assert repr(scheduler) == "<Scheduler not started>"
    assert repr(server) == "<Server s not started>"
    async with scheduler, aiops.Server(scheduler.address, heartbeat_thread=False) as server:
        assert says(scheduler, rf"<Scheduler {WHERE} job=\w{{8}} running>")
        assert says(server, rf"<Server 0 \(server-auto-0\) {WHERE} running>")
    assert says(scheduler, r"<Scheduler job=\w{8} closed>")
    assert says(server, r"<Server 0 \(server-auto-0\) closed>")


async def test_clusters_and_what_they_hand_out() -> None:
    cluster = aiops.LocalCluster()
    assert repr(cluster) == "<LocalCluster servers=1 not started>"
    async with cluster:
        assert says(cluster, r"<LocalCluster servers=1 <Scheduler .* running>>")
        connecting = cluster.connect(name="w")
        assert repr(connecting) == f"<connecting w to {cluster.address}>"
        async with connecting as worker:
            table = await worker.table("t", 3)
            await table.pull()
            assert repr(table.local) == "<LocalCopy of t version=0>"
            local = await aiops.LocalSGD.open(worker, "l", np.ones(3, np.float32), every=4)
            assert repr(local) == "<LocalSGD shape=(3,) every=4 fragments=1 step=0>"


def test_the_blocking_twins_say_that_they_are() -> None:
    cluster = aiops.blocking.LocalCluster()
    assert repr(cluster) == "<blocking <LocalCluster servers=1 not started>>"
    with cluster, cluster.connect() as worker:
        assert repr(worker.table("t", 3).local) == "<blocking <LocalCopy of t version=0>>"
        local = aiops.blocking.LocalSGD.open(worker, "l", np.ones(3, np.float32), every=4)
        assert repr(local).startswith("<blocking <LocalSGD shape=(3,)")


def test_what_needs_no_cluster() -> None:
    ring = InProcessRing(2)
    assert repr(ring) == "<InProcessRing world_size=2>"
    assert repr(ring.member(1)) == "<InProcessMember rank=1 of 2>"
    reducer = CompressedReducer(ring.member(0), "fp16", (3,))
    assert repr(reducer) == "<CompressedReducer fp16 shape=(3,)>"
    ring.member(0).leave()
    assert repr(ring) == "<InProcessRing world_size=2 over>"
    assert repr(KktFilter(3, 0.1)) == "<KktFilter size=3 passed=0 of 0>"
    assert (
        repr(SignificanceFilter((3, 2), 0.1)) == "<SignificanceFilter shape=(3, 2) passed=0 of 0>"
    )
    assert repr(FaultProxy(DEAD)) == f"<FaultProxy not started to {DEAD}>"
    assert repr(Softmax(features=2, classes=3)) == "<Softmax size=9>"


async def test_a_server_that_is_not_started_has_no_end() -> None:
    with pytest.raises(ConfigError, match="the server is not started"):
        await aiops.Server(DEAD).wait_ended()
