"""The worker's side of requests: windows, order, repeats, and what is given up."""

from __future__ import annotations

import numpy as np
import pytest

from aiops.errors import AiopsError, RemoteError, RequestRejected, UsageError
from aiops.roles.operations import WAIT_TIMEOUT_S
from aiops.roles.requests import FIRST_PARTS, Part
from aiops_protocol.delivery import Outbox
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import (
    Ack,
    Assign,
    Parked,
    Pull,
    Push,
    PushPull,
    Reject,
    Reply,
    Request,
    Seal,
    Value,
)
from aiops_protocol.limits import PULL_WINDOW_BYTES, WINDOW_MUTATIONS
from desk import QUIET_S, Desk, frame


@pytest.fixture
def desk() -> Desk:
    return Desk()


# --- windows ---


def test_bytes_beyond_the_window_wait_until_answers_make_room(desk: Desk) -> None:
    parts = [desk.mutation(40) for _ in range(4)]
    assert desk.send() == parts[:2]
    assert desk.channel.waiting
    desk.answer(parts[0])
    assert desk.send() == parts[2:3]
    desk.answer(parts[1])
    desk.answer(parts[2])
    assert desk.send() == parts[3:]
    assert not desk.channel.waiting


def test_what_is_larger_than_the_window_passes_alone(desk: Desk) -> None:
    large = desk.mutation(400)
    small = desk.mutation(4)
    assert desk.send() == [large]
    desk.answer(large)
    assert desk.send() == [small]


def test_a_session_has_a_window_of_mutations_that_the_oldest_holds_open(desk: Desk) -> None:
    """The server remembers so many numbers; the oldest unanswered one bounds them."""
    desk.channel.window_bytes = 1 << 30
    parts = [desk.mutation() for _ in range(WINDOW_MUTATIONS + 2)]
    assert desk.send() == parts[:WINDOW_MUTATIONS]
    for part in parts[1:WINDOW_MUTATIONS]:
        desk.answer(part)
    assert desk.send() == []
    desk.answer(parts[0])
    assert desk.send() == parts[WINDOW_MUTATIONS:]


def test_a_table_that_waits_does_not_hold_up_another(desk: Desk) -> None:
    """Also when what waits by rule fills the window of bytes."""
    other = Outbox()
    stuck = [desk.mutation(60) for _ in range(3)]
    free = [desk.mutation(60, other) for _ in range(2)]
    assert desk.send() == [stuck[0], free[0]]
    desk.answer(free[0])
    assert desk.send() == [free[1]]


def test_mutations_of_a_table_leave_in_order_and_are_numbered_from_one(desk: Desk) -> None:
    kinds = [Push, Assign, Push, Seal]
    parts = [desk.mutation(kind=kind, size=0 if kind is Seal else 4) for kind in kinds]
    assert desk.send() == parts
    assert [frame(part).seq for part in parts] == [1, 2, 3, 4]
    assert [type(frame(part)) for part in parts] == kinds
    assert {frame(part).session for part in parts} == {3}


def test_the_mark_tells_below_which_number_all_is_answered(desk: Desk) -> None:
    parts = [desk.mutation() for _ in range(3)]
    desk.send()
    assert [frame(part).answered_below for part in parts] == [1, 1, 1]
    desk.answer(parts[1])
    (fourth,) = [desk.mutation()]
    desk.send()
    assert frame(fourth).answered_below == 1
    desk.answer(parts[0])
    fifth = desk.mutation()
    desk.send()
    assert frame(fifth).answered_below == 3


def test_pulls_have_a_window_of_their_own(desk: Desk) -> None:
    third = PULL_WINDOW_BYTES // 3 + 4
    one = desk.operation("pull")
    parts = [desk.pull(third, one) for _ in range(4)]
    assert desk.send() == parts[:2]
    push = desk.mutation(40)
    assert desk.send() == [push]
    desk.answer(parts[0], Value, payload=bytes(third))
    assert desk.send() == parts[2:3]


