"""One member of a ring, as another one sees it: the connection, opened when it is first needed.

Of two members the one that comes first in the list dials; so there is one connection for each pair,
or as many as that one was told to open, and none for pairs that exchange nothing. Each connection
of a pair is a `RingPeer` of its own (a lane): pieces say where they belong, so they may come over
any of them in any order. Each piece takes the lane with the least on its way.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final, Protocol

import numpy as np

from aiops.errors import AiopsError
from aiops.runtime.dialling import LinkPlan, open_link
from aiops.runtime.postoffice import Postoffice
from aiops.van.base import WRITE_LOW_WATER_BYTES, Address, Van
from aiops.van.link import Link
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Frame, RingBegin, RingConfirm, RingFrame
from aiops_protocol.handshake import Purpose, Role
from aiops_protocol.limits import EARLY_BYTES_MAX
from aiops_protocol.payload import Buffer
from aiops_protocol.ring_control import RingMember

__all__ = ["CONNECTIONS_MAX", "PeerOwner", "RingPeer"]


BATCH_BYTES: Final = 512 * 1024
"""Of a longer piece so much is read at a time: four members on two processors are then woken half
as often, and take 2 to 4 % less time for 64 MB; between two it makes no difference."""

CONNECTIONS_MAX: Final = 8
"""Between two members. More bring nothing where eight do not fill the link, and each has a megabyte
for what comes early."""


class PeerOwner(Protocol):
    """What a peer tells the group that it belongs to."""

    def peer_ready(self, peer: RingPeer) -> None:
        """Take note that frames may be sent."""
        ...

    def peer_frame(self, peer: RingPeer, frame: RingFrame) -> None:
        """Take a frame; its payload holds until this returns, unless it was given a place."""
        ...

    def peer_drained(self, peer: RingPeer) -> None:
        """Take note that there is room for more."""
        ...

    def peer_lost(self, peer: RingPeer, reason: str) -> None:
        """Take note that the connection is gone, or could not be made."""
        ...

    def place(self, peer: RingPeer, frame: Frame, size: int) -> memoryview | None:
        """Return where a payload that is coming belongs."""
        ...


class EarlyMemory:
    """Where pieces lie that come before their operation has begun here.

    Always the same memory, because fresh pages cost more than the copy into them.
    """

    def __init__(self) -> None:
        self._memory: memoryview | None = None
        self._used = 0
        self._kept = 0  # pieces that lie here
        self._last: memoryview | None = None

    def place(self, size: int) -> memoryview | None:
        """Return memory for a piece that is coming, if there is room."""
        if self._memory is None:
            self._memory = np.empty(EARLY_BYTES_MAX, np.uint8).data
        if self._used + size > EARLY_BYTES_MAX:
            return None
        self._last = self._memory[self._used : self._used + size]
        return self._last

    def keeps(self, payload: Buffer) -> bool:
        """Keep a piece that has come, if it lies here."""
        if payload is not self._last:
            return False
        self._used += len(payload)
        self._kept += 1
        self._last = None
        return True

    def done(self, payload: Buffer) -> None:
        """Let a piece go; with the last one all the memory is free again."""
        if self._kept and isinstance(payload, memoryview):
            self._kept -= 1
            if not self._kept:
                self._used = 0


class RingPeer:
    """The connection to one other member.

    Attributes
    ----------
    index
        Its place in the list of members.
    lane
        Which of the connections to it this is, from 0.
    lanes
        All of them, in the order in which they are used if they are equally free.
    link
        The connection, once it is ready.
    early
        What it sends before this member is as far.
    """

    def __init__(
        self,
        index: int,
        member: RingMember,
        owner: PeerOwner,
        *,
        lane: int = 0,
        connections: int = 1,
    ) -> None:
        self.index = index
        self.lane = lane
        self.member = member
        self.link: Link | None = None
        self.early = EarlyMemory()
        self._owner = owner
        self._dialling: asyncio.Task[None] | None = None
        self._waiting: list[RingBegin | RingConfirm] = []  # small frames, for when it is ready
        self._over = False
        self.lanes = [self]
        while len(self.lanes) < connections:
            self._add_lane()

    def _add_lane(self) -> RingPeer:
        lane = RingPeer(self.index, self.member, self._owner, lane=len(self.lanes))
        lane.lanes = self.lanes
        self.lanes.append(lane)
        return lane

    def __str__(self) -> str:
        return f"worker {self.member.rank} ({self.member.name})"

    # --- opening ---

    def dial(self, van: Van, postoffice: Postoffice, timeout_s: float) -> None:
        """Begin to connect all lanes, once; the group hears how it ends."""
        for lane in self.lanes:
            if lane.link is None and lane._dialling is None and not lane._over:
                coroutine = lane._dial(van, postoffice, timeout_s)
                lane._dialling = asyncio.get_running_loop().create_task(coroutine)

    async def _dial(self, van: Van, postoffice: Postoffice, timeout_s: float) -> None:
        joined = postoffice.joined
        plan = LinkPlan(
            Address(self.member.host, self.member.port),
            str(self),
            Role.WORKER,
            Role.WORKER,
            Purpose.PEER,
            job=bytes.fromhex(joined.job),
            rank=joined.rank,
            incarnation=joined.incarnation,
            known=True,
            destination=self.place,
        )
        try:
            await open_link(van, plan, self, timeout_s=timeout_s)
        except AiopsError as error:
            if not self._over:
                self._owner.peer_lost(self, str(error))

    def adopt(self, link: Link) -> None:
        """Take over a connection that the other side has opened; it says how many there are."""
        lane = next((lane for lane in self.lanes if lane.link is None), self)
        if lane.link is not None and len(self.lanes) < CONNECTIONS_MAX:
            lane = self._add_lane()
        link.owner = lane
        link.tag = str(self)
        lane.link_ready(link)

    def place(self, frame: Frame, size: int) -> memoryview | None:
        """Return where a payload that is coming belongs."""
        return self._owner.place(self, frame, size)

    # --- sending ---

    @property
    def takes_next(self) -> bool:
        """Whether the next piece should take this lane: it has room, and the least on its way.

        What counts is what the other host has not acknowledged. What the kernel has not taken says
        too little: it takes megabytes, of which a window lets a part go. A lane with little on its
        way is as good as an idle one, so on a quick link all goes over the first.
        """
        if self.link is None or self.link.stream.full:
            return False
        if len(self.lanes) == 1:
            return True
        best, least = self, math.inf
        for lane in self.lanes:
            if lane.link is None or lane.link.stream.full:
                continue
            load = max(WRITE_LOW_WATER_BYTES, lane.link.stream.unacknowledged_bytes)
            if load < least:
                best, least = lane, load
            if load == WRITE_LOW_WATER_BYTES:
                break
        return best is self

    def send(self, frame: RingBegin | RingConfirm) -> None:
        """Send a small frame over this lane, now or as soon as there is a connection."""
        if self.link is not None:
            self.link.send(frame)
        elif not self._over:
            self._waiting.append(frame)

    def introduce(self, begin: RingBegin) -> None:
        """Let the other side know the lanes after the first one, so that it uses them, too."""
        for lane in self.lanes[1:]:
            lane.send(begin)

    def own(self) -> None:
        """Copy the pieces that wait in all lanes: their memory is wanted back."""
        for lane in self.lanes:
            if lane.link is not None:
                lane.link.stream.own()

    # --- ending ---

    def close(self) -> None:
        """End all lanes in order: what is written still arrives."""
        for lane in self.lanes:
            lane._end()
            if lane.link is not None:
                lane.link.close()

    def abort(self) -> None:
        """End all lanes at once; memory that was lent to them is free when this returns."""
        for lane in self.lanes:
            lane._end()
            if lane.link is not None:
                lane.link.abort()

    def _end(self) -> None:
        self._over = True
        self._waiting.clear()
        if self._dialling is not None:
            self._dialling.cancel()

    @property
    def closed(self) -> bool:
        """Whether nothing of it is left."""
        return all(lane._closed for lane in self.lanes)

    @property
    def _closed(self) -> bool:
        dialled = self._dialling is None or self._dialling.done()
        return self._over and dialled and (self.link is None or self.link.ended)

    async def wait_closed(self) -> None:
        """Wait until nothing of it is left; after `close` or `abort`."""
        for lane in self.lanes:
            if lane._dialling is not None:
                await asyncio.gather(lane._dialling, return_exceptions=True)
            if lane.link is not None:
                await lane.link.wait_lost()

    # --- LinkOwner ---

    def link_ready(self, link: Link) -> None:
        """Send what has waited for the connection."""
        if self._over or self.link is not None:
            link.close(ErrorCode.UNEXPECTED_FRAME, "this member has all its connections already")
            return
        self.link = link
        link.stream.batch_bytes = BATCH_BYTES
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            link.send(frame)
        self._owner.peer_ready(self)

    def link_frame(self, link: Link, frame: Frame) -> None:
        """Pass on what has come."""
        assert isinstance(frame, RingFrame)
        self._owner.peer_frame(self, frame)

    def link_pinged(self, link: Link) -> None:
        """Nothing to do: the link answers."""

    def link_batch_end(self, link: Link) -> None:
        """Nothing is kept back until the end of a batch."""

    def link_drained(self, link: Link) -> None:
        """Send more."""
        self._owner.peer_drained(self)

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Tell the group, unless it has ended the connection itself."""
        if not self._over and link is self.link:
            said = link.goodbye.text if link.goodbye is not None else ""
            self._owner.peer_lost(self, str(error) if error else said or f"{self} has hung up")
