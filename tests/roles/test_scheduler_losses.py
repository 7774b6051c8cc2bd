"""What the loss of a node means for the job, and how a job ends."""

from __future__ import annotations

from typing import Any

import pytest

from aiops.errors import ConfigError
from aiops.roles.settings import SchedulerSettings
from aiops_protocol.control import (
    ClusterState,
    DeathQuery,
    DeathVerdict,
    RoundHeld,
    RoundHold,
    RoundRelease,
    Shutdown,
    TableOpened,
)
from aiops_protocol.limits import SERVERS_MAX, WORKERS_MAX
from scheduled import Scheduled


def with_workers(count: int, servers: int = 2, **settings: Any) -> Scheduled:
    scheduled = Scheduled(servers, **settings)
    for index in range(count):
        scheduled.worker(10 + index, f"worker-{index}")
    return scheduled


# --- policies ---


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_with_the_default_policy_a_lost_worker_ends_the_job_by_name(workers: int) -> None:
    scheduled = with_workers(2, workers=workers)
    scheduled.lose(11, "connection reset")
    assert scheduled.ended is not None
    assert not scheduled.ended.ok
    assert scheduled.ended.reason == "worker 1 (worker-1) is lost: connection reset"
    shutdown = scheduled.shutdown(10)
    assert shutdown.failed
    assert shutdown.node == "worker 1 (worker-1)"
    assert scheduled.shutdown(1) == shutdown


def test_the_only_worker_that_a_job_expected_ends_it_too() -> None:
    scheduled = with_workers(1, workers=1, end_when_idle=True)
    scheduled.lose(10)
    assert scheduled.ended is not None
    assert not scheduled.ended.ok


def test_a_cluster_to_which_workers_come_at_will_outlives_one_that_was_alone() -> None:
    scheduled = with_workers(1)
    scheduled.leave(10, clean=False, reason="ValueError: mine")
    assert scheduled.ended is None
    assert scheduled.worker(11).rank == 1


def test_an_unclean_leave_is_a_loss_with_its_reason() -> None:
    scheduled = with_workers(2, workers=2)
    scheduled.leave(10, clean=False, reason="ValueError: the loss is odd")
    assert scheduled.ended is not None
    assert "ValueError: the loss is odd" in scheduled.ended.reason


def test_with_continue_the_others_go_on_down_to_the_minimum() -> None:
    scheduled = with_workers(3, workers=3, on_worker_loss="continue", min_workers=2)
    scheduled.lose(10)
    assert scheduled.ended is None
    scheduled.lose(11, "gone")
    assert scheduled.ended is not None
    assert scheduled.ended.reason == (
        "worker 1 (worker-1) is lost: gone; 1 workers are left, 2 are needed"
    )


def test_a_lost_server_ends_the_job_and_its_ranges_are_named() -> None:
    scheduled = with_workers(1)
    scheduled.attach(10, "weights", size=640)
    scheduled.open_shards(1, 2)
    scheduled.lose(2, "connection reset")
    assert scheduled.ended is not None
    assert scheduled.ended.reason == (
        "server 1 (server-1) at h:2 is lost (connection reset); with it went weights [320, 640)"
    )
    assert scheduled.shutdown(10).failed


def test_a_server_that_fails_says_why() -> None:
    """An optimizer that raised, for example."""
    scheduled = with_workers(1)
    scheduled.attach(10)
    scheduled.open_shards(1, 2)
    scheduled.leave(1, clean=False, reason="the optimizer of table w failed: ValueError('x')")
    assert scheduled.ended is not None
    assert "is lost (the optimizer of table w failed: ValueError('x'))" in scheduled.ended.reason


def test_a_server_may_leave_only_while_it_holds_nothing() -> None:
    scheduled = with_workers(1, servers=3)
    scheduled.attach(10, size=16)
    scheduled.open_shards(1)
    scheduled.leave(2)
    assert scheduled.ended is None
    scheduled.leave(1, reason="SIGTERM")
    assert scheduled.ended is not None
    assert not scheduled.ended.ok
    assert "has left (SIGTERM); with it went w [0, 16)" in scheduled.ended.reason


def test_two_losses_at_once_end_a_job_once() -> None:
    scheduled = with_workers(3, workers=3)
    scheduled.lose(10, "first")
    scheduled.lose(11, "second")
    scheduled.lose(1, "third")
    assert scheduled.ended is not None
    assert "first" in scheduled.ended.reason
    assert len(scheduled.heard(12, Shutdown)) == 1
    assert scheduled.perform(scheduled.core.stop("late")) == []
    scheduled.perform(scheduled.core.end(True, "later"))
    assert not scheduled.core.ended.ok  # type: ignore[union-attr]


