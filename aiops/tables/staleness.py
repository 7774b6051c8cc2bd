"""What a worker's gradients were computed on: the version it has read, shard by shard.

It travels with each push of a table without rounds, so that the servers can tell how many changes
of others came in between; the answers tell the same to the worker.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiops.observability.staleness import StalenessHistogram

__all__ = ["Staleness"]


class Staleness:
    """Bases of one table's pushes, and how stale they turned out to be.

    Parameters
    ----------
    shards
        How many.
    """

    __slots__ = ("_offsets", "_own", "histogram")

    def __init__(self, shards: int) -> None:
        self.histogram = StalenessHistogram()
        self._own = [0] * shards  # changes of this worker that were begun
        self._offsets: list[int | None] = [None] * shards  # version read, less those before it

    def marks(self) -> list[int]:
        """Return what has to be known of the moment in which a read begins."""
        return self._own.copy()

    def read(self, versions: Mapping[int, int], marks: list[int]) -> None:
        """Note what the user has been given: gradients are computed on it from now on."""
        for shard, version in versions.items():
            self._offsets[shard] = version - marks[shard]

    def base(self, shard: int) -> int:
        """Return the base of the next change to a shard, -1 if nothing was read; it is begun.

        The worker's own changes since its read are counted in: they are no staleness.
        """
        offset, own = self._offsets[shard], self._own[shard]
        self._own[shard] = own + 1
        return -1 if offset is None else max(offset + own, 0)
