"""Who is killed, stopped or asked to end, in jobs of real processes, and what the others see.

This is the table of docs/explanation/failures.md. `make test` runs four cells of it, and
`make kill-matrix` all: each takes some seconds, and most of it is waiting for heartbeats to stay
away.

Scheduler and servers die under the policy `continue`, to show that it does not help there.
"""

from __future__ import annotations

import signal
from itertools import product
from typing import Any, NamedTuple

import pytest

from real_jobs import Job, Process, real_job

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGSTOP": signal.SIGSTOP}

LOST_WORKER = "worker 1 (worker-1)"
LOST_SERVER = "server 1 (server-1)"
LOST_KEYS = "theta [496, 1000)"


class Cell(NamedTuple):
    """One job and what is done to it."""

    victim: str
    fate: str
    rule: str
    policy: str = "continue"

    @property
    def name(self) -> str:
        return "-".join((self.victim.partition("-")[0], self.fate, self.rule, self.policy))


RULES = ("BSP", "ASP")
MATRIX = [
    *(Cell("worker-1", *rest) for rest in product(SIGNALS, RULES, ("fail", "continue"))),
    *(Cell("server-1", *rest) for rest in product(SIGNALS, RULES)),
    *(Cell("scheduler", *rest) for rest in product([*SIGNALS, "orphaned"], RULES)),
]
ALWAYS = [
    Cell("worker-1", "SIGKILL", "BSP", "fail"),
    Cell("worker-1", "SIGKILL", "ASP", "continue"),
    Cell("worker-1", "SIGSTOP", "BSP", "continue"),
    Cell("server-1", "SIGKILL", "BSP"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" in metafunc.fixturenames:
        cells = MATRIX if metafunc.config.getoption("--kill-matrix") else ALWAYS
        metafunc.parametrize("cell", cells, ids=[cell.name for cell in cells])


def test_what_follows(cell: Cell) -> None:
    with real_job(cell.rule, cell.policy) as job:
        job[cell.victim].send(SIGNALS.get(cell.fate, signal.SIGSTOP))
        match cell.victim, cell.fate:
            case "worker-1", "SIGSTOP":
                worker_freezes(job, cell.policy)
            case "worker-1", _:
                worker_dies(job, cell)
            case "server-1", _:
                server_goes(job, cell.fate)
            case _, "SIGKILL":
                scheduler_dies(job)
            case _, "SIGTERM":
                scheduler_is_told_to_end(job)
            case _, "SIGSTOP":
                scheduler_freezes_for_a_while(job)
            case _:
                scheduler_freezes_for_long(job)


# --- a worker ---


def worker_dies(job: Job, cell: Cell) -> None:
    """No difference between the signals: a program of the user's knows nothing of SIGTERM."""
    assert job[cell.victim].end() == -SIGNALS[cell.fate]
    assert job["scheduler"].wait_for("node_lost")["node"] == LOST_WORKER
    job_without_worker(job, cell.policy)


def worker_freezes(job: Job, policy: str) -> None:
    lost = job["scheduler"].wait_for("node_lost")
    assert lost["node"] == LOST_WORKER
    assert lost["reason"].startswith("no heartbeat for ")
    assert job["scheduler"].wait_for("node_suspected")["node"] == LOST_WORKER
    job["worker-1"].send(signal.SIGCONT)
    error = job["worker-1"].error()
    if policy == "fail" and error["type"] == "NodeFailed":
        # The servers have ended with the job, and their goodbyes were read first.
        assert f"the server ends: {LOST_WORKER} is lost: " in error["text"], error
    else:
        assert error["type"] == "StaleIncarnation", error
        assert "has given this worker up" in error["text"]
    job_without_worker(job, policy)


def job_without_worker(job: Job, policy: str) -> None:
    if policy == "fail":
        for worker in job.workers("worker-1"):
            fails(worker, LOST_WORKER, f"the job has failed: {LOST_WORKER} is lost: ")
        nodes_fail(job.servers(), LOST_WORKER)
        nodes_fail([job["scheduler"]], LOST_WORKER)
    else:
        goes_on(job, "worker-1")
        assert nodes(job["scheduler"], "node_lost") == [LOST_WORKER]


# --- a server ---


def server_goes(job: Job, fate: str) -> None:
    """Its keys are gone, and no policy brings them back."""
    victim = job["server-1"]
    if fate == "SIGSTOP":
        assert job["scheduler"].wait_for("node_lost")["reason"].startswith("no heartbeat for ")
    for worker in job.workers():
        # In the words of the scheduler, or of the server itself if its goodbye comes first.
        fails(worker, LOST_SERVER, LOST_SERVER)
    nodes_fail(job.servers("server-1"), LOST_SERVER, LOST_KEYS)
    if fate == "SIGSTOP":
        victim.send(signal.SIGCONT)
        nodes_fail([victim], "the scheduler at ", " has given this server up: server 1 ")
    else:
        assert victim.end() == (-9 if fate == "SIGKILL" else 143)
    nodes_fail([job["scheduler"]], LOST_SERVER, LOST_KEYS)


# --- the scheduler ---


def scheduler_dies(job: Job) -> None:
    for worker in job.workers():
        fails(worker, "scheduler", "the scheduler at ", " is gone: ")
    nodes_fail(job.servers(), "the scheduler at ", " is gone: ")
    assert job["scheduler"].end() == -9


def scheduler_is_told_to_end(job: Job) -> None:
    """An end in order, only too early for the workers."""
    for worker in job.workers():
        error = worker.error()
        assert (error["type"], error["text"]) == (
            "Closed",
            "the job has ended: it received SIGTERM",
        )
    assert [server.end() for server in job.servers()] == [0, 0]
    assert job["scheduler"].end() == 143


def scheduler_freezes_for_a_while(job: Job) -> None:
    """Longer than a server serves without it, shorter than anybody gives it up."""
    for server in job.servers():
        server.wait_for("serving_suspended")
    job["scheduler"].send(signal.SIGCONT)
    for server in job.servers():
        server.wait_for("serving_resumed")
    goes_on(job)
    assert nodes(job["scheduler"], "node_lost") == []


def scheduler_freezes_for_long(job: Job) -> None:
    """Everybody has gone by the time it wakes up."""
    for worker in job.workers():
        fails(worker, "scheduler", "the scheduler at ", " has not answered for ")
    nodes_fail(job.servers(), "the scheduler at ", " has not answered for ")
    job["scheduler"].send(signal.SIGCONT)
    nodes_fail([job["scheduler"]])


# --- what can be seen ---


def fails(worker: Process, node: str, *texts: str) -> None:
    error = worker.error()
    assert (error["type"], error["node"]) == ("NodeFailed", node), error
    for text in texts:
        assert text in error["text"]


def nodes_fail(processes: list[Process], *texts: str) -> None:
    for process in processes:
        assert process.end() == 1, process.lines
        for text in texts:
            assert text in process.reason()


def goes_on(job: Job, *without: str) -> None:
    """Training gets on, and then ends in order, for all after the same step."""
    workers = job.workers(*without)
    for worker in workers:
        worker.steps(5)
    workers[0].tell()
    clocks: set[Any] = set()
    for worker in workers:
        assert worker.end() == 0, worker.lines[-5:]
        clocks.add(worker.wait_for("stopped")["clock"])
    assert len(clocks) == 1
    for node in (*job.servers(), job["scheduler"]):
        assert node.end() == 0, node.lines


def nodes(process: Process, event: str) -> list[str]:
    return [line["node"] for line in process.lines if line["event"] == event]


def test_a_killed_worker_that_is_started_again_goes_on_where_it_was() -> None:
    """And all stop after one common step: none has a step to do alone."""
    with real_job("BSP", "continue") as job:
        former = job["worker-1"]
        former.steps(20)
        former.send(signal.SIGKILL)
        former.end()
        done = [line["step"] for line in former.lines if line["event"] == "step"]
        again = job.start_worker("worker-1")
        again.steps(10)
        first = again.wait_for("step")["step"]
        assert first >= done[-1], "what it had sealed is not done again"
        job["worker-0"].tell()
        assert len({worker.wait_for("stopped")["clock"] for worker in job.workers()}) == 1
        assert [worker.end() for worker in job.workers()] == [0, 0, 0]
