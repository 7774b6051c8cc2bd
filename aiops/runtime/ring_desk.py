"""Rings of one worker: the door for other members, and what the scheduler says about each ring.

The door is opened with the first ring. A connection that comes in is given to the group that its
first frame names; if that has not been formed here yet, it waits for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from aiops.collective.schedule import Groups
from aiops.errors import AiopsError, BarrierTimeout, PeerMisbehaved, UsageError
from aiops.runtime.addresses import check_exposure, is_wildcard
from aiops.runtime.host_memory import HostMemory, hosts_of
from aiops.runtime.postoffice import Postoffice, RingNews
from aiops.runtime.ring_early import RingData, StrangerFrames
from aiops.runtime.ring_group import RingGroup
from aiops.runtime.ring_hosts import HostsRingGroup
from aiops.runtime.ring_meeting import MeetingRingGroup
from aiops.runtime.ring_shared import SharedRingGroup
from aiops.van.base import Address, Listener, Stream, Van
from aiops.van.link import Link
from aiops.wording import listed
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Frame
from aiops_protocol.handshake import Hello, Role, ServerHandshake
from aiops_protocol.ring_control import (
    RingEnter,
    RingFormed,
    RingHalt,
    RingMissing,
    RingVerdict,
    RingWanted,
)

__all__ = ["RingDesk"]

SLACK_S: Final = 5.0
"""How much longer than the time to enter to wait for the scheduler to say who is missing."""


class _Seat:
    """One ring by name: the newest generation here, and whether the next one is waited for."""

    def __init__(self) -> None:
        self.group: RingGroup | None = None
        self.formed: asyncio.Future[RingGroup] | None = None
        self.traffic = {"sent": 0, "received": 0}


class RingDesk:
    """All rings of a worker.

    Parameters
    ----------
    bind, advertise
        Where other members reach this worker.
    insecure
        Allow an address that other machines can reach, without authentication.
    transport
        "tcp", "shared-memory", or "auto": memory between members that are on one host.
    connections
        How many this worker opens to each other member.
    apart
        As for `HostMemory`.

    Attributes
    ----------
    memory
        What this worker shares with others of its host.
    connections
        As given.
    """

    def __init__(
        self,
        van: Van,
        postoffice: Postoffice,
        bind: Address,
        advertise: Address | None = None,
        *,
        insecure: bool = False,
        transport: str = "auto",
        connections: int = 1,
        apart: str = "",
    ) -> None:
        check_exposure(bind, insecure, "the ring's door at")
        self._van = van
        self._postoffice = postoffice
        self._bind = bind
        self._advertise = advertise
        self.connections = connections
        self.memory = HostMemory(transport, apart)
        self._listener: Listener | None = None
        self._opening: asyncio.Lock = asyncio.Lock()
        self._seats: dict[str, _Seat] = {}
        self._groups: list[RingGroup] = []  # also those that are over, until they are closed
        self._finished = False
        self._strangers: dict[Link, StrangerFrames] = {}  # connected, and not yet in a group
        postoffice.rings = self

    @property
    def listening(self) -> bool:
        """Whether the door is open."""
        return self._listener is not None

    # --- entering ---

    def group(self, name: str) -> RingGroup | None:
        """Return the newest generation of a ring here."""
        seat = self._seats.get(name)
        return seat.group if seat is not None else None

    async def enter(self, name: str, timeout_s: float) -> RingGroup:
        """Enter the next generation of a ring, and return it when it is complete.

        Raises
        ------
        BarrierTimeout
            Not everybody has come in time; `missing` names all who have not.
        CollectiveAborted
            The members of one host could not connect to each other.
        UsageError
            This worker has finished, another task of it waits to enter the same ring, or
            `transport` asks for what its members cannot do.

        Notes
        -----
        A call that was cancelled is taken back.
        """
        self._postoffice.check()
        if self._finished:
            raise UsageError(f"ring {name}: this worker has finished, and takes part in no ring")
        await self._open()
        seat = self._seats.setdefault(name, _Seat())
        if seat.formed is not None:
            raise UsageError(f"ring {name}: this worker waits to enter it already, in another task")
        loop = asyncio.get_running_loop()
        formed: asyncio.Future[RingGroup] = loop.create_future()
        seat.formed = formed
        address = self._public_address()
        enter = RingEnter(
            name=name,
            host=address.host,
            port=address.port,
            timeout_s=timeout_s,
            shared=self.memory.offer(),
        )
        self._postoffice.tell_ring(enter)
        try:
            async with asyncio.timeout(timeout_s + SLACK_S):
                group = await formed
        except TimeoutError as error:
            if isinstance(error, BarrierTimeout):
                raise
            text = f"ring {name}: the scheduler has not answered within {timeout_s + SLACK_S:g} s"
            raise BarrierTimeout(
                text, operation=f"ring {name}", elapsed_s=timeout_s + SLACK_S, missing=[]
            ) from error
        except asyncio.CancelledError:
            self._postoffice.tell_ring(msgspec.structs.replace(enter, timeout_s=0.0))
            if formed.done() and not formed.cancelled() and formed.exception() is None:
                _unwanted(formed.result())
            raise
        finally:
            seat.formed = None
        if isinstance(group, MeetingRingGroup):
            await group.meet(self.memory, timeout_s)
        return group

    async def _open(self) -> None:
        async with self._opening:
            if self._listener is None:
                self._listener = await self._van.listen(self._bind, self._accept)

    def _public_address(self) -> Address:
        assert self._listener is not None
        bound = self._listener.address
        if self._advertise is not None:
            return Address(self._advertise.host, self._advertise.port or bound.port)
        if is_wildcard(bound.host):
            return Address(self._postoffice.local_host, bound.port)
        return bound

    # --- the scheduler's word ---

    def message(self, message: RingNews) -> None:
        """Take what the scheduler says about a ring."""
        seat = self._seats.get(message.name)
        if seat is None:
            return
        match message:
            case RingFormed():
                self._formed(seat, message)
            case RingMissing(name=name, missing=missing):
                if seat.formed is not None and not seat.formed.done():
                    text = f"ring {name}: {len(missing)} missing: {listed(missing, '; ')}"
                    seat.formed.set_exception(
                        BarrierTimeout(text, operation=f"ring {name}", missing=missing)
                    )
            case RingWanted(generation=generation):
                if seat.group is not None and seat.group.formed.generation == generation:
                    seat.group.knock()
            case RingHalt(generation=generation):
                if seat.group is not None and seat.group.formed.generation == generation:
                    seat.group.halt(message)
            case RingVerdict(generation=generation):
                if seat.group is not None and seat.group.formed.generation == generation:
                    seat.group.verdict(message)

    def _formed(self, seat: _Seat, message: RingFormed) -> None:
        if seat.group is not None:
            seat.group.retire()
        hosts, refused = None, None
        try:
            hosts = hosts_of(message.members, self.memory.transport)
        except UsageError as error:
            refused = error
        group = self._group_of(seat, message, hosts)
        seat.group = group
        self._groups = [known for known in self._groups if not known.closed] + [group]
        if seat.formed is not None and not seat.formed.done():
            if refused is None:
                seat.formed.set_result(group)
            else:
                seat.formed.set_exception(refused)
        if refused is not None:
            group.stop("left", f"{group.me} takes no part: {refused}")
        elif seat.formed is None or seat.formed.cancelled():
            _unwanted(group)
        for link, kept in list(self._strangers.items()):
            if kept.frames and self._introduce(link, kept.frames[0]):
                _hand_on(group, link, kept.frames)

    def _group_of(self, seat: _Seat, message: RingFormed, hosts: Groups | None) -> RingGroup:
        """Return the generation of the kind that fits to where its members are."""
        kind: type[RingGroup] = RingGroup
        if hosts is not None and len(hosts) < len(message.members):
            kind = SharedRingGroup if len(hosts) == 1 else HostsRingGroup
        group = kind(
            *(self._van, self._postoffice, message.name, message, seat.traffic, self.connections)
        )
        if isinstance(group, HostsRingGroup):
            group.hosts = hosts or ()
        return group

    def failed(self, error: AiopsError) -> None:
        """End everything: nothing works any more."""
        for group in self._groups:
            group.fail(error)
        for seat in self._seats.values():
            if seat.formed is not None and not seat.formed.done():
                seat.formed.set_exception(error)

    # --- the door ---

    def _accept(self, stream: Stream) -> Link:
        joined = self._postoffice.joined
        handshake = ServerHandshake(
            Role.WORKER,
            secrets.token_bytes(32),
            bytes.fromhex(joined.job),
            epoch=self._postoffice.epoch,
            admit=self._admit,
        )

        def destination(frame: Frame, size: int) -> memoryview | None:
            place = getattr(link.owner, "place", None)
            return place(frame, size) if place is not None else None

        link = Link(stream, handshake, self, destination=destination, tag="a worker")
        return link

    def _admit(self, hello: Hello) -> ErrorCode:
        """Refuse a worker whose rank a later incarnation has taken."""
        for member in self._postoffice.members:
            older = member.role == "worker" and member.rank == hello.rank
            if older and hello.incarnation < member.incarnation:
                return ErrorCode.STALE_INCARNATION
        return ErrorCode.OK

    def link_ready(self, link: Link) -> None:
        """Wait for the first frame: it names ring and generation."""
        self._strangers[link] = StrangerFrames()

    def link_frame(self, link: Link, frame: Frame) -> None:
        """Give a connection to its group, or keep its frames until that is formed; bounded."""
        assert isinstance(frame, RingData)
        kept = self._strangers.get(link)
        if kept is None:
            return
        if not kept.frames and self._introduce(link, frame):
            link.owner.link_frame(link, frame)
            return
        if link in self._strangers and not kept.keep(frame):
            del self._strangers[link]
            link.close(ErrorCode.OUT_OF_WINDOW, "too much for a ring that is not formed here")

    def _introduce(self, link: Link, frame: Frame) -> bool:
        """Give a connection to the group that its first frame names, if that is known here."""
        assert isinstance(frame, RingData)
        for seat in self._seats.values():
            group = seat.group
            if group is None or group.formed.ring != frame.ring:
                continue
            if frame.generation > group.formed.generation:
                return False
            del self._strangers[link]
            hello = link.hello
            current = frame.generation == group.formed.generation and group.over is None
            if current and group.adopt(link, hello.rank, hello.incarnation):
                return True
            link.owner = _Nobody()
            link.close(ErrorCode.STALE_INCARNATION, f"ring {group.name} has gone on without you")
            return False
        return False

    def link_pinged(self, link: Link) -> None:
        """Nothing to do: the link answers."""

    def link_batch_end(self, link: Link) -> None:
        """Nothing is kept back until the end of a batch."""

    def link_drained(self, link: Link) -> None:
        """Nothing is sent to strangers."""

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Forget a connection that never came to a group."""
        self._strangers.pop(link, None)

    # --- the end ---

    def leave(self) -> None:
        """Take part in no ring any more; what this worker has confirmed reaches the others."""
        self._finished = True
        for group in self._groups:
            group.leave("has finished")

    async def close(self) -> None:
        """Close the door and every connection. Idempotent."""
        if self._listener is not None:
            await self._listener.close()
        for link in list(self._strangers):
            link.abort()
        for group in self._groups:
            group.retire()
            await group.wait_closed()
        self.memory.close()


def _hand_on(group: RingGroup, link: Link, frames: Sequence[RingData]) -> None:
    """Pass on what came before the group was formed."""
    try:
        for frame in frames:
            link.owner.link_frame(link, frame)
    except PeerMisbehaved as error:  # the talk with the scheduler, which waits, has no part in it
        group.stop("connection", str(error))


def _unwanted(group: RingGroup) -> None:
    """End a generation whose member has cancelled its entry: the others would wait for it."""
    group.stop("cancelled", f"{group.me} has cancelled its entry into ring {group.name}")


class _Nobody:
    """Owns a connection that is being closed."""

    def link_ready(self, link: Link) -> None:
        """Nothing follows."""

    def link_frame(self, link: Link, frame: Frame) -> None:
        """Drop it."""

    def link_pinged(self, link: Link) -> None:
        """Nothing to do."""

    def link_batch_end(self, link: Link) -> None:
        """Nothing to do."""

    def link_drained(self, link: Link) -> None:
        """Nothing to do."""

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Nothing to do."""
