"""Joins that wait until the former holder of their name is gone.

A process that is restarted at once may come before the end of its former connection; and a
rank is not given out again before all servers know that its former holder is gone.
"""

from __future__ import annotations

from math import inf
from typing import Final

import msgspec

from aiops_protocol.control import Join

__all__ = ["NAME_GRACE_S", "Claim", "Claims"]

NAME_GRACE_S: Final = 2.0
NAME_GRACE_PERIODS: Final = 7
NAME_GRACE_MAX_S: Final = 30.0
"""How long a join under the name of a live node waits for news of that node's end: until silence
would be a death, as when its machine has lost its network as well, but not for ever. One that has
only just joined has longer to be heard of, and then so has the claim."""


class Claim(msgspec.Struct):
    """A join that waits. Without a live holder of the name (`inf`) it will get in for sure."""

    peer: int
    join: Join
    deadline: float


class Claims:
    """All joins that wait, in the order of arrival.

    Parameters
    ----------
    heartbeat_s
        The period H.
    """

    def __init__(self, heartbeat_s: float) -> None:
        self._grace_s = max(NAME_GRACE_S, NAME_GRACE_PERIODS * heartbeat_s)
        self._period_s = heartbeat_s
        self._claims: list[Claim] = []

    def __bool__(self) -> bool:
        return bool(self._claims)

    def add(self, peer: int, join: Join, now: float, *, holder_dies_at: float = inf) -> None:
        """Let a join wait; the name's holder is dead at this time if it stays silent.

        Without a live holder (`inf`) the join waits for as long as it takes.
        """
        deadline = holder_dies_at
        if deadline < inf:
            deadline = max(now + self._grace_s, holder_dies_at + self._period_s)
            deadline = min(deadline, now + NAME_GRACE_MAX_S)
        self._claims.append(Claim(peer, join, deadline))

    def has(self, peer: int) -> bool:
        """Whether a join of this connection waits."""
        return any(claim.peer == peer for claim in self._claims)

    def drop(self, peer: int) -> None:
        """Forget a connection that has ended."""
        self._claims = [claim for claim in self._claims if claim.peer != peer]

    def take(self, role: str, name: str) -> Claim | None:
        """Return, once, the join that waits for this name."""
        for claim in self._claims:
            if claim.join.role == role and claim.join.name == name:
                self._claims.remove(claim)
                return claim
        return None

    def hold(self, role: str, name: str) -> None:
        """Let whoever waits for this name wait on: its holder is gone, only not settled yet."""
        for claim in self._claims:
            if claim.join.role == role and claim.join.name == name:
                claim.deadline = inf

    def expired(self, now: float) -> list[Claim]:
        """Return, once, those whose patience has ended."""
        late = [claim for claim in self._claims if claim.deadline <= now]
        self._claims = [claim for claim in self._claims if claim.deadline > now]
        return late

    def all(self) -> list[Claim]:
        """Return, once, all of them."""
        claims, self._claims = self._claims, []
        return claims

    def next_deadline(self) -> float:
        """Return when the next one's patience ends."""
        return min((claim.deadline for claim in self._claims), default=inf)
