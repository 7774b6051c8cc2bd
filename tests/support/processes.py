"""Looking at processes from outside, for tests that start and end some."""

from __future__ import annotations

import os
from pathlib import Path


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
