"""Looking at processes from outside, for tests that start and end some."""

from __future__ import annotations

import os
import time
from pathlib import Path

POLL_S = 0.02  # there is no event for the end of a process that is not a child of ours
TIMEOUT_S = 60.0  # for a busy machine; it is a matter of milliseconds on a calm one


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended; a zombie that nobody collects has."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state == "Z"


def ends(pid: int, within_s: float = TIMEOUT_S) -> bool:
    """Wait for the end of a process; tell whether it came in time."""
    deadline = time.monotonic() + within_s
    while not is_gone(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def children_of(pid: int, containing: str) -> list[int]:
    """Return the children of a process whose command line contains a text."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        command = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
        if containing in command:
            found.append(int(child))
    return found
