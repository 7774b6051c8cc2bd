"""The blocking twin of `aiops.LocalCluster`: the whole cluster on one loop, in one thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import aiops.local_cluster
import aiops.workers.worker
from aiops.blocking.loop_thread import LoopThread
from aiops.blocking.worker import Worker, join
from aiops.errors import ConfigError
from aiops.van.base import Van
from aiops.workers.worker import CONNECT_TIMEOUT_S

__all__ = ["LocalCluster"]

T = TypeVar("T")


class LocalCluster:
    """A whole cluster in this process, for code without asyncio; use it as `with`.

    The twin of `aiops.LocalCluster`, with the same parameters. Scheduler, servers and the
    connections of all workers share one event loop in one thread.

    Examples
    --------
    >>> with aiops.blocking.LocalCluster(servers=2) as cluster:  # doctest: +SKIP
    ...     results = cluster.run(train, workers=4)
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
        self._cluster = aiops.local_cluster.LocalCluster(
            servers,
            on_worker_loss=on_worker_loss,
            min_workers=min_workers,
            trace=trace,
            van=van,
        )
        self._thread: LoopThread | None = None

    def __repr__(self) -> str:
        return f"<blocking {self._cluster!r}>"

    @property
    def _loop(self) -> LoopThread:
        if self._thread is None:
            raise ConfigError("the cluster is not started: use `with LocalCluster(...)`")
        return self._thread

    @property
    def address(self) -> str:
        """The scheduler's address, for `connect`."""
        return self._cluster.address

    def __enter__(self) -> LocalCluster:
        """Start scheduler and servers."""
        self._thread = LoopThread("the local cluster")
        try:
            self._thread.call(self._cluster.__aenter__)
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the job and everything in it."""
        loop = self._loop
        try:
            loop.call(self._cluster.__aexit__)
        finally:
            loop.stop()

    def connect(self, name: str | None = None, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Worker:
        """Become a worker of this cluster; like `aiops.blocking.connect`."""
        connecting = self._cluster.connect(name, timeout_s=timeout_s)
        return join(self._loop, connecting, owns_loop=False)

    def status(self) -> dict[str, Any]:
        """Return the scheduler's status document."""
        return self._loop.do(self._cluster.status)

    def run(self, train: Callable[[Worker], T], workers: int = 1) -> list[T]:
        """Run `train(worker)` once per worker, each in a thread; return results in rank order.

        The first worker's error ends the others and is raised; see `aiops.LocalCluster.run`. A
        thread cannot be stopped from outside: the others end at their next call of the worker.
        """
        loop = self._loop
        threads: list[threading.Thread] = []

        async def seat(worker: aiops.workers.worker.Worker) -> T:
            ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            twin = Worker(worker, loop, owns_loop=False)
            thread = threading.Thread(
                target=_sit, args=(train, twin, ended), name=twin.name, daemon=True
            )
            threads.append(thread)
            thread.start()
            return await ended

        try:
            return loop.call(self._cluster.run, seat, workers)
        except _Unusual as unusual:
            raise unusual.error from None
        finally:
            for thread in threads:
                thread.join()


class _Unusual(Exception):
    """Carries through the event loop what would end it: `SystemExit`, `KeyboardInterrupt`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


def _sit(train: Callable[[Worker], T], worker: Worker, ended: asyncio.Future[T]) -> None:
    """Train in this thread and tell the loop how it ended."""
    finish: Callable[[], None]
    try:
        finish = partial(ended.set_result, train(worker))
    except Exception as error:
        finish = partial(ended.set_exception, error)
    except BaseException as error:
        finish = partial(ended.set_exception, _Unusual(error))

    def settle() -> None:
        if not ended.done():  # cancelled, when another worker has failed
            finish()

    with suppress(RuntimeError):  # the loop has ended meanwhile: nobody waits
        ended.get_loop().call_soon_threadsafe(settle)
