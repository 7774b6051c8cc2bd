"""Consistency rules of a table, as the server keeps them.

A rule says when a push takes effect and when a pull may be answered; one class per rule over
the same `Shard`.

    AspRule    a push takes effect at once; a pull never waits
    BspRule    pushes of a round take effect together when all who take part have sealed it
    SspRule    a push takes effect at once, but nobody runs far ahead (`bounded.py`)
    QuorumRule as BspRule, and rounds close without those who are late (`quorum_rule.py`)

A rule answers a mutation with an `ErrorCode`, or with `PARK`: not yet, keep it and try again
when the version has risen. Exactly-once, parking and answers are `served_table.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Final

from aiops.roles.memory import Budget
from aiops.roles.quorum import Share
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

__all__ = ["OK", "PARK", "AspRule", "BspRule", "Outcome", "Park", "Rule"]


class Park(Enum):
    """The type of `PARK`."""

    PARK = "park"


PARK: Final = Park.PARK
"""The mutation belongs to a round that is not open yet."""

OK: Final = ErrorCode.OK

Outcome = ErrorCode | Park


class Rule(ABC):
    """What a shard does with mutations and reads under one consistency rule.

    The methods about workers that come and go do nothing where nobody waits for anybody.
    """

    has_rounds = False
    """Whether the version rises by rounds, in which all pushes take effect together."""

    now = 0.0
    """The caller's clock, set before it seals, closes or orders."""

    def __init__(self, shard: AnyShard) -> None:
        self.shard = shard

    @property
    @abstractmethod
    def version(self) -> int:
        """Version of the values that a pull gets now."""

    @abstractmethod
    def push(self, rank: int, clock: int, where: Where, gradient: Float32Array) -> Outcome:
        """Take a gradient of the worker's round `clock`."""

    @abstractmethod
    def assign(self, rank: int, clock: int, where: Where, values: Float32Array) -> Outcome:
        """Take new values for the selected elements."""

    @abstractmethod
    def seal(
        self, rank: int, clock: int, contributed: bool, final: bool, weight: float = 1.0
    ) -> Outcome:
        """Note that the worker's round `clock` is whole, and how much it counts."""

    @abstractmethod
    def readable(self, version: int) -> bool:
        """Whether a pull that wants at least `version` can be answered now."""

    @property
    def progress(self) -> int:
        """How far the table is; for status."""
        return self.version

    @property
    def zero_is_nothing(self) -> bool:
        """Whether a push may leave out the elements whose gradient is zero."""
        return self.shard.optimizer.zero_is_nothing

    def missing(self) -> list[int]:
        """Ranks that whoever waits is waiting for; for status."""
        return []

    def behind(self, version: int) -> dict[int, int]:
        """Return the ranks that keep a request waiting, and by how many clocks each is behind it.

        `version` is what `readable` was asked for.
        """
        return {}

    @property
    def closable(self) -> bool:
        """Whether something can be closed now that requests may be waiting for."""
        return False

    def close(self) -> list[int] | None:
        """Close it, if `closable`; return the contributors if it was a round."""
        raise AssertionError(f"{type(self).__name__} has no rounds")

    @property
    def deadline(self) -> float | None:
        """When to look again whether something can be closed, though nothing happens."""
        return None

    @property
    def late(self) -> dict[int, int]:
        """By rank, contributions that came after their round had closed."""
        return {}

    def decision(self) -> list[Share] | None:
        """Return what other shards must be told of the round that was just closed."""
        return None

    def decided(self, version: int, shares: list[Share]) -> None:
        """Take the decision of the lead shard on a round."""
        raise AssertionError(f"{type(self).__name__} decides by itself")

    def hold(self, rank: int) -> tuple[int, bool]:
        """Prepare for a worker to enter; return the version, and whether nobody takes part."""
        return 0, False

    def admit(self, rank: int, from_version: int) -> None:  # noqa: B027
        """Let a worker take part from this round on."""

    def lose(self, rank: int) -> Mark | None:
        """Note that a worker is gone; return what it has sealed, if it took part."""
        return None

    def settle(self, rank: int, verdict: Mark) -> None:  # noqa: B027
        """Apply what all shards together know of a worker that is gone."""

    def acquit(self, rank: int) -> None:  # noqa: B027
        """Note that the verdict on a lost worker says nothing of this table."""

    def validate(self) -> None:  # noqa: B027
        """Check what must always hold."""


class AspRule(Rule):
    """Asynchronous: every mutation takes effect at once, in the order of arrival."""

    version = 0
    """Mutations applied."""

    def push(self, rank: int, clock: int, where: Where, gradient: Float32Array) -> Outcome:
        """Apply at once."""
        self.shard.apply(where, gradient, clock)
        self.version += 1
        return OK

    def assign(self, rank: int, clock: int, where: Where, values: Float32Array) -> Outcome:
        """Set at once."""
        self.shard.write(where, values)
        self.version += 1
        return OK

    def seal(
        self, rank: int, clock: int, contributed: bool, final: bool, weight: float = 1.0
    ) -> Outcome:
        """Nothing waits for seals here."""
        return OK

    def readable(self, version: int) -> bool:
        """Nobody waits for anybody."""
        return True


class BspRule(Rule):
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

    has_rounds = True

    def __init__(
        self, shard: AnyShard, reduction: Reduction, workers: list[int], budget: Budget
    ) -> None:
        super().__init__(shard)
        self.rounds = Rounds(workers)
        self.places = len(workers)
        self._reduction = reduction
        self._budget = budget
        self._contributions: dict[int, AnyContribution] = {}
        self._assignments: dict[int, AnyAssignment] = {}

    @property
    def zero_is_nothing(self) -> bool:
        """A contribution is zero where nothing was pushed."""
        return True

    @property
    def version(self) -> int:
        """Rounds closed."""
        return self.rounds.version

    def _gate(self, rank: int, clock: int) -> Outcome:
        rounds = self.rounds
        if rounds.entering(rank):  # its first push has overtaken the scheduler's word
            return PARK
        if not rounds.takes_part(rank):
            return ErrorCode.NOT_A_MEMBER
        if clock > rounds.version:
            return PARK
        return OK if clock >= rounds.sealed(rank) else ErrorCode.ALREADY_SEALED

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

    def readable(self, version: int) -> bool:
        """Let a pull wait for the version that it names."""
        return version <= self.rounds.version

    def missing(self) -> list[int]:
        """Ranks whose seal the open round lacks."""
        return self.rounds.missing

    def behind(self, version: int) -> dict[int, int]:
        """Return who has not sealed the open round, and by how many clocks each is behind."""
        rounds = self.rounds
        return {rank: max(version - rounds.sealed(rank), 0) for rank in rounds.missing}

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

    def hold(self, rank: int) -> tuple[int, bool]:
        """Let at most the open round close until the worker is admitted."""
        return self.rounds.hold(rank)

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
