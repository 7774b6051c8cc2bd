"""The rule of SSP tables: a push takes effect at once, and nobody runs far ahead.

Who may pull or push is decided by the floor (`floor.py`); everything else is as in ASP.
"""

from __future__ import annotations

from aiops.roles.consistency import OK, PARK, Outcome, Rule
from aiops.roles.floor import Floor
from aiops.roles.rounds import Mark
from aiops.roles.shards import AnyShard, Where
from aiops_protocol.errors import ErrorCode
from aiops_protocol.payload import Float32Array

__all__ = ["SspRule"]


class SspRule(Rule):
    """Bounded staleness: at clock c nobody goes on before all have completed c - staleness.

    The gate is in pull and push alike, because a worker that only pushes must not run away
    either, and not in the seal: that everybody hears of completed clocks is what opens it.

    Parameters
    ----------
    staleness
        By how many clocks a worker may be ahead of the slowest.
    workers
        Ranks that take part from clock 0 on.
    """

    version = 0
    """Mutations applied."""

    def __init__(self, shard: AnyShard, staleness: int, workers: list[int]) -> None:
        super().__init__(shard)
        self.floor = Floor(workers)
        self._staleness = staleness

    @property
    def progress(self) -> int:
        """Clocks that everybody has completed."""
        return self.floor.value

    def _gate(self, rank: int, clock: int) -> Outcome:
        floor = self.floor
        if floor.entering(rank):  # its first push has overtaken the scheduler's word
            return PARK
        if not floor.takes_part(rank):
            return ErrorCode.NOT_A_MEMBER
        if clock < floor.completed(rank):
            return ErrorCode.ALREADY_SEALED
        return OK if self.readable(clock) else PARK

    def push(self, rank: int, clock: int, where: Where, gradient: Float32Array) -> Outcome:
        """Apply at once, if the worker is not too far ahead."""
        outcome = self._gate(rank, clock)
        if outcome is OK:
            self.shard.apply(where, gradient, clock)
            self.version += 1
        return outcome

    def assign(self, rank: int, clock: int, where: Where, values: Float32Array) -> Outcome:
        """Set at once, if the worker is not too far ahead."""
        outcome = self._gate(rank, clock)
        if outcome is OK:
            self.shard.write(where, values)
            self.version += 1
        return outcome

    def seal(
        self, rank: int, clock: int, contributed: bool, final: bool, weight: float = 1.0
    ) -> Outcome:
        """Note a completed clock, or the last one."""
        floor = self.floor
        if floor.entering(rank):
            return PARK
        if not floor.takes_part(rank):
            return OK
        if clock > floor.completed(rank):
            return PARK
        if final:
            floor.remove(rank)
            return OK
        if clock < floor.completed(rank):
            return ErrorCode.ALREADY_SEALED
        floor.complete(rank)
        return OK

    def readable(self, version: int) -> bool:
        """Let a worker at this clock pull when all have completed enough."""
        return self.floor.value >= version - self._staleness

    def missing(self) -> list[int]:
        """Ranks of the slowest, if others are ahead."""
        return self.floor.lowest

    def behind(self, version: int) -> dict[int, int]:
        """Return who keeps a request of this clock waiting, and by how many clocks each is behind.

        Behind the one who waits, that is; `staleness` of them would be all right.
        """
        below = self.floor.below(version - self._staleness)
        return {rank: version - completed for rank, completed in below.items()}

    @property
    def closable(self) -> bool:
        """Whether the floor can rise, which may open the gate for somebody."""
        return self.floor.can_rise

    def close(self) -> None:
        """Raise the floor by one clock."""
        self.floor.rise()

    # --- workers that come and go ---

    def hold(self, rank: int) -> tuple[int, bool]:
        """Let the floor rise once at most until the worker is admitted."""
        return self.floor.hold(rank)

    def admit(self, rank: int, from_version: int) -> None:
        """Count the worker from this clock on."""
        self.floor.admit(rank, from_version)

    def lose(self, rank: int) -> None:
        """Wait for it no more: what it has pushed has taken effect, and there is no verdict."""
        self.floor.remove(rank)

    def settle(self, rank: int, verdict: Mark) -> None:
        """Wait no more for a worker that left in order, or never opened the table."""
        self.floor.remove(rank)

    def validate(self) -> None:
        """Check what must always hold."""
        self.floor.validate()
