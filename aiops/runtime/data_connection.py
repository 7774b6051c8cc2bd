"""DataConnection: one server as a customer sees it: its channel, and the connection it moves.

A lost connection is opened again and what was unanswered is sent again, byte for byte; the
server recognises repeats. What the answers mean to the calls is the customer's business.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final, Protocol

from aiops.compression.pull_gate import Arrivals
from aiops.errors import AiopsError, ConnectionLost, DialFailed, PeerMisbehaved
from aiops.observability import ByteCounters
from aiops.roles.patience import Patience, Sight, Step
from aiops.roles.requests import Channel, Part
from aiops.roles.retries import Retries
from aiops.runtime.dialling import LinkPlan, open_link
from aiops.runtime.postoffice import Postoffice
from aiops.runtime.probe import Probe
from aiops.van.base import Address, Van
from aiops.van.link import Link
from aiops_protocol.control import Member
from aiops_protocol.errors import ErrorCode, HandshakeRefused
from aiops_protocol.frames import Frame, Goodbye, Reply
from aiops_protocol.handshake import Purpose, Role
from aiops_protocol.payload import Buffer
from aiops_protocol.queries import mark

__all__ = ["DataConnection"]

PASSED_OVER_RTOS: Final = 3
"""A mutation unanswered for so many RTOs, while later requests are answered, is asked about."""

PROBE_RTOS: Final = 5
PROBE_S_MIN: Final = 1.0
PROBE_S_MAX: Final = 10.0
"""How long a probe may take: it opens a connection, shakes hands and asks, four ways and back."""

RECONNECT_TIMEOUT_S: Final = 30.0
"""How often it is said that a lost data connection cannot be opened again, and asked whether there
is any sense in it: while the scheduler counts the server as a member, there is. Calls end by their
own deadlines."""

FINAL_CODES: Final = frozenset({ErrorCode.OK, ErrorCode.SHUTTING_DOWN, ErrorCode.WRONG_JOB})
"""Goodbyes after which calling again is useless. Others, such as a checksum that is wrong, say
that this connection was damaged; the requests are sent again over a new one."""


class Answers(Protocol):
    """Who takes the answers of a server."""

    def answered(self, server: DataConnection, reply: Reply) -> None:
        """Take one answer; its payload holds until this returns."""
        ...

    def unreachable(self, server: DataConnection) -> None:
        """Take note that nothing will be sent to this server any more: `server.failure`."""
        ...


class DataConnection:
    """The channel to one server, over one connection after the other.

    Attributes
    ----------
    link
        The connection, or `None` while there is none.
    failure
        Why nothing will be sent there any more, or empty.
    trouble
        Why there is no connection at the moment, or empty.
    arrivals
        Who hears when answers begin to come and end, if anybody.
    asked, replaced
        How often the server was asked over a silent connection what it has of what is owed; and
        connections that were given up because they were silent while the server answered.
    """

    def __init__(
        self,
        van: Van,
        postoffice: Postoffice,
        member: Member,
        answers: Answers,
        counters: ByteCounters,
        customer: int = 0,
    ) -> None:
        self.member = member
        self.channel = Channel(session=customer)
        self.channel.epoch = postoffice.epoch
        self.link: Link | None = None
        self.failure = ""
        self.trouble = ""
        self._van = van
        self._postoffice = postoffice
        self._answers = answers
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._opening: asyncio.Task[None] | None = None
        self._retries = Retries(self._loop.time())
        self._patience = Patience(random.random)
        self._probing: asyncio.Task[None] | None = None
        self._asked = (0, 0)  # bytes sent before and after the last question
        self._asked_at = 0.0
        self.asked = 0
        self.replaced = 0
        self.arrivals: Arrivals | None = None
        self._gone = [0, 0]  # bytes sent, received over connections that have ended
        self._closed = False

    def __str__(self) -> str:
        member = self.member
        return f"server {member.rank} ({member.name}) at {member.host}:{member.port}"

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes sent and received, headers included; and what silence has led to, in times."""
        sent, received = self._gone
        if self.link is not None:
            sent += self.link.bytes_sent
            received += self.link.bytes_received
        return {
            "sent": sent,
            "received": received,
            "reconnections": self._retries.reconnections,
            "asked": self.asked,
            "replaced": self.replaced,
        }

    # --- the connection ---

    async def open(self, timeout_s: float) -> None:
        """Connect, trying for so long."""
        await open_link(self._van, self._plan(), self, timeout_s=timeout_s)

    def _plan(self) -> LinkPlan:
        joined = self._postoffice.joined
        return LinkPlan(
            Address(self.member.host, self.member.port),
            f"server {self.member.rank}",
            Role.WORKER,
            Role.SERVER,
            Purpose.DATA,
            job=bytes.fromhex(joined.job),
            rank=joined.rank,
            incarnation=joined.incarnation,
            customers=self.channel.session + 1,
            known=True,
            destination=self._place,
        )

    def link_ready(self, link: Link) -> None:
        """Use a new connection: first what was unanswered and has not arrived, then what waits."""
        self.link = link
        self.trouble = ""
        self._patience.begin(self._loop.time())
        self._asked = (0, 0)
        self.channel.window_bytes = link.welcome.window_bytes
        for header, payload in self.channel.ask():
            self._send_question(link, header, payload)
        self.pump()

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Open the connection again, unless this is the end."""
        if self.link is not link:
            return
        self.link = None
        self._gone[0] += link.bytes_sent
        self._gone[1] += link.bytes_received
        self.channel.lost(link.bytes_sent)
        if self.arrivals is not None:
            self.arrivals.lost(self.member.rank)
        if self._closed or self._postoffice.failure is not None:
            return
        goodbye = link.goodbye
        if goodbye is not None and goodbye.code == ErrorCode.STALE_INCARNATION:
            # Known to this server before the scheduler could tell: it is out of reach, perhaps.
            self._postoffice.given_up(str(self), goodbye.text)
        elif goodbye is not None and goodbye.code in FINAL_CODES and self._postoffice.reachable:
            # Without a scheduler servers end, too; the blame for that is not theirs.
            self._fail(f"{self} ended the connection: {goodbye.text}")
        else:
            self.trouble = _why(error, goodbye)
            self._postoffice.log.warning("connection_lost", server=str(self), reason=self.trouble)
            self._opening = self._loop.create_task(self._open_again())

    async def _open_again(self) -> None:
        channel = self.channel
        try:
            pause_s = self._retries.pause_s(self._loop.time(), channel.settled, random.random())
            while True:
                await asyncio.sleep(pause_s)
                try:
                    await self.open(RECONNECT_TIMEOUT_S)
                    return
                except DialFailed as error:
                    if not self._is_member():
                        raise
                    self.trouble = str(error)
                    self._postoffice.log.warning("unreachable", server=str(self), reason=str(error))
                pause_s = self._retries.pause_s(self._loop.time(), channel.settled, random.random())
        except AiopsError as error:
            refusal = error.__cause__
            stale = ErrorCode.STALE_INCARNATION
            if isinstance(refusal, HandshakeRefused) and refusal.reason == stale:
                self._postoffice.given_up(str(self), str(refusal))
            else:
                self._fail(f"{self} is gone: {error}")
        finally:
            if self._opening is asyncio.current_task():
                self._opening = None

    def _is_member(self) -> bool:
        """Whether the scheduler counts this server as alive: then only the way there is broken."""
        mine = self.member
        return any(
            (member.role, member.rank, member.incarnation)
            == (mine.role, mine.rank, mine.incarnation)
            for member in self._postoffice.members
        )

    def _fail(self, text: str) -> None:
        self.failure = text
        self._answers.unreachable(self)

    async def close(self) -> None:
        """Say goodbye and wait for the end of the connection. Idempotent."""
        self._closed = True
        tasks = [task for task in (self._opening, self._probing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        link = self.link
        if link is not None:
            link.close()
            await link.wait_lost()

    # --- silence ---

    def look(self, now: float) -> None:
        """See whether the connection moves, and do about it what `Patience` says."""
        link, channel = self.link, self.channel
        if link is None or not link.ready:
            return
        sent = link.bytes_sent
        acknowledged = sent - link.stream.unacknowledged_bytes
        before, after = self._asked
        if sent == after:  # a question that was taken on the way is no sign of life
            acknowledged = min(acknowledged, before)
        rto_s = channel.trips.rto_s(channel.bytes_in_flight)
        waits = channel.settled < channel.sent
        owed = waits and channel.owed
        step = self._patience.look(
            Sight(link.bytes_received + acknowledged, owed, waits, rto_s), now
        )
        if channel.questions.forgotten:
            self._replace(link, "the server does not know what was sent over it")
        elif step is Step.PROBE:
            self._probe(link, rto_s)
        elif step is Step.ASK or self._passed_over(now, rto_s):
            self._ask(link, now)

    def _passed_over(self, now: float, rto_s: float) -> bool:
        patience_s = PASSED_OVER_RTOS * rto_s
        due = now - self._asked_at > patience_s
        return due and self.channel.passed_over(now, patience_s)

    def _ask(self, link: Link, now: float) -> None:
        """Ask over the connection itself what has become of what is owed."""
        self._asked_at = now
        self.asked += 1
        before = link.bytes_sent
        for header, payload in self.channel.ask_about_owed():
            self._send_question(link, header, payload)
        self._asked = (before, link.bytes_sent)

    def _send_question(self, link: Link, header: bytes, payload: Buffer) -> None:
        self._counters.control_sent += len(header) + len(payload)
        link.send_encoded(header, payload, borrowed=False)

    def _probe(self, link: Link, rto_s: float) -> None:
        if self._probing is not None:
            self._probing.cancel()
        timeout_s = min(max(PROBE_RTOS * rto_s, PROBE_S_MIN), PROBE_S_MAX)
        self._probing = self._loop.create_task(self._run_probe(link, timeout_s))

    async def _run_probe(self, link: Link, timeout_s: float) -> None:
        try:
            received = await Probe(self._van, self._plan(), mark(link.nonce)).run(timeout_s)
        except PeerMisbehaved:
            received = 0  # it lives, and wants no connection: the next one will tell why
        except AiopsError:
            self._patience.probe_failed(self._loop.time())
            return
        finally:
            if self._probing is asyncio.current_task():
                self._probing = None
        now = self._loop.time()
        if self._patience.probe_answered(received, now) is Step.REPLACE and self.link is link:
            silent_s = self._patience.silent_s(now)
            self._replace(link, f"nothing has moved for {silent_s:.1f} s, and the server answers")

    def _replace(self, link: Link, why: str) -> None:
        """Give a connection up; the next one begins with what was unanswered."""
        self.replaced += 1
        text = f"the connection to {link} was given up: {why}"
        link.abort(ConnectionLost(text, peer=str(link), retryable=True))

    def excuse(self, late_s: float) -> None:
        """Do not count this time as silence: this process was held up, answers may lie unread."""
        self._patience.excuse(late_s)

    # --- sending ---

    def submit(self, part: Part, now: float) -> None:
        """Send a part, now if nothing is before it and there is room."""
        link = self.link
        if link is None or link.stream.full or not self.channel.pass_at_once(part, now):
            # An answer, room in the stream or a new connection will move it.
            self.channel.submit(part)
        else:
            self._send(link, part)

    def pump(self) -> None:
        """Send what waits, as far as there is room."""
        link = self.link
        if link is None or not link.ready:
            return
        now = self._loop.time()
        while (part := self.channel.next_part(now)) is not None:
            self._send(link, part)
            if link.stream.full:
                break

    def _send(self, link: Link, part: Part) -> None:
        size = len(part.header) + len(part.payload)
        counters = self._counters
        if part.resent:
            counters.retransmit_sent += size
        elif part.outbox is None:
            counters.pull_sent += size
        else:
            counters.push_sent += size
        link.send_encoded(part.header, part.payload, borrowed=True)
        part.sent_to = link.bytes_sent

    def own(self) -> None:
        """Copy what is borrowed and unsent: a lender wants its memory back."""
        if self.link is not None:
            self.link.stream.own()

    def abandon(self, part: Part) -> None:
        """Give the memory of an answer back to the caller, even if it is half received."""
        if part.into is not None:
            if self.link is not None:
                self.link.abandon(part.into)
            part.into = None

    # --- the rest of what a link tells ---

    def link_frame(self, link: Link, frame: Frame) -> None:
        """Take one answer."""
        if isinstance(frame, Reply):
            if self.arrivals is not None:
                self.arrivals.end((self.member.rank, frame.request_id), time.perf_counter())
            self._answers.answered(self, frame)

    def _place(self, frame: Frame, size: int) -> memoryview | None:
        """Return where the payload of an announced answer belongs."""
        if not isinstance(frame, Reply):
            return None
        if self.arrivals is not None:
            self.arrivals.begin((self.member.rank, frame.request_id), size, time.perf_counter())
        return self.channel.destination(frame, size)

    def link_pinged(self, link: Link) -> None:
        """Nothing to do: the link answers."""

    def link_batch_end(self, link: Link) -> None:
        """Send what the answers have made room for."""
        if self.channel.waiting:
            self.pump()

    def link_drained(self, link: Link) -> None:
        """Send what waits."""
        self.pump()


def _why(error: AiopsError | None, goodbye: Goodbye | None) -> str:
    """Say how a connection ended: by what broke it, or by what the other side said."""
    if error is not None or goodbye is None:
        return str(error)
    known = {code.value for code in ErrorCode}
    name = ErrorCode(goodbye.code).name if goodbye.code in known else str(goodbye.code)
    return f"the server ended the connection: {goodbye.text or 'it gave no reason'} ({name})"
