"""What a link does, from transfers: the time without any bytes, and the bytes per second.

What lives here: the estimate alone. It is a lower envelope: of transfers of about one size the
quickest counts, because all that queues, servers that are busy and machines that are busy only add
to it. Two sizes then tell the way there and back from the bytes. What does not live here: what a
codec costs (`gate.py`), and who measures. Nothing here reads a clock.
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["Link"]

RECENT: Final = 8
"""Transfers of one size of which the quickest counts."""

FIT_TRANSFERS: Final = 64
"""Sizes that were not seen within so many transfers say nothing about the link of today."""

SIZES_MAX: Final = 32
"""Sizes differ by a factor of two or more, so that this is all up to four gigabytes."""

APART: Final = 2.0
"""Two sizes tell the way from the bytes if one is so many times the other."""


class _Size:
    """Transfers of about one size."""

    __slots__ = ("at", "bytes", "times")

    def __init__(self) -> None:
        self.times: deque[float] = deque(maxlen=RECENT)
        self.bytes = 0  # of the last one
        self.at = 0  # its number


class Link:
    """One direction of what is between a worker and its servers.

    Attributes
    ----------
    free_at
        When the last transfer ended, by the clock of whoever measures: one that was begun before
        has waited for it.
    """

    __slots__ = ("_count", "_fitted", "_rate", "_sizes", "_way_s", "free_at")

    def __init__(self) -> None:
        self.free_at = 0.0
        self._way_s = 0.0
        self._rate = 0.0
        self._count = 0
        self._fitted = 0  # transfers that the two above are from
        self._sizes: dict[int, _Size] = {}

    def add(self, size: int, seconds: float) -> None:
        """Take a transfer of so many bytes, and what it took without coding and decoding."""
        self._count += 1
        key = min(size.bit_length(), SIZES_MAX)
        seen = self._sizes.get(key)
        if seen is None:
            seen = self._sizes[key] = _Size()
        seen.times.append(max(seconds, 1e-9))
        seen.bytes, seen.at = size, self._count

    @property
    def way_s(self) -> float:
        """Seconds that a transfer takes without any bytes, there and back.

        0 while it cannot be told from the time of the bytes.
        """
        self._fit()
        return self._way_s

    @property
    def rate(self) -> float:
        """Bytes per second; 0 before the first transfer."""
        self._fit()
        return self._rate

    def _fit(self) -> None:
        if self._fitted == self._count:
            return
        self._fitted = self._count
        old = self._count - FIT_TRANSFERS
        for key in [key for key, seen in self._sizes.items() if seen.at <= old]:
            del self._sizes[key]
        sizes = [self._sizes[key] for key in sorted(self._sizes)]
        short, long = sizes[0], sizes[-1]
        short_s, long_s = min(short.times), min(long.times)
        if long.bytes >= APART * short.bytes and long_s > short_s:
            self._rate = (long.bytes - short.bytes) / (long_s - short_s)
            self._way_s = max(short_s - short.bytes / self._rate, 0.0)
            return
        # One size: the way is what it was, but less than all of the time.
        self._way_s = min(self._way_s, 0.9 * long_s)
        self._rate = max(long.bytes, 1) / (long_s - self._way_s)

    def seconds(self, size: float) -> float:
        """Return what a transfer of so many bytes takes; 0 if nothing is known."""
        return self.way_s + size / self.rate if self.rate else 0.0

    def differs(self, way_s: float, rate: float, factor: float) -> bool:
        """Whether the link is faster or slower by this factor than it was."""
        fast, slow = max(rate, self.rate), min(rate, self.rate)
        far, near = max(way_s, self.way_s), min(way_s, self.way_s)
        return fast > factor * slow or far > factor * near + 1e-4
