"""Who a worker is, and who else is in the job: what its handle tells without asking anybody."""

from __future__ import annotations

from aiops.checks import check_count
from aiops.runtime.postoffice import Postoffice
from aiops_protocol.control import Member

__all__ = ["WorkerIdentity"]


class WorkerIdentity:
    """The part of a worker's handle that tells who it is.

    Attributes
    ----------
    postoffice
        What knows.
    """

    postoffice: Postoffice
    _planned: int

    @property
    def rank(self) -> int:
        """Rank of this worker, from 0; the same again after a restart under the same name."""
        return self.postoffice.joined.rank

    @property
    def name(self) -> str:
        """Name of this worker, given or made."""
        return self.postoffice.joined.name

    @property
    def incarnation(self) -> int:
        """How often the rank has been taken, this time included."""
        return self.postoffice.joined.incarnation

    @property
    def job(self) -> str:
        """The random id of the job."""
        return self.postoffice.joined.job

    @property
    def clock(self) -> int:
        """Completed clocks (steps) of this worker."""
        return self.postoffice.clock

    @property
    def planned(self) -> int:
        """Up to which clock the `steps` loops so far go; the next one begins there."""
        return self._planned

    @property
    def members(self) -> list[Member]:
        """All nodes that are in the job now: role, rank, name, address, state."""
        return list(self.postoffice.members)

    @property
    def _live_ranks(self) -> list[int]:
        return sorted(member.rank for member in self.postoffice.members if member.role == "worker")

    @property
    def world_size(self) -> int:
        """Number of live workers."""
        return len(self._live_ranks)

    def shard(self, n: int) -> slice:
        """Return this worker's part of `n` items, as a slice; right also when ranks have gaps.

        The parts of all live workers tile [0, n) and differ by one item at most.
        """
        n = check_count(n, "shard: n")
        ranks = self._live_ranks
        index, count = ranks.index(self.rank), len(ranks)
        return slice(n * index // count, n * (index + 1) // count)

    @property
    def stop_reason(self) -> str | None:
        """Why all workers stop at a common step boundary, once that is agreed."""
        return self.postoffice.stop_at.reason if self.postoffice.stop_at else None

    def check(self) -> None:
        """Raise what has ended the job, if anything has."""
        self.postoffice.check()
