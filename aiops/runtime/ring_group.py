"""One generation of a ring at one member: carries operations out over connections to the others.

What is sent and combined is decided in `aiops.collective`, who the members are and what becomes of
an operation that stops by the scheduler (`aiops.roles.rings`). Whatever goes wrong ends the whole
generation: a new one is cheap, and half of an old one is worth nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from aiops.collective.operation import Checksum, UnexpectedPiece
from aiops.errors import AiopsError, PeerMisbehaved
from aiops.runtime.postoffice import Postoffice
from aiops.runtime.ring_call import RingCall, RingWork
from aiops.runtime.ring_early import EarlyFrames
from aiops.runtime.ring_errors import aborted, call_name
from aiops.runtime.ring_peer import RingPeer
from aiops.van.base import Van
from aiops.van.link import Link
from aiops_protocol.frames import Frame, RingBegin, RingConfirm, RingFrame, RingPiece
from aiops_protocol.limits import OPERATIONS_AHEAD_MAX, TEXT_BYTES_MAX
from aiops_protocol.ring_control import RingFormed, RingHalt, RingHalted, RingVerdict

__all__ = ["RingGroup"]

WARN_S: Final = 10.0
"""How often the log names whom a call waits for."""

NEWS_PERIODS: Final = 4
"""How many heartbeat periods to wait for the scheduler to say why a connection has ended: it takes
two to be sure of a death, and one to look. Without news the connection itself was at fault."""

VERDICT_TIMEOUT_S: Final = 60.0
"""How long a call whose end is open may wait for the verdict. The scheduler waits for live members
only, and finds dead ones by their heartbeats; this is for one whose event loop stands still."""

_WANTED: Final = 1


class RingGroup:
    """The members of one generation, and the operations among them.

    Attributes
    ----------
    over
        Why there are no more operations in this generation, or `None`.
    wanted
        Whether somebody waits to enter the ring, as all members know it after the last operation.
    done
        Operations that are in effect.
    traffic
        Bytes of pieces `sent` and `received`.
    """

    def __init__(
        self,
        van: Van,
        postoffice: Postoffice,
        name: str,
        formed: RingFormed,
        traffic: dict[str, int],
        connections: int = 1,
    ) -> None:
        self.name = name
        self.formed = formed
        self.over: AiopsError | None = None
        self.wanted = False
        self.done = 0
        self.traffic = traffic
        self._knock = False  # the scheduler has said that somebody waits
        self._van = van
        self._postoffice = postoffice
        self._loop = asyncio.get_running_loop()
        ranks = [member.rank for member in formed.members]
        self.index = ranks.index(postoffice.joined.rank)
        self.size = len(ranks)
        self.peers = {
            index: RingPeer(index, member, self, connections=connections)
            for index, member in enumerate(formed.members)
            if index != self.index
        }
        self._calls: deque[RingCall] = deque()  # those that have begun, in order
        self._queue: deque[RingCall] = deque()  # those whose turn comes later
        self._begun = 0
        self._early = EarlyFrames()
        self._landing: dict[tuple[int, int], memoryview] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._reported = False
        self._waited = ""  # what this member would not wait for any longer

    def __str__(self) -> str:
        return f"ring {self.name} (generation {self.formed.generation}, {self.size} members)"

    def adopt(self, link: Link, rank: int, incarnation: int) -> bool:
        """Take over a connection that another member has opened; False if it is none."""
        for peer in self.peers.values():
            if (peer.member.rank, peer.member.incarnation) == (rank, incarnation):
                peer.adopt(link)
                return True
        return False

    # --- calls ---

    def call(self, work: RingWork, timeout_s: float) -> RingCall:
        """Begin an operation, or put it behind those that are on their way."""
        call = RingCall(work, self.index, self.size, timeout_s)
        call.timer = self._loop.call_later(min(WARN_S, timeout_s), self._look, call)
        self._begin_in_turn(call)
        return call

    def _begin_in_turn(self, call: RingCall) -> None:
        self._queue.append(call)
        self._begin_calls()

    def _begin_calls(self) -> None:
        while self._queue and len(self._calls) < OPERATIONS_AHEAD_MAX and self.over is None:
            call = self._queue.popleft()
            self._begun += 1
            call.begin(self._begun, self._landing)
            self._calls.append(call)
            self._announce(call)
            for peer, frame in self._early.pop(call.number):
                if self.over is None:
                    self._take_early(call, peer, frame)
                peer.early.done(frame.payload)
            self._advance()

    def _announce(self, call: RingCall) -> None:
        """Tell the neighbours and partners that the operation has begun, and begin to send."""
        begin = RingBegin(
            operation=call.number,
            ring=self.formed.ring,
            generation=self.formed.generation,
            payload=call.work.description.encode()[:TEXT_BYTES_MAX],
        )
        for index in self._partners(call):
            peer = self.peers[index]
            if index > self.index:
                peer.dial(self._van, self._postoffice, call.timeout_s)
            if not self._pump_peer(call, peer, begin):
                peer.send(begin)
            peer.introduce(begin)

    def _partners(self, call: RingCall) -> list[int]:
        """Return all members that this one has to do with in a call; they have with it, too."""
        neighbours = {(self.index + step) % self.size for step in (-1, 1)}
        exchanging = {*call.work.plan.peers, *call.confirmation.partners()}
        return sorted((neighbours | exchanging) - {self.index})

    def cancel(self, call: RingCall) -> None:
        """Give a call up; if this member has confirmed it, the others may yet have its result.

        Afterwards nothing looks at the memory of the call any more.
        """
        if call.future.done() and not call.future.cancelled():
            return
        call.renounce()
        if not call.confirmation.started:
            self.stop("cancelled", f"{self.me} has cancelled {call_name(self.name, call)}")
            return
        for index in call.work.plan.peers:
            self.peers[index].own()

    # --- pieces ---

    def _pump(self, call: RingCall) -> None:
        sending = True
        while sending:  # what is sent may have held back something for another member
            ready = call.operation.ready()
            lanes = [lane for index in ready for lane in self.peers[index].lanes]
            sending = sum(self._pump_peer(call, lane) for lane in lanes) > 0

    def _pump_peer(self, call: RingCall, peer: RingPeer, before: RingBegin | None = None) -> bool:
        """Send what is ready for one member, as far as it takes it; return whether anything was.

        `before` leaves together with the first piece, if there is one.
        """
        link = peer.link
        if link is None or call.number == 0:
            return False
        any_sent = False
        operation = call.operation
        while peer.takes_next:
            ready = operation.next_send(peer.index)
            if ready is None:
                break
            number, piece = ready
            codec, parameter, payload = operation.wire(piece)
            if not call.may_send(peer.index, len(payload)):
                break
            call.count_early(peer.index, len(payload))
            begin, count = operation.words(piece)
            frame = RingPiece(
                operation=call.number,
                ring=self.formed.ring,
                generation=self.formed.generation,
                begin=begin,
                message=piece.message,
                count=count,
                codec=codec,
                parameter=parameter,
                payload=payload,
            )
            if before is not None and piece.borrowed:
                link.send_together(before, frame)
            else:
                if before is not None:
                    link.send(before)
                link.send(frame, borrowed=piece.borrowed, checksum=operation.checksum(number))
            before = None
            self.traffic["sent"] += len(payload)
            operation.sent(number)
            any_sent = True
        return any_sent

    def _advance(self) -> None:
        """Confirm and end whatever is so far, in order."""
        if self.over is not None:
            return
        in_order = True
        for call in list(self._calls):
            if not call.confirmation.started:
                self._pump(call)
                in_order = in_order and self._complete(call)
                if in_order:
                    self._send_confirms(call, call.confirm(_WANTED * self._knock))
        while self._calls and self._calls[0].confirmation.done:
            call = self._calls.popleft()
            self._take_effect(call)
        self._begin_calls()

    def _complete(self, call: RingCall) -> bool:
        """Whether all of the result that this member needs is there."""
        return call.operation.finished

    def _take_effect(self, call: RingCall) -> None:
        self.done = call.number
        self.wanted = bool(call.confirmation.flags & _WANTED)
        call.succeed()

    def _send_confirms(self, call: RingCall, told: list[tuple[int, int, int]]) -> None:
        for number, index, flags in told:
            frame = RingConfirm(
                operation=call.number,
                ring=self.formed.ring,
                generation=self.formed.generation,
                message=number,
                status=flags,
            )
            self.peers[index].send(frame)

    # --- what comes ---

    def place(self, peer: RingPeer, frame: Frame, size: int) -> memoryview | None:
        """Return where a payload that is coming belongs; `None` for memory of its own."""
        if not isinstance(frame, RingPiece):
            return None
        call = self._find(frame.operation)
        if call is None:
            return peer.early.place(size)
        try:
            where = frame.message, frame.begin, frame.count
            return call.operation.destination(peer.index, *where, lane=peer.lane)
        except UnexpectedPiece:
            return None  # `peer_frame` says so

    def _find(self, number: int) -> RingCall | None:
        return next((call for call in self._calls if call.number == number), None)

    def peer_frame(self, peer: RingPeer, frame: RingFrame) -> None:
        """Take a frame of another member."""
        if self.over is not None:
            return
        if frame.operation > self._begun:
            self._keep(peer, frame)
            return
        call = self._find(frame.operation)
        if call is None and isinstance(frame, RingBegin):
            return  # overtaken by what came over other connections
        if call is None:
            raise self._misbehaved(peer, f"{frame} for an operation that is over")
        assert peer.link is not None
        self._take(call, peer, frame, peer.link.payload_checksum)
        if self.over is None:
            self._advance()

    def _keep(self, peer: RingPeer, frame: RingFrame) -> None:
        """Keep what comes for an operation that this member has not begun; bounded."""
        ahead = frame.operation - self._begun
        if ahead > OPERATIONS_AHEAD_MAX or not self._early.keep(peer, frame):
            raise self._misbehaved(peer, f"{frame} too far ahead")

    def _take(
        self, call: RingCall, peer: RingPeer, frame: RingFrame, checksum: Checksum | None = None
    ) -> None:
        index = peer.index
        try:
            if isinstance(frame, RingPiece):
                call.begun.add(index)
                self.traffic["received"] += len(frame.payload)
                call.operation.receive(
                    *(index, frame.message, frame.begin, frame.count),
                    *(frame.payload, frame.codec, frame.parameter, checksum),
                )
            elif isinstance(frame, RingConfirm):
                self._send_confirms(
                    call, call.confirmation.heard(index, frame.message, frame.status)
                )
            else:
                self._compare(call, peer, bytes(frame.payload).decode("utf-8", "replace"))
        except UnexpectedPiece as error:
            raise self._misbehaved(peer, str(error)) from error

    def _take_early(self, call: RingCall, peer: RingPeer, frame: RingFrame) -> None:
        try:
            self._take(call, peer, frame)
        except PeerMisbehaved as error:  # no connection waits for this, which would end with it
            self.stop("connection", str(error))

    def _compare(self, call: RingCall, peer: RingPeer, theirs: str) -> None:
        ours = call.work.description.encode()[:TEXT_BYTES_MAX].decode("utf-8", "replace")
        if ours == theirs:
            call.begun.add(peer.index)
            return
        self.stop(
            "mismatch",
            f"operation {call.number or self._begun + 1} of ring {self.name}: {self.me} calls "
            f"{ours}, but {peer} calls {theirs}; all members must make the same calls in the same "
            "order",
        )

    def _misbehaved(self, peer: RingPeer, what: str) -> PeerMisbehaved:
        return PeerMisbehaved(f"{peer} of ring {self.name} sent {what}")

    def peer_ready(self, peer: RingPeer) -> None:
        """Send what has waited for the connection."""
        self.peer_drained(peer)

    def peer_drained(self, peer: RingPeer) -> None:
        """Send more to a member whose connection has room."""
        if self.over is None:
            self._advance()

    def peer_lost(self, peer: RingPeer, reason: str) -> None:
        """Note the end of a connection; a dead member is announced by the scheduler first."""
        if self.over is None:
            text = f"{self.me} has lost the connection to {peer}: {reason}"
            news_s = NEWS_PERIODS * self._postoffice.joined.heartbeat_s
            self._timers.append(self._loop.call_later(news_s, self.stop, "connection", text))

    # --- waiting ---

    def _look(self, call: RingCall) -> None:
        """Look whether a call has had its time; say now and then whom it waits for."""
        elapsed_s = call.elapsed_s
        if elapsed_s < call.timeout_s - 0.001:
            self._postoffice.log.warning(
                "collective_waiting",
                ring=self.name,
                operation=call_name(self.name, call),
                reason=self._missing(call),
                seconds=round(elapsed_s, 1),
            )
            next_s = min(WARN_S, call.timeout_s - elapsed_s)
            call.timer = self._loop.call_later(next_s, self._look, call)
            return
        text = f"{call_name(self.name, call)}: after {elapsed_s:.2f} s {self._missing(call)}"
        self.stop("timeout", f"{self.me} gives up: {text}", mine=text)

    def _missing(self, call: RingCall) -> str:
        return call.missing(self._partners(call), self.peers)

    @property
    def me(self) -> str:
        """Who this worker is, for messages."""
        return f"worker {self._postoffice.joined.rank} ({self._postoffice.joined.name})"

    # --- the end ---

    def stop(self, cause: str, text: str, *, mine: str = "") -> None:
        """End this generation for all members, for a reason that was found here."""
        if self.over is None and self._postoffice.failure is None:
            self._halt(cause, text, (), mine=mine)
            self._report(cause, text)

    def halt(self, message: RingHalt) -> None:
        """End this generation: the scheduler says why."""
        if self.over is None:
            self._halt(message.cause, message.text, tuple(message.lost))
        self._report("", "")

    def _report(self, cause: str, text: str) -> None:
        if self._reported:
            return
        self._reported = True
        self._postoffice.tell_ring(
            RingHalted(
                name=self.name,
                generation=self.formed.generation,
                done=self.done,
                cause=cause,
                text=text[:TEXT_BYTES_MAX],
            )
        )

    def _halt(self, cause: str, text: str, lost: tuple[int, ...], *, mine: str = "") -> None:
        """Stop everything. Who has not confirmed a call knows that it is in effect nowhere."""
        self._waited = mine
        self.over = aborted(self.name, None, cause, text, lost)
        for peer in self.peers.values():
            peer.abort()
        self._early.clear()
        self._cancel_timers()
        doubtful = deque(call for call in self._calls if call.confirmation.started)
        failed = [call for call in self._calls if not call.confirmation.started]
        self._calls = doubtful
        for call in [*failed, *self._queue]:
            call.fail(aborted(self.name, call, cause, mine or text, lost, timed_out=bool(mine)))
        self._queue.clear()
        if doubtful:
            self._timers.append(self._loop.call_later(VERDICT_TIMEOUT_S, self._no_verdict))

    def verdict(self, message: RingVerdict) -> None:
        """End the calls whose end was open, one way or the other."""
        while self._calls:
            call = self._calls.popleft()
            if call.number <= message.done:
                self._take_effect(call)
            else:
                cause, mine, lost = message.cause, self._waited, tuple(message.lost)
                mine = mine if cause == "timeout" else ""
                text = mine or message.text
                call.fail(aborted(self.name, call, cause, text, lost, timed_out=bool(mine)))
        self._cancel_timers()

    def _no_verdict(self) -> None:
        text = (
            f"the scheduler has not said within {VERDICT_TIMEOUT_S:g} s whether it is in effect "
            "for the others; here it is not"
        )
        first = self._calls[0] if self._calls else None
        self.fail(aborted(self.name, first, "connection", text, ()))

    def fail(self, error: AiopsError) -> None:
        """End everything with this error: nothing works any more."""
        self.over = self.over or error
        for peer in self.peers.values():
            peer.abort()
        calls, self._calls = [*self._calls, *self._queue], deque()
        self._queue.clear()
        self._early.clear()
        for call in calls:
            call.fail(error)
        self._cancel_timers()

    def leave(self, why: str = "has left the ring") -> None:
        """Leave in order: what this member has confirmed still reaches the others."""
        text = f"{self.me} {why}"
        if self._calls or self._queue:
            self.stop("left", text)
        elif self.over is None:
            self._report("left", text)
            self.over = aborted(self.name, None, "left", "this worker has left it, or finished", ())
            for peer in self.peers.values():
                peer.close()
            self._cancel_timers()

    def retire(self) -> None:
        """Let go of everything: there is a later generation, or the worker has ended."""
        if self.over is None:
            self.fail(aborted(self.name, None, "left", "this worker has gone on without it", ()))

    @property
    def closed(self) -> bool:
        """Whether nothing of it is left."""
        return self.over is not None and all(peer.closed for peer in self.peers.values())

    async def wait_closed(self) -> None:
        """Wait until no connection is left."""
        for peer in self.peers.values():
            await peer.wait_closed()

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def knock(self) -> None:
        """Note that somebody waits to enter; all members learn of it at the same operation."""
        self._knock = True
        if self.size == 1:
            self.wanted = True