# --- the verdict ---


def test_servers_are_asked_and_the_highest_answer_is_the_verdict() -> None:
    scheduled = with_workers(3, on_worker_loss="continue")
    scheduled.lose(11)
    for server in (1, 2):
        assert scheduled.only(server, DeathQuery) == DeathQuery(worker=1, incarnation=1)
    scheduled.report(1, 1, {1: (5, 0b11), 2: (3, 0)})
    assert not scheduled.heard(1, DeathVerdict)
    scheduled.report(2, 1, {1: (7, 0b1100), 3: (1, 1)})
    verdict = scheduled.only(1, DeathVerdict)
    assert verdict.worker == 1
    assert verdict.sealed == {1: (7, 0b1100), 2: (3, 0), 3: (1, 1)}
    assert scheduled.only(2, DeathVerdict) == verdict
    scheduled.report(2, 1, {1: (9, 1)})
    assert not scheduled.heard(1, DeathVerdict), "an answer that nobody asked for"


def test_losses_of_several_workers_are_settled_apart() -> None:
    scheduled = with_workers(3, on_worker_loss="continue")
    scheduled.lose(10)
    scheduled.lose(11)
    scheduled.report(1, 1, {1: (2, 1)})
    scheduled.report(1, 0, {1: (1, 1)})
    scheduled.report(2, 1, {1: (2, 1)})
    assert [verdict.worker for verdict in scheduled.heard(1, DeathVerdict)] == [1]
    scheduled.report(2, 0, {1: (4, 1)})
    assert scheduled.only(1, DeathVerdict).sealed == {1: (4, 1)}


def test_a_server_that_leaves_is_not_waited_for() -> None:
    scheduled = with_workers(2, on_worker_loss="continue")
    scheduled.lose(10)
    scheduled.report(1, 0)
    scheduled.leave(2)
    assert scheduled.only(1, DeathVerdict).worker == 0


def test_without_servers_a_loss_is_settled_at_once() -> None:
    scheduled = Scheduled(1, start=False, on_worker_loss="continue")
    scheduled.worker(10, "a")
    scheduled.worker(11, "b")
    scheduled.lose(10)
    assert scheduled.worker(12, "a").incarnation == 2


def test_a_loss_in_the_middle_of_entering_lets_nobody_in() -> None:
    """The answers of the servers come too late, and belong to nobody."""
    scheduled = with_workers(1, on_worker_loss="continue")
    scheduled.attach(10)
    scheduled.open_shards(1, 2)
    scheduled.worker(20, "late")
    scheduled.attach(20)
    scheduled.hold(1, 3)
    scheduled.lose(20)
    scheduled.say(2, RoundHeld(table=1, worker=1, version=3))
    assert not scheduled.heard(1, RoundRelease)
    for server in (1, 2):
        scheduled.report(server, 1)
    assert scheduled.only(1, DeathVerdict).sealed == {}
    scheduled.worker(21, "late")
    scheduled.attach(21)
    scheduled.hold(1, 5)
    assert not scheduled.heard(1, RoundRelease), "the answer of the first time does not count"
    scheduled.heard(2, RoundHold)
    scheduled.say(2, RoundHeld(table=1, worker=1, version=5))
    assert scheduled.opened(21).from_version == 6


def test_a_loss_of_another_while_one_enters_does_not_disturb_it() -> None:
    scheduled = with_workers(2, on_worker_loss="continue")
    scheduled.attach(10)
    scheduled.open_shards(1, 2)
    scheduled.worker(20)
    scheduled.attach(20)
    scheduled.lose(11)
    scheduled.hold(1, 3)
    scheduled.report(1, 1)
    scheduled.hold(2, 4)
    assert scheduled.only(1, RoundRelease).from_version == 5
    assert scheduled.opened(20).from_version == 5
    scheduled.report(2, 1)
    assert scheduled.only(1, DeathVerdict).worker == 1


# --- leaving in order ---


def test_who_has_finished_leaves_without_questions() -> None:
    scheduled = with_workers(2, workers=2)
    scheduled.attach(10)
    scheduled.open_shards(1, 2)
    scheduled.finish(10, 4)
    scheduled.leave(10)
    assert not scheduled.heard(1, DeathQuery)
    assert scheduled.heard(1, ClusterState)[-1].members[2].state == "left"


def test_who_leaves_without_having_finished_is_asked_about() -> None:
    """Its last seals may be on their way; nobody must wait for them in vain."""
    scheduled = with_workers(2, workers=2)
    scheduled.leave(10)
    assert scheduled.ended is None
    assert scheduled.only(1, DeathQuery).worker == 0


