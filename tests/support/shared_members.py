"""Members of a shared group as tasks of one loop, each with its own mappings of the same pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiops.collective.call import Call
from aiops.collective.shared import Arena, Doorbell, SharedGroup
from aiops.collective.shared.board import SMALL_BYTES

Array = NDArray[Any]
LARGE = SMALL_BYTES // 4 + 3  # does not divide by anything


class Stopped(Exception):
    """What the tests stop a group with."""


class Members:
    """Groups of one loop that have met."""

    def __init__(self, groups: Sequence[SharedGroup], arenas: Sequence[Arena]) -> None:
        self.groups, self.arenas = groups, arenas
        self.lost: list[tuple[int, int]] = []

    async def all(self, call: Call, arrays: Sequence[Array]) -> list[Any]:
        """Let each member perform a call; return results and errors in order."""
        return await asyncio.gather(
            *(group.perform(call, a) for group, a in zip(self.groups, arrays, strict=True)),
            return_exceptions=True,
        )


@asynccontextmanager
async def members(size: int) -> AsyncIterator[Members]:
    bells = [Doorbell() for _ in range(size)]
    arenas = [Arena() for _ in range(size)]
    met = await asyncio.gather(
        *(
            bell.meet("test", i, {j: b.name for j, b in enumerate(bells) if j != i}, 5.0)
            for i, bell in enumerate(bells)
        )
    )
    together = Members([], arenas)

    def lost(index: int, other: int, _: str) -> None:
        together.lost.append((index, other))

    together.groups = [
        SharedGroup(i, size, arenas[i], met[i], partial(lost, i)) for i in range(size)
    ]
    try:
        yield together
    finally:
        for group in together.groups:
            group.close()
        for bell in bells:
            bell.close()


def all_reduce(count: int, op: str = "sum", **more: Any) -> Call:
    return Call("all_reduce", count, ((count,),), op=op, **more)


def numbers(size: int, count: int) -> list[Array]:
    return list(np.random.default_rng(size).standard_normal((size, count)).astype(np.float32))


def left_fold(arrays: Sequence[Array], op: str = "sum") -> Array:
    total = arrays[0].copy()
    for array in arrays[1:]:
        np.add(total, array, out=total)
    return np.asarray(total / np.float32(len(arrays)) if op == "mean" else total)


async def turns() -> None:
    """Let everything happen that does not wait for anybody, also over sockets."""
    for _ in range(20):
        await asyncio.sleep(0.001)
