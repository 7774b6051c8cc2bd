"""Barriers as one worker sees them: where it stands, and what the scheduler has said.

Who may pass is decided by the scheduler (`aiops.roles.barrier`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from aiops.errors import AiopsError, BarrierTimeout, UsageError
from aiops.wording import listed
from aiops_protocol.control import BarrierDone, BarrierEnter

__all__ = ["BarrierCalls"]

SLACK_S: Final = 5.0
"""How much longer than a barrier's deadline to wait for the scheduler to say who is missing."""


class _Place:
    """A worker at a barrier; stays when the call that came here is cancelled."""

    __slots__ = ("awaited", "done", "entered", "generation")

    def __init__(self, generation: int) -> None:
        self.generation = generation  # 0: the first use of this name, whichever it is
        self.awaited = False
        self.renew()

    def renew(self) -> None:
        """Stand here anew."""
        self.entered = False
        self.done: asyncio.Future[BarrierDone] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_seen)


class BarrierCalls:
    """The barriers that a worker is at.

    Parameters
    ----------
    enter
        Sends the scheduler a message.
    """

    def __init__(self, enter: Callable[[BarrierEnter], None]) -> None:
        self._enter = enter
        self._places: dict[str, _Place] = {}
        self._generations: dict[str, int] = {}  # the newest that has opened, by name

    async def wait(self, name: str, timeout_s: float) -> int:
        """Wait until every live, unfinished worker is at the barrier; return the generation.

        Who is cancelled stays there; the next call of the name goes on with the same opening.
        """
        place = self._places.get(name)
        if place is not None and place.awaited:
            raise UsageError(f"barrier {name}: this worker waits at it already, in another task")
        if place is None:
            generation = self._generations[name] + 1 if name in self._generations else 0
            place = self._places[name] = _Place(generation)
        loop = asyncio.get_running_loop()
        started = loop.time()
        place.awaited = True
        try:
            done = await self._stand(place, name, started + timeout_s)
        finally:
            place.awaited = False
            if place.done.done():
                self._places.pop(name, None)
        if done is not None and not done.missing:
            return done.generation
        elapsed_s = loop.time() - started
        if done is None:
            missing, who = [], "and the scheduler has not said who is missing"
        else:
            missing, who = (
                done.missing,
                f"{len(done.missing)} missing: {listed(done.missing, '; ')}",
            )
        raise BarrierTimeout(
            f"barrier {name}: after {elapsed_s:.2f} s {who}",
            operation=f"barrier {name}",
            elapsed_s=elapsed_s,
            missing=missing,
        )

    async def _stand(self, place: _Place, name: str, deadline: float) -> BarrierDone | None:
        loop = asyncio.get_running_loop()
        while True:
            left_s = max(deadline - loop.time(), 0.0)
            if not place.done.done() and (place.generation or not place.entered):
                # Entering again by number is harmless, and tells the scheduler the new deadline.
                place.entered = True
                self._enter(BarrierEnter(name=name, generation=place.generation, timeout_s=left_s))
            await asyncio.wait((place.done,), timeout=left_s + SLACK_S)
            if not place.done.done():
                return None
            done = place.done.result()
            if not done.missing or loop.time() >= deadline:
                return done
            # The deadline of an earlier, cancelled call: the scheduler has let go of us.
            place.renew()

    def answered(self, message: BarrierDone) -> None:
        """Take the scheduler's word that a barrier has opened, or who is missing."""
        name, generation = message.name, message.generation
        if not message.missing:
            self._generations[name] = generation
        place = self._places.get(name)
        if place is not None and place.generation in (0, generation) and not place.done.done():
            place.done.set_result(message)

    def fail(self, error: AiopsError) -> None:
        """End every wait with this error."""
        places, self._places = self._places, {}
        for place in places.values():
            if not place.done.done():
                place.done.set_exception(error)


def _seen(future: asyncio.Future[Any]) -> None:
    """Mark an error as seen: it is raised where somebody waits."""
    if not future.cancelled():
        future.exception()
