"""Consistency rules of a table, as the server keeps them.

A rule says when a push takes effect and when a pull may be answered; one class per rule over
the same `Shard`.

    AspRule    a push takes effect at once; a pull never waits
    BspRule    pushes of a round take effect together when all who take part have sealed it
               (`bulk_rule.py`)
    SspRule    a push takes effect at once, but nobody runs far ahead (`bounded.py`)
    QuorumRule as BspRule, and rounds close without those who are late (`quorum_rule.py`)

A rule answers a mutation with an `ErrorCode`, or with `PARK`: not yet, keep it and try again
when the version has risen. Exactly-once, parking and answers are `served_table.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Final

from aiops.roles.quorum import Share
from aiops.roles.rounds import Mark
from aiops.roles.shards import AnyShard, Where
from aiops_protocol.errors import ErrorCode
from aiops_protocol.payload import Float32Array

__all__ = ["OK", "PARK", "AspRule", "Outcome", "Park", "Rule"]


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

    def admit(self, rank: int, from_version: int) -> None:  # noqa: B027  # not all rules do
        """Let a worker take part from this round on."""

    def lose(self, rank: int) -> Mark | None:
        """Note that a worker is gone; return what it has sealed, if it took part."""
        return None

    def settle(self, rank: int, verdict: Mark) -> None:  # noqa: B027  # not all rules do
        """Apply what all shards together know of a worker that is gone."""

    def acquit(self, rank: int) -> None:  # noqa: B027  # not all rules do
        """Note that the verdict on a lost worker says nothing of this table."""

    def validate(self) -> None:  # noqa: B027  # not all rules do
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
