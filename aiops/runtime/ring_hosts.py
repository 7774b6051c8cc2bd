"""A generation of a ring on several hosts, of which some have several members.

An all-reduce by "hierarchical" is done in three parts: what the members of one host do through the
memory that they share (`aiops.collective.shared.host_part`), between them the exchange with other
hosts, which is an operation over TCP like any other, and the agreement, which is that of all rings:
a member confirms when the whole result is on its host, and copies it when all have confirmed. Other
calls go over TCP alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from aiops.collective import schedule
from aiops.collective.call import REDUCTIONS, Array, Call, divide
from aiops.collective.plan import Plan, make_plan
from aiops.collective.shared import HostPart, LoneMember, ShareLink, lanes_of
from aiops.collective.shared.board import Board
from aiops.collective.steps import Span
from aiops.collective.topology import in_order
from aiops.compression import Codec
from aiops.errors import AiopsError, CollectiveMismatch
from aiops.runtime.host_memory import HostMemory
from aiops.runtime.ring_call import RingCall, RingWork
from aiops.runtime.ring_meeting import MeetingRingGroup
from aiops.runtime.ring_peer import RingPeer
from aiops_protocol.frames import RingBegin, RingFrame

__all__ = ["HostsRingGroup"]


class HostsRingGroup(MeetingRingGroup):
    """The members of one generation, some of which share a host with others.

    Attributes
    ----------
    hosts
        The members of each host, by their places; the same on all members.
    """

    hosts: Sequence[tuple[int, ...]] = ()
    part: HostPart | LoneMember | None = None
    _exchanged: asyncio.Future[None] | None = None  # of the flight, as long as it waits for that
    _whole = False  # all of the flight's result is on this host

    @property
    def near(self) -> Sequence[int]:
        """The members on this host."""
        return next(host for host in self.hosts if self.index in host)

    async def meet(self, memory: HostMemory, timeout_s: float) -> None:
        """Connect to the others of this host, if there are any; see `MeetingRingGroup.meet`."""
        if len(self.near) > 1:
            await super().meet(memory, timeout_s)
        else:
            self.part = LoneMember()

    def _share(self, memory: HostMemory, links: dict[int, ShareLink], names: list[str]) -> None:
        near = self.near
        place = near.index(self.index)
        part = HostPart(place, len(near), memory.arena, links, self._lost, names)
        part.lanes = len(lanes_of(self.hosts))
        self.part = part

    def arrange(self, order: Sequence[int]) -> None:
        """Let the hosts follow each other as their first members do in an order of all members."""
        self.hosts = sorted(self.hosts, key=lambda host: min(map(order.index, host)))

    # --- calls ---

    async def perform(
        self, call: Call, flat: Array, timeout_s: float, codec: Codec | None = None
    ) -> None:
        """Perform an all-reduce in place; one at a time.

        Parameters
        ----------
        call, flat, timeout_s
            What, on which elements, and how long it may take.
        codec
            In which form float32 travels between hosts; `None` as it is.

        Raises
        ------
        CollectiveAborted, CollectiveMismatch
            It has no effect on any member.
        """
        assert self.part is not None
        lent, read = self.part.reading.lent, self.part.reading.read
        flight = self._take_off(call, flat, timeout_s, str(call))
        try:
            self._call_up(flight)
            for peer, frame in self._early.of(self._begun + 1):
                self._compare_early(peer, frame)
            await self._fly(flight, call, flat, codec)
        except CollectiveMismatch as error:
            self.stop("mismatch", str(error))
            raise
        except AiopsError:  # among them one that is an OSError, too: the time is up
            raise
        except (OSError, MemoryError) as error:  # no memory or no files are left
            self.stop("memory", f"{self.me} has no shared memory for {call}: {error}")
            raise self.over or error from error
        except asyncio.CancelledError:
            self.cancel(flight)
            raise
        finally:
            self.traffic["sent"] += self.part.reading.lent - lent
            self.traffic["received"] += self.part.reading.read - read
            self._flight = self._exchanged = None
            flight.stop_timer()

    def _call_up(self, flight: RingCall) -> None:
        """Connect before the call begins: who has gone another way may wait for that to say so."""
        here = RingBegin(operation=0, ring=self.formed.ring, generation=self.formed.generation)
        for peer in map(self.peers.__getitem__, self._partners(flight)):
            if peer.index > self.index and peer.link is None:
                peer.dial(self._van, self._postoffice, flight.timeout_s)
                peer.send(here)

    async def _fly(self, flight: RingCall, call: Call, flat: Array, codec: Codec | None) -> None:
        part = self.part
        assert part is not None
        sums, results = await part.combine(call, flat)
        if self.over is not None:  # what was read meanwhile may be anything
            raise self.over
        exchanged = self._exchanged = self._loop.create_future()
        self._whole = False
        parts: list[tuple[Span, Array]] = []

        def commit() -> None:
            # A mean is divided here: pieces of the sum may still wait in a connection.
            for span, values in parts:
                if call.op == "mean":
                    divide(values, self.size, flat[slice(*span)])
                else:
                    flat[slice(*span)] = values

        reduce = REDUCTIONS[call.op]
        plan = self._plan(results.size)
        words = flight.work.description
        flight.work = RingWork(call.kind, words, plan, sums, results, reduce, commit, codec)
        flight.future.add_done_callback(_set(exchanged))
        self._begin_in_turn(flight)
        await exchanged
        if not flight.future.done():
            parts += await part.complete(call, flat)
            self._whole = True
            self._advance()
        await flight.future

    def _plan(self, count: int) -> Plan:
        """Return what this member exchanges with the same lane of other hosts."""
        place = self.near.index(self.index)
        lanes = lanes_of(self.hosts)
        if place >= len(lanes):
            return make_plan(())
        host = self.hosts.index(tuple(self.near))
        steps = schedule.all_reduce("ring", host, len(self.hosts), count)
        return make_plan(in_order(steps, lanes[place]))

    def _complete(self, call: RingCall) -> bool:
        if not super()._complete(call):
            return False
        if call is not self._flight:
            return True
        _set(self._exchanged)()
        return self._whole

    def peer_frame(self, peer: RingPeer, frame: RingFrame) -> None:
        """Take a frame of another member."""
        self._compare_early(peer, frame)
        super().peer_frame(peer, frame)

    def _compare_early(self, peer: RingPeer, frame: RingFrame) -> None:
        """Look what others call while a call of this member waits for its host.

        A host that waits for a member that has gone another way would never begin.
        """
        flight = self._flight
        if flight is None or flight.number or self.over is not None:
            return
        if isinstance(frame, RingBegin) and frame.operation == self._begun + 1:
            self._compare(flight, peer, bytes(frame.payload).decode("utf-8", "replace"))

    def _missing(self, call: RingCall) -> str:
        if call is not self._flight:
            return super()._missing(call)
        here = self._not_begun()
        if not call.number:
            return here or "the arrays of this host are not combined"
        if self._exchanged is not None and self._exchanged.done() and not self._whole:
            late = self._late(Board.VOTED, "not its part of the result")
            return late or "not all members have confirmed it"
        text = super()._missing(call)
        # Who has come, but waits for another one of its host, says nothing to the other hosts.
        return f"{text}, or wait for others of their hosts" if text.endswith("begun it") else text


def _set(future: asyncio.Future[None] | None) -> Callable[..., Any]:
    """Return what completes a future, whatever it is called with."""

    def done(_: object = None) -> None:
        if future is not None and not future.done():
            future.set_result(None)

    return done
