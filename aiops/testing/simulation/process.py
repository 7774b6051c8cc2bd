"""SimProcess: an operating system process as the simulation sees it.

Everything that runs in a process carries it in a context variable, so that the process can
be killed (its callbacks are dropped; no `finally` runs, as with SIGKILL), or stopped and
continued (as with SIGSTOP and SIGCONT: time passes, the kernel goes on receiving).
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from aiops.testing.simulation.loop import SimLoop

__all__ = ["CURRENT", "SimProcess"]

CURRENT: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("CURRENT", default=None)
"""The process that the running callback belongs to."""

T = TypeVar("T")


class Endpoint(Protocol):
    """Something of the kernel's that outlives the program: a stream, a listener."""

    def process_died(self) -> None:
        """Take note that the process is gone."""
        ...


class SimProcess:
    """A simulated process, made by `SimNetwork.process`."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self._loop = loop
        self._stops = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._endpoints: dict[Endpoint, None] = {}
        self._parked: list[asyncio.Handle] = []
        self._arrived: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._context = contextvars.copy_context()
        self._context.run(CURRENT.set, self)

    @property
    def stopped(self) -> bool:
        """Whether the process is frozen."""
        return self._stops > 0

    def __repr__(self) -> str:
        state = "stopped" if self.stopped else "running" if self.alive else "dead"
        return f"<SimProcess {self.name} {state}>"

    def run(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in this process."""
        return self._loop.create_task(coro, context=self._context.copy())

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Call in this process, at the loop's next turn."""
        self._loop.call_soon(callback, *args, context=self._context.copy())

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Call in this process, later."""
        self._loop.call_at(when, callback, *args, context=self._context.copy())

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Note a task of this process."""
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def runs(self, task: asyncio.Task[Any]) -> bool:
        """Whether the task belongs to this process and the process can get on with it."""
        return self.alive and task in self._tasks

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def own(self, endpoint: Endpoint) -> None:
        """Note something of the kernel's that belongs to this process."""
        self._endpoints[endpoint] = None

    def disown(self, endpoint: Endpoint) -> None:
        """Forget it."""
        self._endpoints.pop(endpoint, None)

    def gate(self, callback: Callable[..., None], *args: Any) -> bool:
        """Whether the process is stopped; then the call is made when it continues."""
        if self.stopped:
            self._arrived.append((callback, args))
        return self.stopped

    def kill(self) -> None:
        """End the process as SIGKILL does: nothing of it runs any more; its streams are reset."""
        if not self.alive:
            return
        self._loop.note("kill", self.name)
        self.alive = False
        self._stops = 0
        for handle in [*self._mine(self._ready), *self._mine(self._scheduled), *self._parked]:
            handle.cancel()
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be
        self._loop.killed += self._tasks
        endpoints, self._endpoints = list(self._endpoints), {}
        for endpoint in endpoints:
            endpoint.process_died()

    def stop(self) -> None:
        """Freeze the process as SIGSTOP does; several stops need as many `go_on`."""
        if not self.alive:
            return
        self._stops += 1
        if self._stops > 1:
            return
        self._loop.note("stop", self.name)
        ready, scheduled = self._mine(self._ready), self._mine(self._scheduled)
        self._parked = ready + scheduled
        parked = set(map(id, self._parked))
        # The loop has counted what is ready in this turn: replace, never shorten.
        hole = asyncio.Handle(_nothing, (), self._loop)
        for index, handle in enumerate(self._ready):
            if id(handle) in parked:
                self._ready[index] = hole
        self._scheduled[:] = [handle for handle in self._scheduled if id(handle) not in parked]
        heapq.heapify(self._scheduled)

    def go_on(self) -> None:
        """Continue the process as SIGCONT does; what has arrived meanwhile comes first to last."""
        if not self.stopped:
            return
        self._stops -= 1
        if self.stopped:
            return
        self._loop.note("continue", self.name)
        for handle in self._parked:
            if handle.cancelled():
                continue
            if isinstance(handle, asyncio.TimerHandle):
                heapq.heappush(self._scheduled, handle)
            else:
                self._ready.append(handle)
        self._parked = []
        arrived, self._arrived = self._arrived, []
        now = self._loop.time()
        for index, (callback, args) in enumerate(arrived):
            self.call_at(now + index * 1e-6, callback, *args)

    @property
    def _ready(self) -> Any:
        return self._loop._ready  # type: ignore[attr-defined]  # no public way to hold callbacks

    @property
    def _scheduled(self) -> Any:
        return self._loop._scheduled  # type: ignore[attr-defined]  # nor timers

    def _mine(self, handles: Any) -> list[asyncio.Handle]:
        return [
            handle
            for handle in handles
            if not handle.cancelled() and handle._context.get(CURRENT) is self
        ]


def _nothing() -> None:
    """Do nothing, in the place of a parked callback."""
