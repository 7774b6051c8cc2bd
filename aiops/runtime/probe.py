"""A probe: one question to a server over a small connection of its own.

It tells whether the server lives, and how many bytes it has got over another connection. When one
is sent, and what follows from its answer, is decided by `aiops.roles.patience`.
"""

from __future__ import annotations

import asyncio

from aiops.errors import AiopsError, ConnectionLost
from aiops.runtime.dialling import LinkPlan, open_link
from aiops.van.base import Van
from aiops.van.link import Link
from aiops_protocol.frames import Frame, Known, Query
from aiops_protocol.queries import ask, told

__all__ = ["Probe"]


class Probe:
    """One probe; `run` it once.

    Parameters
    ----------
    plan
        How to reach the server; as for the connection that is asked about.
    connection
        The mark of that connection.
    """

    def __init__(self, van: Van, plan: LinkPlan, connection: int) -> None:
        self._van = van
        self._plan = plan
        self._connection = connection
        self._answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._link: Link | None = None

    async def run(self, timeout_s: float) -> int:
        """Return the bytes that have arrived; 0 if the server has no such connection.

        Cancelling leaves nothing behind.

        Raises
        ------
        AiopsError
            The server did not answer in time, or has refused the connection.
        """
        try:
            async with asyncio.timeout(timeout_s):
                self._link = await open_link(self._van, self._plan, self, timeout_s=timeout_s)
                return await self._answer
        except TimeoutError:
            text = f"{self._plan.what} has not answered a probe within {timeout_s:.3g} s"
            raise ConnectionLost(text, retryable=True) from None
        finally:
            if not self._answer.cancel() and not self._answer.cancelled():
                self._answer.exception()  # nobody awaits it any more
            if self._link is not None:
                self._link.abort()

    def link_ready(self, link: Link) -> None:
        """Ask."""
        link.send(Query(request_id=1, payload=ask(self._connection, [])))

    def link_frame(self, link: Link, frame: Frame) -> None:
        """Take the answer."""
        if isinstance(frame, Known) and not self._answer.done():
            self._answer.set_result(told(frame.payload).received)

    def link_pinged(self, link: Link) -> None:
        """Nothing to do: the link answers."""

    def link_batch_end(self, link: Link) -> None:
        """Nothing is kept back until the end of a batch."""

    def link_drained(self, link: Link) -> None:
        """Nothing waits for room."""

    def link_lost(self, link: Link, error: AiopsError | None) -> None:
        """Note that there will be no answer."""
        if not self._answer.done():
            self._answer.set_exception(
                error or ConnectionLost(f"{link} ended before it answered a probe", retryable=True)
            )
