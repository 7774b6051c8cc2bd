"""How far the slowest worker of a table is, where workers may be apart by a bounded number.

The floor is the number of clocks that everybody who takes part has completed, as one shard has
heard it by seals. Shards may differ: a seal follows the acknowledgements of all shards, so each
knows at most what is true, and a gate on its floor never opens too early. No arrays here.
"""

from __future__ import annotations

__all__ = ["Floor"]


class Floor:
    """Completed clocks of the workers of one shard of one table, and the least of them.

    Parameters
    ----------
    workers
        Ranks that take part from clock 0 on.

    Attributes
    ----------
    value
        Clocks that all have completed. It never falls: who enters is let in at or above it, and
        when the last one has gone it stays.
    """

    def __init__(self, workers: list[int]) -> None:
        self.value = 0
        self._completed = dict.fromkeys(workers, 0)
        self._holds: dict[int, int] = {}  # entering rank: the floor must not rise above this
        self._lowest = set(workers)  # those at the floor

    def completed(self, rank: int) -> int:
        """Return how many clocks a worker that takes part has completed."""
        return self._completed[rank]

    def entering(self, rank: int) -> bool:
        """Whether the worker's first clock is being agreed on."""
        return rank in self._holds

    def takes_part(self, rank: int) -> bool:
        """Whether anybody may have to wait for this worker."""
        return rank in self._completed

    @property
    def lowest(self) -> list[int]:
        """Ranks at the floor, if anybody is above it."""
        if len(self._lowest) == len(self._completed):
            return []
        return sorted(self._lowest)

    def below(self, clock: int) -> dict[int, int]:
        """Return the ranks that have not completed so many clocks, and how many each has."""
        return {
            rank: completed
            for rank, completed in sorted(self._completed.items())
            if completed < clock
        }

    def complete(self, rank: int) -> None:
        """Note that a worker has completed its next clock."""
        self._completed[rank] += 1
        self._lowest.discard(rank)

    @property
    def can_rise(self) -> bool:
        """Whether all who take part are above the floor."""
        return (
            not self._lowest
            and bool(self._completed)
            and all(self.value < limit for limit in self._holds.values())
        )

    def rise(self) -> None:
        """Raise the floor by one clock, as it `can_rise`."""
        self.value += 1
        self._lowest = {rank for rank, at in self._completed.items() if at == self.value}

    # --- coming and going ---

    def hold(self, rank: int) -> tuple[int, bool]:
        """Let the floor rise once at most until `admit`; return it, and whether nobody is here.

        With nobody here it does not rise at all: the worker may be told to begin at it.
        """
        idle = not self._completed
        self._holds.setdefault(rank, self.value if idle else self.value + 1)
        return self.value, idle

    def admit(self, rank: int, clock: int) -> None:
        """Let a worker take part, as if it had completed so many clocks."""
        assert clock >= self.value
        self._holds.pop(rank, None)
        self._completed[rank] = clock
        if clock == self.value:
            self._lowest.add(rank)
        else:
            self._lowest.discard(rank)

    def remove(self, rank: int) -> None:
        """Wait for this worker no more. One that does not take part is no error."""
        self._holds.pop(rank, None)
        self._completed.pop(rank, None)
        self._lowest.discard(rank)

    def validate(self) -> None:
        """Check what must always hold."""
        assert self._lowest == {r for r, at in self._completed.items() if at == self.value}
        assert all(at >= self.value for at in self._completed.values())
        assert all(limit >= self.value for limit in self._holds.values())
