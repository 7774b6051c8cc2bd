"""`aiops bench` runs and says what it promises. No time is asserted anywhere."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from aiops.benchmarking.push_pull import cases
from aiops.benchmarking.rounds import PUSH_IN_FLIGHT
from aiops_cli.bench import bench

ROW = {"op", "bytes", "peer", "median_s", "min_s", "max_s", "ratio_to_raw"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aiops", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_json_is_one_object_with_the_documented_rows() -> None:
    done = run("push-pull", "--json", "--quick", "--max-bytes", "4096")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert all(row.keys() >= ROW for row in rows)
    assert [(row["op"], row["bytes"], row["peer"]) for row in rows] == [
        (op, size, peer)
        for op, size in [
            ("push", 4),
            ("pull", 4),
            ("push", 4096),
            ("pull", 4096),
            (PUSH_IN_FLIGHT, 4096),
        ]
        for peer in ("aiops", "raw")
    ]
    for row in rows:
        assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"]
        assert row["peer"] == "aiops" or row["ratio_to_raw"] == 1.0
    assert "round 2 of 2" in done.stderr


def test_the_table_has_a_line_for_each_case() -> None:
    done = run("push-pull", "--quick", "--max-bytes", "65536")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" KB ") == 5
    assert "64 in flight" in done.stdout


def test_all_documented_sizes_are_measured() -> None:
    sizes = [4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
    wanted = [(op, size) for size in sizes for op in ("push", "pull")]
    wanted.append((PUSH_IN_FLIGHT, 4 << 10))
    for quick in (False, True):
        planned = cases(quick=quick)
        assert [(case.op, case.size) for case in planned] == wanted
        assert all(case.count >= 1 for case in planned)
    assert max(case.size for case in cases(bytes_max=1 << 20)) == 1 << 20


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["push-pull", "--max-bytes", "3"], "--max-bytes"), (["pull-push"], "pull-push")],
)
def test_wrong_use_is_exit_code_2(arguments: list[str], named: str) -> None:
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 2
    assert named in result.output


def test_help_has_an_example_and_lists_only_what_exists() -> None:
    assert "aiops bench push-pull" in CliRunner().invoke(bench, ["push-pull", "--help"]).output
    assert set(bench.commands) >= {"push-pull", "all-reduce"}


def test_all_reduce_has_a_row_for_each_peer_that_is_there() -> None:
    done = run("all-reduce", "--json", "--quick", "--max-bytes", "65536", "--processes", "3")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert all(row.keys() >= ROW | {"processes", "ratio_to_gloo", "ratio_to_mpi"} for row in rows)
    shared = ["aiops shared", "aiops shared copied"] if sys.platform == "linux" else []
    tcp = ["aiops tcp empty"] if sys.platform == "linux" else []
    hosts = ["aiops two hosts"] if sys.platform == "linux" else []
    found = {
        size: [r["peer"] for r in rows if r["op"] == "all-reduce" and r["bytes"] == size]
        for size in (4096, 65536)
    }
    for peers in found.values():
        assert [peer for peer in peers if peer not in ("gloo", "mpi")] == [
            "aiops tcp",
            *tcp,
            *shared,
            *hosts,
            "raw",
        ]
    assert [row["peer"] for row in rows[-2:]] == ["aiops in process", "copying"]
    for row in rows:
        assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"]
        assert row["peer"] not in ("raw", "copying") or row["ratio_to_raw"] == 1.0


def test_all_reduce_wants_two_processes_at_least() -> None:
    done = CliRunner().invoke(bench, ["all-reduce", "--processes", "1"])
    assert done.exit_code == 2
