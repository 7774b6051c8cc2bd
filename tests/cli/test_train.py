"""`aiops train` as a user runs it: on a cluster of its own, and as a worker of another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import aiops, running

QUICK = ("--steps", "20", "--batch-size", "8")


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    """Write a small table of numbers: price = 3 rooms + 2 age."""
    path = tmp_path / "houses.csv"
    rows = (f"{rooms},{age},{3 * rooms + 2 * age}" for rooms in range(1, 7) for age in range(8))
    path.write_text("rooms,age,price\n" + "\n".join(rows) + "\n")
    return path


def test_the_report_for_people(houses: Path) -> None:
    ended = aiops(
        *("train", "linear", "--data", str(houses), "--target", "price"),
        *(*QUICK, "--servers", "2", "--workers", "2"),
    )
    assert ended.returncode == 0, ended.stderr
    for text in (
        "linear on houses.csv",
        "20 steps",
        "2 workers, 2 servers",
        "test",
        "push",
        "bytes",
    ):
        assert text in ended.stdout
    assert "worker-" not in ended.stdout


def test_the_report_for_machines_and_the_trace(houses: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    ended = aiops(
        *("train", "linear", "--data", str(houses), "--target", "price", "--json"),
        *(*QUICK, "--workers", "2", "--trace", str(trace)),
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert {"test_loss", "train_loss", "seconds"} <= set(report)
    assert (report["steps"], report["workers"], report["servers"]) == (20, 2, 1)
    assert {"pushed", "pulled", "retransmitted"} <= set(report["bytes"])
    assert report["bytes"]["retransmitted"] == 0
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["name"] for event in events}
    phases = {"start", "pull", "local gradient", "push", "average and update", "publish", "repeat"}
    assert phases <= names
    processes = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"server 0", "worker 0", "worker 1"} <= processes


@pytest.mark.parametrize("mode", ["ssp:2", "quorum:2"])
def test_modes_with_a_number(houses: Path, mode: str) -> None:
    data = ("train", "linear", "--data", str(houses), "--target", "price")
    ended = aiops(*data, *QUICK, "--workers", "3", "--consistency", mode, "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["steps"] == 20


def test_a_mode_that_there_is_not(houses: Path) -> None:
    data = ("train", "linear", "--data", str(houses), "--target", "price")
    ended = aiops(*data, "--consistency", "ssp")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "ssp:N such as ssp:3" in ended.stderr


def test_joining_a_running_cluster(houses: Path) -> None:
    with running("scheduler", "--servers", "1", "--workers", "1") as scheduler:
        address = scheduler.ready()["address"]
        with running("server", "--scheduler", address) as server:
            ended = aiops(
                *("train", "linear", "--data", str(houses), "--target", "price", *QUICK),
                *("--json", "--scheduler", address),
            )
            assert ended.returncode == 0, ended.stderr
            report = json.loads(ended.stdout.splitlines()[-1])
            assert report["steps"] == report["worker_report"]["steps"] == 20
            assert report["workers"] == 1
            assert server.end()[0] == 0
        assert scheduler.end()[0] == 0


def test_unreadable_data_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("a,b\n1,2\n3,x\n5,6\n")
    ended = aiops("train", "linear", "--data", str(path), "--target", "b")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "bad.csv" in ended.stderr
    assert "3" in ended.stderr


def test_a_training_that_diverges_says_so(houses: Path) -> None:
    ended = aiops(
        *("train", "linear", "--data", str(houses), "--target", "price"),
        *("--lr", "1e30", "--steps", "500", "--workers", "2"),
    )
    assert ended.returncode == 1
    assert "diverged" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_local_steps_exchange_once_in_so_many(houses: Path) -> None:
    ended = aiops(
        *(
            "train",
            "linear",
            "--data",
            str(houses),
            "--target",
            "price",
            "--json",
            "--servers",
            "2",
        ),
        *("--steps", "20", "--batch-size", "8", "--workers", "2", "--local-steps", "5"),
        *("--optimizer", "sgd", "--lr-schedule", "warmup:5,constant", "--outer-momentum", "0.5"),
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert (report["steps"], report["workers"]) == (20, 2)
    assert report["latency"]["push"]["count"] == 2 * 20 // 5
    assert "local step" in report["phases"]


def test_flags_of_local_steps_need_local_steps() -> None:
    ended = aiops("train", "softmax", "--outer-lr", "0.5")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--outer-lr: only with --local-steps" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_in_a_ring_there_are_no_servers_and_the_report_has_the_bytes_of_the_ring() -> None:
    ended = aiops(*("train", "softmax", "--sync", "ring", "--workers", "2", "--json", *QUICK))
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert (report["workers"], report["servers"], report["by_server"]) == (2, 0, [])
    each = 20 * 650 * 4  # of two members, each sends as much as the array has
    assert (report["bytes"]["pushed"], report["bytes"]["pulled"]) == (2 * each, 2 * each)
    assert [account["bytes"]["pushed"] for account in report["by_worker"]] == [each, each]
    assert report["latency"]["push"]["count"] == 2 * 20
    assert report["latency"]["push"]["p50_s"] > 0
