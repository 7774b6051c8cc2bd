"""How all workers come to stop at the same step boundary.

Somebody asks (`StopRequest`); every worker answers a proposal with the first boundary at
which it could stop and does not pass it; the highest answer is the boundary for all.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiops.roles.actions import Action, Tell
from aiops_protocol.control import StopAt, StopProposal

__all__ = ["Stopping"]


class Stopping:
    """The agreement on one common stop; there is at most one in a job."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.agreed: StopAt | None = None
        self._votes: dict[int, int] = {}
        self._asked: dict[int, int] = {}  # rank: peer, of those whose vote is missing

    def request(self, reason: str, workers: Iterable[tuple[int, int]]) -> list[Action]:
        """Begin, with `(rank, peer)` of all unfinished workers; later requests change nothing."""
        if self.reason is not None:
            return []
        self.reason = reason
        return [action for rank, peer in workers for action in self.joined(rank, peer, 0)]

    def joined(self, rank: int, peer: int, clock: int) -> list[Action]:
        """Ask (or tell) a worker; also one that arrives while the agreement is under way.

        One that comes back goes on to the boundary that was agreed on; one that is new (at clock
        0) does not begin at all.
        """
        if self.agreed is not None:
            boundary = self.agreed.clock if clock else 0
            return [Tell(StopAt(clock=boundary, reason=self.agreed.reason), peer)]
        if self.reason is None:
            return []
        self._asked[rank] = peer
        return [Tell(StopProposal(reason=self.reason), peer)]

    def vote(self, rank: int, clock: int) -> StopAt | None:
        """Take a worker's answer; return the agreement once it is complete."""
        if self._asked.pop(rank, None) is None:
            return None
        self._votes[rank] = clock
        return self._conclude()

    def left(self, rank: int) -> StopAt | None:
        """Do not wait for a worker that has finished or is lost."""
        if self._asked.pop(rank, None) is None:
            return None
        return self._conclude()

    def _conclude(self) -> StopAt | None:
        if self._asked or self.reason is None or self.agreed is not None:
            return None
        self.agreed = StopAt(clock=max(self._votes.values(), default=0), reason=self.reason)
        return self.agreed
