"""One collective call in flight: its operation, who has begun it, and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from aiops.collective.operation import Array, Confirmation, Operation
from aiops.collective.plan import Plan
from aiops.compression import Codec
from aiops.errors import AiopsError
from aiops_protocol.limits import EARLY_BYTES_MAX, EARLY_PIECE_BYTES_MIN

__all__ = ["RingCall", "RingWork"]


class RingWork(NamedTuple):
    """What a call is about.

    Attributes
    ----------
    verb
        The user's word for it: `all_reduce`.
    description
        Everything on which the members must agree, in words.
    plan, source, work, reduce, codec
        As for `Operation`.
    commit
        Puts the result into effect: called when all members have it.
    """

    verb: str
    description: str
    plan: Plan
    source: Array
    work: Array
    reduce: np.ufunc
    commit: Callable[[], None]
    codec: Codec | None = None


class RingCall:
    """A call from its beginning to its end.

    Attributes
    ----------
    number
        Which operation of its generation it is, from 1; 0 as long as it waits for its turn.
    future
        Completed when the result is in effect, or with the error.
    begun
        Members that are known to have begun it.
    confirmation
        How far the agreement about its end is.
    exchange_s
        From its beginning here until all its pieces had come and left, once it is so far; in fine
        steps, where clocks of event loops have whole milliseconds.
    """

    def __init__(self, work: RingWork, index: int, size: int, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.work = work
        self.number = 0
        self.started_at = loop.time()
        self.timeout_s = timeout_s
        self.future: asyncio.Future[None] = loop.create_future()
        self.future.add_done_callback(_seen)
        self.confirmation = Confirmation(index, size)
        self.begun: set[int] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.exchange_s = 0.0
        self._begun_at = 0.0
        self._operation: Operation | None = None
        self._early: dict[int, int] = {}
        self._wanted = True

    @property
    def operation(self) -> Operation:
        """The pieces; of a call that has begun."""
        assert self._operation is not None
        return self._operation

    @property
    def elapsed_s(self) -> float:
        """Seconds since the call was made."""
        return asyncio.get_running_loop().time() - self.started_at

    def begin(self, number: int, landing: dict[tuple[int, int], memoryview]) -> None:
        """Its turn has come: sends read the caller's array from now on."""
        self.number = number
        self._begun_at = time.perf_counter()
        work = self.work
        self._operation = Operation(
            work.plan, work.source, work.work, work.reduce, landing, work.codec
        )

    def confirm(self, flags: int) -> list[tuple[int, int, int]]:
        """Everything has been exchanged: tell the others; returns what to send."""
        self.exchange_s = time.perf_counter() - self._begun_at
        return self.confirmation.start(flags)

    def may_send(self, peer: int, size: int) -> bool:
        """Whether a member takes a piece of so many bytes: any, or few if it has not begun."""
        size = max(size, EARLY_PIECE_BYTES_MIN)
        return peer in self.begun or self._early.get(peer, 0) + size <= EARLY_BYTES_MAX

    def count_early(self, peer: int, size: int) -> None:
        """Note a piece that goes to a member that may not have begun."""
        if peer not in self.begun:
            self._early[peer] = self._early.get(peer, 0) + max(size, EARLY_PIECE_BYTES_MIN)

    def missing(self, partners: Iterable[int], peers: Mapping[int, object]) -> str:
        """Say what it waits for, and whom of those with whom it has to do."""
        if not self.number:
            return "the operations before it are not done"

        def names(of: Iterable[int]) -> str:
            return ", ".join(str(peers[index]) for index in sorted(of))

        late = set(partners) - self.begun
        if late:
            return f"{names(late)} {'has' if len(late) == 1 else 'have'} not begun it"
        if self.confirmation.started:
            return f"{names(self.confirmation.lacking)} has not confirmed it"
        lacking = self.operation.lacking
        if lacking:
            return f"not all pieces of {names(lacking)} have come"
        return f"not all pieces have left for {names(self.operation.ready())}"

    def renounce(self) -> None:
        """Leave the caller's arrays alone whatever happens: nobody awaits the call any more."""
        self._wanted = False

    def succeed(self) -> None:
        """Put the result into effect."""
        self._end()
        try:
            if self._wanted:
                self.work.commit()
        except Exception as error:  # the caller has made the array read-only meanwhile
            if not self.future.done():
                self.future.set_exception(error)
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, error: AiopsError) -> None:
        """End without effect."""
        self._end()
        if not self.future.done():
            self.future.set_exception(error)

    def _end(self) -> None:
        self._operation = None  # lets go of the arrays
        self.stop_timer()

    def stop_timer(self) -> None:
        """Look no more whether it has had its time."""
        if self.timer is not None:
            self.timer.cancel()


def _seen(future: asyncio.Future[Any]) -> None:
    """Mark an error as seen: it is raised where somebody awaits."""
    if not future.cancelled():
        future.exception()
