"""The cost gate behind `compression="auto"`: which codec takes the least time on this link, now.

For each candidate the time of a push is that of encoding, of the payload on the link, and of
decoding. Encoding and decoding are measured once at the start and again while they are in use; the
link is measured by every push. Sending values as they are is always a candidate, and the first
pushes go that way. Nothing here reads a clock: times are told.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

__all__ = ["CANDIDATES", "DENSE", "Gate", "Price"]

DENSE: Final = "dense"

CANDIDATES: Final = (DENSE, "bf16", "int8", "one-bit", "top-k:0.01:sampled=true:compact=true")
"""From the most faithful to the shortest; each with error feedback over one residual."""

HYSTERESIS: Final = 0.9
"""Another codec must take less than this part of the time."""

UNTRIED: Final = 0.75
"""And less than this part if it has only been reckoned and not been measured on the link."""

REVIEWS: Final = (4, 8)
REVIEW_PUSHES: Final = 16
"""After so many pushes the choice is looked at, and then each time after as many."""

STALE_PUSHES: Final = 64
"""After so many pushes what was measured of a codec that is not in use is forgotten."""

FIT_PUSHES: Final = 32
"""Pushes of two sizes within so many pushes tell the way there and back from the bytes."""

RECENT: Final = 8
"""Pushes of which the quickest counts: the others had to wait for something else."""

CALL_S: Final = 100e-6
"""What a codec costs by itself, whatever the size; for a codec that was not in use yet."""


@dataclass(slots=True)
class Price:
    """What a codec costs: seconds for each element, and bytes that each becomes."""

    encode_s: float
    decode_s: float
    bytes: float


class _Seen:
    """The recent pushes of a codec: what the quickest took, in all and on the link."""

    __slots__ = ("_links", "_totals", "at", "bytes")

    def __init__(self) -> None:
        self._totals: deque[float] = deque(maxlen=RECENT)
        self._links: deque[float] = deque(maxlen=RECENT)
        self.at = 0  # number of the last push
        self.bytes = 0  # of its payload

    def add(self, total_s: float, link_s: float, size: int, at: int) -> None:
        """Take a push."""
        self._totals.append(total_s)
        self._links.append(link_s)
        self.at, self.bytes = at, size

    @property
    def total_s(self) -> float:
        """The quickest of the recent pushes."""
        return min(self._totals)

    @property
    def link_s(self) -> float:
        """The quickest on the link."""
        return min(self._links)


class Gate:
    """Chooses the codec of one table's pushes.

    Parameters
    ----------
    prices
        By candidate; `dense` must be one.

    Attributes
    ----------
    chosen
        The candidate in use.
    """

    def __init__(self, prices: dict[str, Price]) -> None:
        assert DENSE in prices
        self._prices = prices
        self._seen: dict[str, _Seen] = {}
        self._pushes = 0
        self._costs: dict[str, float] = {}  # at the last review
        self._reviewed = (0, 0.0)  # then: elements, bytes per second
        self._way_s = 0.0  # there and back, without any bytes
        self.chosen = DENSE

    def choose(self, elements: int) -> str:
        """Return the codec for the next push, of so many elements."""
        self._pushes += 1
        if self._pushes % REVIEW_PUSHES == 0 or self._pushes in REVIEWS:
            self._review(elements)
        return self.chosen

    def _review(self, elements: int) -> None:
        for name in [name for name, seen in self._seen.items() if self._is_stale(name, seen)]:
            del self._seen[name]
        rate = self._measure_link()
        if rate:
            costs = {name: self._cost(name, elements, rate) for name in self._prices}
            handicapped = {
                name: cost / (HYSTERESIS if name in self._seen or name == DENSE else UNTRIED)
                for name, cost in costs.items()
            }
            handicapped[self.chosen] = costs[self.chosen]
            self.chosen = min(handicapped, key=lambda name: handicapped[name])
            self._costs, self._reviewed = costs, (elements, rate)

    @property
    def reason(self) -> str:
        """Why the chosen one is chosen, in words and numbers."""
        if not self._costs:
            return "the link has not been measured yet"
        elements, rate = self._reviewed
        shown = ", ".join(f"{name} {cost * 1e3:.3g} ms" for name, cost in self._costs.items())
        return (
            f"{elements} values at {8 * rate / 1e6:.3g} Mbit/s: {shown}; "
            f"{self.chosen} stays until another takes {1 - HYSTERESIS:.0%} less"
        )

    def _is_stale(self, name: str, seen: _Seen) -> bool:
        return name != self.chosen and self._pushes - seen.at > STALE_PUSHES

    def _measure_link(self) -> float:
        """Return the bytes per second that the link carries; 0 if it was not seen.

        Two sizes of late tell the way there and back as well; it is remembered for the time when
        pushes of one size alone are seen.
        """
        late = [seen for seen in self._seen.values() if self._pushes - seen.at <= FIT_PUSHES]
        if not late:
            return 0.0
        short = min(late, key=lambda seen: seen.bytes)
        long = max(late, key=lambda seen: seen.bytes)
        more_s = long.link_s - short.link_s
        if long.bytes > 2 * short.bytes and more_s > 0:
            rate = (long.bytes - short.bytes) / more_s
            self._way_s = max(short.link_s - short.bytes / rate, 0.0)
            return rate
        newest = max(late, key=lambda seen: seen.at)
        self._way_s = min(self._way_s, newest.link_s)
        return newest.bytes / max(newest.link_s - self._way_s, newest.link_s / 10)

    def _cost(self, name: str, elements: int, rate: float) -> float:
        seen = self._seen.get(name)
        if seen is not None:
            return seen.total_s
        price = self._prices[name]
        call_s = 0.0 if name == DENSE else CALL_S
        each_s = price.encode_s + price.decode_s + price.bytes / rate
        return self._way_s + call_s + elements * each_s

    def sent(
        self, name: str, elements: int, payload_bytes: int, encode_s: float, wire_s: float
    ) -> None:
        """Take note of what a push took: encoding, and from sending to the last answer.

        The latter has the server's decoding in it.
        """
        if self._pushes <= 1:
            return  # the first push warms up memory and connection
        decode_s = elements * self._prices[name].decode_s
        link_s = max(wire_s - decode_s, wire_s / 4, 1e-9)
        seen = self._seen.setdefault(name, _Seen())
        seen.add(encode_s + wire_s, link_s, payload_bytes, self._pushes)
