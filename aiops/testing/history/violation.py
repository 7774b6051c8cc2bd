"""A violation: a promise that a run has broken, with the operations that show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiops.testing.history.run import NEVER, Operation

__all__ = ["PROMISES", "Violation"]

PROMISES: Final = {
    "exactly-once": "each push took effect once, or at most once if its outcome is unknown",
    "order": "each shard has one order of versions, in which nothing seen is unseen again",
    "own-writes": "a worker sees its own acknowledged pushes",
    "one-value": "a version of a shard has one value, whoever pulls it",
    "rounds": "a round closes when all have sealed it, and a pull gets the version of its clock",
    "staleness": "nobody goes on at clock c of a table before all have completed c - staleness",
    "clocks": "a worker's clocks and seals follow each other without gap or repeat",
    "barriers": "nobody leaves a barrier before everybody has come to it",
}
"""The promises that are checked, in the order in which they are told."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise.

    Parameters
    ----------
    promise
        One of `PROMISES`.
    text
        What is wrong, in a sentence.
    operations
        Those that show it.
    """

    promise: str
    text: str
    operations: tuple[Operation, ...]

    @property
    def at(self) -> int:
        """When it had happened for sure: the end of the last of the operations."""
        return max(
            (
                operation.invoked_at if operation.ended_at == NEVER else operation.ended_at
                for operation in self.operations
            ),
            default=0,
        )

    def __str__(self) -> str:
        """Several lines: the promise, the sentence, and one line per operation."""
        lines = [f"{self.promise}: {self.text}"]
        lines += [f"    {operation}" for operation in self.operations]
        return "\n".join(lines)
