"""DataConnection: one server as a customer sees it: its channel, and the connection it moves.

A lost connection is opened again and what was unanswered is sent again, byte for byte; the
server recognises repeats. What the answers mean to the calls is the customer's business.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, Protocol

from aiops.errors import AiopsError, DialFailed
from aiops.observability import ByteCounters
from aiops.roles.requests import Channel, Part
from aiops.roles.retries import Retries
from aiops.runtime.dialling import LinkPlan, open_link
from aiops.runtime.postoffice import Postoffice
from aiops.van.base import Address, Van
from aiops.van.link import Link
from aiops_protocol.control import Member
from aiops_protocol.errors import ErrorCode, HandshakeRefused
from aiops_protocol.frames import Frame, Goodbye, Reply
from aiops_protocol.handshake import Purpose, Role

__all__ = ["DataConnection"]

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
    """

    def __init__(
        self,
        van: Van,
        postoffice: Postoffice,
        member: Member,
        answers: Answers,
        counters: ByteCounters,
    ) -> None:
        self.member = member
        self.channel = Channel(session=0)
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
        self._gone = [0, 0]  # bytes sent, received over connections that have ended
        self._closed = False

    def __str__(self) -> str:
        member = self.member
        return f"server {member.rank} ({member.name}) at {member.host}:{member.port}"

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes sent and received, headers included."""
        sent, received = self._gone
        if self.link is not None:
            sent += self.link.bytes_sent
            received += self.link.bytes_received
        return {"sent": sent, "received": received}

    # --- the connection ---

    async def open(self, timeout_s: float) -> None:
        """Connect, trying for so long."""
        joined = self._postoffice.joined
        plan = LinkPlan(
            Address(self.member.host, self.member.port),
            f"server {self.member.rank}",
            Role.WORKER,
            Role.SERVER,
            Purpose.DATA,
            job=bytes.fromhex(joined.job),
            rank=joined.rank,
            incarnation=joined.incarnation,
            known=True,
            destination=_destination(self.channel),
        )
        await open_link(self._van, plan, self, timeout_s=timeout_s)

    def link_ready(self, link: Link) -> None:
        """Use a new connection: first what was unanswered and has not arrived, then what waits."""
        self.link = link
        self.trouble = ""
        self.channel.window_bytes = link.welcome.window_bytes
        for header, payload in self.channel.ask():
            self._counters.retransmit_sent += len(header) + len(payload)
            link.send_encoded(header, payload, borrowed=False)
        self.pump()

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Open the connection again, unless this is the end."""
        if self.link is not link:
            return
        self.link = None
        self._gone[0] += link.bytes_sent
        self._gone[1] += link.bytes_received
        self.channel.lost(link.bytes_sent)
        if self._closed or self._postoffice.failure is not None:
            return
        goodbye = link.goodbye
        if goodbye is not None and goodbye.code == ErrorCode.STALE_INCARNATION:
            # Known to this server before the scheduler could tell: it is out of reach, perhaps.
            self._postoffice.given_up(str(self), goodbye.text)
        elif goodbye is not None and goodbye.code in FINAL_CODES:
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
        opening, link = self._opening, self.link
        if opening is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            link = self.link
        if link is not None:
            link.close()
            await link.wait_lost()

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
            self._answers.answered(self, frame)

    def link_pinged(self, link: Link) -> None:
        """Nothing to do: the link answers."""

    def link_batch_end(self, link: Link) -> None:
        """Send what the answers have made room for."""
        if self.channel.waiting:
            self.pump()

    def link_drained(self, link: Link) -> None:
        """Send what waits."""
        self.pump()


def _destination(channel: Channel) -> Callable[[Frame, int], memoryview | None]:
    def destination(frame: Frame, size: int) -> memoryview | None:
        return channel.destination(frame, size) if isinstance(frame, Reply) else None

    return destination


def _why(error: AiopsError | None, goodbye: Goodbye | None) -> str:
    """Say how a connection ended: by what broke it, or by what the other side said."""
    if error is not None or goodbye is None:
        return str(error)
    known = {code.value for code in ErrorCode}
    name = ErrorCode(goodbye.code).name if goodbye.code in known else str(goodbye.code)
    return f"the server ended the connection: {goodbye.text or 'it gave no reason'} ({name})"
