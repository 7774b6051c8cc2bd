"""Start the children of a launch, follow them to their end, and leave none behind.

What to do is decided by `supervision`; here it is done: processes, signals, timers, output. Each
child leads a process group of its own, so that Ctrl-C reaches the launcher alone, which then ends
the groups in order. If the launcher itself is killed, `guard` ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from aiops.observability import get_logger
from aiops_cli import guard
from aiops_cli.lines import LineBuffer, SharedOutput
from aiops_cli.role import Outcome
from aiops_cli.stopping import StopRequest
from aiops_cli.supervision import (
    Action,
    ChildExited,
    DeadlineReached,
    EndJob,
    Event,
    Interrupted,
    JobEnded,
    Phase,
    Say,
    Send,
    Supervision,
    TellOfEnd,
)

READ_BYTES: Final = 1 << 16  # what a pipe holds
STRAGGLERS_GRACE_S: Final = 2.0  # for what a child left behind in its group
SILENCE_S: Final = 1.0  # an ended child's pipe that stays open and silent belongs to a stranger

Lines = Callable[[bytes], Awaitable[None]]


class Job(Protocol):
    """The scheduler, as far as a launcher knows it."""

    async def wait_ended(self) -> Outcome:
        """Return when the job is over."""

    def status(self) -> dict[str, Any]:
        """Return what is known of the workers."""

    def will_not_come(self, name: str, reason: str, *, role: str, clean: bool) -> None:
        """Take note of a child's end, in case it had not registered."""

    async def close(self, reason: str) -> None:
        """End the job: every node is told to leave, and why."""


@dataclass(frozen=True, slots=True)
class Program:
    """One child to start: its unique name, what it runs, and where its whole lines go."""

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    stdout: Lines
    stderr: Lines


def lines_to(output: SharedOutput, name: str) -> Lines:
    """Return a place for the lines of the child `name` that passes them on unchanged."""
    return lambda lines: output.write(name, lines)


@dataclass(slots=True)
class _Pipe:
    """One stream of a child, read until its end; `moved` and `waiting` tell whether it lives."""

    reader: asyncio.StreamReader
    lines: Lines
    moved: int = 0
    waiting: bool = False

    async def pump(self) -> None:
        buffer = LineBuffer()
        try:
            while data := await self._read():
                if lines := buffer.feed(data):
                    await self.lines(lines)
        finally:
            if rest := buffer.finish():
                await self.lines(rest)

    async def _read(self) -> bytes:
        self.waiting = True
        data = await self.reader.read(READ_BYTES)
        self.waiting = False
        self.moved += len(data)
        return data


