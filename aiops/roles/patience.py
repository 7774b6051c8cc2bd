"""Patience: when a data connection that is silent, while both ends live, is given up.

TCP repeats what the network loses, so nothing is ever repeated on a connection that lives, and
a connection on which anything still moves lives. What is asked of one that is silent, while
something is owed over it that does not wait by rule:

    silent for one RTO          -> ASK the server over the connection itself
    and for one or two more     -> PROBE: ask it over a second, small connection
    not answered                -> nobody is there to repeat anything to: PROBE again, later
    answered, and the server has got more bytes since the last time, or this side has
                                -> it moves after all: begin anew
    answered twice, nothing moved in between
                                -> the server lives and the connection is dead: REPLACE it
    answered that there is no such connection
                                -> REPLACE it

The times double from step to step, each drawn from the whole of its doubling. An answer over the
connection, of whatever kind, is movement. The RTO does not run for what waits by rule: whoever
waits is sent a notice each second, and only when several of them are missing does silence count.
The connection itself, and who asks, is `aiops.runtime.data_connection`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from aiops.roles.parking import NOTICE_S
from aiops.roles.round_trips import RTO_S_MAX

__all__ = ["LOOK_S", "Patience", "Sight", "Step"]

LOOK_S: Final = 0.1
"""How often somebody looks whether anything moves: half of the shortest RTO."""

NOTICES_MISSING: Final = 4
"""Notices that must be missing before silence says anything about what waits by rule."""


class Step(Enum):
    """What is to be done about a connection now."""

    NOTHING = "nothing"
    ASK = "ask"
    PROBE = "probe"
    REPLACE = "replace"


class Sight(NamedTuple):
    """What is seen of a connection.

    `moved` is any number that changes when bytes arrive, leave, or are acknowledged. `owed` says
    that something is unanswered that is not known to wait by rule, `waits` that something is that
    does. `rto_s` is how long the silence may be.
    """

    moved: int
    owed: bool
    waits: bool
    rto_s: float


class Patience:
    """Watches one connection after the other to the same server.

    Parameters
    ----------
    chance
        Numbers from 0 to 1.
    """

    __slots__ = (
        "_chance",
        "_due_at",
        "_moved",
        "_probing",
        "_received",
        "_rto_s",
        "_since",
        "_steps",
    )

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Begin anew, with a new connection."""
        self._moved = -1
        self._since = now
        self._rto_s = RTO_S_MAX
        self._calm()

    def excuse(self, late_s: float) -> None:
        """Do not count this time: nobody has looked meanwhile, and answers may lie unread."""
        self._since += late_s
        self._due_at += late_s

    def _calm(self) -> None:
        self._steps = 0
        self._due_at = 0.0
        self._probing = False
        self._received = -1  # what the server had when it answered a probe

    def silent_s(self, now: float) -> float:
        """Return for how long nothing has moved."""
        return now - self._since

    def look(self, sight: Sight, now: float) -> Step:
        """Look at the connection; about every `LOOK_S` while anything is unanswered."""
        if sight.moved != self._moved or not (sight.owed or sight.waits):
            self._moved = sight.moved
            self._since = now
            self._calm()
            return Step.NOTHING
        self._rto_s = sight.rto_s
        if self._probing:
            return Step.NOTHING
        if not self._steps:
            excused_s = 0.0 if sight.owed else NOTICES_MISSING * NOTICE_S
            self._due_at = self._since + excused_s + sight.rto_s
        if now < self._due_at:
            return Step.NOTHING
        self._steps += 1
        self._put_off(now)
        if self._steps == 1:
            return Step.ASK
        self._probing = True
        return Step.PROBE

    def _put_off(self, now: float) -> None:
        doubled = min(self._rto_s * 2.0 ** min(self._steps, 16), RTO_S_MAX)
        least = min(self._rto_s, doubled)
        self._due_at = now + least + (doubled - least) * self._chance()

    def probe_failed(self, now: float) -> None:
        """Note that a probe was not answered."""
        if self._probing:
            self._probing = False
            self._put_off(now)

    def probe_answered(self, received: int, now: float) -> Step:
        """Note the answer to a probe: so many bytes the server has got over the connection."""
        if not self._probing:
            return Step.NOTHING  # something moved while it was under way
        self._probing = False
        if not received or received == self._received:
            return Step.REPLACE
        if self._received >= 0:  # it moves, where this side cannot see it
            self._steps = 1
        self._received = received
        self._put_off(now)
        return Step.NOTHING
