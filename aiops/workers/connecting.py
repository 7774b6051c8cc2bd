"""`connect`: becoming a worker of a job."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from aiops.checks import check_flag, check_optional_name, check_timeout
from aiops.errors import ConfigError
from aiops.runtime.addresses import scheduler_address
from aiops.runtime.customer import Customer
from aiops.runtime.given import check_van
from aiops.runtime.postoffice import Postoffice
from aiops.runtime.witness import Witness
from aiops.van.base import Van
from aiops.wording import shown
from aiops.workers.worker import CONNECT_TIMEOUT_S, Worker, describe

__all__ = ["Connecting", "connect"]


class Connecting:
    """What `connect` returns: `async with` it, or await it and close the worker yourself."""

    def __init__(
        self,
        scheduler: str | None,
        name: str | None,
        timeout_s: float,
        heartbeat_thread: bool,
        van: Van | None,
        history: str | os.PathLike[str] | None = None,
    ) -> None:
        self._heartbeat_thread = check_flag(heartbeat_thread, "connect: heartbeat_thread")
        if not isinstance(history, str | os.PathLike | None):
            raise ConfigError(f"connect: history is {shown(history)}; pass the path of a folder")
        self._history = history or os.environ.get("AIOPS_HISTORY")
        self._scheduler = scheduler_address(scheduler)
        own = check_optional_name(name, "the worker's name")
        self._name = own or check_optional_name(
            os.environ.get("AIOPS_NAME"), "the worker's name (AIOPS_NAME)"
        )
        self._timeout_s = check_timeout(timeout_s, "connect")
        self._van = check_van(van)
        self._worker: Worker | None = None

    def __repr__(self) -> str:
        return f"<connecting {self._name or 'a worker'} to {self._scheduler}>"

    def __await__(self) -> Any:
        """Connect and return the worker."""
        return self._connect().__await__()

    async def _connect(self) -> Worker:
        van = self._van
        postoffice = Postoffice(van, self._scheduler, heartbeat_thread=self._heartbeat_thread)
        customer: Customer | None = None
        try:
            await postoffice.join(self._name, self._timeout_s)
            customer = Customer(van, postoffice)
            await customer.open(self._timeout_s)
            if self._history:
                customer.witness = _recorder(self._history, postoffice)
            return Worker(postoffice, customer)
        except BaseException as error:
            postoffice.leave(False, describe(error))
            if customer is not None:
                await customer.close()
            await postoffice.wait_left()
            await postoffice.stop_heart()
            raise

    async def __aenter__(self) -> Worker:
        """Connect."""
        self._worker = await self._connect()
        return self._worker

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave, cleanly or as a loss."""
        assert self._worker is not None
        await self._worker.__aexit__(kind, error, trace)


def _recorder(folder: str | os.PathLike[str], postoffice: Postoffice) -> Witness:
    """Return a recorder that knows who this worker is."""
    from aiops.testing.history import Recorder

    joined = postoffice.joined
    values = os.environ.get("AIOPS_HISTORY_VALUES", "")
    recorder = Recorder(folder, values=[name for name in values.split(",") if name])
    recorder.start(
        job=joined.job,
        worker=joined.rank,
        incarnation=joined.incarnation,
        name=joined.name,
        workers=[member.rank for member in postoffice.members if member.role == "worker"],
        clock=postoffice.clock,
    )
    return recorder


def connect(
    scheduler: str | None = None,
    *,
    name: str | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
    heartbeat_thread: bool = True,
    history: str | os.PathLike[str] | None = None,
    van: Van | None = None,
) -> Connecting:
    """Become a worker of a job.

    Parameters
    ----------
    scheduler
        `host:port`; without it `$AIOPS_SCHEDULER` (set by `aiops launch`).
    name
        Who gives the same name again, after a restart, gets the same rank. Without it
        `$AIOPS_NAME`, or a unique one is made.
    timeout_s
        How long to wait for the scheduler, and for the expected servers and workers.
    heartbeat_thread
        Send heartbeats from a thread of their own, so that a worker that computes for minutes
        in its event loop is not taken for dead; `False` where the scheduler shares the loop.
    history
        A folder in which this worker writes down what it does and sees, for `aiops verify`;
        without it `$AIOPS_HISTORY`, or none. `$AIOPS_HISTORY_VALUES` names small tables, with
        commas between, whose whole values are to be in it.

    Returns
    -------
    connecting
        `async with connect(...) as worker`. Leaving it cleanly flushes, finishes and says
        goodbye; by an exception it counts as a loss of this worker, and the others see why.

    Raises
    ------
    ConfigError
        No scheduler is given anywhere, the name has characters that may not travel, or the
        history cannot be written.
    DialFailed, PeerMisbehaved
        Nobody answers there, or somebody who is not the scheduler of a job.
    JoinTimeout
        The expected servers and workers did not register in time.
    NameInUse
        A live worker has this name.
    TooManyRestarts
        Workers of this name were lost more than five times within a minute.
    """
    return Connecting(scheduler, name, timeout_s, heartbeat_thread, van, history)