class _Process(SubprocessStreamProtocol):
    """A running child; its end is known at once, also while another process holds its pipes."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        super().__init__(limit=READ_BYTES, loop=self.loop)
        self.exited: asyncio.Future[int] = self.loop.create_future()
        self.transport: asyncio.SubprocessTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one, but does not say so by inheritance
        self.transport = cast(asyncio.SubprocessTransport, transport)
        super().connection_made(transport)

    def process_exited(self) -> None:
        super().process_exited()
        code = self.transport.get_returncode()
        assert code is not None
        self.exited.set_result(code)

    @property
    def pid(self) -> int:
        return self.transport.get_pid()


@dataclass(slots=True)
class Children:
    """The processes of one launch.

    Parameters
    ----------
    supervision
        Decides.
    """

    supervision: Supervision
    _processes: dict[str, _Process] = field(default_factory=dict, init=False)
    _groups: set[int] = field(default_factory=set, init=False)
    # Bounded by what can happen: one exit for each child, one end of the job, one signal.
    _events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    async def run(self, job: Job, programs: Sequence[Program], stop: StopRequest) -> int:
        """Start the programs, follow them to their end, and return the launcher's exit code.

        Cancelling kills what still runs.
        """
        guard.adopt_orphans()
        async with _watch() as watch:
            asides = [
                asyncio.create_task(self._follow_job(job)),
                asyncio.create_task(self._follow_signals(stop)),
            ]
            try:
                for program in programs:
                    await self._start(program, watch)
                await self._supervise(job)
            finally:
                for aside in asides:
                    aside.cancel()
                if self.supervision.phase is not Phase.ENDED:
                    self.kill()
                await asyncio.gather(*self._tasks)
        return self.supervision.exit_code

    def kill(self) -> None:
        """Kill every group that is left; may be called from any thread."""
        for group in tuple(self._groups):
            guard.send(group, signal.SIGKILL)

    async def _supervise(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        while self.supervision.phase is not Phase.ENDED:
            event: Event = DeadlineReached()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self.supervision.next_deadline()):
                    event = await self._events.get()
            for action in self.supervision.handle(event, loop.time()):
                self._perform(action, job)

    def _perform(self, action: Action, job: Job) -> None:
        match action:
            case Send(names, signum):
                for name in names:
                    process = self._processes[name]
                    if not process.exited.done():
                        guard.send(process.pid, signum)
            case EndJob(reason):
                self._tasks.append(asyncio.create_task(job.close(reason)))
            case TellOfEnd(name, role, reason, clean):
                job.will_not_come(name, reason, role=role, clean=clean)
            case Say(event, fields):
                get_logger(role="launcher").warning(event, **fields)

    async def _start(self, program: Program, watch: Callable[[str], None]) -> None:
        _, process = await asyncio.get_running_loop().subprocess_exec(
            _Process,
            *guard.leashed(list(program.command)),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            env=program.environment,
            start_new_session=True,
        )
        self._groups.add(process.pid)
        watch(f"+{process.pid}")
        self._processes[program.name] = process
        self._tasks.append(asyncio.create_task(self._follow(program, process, watch)))

    async def _follow(
        self, program: Program, process: _Process, watch: Callable[[str], None]
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        pipes = (_Pipe(process.stdout, program.stdout), _Pipe(process.stderr, program.stderr))
        pumps = {asyncio.create_task(pipe.pump()): pipe for pipe in pipes}
        self._events.put_nowait(ChildExited(program.name, await process.exited))
        await _end_group(process.pid)
        self._groups.discard(process.pid)
        watch(f"-{process.pid}")
        await _drain(pumps)
        process.transport.close()

    async def _follow_job(self, job: Job) -> None:
        outcome = await job.wait_ended()
        workers = job.status()["workers"]
        lost = next((worker["name"] for worker in workers if worker["state"] == "lost"), None)
        self._events.put_nowait(JobEnded(outcome.ok, outcome.reason, lost))

    async def _follow_signals(self, stop: StopRequest) -> None:
        await stop.wait()
        assert stop.signum is not None
        self._events.put_nowait(Interrupted(stop.signum))


async def _end_group(group: int) -> None:
    """End what a child left behind: a shell's background job, a pool of processes."""
    deadline = time.monotonic() + STRAGGLERS_GRACE_S
    number: int = signal.SIGTERM
    while guard.send(group, number):
        guard.collect(group)
        if time.monotonic() > deadline:
            guard.send(group, signal.SIGKILL)
            return
        await asyncio.sleep(guard.POLL_S)
        number = 0


async def _drain(pumps: dict[asyncio.Task[None], _Pipe]) -> None:
    """Read what an ended child still had to say, however slowly our own reader takes it."""
    pending = set(pumps)
    seen = {task: pumps[task].moved for task in pending}
    while pending:
        done, pending = await asyncio.wait(pending, timeout=SILENCE_S)
        for task in done:
            if not task.cancelled():
                task.result()
        for task in pending:
            pipe = pumps[task]
            if pipe.waiting and pipe.moved == seen[task]:
                task.cancel()  # a daemon that it started still holds the pipe
            seen[task] = pipe.moved


@contextlib.asynccontextmanager
async def _watch() -> AsyncIterator[Callable[[str], None]]:
    process = await asyncio.create_subprocess_exec(
        *guard.watching(), stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
    )
    assert process.stdin is not None
    stdin = process.stdin

    def tell(line: str) -> None:
        if not stdin.is_closing():
            stdin.write(line.encode() + b"\n")

    try:
        yield tell
    finally:
        stdin.close()
        await process.wait()