def test_who_finishes_without_opening_a_table_is_not_waited_for_in_it() -> None:
    scheduled = with_workers(3, workers=3)
    scheduled.attach(10, "w")
    scheduled.attach(11, "w")
    scheduled.open_shards(1, 2)
    scheduled.attach(10, "free", consistency="asp")
    scheduled.open_shards(1, 2)
    scheduled.finish(12)
    for server in (1, 2):
        assert scheduled.only(server, DeathVerdict) == DeathVerdict(worker=2, sealed={1: (0, 0)})
    scheduled.finish(11)
    assert not scheduled.heard(1, DeathVerdict), "it knows the table, and leaves it by itself"
    scheduled.attach(12, "w", create=False)
    assert scheduled.opened(12).from_version == 0, "it may look all the same"


def test_who_finishes_while_entering_looks_on() -> None:
    scheduled = with_workers(1)
    scheduled.attach(10)
    scheduled.open_shards(1, 2)
    scheduled.worker(20)
    scheduled.attach(20)
    scheduled.finish(20)
    assert scheduled.opened(20).from_version == 0
    assert scheduled.only(1, DeathVerdict) == DeathVerdict(worker=1, sealed={1: (0, 0)})
    scheduled.hold(1, 3)
    scheduled.hold(2, 3)
    assert not scheduled.heard(1, RoundRelease)


# --- the end ---


def test_a_job_ends_when_the_last_worker_has_left() -> None:
    scheduled = with_workers(2, workers=2, end_when_idle=True)
    scheduled.finish(10)
    scheduled.leave(10)
    assert scheduled.ended is None
    scheduled.leave(11)
    assert scheduled.ended is not None
    assert scheduled.ended.ok
    assert scheduled.ended.reason == "all workers have finished"
    assert not scheduled.shutdown(1).failed


def test_a_job_does_not_end_before_it_was_complete() -> None:
    scheduled = with_workers(1, workers=2, end_when_idle=True)
    scheduled.finish(10)
    scheduled.leave(10)
    assert scheduled.ended is None


def test_a_job_of_which_every_worker_was_lost_has_failed() -> None:
    scheduled = with_workers(2, workers=2, end_when_idle=True, on_worker_loss="continue")
    scheduled.lose(10)
    scheduled.lose(11)
    assert scheduled.ended is not None
    assert not scheduled.ended.ok
    assert scheduled.ended.reason == "every worker was lost"


def test_a_job_that_lost_some_workers_has_not_failed() -> None:
    scheduled = with_workers(2, workers=2, end_when_idle=True, on_worker_loss="continue")
    scheduled.finish(10)
    scheduled.leave(10)
    scheduled.lose(11)
    assert scheduled.ended is not None
    assert scheduled.ended.ok


def test_a_job_does_not_end_while_somebody_waits_to_come_back() -> None:
    scheduled = with_workers(1, workers=1, end_when_idle=True, on_worker_loss="continue")
    scheduled.join(20, name="worker-0")
    scheduled.lose(10)
    assert scheduled.ended is None
    scheduled.report(1, 0)
    scheduled.report(2, 0)
    assert scheduled.ended is None
    scheduled.finish(20)
    scheduled.leave(20)
    assert scheduled.ended is not None
    assert scheduled.ended.ok


def test_after_the_end_nothing_happens_any_more() -> None:
    scheduled = with_workers(2, workers=2)
    scheduled.attach(10)
    scheduled.perform(scheduled.core.end(True, "done"))
    scheduled.open_shards(1, 2)
    scheduled.barrier(10)
    scheduled.lose(11)
    assert not scheduled.heard(10, TableOpened)
    assert scheduled.core.next_deadline() is None
    assert scheduled.core.tick(1e9) == []


# --- settings ---


@pytest.mark.parametrize(
    "wrong",
    [
        {"servers": -1},
        {"servers": SERVERS_MAX + 1},
        {"workers": -1},
        {"workers": WORKERS_MAX + 1},
        {"on_worker_loss": "weep"},
        {"workers": 2, "min_workers": 3},
        {"heartbeat_s": 0.0},
        {"heartbeat_s": float("nan")},
        {"report_period_s": 1e9},
        {"min_workers": -1},
        {"join_timeout_s": 0.0},
        {"join_timeout_s": float("nan")},
    ],
)
def test_wrong_settings_are_refused_by_name(wrong: dict[str, object]) -> None:
    name = list(wrong)[-1]
    with pytest.raises(ConfigError, match=name):
        SchedulerSettings(**wrong)  # type: ignore[arg-type]
