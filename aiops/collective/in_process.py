"""A ring within one process: its ranks are tasks of a loop, or threads with a loop each.

The members meet: each leaves its call and its array; when the last one has come the calls are
compared, and the schedule of all ranks is performed over the arrays themselves, step by step
(`execution.py`). Until then nothing is changed, afterwards nothing can fail: that makes a call
all or nothing. It is the reference for rings across processes, which have the same calls.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from operator import index
from typing import Final

import numpy as np

from aiops.checks import check_count, check_flag, check_timeout
from aiops.collective.call import REDUCTIONS, Array, Call, difference
from aiops.collective.cost_model import IN_PROCESS, Choice, choose
from aiops.collective.execution import Execution, Message
from aiops.collective.member import Member, explained_bytes
from aiops.collective.schedule import Algorithm, Groups
from aiops.errors import (
    AiopsError,
    CollectiveAborted,
    CollectiveMismatch,
    CollectiveTimeout,
    UsageError,
)
from aiops.wording import listed, shown
from aiops_protocol.limits import WORKERS_MAX

__all__ = ["InProcessMember", "InProcessRing"]

TIMEOUT_S: Final = 300.0
"""How long a call waits for the others: longer than any step of training on one machine."""

THREADED_BYTES: Final = 1024 * 1024
"""Less than this in all arrays together is performed at once: it takes less time (some 100 us) than
it takes to hand it to threads and to be woken by them."""

PROCESSORS: Final = os.cpu_count() or 1

TRACE_MESSAGES_MAX: Final = 100_000
"""Messages that a trace remembers, the newest: some tens of megabytes."""


class InProcessRing:
    """Collective calls between tasks or threads of this process.

    Parameters
    ----------
    world_size
        How many ranks there are.
    trace
        Whether to remember every message; see `trace`.
    groups
        Which ranks count as one host, for `algorithm="hierarchical"`.
    timeout_s
        How long a call waits for the other members, unless it says otherwise.

    Attributes
    ----------
    trace : deque of Message
        Who sent which elements to whom, of the last calls; empty without `trace=True`.

    Examples
    --------
    >>> ring = InProcessRing(4)
    >>> async def train(rank):
    ...     gradient = np.full(1000, rank, np.float32)
    ...     await ring.member(rank).all_reduce(gradient, "mean")
    """

    def __init__(
        self,
        world_size: int,
        *,
        trace: bool = False,
        groups: Sequence[Sequence[int]] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.world_size = world_size = check_count(world_size, "InProcessRing: world_size")
        if not 1 <= self.world_size <= WORKERS_MAX:
            raise UsageError(
                f"InProcessRing: world_size is {shown(world_size)}; from 1 to {WORKERS_MAX}"
            )
        trace = check_flag(trace, "InProcessRing: trace")
        self.groups = None if groups is None else _checked_groups(groups, world_size)
        self.timeout_s = check_timeout(timeout_s, "InProcessRing")
        self.trace: deque[Message] = deque(maxlen=TRACE_MESSAGES_MAX if trace else 0)
        self._lock = threading.Lock()
        self._meetings: dict[int, _Meeting] = {}
        self._next = [0] * world_size
        self._left = ""
        self._members = [InProcessMember(self, rank) for rank in range(world_size)]
        self._threads: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return f"<InProcessRing world_size={self.world_size}{' over' if self._left else ''}>"

    def member(self, rank: int) -> InProcessMember:
        """Return the handle of one rank; it belongs to one loop.

        Raises
        ------
        UsageError
            There is no such rank.
        """
        if check_count(rank, "member: rank") >= self.world_size:
            raise UsageError(f"member: rank is {rank}; ranks are 0 to {self.world_size - 1}")
        return self._members[rank]

    # --- meeting; called from the loops of the members ---

    def _come(self, rank: int, call: Call, array: Array) -> tuple[_Meeting, asyncio.Future[None]]:
        """Note that a rank is ready; with the last one the work begins."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            meeting = self._next_meeting(rank)
            meeting.come(rank, call, array, future)
        if meeting.executing:
            self._begin(meeting)
        return meeting, future

    def _next_meeting(self, rank: int) -> _Meeting:
        number = self._next[rank]
        self._next[rank] += 1
        meeting = self._meetings.setdefault(number, _Meeting(self.world_size))
        if self._left:
            meeting.abort(self._left, "left")
        meeting.expected -= 1
        if not meeting.expected:
            del self._meetings[number]
        return meeting

    def _begin(self, meeting: _Meeting) -> None:
        """Perform a call for which all have come, in threads if it is worth it."""
        call, everybody = meeting.calls[0], range(self.world_size)
        arrays = [meeting.arrays[rank] for rank in everybody]
        schedules = [call.schedule(rank, self.world_size, self.groups) for rank in everybody]
        execution = Execution(schedules, call.count, arrays[0].itemsize)
        self.trace.extend(execution.messages)
        operation = REDUCTIONS[call.op or "sum"]
        divisor = self.world_size if call.op == "mean" else None
        small = sum(array.nbytes for array in arrays) < THREADED_BYTES
        workers = 1 if small else min(execution.parts, PROCESSORS)

        def work(first: int) -> None:
            try:
                for part in range(first, execution.parts, workers):
                    execution.perform(part, arrays, operation, divisor)
            except MemoryError:  # nothing else can happen to arrays that were checked
                meeting.fail("no memory is left; the arrays hold partial results", "memory")
            with self._lock:
                meeting.working -= 1
                last = not meeting.working
            if last:
                meeting.end()

        meeting.working = workers
        if small:
            work(0)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(PROCESSORS, "aiops-in-process-ring")
        for first in range(workers):
            self._threads.submit(work, first)

    def _abort(self, meeting: _Meeting, text: str, cause: str) -> bool:
        """End a call for all; false if all have come and it is too late for that."""
        with self._lock:
            return meeting.abort(text, cause)

    def _withdraw(self, rank: int) -> None:
        with self._lock:
            self._next_meeting(rank).abort(f"rank {rank} cancelled its call", "cancelled")

    def _leave(self, rank: int, reason: str) -> None:
        """End all calls that wait for somebody, and all that come: this rank is out."""
        with self._lock:
            self._left = self._left or f"rank {rank} has left the ring: {reason}"
            for meeting in self._meetings.values():
                meeting.abort(self._left, "left")


