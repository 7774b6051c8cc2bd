"""Run the command `aiops` as a user does, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TIMEOUT_S = 120.0  # for the slowest command on a busy machine; nothing waits for it in normal life


def aiops(
    *arguments: str, cwd: object = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "aiops", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=str(cwd) if cwd is not None else None,
        env={**os.environ, **environment},
    )


class Running:
    """A command that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        """Return the next line of its stdout."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def ready(self) -> dict[str, Any]:
        """Return its ready line."""
        found = json.loads(self.line())
        assert isinstance(found, dict)
        assert found["event"] == "ready"
        return found

    def log_until(self, text: str) -> str:
        """Return what it logs up to the line that contains `text`."""
        assert self.process.stderr is not None
        seen = ""
        for line in self.process.stderr:
            seen += line
            if text in line:
                return seen
        raise AssertionError(f"{text!r} never came:\n{seen}")

    def say(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def send(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: exit code, and the rest of stdout and stderr.

        That takes until the last process that holds its stdout or stderr is gone, so no survivor
        goes unnoticed.
        """
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out, err


@contextmanager
def running(*arguments: str, cwd: object = None, **environment: str) -> Iterator[Running]:
    """Start a command; it is killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "aiops", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=str(cwd) if cwd is not None else None,
        env={**os.environ, **environment},
        # A shell's background jobs ignore SIGINT, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()
