"""Where the time of sparse training went, and what that says about training in one process.

Only what was measured in the run. Not here: what the servers spent on their optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter, thread_time
from typing import Final

__all__ = ["Stopwatch", "shares", "verdict"]

OWN: Final = ("read", "compute")
"""What one process of the same code would have to do as well."""

EXCHANGE: Final = ("pull", "push", "tick")
"""What only a cluster does: tables, and waiting for servers and for each other."""


class Stopwatch:
    """The seconds of one worker, each given to what it was spent on.

    Attributes
    ----------
    time_s
        Seconds of each of `read`, `compute`, `pull`, `push`, `tick`; together all since the start.
    processor_s
        Seconds that a processor worked on reading and computing, without waiting for its turn.
    """

    def __init__(self) -> None:
        self.time_s = dict.fromkeys((*OWN, *EXCHANGE), 0.0)
        self.processor_s = 0.0
        self._seen_s, self._worked_s = perf_counter(), thread_time()

    def lap(self, phase: str) -> None:
        """Give what has passed since the last call to a phase."""
        now_s, worked_s = perf_counter(), thread_time()
        self.time_s[phase] += now_s - self._seen_s
        if phase in OWN:
            self.processor_s += worked_s - self._worked_s
        self._seen_s, self._worked_s = now_s, worked_s


def shares(time_s: Mapping[str, float], whose: str) -> str:
    """Say which part of the time went where."""
    total_s = sum(time_s.values()) or 1.0
    parts = {phase: spent_s / total_s for phase, spent_s in time_s.items()}
    exchange = sum(parts[phase] for phase in EXCHANGE)
    return (
        f"{exchange:.0%} of {whose} time was pull ({parts['pull']:.0%}), "
        f"push ({parts['push']:.0%}) and tick ({parts['tick']:.0%}), "
        f"{parts['read']:.0%} reading, {parts['compute']:.0%} computing"
    )


def verdict(time_s: Mapping[str, float], processor_s: float, seconds: float) -> str:
    """Say how a run compares with one process, as far as its own numbers tell.

    Parameters
    ----------
    time_s, processor_s
        As in `Stopwatch`, the sums over all workers.
    seconds
        How long the run took.
    """
    bound = (
        f"one process of the same code has {processor_s:.1f} s of reading and computing to do, and "
        f"the optimizer; this run took {seconds:.1f} s"
    )
    if processor_s > seconds:
        return f"{bound}: it was the faster one"
    spent_s = sum(time_s.values())
    return (
        f"{bound}. The workers together spent {spent_s:.1f} s, "
        f"{spent_s / max(processor_s, 1e-9):.1f} times that: every batch pays for the exchange. "
        "One process with room for all weights has none and may be faster"
    )
