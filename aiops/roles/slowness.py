"""Who keeps the others waiting: servers see it at waiting requests, the scheduler at clocks.

A worker is called slow when others have waited for it during half of the last seconds. Nothing is
decided by it; it is told to people.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Final, NamedTuple

__all__ = ["Slow", "SlowWatch", "clocks_behind"]

WINDOW_S: Final = 10.0
"""Over how long it is looked at: longer than a pause for breath."""

SHARE: Final = 0.5

BEHIND_MIN: Final = 10
"""Clocks that a worker must be behind before its pace is spoken of."""


class Slow(NamedTuple):
    """How slow a worker is."""

    clocks_behind: int
    waited_s: float


class SlowWatch:
    """Looks now and then at who waits for whom at one table.

    Attributes
    ----------
    slow
        By rank, of the last whole window.
    """

    __slots__ = ("_began", "_looked", "_seen", "slow")

    def __init__(self) -> None:
        self.slow: dict[int, Slow] = {}
        self._seen: dict[int, Slow] = {}
        self._began = self._looked = -1.0

    def look(self, behind: Mapping[int, int], waiting: int, now: float) -> bool:
        """Take a look; return whether a window has ended, so that `slow` is new.

        Parameters
        ----------
        behind
            Ranks that are waited for, and by how many clocks each is behind.
        waiting
            How many workers wait. Where few wait for many, these few are fast.
        """
        if self._began < 0:
            self._began = self._looked = now
            return False
        if len(behind) <= waiting:
            passed_s = now - self._looked
            for rank, clocks in behind.items():
                most, waited_s = self._seen.get(rank, (0, 0.0))
                self._seen[rank] = Slow(max(most, clocks), waited_s + passed_s)
        self._looked = now
        window_s = now - self._began
        if window_s < WINDOW_S:
            return False
        self.slow = {
            rank: slow for rank, slow in self._seen.items() if slow.waited_s >= SHARE * window_s
        }
        self._seen = {}
        self._began = now
        return True


def clocks_behind(rank: int, clocks: Mapping[int, int]) -> int:
    """Return by how many clocks a worker is behind the middle of the others, if it is slow; else 0.

    Slow is one that has completed less than half of them: where nobody waits for anybody, only
    the clocks tell.
    """
    others = [clock for other, clock in clocks.items() if other != rank]
    if not others:
        return 0
    middle = int(median(others))
    behind = middle - clocks[rank]
    return behind if behind >= BEHIND_MIN and clocks[rank] < SHARE * middle else 0
