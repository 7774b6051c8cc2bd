"""Opening a link: dial, shake hands, and try again for a bounded time while it makes sense."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from typing import Final

from aiops.errors import AiopsError, ConnectionLost, DialFailed, PeerMisbehaved
from aiops.observability import get_logger
from aiops.van.base import Address, Stream, Van
from aiops.van.link import Link, LinkOwner
from aiops_protocol.errors import HandshakeRefused
from aiops_protocol.frames import Frame
from aiops_protocol.handshake import NO_JOB, ClientHandshake, Purpose, Role

__all__ = ["LinkPlan", "open_link"]

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
PROGRESS_S: Final = 3.0
"""How often somebody who waits for a connection is told what it waits for."""


class LinkPlan:
    """Everything needed to open one link, again and again if it breaks.

    Parameters
    ----------
    what
        Who is expected there, for messages: `the scheduler`, `server 1`.
    """

    def __init__(
        self,
        address: Address,
        what: str,
        role: Role,
        expects: Role,
        purpose: Purpose,
        *,
        job: bytes = NO_JOB,
        rank: int = 0,
        incarnation: int = 0,
        destination: Callable[[Frame, int], memoryview | None] | None = None,
    ) -> None:
        self.address = address
        self.what = what
        self.role = role
        self.expects = expects
        self.purpose = purpose
        self.job = job
        self.rank = rank
        self.incarnation = incarnation
        self.destination = destination

    def handshake(self) -> ClientHandshake:
        """Return a fresh handshake with a nonce of its own."""
        return ClientHandshake(
            self.role,
            self.purpose,
            secrets.token_bytes(32),
            expects=self.expects,
            job=self.job,
            rank=self.rank,
            incarnation=self.incarnation,
        )


class _Opening:
    """Owns a link until its handshake is over, then hands it to its real owner."""

    def __init__(self, owner: LinkOwner) -> None:
        self._owner = owner
        self.done: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

    def link_ready(self, link: Link) -> None:
        if not self.done.done():
            link.owner = self._owner
            self.done.set_result(link)
            self._owner.link_ready(link)

    def link_frame(self, link: Link, frame: Frame) -> None:
        """No frame comes before the handshake is over."""

    def link_pinged(self, link: Link) -> None:
        """Nothing to do: the link answers."""

    def link_batch_end(self, link: Link) -> None:
        """Nothing to do for an opening link."""

    def link_drained(self, link: Link) -> None:
        """Nothing to do for an opening link."""

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        if not self.done.done():
            self.done.set_exception(
                error or ConnectionLost(f"{link} ended in the handshake", retryable=True)
            )


async def _open_once(van: Van, plan: LinkPlan, owner: LinkOwner) -> Link:
    opening = _Opening(owner)
    links: list[Link] = []

    def accept(stream: Stream) -> Link:
        link = Link(stream, plan.handshake(), opening, destination=plan.destination, tag=plan.what)
        links.append(link)
        return link

    try:
        await van.dial(plan.address, accept)
        return await opening.done
    except BaseException:
        for link in links:
            link.abort()
        if opening.done.done() and not opening.done.cancelled():
            opening.done.exception()  # it is being raised, or overtaken by a cancellation
        raise


async def open_link(van: Van, plan: LinkPlan, owner: LinkOwner, *, timeout_s: float) -> Link:
    """Open a link, trying again with growing, jittered pauses until `timeout_s` has passed.

    A refusal by somebody who answers (another job, another version, not aiops at all) is final
    and raised at once. Cancelling leaves nothing behind.

    Raises
    ------
    DialFailed
        Nobody answered in time; the message has the address, the attempts and the last reason.
    PeerMisbehaved
        Somebody answered who is not the expected node; chained to the wire error.
    """
    started = told = time.monotonic()
    attempt = 0
    while True:
        attempt += 1
        left = started + timeout_s - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0.01)):
                return await _open_once(van, plan, owner)
        except PeerMisbehaved as error:
            _translate(plan, error)
            raise
        except (DialFailed, ConnectionLost) as error:
            reason: Exception = error
        except TimeoutError as error:
            reason = error
        now = time.monotonic()
        pause = random.uniform(0.5, 1.0) * min(
            BACKOFF_FIRST_S * 2 ** min(attempt, 8), BACKOFF_MAX_S
        )
        text = str(reason) or "no answer"
        if now + pause >= started + timeout_s:
            raise DialFailed(
                f"gave up connecting to {plan.what} at {plan.address} after {attempt} attempts in "
                f"{now - started:.1f} s: {text}",
                peer=str(plan.address),
                retryable=True,
            ) from reason
        if now - told >= PROGRESS_S:
            told = now
            get_logger().warning(
                "connecting", to=plan.what, address=str(plan.address), attempt=attempt, reason=text
            )
        await asyncio.sleep(pause)


def _translate(plan: LinkPlan, error: PeerMisbehaved) -> None:
    cause = error.__cause__
    if isinstance(cause, HandshakeRefused):
        error.args = (
            f"{plan.what} at {plan.address} refuses this {plan.role.name.lower()}: {cause}",
        )
