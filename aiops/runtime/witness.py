"""Witness: somebody who is told what a worker asks and what it is answered; nobody, usually.

The Customer tells of operations, the worker of its other calls. Who listens is elsewhere: the
recorder of histories in `aiops.testing.history`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Protocol

from aiops.errors import AiopsError
from aiops.roles.requests import Operation, Part
from aiops_protocol.control import TableOpened
from aiops_protocol.frames import Reply

__all__ = ["Call", "Telling", "Witness"]

Call = Literal["tick", "barrier", "finish"]


class Witness(Protocol):
    """What a witness can be told."""

    def started(self, operation: Operation) -> None:
        """Hear of an operation before anything of it is sent."""
        ...

    def answered(self, part: Part, reply: Reply) -> None:
        """Hear of the answer to one part; the payload is lent for the call."""
        ...

    def ended(self, operation: Operation, error: AiopsError | None) -> None:
        """Hear that an operation has ended, or was given up."""
        ...

    def opened(self, opened: TableOpened, *, takes_part: bool) -> None:
        """Hear that a table was opened; `takes_part` in its rounds."""
        ...

    def begin(self, kind: Call, *, clock: int = 0, name: str = "") -> int:
        """Hear that a call without values begins; return a number for it."""
        ...

    def end(self, op: int, error: BaseException | None = None, *, generation: int = 0) -> None:
        """Hear how that call has ended."""
        ...

    def close(self, *, clean: bool, reason: str) -> None:
        """Hear that the worker has left the job."""
        ...


class Telling:
    """Tells a witness, if there is one, of a call: `with Telling(witness, "tick", clock=3)`.

    Attributes
    ----------
    generation
        Of a barrier, once it is known.
    """

    __slots__ = ("_call", "_clock", "_name", "_op", "_witness", "generation")

    def __init__(
        self, witness: Witness | None, call: Call, *, clock: int = 0, name: str = ""
    ) -> None:
        self._witness = witness
        self._call = call
        self._clock = clock
        self._name = name
        self._op = 0
        self.generation = 0

    def __enter__(self) -> Telling:
        """Tell that it begins."""
        if self._witness is not None:
            self._op = self._witness.begin(self._call, clock=self._clock, name=self._name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Tell how it ended."""
        if self._witness is not None:
            self._witness.end(self._op, error, generation=self.generation)
