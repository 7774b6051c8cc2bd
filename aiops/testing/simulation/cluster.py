"""SimCluster: a whole cluster of the real runtime on a simulated network.

Scheduler, servers and workers are the classes that run in production; each lives in a
`SimProcess` of its own, so that it can be killed, stopped and started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiops.runtime.scheduler_node import Scheduler
from aiops.runtime.server_node import Server
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.network import SimNetwork, SimVan
from aiops.testing.simulation.process import SimProcess
from aiops.workers.connecting import connect
from aiops.workers.worker import Worker

__all__ = ["SimCluster"]

SCHEDULER_PORT = 9070


class SimCluster:
    """A cluster within one simulated run.

    Parameters
    ----------
    loop
        The run.
    servers
        Number of servers.
    **options
        For `aiops.Scheduler`.
    """

    def __init__(self, loop: SimLoop, servers: int = 2, **options: Any) -> None:
        self.loop = loop
        self.network = SimNetwork(loop)
        self.van = SimVan(self.network)
        self.address = f"scheduler:{SCHEDULER_PORT}"
        self.processes: dict[str, SimProcess] = {}
        self.scheduler: Scheduler | None = None
        self._options = {"servers": servers, **options}
        self._servers = servers
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closing: asyncio.Future[None] = loop.create_future()

    async def start(self) -> None:
        """Start scheduler and servers, and wait until the scheduler listens."""
        listening: asyncio.Future[None] = self.loop.create_future()
        self._tasks[self._run("scheduler", self._schedule(listening))] = None
        await listening
        for index in range(self._servers):
            self._tasks[self._run(f"server-{index}", self._serve(index))] = None

    def _run(self, name: str, coro: Any) -> asyncio.Task[Any]:
        process = self.processes[name] = self.network.process(name)
        return process.run(coro)

    async def _schedule(self, listening: asyncio.Future[None]) -> None:
        bind = f"127.0.0.1:{SCHEDULER_PORT}"
        async with Scheduler(bind, van=self.van, **self._options) as scheduler:
            self.scheduler = scheduler
            listening.set_result(None)
            ended = asyncio.ensure_future(scheduler.wait_ended())
            ended.add_done_callback(self._note_end)
            await self._closing

    def _note_end(self, ended: asyncio.Future[Any]) -> None:
        if not self._closing.done():
            self._closing.set_result(None)

    async def _serve(self, index: int) -> None:
        async with Server(self.address, name=f"server-{index}", van=self.van) as server:
            await server.wait_ended()

    def worker(
        self,
        name: str,
        main: Callable[[Worker], Awaitable[Any]],
        *,
        process: str | None = None,
        timeout_s: float = 60.0,
    ) -> asyncio.Task[Any]:
        """Start a worker in a process of its own; after its death, start it again.

        `process` is the name of the process, if it is not that of the worker.
        """

        async def run() -> Any:
            async with connect(
                self.address, name=name, timeout_s=timeout_s, van=self.van
            ) as worker:
                return await main(worker)

        process = process or name
        task = self._run(process, run())
        self.processes[name] = self.processes[process]
        self._tasks[task] = None
        return task

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.processes[name].kill()

    async def close(self) -> None:
        """End the job and wait for everybody who is left."""
        self._note_end(self._closing)
        alive = [task for task in self._tasks if not task.done() and self._is_alive(task)]
        if alive:
            await asyncio.wait(alive, timeout=30.0)

    def _is_alive(self, task: asyncio.Task[Any]) -> bool:
        return any(process.runs(task) for process in self.processes.values())
