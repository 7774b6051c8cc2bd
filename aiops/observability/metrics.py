"""Latency histograms and byte counters: what a node counts about itself.

Here live two pure containers that the data path can afford to touch for every request. Nothing here
reads a clock, logs or knows a frame: the shell measures and records, the scheduler merges what the
nodes report.

A histogram has buckets that grow with the value, sixteen to each doubling, so the reported
quantile is within about 3 % of the recorded one, from 16 ns to 1000 s. The bucket comes from the
bit length of the nanoseconds, so recording needs no logarithm and no search. (The layout is that of
HdrHistogram.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import compress, count
from math import ceil
from typing import Final, Self

SUB_BUCKET_BITS: Final = 4
"""Each doubling has 2**4 buckets: 6.25 % wide at most, so a midpoint errs by at most 3.2 %."""

SECONDS_MAX: Final = 1000.0
"""Longer is counted in the last bucket: every wait of the library ends before that (600 s)."""

_SUB_BUCKETS: Final = 1 << SUB_BUCKET_BITS
_NANOSECONDS_MAX: Final = int(SECONDS_MAX * 1e9)


def _bucket(nanoseconds: int) -> int:
    """Tell which bucket holds a duration; below 16 ns every nanosecond has its own."""
    shift = max(nanoseconds.bit_length() - SUB_BUCKET_BITS - 1, 0)
    return (shift << SUB_BUCKET_BITS) + (nanoseconds >> shift)


BUCKETS: Final = _bucket(_NANOSECONDS_MAX) + 1


def bucket_bounds_s(bucket: int) -> tuple[float, float]:
    """Return the half-open span of durations, in seconds, that a bucket counts.

    Parameters
    ----------
    bucket
        Number of the bucket, from 0 to ``BUCKETS - 1``.

    Returns
    -------
    bounds : tuple of float
        Lower bound (inside) and upper bound (outside).
    """
    shift = max((bucket >> SUB_BUCKET_BITS) - 1, 0)
    low = bucket - (shift << SUB_BUCKET_BITS)
    return (low << shift) * 1e-9, ((low + 1) << shift) * 1e-9


class LatencyHistogram:
    """Count durations in buckets whose width grows with the duration.

    All state is integers, so merging two histograms gives exactly what recording everything in one
    would have given, in any order.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS

    def record(self, seconds: float) -> None:
        """Count one duration.

        Parameters
        ----------
        seconds
            The duration; more than ``SECONDS_MAX`` is counted in the last bucket.

        Raises
        ------
        ValueError
            The duration is negative or not a number: the caller mixed two clocks.
        """
        # A call costs some 0.2 us. The bucket is computed in place (not by _bucket): the call and
        # the max() would double that.
        if not 0.0 <= seconds < SECONDS_MAX:
            if not seconds >= SECONDS_MAX:
                raise ValueError(f"a duration cannot be {seconds} s")
            self._counts[-1] += 1
            return
        nanoseconds = int(seconds * 1e9)
        shift = nanoseconds.bit_length() - 5
        if shift > 0:
            self._counts[(shift << 4) + (nanoseconds >> shift)] += 1
        else:
            self._counts[nanoseconds] += 1

    @property
    def count(self) -> int:
        """How many durations were recorded."""
        return sum(self._counts)

    def quantile(self, q: float) -> float | None:
        """Return a duration that the fraction `q` of the recorded ones does not exceed.

        Parameters
        ----------
        q
            Fraction from 0 to 1; 0.5 is the median.

        Returns
        -------
        seconds : float or None
            Middle of the bucket that holds the sample of rank ``ceil(q * count)``, so within 3.2 %
            (or 1 ns) of it; `None` when nothing was recorded.
        """
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
        rank = max(ceil(q * self.count), 1)
        for bucket, counted in self._filled():
            rank -= counted
            if rank <= 0:
                low_s, high_s = bucket_bounds_s(bucket)
                return (low_s + high_s) / 2
        return None

    def merge(self, other: LatencyHistogram) -> None:
        """Add everything that another histogram counted; the other one stays as it is."""
        for bucket, counted in other._filled():
            self._counts[bucket] += counted

    def to_counts(self) -> dict[int, int]:
        """Return the buckets that are not empty, as bucket number to count, for the wire."""
        return dict(self._filled())

    @classmethod
    def from_counts(cls, counts: Mapping[int, int]) -> Self:
        """Rebuild a histogram from `to_counts`.

        Parameters
        ----------
        counts
            Bucket number to count. It comes from a peer, so it is checked.

        Raises
        ------
        ValueError
            A bucket does not exist or a count is negative.
        """
        histogram = cls()
        for bucket, counted in counts.items():
            if not 0 <= bucket < BUCKETS:
                raise ValueError(f"latency bucket {bucket} is not in 0..{BUCKETS - 1}")
            if counted < 0:
                raise ValueError(f"latency bucket {bucket} has the count {counted}")
            histogram._counts[bucket] = counted
        return histogram

    def summary(self) -> dict[str, int | float | None]:
        """Return ``count``, ``p50_s`` and ``p99_s``: what status and the closing report show."""
        return {"count": self.count, "p50_s": self.quantile(0.5), "p99_s": self.quantile(0.99)}

    def _filled(self) -> Iterator[tuple[int, int]]:
        return zip(compress(count(), self._counts), filter(None, self._counts), strict=True)

    def __eq__(self, other: object) -> bool:
        """Two histograms are equal when all their buckets are."""
        if not isinstance(other, LatencyHistogram):
            return NotImplemented
        return self._counts == other._counts

    __hash__ = None  # type: ignore[assignment]  # it changes, so it is no key

    def __repr__(self) -> str:
        """Name the class and how much was counted."""
        return f"<LatencyHistogram count={self.count}>"


class ByteCounters:
    """Bytes a node sent and received, by cause.

    The fields are plain integers that their owner increments in place
    (``counters.push_sent += n``): an attribute costs a tenth of a method call. They count whole
    frames, header included. A frame that is sent again counts under ``retransmit`` only, so
    ``push`` and ``pull`` are what the job asked for and ``retransmit`` is what the network cost.
    """

    __slots__ = (
        "control_received",
        "control_sent",
        "pull_received",
        "pull_sent",
        "push_received",
        "push_sent",
        "retransmit_received",
        "retransmit_sent",
    )

    def __init__(self) -> None:
        self.push_sent = 0
        self.push_received = 0
        self.pull_sent = 0
        self.pull_received = 0
        self.control_sent = 0
        self.control_received = 0
        self.retransmit_sent = 0
        self.retransmit_received = 0

    def snapshot(self) -> dict[str, int]:
        """Return the counters by name; later increments do not change it."""
        return {name: getattr(self, name) for name in self.__slots__}

    def add(self, snapshot: Mapping[str, int]) -> None:
        """Add another node's `snapshot`.

        Parameters
        ----------
        snapshot
            Name to bytes. It comes from a peer: names that this version does not count are left
            out, so a newer node may report more.

        Raises
        ------
        ValueError
            A count is negative.
        """
        for name in self.__slots__:
            counted = snapshot.get(name, 0)
            if counted < 0:
                raise ValueError(f"byte counter {name} is {counted}")
            setattr(self, name, getattr(self, name) + counted)

    def __repr__(self) -> str:
        """Show the counters that are not zero."""
        shown = " ".join(f"{name}={value}" for name, value in self.snapshot().items() if value)
        return f"<ByteCounters {shown}>"
