"""The other side of `aiops bench`: a scheduler and one server in a process of their own.

`ServingProcess` starts it and knows its address; run as a program this module is that process. It
ends when its standard input does, so it cannot outlive whoever measures.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from types import TracebackType
from typing import Self

import aiops
from aiops.errors import AiopsError


class ServingProcess:
    """A scheduler and a server in a child process, for one worker.

    Attributes
    ----------
    scheduler : str
        Where the scheduler listens, as ``host:port``.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", "aiops.benchmarking.cluster"]
        # A session of its own: Ctrl-C is for the parent, and its end is the child's.
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._child.stdout is not None
        ready = self._child.stdout.readline()
        if not ready:
            raise AiopsError(f"the serving process ended at once, exit code {self._child.wait()}")
        self.scheduler: str = json.loads(ready)["scheduler"]

    def close(self) -> None:
        """Ask the child to leave, and wait until it has."""
        self._child.communicate()

    def __enter__(self) -> Self:
        """Return the process; it is ready."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self.close()


async def serve() -> None:
    """Run both roles until standard input ends."""
    async with (
        aiops.Scheduler(servers=1, workers=1, end_when_idle=True) as scheduler,
        aiops.Server(scheduler.address),
    ):
        print(json.dumps({"scheduler": scheduler.address}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


if __name__ == "__main__":
    aiops.run(serve())
