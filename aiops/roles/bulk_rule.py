"""The rule of bulk-synchronous tables: a round takes effect when all in it have sealed it."""

from __future__ import annotations

from aiops.roles.consistency import OK, PARK, Outcome
from aiops.roles.memory import Budget
from aiops.roles.round_rule import RoundRule
from aiops.roles.rounds import Mark, Rounds
from aiops.roles.shards import (
    AnyAssignment,
    AnyContribution,
    AnyShard,
    Where,
    Whole,
    assignment_for,
    contribution_for,
    nothing_from,
)
from aiops.shards.contribution import ASSIGNMENT_BYTES, CONTRIBUTION_BYTES
from aiops.shards.reduction import Reduction
from aiops_protocol.errors import ErrorCode
from aiops_protocol.payload import Float32Array

__all__ = ["BspRule"]


class BspRule(RoundRule[Rounds]):
    """Bulk-synchronous: version c + 1 is version c and the whole contributions of round c.

    Parameters
    ----------
    reduction
        What the contributions of a round become.
    workers
        Ranks that take part from round 0 on; the places of their contributions are paid for.
    budget
        Pays for the places of those who come later, and for assignments.
    """

    def __init__(
        self, shard: AnyShard, reduction: Reduction, workers: list[int], budget: Budget
    ) -> None:
        super().__init__(shard, Rounds(workers))
        self.places = len(workers)
        self._reduction = reduction
        self._budget = budget
        self._contributions: dict[int, AnyContribution] = {}
        self._assignments: dict[int, AnyAssignment] = {}

    @property
    def zero_is_nothing(self) -> bool:
        """A contribution is zero where nothing was pushed."""
        return True

    def push(self, rank: int, clock: int, where: Where, gradient: Float32Array) -> Outcome:
        """Add to the worker's contribution to the open round."""
        outcome = self._gate(rank, clock)
        if outcome is not OK:
            return outcome
        contribution = self._contributions.get(rank)
        if contribution is None:
            if not self._find_place():
                return ErrorCode.OUT_OF_MEMORY
            contribution = self._contributions[rank] = contribution_for(self.shard)
        contribution.add(where, gradient)
        return OK

    def _find_place(self) -> bool:
        """Whether there is memory for one more contribution; places of the gone are taken over."""
        if len(self._contributions) < self.places:
            return True
        if not self._budget.take(CONTRIBUTION_BYTES * self.shard.size):
            return False
        self.places += 1
        return True

    def assign(self, rank: int, clock: int, where: Where, values: Float32Array) -> Outcome:
        """Note for the close of the open round."""
        outcome = self._gate(rank, clock)
        if outcome is not OK:
            return outcome
        assignment = self._assignments.get(rank)
        if assignment is None:
            if not self._budget.take(ASSIGNMENT_BYTES * self.shard.size):
                return ErrorCode.OUT_OF_MEMORY
            assignment = self._assignments[rank] = assignment_for(self.shard)
        assignment.set(where, values)
        return OK

    def seal(
        self, rank: int, clock: int, contributed: bool, final: bool, weight: float = 1.0
    ) -> Outcome:
        """Seal the worker's next round, or leave after the last sealed one.

        A worker may seal rounds that are not open yet, if nothing of it is parked before.
        """
        rounds = self.rounds
        if rounds.entering(rank):
            return PARK
        if not rounds.takes_part(rank):
            # A worker that is not in the rounds (an observer, one that left) has nothing to seal.
            return OK
        sealed = rounds.sealed(rank)
        if clock > sealed:
            return PARK
        if final:
            rounds.seal(rank, contributed, final=True)
            self._drop_departed()
            return OK
        if clock < sealed:
            return ErrorCode.ALREADY_SEALED
        rounds.seal(rank, contributed, final=False, weight=weight)
        return OK

    @property
    def closable(self) -> bool:
        """Whether every seal of the open round is in."""
        return self.rounds.closable

    def close(self) -> list[int]:
        """Close the open round: assignments, then one step of the optimizer."""
        pushed = self.rounds.close()
        for rank in sorted(self._assignments):
            self._assignments[rank].write_to(self.shard)
            self._drop_assignment(rank)
        if pushed:
            wholes = [self._whole(rank) for rank in pushed]
            weights = None if set(pushed.values()) == {1.0} else list(pushed.values())
            self.shard.step(wholes, self._reduction, self.rounds.version, weights)
        for contribution in self._contributions.values():
            contribution.reset()
        self._drop_departed()
        return list(pushed)

    def _whole(self, rank: int) -> Whole:
        # A worker that pushed only to other shards counts in the divisor, with zeros here.
        contribution = self._contributions.get(rank)
        return nothing_from(self.shard) if contribution is None else contribution.whole()

    def _drop_departed(self) -> None:
        """Free what belongs to nobody who takes part; its places serve those who come later."""
        takes_part = self.rounds.takes_part
        for rank in [rank for rank in self._contributions if not takes_part(rank)]:
            self._contributions.pop(rank).reset()
        for rank in [rank for rank in self._assignments if not takes_part(rank)]:
            self._drop_assignment(rank)

    def _drop_assignment(self, rank: int) -> None:
        self._assignments.pop(rank).reset()
        self._budget.give(ASSIGNMENT_BYTES * self.shard.size)

    # --- workers that come and go ---

    def admit(self, rank: int, from_version: int) -> None:
        """Let the worker take part from this round on."""
        self.rounds.admit(rank, from_version)

    def lose(self, rank: int) -> Mark | None:
        """Return what the worker has sealed here; what it has not waits for the verdict."""
        return self.rounds.lose(rank)

    def settle(self, rank: int, verdict: Mark) -> None:
        """Count what the worker had sealed anywhere; discard what it had not."""
        self.rounds.settle(rank, verdict)
        self._drop_departed()

    def validate(self) -> None:
        """Check what must always hold."""
        self.rounds.validate()
        assert len(self._contributions) <= self.places
        assert all(map(self.rounds.takes_part, (*self._contributions, *self._assignments)))
