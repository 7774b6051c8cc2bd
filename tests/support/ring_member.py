"""A worker that makes calls in a ring until it is told to stop; run by `nursery.py`.

Its stdin says when to stop: something on it, or its end. A member may be told where to die, or to
be stopped: at one step of a call, or between two of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import aiops
from aiops.collective.member import AlgorithmChoice
from aiops.collective.shared import HostPart, SharedGroup
from aiops.errors import AiopsError, CollectiveAborted
from aiops.runtime.ring_group import RingGroup

SMALL, LARGE = 1000, 1_300_000
CALLS_BEFORE = 4
"""So many calls go well before a member dies."""


def say(event: str, **facts: Any) -> None:
    facts["files"] = len(os.listdir("/proc/self/fd"))
    print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)


def segments() -> int:
    """Count what this process has mapped of shared memory."""
    maps = Path("/proc/self/maps").read_text()
    return sum("memfd:aiops-ring" in line for line in maps.splitlines())


class Fate:
    """What becomes of this member, and where: "_reduce-1" is its first reduction, and so on."""

    def __init__(self, phase: str, number: signal.Signals) -> None:
        self.phase = phase
        self.kind, _, count = phase.partition("-")
        self.countdown = int(count or 1)
        self.signal = number
        if hasattr(SharedGroup, self.kind) or hasattr(HostPart, self.kind):
            for cls in (SharedGroup, HostPart):
                if hasattr(cls, self.kind):
                    setattr(cls, self.kind, self._counting(getattr(cls, self.kind)))
        elif self.kind not in ("", "between"):
            RingGroup.peer_frame = self._counting_frames(RingGroup.peer_frame)  # type: ignore[method-assign]

    def _counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def method(group: SharedGroup | HostPart, *arguments: Any) -> Any:
            if group.begun > CALLS_BEFORE:
                self.count()
            return call(group, *arguments)

        return method

    def _counting_frames(self, take: Callable[..., None]) -> Callable[..., None]:
        def method(group: RingGroup, peer: Any, frame: Any) -> None:
            if type(frame).__name__ == self.kind and group.done >= CALLS_BEFORE:
                self.count()
            take(group, peer, frame)

        return method

    def count(self) -> None:
        self.countdown -= 1
        if not self.countdown:
            say("struck", phase=self.phase)
            os.kill(os.getpid(), self.signal)

    def between(self, call: int) -> None:
        if self.kind == "between" and call >= CALLS_BEFORE:
            self.count()


async def run(scheduler: str, name: str, transport: str, phase: str, number: int) -> None:
    fate = Fate(phase, signal.Signals(number))
    async with aiops.connect(scheduler, name=name) as worker:
        told = asyncio.Event()
        loop = asyncio.get_running_loop()

        def heard() -> None:
            told.set()
            loop.remove_reader(0)

        loop.add_reader(0, heard)
        algorithm: AlgorithmChoice = "auto"
        if transport == "hosts":  # as if even and odd ranks were on two hosts
            worker._rings.apart = f"-{worker.rank % 2}"
            transport, algorithm = "auto", "hierarchical"
        ring = await worker.ring("r", timeout_s=60, call_timeout_s=60, transport=transport)
        shared = ring.empty(LARGE)
        call, generation, over = 0, 0, False
        while not over:
            size = LARGE if call % 3 else SMALL
            array = shared if call % 3 == 1 else np.empty(size, np.float32)
            array[:] = worker.rank + 1
            reduced = False
            try:
                if ring.generation != generation:
                    counter = np.full(1, call, np.float64)
                    first = next(i for i in range(ring.world_size) if i not in ring.newcomers)
                    await ring.broadcast(counter, root=first)
                    call, generation = int(counter[0]), ring.generation
                    members = ring.workers
                    say("formed", generation=generation, members=members, segments=segments())
                    continue
                await ring.all_reduce(array, algorithm=algorithm)
                reduced = True
                assert (array == sum(rank + 1 for rank in ring.workers)).all()
                say("call", call=call, generation=generation, crc=zlib.crc32(array.tobytes()))
                call += 1
                fate.between(call)
                stop = np.full(1, told.is_set(), np.float32)
                await ring.all_reduce(stop, "max")
                over = bool(stop[0])
            except CollectiveAborted as error:
                assert reduced or (array == worker.rank + 1).all()
                say("abort", cause=error.cause, lost=error.lost, text=str(error))
                await ring.reform()
            else:
                if ring.wanted and not over:
                    await ring.reform()
        say("end", calls=call)


def main(scheduler: str, name: str, transport: str, phase: str, number: str) -> None:
    """Be a member; `phase` says where the signal of this number strikes, "" for nowhere."""
    try:
        aiops.run(run(scheduler, name, transport, phase, int(number)))
    except AiopsError as error:
        say("error", kind=type(error).__name__, text=str(error))
