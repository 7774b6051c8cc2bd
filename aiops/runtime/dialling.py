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
from aiops_protocol.errors import (
    ChecksumMismatch,
    ErrorCode,
    HandshakeRefused,
    UnsupportedVersion,
)
from aiops_protocol.frames import Frame
from aiops_protocol.handshake import NO_JOB, ClientHandshake, Purpose, Role
from aiops_protocol.limits import HANDSHAKE_TIMEOUT_S

__all__ = ["LinkPlan", "open_link"]

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
ATTEMPT_FIRST_S: Final = 5.0
"""How long the first attempt may take, handshake included, so that a black hole (a dropped packet
filter rule, a frozen host, bytes lost in a handshake) costs a part of the whole time and not all of
it. The limit doubles with each attempt that reached it, up to `HANDSHAKE_TIMEOUT_S`: somebody who
is only slow, as under a burst of joins, is met in the end."""

PROGRESS_S: Final = 3.0
"""How often somebody who waits for a connection is told what it waits for."""


PASSING_REFUSALS: Final = frozenset({ErrorCode.TOO_MANY_CONNECTIONS})
"""Refusals that pass by themselves. SHUTTING_DOWN does not: whoever ends does not come back."""


class LinkPlan:
    """Everything needed to open one link, again and again if it breaks.

    Parameters
    ----------
    what
        Who is expected there, for messages: `the scheduler`, `server 1`.
    known
        The address is certainly a node's: the scheduler has told it, or it was connected before.
        Then bytes that make no sense are damage and tried again. An address that a person gave
        may be anything, and a web server there is worth an error at once.
    refusals_max
        After so many refusals in a row (nobody listens there) whoever was there is gone; 0: may
        be about to start.
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
        customers: int = 1,
        known: bool = False,
        refusals_max: int = 0,
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
        self.customers = customers
        self.known = known
        self.refusals_max = refusals_max
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
            customers=self.customers,
        )


class _Opening:
    """Owns a link until its handshake is over, then hands it to its real owner."""

    def __init__(self, owner: LinkOwner) -> None:
        self._owner = owner
        self.done: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is over and the real owner has the link."""
        done = self.done
        return done.done() and not done.cancelled() and done.exception() is None

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


async def _open_once(van: Van, plan: LinkPlan, owner: LinkOwner, limit_s: float) -> Link:
    opening = _Opening(owner)
    links: list[Link] = []

    def accept(stream: Stream) -> Link:
        link = Link(stream, plan.handshake(), opening, destination=plan.destination, tag=plan.what)
        links.append(link)
        return link

    try:
        async with asyncio.timeout(limit_s):
            await van.dial(plan.address, accept)
            return await opening.done
    except BaseException as error:
        late = isinstance(error, TimeoutError)
        if late and opening.is_ready:  # in the same turn of the loop: the owner has it already
            return opening.done.result()
        if not opening.done.cancel() and not opening.done.cancelled():
            opening.done.exception()  # it is being raised, or overtaken by a cancellation
        for link in links:
            link.abort()
        if late:
            missing, hint = "answer", ""
            if links:
                missing, hint = "handshake", "; is it an aiops node, and awake?"
            raise DialFailed(
                f"no {missing} within {limit_s:.3g} s{hint}",
                peer=str(plan.address),
                retryable=True,
            ) from error
        raise


async def open_link(van: Van, plan: LinkPlan, owner: LinkOwner, *, timeout_s: float) -> Link:
    """Open a link, trying again with growing, jittered pauses until `timeout_s` has passed.

    What somebody who answers means is final and raised at once: a refusal (another job, another
    version). What may be damage on the way is not: a message with a wrong checksum, and at an
    address that is known to be a node's also bytes that make no sense. At any other address they
    are those of a stranger, and final. Cancelling leaves nothing behind.

    Raises
    ------
    DialFailed
        Nobody answered in time; the message has the address, the attempts and the last reason.
    PeerMisbehaved
        Somebody answered who is not the expected node; chained to the wire error.
    """
    started = told = time.monotonic()
    attempt = 0
    limit_s = ATTEMPT_FIRST_S
    reason: AiopsError | None = None
    refusals = 0
    while True:
        attempt += 1
        left = started + timeout_s - time.monotonic()
        try:
            return await _open_once(van, plan, owner, max(min(left, limit_s), 0.01))
        except PeerMisbehaved as error:
            _translate(plan, error)
            if _is_final(plan, error):
                raise
            reason = error
        except (DialFailed, ConnectionLost) as error:
            if not isinstance(error.__cause__, TimeoutError):
                reason = error
            elif reason is None or left >= limit_s:  # else the end of the whole time cut it short
                limit_s = min(2 * limit_s, HANDSHAKE_TIMEOUT_S)
                reason = error
            refusals = refusals + 1 if isinstance(error, DialFailed) and error.refused else 0
            if refusals == plan.refusals_max and refusals:
                raise
        now = time.monotonic()
        pause = random.uniform(0.5, 1.0) * min(
            BACKOFF_FIRST_S * 2 ** min(attempt, 8), BACKOFF_MAX_S
        )
        if now + pause >= started + timeout_s:
            raise DialFailed(
                f"gave up connecting to {plan.what} at {plan.address} after {attempt} attempts in "
                f"{now - started:.1f} s: {reason}",
                peer=str(plan.address),
                retryable=True,
            ) from reason
        if now - told >= PROGRESS_S:
            told = now
            get_logger().warning(
                "connecting",
                to=plan.what,
                address=str(plan.address),
                attempt=attempt,
                reason=str(reason),
            )
        await asyncio.sleep(pause)


def _is_final(plan: LinkPlan, error: PeerMisbehaved) -> bool:
    """Whether trying again is useless: the other side has said something that it means."""
    match error.__cause__:
        case HandshakeRefused(reason=reason):
            return reason not in PASSING_REFUSALS
        case UnsupportedVersion():
            return True
        case ChecksumMismatch():
            return False
        case _:
            return not plan.known


def _translate(plan: LinkPlan, error: PeerMisbehaved) -> None:
    cause = error.__cause__
    if isinstance(cause, HandshakeRefused):
        error.args = (
            f"{plan.what} at {plan.address} refuses this {plan.role.name.lower()}: {cause}",
        )
