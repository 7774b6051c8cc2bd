"""Failure detection by heartbeats: who is suspected, who is dead, after how much silence.

Times are multiples of the heartbeat period H, so that one setting scales them all: suspected
after 3 H, dead after 6 H. A node that has lost the scheduler for 4 H stops serving by itself
(`Lease`), well before anybody could be told to take its place.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["FailureDetector", "Lease"]

SUSPECT_PERIODS: Final = 3
FENCE_PERIODS: Final = 4
DEAD_PERIODS: Final = 6
ORPHAN_PERIODS: Final = 20
"""After so many periods without an answer a node gives its scheduler up."""

FIRST_BEAT_S: Final = 10.0
"""A node that has just joined may take so long to send its first heartbeat."""


EXCUSE_S: Final = 2.0
"""After its event loop was held up, a node waits so long for news before it judges anybody: a
heartbeat connection may have to be opened again first."""

EXCUSES_MAX: Final = 3
"""So often in one silence: a loop that is held up every second, by large rounds or on a machine
with too much to do, would otherwise never notice that its scheduler is gone."""


class _Watch(msgspec.Struct):
    heard_at: float
    grace_s: float
    suspected: bool = False


class FailureDetector:
    """Knows when each node was last heard of.

    Parameters
    ----------
    heartbeat_s
        The period H.
    """

    def __init__(self, heartbeat_s: float) -> None:
        self.heartbeat_s = heartbeat_s
        self._watched: dict[int, _Watch] = {}  # by peer

    def watch(self, peer: int, now: float) -> None:
        """Begin to watch a node that has just joined."""
        self._watched[peer] = _Watch(now, max(FIRST_BEAT_S, DEAD_PERIODS * self.heartbeat_s))

    def heard(self, peer: int, now: float) -> bool:
        """Note a heartbeat; returns whether the node had been suspected."""
        watch = self._watched.get(peer)
        if watch is None:
            return False
        suspected, watch.suspected = watch.suspected, False
        watch.heard_at = now
        watch.grace_s = 0.0
        return suspected

    def forget(self, peer: int) -> None:
        """Stop watching a node that is gone."""
        self._watched.pop(peer, None)

    def silent_s(self, peer: int, now: float) -> float | None:
        """Return for how long nothing has been heard of a node."""
        watch = self._watched.get(peer)
        return None if watch is None else now - watch.heard_at

    def dies_at(self, peer: int) -> float:
        """Return when a node that is not heard of any more will be dead."""
        watch = self._watched[peer]
        return watch.heard_at + watch.grace_s + DEAD_PERIODS * self.heartbeat_s

    def excuse(self, stalled_s: float) -> None:
        """Do not count a time in which this process itself was not running."""
        for watch in self._watched.values():
            watch.heard_at += stalled_s

    def judge(self, now: float) -> tuple[list[int], list[int]]:
        """Return the peers that are suspected from now on, and those that are dead."""
        suspected, dead = [], []
        for peer, watch in self._watched.items():
            silent = now - watch.heard_at - watch.grace_s
            if silent >= DEAD_PERIODS * self.heartbeat_s:
                dead.append(peer)
            elif silent >= SUSPECT_PERIODS * self.heartbeat_s and not watch.suspected:
                watch.suspected = True
                suspected.append(peer)
        return suspected, dead


class Lease:
    """A node's right to act, renewed by every heartbeat that the scheduler has answered.

    It counts from the moment the answered heartbeat was *sent*, on this node's own clock, so a
    slow or one-way link never makes it longer than the scheduler believes it to be.
    """

    __slots__ = ("_answered_at", "_excused_until", "_excuses", "heartbeat_s")

    def __init__(self, heartbeat_s: float, now: float) -> None:
        self.heartbeat_s = heartbeat_s
        # Like the scheduler's first patience with a node that has just joined.
        self._answered_at = now + FIRST_BEAT_S
        self._excused_until = now
        self._excuses = 0  # since the last answer

    def renew(self, sent_at: float) -> None:
        """Note that the heartbeat sent at this moment was answered."""
        self._answered_at = sent_at
        self._excuses = 0

    def excuse(self, now: float) -> None:
        """Judge nothing for a moment: this process has not been running, so nothing was heard."""
        self._excuses += 1
        if self._excuses <= EXCUSES_MAX:
            self._excused_until = now + EXCUSE_S

    def silent_s(self, now: float) -> float:
        """Return for how long the scheduler has not answered."""
        return max(0.0, now - self._answered_at)

    def expired(self, now: float) -> bool:
        """Whether this node must stop serving until it is heard again."""
        return self._silent_for(FENCE_PERIODS, now)

    def orphaned(self, now: float) -> bool:
        """Whether the scheduler must be taken for gone."""
        return self._silent_for(ORPHAN_PERIODS, now)

    def _silent_for(self, periods: int, now: float) -> bool:
        silent = now - self._answered_at >= periods * self.heartbeat_s
        return silent and now >= self._excused_until
