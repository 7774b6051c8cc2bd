"""What the launcher decides, without a process: exit codes, grace, and an end to everything."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops_cli.supervision import (
    FAILURE_GRACE_S,
    STOP_GRACE_S,
    Action,
    ChildExited,
    DeadlineReached,
    EndJob,
    Event,
    Interrupted,
    JobEnded,
    Phase,
    Send,
    Supervision,
    TellOfEnd,
    exit_code_of,
)

WORKERS = ("worker-0", "worker-1", "worker-2")
SERVERS = ("server-0", "server-1")


@pytest.fixture
def launch() -> Supervision:
    return Supervision(WORKERS, SERVERS)


def sent(actions: list[object]) -> list[tuple[tuple[str, ...], int]]:
    return [(action.names, action.signum) for action in actions if isinstance(action, Send)]


def told(actions: list[Action]) -> list[tuple[str, str, bool]]:
    return [
        (action.name, action.role, action.clean)
        for action in actions
        if isinstance(action, TellOfEnd)
    ]


def test_all_well(launch: Supervision) -> None:
    """The servers take their leave when the last worker has ended, and not before."""
    for name in WORKERS[:2]:
        actions = launch.handle(ChildExited(name, 0), 1.0)
        assert actions == [TellOfEnd(name, "worker", "exit code 0", clean=True)]
    assert launch.handle(ChildExited(WORKERS[2], 0), 2.0) == [EndJob("every worker has ended")]
    assert launch.handle(ChildExited("server-1", 0), 2.1) == []
    launch.handle(ChildExited("server-0", 0), 2.2)
    assert launch.phase is Phase.ENDED
    assert launch.exit_code == 0


def test_workers_may_go_on_after_the_job(launch: Supervision) -> None:
    """A script that saves its model for an hour after training is not stopped."""
    assert launch.handle(JobEnded(True, "all finished"), 1.0) == []
    assert launch.next_deadline() is None


def test_the_first_failed_worker_names_the_exit_code(launch: Supervision) -> None:
    launch.handle(ChildExited("worker-1", 3), 5.0)
    launch.handle(ChildExited("worker-0", 1), 5.5)
    launch.handle(ChildExited("worker-2", 1), 5.6)
    for name in SERVERS:
        launch.handle(ChildExited(name, 1), 5.7)
    assert (launch.phase, launch.exit_code) == (Phase.ENDED, 3)


def test_who_ends_first_is_not_always_who_failed_first(launch: Supervision) -> None:
    """The others learn of a failure at once and may be gone before the one that failed."""
    launch.handle(JobEnded(False, "worker-1 is lost", lost_worker="worker-1"), 5.0)
    launch.handle(ChildExited("worker-2", 1), 5.1)
    launch.handle(ChildExited("worker-1", 7), 5.2)
    launch.handle(ChildExited("worker-0", 1), 5.3)
    assert launch.exit_code == 7


def test_after_a_failure_the_others_get_their_grace(launch: Supervision) -> None:
    launch.handle(ChildExited("worker-1", -9), 5.0)
    assert launch.next_deadline() == 5.0 + FAILURE_GRACE_S
    others = ("worker-0", "worker-2", *SERVERS)
    actions = launch.handle(DeadlineReached(), 5.0 + FAILURE_GRACE_S)
    assert sent([*actions]) == [(others, signal.SIGTERM)]
    later = 5.0 + FAILURE_GRACE_S + STOP_GRACE_S
    assert launch.next_deadline() == later
    assert sent([*launch.handle(DeadlineReached(), later)]) == [(others, signal.SIGKILL)]
    for name in others:
        launch.handle(ChildExited(name, -9), later)
    assert launch.exit_code == 128 + 9


def test_who_was_stopped_by_us_did_not_fail(launch: Supervision) -> None:
    """A server dies and the workers hang: the job failed, but no worker did."""
    launch.handle(ChildExited("server-0", -11), 0.0)
    launch.handle(DeadlineReached(), FAILURE_GRACE_S)
    for name in (*WORKERS, "server-1"):
        launch.handle(ChildExited(name, -15), 20.0)
    assert launch.exit_code == 1


def test_a_server_that_leaves_too_early_fails_the_job(launch: Supervision) -> None:
    launch.handle(ChildExited("server-0", 0), 0.0)
    assert launch.phase is Phase.FAILING


def test_a_failed_job_fails_the_launch(launch: Supervision) -> None:
    launch.handle(JobEnded(False, "server-0 was lost"), 0.0)
    for name in (*WORKERS, *SERVERS):
        launch.handle(ChildExited(name, 0), 1.0)
    assert launch.exit_code == 1


def test_an_allowed_loss_is_no_failure() -> None:
    launch = Supervision(WORKERS, SERVERS, survives_losses=True)
    launch.handle(ChildExited("worker-1", -9), 1.0)
    assert launch.phase is Phase.RUNNING
    for name in ("worker-0", "worker-2", *SERVERS):
        launch.handle(ChildExited(name, 0), 2.0)
    assert launch.exit_code == 0


def test_losing_everyone_is_a_failure() -> None:
    launch = Supervision(WORKERS, SERVERS, survives_losses=True)
    for name in WORKERS:
        launch.handle(ChildExited(name, 4), 1.0)
    for name in SERVERS:
        launch.handle(ChildExited(name, 0), 1.0)
    assert launch.exit_code == 4


@pytest.mark.parametrize("survives_losses", [False, True])
def test_the_scheduler_is_told_of_every_end_but_those_that_we_asked_for(
    survives_losses: bool,
) -> None:
    """Of a child that had not registered yet it would not learn otherwise."""
    launch = Supervision(WORKERS, SERVERS, survives_losses)
    assert told(launch.handle(ChildExited("worker-1", -9), 1.0)) == [("worker-1", "worker", False)]
    assert told(launch.handle(ChildExited("server-1", 1), 1.0)) == [("server-1", "server", False)]
    launch.handle(Interrupted(signal.SIGINT), 2.0)
    assert told(launch.handle(ChildExited("worker-0", 1), 3.0)) == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_passed_on_and_then_time_runs_out(
    launch: Supervision, signum: int, code: int
) -> None:
    assert sent([*launch.handle(Interrupted(signum), 1.0)]) == [((*WORKERS, *SERVERS), signum)]
    launch.handle(ChildExited("worker-0", 1), 1.1)
    everyone = (*WORKERS[1:], *SERVERS)
    actions = launch.handle(DeadlineReached(), 1.0 + STOP_GRACE_S)
    assert sent([*actions]) == [(everyone, signal.SIGKILL)]
    for name in everyone:
        launch.handle(ChildExited(name, -9), 9.3)
    assert launch.exit_code == code


def test_exit_codes_as_a_shell_shows_them() -> None:
    assert [exit_code_of(code) for code in (0, 7, -9)] == [0, 7, 137]


EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(ChildExited, st.sampled_from(WORKERS + SERVERS), st.integers(-31, 255)),
    st.builds(JobEnded, st.booleans(), st.just("a reason")),
    st.builds(Interrupted, st.sampled_from([signal.SIGINT, signal.SIGTERM])),
    st.just(DeadlineReached()),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 20)), max_size=20), st.booleans())
def test_a_launch_that_went_wrong_always_ends(
    history: list[tuple[Event, float]], survives_losses: bool
) -> None:
    """Whatever happened before, once there is a deadline time alone leads to SIGKILL of all."""
    launch = Supervision(WORKERS, SERVERS, survives_losses)
    now = 0.0
    for event, passed in history:
        now += passed
        launch.handle(event, now)
    deadline = launch.next_deadline()
    if launch.phase is Phase.ENDED:
        assert deadline is None
    elif launch.phase is not Phase.RUNNING:
        signals = []
        for _ in range(3):
            now = launch.next_deadline() or now
            signals += [number for _, number in sent([*launch.handle(DeadlineReached(), now)])]
        assert signal.SIGKILL in signals
    ended_well = launch.exit_code == 0
    assert not (ended_well and launch.phase is Phase.FAILING)
