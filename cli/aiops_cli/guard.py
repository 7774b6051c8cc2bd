"""Two small programs that see to it that no child outlives its launcher.

This file is run by path, with the standard library only, so that each start costs milliseconds:

    guard.py leash LAUNCHER_PID COMMAND...   become COMMAND, which the kernel ends with the launcher
    guard.py watch                           end the groups named on stdin when stdin closes

The leash binds one process at its birth, and only Linux can do that. The watch ends whole process
groups (a worker may be a shell script with children of its own) and works wherever pipes do: the
kernel closes its stdin when the launcher dies, by whatever cause. It reads lines ``+GROUP`` and
``-GROUP``; after an orderly end none are left and it just leaves.
"""

from __future__ import annotations

import os
import signal
import sys
import time

GRACE_S = 3.0  # between SIGTERM and SIGKILL once the launcher is gone
POLL_S = 0.05
LEASHES = sys.platform == "linux"
EXIT_CANNOT_RUN = 126  # as a shell says it: found, but cannot be run
EXIT_ORPHANED = 125
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def leash(launcher_pid: int, command: list[str]) -> int:
    """Become `command`, to be sent SIGTERM by the kernel when the launcher dies."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # The launcher may have died before the call above: then nobody would ever tell us.
    if os.getppid() != launcher_pid:
        return EXIT_ORPHANED
    # Python ignores these two, and what is ignored stays so in the program that we become.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return EXIT_CANNOT_RUN


def watch() -> int:
    """Remember the groups that stdin names, and end them when it closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # our end is the launcher's end
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        groups.add(group) if line[0] == "+" else groups.discard(group)
    groups = {group for group in groups if send(group, signal.SIGTERM)}
    deadline = time.monotonic() + GRACE_S
    while groups and time.monotonic() < deadline:
        time.sleep(POLL_S)
        groups = {group for group in groups if send(group, 0)}
    for group in groups:
        send(group, signal.SIGKILL)
    return 0


def send(group: int, number: int) -> bool:
    """Signal a process group; tell whether it still has members."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS says so of a group of zombies
        return False
    return True


def adopt_orphans() -> None:
    """Become the parent of what ended children leave behind, where that can be had.

    So that `collect` works also in a container in which nobody else does it.
    """
    if LEASHES:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def collect(group: int) -> None:
    """Take leave of the dead of a group, so that it counts as empty when it is."""
    try:
        while os.waitpid(-group, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def leashed(command: list[str]) -> list[str]:
    """Return `command` so that it ends with the process that starts it, where that can be had."""
    if not LEASHES:
        return command
    return [*_this_file("leash"), str(os.getpid()), *command]


def watching() -> list[str]:
    """Return the command of the watch."""
    return _this_file("watch")


def _prctl(option: int, value: int) -> None:
    import ctypes  # a tenth of the time that this file takes to start

    ctypes.CDLL(None, use_errno=True).prctl(option, value)


def _this_file(program: str) -> list[str]:
    # -I and -S: neither the user's PYTHON variables nor his site-packages concern these programs.
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), program]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["leash", pid, *command] if command:
            sys.exit(leash(int(pid), command))
        case ["watch"]:
            sys.exit(watch())
        case _:
            sys.exit("usage: guard.py leash LAUNCHER_PID COMMAND... | guard.py watch")
