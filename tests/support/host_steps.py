"""A member of a ring over hosts that stops at one step of a call, between two awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiops.collective.shared import HostPart, LoneMember

STEPS: Final = ("_until", "_copy", "_fold", "_combine", "_complete")
LONE_STEPS: Final = ("combine", "complete")


class Moment:
    """Where the victim stops: at the so many-eth step after it was armed."""

    def __init__(self, step: int, *, killed: bool) -> None:
        self.step, self.killed = step, killed
        self.armed = False
        self.seen = 0
        self.there = asyncio.Event()
        self.go_on = asyncio.Event()

    async def reached(self) -> None:
        self.seen += self.armed
        if self.armed and self.seen == self.step:
            self.there.set()
            if self.killed:
                raise Killed
            await self.go_on.wait()

    async def comes_or(self, call: asyncio.Future[Any]) -> None:
        """Wait until the victim is there, or its call has ended before that."""
        there: asyncio.Future[Any] = asyncio.ensure_future(self.there.wait())
        await asyncio.wait((there, call), return_when=asyncio.FIRST_COMPLETED)
        there.cancel()


class Killed(Exception):
    """A member goes no further."""


def watch(part: HostPart | LoneMember, moment: Moment) -> None:
    """Let a member stop before and after everything for which it may wait."""

    def watched(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def step(*arguments: Any) -> Any:
            await moment.reached()
            result = await method(*arguments)
            await moment.reached()
            return result

        return step

    for name in STEPS if isinstance(part, HostPart) else LONE_STEPS:
        setattr(part, name, watched(getattr(part, name)))