def test_a_pull_that_waits_does_not_hold_up_another_call(desk: Desk) -> None:
    """A subscription may wait for ever, and fill the window meanwhile."""
    subscription = desk.operation("updates")
    waiting = [desk.pull(PULL_WINDOW_BYTES // 2, subscription) for _ in range(4)]
    assert desk.send() == waiting[:2]
    pull = desk.pull(1 << 20)
    assert desk.send() == [pull]


def test_what_passes_a_full_window_is_bounded_too(desk: Desk) -> None:
    """A server relies on it to tell who does not read its answers."""
    outboxes = [Outbox() for _ in range(20)]
    parts = [desk.mutation(40, outbox) for outbox in outboxes]
    assert desk.send() == parts[: FIRST_PARTS * 100 // 40]
    pulls = [desk.pull(PULL_WINDOW_BYTES // 2) for _ in range(20)]
    assert desk.send() == pulls[: FIRST_PARTS * 2]
    seal = desk.mutation(0, outboxes[0], kind=Seal)
    assert desk.send() == [seal]
    desk.channel.validate()


def test_whatever_next_part_would_return_passes_at_once(desk: Desk) -> None:
    """Nobody comes back for what was queued although it could have gone."""
    for size in (60, 60, 60, 0, 30):
        for outbox in (desk.outbox, Outbox()):
            passed = desk.channel.pass_at_once(
                Part(desk.operation(), Push, 1, 0, payload=bytes(size), outbox=outbox), 0.0
            )
            if not passed:
                desk.mutation(size, outbox)
                assert desk.send() == []


def test_a_part_passes_at_once_only_if_nothing_is_before_it(desk: Desk) -> None:
    def part(size: int, outbox: Outbox) -> Part:
        operation = desk.operation()
        return Part(
            operation, Push, 1, 0, begin=0, end=size // 4, payload=bytes(size), outbox=outbox
        )

    other = Outbox()
    first, second = part(60, desk.outbox), part(60, desk.outbox)
    assert desk.channel.pass_at_once(first, 0.0)
    assert not desk.channel.pass_at_once(second, 0.0), "the window is full"
    desk.channel.submit(second)
    assert not desk.channel.pass_at_once(part(4, desk.outbox), 0.0), "another one is before it"
    beside = part(4, other)
    assert desk.channel.pass_at_once(beside, 0.0)
    assert [frame(p).seq for p in (first, beside)] == [1, 1]
    desk.channel.lost()
    assert not desk.channel.pass_at_once(part(4, Outbox()), 0.0), "what goes again goes first"
    assert desk.send() == [first, beside]
    desk.answer(first)
    assert desk.send() == [second]
    desk.channel.validate()


def test_a_pull_passes_at_once_as_far_as_the_window_goes(desk: Desk) -> None:
    half = PULL_WINDOW_BYTES // 2
    operation = desk.operation("pull")
    parts = [
        Part(operation, Pull, 1, 0, begin=0, end=half // 4, into=memoryview(bytearray(half)))
        for _ in range(4)
    ]
    assert [desk.channel.pass_at_once(part, 0.0) for part in parts[:3]] == [True, True, False]
    desk.channel.submit(parts[2])
    desk.answer(parts[0], Value, payload=bytes(half))
    assert not desk.channel.pass_at_once(parts[3], 0.0), "another one of its call is before it"
    assert desk.send() == [parts[2]]


# --- answers ---


def test_an_operation_is_done_when_all_its_parts_are_answered(desk: Desk) -> None:
    operation = desk.operation()
    parts = [desk.mutation(operation=operation) for _ in range(2)]
    desk.send()
    assert desk.answer(parts[1], version=4) is parts[1]
    assert not operation.done
    assert desk.answer(parts[0], version=3) is parts[0]
    assert operation.done
    assert operation.error is None


def test_values_arrive_in_the_caller_s_memory(desk: Desk) -> None:
    memory = bytearray(8)
    part = Part(desk.operation("pull"), Pull, 1, 0, begin=0, end=2, into=memoryview(memory))
    desk.channel.submit(part)
    desk.send()
    announced = Value(request_id=part.request_id)
    assert desk.channel.destination(announced, 4) is None, "another size than expected"
    assert desk.channel.destination(Value(request_id=99), 8) is None
    place = desk.channel.destination(announced, 8)
    assert place is part.into
    desk.answer(part, Value, payload=b"12345678", version=6)
    assert bytes(memory) == b"12345678"
    assert part.operation.versions == {0: 6}
    assert desk.channel.destination(announced, 8) is None, "settled: the memory is the caller's"


def test_answers_of_several_versions_are_noticed(desk: Desk) -> None:
    operation = desk.operation("pull")
    parts = [desk.pull(4, operation) for _ in range(3)]
    desk.send()
    for part, version in zip(parts, (5, 5, 6), strict=True):
        desk.answer(part, Value, payload=bytes(4), version=version)
    assert operation.versions == {0: 6}
    assert list(operation.torn) == [0]


@pytest.mark.parametrize("kind", [Ack, Value, Reject, Parked])
def test_strays_and_repeats_are_ignored(desk: Desk, kind: type[Reply]) -> None:
    part = desk.mutation()
    desk.send()
    assert desk.channel.answer(kind(request_id=99), 0.0) is None
    assert not part.settled
    desk.answer(part)
    assert desk.answer(part, kind) is None
    assert part.operation.error is None


@pytest.mark.parametrize(
    ("asked", "kind"),
    [(Push, Value), (Seal, Value), (Assign, Value), (Pull, Ack), (PushPull, Ack)],
)
def test_an_answer_of_the_wrong_kind_is_an_error(
    desk: Desk, asked: type[Request], kind: type[Reply]
) -> None:
    part = desk.pull() if asked is Pull else desk.mutation(4 * (asked is not Seal), kind=asked)
    desk.send()
    assert desk.answer(part, kind) is part
    assert part.operation.done
    assert isinstance(part.operation.error, RequestRejected)
    assert part.operation.error.code is ErrorCode.UNEXPECTED_FRAME


def test_values_of_another_size_are_an_error(desk: Desk) -> None:
    part = desk.pull(8)
    desk.send()
    desk.answer(part, Value, payload=bytes(4))
    assert isinstance(part.operation.error, RequestRejected)
    assert part.operation.error.code is ErrorCode.SIZE_MISMATCH
    assert "table w" in str(part.operation.error)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.NOT_FINITE, UsageError),
        (ErrorCode.OPTIMIZER_FAILED, RemoteError),
        (ErrorCode.OUT_OF_WINDOW, RequestRejected),
        (250, RemoteError),
    ],
)
def test_a_refusal_is_the_error_of_the_call(desk: Desk, code: int, error: type[AiopsError]) -> None:
    operation = desk.operation()
    parts = [desk.mutation(operation=operation) for _ in range(2)]
    desk.send()
    desk.answer(parts[0], Reject, status=code, payload=b"no \xff")
    assert operation.done
    assert isinstance(operation.error, error)
    assert "push table w: no \ufffd" in str(operation.error)
    assert desk.answer(parts[1]) is parts[1], "the other part is still accounted for"
    assert not desk.channel._flight


# --- deadlines ---


def parked(desk: Desk, part: Part, now: float, *ranks: int) -> None:
    payload = np.array(ranks, "<u4").tobytes()
    assert desk.answer(part, Parked, now, payload=payload, count=len(ranks)) is None


def test_a_call_that_waits_by_rule_lives_on_for_its_own_limit(desk: Desk) -> None:
    part = desk.mutation()
    operation = part.operation
    desk.send()
    assert operation.deadline == QUIET_S
    parked(desk, part, 30.0, 4, 2)
    assert operation.deadline == 30.0 + QUIET_S
    desk.answer(part, Parked, 31.0, payload=np.array([4, 2, 5, 1], "<u4").tobytes(), count=2)
    assert operation.waiting_for == {4: 5, 2: 1}
    parked(desk, part, WAIT_TIMEOUT_S - 1, 4)
    assert operation.deadline == WAIT_TIMEOUT_S
    desk.answer(part, now=WAIT_TIMEOUT_S - 1)
    assert operation.waiting_for == {}


@pytest.mark.parametrize("parks", [False, True])
def test_calls_in_the_queue_live_on_while_what_is_before_them_moves(
    desk: Desk, parks: bool
) -> None:
    """The server knows nothing of them yet, so it cannot say that they wait."""
    before = desk.operation()
    parts = [desk.mutation(60, operation=before) for _ in range(4)]
    queued = desk.mutation(60).operation
    hurried = desk.mutation(60, operation=desk.operation(limit_s=70.0)).operation
    pull = desk.operation("pull")
    for _ in range(3):
        desk.pull(PULL_WINDOW_BYTES // 2, pull)
    desk.send()
    for number, now in enumerate((30.0, 60.0, 90.0)):
        if parks:
            parked(desk, parts[0], now, 1)
        else:
            desk.answer(parts[number], now=now)
            desk.send()
        assert queued.deadline == pull.deadline == now + QUIET_S
    assert hurried.deadline == 70.0


def test_a_deadline_of_the_caller_s_own_stays(desk: Desk) -> None:
    operation = desk.operation(limit_s=5.0)
    parts = [desk.mutation(operation=operation) for _ in range(2)]
    desk.send()
    parked(desk, parts[0], 4.0, 1)
    desk.answer(parts[1], now=4.5)
    assert operation.deadline == 5.0


# --- giving up ---


def test_what_is_given_up_before_it_was_sent_never_leaves(desk: Desk) -> None:
    first, second, third = (desk.mutation(60) for _ in range(3))
    call = desk.operation("pull")
    pulls = [desk.pull(PULL_WINDOW_BYTES // 2, call) for _ in range(3)]
    assert desk.send() == [first, *pulls[:2]]
    for part in (second, second, pulls[2]):
        desk.channel.withdraw(part)
    assert second.operation.parts_left == 0
    assert call.parts_left == 2
    desk.answer(first)
    assert desk.send() == [third]
    desk.answer(pulls[0], Value, payload=bytes(PULL_WINDOW_BYTES // 2))
    assert desk.send() == []
    assert frame(third).seq == 2, "its number was never taken"


@pytest.mark.parametrize("lost", [False, True])
def test_a_mutation_in_flight_that_is_given_up_frees_the_window(desk: Desk, lost: bool) -> None:
    """It may take effect or not; its number counts as answered, and it is not sent again."""
    first, second = desk.mutation(60), desk.mutation(60)
    assert desk.send() == [first]
    if lost:
        desk.channel.lost()
    desk.channel.withdraw(first)
    assert desk.send() == [second]
    assert frame(second).answered_below == 2
    assert desk.answer(first) is None


def test_a_pull_that_is_given_up_writes_nothing_any_more(desk: Desk) -> None:
    part = desk.pull(4)
    desk.send()
    desk.channel.withdraw(part)
    assert desk.channel.destination(Value(request_id=part.request_id), 4) is None
    assert desk.answer(part, Value, payload=b"1234") is None
    assert not desk.channel.waiting
    assert not desk.channel._flight


def test_giving_up_what_is_settled_changes_nothing(desk: Desk) -> None:
    operation = desk.operation()
    parts = [desk.mutation(operation=operation) for _ in range(2)]
    desk.send()
    desk.answer(parts[0])
    desk.channel.withdraw(parts[0])
    assert operation.parts_left == 1
    desk.channel.validate()
