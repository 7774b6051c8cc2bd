"""The rule of tables whose rounds close without those who are late (Quorum, BSP with drop_slowest).

When and with whom is `quorum.py`; here are the contributions. Unlike in BSP one worker may have
several: to the open round, and late ones to rounds before it.
"""

from __future__ import annotations

from itertools import chain

from aiops.roles.consistency import OK, PARK, Outcome
from aiops.roles.memory import Budget
from aiops.roles.quorum import QuorumRounds, Share
from aiops.roles.round_rule import RoundRule
from aiops.roles.rounds import Mark
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

__all__ = ["QuorumRule"]


class QuorumRule(RoundRule[QuorumRounds]):
    """Version v + 1 is version v and the contributions that the lead shard has decided on.

    Parameters
    ----------
    rounds
        Those of this shard; if it does not lead it is told (`decided`).
    places
        Contributions whose memory is paid for already.
    """

    def __init__(
        self,
        shard: AnyShard,
        reduction: Reduction,
        rounds: QuorumRounds,
        budget: Budget,
        *,
        places: int,
    ) -> None:
        super().__init__(shard, rounds)
        self.places = places
        self._reduction = reduction
        self._budget = budget
        self._contributions: dict[tuple[int, int], AnyContribution] = {}  # by rank and round
        self._unused: list[AnyContribution] = []
        self._assignments: dict[tuple[int, int], AnyAssignment] = {}
        self._decisions: list[list[Share]] = []  # told, and not carried out yet
        self._last: list[Share] = []
        self._lost: dict[int, None] = {}  # ranks that wait for a verdict

    def _is_too_late(self, clock: int) -> bool:
        return clock < self.rounds.version and not self.rounds.policy.keeps_late

    def push(self, rank: int, clock: int, where: Where, gradient: Float32Array) -> Outcome:
        """Add to the worker's contribution; one that comes too late is dropped.

        The answer tells a version above the clock then.
        """
        outcome = self._gate(rank, clock)
        if outcome is not OK or self._is_too_late(clock):
            return outcome
        contribution = self._contributions.get((rank, clock))
        if contribution is None:
            contribution = self._find_place()
            if contribution is None:
                return ErrorCode.OUT_OF_MEMORY
            self._contributions[rank, clock] = contribution
        contribution.add(where, gradient)
        return OK

    def _find_place(self) -> AnyContribution | None:
        if self._unused:
            return self._unused.pop()
        if len(self._contributions) >= self.places:
            if not self._budget.take(CONTRIBUTION_BYTES * self.shard.size):
                return None
            self.places += 1
        return contribution_for(self.shard)

    def assign(self, rank: int, clock: int, where: Where, values: Float32Array) -> Outcome:
        """Note for the close of the round."""
        outcome = self._gate(rank, clock)
        if outcome is not OK or self._is_too_late(clock):
            return outcome
        assignment = self._assignments.get((rank, clock))
        if assignment is None:
            if not self._budget.take(ASSIGNMENT_BYTES * self.shard.size):
                return ErrorCode.OUT_OF_MEMORY
            assignment = self._assignments[rank, clock] = assignment_for(self.shard)
        assignment.set(where, values)
        return OK

    def seal(
        self, rank: int, clock: int, contributed: bool, final: bool, weight: float = 1.0
    ) -> Outcome:
        """Seal a round of the worker, or leave; rounds may be left out between."""
        rounds = self.rounds
        if rounds.entering(rank):
            return PARK
        if not rounds.takes_part(rank):
            return OK
        if final:
            rounds.leave(rank)
            return OK
        if clock < rounds.sealed(rank):
            return ErrorCode.ALREADY_SEALED
        rounds.seal(rank, clock, weight if contributed else 0.0, self.now)
        return OK

    @property
    def late(self) -> dict[int, int]:
        """By rank, contributions that came after their round had closed; at the lead."""
        return self.rounds.late if self.rounds.leads else {}

    # --- closing ---

    @property
    def closable(self) -> bool:
        """Whether the open round closes now: by decision here, or by one that was told."""
        return self.rounds.is_due(self.now) if self.rounds.leads else bool(self._decisions)

    @property
    def deadline(self) -> float | None:
        """When the lead is to look again."""
        return self.rounds.deadline if self.rounds.leads else None

    def decided(self, version: int, shares: list[Share]) -> None:
        """Take the lead's decision on a round."""
        assert not self.rounds.leads
        assert version == self.rounds.version + len(self._decisions)
        self._decisions.append(shares)

    def decision(self) -> list[Share] | None:
        """Return what the lead has decided on the round that it has just closed."""
        return self._last if self.rounds.leads else None

    def close(self) -> list[int]:
        """Close the open round: assignments, then one step of the optimizer."""
        shares = self.rounds.decide() if self.rounds.leads else self._decisions.pop(0)
        self._last = shares
        self.rounds.close(shares)
        for share in shares:
            assignment = self._assignments.get((share.rank, share.round))
            if assignment is not None:
                assignment.write_to(self.shard)
                self._drop_assignment((share.rank, share.round))
        pushed = [share for share in shares if share.weight]
        if pushed:
            weights = [share.weight for share in pushed]
            unweighted = not self._reduction.takes_weights or set(weights) == {1.0}
            wholes = [self._whole(share) for share in pushed]
            self.shard.step(
                wholes, self._reduction, self.rounds.version, None if unweighted else weights
            )
        for share in shares:
            self._drop((share.rank, share.round))
        if not self.rounds.policy.keeps_late:
            for key in [key for key in self._contributions if key[1] < self.rounds.version]:
                self._drop(key)
            for key in [key for key in self._assignments if key[1] < self.rounds.version]:
                self._drop_assignment(key)
        return [share.rank for share in pushed]

    def _whole(self, share: Share) -> Whole:
        # A worker that pushed only to other shards counts in the divisor, with zeros here.
        contribution = self._contributions.get((share.rank, share.round))
        return nothing_from(self.shard) if contribution is None else contribution.whole()

    def _drop(self, key: tuple[int, int]) -> None:
        contribution = self._contributions.pop(key, None)
        if contribution is not None:
            contribution.reset()
            self._unused.append(contribution)

    def _drop_assignment(self, key: tuple[int, int]) -> None:
        self._assignments.pop(key).reset()
        self._budget.give(ASSIGNMENT_BYTES * self.shard.size)

    # --- workers that come and go ---

    def admit(self, rank: int, from_version: int) -> None:
        """Let the worker take part from this round on."""
        self._lost.pop(rank, None)
        self.rounds.admit(rank, from_version)

    def lose(self, rank: int) -> Mark | None:
        """Wait for it no more; what it has not sealed at the lead is discarded by the verdict."""
        # Also one that has left in order here: the lead may not have heard of it.
        self._lost[rank] = None
        sealed = self.rounds.leave(rank)
        return Mark(sealed, 0) if self.rounds.leads and sealed is not None else None

    def settle(self, rank: int, verdict: Mark) -> None:
        """Discard what a lost worker had not sealed; one that left in order has nothing such."""
        self.rounds.leave(rank)
        if rank not in self._lost:
            return
        del self._lost[rank]
        for key in [*chain(self._contributions, self._assignments)]:
            if key[0] == rank and key[1] >= verdict.sealed:
                if key in self._assignments:
                    self._drop_assignment(key)
                self._drop(key)

    def acquit(self, rank: int) -> None:
        """Keep all that a lost worker gave: it had left in order, as the lead knows."""
        self._lost.pop(rank, None)

    def validate(self) -> None:
        """Check what must always hold."""
        self.rounds.validate()
        assert len(self._contributions) + len(self._unused) <= self.places
