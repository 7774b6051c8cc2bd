"""Consistency rules of a table, as the server keeps them.

A rule says when a push takes effect and when a pull may be answered; one class per rule over
the same `Shard`.

    AspRule    a push takes effect at once; a pull never waits
    BspRule    pushes of a round take effect together when all who take part have sealed it

A rule answers a mutation with an `ErrorCode`, or with `PARK`: not yet, keep it and try again
when the version has risen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Final

import numpy as np

from aiops.roles.rounds import Rounds
from aiops.shard import Assignment, Contribution, Selection, Shard
from aiops_protocol.errors import ErrorCode
from aiops_protocol.payload import Float32Array

__all__ = ["PARK", "AspRule", "BspRule", "Outcome", "Park", "Rule"]


class Park(Enum):
    """The type of `PARK`."""

    PARK = "park"


PARK: Final = Park.PARK
"""The mutation belongs to a round that is not open yet."""

Outcome = ErrorCode | Park


class Rule(ABC):
    """What a shard does with mutations and reads under one consistency rule."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    @property
    @abstractmethod
    def version(self) -> int:
        """Version of the values that a pull gets now."""

    @abstractmethod
    def push(self, rank: int, clock: int, selection: Selection, gradient: Float32Array) -> Outcome:
        """Take a gradient of the worker's round `clock`."""

    @abstractmethod
    def assign(self, rank: int, clock: int, selection: Selection, values: Float32Array) -> Outcome:
        """Take new values for the selected elements."""

    @abstractmethod
    def seal(self, rank: int, clock: int, contributed: bool, final: bool) -> Outcome:
        """Note that the worker's round `clock` is whole."""

    @abstractmethod
    def readable(self, version: int) -> bool:
        """Whether a pull that wants at least `version` can be answered now."""

    @abstractmethod
    def missing(self) -> list[int]:
        """Ranks that whoever waits is waiting for."""

    def advance(self) -> list[int] | None:
        """Close one round if it can close; return its contributors, or `None`."""
        return None


class AspRule(Rule):
    """Asynchronous: every mutation takes effect at once, in the order of arrival."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard)
        self._version = 0

    @property
    def version(self) -> int:
        """Mutations applied."""
        return self._version

    def push(self, rank: int, clock: int, selection: Selection, gradient: Float32Array) -> Outcome:
        """Apply at once."""
        self.shard.apply(selection, gradient)
        self._version += 1
        return ErrorCode.OK

    def assign(self, rank: int, clock: int, selection: Selection, values: Float32Array) -> Outcome:
        """Set at once."""
        self.shard.write(selection, values)
        self._version += 1
        return ErrorCode.OK

    def seal(self, rank: int, clock: int, contributed: bool, final: bool) -> Outcome:
        """Nothing waits for seals here."""
        return ErrorCode.OK

    def readable(self, version: int) -> bool:
        """Let a subscriber wait for the next mutation; everybody else asks for version 0."""
        return version <= self._version

    def missing(self) -> list[int]:
        """Nobody is waited for by rule."""
        return []


class BspRule(Rule):
    """Bulk-synchronous: version c + 1 is version c and the whole contributions of round c.

    Parameters
    ----------
    mean
        Divide the sum by the number of workers that pushed.
    workers
        Ranks that take part from round 0 on.
    """

    def __init__(self, shard: Shard, mean: bool, workers: list[int]) -> None:
        super().__init__(shard)
        self.rounds = Rounds(workers)
        self._mean = mean
        self._contributions: dict[int, Contribution] = {}
        self._assignments: dict[int, Assignment] = {}

    @property
    def version(self) -> int:
        """Rounds closed."""
        return self.rounds.version

    def _gate(self, rank: int, clock: int) -> Outcome:
        if not self.rounds.takes_part(rank):
            return ErrorCode.NOT_A_MEMBER
        if clock > self.rounds.version:
            return PARK
        if clock < self.rounds.sealed(rank):
            return ErrorCode.ALREADY_SEALED
        return ErrorCode.OK

    def push(self, rank: int, clock: int, selection: Selection, gradient: Float32Array) -> Outcome:
        """Add to the worker's contribution to the open round."""
        outcome = self._gate(rank, clock)
        if outcome is ErrorCode.OK:
            contribution = self._contributions.get(rank)
            if contribution is None:
                contribution = self._contributions[rank] = Contribution(self.shard.size)
            contribution.add(selection, gradient)
        return outcome

    def assign(self, rank: int, clock: int, selection: Selection, values: Float32Array) -> Outcome:
        """Note for the close of the open round."""
        outcome = self._gate(rank, clock)
        if outcome is ErrorCode.OK:
            assignment = self._assignments.get(rank)
            if assignment is None:
                assignment = self._assignments[rank] = Assignment(self.shard.size)
            assignment.set(selection, values)
        return outcome

    def seal(self, rank: int, clock: int, contributed: bool, final: bool) -> Outcome:
        """Seal the open round, or leave after the last sealed one."""
        if not self.rounds.takes_part(rank):
            # A worker that is not in the rounds (an observer, one that left) has nothing to seal.
            return ErrorCode.OK
        if clock > self.rounds.version and self.rounds.sealed(rank) < clock:
            return PARK
        if final or clock == self.rounds.sealed(rank):
            self.rounds.seal(rank, contributed, final)
        return ErrorCode.OK

    def readable(self, version: int) -> bool:
        """Let a pull wait for the version that it names."""
        return version <= self.rounds.version

    def missing(self) -> list[int]:
        """Ranks whose seal the open round lacks."""
        return self.rounds.missing

    def advance(self) -> list[int] | None:
        """Close the open round if every seal is in: assignments, then one optimizer step."""
        if not self.rounds.closable:
            return None
        pushed = self.rounds.close()
        for rank in sorted(self._assignments):
            self._assignments[rank].write_to(self.shard)
        self._assignments.clear()
        if pushed and self.shard.size:
            wholes = [self._whole(rank) for rank in pushed]
            divisor = len(pushed) if self._mean else None
            self.shard.step(wholes, divisor, self.rounds.version)
        for contribution in self._contributions.values():
            contribution.reset()
        return pushed

    def _whole(self, rank: int) -> Float32Array:
        # A worker that pushed only to other shards counts in the divisor, with zeros here.
        contribution = self._contributions.get(rank)
        return (
            np.zeros(self.shard.size, np.float32) if contribution is None else contribution.whole()
        )

    def settle(self, rank: int, sealed: int, contributed: bool) -> None:
        """Settle a lost worker; what it had not sealed anywhere is discarded."""
        open_before = self.rounds.sealed(rank) <= self.version
        self.rounds.settle(rank, sealed, contributed)
        if open_before and sealed <= self.version:
            self._contributions.pop(rank, None)
            self._assignments.pop(rank, None)
