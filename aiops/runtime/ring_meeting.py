"""A generation of a ring of which some members share memory: how they meet, and how that ends.

What those do together is `aiops.collective.shared`; how calls are performed with it is said by what
derives from this, for a ring on one host (`ring_shared.py`) and on several (`ring_hosts.py`).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np

from aiops.collective.call import Array, Call
from aiops.collective.plan import make_plan
from aiops.collective.shared import LoneMember, Neighbours, ShareLink
from aiops.collective.shared.board import Board
from aiops.errors import AiopsError, DialFailed, JoinTimeout
from aiops.runtime.host_memory import HostMemory
from aiops.runtime.ring_call import RingCall, RingWork
from aiops.runtime.ring_errors import aborted
from aiops.runtime.ring_group import NEWS_PERIODS, WARN_S, RingGroup

__all__ = ["MeetingRingGroup"]

_NO_PLAN: Final = make_plan(())


class MeetingRingGroup(RingGroup):
    """The members of one generation, of which some share memory with this one."""

    part: Neighbours | LoneMember | None = None
    _meeting: asyncio.Task[dict[int, ShareLink]] | None = None
    _flight: RingCall | None = None
    _out_of_time: AiopsError | None = None

    @property
    @abstractmethod
    def near(self) -> Sequence[int]:
        """The members on this host, this one included, by their places in the ring."""

    @abstractmethod
    def _share(self, memory: HostMemory, links: dict[int, ShareLink], names: list[str]) -> None:
        """Set `part`, what is done with the members on this host."""

    async def meet(self, memory: HostMemory, timeout_s: float) -> None:
        """Connect to all other members on this host; afterwards calls can be made.

        If the generation is halted meanwhile, its calls say so, as in one that is halted later.

        Raises
        ------
        CollectiveAborted
            One cannot be reached; the generation is over for all.
        """
        if self.over is None:
            await self._meet(memory, timeout_s)

    async def _meet(self, memory: HostMemory, timeout_s: float) -> None:
        formed = self.formed
        here = self.near.index(self.index)
        names = {
            place: formed.members[index].shared.partition("/")[2].rstrip("!")
            for place, index in enumerate(self.near)
            if place != here
        }
        group = f"{self._postoffice.joined.job}/{formed.ring}/{formed.generation}"
        meeting = self._connected(memory, group, here, names, timeout_s)
        self._meeting = self._loop.create_task(meeting)
        try:
            await asyncio.wait((self._meeting,))
            if self._meeting.cancelled():  # halted meanwhile: every call will say why
                return
            members = [formed.members[index] for index in self.near]
            texts = [f"worker {member.rank} ({member.name})" for member in members]
            self._share(memory, self._meeting.result(), texts)
            if self.over is not None:  # halted meanwhile
                self._stop_part(self.over)
        except asyncio.CancelledError:
            self._meeting.cancel()
            self._meeting.add_done_callback(_close_links)
            self.stop("cancelled", f"{self.me} has cancelled ring {self.name}")
            raise
        except (JoinTimeout, DialFailed, OSError) as error:
            self.stop("connection", f"{self.me}: {error}")
            raise self.over or error from error

    async def _connected(
        self, memory: HostMemory, group: str, here: int, names: dict[int, str], timeout_s: float
    ) -> dict[int, ShareLink]:
        try:
            return await memory.bell().meet(group, here, names, timeout_s)
        except DialFailed:
            # Its process may have ended: then the scheduler says so, and this is cancelled.
            await asyncio.sleep(NEWS_PERIODS * self._postoffice.joined.heartbeat_s)
            raise

    def _lost(self, place: int, why: str) -> None:
        self.peer_lost(self.peers[self.near[place]], why)

    def _take_off(self, call: Call, flat: Array, timeout_s: float, words: str = "") -> RingCall:
        """Begin to count the time of a call, and to say whom it waits for.

        `words` are those in which others may call it meanwhile.
        """
        work = RingWork(call.kind, words, _NO_PLAN, flat, flat, np.add, _nothing)
        flight = self._flight = RingCall(work, self.index, self.size, timeout_s)
        flight.timer = self._loop.call_later(min(WARN_S, timeout_s), self._look, flight)
        return flight

    def _not_begun(self) -> str:
        """Say who of this host has not come to the call; empty if all have."""
        return self._late(Board.ARRIVED, "not begun it")

    def _late(self, word: int, what: str) -> str:
        """Say who of this host is not as far as a word of their boards says; empty if all are."""
        if self.part is None:
            return ""
        late = [self.near[place] for place in self.part.missing(word)]
        names = [str(self.peers[index]) for index in late if index != self.index]
        if not names:
            return ""
        return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} {what}"

    # --- the end ---

    def _stop_part(self, error: AiopsError) -> None:
        if self.part is not None:
            self.part.stop(lambda: error)
        elif self._meeting is not None:
            self._meeting.cancel()

    def _halt(self, cause: str, text: str, lost: tuple[int, ...], *, mine: str = "") -> None:
        super()._halt(cause, text, lost, mine=mine)
        error = aborted(self.name, self._flight, cause, mine or text, lost, timed_out=bool(mine))
        self._out_of_time = error if mine else None
        self._stop_part(error)

    def fail(self, error: AiopsError) -> None:
        """End everything with this error: nothing works any more."""
        super().fail(error)
        self._stop_part(error)

    def leave(self, why: str = "has left the ring") -> None:
        """Leave in order: what this member has confirmed is there for the others."""
        if self._flight is not None:
            self.stop("left", f"{self.me} {why}")
        super().leave(why)
        self._close()

    def retire(self) -> None:
        """Let go of everything: there is a later generation, or the worker has ended."""
        super().retire()
        self._close()

    def _close(self) -> None:
        if self.part is not None:
            self.part.close()


def _close_links(meeting: asyncio.Task[dict[int, ShareLink]]) -> None:
    """Let go of connections that nobody takes over."""
    if not meeting.cancelled() and meeting.exception() is None:
        for link in meeting.result().values():
            link.close()


def _nothing() -> None:
    """Nothing is left to do when a call is in effect: it was done in place."""
