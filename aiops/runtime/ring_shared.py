"""A generation of a ring whose members all are on one host: calls go through memory they share.

The agreement is that of every ring (`ring_group.py`): what stops a call, and what the scheduler
says about one whose end is open. How calls are performed is `aiops.collective.shared`; no payload
goes through sockets, and no connection between members is opened but that which wakes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiops.collective.call import Array, Call
from aiops.collective.shared import SharedGroup, ShareLink
from aiops.errors import AiopsError, CollectiveMismatch
from aiops.runtime.host_memory import HostMemory
from aiops.runtime.ring_call import RingCall
from aiops.runtime.ring_errors import aborted, call_name
from aiops.runtime.ring_group import VERDICT_TIMEOUT_S
from aiops.runtime.ring_meeting import MeetingRingGroup
from aiops_protocol.ring_control import RingVerdict

__all__ = ["SharedRingGroup"]


class SharedRingGroup(MeetingRingGroup):
    """The members of one generation on one host, and the operations among them."""

    part: SharedGroup | None = None

    @property
    def near(self) -> Sequence[int]:
        """All members."""
        return range(self.size)

    def _share(self, memory: HostMemory, links: dict[int, ShareLink], names: list[str]) -> None:
        self.part = SharedGroup(self.index, self.size, memory.arena, links, self._lost, names)

    # --- calls ---

    async def perform(self, call: Call, flat: Array, timeout_s: float) -> None:
        """Perform a call in place; one at a time.

        Raises
        ------
        CollectiveAborted, CollectiveMismatch
            It has no effect on any member.
        """
        shared = self.part
        assert shared is not None
        lent, read = shared.reading.lent, shared.reading.read
        flight = self._take_off(call, flat, timeout_s)
        flight.number = shared.begun + 1
        try:
            self.wanted = bool(await shared.perform(call, flat, int(self._knock)))
        except CollectiveMismatch as error:
            self.stop("mismatch", str(error))
            raise
        except AiopsError:
            raise
        except (OSError, MemoryError) as error:  # no memory or no files are left
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
            flight.stop_timer()

    def _missing(self, call: RingCall) -> str:
        return self._not_begun() or "not all members have voted that their part is there"

    # --- the end ---

    def _report(self, cause: str, text: str) -> None:
        self.done = self.part.done if self.part is not None else 0
        super()._report(cause, text)

    def _halt(self, cause: str, text: str, lost: tuple[int, ...], *, mine: str = "") -> None:
        super()._halt(cause, text, lost, mine=mine)
        if self.part is not None and self.part.in_doubt and self._flight is not None:
            self._timers.append(self._loop.call_later(VERDICT_TIMEOUT_S, self._no_verdict))

    def verdict(self, message: RingVerdict) -> None:
        """End a call whose end was open, one way or the other."""
        super().verdict(message)
        if self.part is not None:
            error = self._out_of_time or aborted(
                self.name, self._flight, message.cause, message.text, tuple(message.lost)
            )
            self.part.verdict(message.done, lambda: error)

    def fail(self, error: AiopsError) -> None:
        """End everything with this error: nothing works any more."""
        super().fail(error)
        if self.part is not None:
            self.part.verdict(0, lambda: error)
