"""The cost gate behind `compression="auto"`: which codec takes the least time on this link, now.

For each candidate the time of a push is reckoned: encoding, the way there and back, the payload on
the link, decoding. Codecs are timed on this machine, the link by the pushes themselves. What is
reckoned only proposes: a candidate that looks quicker is tried turn by turn with the codec in use,
so that a busy machine is equally busy for both, and is taken if it was quicker indeed. Sending
values as they are is always a candidate, and the first pushes go that way. Trials are paid from a
share of the time of all pushes. Nothing here reads a clock: times are told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from aiops.compression.link import Link

__all__ = ["CANDIDATES", "DENSE", "HYSTERESIS", "PLAIN_S", "Gate", "Price", "quickest"]

DENSE: Final = "dense"

CANDIDATES: Final = (DENSE, "bf16", "int8", "one-bit", "top-k:0.01:sampled=true:compact=true")
"""From the most faithful to the shortest; each with error feedback over one residual."""

HYSTERESIS: Final = 1.1
"""A codec is left for a shorter one that makes a push take this many times less."""

ALIKE: Final = 1.05
"""Of candidates that take so little more than the quickest the most faithful is proposed."""

SHARE: Final = 0.05
"""What trials have cost more than the codec in use is at most this part of the time of all pushes,
or one trial of each candidate."""

TURNS: Final = 4
"""Pushes of each of the two in a trial; the quickest and the median both count."""

PLAIN: Final = 2.0
PLAIN_S: Final = 0.1
"""In a trial, one that is so many times quicker needs no further turns, if pushes take so long that
no busy machine explains it."""

REVIEWS: Final = (2, 4, 8)
REVIEW_PUSHES: Final = 16
"""After so many measured pushes candidates are compared, and then each time after as many."""

CURIOUS: Final = 1.25
"""One that was never in use is proposed even if it is reckoned to take so many times as long:
prices are those of another vector, and of a quiet moment."""

REST_PUSHES: Final = 64
REST_PUSHES_MAX: Final = 1024
"""A candidate that has lost is not proposed for so many pushes; twice as many after each time."""

PROBE_PUSHES: Final = 128
"""After so many pushes without a dense one it is worth a trial whether the link is faster now."""

CHANGED: Final = 1.5
"""A link that is so many times faster or slower than at a trial makes its verdict void."""

RESTED_S: Final = 1e-3
RESTED_PUSHES: Final = 7
"""After a dense push of less than this so many are not measured, which costs a tenth of it."""

RECENT: Final = 8
"""Pushes of which the quickest counts: the others had to wait for something else."""

WARM_S: Final = 0.02
"""The first push warms up memory and connection; above this time that makes no difference."""


@dataclass(slots=True)
class Price:
    """What a codec costs: seconds and bytes for each element, and seconds for each call."""

    encode_s: float
    decode_s: float
    bytes: float
    call_s: float = 0.0

    def time(self, elements: int, link: Link) -> float:
        """Return what a vector takes, there and back."""
        busy_s = self.call_s + elements * (self.encode_s + self.decode_s)
        return busy_s + link.seconds(elements * self.bytes)


def quickest(costs: Mapping[str, float]) -> str:
    """Return the candidate with the least cost; the first of those that are alike."""
    limit = ALIKE * min(costs.values())
    return next(name for name, cost in costs.items() if cost <= limit)


@dataclass(slots=True)
class _Lost:
    """A candidate that a trial has not shown to be better, and on which link that was."""

    until: int
    rest: int
    way_s: float
    rate: float


class _Trial:
    """Two codecs turn by turn, the challenger first."""

    def __init__(self, challenger: str) -> None:
        self.challenger = challenger
        self.turns = 0
        self.times: dict[str, list[float]] = {}

    def next(self, incumbent: str) -> str:
        """Return whose turn it is."""
        self.turns += 1
        return self.challenger if self.turns % 2 else incumbent


class _Choice:
    """The choice for vectors of about one length."""

    def __init__(self, prices: Mapping[str, Price], link: Link) -> None:
        self._prices = prices
        self._order = {name: place for place, name in enumerate(prices)}
        self._link = link
        self._recent: deque[float] = deque(maxlen=RECENT)  # of the chosen one
        self._encodings: dict[str, float] = {}  # the quickest, of the last ones in use
        self._measured = 0
        self._review_at = REVIEWS[0]
        self._dense_at = 0
        self._dense_s = 0.0
        self._lost: dict[str, _Lost] = {}
        self._trial: _Trial | None = None
        self._spent_s = 0.0
        self._extra_s = 0.0
        self._costs: dict[str, float] = {}  # at the last review
        self.unmeasured = 0  # of the next pushes
        self.chosen = DENSE

    @property
    def extra_share(self) -> float:
        """Which part of the time of all pushes went to what trials took more."""
        return self._extra_s / self._spent_s if self._spent_s else 0.0

    def choose(self, elements: int) -> str:
        """Return the codec of the next push."""
        if self._trial is None and self._measured >= self._review_at:
            self._review(elements)
        return self.chosen if self._trial is None else self._trial.next(self.chosen)

    def took(self, name: str, elements: int, encode_s: float, total_s: float) -> None:
        """Take what a push took."""
        if not self._measured and not self._spent_s and total_s < WARM_S:
            self._spent_s = total_s
            return
        self._measured += 1
        self._spent_s += total_s
        known = self._encodings.get(name)
        self._encodings[name] = encode_s if known is None else min(1.1 * known, encode_s)
        if name == DENSE:
            self._dense_at, self._dense_s = self._measured, total_s
        if name == self.chosen:
            self._recent.append(total_s)
            if self._measured == 1 and total_s >= WARM_S:
                self._review_at = 1
        trial = self._trial
        settled = trial is None and self._measured >= REVIEWS[-1]
        if settled and self.chosen == DENSE and total_s < RESTED_S:
            self.unmeasured = RESTED_PUSHES
        if trial is None or name not in (self.chosen, trial.challenger):
            return
        trial.times.setdefault(name, []).append(total_s)
        if name == trial.challenger:
            self._extra_s += max(total_s - min(self._recent), 0.0)
        self._judge(trial)

    def _review(self, elements: int) -> None:
        """Propose a candidate that is reckoned to be better."""
        later = [at for at in REVIEWS if at > self._measured]
        self._review_at = later[0] if later else self._measured + REVIEW_PUSHES
        if not self._recent or not self._link.rate:
            return
        costs = {name: self._cost(name, elements) for name in self._prices}
        costs[self.chosen] = now_s = min(self._recent)
        self._costs = costs
        open_ones = {
            name: cost
            for name, cost in costs.items()
            if name != self.chosen and not self._rests(name)
            if cost < now_s * (1.0 if name in self._encodings else CURIOUS)
        }
        if open_ones and self._affordable(0.0):
            self._trial = _Trial(quickest(open_ones))
            return
        probed = self._measured - self._dense_at < PROBE_PUSHES
        if not probed and self._affordable(max(self._dense_s - now_s, 0.0)):
            self._trial = _Trial(DENSE)

    def _cost(self, name: str, elements: int) -> float:
        price = self._prices[name]
        reckoned = price.time(elements, self._link)
        encode_s = self._encodings.get(name)
        if encode_s is None:
            return reckoned
        return reckoned - price.call_s - elements * price.encode_s + encode_s

    def _affordable(self, extra_s: float) -> bool:
        first = not extra_s and not self._lost
        return first or self._extra_s + extra_s <= SHARE * self._spent_s

    def _rests(self, name: str) -> bool:
        lost = self._lost.get(name)
        if lost is None:
            return False
        if self._link.differs(lost.way_s, lost.rate, CHANGED):
            return self._measured < lost.until - lost.rest + REVIEW_PUSHES
        return self._measured < lost.until

    def _judge(self, trial: _Trial) -> None:
        """End a trial whose result is plain."""
        theirs = trial.times.get(trial.challenger, [])
        ours = trial.times.get(self.chosen, [])
        if not theirs:
            return
        best_s = min(theirs)
        known_s = min(self._recent)
        faithful = self._order[trial.challenger] < self._order[self.chosen]
        needed = 1.0 if faithful else HYSTERESIS
        if PLAIN * best_s <= known_s and known_s >= PLAIN_S:
            self._win(trial)
        elif len(theirs) > 1 or best_s >= WARM_S:  # the first may be slow for once
            if best_s >= PLAIN * known_s:
                self._lose(trial)
            elif min(len(theirs), len(ours)) >= TURNS:
                quicker = needed * best_s <= min(ours)
                if quicker and needed * median(theirs) <= median(ours):
                    self._win(trial)
                else:
                    self._lose(trial)

    def _win(self, trial: _Trial) -> None:
        self._trial = None
        self._recent = deque(trial.times[trial.challenger], maxlen=RECENT)
        self._lost.pop(trial.challenger, None)
        self.chosen = trial.challenger
        self._costs[self.chosen] = min(self._recent)
        self._review_at = self._measured + 1  # perhaps another one is better still

    def _lose(self, trial: _Trial) -> None:
        self._trial = None
        name, link = trial.challenger, self._link
        before = self._lost.get(name)
        rest = REST_PUSHES
        if before is not None and not link.differs(before.way_s, before.rate, CHANGED):
            rest = min(2 * before.rest, REST_PUSHES_MAX)
        self._lost[name] = _Lost(self._measured + rest, rest, link.way_s, link.rate)
        self._costs[name] = min(trial.times[name])
        self._review_at = self._measured + 1

    @property
    def reason(self) -> str:
        """Why the chosen one is chosen."""
        if not self._costs:
            return "the link has not been measured yet"
        shown = ", ".join(f"{name} {1e3 * cost:.3g} ms" for name, cost in self._costs.items())
        return (
            f"{shown}; {self.chosen} stays until another has taken {1 - 1 / HYSTERESIS:.0%} less "
            f"in a trial, or a more faithful one no more"
        )


class Gate:
    """Chooses the codec of one table's pushes.

    Vectors of different lengths (rows of the table, or all of it) have each a choice of their own.

    Parameters
    ----------
    prices
        By candidate, from the most faithful to the shortest; `dense` must be one.
    link
        What all pushes of a worker go over; one of its own if not given.
    """

    def __init__(self, prices: dict[str, Price], link: Link | None = None) -> None:
        assert DENSE in prices
        self._prices = prices
        self.link = link or Link()
        self._choices: dict[int, _Choice] = {}
        self._last = 0

    def _choice(self, elements: int) -> _Choice:
        length = elements.bit_length()
        found = self._choices.get(length)
        if found is None:
            found = self._choices[length] = _Choice(self._prices, self.link)
        return found

    def choose(self, elements: int) -> str:
        """Return the codec for the next push, of so many elements."""
        self._last = elements
        return self._choice(elements).choose(elements)

    def passes(self, elements: int) -> bool:
        """Whether the next push goes dense, and need not be told of."""
        choice = self._choices.get(elements.bit_length())
        if choice is None or not choice.unmeasured:
            return False
        choice.unmeasured -= 1
        return True

    @property
    def chosen(self) -> str:
        """The candidate in use, for vectors as long as the last one; trials aside."""
        return self._choice(self._last).chosen

    @property
    def extra_share(self) -> float:
        """Which part of the time of pushes as long as the last one went to trials."""
        return self._choice(self._last).extra_share

    @property
    def reason(self) -> str:
        """Why the chosen one is chosen, in words and numbers."""
        reason = self._choice(self._last).reason
        if not self.link.rate:
            return reason
        return (
            f"{self._last} values at {8 * self.link.rate / 1e6:.3g} Mbit/s and "
            f"{1e3 * self.link.way_s:.3g} ms there and back: {reason}"
        )

    def sent(
        self, name: str, elements: int, payload_bytes: int, encode_s: float, wire_s: float
    ) -> None:
        """Take note of what a push took: encoding, and from sending to the last answer.

        The latter has the server's decoding in it. A push that had to wait by rule of consistency
        is not told; one that has waited for another one is told from where that one has ended.
        """
        decode_s = elements * self._prices[name].decode_s
        self.link.add(payload_bytes, max(wire_s - decode_s, wire_s / 4))
        self._choice(elements).took(name, elements, encode_s, encode_s + wire_s)
