"""Rounds that close without those who are late: who is in which, and when. No arrays here.

One shard of a table, the lead, decides when a round closes and whose contributions are in it; the
others are told, in order, and do the same. So nothing is half in, and the number of servers makes
no difference. What the lead has the seal of is whole at every shard, because a seal follows the
acknowledgements of all.

A worker that is late goes on with the newest version: its clock in the table jumps forward, and
the rounds between were closed without it.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Final, NamedTuple

__all__ = ["Patience", "Policy", "QuorumRounds", "Share"]

SAMPLES_MAX: Final = 64
"""How many contributions are remembered: recent enough to follow a change of the weather."""

SAMPLES_MIN: Final = 8
FIRST_GRACE_S: Final = 1.0
"""How long is waited while fewer than these are known."""

GRACE_MAX_S: Final = 10.0
"""Cap of a grace that is learned: nobody waits longer, whatever the past was like."""

PERCENTILE: Final = 0.95


class Share(NamedTuple):
    """What a round takes from a worker: its contribution to this round, or to an earlier one.

    A `weight` of 0: the worker has sealed the round and pushed nothing; its assignments count.
    """

    rank: int
    round: int
    weight: float


class Policy(NamedTuple):
    """When a round may close without somebody, and what becomes of that one's contribution.

    Attributes
    ----------
    minimum
        So many must have contributed (as many as there are, where they are fewer); 0: see `spared`.
    spared
        So many may be missing, with `minimum` 0.
    grace_s
        How long the others are waited for then; `None`: learned.
    keeps_late
        A late contribution is taken into the next round, not dropped.
    """

    minimum: int
    spared: int
    grace_s: float | None
    keeps_late: bool

    def suffices(self, contributed: int, sealed: int, present: int) -> bool:
        """Whether so many contributions, or seals, of so many workers are enough."""
        if self.minimum:
            return contributed >= min(self.minimum, present)
        return sealed >= max(present - self.spared, 1)


class Patience:
    """How long to wait for the late ones once there are enough.

    Learned, it is the 95th percentile of how late the contributions of the last rounds were,
    after the moment in which there were enough; those that were in time count as 0.
    """

    def __init__(self, grace_s: float | None) -> None:
        self._fixed = grace_s
        self._late: deque[float] = deque(maxlen=SAMPLES_MAX)

    def note(self, late_s: float) -> None:
        """Take how late a contribution was."""
        self._late.append(late_s)

    @property
    def grace_s(self) -> float:
        """Seconds to wait."""
        if self._fixed is not None:
            return self._fixed
        if len(self._late) < SAMPLES_MIN:
            return FIRST_GRACE_S
        place = ceil(PERCENTILE * len(self._late)) - 1
        return min(sorted(self._late)[place], GRACE_MAX_S)


class QuorumRounds:
    """Rounds of one shard of one table.

    Parameters
    ----------
    workers
        Ranks that take part from round 0 on.
    policy
        When a round may close.
    leads
        Whether this shard decides. The others only know who is where.

    Attributes
    ----------
    late
        By rank: how many contributions came after their round had closed.
    """

    def __init__(self, workers: list[int], policy: Policy, *, leads: bool = True) -> None:
        self.version = 0
        self.leads = leads
        self.policy = policy
        self.patience = Patience(policy.grace_s)
        self.late: dict[int, int] = {}
        self._sealed = dict.fromkeys(workers, 0)  # rounds below this, or left out
        self._whole: dict[tuple[int, int], float] = {}  # sealed, undecided: weight
        self._holds: dict[int, int] = {}  # entering rank: rounds from this one on must wait
        self._enough_at: float | None = None  # since when there are enough
        self._reached: dict[int, float] = {}  # round: when there were enough, for the last ones

    def sealed(self, rank: int) -> int:
        """Return below which round a worker that takes part has sealed, or left out, all."""
        return self._sealed[rank]

    def entering(self, rank: int) -> bool:
        """Whether the worker's first round is being agreed on."""
        return rank in self._holds

    def takes_part(self, rank: int) -> bool:
        """Whether anybody may have to wait for this worker."""
        return rank in self._sealed

    @property
    def missing(self) -> list[int]:
        """Ranks whose seal the open round lacks."""
        return sorted(rank for rank, sealed in self._sealed.items() if sealed <= self.version)

    def seal(self, rank: int, number: int, weight: float, now: float) -> None:
        """Note that the worker's contribution to a round is whole; it has left out those between.

        `weight` is 0 if it has pushed nothing.
        """
        self._sealed[rank] = number + 1
        if not self.leads:
            return
        if number < self.version:
            self._seal_late(rank, number, weight, now)
            return
        self._whole[rank, number] = weight
        if weight and number == self.version:
            self.patience.note(0.0 if self._enough_at is None else now - self._enough_at)

    def _seal_late(self, rank: int, number: int, weight: float, now: float) -> None:
        if weight:
            self.late[rank] = self.late.get(rank, 0) + 1
            if number in self._reached:
                self.patience.note(now - self._reached[number])
        if self.policy.keeps_late:
            self._whole[rank, number] = weight

    # --- deciding; only at the lead ---

    def is_due(self, now: float) -> bool:
        """Whether the open round closes now."""
        version = self.version
        if any(version >= at for at in self._holds.values()):
            return False
        here = {rank: weight for (rank, number), weight in self._whole.items() if number == version}
        done = here.keys() | {rank for rank, sealed in self._sealed.items() if sealed > version}
        present = done | self._sealed.keys()
        if not done:
            return False
        if done >= self._sealed.keys():
            self._note_enough(now)
            return True
        contributed = sum(weight > 0 for weight in here.values())
        if not self.policy.suffices(contributed, len(done), len(present)):
            # Somebody may have come since there were enough.
            self._enough_at = None
            return False
        return now >= self._note_enough(now) + self.patience.grace_s

    def _note_enough(self, now: float) -> float:
        if self._enough_at is None:
            self._enough_at = now
        return self._enough_at

    @property
    def deadline(self) -> float | None:
        """When the open round closes though nothing more happens, if there is enough for that."""
        return None if self._enough_at is None else self._enough_at + self.patience.grace_s

    def decide(self) -> list[Share]:
        """Return what goes into the open round: all that is whole, in the order of ranks."""
        return [
            Share(rank, number, weight)
            for (rank, number), weight in sorted(self._whole.items())
            if number <= self.version
        ]

    # --- closing; at every shard ---

    def close(self, shares: list[Share]) -> None:
        """Close the open round with these shares."""
        if self._enough_at is not None:
            self._reached[self.version] = self._enough_at
            self._reached.pop(self.version - SAMPLES_MAX, None)
        self._enough_at = None
        for share in shares:
            self._whole.pop((share.rank, share.round), None)
        self.version += 1

    # --- coming and going ---

    def hold(self, rank: int) -> tuple[int, bool]:
        """Let at most the open round close until `admit`; see `Rounds.hold`."""
        idle = not self._sealed
        self._holds.setdefault(rank, self.version if idle else self.version + 1)
        return self.version, idle

    def admit(self, rank: int, number: int) -> None:
        """Let the worker take part from this round on."""
        self._holds.pop(rank, None)
        self._sealed[rank] = number

    def leave(self, rank: int) -> int | None:
        """Wait for this worker no more; return below which round it has sealed all.

        What it has sealed stays, but for rounds to come: it had nothing to give to those yet.
        """
        self._holds.pop(rank, None)
        for key in [key for key in self._whole if key[0] == rank and key[1] > self.version]:
            del self._whole[key]
        return self._sealed.pop(rank, None)

    def validate(self) -> None:
        """Check what must always hold."""
        assert self.leads or not self._whole
        for (rank, number), weight in self._whole.items():
            assert weight >= 0
            assert number < self._sealed.get(rank, number + 1)
            assert self.policy.keeps_late or number >= self.version
        assert self._enough_at is None or self._whole or self._sealed
