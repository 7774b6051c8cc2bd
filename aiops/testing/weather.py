"""Weather: a schedule of faults for the proxies of a cluster, and the storm that carries it out.

`Weather` is a value and knows when what goes wrong; `Storm` does it to proxies, in real time.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Literal, NamedTuple

from aiops.checks import check_count, positive
from aiops.errors import ConfigError
from aiops.testing.faults import Faults
from aiops.testing.proxy import Direction, FaultProxy
from aiops.wording import shown

__all__ = ["Storm", "Weather"]

CUT_WITHIN_BYTES: Final = 64 * 1024
CUT_WITHIN_S: Final = 0.05
"""A cut waits a moment for traffic and falls within so many bytes of it: mostly into the midst of
a frame, and not between two requests, where it would harm nobody. It does not wait for longer,
nor than a quarter of the time to the next one: or it would hit whoever comes back first, always."""


class Change(NamedTuple):
    """Something that happens to the proxies, `at_s` seconds after the start."""

    at_s: float
    what: Literal["cut", "hold", "release"]


@dataclass(frozen=True, slots=True)
class Weather:
    """What goes wrong between workers and servers; the default is a calm day.

    Parameters
    ----------
    faults
        Of every connection, in both directions, all the time.
    cut_every_s
        Mean time between two cuts, of one connection each, at a random byte of what passes.
    black_hole_every_s, black_hole_s
        Every so often nothing passes between anybody, for so long.
    seed
        Of all chance.

    Raises
    ------
    ConfigError
        A value makes no sense.
    """

    faults: Faults = field(default_factory=Faults)
    cut_every_s: float | None = None
    black_hole_every_s: float | None = None
    black_hole_s: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        faults: object = self.faults
        if not isinstance(faults, Faults):
            raise ConfigError(f"faults is {shown(faults)}; pass Faults(...)")
        check_count(self.seed, "seed")
        for name in ("cut_every_s", "black_hole_every_s", "black_hole_s"):
            if getattr(self, name) is not None:
                positive(getattr(self, name), name)
        if self.black_hole_every_s is not None and not (
            0 < self.black_hole_s < self.black_hole_every_s
        ):
            raise ConfigError(
                f"a black hole of {self.black_hole_s} s every {self.black_hole_every_s} s: it must "
                "be over before the next one"
            )

    def changes(self) -> Iterator[Change]:
        """Yield what happens, in order of time, without end; equal for equal seeds."""
        return heapq.merge(self._cuts(random.Random(self.seed)), self._black_holes())

    def _cuts(self, chance: random.Random) -> Iterator[Change]:
        at_s = 0.0
        while self.cut_every_s is not None:
            at_s += self.cut_every_s * chance.uniform(0.5, 1.5)
            yield Change(at_s, "cut")

    def _black_holes(self) -> Iterator[Change]:
        number = 0
        while self.black_hole_every_s is not None:
            number += 1
            yield Change(number * self.black_hole_every_s, "hold")
            yield Change(number * self.black_hole_every_s + self.black_hole_s, "release")


class Storm:
    """Does to proxies what the weather says, until it is calmed.

    Attributes
    ----------
    black_holes
        How many there have been.
    """

    def __init__(self, proxies: Sequence[FaultProxy], weather: Weather) -> None:
        self.black_holes = 0
        self._proxies = proxies
        self._weather = weather
        self._chance = random.Random(f"storm {weather.seed}")
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; the time of the weather starts here."""
        for proxy in self._proxies:
            proxy.set(**asdict(self._weather.faults))
        self._task = asyncio.get_running_loop().create_task(self._rage())

    async def _rage(self) -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        for change in self._weather.changes():
            await asyncio.sleep(started_at + change.at_s - loop.time())
            self._perform(change)

    def _perform(self, change: Change) -> None:
        if change.what == "cut":
            self._cut()
            return
        self.black_holes += change.what == "hold"
        for proxy in self._proxies:
            proxy.hold() if change.what == "hold" else proxy.release()

    def _cut(self) -> None:
        assert self._weather.cut_every_s is not None
        direction: Direction = self._chance.choice(("up", "down"))
        proxy = self._chance.choice(self._proxies)
        proxy.cut_after(self._chance.randrange(CUT_WITHIN_BYTES), direction)
        within_s = min(CUT_WITHIN_S, self._weather.cut_every_s / 4)
        cuts = proxy.counters.cuts

        def at_last() -> None:
            if proxy.counters.cuts == cuts:
                proxy.set(direction)  # forget the one that waits
                proxy.cut(one=True)

        self._waiting = asyncio.get_running_loop().call_later(within_s, at_last)

    async def calm(self) -> None:
        """End it: everything that was held flows, and nothing goes wrong any more. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self._waiting is not None:
            self._waiting.cancel()
        for proxy in self._proxies:
            proxy.set(**asdict(Faults()))
            proxy.release()
        if not task.cancelled():
            task.result()
