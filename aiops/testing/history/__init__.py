"""Histories: what the workers of a run did and saw, and whether the promises were kept.

format      the lines of a file
recorder    writes them, one file per worker
run         reads them back
violation   a broken promise, told with the operations that show it
order, rounds, barriers, values, round_values
            the rules; `explain` is the arithmetic of uncertain pushes
checker     all of them over a run: `verify("folder")`
"""

from __future__ import annotations

from aiops.testing.history.checker import Verdict, check, verify
from aiops.testing.history.recorder import Recorder
from aiops.testing.history.violation import PROMISES, Violation

__all__ = ["PROMISES", "Recorder", "Verdict", "Violation", "check", "verify"]