class _Meeting:
    """One call: who has come with what. Guarded by the lock of the ring."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.calls: dict[int, Call] = {}
        self.arrays: dict[int, Array] = {}
        self.working = 0
        self.executing = False
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._error: Callable[[], AiopsError] | None = None

    def come(self, rank: int, call: Call, array: Array, future: asyncio.Future[None]) -> None:
        """Add a member; it hears at once of what has gone wrong already."""
        self.calls[rank], self.arrays[rank], self._waiting[rank] = call, array, future
        if self._error is not None:
            self._tell(rank)
            return
        first = next(iter(self.calls))
        text = difference(f"rank {first}", self.calls[first], f"rank {rank}", call)
        if text is not None:
            self._fail(partial(CollectiveMismatch, text))
        for other, its in self.arrays.items():
            if other != rank and np.may_share_memory(its, array):
                text = f"rank {other} and rank {rank} gave the same memory; each needs its own"
                self._fail(partial(CollectiveMismatch, text))
        self.executing = not self.expected and self._error is None

    def abort(self, text: str, cause: str) -> bool:
        """End the call for all who have come and who will; false if it is under way."""
        if self.executing:
            return False
        self._fail(partial(self.error, text, cause))
        return True

    def error(
        self, text: str, cause: str, kind: type[CollectiveAborted] = CollectiveAborted
    ) -> CollectiveAborted:
        """Return an error for this call."""
        call = str(next(iter(self.calls.values()), "a call"))
        message = f"{call} in the in-process ring was ended on all ranks: {text}"
        unchanged = "" if self.executing else "; no array was changed"
        return kind(message + unchanged, ring="in-process", operation=call, cause=cause)

    def missing(self, world_size: int) -> str:
        """Say who has not come."""
        return listed(f"rank {rank}" for rank in range(world_size) if rank not in self.calls)

    def fail(self, text: str, cause: str) -> None:
        """Note that the work itself has failed; all hear it at the end."""
        self._error = partial(self.error, text, cause)

    def end(self) -> None:
        """Tell all that the result is there; from any thread."""
        for rank in self._waiting:
            self._tell(rank)

    def _fail(self, error: Callable[[], AiopsError]) -> None:
        if self._error is None:
            self._error = error
            for rank in self._waiting:
                self._tell(rank)

    def _tell(self, rank: int) -> None:
        future, error = self._waiting[rank], self._error
        loop = future.get_loop()

        def tell() -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error())

        if loop is _running_loop():
            tell()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(tell)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class InProcessMember(Member):
    """One rank of an `InProcessRing`; leaving its `async with` block takes the rank out."""

    def __init__(self, ring: InProcessRing, rank: int) -> None:
        super().__init__(rank, ring.world_size)
        self._ring = ring

    def __repr__(self) -> str:
        return f"<InProcessMember rank={self.rank} of {self.world_size}>"

    async def __aenter__(self) -> InProcessMember:
        """Return the member itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        """Leave; whoever waits for this rank gets `CollectiveAborted`."""
        self.leave("it has finished" if error is None else f"{type(error).__name__}: {error}")

    def leave(self, reason: str = "it has finished") -> None:
        """Take this rank out: calls that wait for it, and later ones, end with an error on all."""
        self._ring._leave(self.rank, reason)

    def explain(self, kind: str, count: int, *, item_bytes: int = 4) -> Choice:
        """Return which algorithm "auto" takes for a call, and why: print it.

        Parameters
        ----------
        kind
            "all_reduce", "reduce_scatter", "all_gather" or "broadcast".
        count
            Elements of the array.
        item_bytes
            Size of an element.

        Raises
        ------
        UsageError
            There is no such kind of call, or a size is negative.
        """
        size = explained_bytes(kind, count, item_bytes)
        return choose(kind, self.world_size, size, IN_PROCESS, in_process=True)

    def _choose(self, kind: str, count: int, item_bytes: int) -> Algorithm:
        return self.explain(kind, count, item_bytes=item_bytes).algorithm

    def _groups(self) -> Groups | None:
        return self._ring.groups

    def _withdraw(self, call: Call) -> None:
        self._ring._withdraw(self.rank)

    async def _perform(self, call: Call, flat: Array, timeout_s: float | None) -> None:
        ring = self._ring
        timeout_s = ring.timeout_s if timeout_s is None else check_timeout(timeout_s, call.kind)
        meeting, future = ring._come(self.rank, call, flat)
        try:
            if not future.done():
                await asyncio.wait((future,), timeout=timeout_s)
        except asyncio.CancelledError:
            if not ring._abort(meeting, f"rank {self.rank} cancelled its call", "cancelled"):
                await _settled(future)  # the arrays are being written
            if future.done():
                future.exception()  # is retrieved: the cancellation is what the caller hears
            raise
        if not future.done():
            missing = meeting.missing(self.world_size)
            text = f"{missing} did not come within {timeout_s:g} s of rank {self.rank}"
            if ring._abort(meeting, text, "timeout"):
                future.exception()  # the same, for others
                raise meeting.error(text, "timeout", CollectiveTimeout)
            await _settled(future)
        future.result()


async def _settled(future: asyncio.Future[None]) -> None:
    """Wait for the end of what takes milliseconds, whoever wants to interrupt."""
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            continue


def _checked_groups(groups: Sequence[Sequence[int]], world_size: int) -> Groups:
    """Return the ranks of each group as tuples, if each rank is in one of them."""
    try:
        found = tuple(tuple(map(index, group)) for group in groups)
    except TypeError:
        found = ()
    if not all(found) or sorted(chain(*found)) != list(range(world_size)):
        raise UsageError(
            f"InProcessRing: groups is {shown(groups)}; give lists of ranks, each of 0 to "
            f"{world_size - 1} in one of them, such as [[0, 1], [2, 3]]"
        )
    return found
