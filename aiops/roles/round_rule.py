"""What the rules of tables with rounds have in common: whose turn it is, and who is waited for."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from aiops.roles.consistency import OK, PARK, Outcome, Rule
from aiops.roles.shards import AnyShard
from aiops_protocol.errors import ErrorCode

__all__ = ["AnyRounds", "RoundRule"]


class AnyRounds(Protocol):
    """Who takes part in rounds, and what each has sealed."""

    version: int

    def entering(self, rank: int) -> bool:
        """Whether the worker's first round is being agreed on."""
        ...

    def takes_part(self, rank: int) -> bool:
        """Whether anybody may have to wait for this worker."""
        ...

    def sealed(self, rank: int) -> int:
        """Return below which round a worker that takes part has sealed all."""
        ...

    @property
    def missing(self) -> list[int]:
        """Ranks whose seal the open round lacks."""
        ...

    def hold(self, rank: int) -> tuple[int, bool]:
        """Let at most the open round close until the worker is admitted."""
        ...


AnyRoundsT = TypeVar("AnyRoundsT", bound=AnyRounds)


class RoundRule(Rule, Generic[AnyRoundsT]):
    """A rule under which all pushes of a round take effect together, at its close."""

    has_rounds = True

    def __init__(self, shard: AnyShard, rounds: AnyRoundsT) -> None:
        super().__init__(shard)
        self.rounds = rounds

    @property
    def version(self) -> int:
        """Rounds closed."""
        return self.rounds.version

    def _gate(self, rank: int, clock: int) -> Outcome:
        """Say whether a worker may change round `clock` now."""
        rounds = self.rounds
        if rounds.entering(rank):  # its first push has overtaken the scheduler's word
            return PARK
        if not rounds.takes_part(rank):
            return ErrorCode.NOT_A_MEMBER
        if clock > rounds.version:
            return PARK
        return OK if clock >= rounds.sealed(rank) else ErrorCode.ALREADY_SEALED

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

    def hold(self, rank: int) -> tuple[int, bool]:
        """Let at most the open round close until the worker is admitted."""
        return self.rounds.hold(rank)
