"""Nothing outlives a launcher that is killed outright, as by the kernel's out-of-memory killer.

Each program below is a launcher that starts children on its own stdout and is then killed with
SIGKILL. Its stdout reaches its end only when the last of them is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aiops_cli import guard
from commands import TIMEOUT_S

CLI = Path(guard.__file__).parent.parent
LEASHED = """
import subprocess, sys
from aiops_cli import guard
subprocess.Popen(guard.leashed(["sleep", "600"]), start_new_session=True)
print("started", flush=True)
sys.stdin.read()
"""
WATCHED = """
import subprocess, sys
from aiops_cli import guard
watch = subprocess.Popen(guard.watching(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
for command in ({commands}):
    child = subprocess.Popen(["sh", "-c", command], start_new_session=True)
    watch.stdin.write(b"+%d\\n" % child.pid)
watch.stdin.flush()
print("started", flush=True)
sys.stdin.read()
"""


def kill_a_launcher(program: str) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(CLI)},
        text=True,
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "started\n"
    launcher.kill()
    launcher.communicate(timeout=TIMEOUT_S)  # would run out if anybody still held its stdout


@pytest.mark.skipif(not guard.LEASHES, reason="only Linux binds a process to its parent")
def test_a_leashed_child_ends_with_its_launcher() -> None:
    kill_a_launcher(LEASHED)


def test_the_watch_ends_whole_groups_and_the_stubborn_ones_too() -> None:
    stubborn = "trap '' TERM; sleep 610 & sleep 620"
    kill_a_launcher(WATCHED.format(commands=f'"sleep 630 & sleep 640", "{stubborn}"'))


@pytest.mark.skipif(not guard.LEASHES, reason="only Linux binds a process to its parent")
def test_a_child_born_after_its_launcher_died_does_not_start() -> None:
    """The launcher may be killed between fork and the call that binds the child."""
    command = guard.leashed(["echo", "alive"])
    command[command.index(str(os.getpid()))] = "1"  # a launcher that is not our parent any more
    orphan = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S)
    assert (orphan.returncode, orphan.stdout) == (guard.EXIT_ORPHANED, b"")


@pytest.mark.skipif(not guard.LEASHES, reason="only Linux binds a process to its parent")
def test_a_leashed_program_has_the_signals_of_a_fresh_one() -> None:
    """Python ignores SIGPIPE; `yes | head` in a worker's script must not hang because of that."""
    command = guard.leashed(["sh", "-c", "kill -PIPE $$; echo survived"])
    ended = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S)
    assert ended.returncode == -signal.SIGPIPE


@pytest.mark.skipif(not guard.LEASHES, reason="only Linux binds a process to its parent")
def test_a_program_that_cannot_run_says_so() -> None:
    ended = subprocess.run(guard.leashed(["/"]), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == guard.EXIT_CANNOT_RUN
    assert ended.stderr == "cannot run /: Permission denied\n"
