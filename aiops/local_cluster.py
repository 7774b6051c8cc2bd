"""LocalCluster: scheduler and servers in this process, over real loopback TCP."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import numpy as np

from aiops.errors import ConfigError
from aiops.runtime.scheduler_node import Scheduler
from aiops.runtime.server_node import Server
from aiops.van.base import Van
from aiops.wording import shown
from aiops.workers.connecting import Connecting, connect
from aiops.workers.worker import CONNECT_TIMEOUT_S, Worker
from aiops_protocol.limits import WORKERS_MAX

__all__ = ["LocalCluster"]

LET_END_S: Final = 5.0
"""How long the other workers may take to learn of a loss and to end by themselves."""

T = TypeVar("T")


class LocalCluster:
    """A whole cluster for tests, notebooks and single machines.

    Parameters
    ----------
    servers
        Number of servers; a job that has rings but no tables needs none.
    on_worker_loss, min_workers, trace
        As for `Scheduler`.

    Examples
    --------
    >>> async with aiops.LocalCluster(servers=2) as cluster:  # doctest: +SKIP
    ...     results = await cluster.run(train, workers=4)
    """

    def __init__(
        self,
        servers: int = 1,
        *,
        on_worker_loss: str | None = None,
        min_workers: int | None = None,
        trace: bool = False,
        van: Van | None = None,
    ) -> None:
        self._servers = servers
        self._van = van
        self._options: dict[str, Any] = {
            "servers": servers,
            "on_worker_loss": on_worker_loss,
            "min_workers": min_workers,
            "trace": trace,
        }
        self._stack = AsyncExitStack()
        self._scheduler: Scheduler | None = None
        self.servers: list[Server] = []

    def __repr__(self) -> str:
        kind = f"{type(self).__name__} servers={self._servers}"
        if self._scheduler is None:
            return f"<{kind} not started>"
        return f"<{kind} {self._scheduler!r}>"

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the cluster."""
        if self._scheduler is None:
            raise ConfigError("the cluster is not started: use `async with LocalCluster(...)`")
        return self._scheduler

    @property
    def address(self) -> str:
        """The scheduler's address, for `connect`."""
        return self.scheduler.address

    async def __aenter__(self) -> LocalCluster:
        """Start scheduler and servers."""
        try:
            self._scheduler = await self._stack.enter_async_context(await self._make_scheduler())
            for index in range(self._servers):
                server = await self._make_server(index)
                self.servers.append(await self._stack.enter_async_context(server))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _make_scheduler(self, **options: Any) -> Scheduler:
        """Return the scheduler, not yet open; other clusters put something in front of it."""
        return Scheduler(van=self._van, **options, **self._options)

    async def _make_server(self, index: int, **options: Any) -> Server:
        """Return a server, not yet open; other clusters put something in front of it."""
        return Server(
            self.address,
            name=f"server-{index}",
            heartbeat_thread=False,
            van=self._van,
            **options,
        )

    async def __aexit__(self, *_: object) -> None:
        """End the job and everything in it."""
        await self.scheduler.close("the local cluster was closed")
        await self._stack.aclose()

    def connect(
        self, name: str | None = None, *, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Connecting:
        """Become a worker of this cluster; like `aiops.connect`."""
        return connect(
            self.address, name=name, timeout_s=timeout_s, heartbeat_thread=False, van=self._van
        )

    def status(self) -> dict[str, Any]:
        """Return the scheduler's status document."""
        return self.scheduler.status()

    async def run(self, train: Callable[[Worker], Awaitable[T]], workers: int = 1) -> list[T]:
        """Run `train(worker)` once per worker, all at once; return the results in rank order.

        The error that came first ends the others and is raised; with
        `on_worker_loss="continue"`, when the others have come to their end.

        Raises
        ------
        ConfigError
            `workers` is below 1.
        """
        count: object = workers
        if (
            isinstance(count, bool)
            or not isinstance(count, int | np.integer)
            or not (1 <= count <= WORKERS_MAX)
        ):
            raise ConfigError(
                f"run: workers is {shown(workers)}; at least 1, at most {WORKERS_MAX}"
            )
        workers = int(count)
        if not callable(train):
            raise ConfigError(f"run: train is {shown(train)}; pass a function of one worker")
        self.scheduler.expect_workers(workers)
        errors: list[BaseException] = []

        goes_on = self.scheduler.on_worker_loss == "continue"

        async def connected(name: str) -> Worker:
            try:
                worker: Worker = await self.connect(name=name)
            except Exception as error:
                if goes_on:  # the others do not wait for it
                    self.scheduler.will_not_come(name, str(error))
                raise
            return worker

        async def one(name: str) -> tuple[int, T]:
            async with await connected(name) as worker:
                try:
                    return worker.rank, await train(worker)
                except BaseException as error:
                    errors.append(error)
                    raise

        tasks = [asyncio.ensure_future(one(name)) for name in self._free_names(workers)]
        try:
            _, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if running:
                await asyncio.wait(running, timeout=None if goes_on else LET_END_S)
            if errors:
                raise errors[0]
            return [result for _, result in sorted((task.result() for task in tasks), key=_rank)]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _free_names(self, count: int) -> list[str]:
        """Return `worker-0` and so on, without the names of workers that are here already."""
        taken = {worker["name"] for worker in self.status()["workers"] if _present(worker)}
        names = (f"worker-{index}" for index in itertools.count())
        return list(itertools.islice((name for name in names if name not in taken), count))


def _present(worker: dict[str, Any]) -> bool:
    return worker["state"] in ("alive", "finished")


def _rank(entry: tuple[int, Any]) -> int:
    return entry[0]
