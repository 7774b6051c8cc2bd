"""The cost gate of pulls: how a worker would like the values of one table to come.

A server publishes one replica for all workers, so a worker can only wish: it reckons what each
candidate would take on its own way back, and tells the server with each pull. The server takes
the shortest that anybody has wished, because all wait for whoever waits longest. A pull that waits
for a round says nothing about the link; what counts is how long values took from their first byte
to their last. Nothing here reads a clock: times are told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Final

from aiops.compression.gate import DENSE, HYSTERESIS, PLAIN_S, Price, quickest
from aiops.compression.link import Link
from aiops.compression.pulls import PULL_CANDIDATES

__all__ = ["Arrivals", "PullGate"]

REVIEW_PULLS: Final = 8
PROBE_PULLS: Final = 128
SHARE: Final = 0.05
"""After so many pulls without values as they are a few may come so, to measure the link, if that
costs at most this part of the time of those pulls."""

TOLD: Final = 5
"""So many answers tell how fast values come: some may have lain ready, or met a busy machine."""

LONG_BYTES: Final = 64 * 1024
"""From here on an answer is told of when it begins."""

RECENT: Final = 9
"""Answers of which the middle one counts: some have lain ready while the worker computed."""


Answer = tuple[int, int]
"""Rank of the server, number of the request."""


class Arrivals:
    """How fast values come: bytes per second, of the answers that were long enough to tell.

    Attributes
    ----------
    count
        Answers that were measured.
    """

    def __init__(self) -> None:
        self.count = 0
        self._begun: dict[Answer, tuple[int, float]] = {}  # bytes, and when they began
        self._rates: deque[float] = deque(maxlen=RECENT)

    def begin(self, answer: Answer, size: int, now: float) -> None:
        """Note that the first bytes of an answer are here, and that so many will come."""
        self._begun[answer] = (size, now)

    def end(self, answer: Answer, now: float) -> None:
        """Note that all bytes of an answer are here."""
        begun = self._begun.pop(answer, None)
        if begun is not None:
            size, at = begun
            self._rates.append(size / max(now - at, 1e-6))
            self.count += 1

    def lost(self, server: int) -> None:
        """Forget what had begun at a server: the connection is gone."""
        self._begun = {
            answer: begun for answer, begun in self._begun.items() if answer[0] != server
        }

    @property
    def rate(self) -> float:
        """Bytes per second; 0 before a few answers have told."""
        return median(self._rates) if len(self._rates) >= TOLD else 0.0


class PullGate:
    """Chooses how one worker would like the values of one table to come.

    Parameters
    ----------
    elements, servers
        Of the table; and from how many servers its values come at a time.
    prices
        By candidate, as `PULL_CANDIDATES`.
    arrivals
        Of all tables of the worker.
    uplink
        What pushes have found out, for values so few that their arrival takes no time.

    Attributes
    ----------
    chosen
        The candidate that is wished for.
    """

    def __init__(
        self,
        elements: int,
        servers: int,
        prices: Mapping[str, Price],
        arrivals: Arrivals,
        uplink: Link,
    ) -> None:
        assert tuple(prices) == PULL_CANDIDATES
        self._elements = elements
        self._servers = servers
        self._prices = prices
        self._arrivals = arrivals
        self._uplink = uplink
        self._pulls = 0
        self._plain_at = 0  # number of the last pull of values as they are
        self._probes = 0  # pulls as they are that are still to come
        self._costs: dict[str, float] = {}
        self._rate = 0.0
        self.chosen = DENSE

    @property
    def place(self) -> int:
        """Of the chosen one among the candidates, as it travels."""
        return PULL_CANDIDATES.index(self.chosen)

    def choose(self) -> bool:
        """Count a pull; whether it shall bring values as they are."""
        self._pulls += 1
        if self._pulls % REVIEW_PULLS == 2 or not self._costs:
            self._review()
        if self.chosen != DENSE and not self._probes and self._is_time_to_probe():
            self._probes = TOLD
        if self.chosen == DENSE or self._probes:
            self._probes = max(self._probes - 1, 0)
            self._plain_at = self._pulls
            return True
        return False

    def _is_time_to_probe(self) -> bool:
        quiet = self._pulls - self._plain_at
        extra_s = TOLD * (self._costs[DENSE] - self._costs[self.chosen])
        return quiet >= PROBE_PULLS and extra_s <= SHARE * quiet * self._costs[self.chosen]

    def _review(self) -> None:
        rate = self._servers * self._arrivals.rate or self._as_pushed
        if not rate:
            return
        self._rate = rate
        count, way_s = self._elements, self._uplink.way_s
        costs = self._costs = {
            name: way_s
            + price.call_s
            + count * (price.encode_s + price.decode_s + price.bytes / rate)
            for name, price in self._prices.items()
        }
        best = quickest(costs)
        faithful = PULL_CANDIDATES.index(best) < self.place
        if costs[best] * (1.0 if faithful else HYSTERESIS) <= costs[self.chosen]:
            self.chosen = best

    @property
    def _as_pushed(self) -> float:
        """The rate of pushes, where that of answers cannot be told, or where it is plainly slow."""
        size, rate = 4 * self._elements, self._uplink.rate
        short = size < LONG_BYTES * self._servers
        return rate if rate and (short or size / rate >= PLAIN_S) else 0.0

    @property
    def reason(self) -> str:
        """Why the chosen one is chosen, in words and numbers."""
        if not self._costs:
            return "the link has not been measured yet"
        shown = ", ".join(f"{name} {1e3 * cost:.3g} ms" for name, cost in self._costs.items())
        return (
            f"{self._elements} values at {8 * self._rate / 1e6:.3g} Mbit/s: {shown}; "
            f"{self.chosen} stays until another takes {1 - 1 / HYSTERESIS:.0%} less"
        )
