"""How stale gradients were: how many changes of others came between a read and a push.

A pure container like those in `metrics`; who counts what is in `aiops.roles` and the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["StalenessHistogram", "bucket_name"]

EXACT: Final = 16
"""Below this each number has a bucket of its own; above it each power of two begins one."""


class StalenessHistogram:
    """Counts of gradients by staleness, under the least number of each bucket."""

    __slots__ = ("counts",)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts = dict(counts or {})

    def note(self, changes: int) -> None:
        """Count one gradient; less than no changes are none."""
        if changes >= EXACT:
            changes = 1 << (changes.bit_length() - 1)
        elif changes < 0:
            changes = 0
        self.counts[changes] = self.counts.get(changes, 0) + 1

    def add(self, counts: Mapping[int, int]) -> None:
        """Count what another histogram has counted."""
        for bucket, count in counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count


def bucket_name(bucket: int) -> str:
    """Return what a bucket counts: `3`, or `16-31`."""
    return str(bucket) if bucket < EXACT else f"{bucket}-{2 * bucket - 1}"
