"""A generation of a ring whose members all are on one host: calls go through memory they share.

The agreement is that of every ring (`ring_group.py`): what stops a call, and what the scheduler
says about one whose end is open. How calls are performed is `aiops.collective.shared`; no payload
goes through sockets, and no connection between members is opened but that which wakes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import DTypeLike

from aiops.collective.call import Array, Call
from aiops.collective.plan import make_plan
from aiops.collective.shared import (
    Arena,
    Doorbell,
    SharedGroup,
    ShareLink,
    host_identity,
    supported,
)
from aiops.errors import (
    AiopsError,
    Closed,
    CollectiveMismatch,
    DialFailed,
    JoinTimeout,
    UsageError,
)
from aiops.runtime.ring_call import RingCall, RingWork
from aiops.runtime.ring_errors import aborted, call_name
from aiops.runtime.ring_group import VERDICT_TIMEOUT_S, WARN_S, RingGroup
from aiops_protocol.ring_control import RingMember, RingVerdict

__all__ = ["TRANSPORTS", "HostMemory", "SharedRingGroup", "shares_memory"]

TRANSPORTS: Final = ("auto", "tcp", "shared-memory")

_NO_PLAN: Final = make_plan(())


class HostMemory:
    """What a worker shares with others of its host: its arena, and where it is found.

    Attributes
    ----------
    transport
        "auto", "tcp" or "shared-memory".
    """

    def __init__(self, transport: str) -> None:
        if transport == "shared-memory" and not supported():
            raise UsageError('transport="shared-memory" needs Linux; "auto" takes TCP elsewhere')
        self.transport = transport
        self.arena = Arena()
        self._bell: Doorbell | None = None

    def bell(self) -> Doorbell:
        """Return the doorbell, made when it is first needed."""
        if self._bell is None:
            self._bell = Doorbell()
        return self._bell

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        """Make an array of zeros, in shared pages where there are such."""
        return self.arena.empty(shape, dtype) if supported() else np.zeros(shape, dtype)

    def offer(self) -> str:
        """Return what the scheduler passes on to the other members; empty for none."""
        if self.transport == "tcp" or not supported():
            return ""
        forced = "!" if self.transport == "shared-memory" else ""
        return f"{host_identity()}/{self.bell().name}{forced}"

    def close(self) -> None:
        """Be found no more. Idempotent."""
        if self._bell is not None:
            self._bell.close()


def shares_memory(members: Sequence[RingMember], transport: str) -> bool:
    """Say whether the calls of these members go through memory; the same on all of them.

    Members that are tasks of one process do without, unless all of them insist: who looks for the
    others keeps them from running.

    Raises
    ------
    UsageError
        This member's `transport` asks for it, and it cannot be.
    """
    hosts = {member.shared.partition("/")[0] for member in members}
    processes = {member.shared.rpartition("-")[0] for member in members}
    insisting = all(member.shared.endswith("!") for member in members)
    possible = len(hosts) == 1 and "" not in hosts
    if transport == "shared-memory" and not possible:
        first = members[0].shared.partition("/")[0]
        others = [m for m in members if m.shared.partition("/")[0] != first or not m.shared]
        names = ", ".join(f"worker {m.rank} ({m.name})" for m in others)
        raise UsageError(
            f'transport="shared-memory": {names} cannot share memory with the other members: on '
            'another host, or with transport="tcp"; "auto" takes TCP then'
        )
    return possible and (insisting or 1 < len(members) == len(processes))


class SharedRingGroup(RingGroup):
    """The members of one generation on one host, and the operations among them."""

    _shared: SharedGroup
    _met = False
    _meeting: asyncio.Task[dict[int, ShareLink]] | None = None
    _flight: RingCall | None = None
    _out_of_time: AiopsError | None = None

    async def meet(self, memory: HostMemory, timeout_s: float) -> None:
        """Connect to all other members; afterwards calls can be made.

        Raises
        ------
        CollectiveAborted
            One cannot be reached; the generation is over for all.
        """
        formed = self.formed
        job = self._postoffice.joined.job
        names = {
            index: member.shared.partition("/")[2].rstrip("!")
            for index, member in enumerate(formed.members)
            if index != self.index
        }
        group = f"{job}/{formed.ring}/{formed.generation}"
        meeting = memory.bell().meet(group, self.index, names, timeout_s)
        self._meeting = self._loop.create_task(meeting)
        try:
            await asyncio.wait((self._meeting,))
            if self._meeting.cancelled():  # the scheduler has halted the ring meanwhile
                raise self.over or Closed(f"ring {self.name} is closed")
            self._share(memory, self._meeting.result())
        except asyncio.CancelledError:
            self._meeting.cancel()
            self._meeting.add_done_callback(_close_links)
            self.stop("cancelled", f"{self.me} has cancelled ring {self.name}")
            raise
        except (JoinTimeout, DialFailed, OSError) as error:
            self.stop("connection", f"{self.me}: {error}")
            raise self.over or error from error

    def _share(self, memory: HostMemory, links: dict[int, ShareLink]) -> None:
        members = [f"worker {member.rank} ({member.name})" for member in self.formed.members]
        self._shared = SharedGroup(self.index, self.size, memory.arena, links, self._lost, members)
        self._met = True
        if self.over is not None:  # halted meanwhile
            over = self.over
            self._shared.stop(lambda: over)

    def _lost(self, index: int, why: str) -> None:
        self.peer_lost(self.peers[index], why)

    # --- calls ---

    async def perform(self, call: Call, flat: Array, timeout_s: float) -> None:
        """Perform a call in place; one at a time.

        Raises
        ------
        CollectiveAborted, CollectiveMismatch
            It has no effect on any member.
        """
        shared = self._shared
        work = RingWork(call.kind, str(call), _NO_PLAN, flat, flat, np.add, _nothing)
        lent, read = shared.reading.lent, shared.reading.read
        flight = self._flight = RingCall(work, self.index, self.size, timeout_s)
        flight.number = shared.begun + 1
        flight.timer = self._loop.call_later(min(WARN_S, timeout_s), self._look, flight)
        try:
            self.wanted = bool(await shared.perform(call, flat, int(self._knock)))
        except CollectiveMismatch as error:
            self.stop("mismatch", str(error))
            raise
        except AiopsError:
            raise
        except OSError as error:  # no memory or no files are left
            self.stop("memory", f"{self.me} has no shared memory for {call}: {error}")
            raise self.over or error from error
        except asyncio.CancelledError:
            if shared.voted < flight.number:
                self.stop("cancelled", f"{self.me} has cancelled {call_name(self.name, flight)}")
            raise
        finally:
            self.traffic["sent"] += shared.reading.lent - lent
            self.traffic["received"] += shared.reading.read - read
            self._flight = None
            flight.timer.cancel()

    def _missing(self, call: RingCall) -> str:
        late = [str(self.peers[index]) for index in self._shared.missing() if index != self.index]
        if late:
            return f"{', '.join(late)} {'has' if len(late) == 1 else 'have'} not begun it"
        return "not all members have voted that their part is there"

    # --- the end ---

    def _report(self, cause: str, text: str) -> None:
        self.done = self._shared.done if self._met else 0
        super()._report(cause, text)

    def _halt(self, cause: str, text: str, lost: tuple[int, ...], *, mine: str = "") -> None:
        super()._halt(cause, text, lost, mine=mine)
        if self._met:
            error = aborted(
                self.name, self._flight, cause, mine or text, lost, timed_out=bool(mine)
            )
            self._out_of_time = error if mine else None
            self._shared.stop(lambda: error)
            if self._shared.in_doubt and self._flight is not None:
                self._timers.append(self._loop.call_later(VERDICT_TIMEOUT_S, self._no_verdict))
        elif self._meeting is not None:
            self._meeting.cancel()

    def verdict(self, message: RingVerdict) -> None:
        """End a call whose end was open, one way or the other."""
        super().verdict(message)
        if self._met:
            error = self._out_of_time or aborted(
                self.name, self._flight, message.cause, message.text, tuple(message.lost)
            )
            self._shared.verdict(message.done, lambda: error)

    def fail(self, error: AiopsError) -> None:
        """End everything with this error: nothing works any more."""
        super().fail(error)
        if self._met:
            self._shared.verdict(0, lambda: error)
        elif self._meeting is not None:
            self._meeting.cancel()

    def leave(self) -> None:
        """Leave in order: what this member has voted for is there for the others."""
        if self._flight is not None:
            self.stop("left", f"{self.me} has finished")
        super().leave()
        self._close()

    def retire(self) -> None:
        """Let go of everything: there is a later generation, or the worker has ended."""
        super().retire()
        self._close()

    def _close(self) -> None:
        if self._met:
            self._shared.close()


def _close_links(meeting: asyncio.Task[dict[int, ShareLink]]) -> None:
    """Let go of connections that nobody takes over."""
    if not meeting.cancelled() and meeting.exception() is None:
        for link in meeting.result().values():
            link.close()


def _nothing() -> None:
    """Nothing is left to do when a call is in effect: it was done in place."""
