"""Members of a ring that are tasks of one process, over each transport: also as if on two hosts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import aiops
from aiops.collective.schedule import Algorithm, Groups
from aiops.collective.shared import supported
from aiops.runtime import ring_desk
from aiops.workers.ring import Ring
from aiops_protocol.ring_control import RingMember
from local_jobs import local_job

Member = Callable[[aiops.Worker, Ring], Awaitable[Any]]


def on_hosts(monkeypatch: pytest.MonkeyPatch, host: Callable[[int], int]) -> None:
    """Let each rank be on a host, and every all-reduce go by hosts if "auto" has the choice."""

    def hosts_of(members: Sequence[RingMember], transport: str) -> Groups:
        there: dict[int, list[int]] = {}
        for place, member in enumerate(members):
            there.setdefault(host(member.rank), []).append(place)
        return tuple(map(tuple, there.values()))

    def chosen(ring: Ring, kind: str, count: int, item_bytes: int) -> Algorithm:
        if kind == "all_reduce" and ring.transport == "shared-memory+tcp":
            return "hierarchical"
        return choose(ring, kind, count, item_bytes)

    choose = Ring._choose
    monkeypatch.setattr(ring_desk, "hosts_of", hosts_of)
    monkeypatch.setattr(Ring, "_choose", chosen)


def by_transport(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let rings go over "tcp", "shared-memory" or, even and odd ranks apart, "hosts"."""
    if name != "tcp" and not supported():
        pytest.skip("shared memory needs Linux")
    defaults = aiops.Worker.ring.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "transport", "auto" if name == "hosts" else name)
    if name == "hosts":
        on_hosts(monkeypatch, lambda rank: rank % 2)
    return name


async def run_members(size: int, member: Member, **options: Any) -> list[Any]:
    """Run a function as each member of a ring, and return the results in order of rank."""

    async def work(worker: aiops.Worker) -> Any:
        ring = await worker.ring("grads", timeout_s=60, call_timeout_s=60)
        return await member(worker, ring)

    async with local_job(**options) as cluster:
        return await cluster.run(work, workers=size)
