"""Who takes part in which round of a BSP table, and when a round may close. No arrays here.

Round r turns version r into version r + 1. It closes when every worker that takes part in it
has sealed it. A worker enters at a round that all shards agree on (`hold`, `admit`), leaves
after its last seal (`final`), and a lost worker's share is settled by the verdict that the
scheduler forms from all shards (`lose`, `settle`). Given the same seals and orders, in whatever
order they come, every shard closes the same rounds with the same contributors.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["NOTHING_SEALED", "Mark", "Rounds"]

HISTORY_BITS: Final = 63
"""Seals of a worker that one shard may have and another may lack: a session has at most 64
unanswered mutations, and a worker keeps far fewer seals among them."""


class Mark(NamedTuple):
    """How far a worker has sealed: rounds below `sealed`.

    Bit i of `pushed` tells whether it had pushed to the table in round `sealed - 1 - i`. Shards
    may differ by several seals, so a verdict has to tell about each of them. `weights` are those of
    the same rounds, newest first; where they end, the weight is 1.
    """

    sealed: int
    pushed: int
    weights: tuple[float, ...] = ()

    def weight(self, number: int) -> float:
        """Return the weight of the contribution to a round that is sealed."""
        place = self.sealed - 1 - number
        return self.weights[place] if place < len(self.weights) else 1.0


NOTHING_SEALED: Final = Mark(0, 0)


class Rounds:
    """Rounds of one shard of one table.

    Parameters
    ----------
    workers
        Ranks that take part from round 0 on.
    """

    def __init__(self, workers: list[int]) -> None:
        self.version = 0
        self._marks = dict.fromkeys(workers, NOTHING_SEALED)
        self._last: dict[int, int] = {}  # rank: takes part only in rounds below this
        self._pushed: dict[int, dict[int, float]] = {}  # round: rank in the divisor, weight
        self._holds: dict[int, int] = {}  # entering rank: rounds from this one on must wait
        self._gone: dict[int, None] = {}  # ranks whose mark nobody will ask for
        self._waiting = set(workers)

    def sealed(self, rank: int) -> int:
        """Return how many rounds the worker has sealed: all below this number."""
        return self._marks.get(rank, NOTHING_SEALED).sealed

    def entering(self, rank: int) -> bool:
        """Whether the worker's first round is being agreed on."""
        return rank in self._holds

    def takes_part(self, rank: int) -> bool:
        """Whether the worker may contribute to the open round, or to a later one."""
        return rank in self._marks and self.version < self._last.get(rank, self.version + 1)

    @property
    def members(self) -> list[int]:
        """Ranks that take part in the open round or enter after it."""
        return [rank for rank in sorted(self._marks) if self.takes_part(rank)]

    @property
    def missing(self) -> list[int]:
        """Ranks that the open round waits for."""
        return sorted(self._waiting)

    def seal(self, rank: int, contributed: bool, final: bool, weight: float = 1.0) -> None:
        """Note that the worker's contribution to its next unsealed round is whole.

        `final`: the worker seals nothing more; it is not part of the round after its last.
        """
        sealed, pushed, weights = self._marks[rank]
        if final:
            self._leave(rank, sealed)
            return
        if contributed:
            self._pushed.setdefault(sealed, {})[rank] = weight
        pushed = (pushed << 1 | contributed) & ((1 << HISTORY_BITS) - 1)
        if weights or weight != 1.0:
            weights = (weight, *weights[: HISTORY_BITS - 1])
        self._marks[rank] = Mark(sealed + 1, pushed, weights)
        if sealed == self.version:
            self._waiting.discard(rank)

    def _leave(self, rank: int, after: int) -> None:
        # The mark stays: should the worker be lost now, other shards may still lack its seals.
        self._last[rank] = after
        if after <= self.version:
            self._waiting.discard(rank)

    @property
    def closable(self) -> bool:
        """Whether the open round can close now.

        Somebody must have sealed it: when the last worker has left, the version stays.
        """
        return (
            not self._waiting
            and all(self.version < at for at in self._holds.values())
            and any(
                self.version < mark.sealed and self.version < self._last.get(rank, mark.sealed)
                for rank, mark in self._marks.items()
            )
        )

    def close(self) -> dict[int, float]:
        """Close the open round, which is `closable`.

        Returns
        -------
        pushed
            The ranks in the divisor, in order, and the weight of each.
        """
        pushed = dict(sorted(self._pushed.pop(self.version, {}).items()))
        self.version += 1
        self._forget_gone()
        self._waiting = {
            rank
            for rank, mark in self._marks.items()
            if mark.sealed <= self.version and self.takes_part(rank)
        }
        return pushed

    # --- coming ---

    def hold(self, rank: int) -> tuple[int, bool]:
        """Let at most the open round close until `admit`.

        Returns
        -------
        version, idle
            If nobody takes part in the open round (idle), that one waits as well: the worker may
            well be told to begin with it.
        """
        idle = not self.members
        self._holds.setdefault(rank, self.version if idle else self.version + 1)
        return self.version, idle

    def admit(self, rank: int, from_version: int) -> None:
        """Let the worker take part from this round on, as if it had sealed all before it."""
        assert from_version >= self.version
        self._holds.pop(rank, None)
        self._last.pop(rank, None)
        self._gone.pop(rank, None)
        for number, ranks in self._pushed.items():
            if number >= from_version:
                ranks.pop(rank, None)
        self._marks[rank] = Mark(from_version, 0)
        if from_version == self.version:
            self._waiting.add(rank)
        else:
            self._waiting.discard(rank)

    # --- going ---

    def lose(self, rank: int) -> Mark | None:
        """Note that the worker is gone; return what it has sealed here, `None` if it took no part.

        A round that it has sealed here counts with it, whatever the others say, and may close;
        one that it has not sealed waits for the verdict.
        """
        self._holds.pop(rank, None)
        return self._marks.get(rank)

    def settle(self, rank: int, verdict: Mark) -> None:
        """Apply the verdict: what the worker had sealed at any shard counts at every shard.

        A seal follows the acknowledgements of all shards, so where it is lacking, the
        contribution is whole all the same. `NOTHING_SEALED` without a loss before: the worker
        left in order, or never opened the table; it takes no part after what it has sealed.
        """
        self._holds.pop(rank, None)
        mark = self._marks.get(rank)
        if mark is None:
            return
        for number in range(mark.sealed, verdict.sealed):
            contributed = bool(verdict.pushed >> (verdict.sealed - 1 - number) & 1)
            self.seal(rank, contributed, final=False, weight=verdict.weight(number))
        if rank not in self._last:
            self._leave(rank, self._marks[rank].sealed)
        self._gone[rank] = None
        self._forget_gone()

    def _forget_gone(self) -> None:
        """Keep nothing of those who are gone, once their last round is closed."""
        for rank in list(self._gone):
            if not self.takes_part(rank) and self._marks[rank].sealed <= self.version:
                del self._gone[rank], self._marks[rank]
                self._last.pop(rank, None)

    def validate(self) -> None:
        """Check what must always hold."""
        for rank, (sealed, pushed, _) in self._marks.items():
            if self.takes_part(rank):
                assert (rank in self._waiting) == (sealed <= self.version)
                assert sealed >= self.version
            assert pushed.bit_length() <= HISTORY_BITS
        assert all(number >= self.version for number in self._pushed)
        assert self._waiting <= set(self._marks)
        assert set(self._last) <= set(self._marks)
        assert set(self._gone) <= set(self._marks)
        assert all(at >= self.version for at in self._holds.values())
