"""Run one role as a process: the ready line, signals, the outcome, the exit code.

Scheduler and server are both run by `run_role`. The first line of stdout is the ready line, and
nothing else ever follows there: whatever else prints (an imported updater, say) goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, redirect_stdout
from dataclasses import asdict, dataclass
from typing import Final, Protocol, TextIO, TypeVar

import aiops
from aiops.observability import get_logger
from aiops_cli.stopping import StopRequest, stop_signals

STOP_WITHIN_S: Final = 8.0  # a clean end takes milliseconds, and 5 s if others do not leave
EXIT_FAILED: Final = 1


class Outcome(Protocol):
    """How a job ended, as a node learned it."""

    @property
    def ok(self) -> bool:
        """Whether it ended as planned."""

    @property
    def reason(self) -> str:
        """Why it ended."""


class Node(Protocol):
    """What scheduler and server have in common."""

    @property
    def address(self) -> str:
        """Where it is reached."""

    async def wait_ended(self) -> Outcome:
        """Return when the job is over."""

    async def close(self, reason: str) -> None:
        """Leave in good order, within a bounded time, and tell the others why."""


AnyNode = TypeVar("AnyNode", bound=Node)


@dataclass(frozen=True, slots=True)
class Ready:
    """The machine-readable line by which a role says that it can be used."""

    role: str
    rank: int
    name: str
    address: str

    def line(self) -> str:
        """Return the line, without its newline."""
        return json.dumps({"event": "ready", **asdict(self), "pid": os.getpid()})


def run_role(
    open_node: Callable[[], AbstractAsyncContextManager[AnyNode]],
    ready: Callable[[AnyNode], Ready],
) -> int:
    """Run a node until its job or its process is told to end, and return the exit code.

    Parameters
    ----------
    open_node
        Makes the node; called in the running loop.
    ready
        Describes the node once it is open.
    """
    stdout = sys.stdout
    with redirect_stdout(sys.stderr):
        return aiops.run(_serve(open_node, ready, stdout))


async def _serve(
    open_node: Callable[[], AbstractAsyncContextManager[AnyNode]],
    ready: Callable[[AnyNode], Ready],
    stdout: TextIO,
) -> int:
    opened: list[AnyNode] = []

    async def live() -> Outcome:
        async with open_node() as node:
            opened.append(node)
            _print_ready(stdout, ready(node))
            return await node.wait_ended()

    with stop_signals(STOP_WITHIN_S) as stop:
        life = asyncio.create_task(live())
        asked = asyncio.create_task(stop.wait())
        await asyncio.wait([life, asked], return_when=asyncio.FIRST_COMPLETED)
        if stop.signum is not None:
            await _end(life, opened, stop)
        asked.cancel()
        outcome = await life
    if not outcome.ok:
        get_logger().error("job_failed", reason=outcome.reason)
        return EXIT_FAILED
    return 0


async def _end(life: asyncio.Task[Outcome], opened: Sequence[Node], stop: StopRequest) -> None:
    assert stop.signum is not None
    get_logger().info("stopping", signal=stop.signal_name)
    if opened:
        await opened[0].close(f"it received {stop.signal_name}")
    else:
        life.cancel()  # still on its way in: nobody knows it yet
    await asyncio.wait([life])
    # Leave here and now: asyncio would wait for its threads, and one of them may be looking up a
    # name that nobody answers for.
    sys.stderr.flush()
    os._exit(128 + stop.signum)


def _print_ready(stdout: TextIO, ready: Ready) -> None:
    try:
        print(ready.line(), file=stdout, flush=True)
    except OSError as error:  # nobody reads it; the node is of use all the same
        get_logger().warning("ready_line_lost", exc_info=error)
