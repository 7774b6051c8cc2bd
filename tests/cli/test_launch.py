"""`aiops launch` with real workers: output, exit codes, signals, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from commands import aiops, running
from processes import children_of, ends

TRAIN = """
import sys
import numpy as np
import aiops

async def main():
    async with aiops.connect() as worker:
        workers = worker.world_size  # now: at the end the others may have left
        table = await worker.table("w", shape=(4,), optimizer=aiops.optim.SGD(lr=1.0))
        async for step in worker.steps(20):
            await table.push(np.ones(4, np.float32))
        values = await table.pull()
        print(worker.rank, workers, values[0], *sys.argv[1:])

aiops.run(main())
"""
FAIL = """
import os
import sys
import aiops

async def main():
    async with aiops.connect() as worker:
        await worker.barrier("all-here")
        if worker.rank == 1:
            sys.exit(7)
        await worker.barrier("never-complete")

aiops.run(main())
"""
RUN_ON = """
import os
import numpy as np
import aiops

async def main():
    async with aiops.connect() as worker:
        table = await worker.table("w", shape=(4,), optimizer=aiops.optim.SGD(lr=1.0))
        async for step in worker.steps(10**9):
            await table.push(np.ones(4, np.float32))
            if step == 5:
                print(os.getpid(), flush=True)

aiops.run(main())
"""

FAIL_FIRST = """
import os
import signal
import sys
import aiops

def before(how):
    if os.environ["AIOPS_NAME"] != "worker-1":
        return
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(how))

before(sys.argv[1])
import train
"""
KILLED_IN_THE_START = """
import os
import signal
import sys
import time
import aiops

def states():
    workers = aiops.blocking.fetch_status()["workers"]
    return {worker["name"]: (worker["state"], worker["process_id"]) for worker in workers}

if os.environ["AIOPS_NAME"] == "worker-2":  # it comes when worker-1 has registered and is lost
    while "worker-1" not in states():
        pass
    os.kill(states()["worker-1"][1], signal.SIGKILL)
    while states()["worker-1"][0] != "lost":
        time.sleep(0.02)
