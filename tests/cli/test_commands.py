"""Scheduler, server, worker and status as processes of their own: a cluster by hand."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from commands import Running, aiops, running

STEPS = """
import numpy as np
import aiops

async def main():
    async with aiops.connect() as worker:
        table = await worker.table("w", shape=(4,), optimizer=aiops.optim.SGD(lr=1.0))
        async for step in worker.steps(3):
            await table.push(np.ones(4, np.float32))
        print((await table.pull())[0], flush=True)
        try:
            input()
        except EOFError:
            pass

aiops.run(main())
"""


@contextmanager
def cluster(workers: int = 1, servers: int = 1) -> Iterator[tuple[str, Running, list[Running]]]:
    """Start a scheduler and servers by hand: address, scheduler, servers."""
    with ExitStack() as stack:
        arguments = ("scheduler", "--servers", str(servers), "--workers", str(workers))
        scheduler = stack.enter_context(running(*arguments))
        address = scheduler.ready()["address"]
        started = [
            stack.enter_context(running("server", "--scheduler", address)) for _ in range(servers)
        ]
        yield address, scheduler, started


def test_a_cluster_by_hand(tmp_path: Path) -> None:
    """Ready lines with real ports, one worker that trains, and an end of everybody by itself."""
    (tmp_path / "steps.py").write_text(STEPS)
    with cluster(servers=2) as (address, scheduler, servers):
        ready = [server.ready() for server in servers]
        assert sorted(line["rank"] for line in ready) == [0, 1]
        for line, server in zip(ready, servers, strict=True):
            assert set(line) == {"event", "role", "rank", "name", "address", "pid"}
            assert line["role"] == "server"
            assert line["pid"] == server.process.pid
            assert int(line["address"].rpartition(":")[2]) > 0
        ended = aiops(
            *("worker", "--scheduler", address, "--name", "me", "--", "python", "steps.py"),
            cwd=tmp_path,
        )
        assert (ended.returncode, ended.stdout) == (0, "-3.0\n"), ended.stderr
        for node in (scheduler, *servers):
            code, out, err = node.end()
            assert (code, out) == (0, ""), err


def test_status_of_a_running_job(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    with cluster() as (address, scheduler, servers):
        name = servers[0].ready()["name"]
        waiting = aiops("status", "--scheduler", address)
        assert "waiting for its nodes" in waiting.stdout
        arguments = ("worker", "--scheduler", address, "--name", "me", "--", "python", "steps.py")
        with running(*arguments, cwd=tmp_path) as worker:
            assert worker.line() == "-3.0"
            shown = aiops("status", "--scheduler", address, COLUMNS="160")
            assert shown.returncode == 0, shown.stderr
            for text in ("running", "1 of 1 workers", name, "me", "w ", "sgd", "0..4"):
                assert text in shown.stdout
            document = json.loads(aiops("status", "--json", AIOPS_SCHEDULER=address).stdout)
            assert document["workers"][0]["name"] == "me"
            watching = ("--watch", "--json", "--timeout-s", "2")
            with running("status", "--scheduler", address, *watching) as watch:
                assert json.loads(watch.line())["ended"] is None
                worker.say("go on")
                assert worker.end()[0] == 0
                assert scheduler.end()[0] == 0
                assert watch.end()[0] == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_idle_roles(number: int, code: int) -> None:
    with cluster() as (_, scheduler, servers):
        servers[0].ready()
        for node in (servers[0], scheduler):
            node.send(number)
            exit_code, out, err = node.end()
            assert (exit_code, out) == (code, ""), err


def test_a_signal_ends_a_server_that_finds_no_scheduler() -> None:
    with running("server", "--scheduler", "127.0.0.1:1") as server:
        server.log_until("nobody listens there")
        server.send(signal.SIGINT)
        assert server.end()[0] == 130


def test_a_scheduler_that_is_not_there() -> None:
    """Progress while it tries, then one line with what to do, and exit code 2."""
    ended = aiops("server", "--scheduler", "127.0.0.1:1", "--connect-timeout-s", "0.3")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "127.0.0.1:1" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_name_that_nobody_knows() -> None:
    ended = aiops(
        *("server", "--scheduler", "no-such-host.invalid:9070", "--connect-timeout-s", "0.3")
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no-such-host.invalid" in ended.stderr.splitlines()[-1]


def test_status_without_a_scheduler() -> None:
    ended = aiops("status", "--scheduler", "127.0.0.1:1", "--timeout-s", "0.3")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_a_port_in_use(role: str) -> None:
    with cluster() as (address, _, _), socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        joining = ("--scheduler", address) if role == "server" else ()
        ended = aiops(role, *joining, "--bind", bind)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert bind in ended.stderr


def test_what_an_imported_module_prints_stays_off_stdout(tmp_path: Path) -> None:
    """The ready line is the first and only line of stdout."""
    (tmp_path / "chatty.py").write_text("print('hello from my updater')\n")
    with running("scheduler") as scheduler:
        address = scheduler.ready()["address"]
        arguments = ("server", "--scheduler", address, "--import", "chatty")
        with running(*arguments, cwd=tmp_path) as server:
            assert server.ready()["role"] == "server"
            assert "hello from my updater" in server.log_until("hello")
            server.send(signal.SIGTERM)
            assert server.end()[:2] == (143, "")
