"""What tables cost a server in memory, and the limit that they share.

Memory for a round is reserved when its table is created, or the creation is refused with the
sum: a worker must not be turned away in the middle of training because others came first.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiops.optim import Optimizer
from aiops.optim.guard import is_ours
from aiops.shards.contribution import CONTRIBUTION_BYTES
from aiops.shards.replica import REPLICA_BYTES

__all__ = ["Budget", "shard_bytes"]


class Budget:
    """Bytes that are taken, of a limit.

    Parameters
    ----------
    limit
        Bytes that may be taken in all.
    """

    __slots__ = ("limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def take(self, size: int) -> bool:
        """Take so many bytes; `False`, and nothing taken, if they are not left."""
        if self.taken + size > self.limit:
            return False
        self.taken += size
        return True

    def give(self, size: int) -> None:
        """Give bytes back."""
        assert size <= self.taken
        self.taken -= size


def shard_bytes(
    elements: int,
    optimizer: Optimizer,
    contributions: int,
    *,
    rounds: bool,
    replica: bool = False,
) -> Mapping[str, int]:
    """Return what a shard needs, by part; so many `contributions` have a place of their own.

    Without rounds elements are stepped one by one, and each may have a count of its own. What an
    optimizer of somebody's own has changed must be undone if it fails; without rounds that is at
    most a segment.
    """
    undo = 0 if is_ours(optimizer) or not rounds else 4 * elements * (1 + len(optimizer.slots))
    return {
        "values": 4 * elements,
        "optimizer state": 4 * elements * len(optimizer.slots),
        "step counts": 4 * elements if optimizer.uses_step and not rounds else 0,
        "undo": undo,
        "public replica": REPLICA_BYTES * elements if replica else 0,
        "contributions": CONTRIBUTION_BYTES * elements * contributions,
    }
