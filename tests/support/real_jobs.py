"""A whole job in processes of its own, for tests that kill, stop and end them.

Every process is started as a user starts it. What it prints is read by threads as it comes, so
that a test waits for lines, and never for time to pass.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

WITHIN_S: Final = 120.0
"""For anything that is waited for; the slowest takes six seconds on a calm machine."""

Line = dict[str, Any]

TRAINING: Final = """
import asyncio, json, sys
import numpy as np
import aiops
from aiops.errors import AiopsError
from aiops.optim import Add

def say(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)

async def train(rule):
    async with aiops.connect() as worker:
        told = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(0, lambda: (told.set(), loop.remove_reader(0)))
        table = await worker.table(
            "theta", shape=(1000,), optimizer=Add(), consistency=getattr(aiops, rule)()
        )
        say("ready", name=worker.name, rank=worker.rank)
        async for step in worker.steps(1_000_000_000):
            if told.is_set():
                told.clear()
                await worker.stop("enough")
            await table.push(np.ones(1000, np.float32))
            await table.pull()
            say("step", step=step)
            await asyncio.sleep(0.01)
        say("stopped", clock=worker.clock)

try:
    aiops.run(train(sys.argv[1]))
except AiopsError as error:
    node = getattr(error, "node", None)
    say("error", type=type(error).__name__, text=str(error), node=node)
    sys.exit(3)
"""
"""A worker that trains until something comes on its stdin, or its end with the end of the tests;
then all stop after one common step."""


class Process:
    """One process, and the lines that it has printed so far."""

    def __init__(
        self, name: str, *command: str, inside: Sequence[str] = (), **environment: str
    ) -> None:
        self.name = name
        self.lines: list[Line] = []
        self._news = threading.Condition()
        self._popen = subprocess.Popen(
            [*inside, sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        pipes = (self._popen.stdout, self._popen.stderr)
        self._readers = [threading.Thread(target=self._read, args=(pipe,)) for pipe in pipes]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: IO[str]) -> None:
        for text in pipe:
            try:
                line = json.loads(text)
            except ValueError:
                line = {"event": "", "text": text}
            line["at"] = time.monotonic()
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    def wait_for(self, event: str, seen: int = 0) -> Line:
        """Return the first line with this event behind the first `seen` lines."""

        def find() -> Line | None:
            return next((line for line in self.lines[seen:] if line["event"] == event), None)

        with self._news:
            found = self._news.wait_for(find, WITHIN_S)
        assert found is not None, f"{self.name} never said {event}: {self.lines[-20:]}"
        return found

    def steps(self, more: int) -> None:
        """Wait until a worker has ended some more steps from now on."""
        seen = len(self.lines)

        def enough() -> bool:
            steps = [line for line in self.lines[seen:] if line["event"] == "step"]
            return len(steps) >= more

        with self._news:
            moves = self._news.wait_for(enough, WITHIN_S)
        assert moves, f"{self.name} stands still: {self.lines[-20:]}"

    def send(self, number: int) -> None:
        """Send a signal."""
        self._popen.send_signal(number)

    def tell(self) -> None:
        """Send a byte to its stdin."""
        assert self._popen.stdin is not None
        self._popen.stdin.write("x")
        self._popen.stdin.flush()

    def end(self) -> int:
        """Wait for its end; returns the exit code."""
        code = self._popen.wait(WITHIN_S)
        for reader in self._readers:
            reader.join(WITHIN_S)
        return code

    def error(self) -> Line:
        """Wait for the end of a worker that fails; returns what it raised."""
        assert self.end() == 3, f"{self.name}: {self.lines[-5:]}"
        return self.wait_for("error")

    def reason(self) -> str:
        """Return the reason that a scheduler or server logged for the failure of its job."""
        return str(self.wait_for("job_failed")["reason"])

    def kill(self) -> None:
        """End it whatever its state. Idempotent."""
        self._popen.kill()
        self._popen.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class Job:
    """A scheduler, two servers and three workers that train."""

    def __init__(self, rule: str, policy: str, heartbeat_s: float = 0.2) -> None:
        self.processes: dict[str, Process] = {}
        self._rule = rule
        self._policy = policy
        self._heartbeat_s = heartbeat_s
        self._common: dict[str, str] = {}

    def __getitem__(self, name: str) -> Process:
        """Return a process by its name: `scheduler`, `server-0`, `worker-2`."""
        return self.processes[name]

    def _start(self, name: str, *command: str, **environment: str) -> Process:
        process = self.processes[name] = Process(name, *command, **environment)
        return process

    def start_worker(self, name: str) -> Process:
        """Start a worker, also one that has run before."""
        if name in self.processes:
            self[name].kill()
        return self._start(name, "-c", TRAINING, self._rule, **self._common, AIOPS_NAME=name)

    def start(self) -> None:
        """Start everybody, and wait until all workers train."""
        scheduler = self._start(
            "scheduler",
            *("-m", "aiops", "scheduler", "--log-format", "json", "--servers", "2"),
            *("--workers", "3", "--heartbeat-s", str(self._heartbeat_s)),
            *("--on-worker-loss", self._policy),
        )
        address = scheduler.wait_for("ready")["address"]
        common = self._common = {"AIOPS_SCHEDULER": address}
        for index in range(2):
            server = ("-m", "aiops", "server", "--log-format", "json", "--name", f"server-{index}")
            self._start(f"server-{index}", *server, **common)
            self[f"server-{index}"].wait_for("ready")  # one after the other, so ranks are known
        for index in range(3):
            name = f"worker-{index}"
            self.start_worker(name)
        for worker in self.workers():
            worker.steps(3)

    def workers(self, *but: str) -> list[Process]:
        """Return the workers, without some."""
        return [p for n, p in self.processes.items() if n.startswith("worker") and n not in but]

    def servers(self, *but: str) -> list[Process]:
        """Return the servers, without some."""
        return [p for n, p in self.processes.items() if n.startswith("server") and n not in but]

    def kill(self) -> None:
        """End everybody."""
        for process in self.processes.values():
            process.kill()


@contextmanager
def real_job(rule: str, policy: str) -> Iterator[Job]:
    """Run a job until the end of the block, when every process is gone."""
    job = Job(rule, policy)
    try:
        job.start()
        yield job
    finally:
        job.kill()
