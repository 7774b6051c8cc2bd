"""ControlLink: a node's side of its dialogue with the scheduler, over one connection after another.

A connection that something on the way has ended is opened again, and what either side lacks is
said again: each message counts once. It ends for good when the scheduler says so, when nobody
listens there any more, or when it cannot be reached for long. What the messages mean is the
owner's business.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from typing import Final, Protocol

from aiops.errors import AiopsError
from aiops.observability import AiopsLogger
from aiops.roles.member_changes import changed
from aiops.runtime.dialling import LinkPlan, open_link
from aiops.van.base import Address, Van
from aiops.van.link import Link
from aiops_protocol.codec import encode
from aiops_protocol.control import ClusterChange, ClusterState, ControlMessage
from aiops_protocol.dialogue import Dialogue
from aiops_protocol.dialogue_control import DialogueOpen, Heard, OpenDialogue
from aiops_protocol.errors import ErrorCode, UnexpectedFrame
from aiops_protocol.frames import Control, Frame, Goodbye
from aiops_protocol.handshake import Purpose, Role

__all__ = ["ControlLink", "ControlOwner"]

REOPEN_TIMEOUT_S: Final = 30.0
"""How long a lost connection is tried again. A scheduler that does not answer heartbeats either is
given up before, after twenty periods."""

REFUSALS_MAX: Final = 2
"""A scheduler that was there, and where nobody listens twice in a row, has ended."""

PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
"""Mean pause before a connection is opened again, so that a thousand nodes do not come back in one
instant; it doubles while connections end before a message has come."""

FRUITLESS_MAX: Final = 16
"""Connections in a row that may end before a message has come: then it is the message."""

LEAVE_S: Final = 5.0
"""How long a node that leaves may take to be heard, if its connection breaks just then."""

FINAL_CODES: Final = frozenset(
    {ErrorCode.OK, ErrorCode.STALE_INCARNATION, ErrorCode.SHUTTING_DOWN, ErrorCode.JOB_FAILED}
)
"""Goodbyes that are meant; others say that this connection was damaged."""


class ControlOwner(Protocol):
    """Whose dialogue it is."""

    def control_message(self, message: ControlMessage) -> None:
        """Take a message of the scheduler; each comes once, in order."""
        ...

    def control_ended(self, error: AiopsError | None, goodbye: Goodbye | None) -> None:
        """Take note that the dialogue is over, and how; not after `end` or `leave`."""
        ...


class ControlLink:
    """One node's connection to its scheduler.

    Attributes
    ----------
    link
        The connection, or `None` while there is none.
    job
        The job's 16 bytes, once the scheduler has told them.
    local_host
        This end's address of the first connection.
    log
        Where broken connections are noted; the owner's.
    """

    def __init__(
        self, van: Van, scheduler: Address, role: Role, owner: ControlOwner, log: AiopsLogger
    ) -> None:
        self.link: Link | None = None
        self.job = b""
        self.local_host = ""
        self.log = log
        self._van = van
        self._owner = owner
        self._plan = LinkPlan(
            scheduler,
            "the scheduler",
            role,
            Role.SCHEDULER,
            Purpose.CONTROL,
            refusals_max=0,
        )
        self._name = secrets.token_bytes(16).hex()
        self._dialogue = Dialogue()
        self._members: ClusterState | None = None  # as last told
        self._speaking = False  # what is said now leaves over `link`
        self._reopening: asyncio.Task[None] | None = None
        self._fruitless = 0  # connections in a row that were lost before any message came
        self._over = False
        self._leaving = False
        self._settled = asyncio.Event()  # the scheduler has all, or will never have it
        self._gone = (0, 0)  # bytes over connections that have ended

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received, headers included."""
        sent, received = self._gone
        if self.link is not None:
            sent += self.link.bytes_sent
            received += self.link.bytes_received
        return sent, received

    @property
    def _opened(self) -> bool:
        return bool(self.job)

    @property
    def speaking(self) -> bool:
        """Whether what is said now leaves at once."""
        return self._speaking

    async def open(self, timeout_s: float) -> None:
        """Connect for the first time, trying for so long.

        Raises
        ------
        DialFailed, PeerMisbehaved
            Nobody answers there, or not a scheduler.
        """
        await open_link(self._van, self._plan, self, timeout_s=timeout_s)

    def send(self, message: ControlMessage) -> None:
        """Send a message, now or over the next connection. After the end it is ignored."""
        if self._over:
            return
        header, payload = encode(Control(message))
        self._settled.clear()
        self._dialogue.say(header, payload)
        if self._speaking and self.link is not None:
            self.link.send_encoded(header, payload, borrowed=False)

    # --- the connection ---

    def link_ready(self, link: Link) -> None:
        """Say who speaks; a new dialogue goes on at once."""
        self.link = link
        if self._over:
            link.close()
            return
        first = not self._opened
        if first:
            self.job = self._plan.job = link.welcome.job
            self.local_host = link.stream.local.rpartition(":")[0].strip("[]")
            self._plan.known, self._plan.refusals_max = True, REFUSALS_MAX
        heard = self._dialogue.tell()
        link.send(Control(OpenDialogue(dialogue=self._name, heard=heard)))
        if first:
            self._repeat(0)

    def _repeat(self, heard: int) -> None:
        again = self._dialogue.repeat(heard)
        self._speaking = True
        if self.link is not None:
            for header, payload in again:
                self.link.send_encoded(header, payload, borrowed=False)
        self._note_settled()

    def link_frame(self, link: Link, frame: Frame) -> None:
        """Take a message of the scheduler."""
        assert isinstance(frame, Control)
        message = frame.message
        match message:
            case DialogueOpen(heard=heard):
                if not self._speaking:
                    self._repeat(heard)
            case Heard(count=count):
                self._dialogue.heard(count)
                self._note_settled()
            case _:
                self._fruitless = 0
                if self._dialogue.take():
                    link.send(Control(Heard(count=self._dialogue.tell())))
                if not self._over:
                    self._owner.control_message(self._whole(message))

    def _whole(self, message: ControlMessage) -> ControlMessage:
        """Return a change of the membership as the membership that it makes."""
        if isinstance(message, ClusterChange):
            if self._members is None or self._members.epoch != message.since:
                raise UnexpectedFrame(f"ClusterChange since {message.since}, which is not known")
            message = changed(self._members, message)
        if isinstance(message, ClusterState):
            self._members = message
        return message

    def _note_settled(self) -> None:
        if self._dialogue.settled:
            self._settled.set()

    def link_pinged(self, link: Link) -> None:
        """Nothing to do: the link answers."""

    def link_batch_end(self, link: Link) -> None:
        """Nothing is kept back until the end of a batch."""

    def link_drained(self, link: Link) -> None:
        """Control messages are small; nothing waits for room."""

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Open the connection again, unless this is the end."""
        if self.link is not link:
            return
        self._gone = self.traffic
        self.link, self._speaking = None, False
        goodbye = link.goodbye
        if self._over:
            return
        self._fruitless += 1
        final = goodbye is not None and goodbye.code in FINAL_CODES
        if final or not self._dialogue.lasting or self._fruitless > FRUITLESS_MAX:
            self._end(error, goodbye)
            return
        reason = str(error) if error is not None else goodbye.text if goodbye is not None else ""
        self.log.warning("connection_lost", to="the scheduler", reason=reason)
        self._reopening = asyncio.get_running_loop().create_task(self._reopen())

    async def _reopen(self) -> None:
        pause_s = min(PAUSE_S * 2 ** min(self._fruitless, 8), PAUSE_MAX_S)
        try:
            await asyncio.sleep(random.uniform(0, pause_s))
            await open_link(self._van, self._plan, self, timeout_s=REOPEN_TIMEOUT_S)
        except AiopsError as error:
            self._end(error, None)
        finally:
            if self._reopening is asyncio.current_task():
                self._reopening = None

    # --- the end ---

    def _end(self, error: AiopsError | None, goodbye: Goodbye | None) -> None:
        if self._over:
            return
        self._over = True
        self._settled.set()
        if not self._leaving:
            self._owner.control_ended(error, goodbye)

    def end(self) -> None:
        """Say goodbye and nothing more: the scheduler has ended the job, or is lost. Idempotent."""
        self._over = True
        self._settled.set()
        if self._reopening is not None:
            self._reopening.cancel()
        if self.link is not None:
            self.link.close()

    async def leave(self, *, heard: bool) -> None:
        """Say goodbye and wait for the end; with `heard`, not before all that was said has come.

        Takes `LEAVE_S` at most, and as long as a link takes to close. Idempotent.
        """
        if heard:
            await self.settle()
        self._leaving = True
        self.end()
        reopening, link = self._reopening, self.link
        if reopening is not None:
            await asyncio.gather(reopening, return_exceptions=True)
            link = self.link
        if link is not None:
            await link.wait_lost()

    async def settle(self) -> None:
        """Wait until all that was said has come, for `LEAVE_S` at most."""
        self._leaving = True
        if not self._dialogue.settled and not self._over and self._opened:
            try:
                async with asyncio.timeout(LEAVE_S):
                    await self._settled.wait()
            except TimeoutError:
                self.log.warning("leaving_unheard", to="the scheduler")
