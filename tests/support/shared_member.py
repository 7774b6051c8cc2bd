"""A process that makes all-reduces through shared memory until another dies; run as a program.

It is told what to do, and tells what came out, in lines of JSON: stdin and stdout. The test plays
the scheduler: it asks the survivors how far they are, and gives the verdict.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np

from aiops.collective.call import Call
from aiops.collective.shared import Arena, Doorbell, SharedGroup

SIZES = (1_000, 300_000, 60_000, 1_500_000)  # small ones meet once, large ones twice
GUARD_S = 120.0


class Stopped(Exception):
    """The group was stopped."""


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def contribution(round_: int, index: int, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What a member gives; whole numbers, so that sums are exact."""
    return (np.arange(count, dtype=np.float32) % 97 + round_ % 5 + index).astype(np.float32)


def total(round_: int, size: int, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What all of them together are."""
    result = np.zeros(count, np.float32)
    for index in range(size):
        result += contribution(round_, index, count)
    return result


class Program:
    """One process through all its groups."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self.lines = lines
        self.bell = Doorbell()
        self.arena = Arena()
        self.shared = {size: self.arena.empty(size) for size in SIZES}

    async def told(self) -> dict[str, Any]:
        line = await self.lines.readline()
        order: dict[str, Any] = json.loads(line) if line else {"exit": True}
        return order

    async def run(self) -> None:
        tell(bell=self.bell.name)
        while "exit" not in (order := await self.told()):
            await self.group(order)
        self.bell.close()

    async def group(self, order: dict[str, Any]) -> None:
        index, names = order["index"], order["names"]
        others = {i: name for i, name in enumerate(names) if i != index}
        links = await self.bell.meet(order["group"], index, others, GUARD_S)
        lost = asyncio.Event()

        def stop(_: int, why: str) -> None:
            group.stop(lambda: Stopped(why))
            lost.set()

        group = SharedGroup(index, len(names), self.arena, links, stop)
        ending = asyncio.ensure_future(self.end(group, lost))
        tell(met=index)
        round_ = 0
        try:
            while True:
                count = SIZES[round_ % len(SIZES)]
                array = self.shared[count] if round_ % 3 else np.empty(count, np.float32)
                before = contribution(round_, index, count)
                array[:] = before
                try:
                    await group.perform(Call("all_reduce", count, ((count,),), op="sum"), array)
                except Stopped:
                    assert np.array_equal(array, before), "an input was changed"
                    return
                assert np.array_equal(array, total(round_, len(names), count)), "a wrong sum"
                round_ += 1
        finally:
            verdict = await ending
            tell(rounds=round_, verdict=verdict)
            group.close()

    async def end(self, group: SharedGroup, lost: asyncio.Event) -> int:
        await lost.wait()
        tell(halted=group.done)
        verdict = int((await self.told())["verdict"])
        group.verdict(verdict, lambda: Stopped("the verdict"))
        return verdict


async def main() -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await Program(lines).run()


if __name__ == "__main__":
    asyncio.run(main())
