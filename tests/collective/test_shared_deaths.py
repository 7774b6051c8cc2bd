"""SIGKILL of a member at any moment: survivors agree, inputs are intact, nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aiops.collective.shared import supported

pytestmark = pytest.mark.skipif(not supported(), reason="shared memory needs Linux")

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "shared_member.py"
MEMBERS = 4
LINE_TIMEOUT_S = 120.0


class Member:
    """A process, and what it says."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.bell = self.says("bell")

    def says(self, what: str) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"a survivor has ended with {self.process.wait(LINE_TIMEOUT_S)}"
        facts = json.loads(line)
        assert what in facts, f"{facts} in place of {what}"
        return facts[what]

    def tell(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(LINE_TIMEOUT_S)


@contextmanager
def members() -> Iterator[list[Member]]:
    started = [Member() for _ in range(MEMBERS)]
    try:
        yield started
    finally:
        for member in started:
            if member.process.poll() is None:
                member.close()
    assert all(member.process.returncode == 0 for member in started)


def shared_segments() -> set[str]:
    """Names that something could be left under; semaphores are those of other programs."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


def test_a_member_killed_at_any_moment(request: pytest.FixtureRequest) -> None:
    """All survivors have the same calls in effect, the others' inputs are as they were (the
    processes check it themselves), and a group of the survivors goes on.

    With ``--kill-matrix`` 200 rounds, otherwise a few.
    """
    rounds = 200 if request.config.getoption("--kill-matrix") else 3
    chance = random.Random(20 + rounds)
    before = shared_segments()
    with members() as alive:
        for number in range(rounds):
            names = [member.bell for member in alive]
            for index, member in enumerate(alive):
                member.tell(group=f"round {number}", index=index, names=names)
            for member in alive:
                member.says("met")
            time.sleep(chance.uniform(0.0, 0.03))
            alive.pop(chance.randrange(MEMBERS)).kill()
            halted = [member.says("halted") for member in alive]
            assert max(halted) - min(halted) <= 1
            for member in alive:
                member.tell(verdict=max(halted))
            rounds_in_effect = {member.says("rounds") for member in alive}
            assert rounds_in_effect == {max(halted)}
            alive.append(Member())
    assert shared_segments() <= before
