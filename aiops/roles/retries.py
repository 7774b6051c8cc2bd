"""Retries: when a lost connection is opened again, and so what went over it sent again.

Two rules, and the later of the two holds. Connections that end before anything was answered over
them are tried again after pauses that double, each drawn from its whole length ("full jitter": M.
Brooker, "Exponential Backoff And Jitter", AWS 2015), so that many workers do not come back in
step. And each reconnection is paid from a budget that time and answered requests fill, so that a
path that breaks all the time costs a bounded part of what it carries. Opening itself is
`aiops.runtime.dialling`; what is sent again is `requests.py`.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Retries"]

PAUSE_S: Final = 0.01
PAUSE_S_MAX: Final = 5.0
"""The longest pause that may be drawn: at first, and after it has doubled again and again."""

BURST: Final = 20.0
"""Reconnections that are free at first, or after a quiet time: all that a bad minute needs."""

PER_S: Final = 1.0
"""Reconnections that each second adds to the budget."""

PER_ANSWER: Final = 0.1
"""What each answered request adds: of ten requests one may cost a new connection."""


class Retries:
    """The budget and the pauses of one connection that is opened again and again.

    Attributes
    ----------
    reconnections
        How many there have been.
    """

    __slots__ = ("_answers", "_at", "_fruitless", "_left", "reconnections")

    def __init__(self, now: float) -> None:
        self.reconnections = 0
        self._left = BURST
        self._at = now
        self._answers = 0
        self._fruitless = 0

    def pause_s(self, now: float, answers: int, chance: float) -> float:
        """Return how long to wait before the connection is opened again.

        Parameters
        ----------
        answers
            Answered requests since the beginning, over all connections.
        chance
            From 0 to 1, drawn anew for each call.
        """
        new = answers - self._answers
        self._fruitless = 0 if new else self._fruitless + 1
        earned = PER_S * (now - self._at) + PER_ANSWER * new
        self._left = min(BURST, self._left + earned) - 1.0
        self._at = now
        self._answers = answers
        self.reconnections += 1
        debt_s = max(-self._left, 0.0) / PER_S
        if not self._fruitless:
            return debt_s
        doubled = PAUSE_S * 2.0 ** min(self._fruitless, 16)
        return max(debt_s, chance * min(doubled, PAUSE_S_MAX))
