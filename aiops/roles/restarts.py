"""Names that are lost again and again: how often is too often, and for how long they stay out.

A worker that dies every few seconds costs everybody a verdict, a round and a new membership each
time. So a name that has been lost more than `LOSSES_MAX` times within `WINDOW_S` is refused for a
while, longer each time, up to `REFUSED_MAX_S`. Nobody stays out for good: a name that has behaved
for `FORGIVEN_S` begins afresh.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

__all__ = ["LOSSES_MAX", "WINDOW_S", "Restarts"]

LOSSES_MAX: Final = 5
WINDOW_S: Final = 60.0
"""A worker that is lost so often in so short a time does not fail by bad luck."""

REFUSED_FIRST_S: Final = 10.0
REFUSED_MAX_S: Final = 300.0
"""How long a name is refused then; twice as long each further time."""

FORGIVEN_S: Final = 600.0
"""After so long without a loss nothing is held against a name any more."""


class _Record(msgspec.Struct):
    losses: deque[float]
    times: int = 0  # it was refused
    until: float = 0.0


class Restarts:
    """The losses of all names of a job. One record for each name that was ever lost."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def lost(self, name: str, now: float) -> None:
        """Note that the worker of this name was lost."""
        record = self._records.get(name)
        if record is None or now - record.losses[-1] >= FORGIVEN_S:
            record = self._records[name] = _Record(deque(maxlen=LOSSES_MAX + 1))
        record.losses.append(now)
        if len(record.losses) > LOSSES_MAX and now - record.losses[0] <= WINDOW_S:
            record.until = now + min(REFUSED_FIRST_S * 2**record.times, REFUSED_MAX_S)
            record.times += 1

    def refused_for_s(self, name: str, now: float) -> float:
        """Return for how long the name is still refused; 0: it may join."""
        record = self._records.get(name)
        return 0.0 if record is None else max(record.until - now, 0.0)

    def refusal(self, name: str, now: float) -> str:
        """Say why and how long the name is refused; empty if it is not."""
        left_s = self.refused_for_s(name, now)
        if not left_s:
            return ""
        return (
            f"{name} was lost more than {LOSSES_MAX} times within {WINDOW_S:g} s; it may join "
            f"again in {left_s:.0f} s, or under another name now"
        )
