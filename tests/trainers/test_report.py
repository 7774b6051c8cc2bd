"""Merging the accounts of the workers, and the text that people see."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from aiops.errors import UsageError
from aiops.observability import LatencyHistogram
from aiops.trainers import Evaluation, WorkerReport, final_report, render
from aiops.trainers.stop_rules import StopRules


def account(rank: int, **changes: Any) -> WorkerReport:
    counts = {"pushed": 1000 * (rank + 1), "pulled": 10, "retransmitted": rank, "control": 1}
    report = WorkerReport(
        rank=rank,
        model="softmax",
        parameters=650,
        data="digits",
        train_rows=1437,
        test_rows=360,
        steps=10 + rank,
        seconds=2.0 + rank,
        phases={"pull": 1.0, "start": 0.5, "check": 0.1 * rank},
        loss=0.25,
        stopped_because="all 10 steps are done",
        latency={
            "push": {"count": 10, "p50_s": 0.001 * (rank + 1), "p99_s": 0.01 * (rank + 1)},
            "pull": {"count": 0, "p50_s": None, "p99_s": None},
        },
        bytes=counts,
        servers={str(server): {"sent": 1000, "received": 10 * rank} for server in (0, 10)},
        evaluation=None,
    )
    return replace(report, **changes)


EVALUATION = Evaluation({"loss": 0.1, "accuracy": 0.99}, {"loss": 0.2, "accuracy": 0.95})
WORKERS = [account(1), account(0, evaluation=EVALUATION), account(2)]


def test_the_promised_keys_are_there() -> None:
    report = final_report(WORKERS, servers=2)
    assert report["test_accuracy"] == 0.95
    assert (report["train_accuracy"], report["train_loss"], report["test_loss"]) == (0.99, 0.1, 0.2)
    assert (report["steps"], report["seconds"]) == (12, 4.0)
    assert (report["workers"], report["servers"]) == (3, 2)
    assert report["bytes"] == {"pushed": 6000, "pulled": 30, "retransmitted": 3, "control": 3}
    assert report["stopped_because"] == "all 10 steps are done"
    assert json.loads(json.dumps(report)) == report


def test_phases_are_the_mean_of_the_workers_in_the_order_of_a_step() -> None:
    phases = final_report(WORKERS, servers=1)["phases"]
    assert list(phases) == ["start", "pull", "check"]
    assert phases == pytest.approx({"start": 0.5, "pull": 1.0, "check": 0.1})


def test_workers_and_servers_have_their_own_accounts() -> None:
    report = final_report(WORKERS, servers=2)
    assert [a["rank"] for a in report["by_worker"]] == [0, 1, 2]
    assert [a["bytes"]["pushed"] for a in report["by_worker"]] == [1000, 2000, 3000]
    assert [a["rank"] for a in report["by_server"]] == [0, 10]
    assert [a["bytes"] for a in report["by_server"]] == [{"received": 3000, "sent": 30}] * 2


def test_latency_without_a_status_is_the_middle_median_and_the_worst_tail() -> None:
    latency = final_report(WORKERS, servers=2)["latency"]
    assert latency["push"] == {"count": 30, "p50_s": 0.002, "p99_s": 0.03}
    assert latency["pull"] == {"count": 0, "p50_s": None, "p99_s": None}


def test_latency_with_a_status_is_that_of_all_requests() -> None:
    slow, fast = LatencyHistogram(), LatencyHistogram()
    for _ in range(90):
        fast.record(0.001)
    for _ in range(10):
        slow.record(1.0)
    status = {
        "workers": [
            {"latency": {"push": fast.to_counts()}},
            {"latency": {"push": slow.to_counts(), "pull": {}}},
        ]
    }
    for told in (status, json.loads(json.dumps(status))):
        latency = final_report(WORKERS, servers=2, status=told)["latency"]
        assert latency["push"]["count"] == 100
        assert latency["push"]["p50_s"] == pytest.approx(0.001, rel=0.04)
        assert latency["push"]["p99_s"] == pytest.approx(1.0, rel=0.04)
        assert latency["pull"]["count"] == 0


def test_staleness_and_late_contributions_are_added_up_and_shown() -> None:
    def counted(staleness: dict[int, int], late: int) -> dict[str, dict[str, Any]]:
        return {"model": {"staleness": staleness}, "other": {"late": late}}

    first = replace(account(1, evaluation=EVALUATION), tables=counted({0: 5, 16: 2}, 1))
    second = WorkerReport.from_dict(
        json.loads(json.dumps(replace(account(2), tables=counted({0: 1}, 3)).to_dict()))
    )
    report = final_report([first, second], servers=1)
    assert report["staleness"] == {"0": 6, "16": 2}
    assert report["late"] == 4
    shown = render(report)
    assert "stale  by changes of others: 0: 6, 16-31: 2" in shown
    assert "late   4 contributions came after their round" in shown
    assert "staleness" not in final_report(WORKERS, servers=1)


def test_a_run_without_evaluation_is_no_report() -> None:
    for workers in ([], [account(0)]):
        with pytest.raises(UsageError, match="no worker has evaluated"):
            final_report(workers, servers=1)


def test_the_text_names_everything_a_reader_looks_for() -> None:
    lines = render(final_report(WORKERS, servers=1))
    text = "\n".join(lines)
    assert all(line == line.rstrip() and len(line) < 160 for line in lines)
    for words in (
        "softmax on digits: 650 parameters, 1,437 rows to train on",
        "12 steps in 4.00 s (3 a second), 3 workers, 1 server; ended because all 10",
        "test   accuracy 95.00%, loss 0.2000",
        "train  accuracy 99.00%, loss 0.1000",
        "pull 1.00 s",
        "push   30 requests, p50 2.00 ms, p99 30.00 ms",
        "bytes  pushed 6.0 KB, pulled 30 B, retransmitted 3 B",
        "server 10: received 3.0 KB, sent 30 B",
        "worker 2: pushed 3.0 KB",
    ):
        assert words in text


def test_the_text_of_a_regression() -> None:
    evaluation = Evaluation({"loss": 0.5, "rmse": 12.0}, {"loss": 0.25, "rmse": 1.5e6})
    report = final_report([account(0, model="linear", evaluation=evaluation)], servers=1)
    assert "test_accuracy" not in report
    text = "\n".join(render(report))
    assert "test   rmse 1.5e+06, loss 0.2500" in text
    assert "train  rmse 12, loss 0.5000" in text


def test_stop_rules() -> None:
    rules = StopRules(patience=2)
    assert rules.watching
    assert not StopRules().watching
    assert [rules.verdict(loss) for loss in (1.0, 0.9, 0.95, 0.8, 0.8)] == [None] * 5
    assert rules.verdict(0.81) == "no train loss below 0.8 in 2 checks"
    rules = StopRules(target_loss=0.5)
    assert rules.verdict(0.51) is None
    assert rules.verdict(0.5) == "the train loss 0.5 reached the target 0.5"
