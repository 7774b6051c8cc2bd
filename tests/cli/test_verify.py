"""`aiops verify` and `aiops chaos` as a user calls them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from commands import aiops
from history_builder import Author

LEDGER = (sys.executable, "-m", "aiops.testing.ledger", "--steps", "30")
FAIL = """
import sys
import aiops

async def main():
    async with aiops.connect():
        sys.exit(7)

aiops.run(main())
"""


def bad_history(folder: Path) -> Path:
    author = Author()
    author.push(1_000_000, 2_000_000, [1, 0, 0, 0], 1)
    author.pull(3_000_000, 4_000_000, 1, [2, 0, 0, 0])
    author.pull(5_000_000, 6_000_000, 0, [0, 0, 0, 0])
    return author.write(folder)


def test_a_broken_promise_is_shown_with_its_operations(tmp_path: Path) -> None:
    path = bad_history(tmp_path)
    done = aiops("verify", str(path))
    assert done.returncode == 1
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("job c0ffee00: 1 worker, 3 operations")
    assert lines[1] == "VIOLATED"
    assert lines[2].startswith("exactly-once: element 0 of shard 0 of table asp is 2 at version 1")
    assert lines[3].strip() == (
        f"worker 0 #1 push of asp [0.001000 s - 0.002000 s] ok  ({path.name}:4)"
    )
    assert lines[4].strip().startswith("worker 0 #2 pull of asp")
    assert lines[5] == "and 1 more"


def test_the_verdict_as_json(tmp_path: Path) -> None:
    bad_history(tmp_path)
    done = aiops("verify", str(tmp_path), "--json")
    assert done.returncode == 1
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["holds"] is False
    assert job["tables"] == {"asp": "asp", "bsp": "bsp"}
    assert [violation["promise"] for violation in job["violations"]] == [
        "exactly-once",
        "own-writes",
    ]
    assert len(job["violations"][1]["operations"]) == 2


@pytest.mark.parametrize("content", [None, "no history\n"])
def test_what_is_no_history_is_wrong_use(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "file.jsonl"
    if content is not None:
        path.write_text(content)
    done = aiops("verify", str(path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "file.jsonl" in done.stderr


def test_a_run_under_chaos_is_verified(tmp_path: Path) -> None:
    """The three commands of the how-to page, one after the other."""
    faults = ["--cut-every-s", "0.1", "--delay-ms", "1", "--jitter-ms", "2", "--seed", "7"]
    holes = ["--black-hole-every-s", "0.7", "--black-hole-s", "0.2"]
    cluster = ["--servers", "2", "--workers", "2", "--json", "--log-level", "error"]
    run = aiops(
        "chaos", *faults, *holes, *cluster, "--", *LEDGER, AIOPS_HISTORY=str(tmp_path / "run")
    )
    assert run.returncode == 0, run.stderr
    *said, report = run.stdout.splitlines()
    assert sorted(line.split()[0] for line in said) == ["worker-0", "worker-1"]
    found = json.loads(report)
    assert found["exit_code"] == 0
    assert found["seed"] == 7
    assert found["cuts"] > 0
    assert found["forwarded_bytes"] > 10_000
    assert found["lost_bytes"] > 0
    verified = aiops("verify", AIOPS_HISTORY=str(tmp_path / "run"))
    assert verified.returncode == 0, verified.stdout
    assert "2 workers" in verified.stdout
    assert "holds:" in verified.stdout
    assert "note:" not in verified.stdout


def test_chaos_ends_as_launch_does() -> None:
    done = aiops("chaos", "--log-level", "error", "--", sys.executable, "-c", FAIL)
    assert done.returncode == 7
    assert "injected with seed 0: 0 cuts, 0 black holes" in done.stderr
    assert "bytes: " in done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        ["--cut-every-s", "0"],
        ["--cut-probability", "2"],
        ["--delay-ms", "-1"],
        ["--black-hole-every-s", "2"],
        ["--corrupt-every-bytes", "0"],
    ],
)
def test_faults_without_sense_start_nothing(wrong: list[str]) -> None:
    done = aiops("chaos", *wrong, "--", "true")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