import train
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (
        ("train.py", TRAIN),
        ("fail.py", FAIL),
        ("run_on.py", RUN_ON),
        ("fail_first.py", FAIL_FIRST),
        ("killed_in_the_start.py", KILLED_IN_THE_START),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports


def test_a_script_trains_unchanged(folder: Path) -> None:
    """It finds its cluster in the environment; its lines and arguments are its own."""
    ended = aiops(
        *(
            "launch",
            "--servers",
            "2",
            "--workers",
            "3",
            "--",
            "python",
            "train.py",
            "--epochs",
            "3",
        ),
        cwd=folder,
    )
    assert ended.returncode == 0, ended.stderr
    lines = sorted(ended.stdout.splitlines())
    assert lines == [f"{rank} 3 -20.0 --epochs 3" for rank in range(3)]


def test_fixed_addresses_from_a_file(folder: Path) -> None:
    ports = free_ports(2)
    (folder / "cluster.toml").write_text(
        f'workers = 2\n[scheduler]\naddress = "127.0.0.1:{ports[0]}"\n'
        f'[[servers]]\naddress = "localhost:{ports[1]}"\n'
    )
    ended = aiops("launch", "--cluster", "cluster.toml", "--", "python", "train.py", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.split("\n"))[1:] == ["0 2 -20.0", "1 2 -20.0"]


def test_logs_can_be_lines_of_json(folder: Path) -> None:
    ended = aiops("launch", "--log-format", "json", "--", "python", "train.py", cwd=folder)
    events = [json.loads(line)["event"] for line in ended.stderr.splitlines()]
    assert "cluster_ready" in events
    assert "job_ended" in events


def test_the_exit_code_is_that_of_the_worker_that_failed(folder: Path) -> None:
    """Not that of the others, which learn of the loss and raise, perhaps sooner."""
    ended = aiops("launch", "--workers", "3", "--", "python", "fail.py", cwd=folder)
    assert ended.returncode == 7, ended.stderr
    assert "worker 1 (worker-1)" in ended.stderr


@pytest.mark.parametrize("program", ["fail_first.py", "killed_in_the_start.py"])
def test_the_others_begin_without_a_worker_that_is_killed_in_the_start(
    folder: Path, program: str
) -> None:
    """They waited until their own limit, which is the end of every worker."""
    policy = ("--workers", "3", "--on-worker-loss", "continue")
    ended = aiops("launch", *policy, "--", "python", program, "killed", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    lines = sorted(ended.stdout.splitlines())
    assert lines == [f"{rank} 2 -20.0 killed" for rank in (0, 2)], ended.stderr
    assert "worker-1" in ended.stderr


def test_the_others_learn_of_a_worker_that_has_failed_in_the_start(folder: Path) -> None:
    ended = aiops("launch", "--workers", "3", "--", "python", "fail_first.py", "7", cwd=folder)
    assert ended.returncode == 7, ended.stderr
    raised = [line for line in ended.stderr.splitlines() if line.startswith("aiops.errors.")]
    assert len(raised) == 2, ended.stderr
    text = "worker-1 has ended before it registered: exit code 7"
    assert all(line.endswith(text) for line in raised), raised
    assert "stopping_the_others" not in ended.stderr


def test_a_server_that_cannot_start_fails_who_waits_for_it(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (folder / "cluster.toml").write_text(
            f'workers = 1\n[scheduler]\naddress = "127.0.0.1:{free_ports(1)[0]}"\n'
            f'[[servers]]\naddress = "127.0.0.1:{port}"\n'
        )
        ended = aiops("launch", "--cluster", "cluster.toml", "--", "python", "train.py", cwd=folder)
    assert ended.returncode == 1
    text = "server-0 has ended before it registered: exit code 2"
    raised = [line for line in ended.stderr.splitlines() if line.startswith("aiops.errors.")]
    assert [line.partition(": server")[1:] for line in raised] == [(": server", text[6:])]


def test_a_program_that_never_joins_is_no_problem(folder: Path) -> None:
    ended = aiops(
        "launch", "--workers", "2", "--log-level", "error", "--", "echo", "hi", cwd=folder
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "hi\nhi\n", "")


def test_a_port_in_use_is_one_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (folder / "cluster.toml").write_text(
            f'workers = 1\n[scheduler]\naddress = "127.0.0.1:{port}"\n'
            '[[servers]]\naddress = "127.0.0.1:9071"\n'
        )
        ended = aiops("launch", "--cluster", "cluster.toml", "--", "true", cwd=folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}" in ended.stderr


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["SIGINT", "SIGTERM", "SIGKILL"],
)
def test_a_killed_launcher_leaves_nobody(folder: Path, number: int, code: int) -> None:
    arguments = ("launch", "--servers", "2", "--workers", "2", "--", "python", "run_on.py")
    with running(*arguments, cwd=folder) as launch:
        workers = [int(launch.line()) for _ in range(2)]
        launch.send(number)
        exit_code, _, _ = launch.end()
    assert exit_code == code
    assert all(ends(pid) for pid in workers)


def test_a_worker_behind_a_shell_ends_with_the_launcher(folder: Path) -> None:
    """`aiops launch -- bash run.sh`: the worker is a grandchild."""
    arguments = ("launch", "--", "sh", "-c", f"{sys.executable} run_on.py; echo unreachable")
    with running(*arguments, cwd=folder) as launch:
        worker = int(launch.line())
        launch.send(signal.SIGKILL)
        _, out, _ = launch.end()
    assert ends(worker)
    assert "unreachable" not in out


def test_a_second_signal_ends_at_once(folder: Path) -> None:
    """Also when the workers do not listen."""
    with running("launch", "--", "sh", "-c", "trap '' TERM; echo $$; sleep 60") as launch:
        worker = int(launch.line())
        launch.send(signal.SIGTERM)
        launch.log_until("SIGTERM")
        launch.send(signal.SIGTERM)
        exit_code, _, _ = launch.end()
    assert exit_code == 143
    assert ends(worker)


def test_a_dead_server_fails_the_job(folder: Path) -> None:
    with running("launch", "--workers", "2", "--", "python", "run_on.py", cwd=folder) as launch:
        for _ in range(2):
            launch.line()
        (server,) = children_of(launch.process.pid, "aiops server")
        os.kill(server, signal.SIGKILL)
        exit_code, _, err = launch.end()
    assert exit_code == 1
    assert "server 0 (server-0)" in err


@pytest.mark.parametrize(("level", "warned"), [("error", False), ("info", True)])
def test_the_log_level_holds_for_what_aiops_logs_in_the_programs(
    tmp_path: Path, level: str, warned: bool
) -> None:
    """But not for what the programs log themselves."""
    program = tmp_path / "warn.py"
    program.write_text(
        "import logging, aiops\n"
        "from aiops.observability import get_logger\n"
        "get_logger().warning('of_aiops')\n"
        "logging.getLogger('mine').warning('of mine')\n"
        "async def main():\n"
        "    async with aiops.connect():\n"
        "        pass\n"
        "aiops.run(main())\n"
    )
    done = aiops("launch", "--log-level", level, "--", sys.executable, str(program))
    assert done.returncode == 0, done.stderr
    assert ("of_aiops" in done.stderr) is warned
    assert "of mine" in done.stderr
