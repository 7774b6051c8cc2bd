"""An observer: asks a scheduler how the job is, without being a member of it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from aiops.checks import check_timeout
from aiops.errors import AiopsError, ConnectionLost, RequestTimeout
from aiops.runtime.addresses import scheduler_address
from aiops.runtime.dialling import LinkPlan, open_link
from aiops.runtime.given import check_van
from aiops.van.base import Van
from aiops.van.link import Link
from aiops_protocol.control import StatusReply, StatusRequest
from aiops_protocol.frames import Control, Frame
from aiops_protocol.handshake import Purpose, Role

__all__ = ["fetch_status"]


class _Asker:
    """Waits for one `StatusReply`."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def link_ready(self, link: Link) -> None:
        link.send(Control(StatusRequest()))

    def link_frame(self, link: Link, frame: Frame) -> None:
        message = frame.message if isinstance(frame, Control) else None
        if isinstance(message, StatusReply) and not self.reply.done():
            self.reply.set_result(msgspec.json.decode(message.status))

    def link_pinged(self, link: Link) -> None:
        """Nothing to do: the link answers."""

    def link_batch_end(self, link: Link) -> None:
        """Nothing to do."""

    def link_drained(self, link: Link) -> None:
        """Nothing to do."""

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        if not self.reply.done():
            self.reply.set_exception(error or ConnectionLost(f"{link} closed the connection"))


async def fetch_status(
    scheduler: str | None = None, *, timeout_s: float = 5.0, van: Van | None = None
) -> dict[str, Any]:
    """Return the status document of a running job.

    Parameters
    ----------
    scheduler
        `host:port`; without it `$AIOPS_SCHEDULER`.
    timeout_s
        How long to try.

    Returns
    -------
    status : dict
        Members, tables with their range map, rounds, clocks, who is waited for.

    Raises
    ------
    ConfigError, UsageError
        The address or the time is none.
    DialFailed, PeerMisbehaved, RequestTimeout
        Nobody answers there, or not a scheduler.
    """
    address = scheduler_address(scheduler)
    timeout_s = check_timeout(timeout_s, "status")
    plan = LinkPlan(address, "the scheduler", Role.OBSERVER, Role.SCHEDULER, Purpose.CONTROL)
    asker = _Asker()
    link = await open_link(check_van(van), plan, asker, timeout_s=timeout_s)
    try:
        async with asyncio.timeout(timeout_s):
            return await asker.reply
    except TimeoutError:
        raise RequestTimeout(
            f"status: no answer from the scheduler at {address} within {timeout_s:g} s",
            operation="status",
            elapsed_s=timeout_s,
        ) from None
    finally:
        link.close()
        await link.wait_lost()
