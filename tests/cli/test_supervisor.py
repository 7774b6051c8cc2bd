"""Real child processes under the launcher's supervision: output, exit codes, and no survivors."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from aiops_cli.stopping import StopRequest
from aiops_cli.supervision import Supervision
from aiops_cli.supervisor import Children, Program
from processes import is_gone

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@dataclass
class Outcome:
    ok: bool
    reason: str


@dataclass
class LocalJob:
    """A job without a network: its servers are children that wait for it to end."""

    ended: asyncio.Future[Outcome] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    async def wait_ended(self) -> Outcome:
        return await asyncio.shield(self.ended)

    def status(self) -> dict[str, Any]:
        return {"workers": []}

    def will_not_come(self, name: str, reason: str, *, role: str, clean: bool) -> None:
        """Take note of it."""

    async def close(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(Outcome(True, reason))


@dataclass
class Launch:
    """A launch of shell commands, and what they said."""

    job: LocalJob = field(default_factory=LocalJob)
    stop: StopRequest = field(default_factory=StopRequest)
    lines: dict[str, bytes] = field(default_factory=dict)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, commands: Sequence[str], **settings: bool) -> int:
        programs = [self._program(rank, text) for rank, text in enumerate(commands)]
        names = tuple(program.name for program in programs)
        children = Children(Supervision(names, (), **settings))
        async with asyncio.timeout(60):
            return await children.run(self.job, programs, self.stop)

    def _program(self, rank: int, text: str) -> Program:
        name = f"worker-{rank}"

        async def hear(lines: bytes) -> None:
            self.lines[name] = self.lines.get(name, b"") + lines
            self.heard.set()

        return Program(name, ["sh", "-c", text], dict(os.environ), hear, hear)


@pytest.fixture
async def launch() -> Launch:
    return Launch()


async def test_all_lines_and_no_failure(launch: Launch) -> None:
    assert await launch.run(["echo out; echo err >&2; printf end", "seq 20000"]) == 0
    assert sorted(launch.lines["worker-0"].split()) == [b"end", b"err", b"out"]
    assert launch.lines["worker-1"].split() == [b"%d" % n for n in range(1, 20001)]


async def test_the_exit_code_of_the_first_that_failed(launch: Launch) -> None:
    wait_for_term = "trap 'exit 9' TERM; sleep 60 & wait"
    code = await launch.run(["exit 3", "exit 0", wait_for_term.replace("60", "0.2")])
    assert code == 3


async def test_a_signal_as_exit_code(launch: Launch) -> None:
    assert await launch.run(["kill -9 $$"]) == 137


async def test_a_signal_reaches_whole_groups(launch: Launch) -> None:
    """A worker is often a shell script, and it is its child that has to hear of the end."""
    running = asyncio.ensure_future(launch.run(["sh -c 'echo here; exec sleep 60'; exit 5"]))
    await launch.heard.wait()
    launch.stop.arrive(signal.SIGTERM)
    assert await running == 143


async def test_what_a_child_left_behind_is_ended(launch: Launch) -> None:
    """And its open pipe does not keep the launcher waiting."""
    assert await launch.run(["sleep 61 & echo $!"]) == 0
    assert is_gone(int(launch.lines["worker-0"]))


async def test_a_stranger_that_holds_the_pipe_keeps_nobody_waiting(launch: Launch) -> None:
    """A daemon in a session of its own is not ours to end, and not ours to wait for."""
    code = f"{sys.executable} -c 'import os, time; os.setsid(); print(os.getpid(), flush=True);"
    command = f"{code} time.sleep(20)' & sleep 0.3"
    assert await launch.run([command]) == 0
    os.kill(int(launch.lines["worker-0"]), signal.SIGKILL)


async def test_cancelling_kills_everybody(launch: Launch) -> None:
    running = asyncio.ensure_future(launch.run(["trap '' TERM; echo $$; sleep 62"]))
    await launch.heard.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_gone(int(launch.lines["worker-0"].split()[0]))
