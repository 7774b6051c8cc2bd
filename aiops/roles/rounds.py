"""Who takes part in which round of a BSP table, and when a round may close. No arrays here.

Round r turns version r into version r + 1. It closes when every worker that takes part in it
has sealed it. A worker enters at a round that all shards agree on (`hold`, `admit`), leaves
at once by its last seal (`FINAL`), and a lost worker's share is settled by the verdict that
the scheduler forms from all shards.
"""

from __future__ import annotations

__all__ = ["Rounds"]


class Rounds:
    """Rounds of one shard of one table.

    Parameters
    ----------
    workers
        Ranks that take part from round 0 on.
    """

    def __init__(self, workers: list[int]) -> None:
        self.version = 0
        self._sealed = dict.fromkeys(workers, 0)  # rank: rounds below this are sealed
        self._last: dict[int, int] = {}  # rank: takes part only in rounds below this
        self._contributed: dict[int, bool] = {}  # rank: whether its last seal was of a push
        self._pushed: dict[int, dict[int, None]] = {}  # round: ranks in the divisor
        self._holds: dict[int, int] = {}  # joining rank: rounds from this one on must wait
        self._lost: dict[int, None] = {}  # lost ranks whose verdict is not known yet
        self._waiting = set(workers)

    def sealed(self, rank: int) -> int:
        """Return how many rounds the worker has sealed: all below this number."""
        return self._sealed.get(rank, 0)

    def takes_part(self, rank: int) -> bool:
        """Whether the worker may contribute to the open round."""
        return rank in self._sealed and self.version < self._last.get(rank, self.version + 1)

    @property
    def members(self) -> list[int]:
        """Ranks that take part in the open round."""
        return [rank for rank in sorted(self._sealed) if self.takes_part(rank)]

    @property
    def missing(self) -> list[int]:
        """Ranks that the open round waits for."""
        return sorted(self._waiting)

    def seal(self, rank: int, contributed: bool, final: bool) -> None:
        """Note that the worker's contribution to its next unsealed round is whole.

        `final`: the worker seals nothing more; it is not part of the round after its last.
        """
        sealed = self._sealed[rank]
        if final:
            self._leave(rank, sealed)
            return
        self._contributed[rank] = contributed
        if contributed:
            self._pushed.setdefault(sealed, {})[rank] = None
        self._sealed[rank] = sealed + 1
        if sealed == self.version:
            self._waiting.discard(rank)

    def _leave(self, rank: int, after: int) -> None:
        self._last[rank] = after
        self._lost.pop(rank, None)
        if after <= self.version:
            self._waiting.discard(rank)

    @property
    def closable(self) -> bool:
        """Whether the open round can close now.

        Somebody must have taken part in it: when the last worker has left, the version stays.
        """
        return (
            not self._waiting
            and not self._lost
            and all(self.version < at for at in self._holds.values())
            and any(
                self.version < sealed and self.version < self._last.get(rank, sealed)
                for rank, sealed in self._sealed.items()
            )
        )

    def close(self) -> list[int]:
        """Close the open round; return the ranks in the divisor, in rank order."""
        assert self.closable
        pushed = sorted(self._pushed.pop(self.version, {}))
        self.version += 1
        for rank, last in list(self._last.items()):
            if last <= self.version and self._sealed[rank] <= self.version:
                del self._last[rank], self._sealed[rank]
                self._contributed.pop(rank, None)
        self._waiting = {
            rank
            for rank, sealed in self._sealed.items()
            if sealed <= self.version and self.takes_part(rank)
        }
        return pushed

    @property
    def idle(self) -> bool:
        """Whether nobody takes part in the open round."""
        return not self.members

    def hold(self, rank: int) -> int:
        """Let at most the open round close until `admit`; return the current version."""
        self._holds.setdefault(rank, self.version + 1)
        return self.version

    def admit(self, rank: int, from_version: int) -> None:
        """Let the worker take part from this round on."""
        self._holds.pop(rank, None)
        self._last.pop(rank, None)
        self._sealed[rank] = from_version
        if from_version == self.version:
            self._waiting.add(rank)

    def release(self, rank: int) -> None:
        """Drop the hold of a worker that does not come after all."""
        self._holds.pop(rank, None)

    def lose(self, rank: int) -> tuple[int, bool]:
        """Note that the worker is gone, verdict to come.

        Returns the rounds it has sealed here and whether it had pushed in the last of them.
        """
        self._holds.pop(rank, None)
        if rank in self._sealed:
            self._lost[rank] = None
        return self.sealed(rank), self._contributed.get(rank, False)

    def settle(self, rank: int, sealed: int, contributed: bool) -> None:
        """Apply the verdict: rounds below `sealed` count with the lost worker, later ones do not.

        Where this shard lacks a seal that another shard has, the contribution is whole here
        too, because a seal follows the acks of all shards.
        """
        self._lost.pop(rank, None)
        if rank not in self._sealed:
            return
        if self._sealed[rank] < sealed:
            self.seal(rank, contributed, final=False)
        self._leave(rank, self._sealed[rank])

    def validate(self) -> None:
        """Check what must always hold."""
        for rank, sealed in self._sealed.items():
            if self.takes_part(rank):
                assert (rank in self._waiting) == (sealed <= self.version)
        assert all(number >= self.version for number in self._pushed)
        assert self._waiting <= set(self._sealed)
