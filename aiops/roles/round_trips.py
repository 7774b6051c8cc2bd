"""RoundTrips: how long an answer of a server may take, from how long answers took.

The estimate is TCP's (V. Jacobson, "Congestion Avoidance and Control", 1988; RFC 6298), with what
is under way added at the measured bandwidth: a window of eight megabytes takes its time on a slow
link. What the time is used for is `patience.py`'s business.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FIRST_S", "RTO_S_MAX", "RTO_S_MIN", "RoundTrips"]

RTO_S_MIN: Final = 0.2
"""Shorter silences are the scheduling of a busy machine."""

RTO_S_MAX: Final = 30.0
"""Longer silences are never excused by the size of what is under way."""

FIRST_S: Final = 1.0
"""In place of a measured time, as in RFC 6298."""

BANDWIDTH_FIRST: Final = 1e6
"""Bytes per second in place of a measured bandwidth: 8 Mbit/s, the uplink of a home."""

BULK_BYTES: Final = 64 * 1024
"""From this size on an answer says more about the bandwidth than about the way."""

SAMPLE_S: Final = 0.01
"""Not more often than this: the estimate lasts for hundreds of round trips, and each of its steps
costs what a tenth of a small request does."""


class RoundTrips:
    """Smoothed time of answers, its variation, and the bandwidth, of one connection.

    Attributes
    ----------
    due_at
        When the next sample is wanted; until then `took` need not be called.
    bandwidth
        Bytes per second, the recent best. Where little is sent at a time this is far too low; then
        little is under way, too.
    """

    __slots__ = ("_mean_s", "_variation_s", "bandwidth", "due_at")

    def __init__(self) -> None:
        self.due_at = 0.0
        self.bandwidth = BANDWIDTH_FIRST
        self._mean_s = -1.0
        self._variation_s = 0.0

    def took(self, trip_s: float, size: int, now: float) -> None:
        """Take the time from sending a request of `size` bytes, values included, to its answer.

        Only of requests that were sent once and that nothing but the network and the server's
        work has kept (P. Karn, C. Partridge, "Improving Round-Trip Time Estimates", 1987).
        """
        self.due_at = now + SAMPLE_S
        if size >= BULK_BYTES:
            measured = size / max(trip_s, 1e-6)
            gain = 1.0 if measured > self.bandwidth else 0.125
            self.bandwidth += (measured - self.bandwidth) * gain
        elif self._mean_s < 0:
            self._mean_s, self._variation_s = trip_s, trip_s / 2
        else:
            off_s = trip_s - self._mean_s
            self._variation_s += (abs(off_s) - self._variation_s) / 4
            self._mean_s += off_s / 8

    def rto_s(self, size: int) -> float:
        """Return how long to wait for a sign of life while `size` bytes are under way.

        SRTT + 4 RTTVAR + size / bandwidth, within `RTO_S_MIN` and `RTO_S_MAX`.
        """
        way_s = FIRST_S if self._mean_s < 0 else self._mean_s + 4 * self._variation_s
        return min(max(way_s + size / self.bandwidth, RTO_S_MIN), RTO_S_MAX)
