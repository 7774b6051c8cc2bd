"""A processor for each side, so that two runs measure the same thing.

Left alone, the kernel now and then puts both ends of a ping-pong on one processor. A round trip
then costs a change of context (17 us on one machine) in place of waking another processor (55 us),
and a ratio of two medians says more about that choice than about the code. Two nodes of a job never
share a processor like that, so here they do not either.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SIBLINGS: Final = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@contextmanager
def placed(side: int) -> Iterator[None]:
    """Run this thread, and what it starts, on the processor of one side; then as before.

    Parameters
    ----------
    side
        0 for the client, 1 for the servers.

    Notes
    -----
    Does nothing where processors cannot be chosen (macOS, Windows) or there is only one.
    """
    if sys.platform != "linux":
        yield
        return
    allowed = os.sched_getaffinity(0)
    chosen = _two_of(sorted(allowed))
    if chosen is not None:
        os.sched_setaffinity(0, {chosen[side]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _two_of(allowed: list[int]) -> tuple[int, int] | None:
    """Choose the first processor and the next that is not a second thread of the same core."""
    if len(allowed) < 2:
        return None
    first, *others = allowed
    siblings = _siblings(first)
    return first, next((other for other in others if other not in siblings), others[0])


def _siblings(processor: int) -> set[int]:
    """Read a list like ``0-1,8`` of the threads that share a core; empty if unknown."""
    try:
        text = Path(_SIBLINGS.format(processor)).read_text(encoding="ascii")
        spans = [[int(end) for end in part.split("-")] for part in text.strip().split(",")]
    except (OSError, ValueError):
        return set()
    return {number for span in spans for number in range(span[0], span[-1] + 1)}
