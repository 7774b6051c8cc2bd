"""The worker's side of requests when connections are lost: what goes again, and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from aiops.errors import UsageError
from aiops.roles.requests import Part
from aiops_protocol.delivery import Outbox
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Ack, Known, Parked, Push, Query, Reject, Reply
from aiops_protocol.payload import Buffer
from aiops_protocol.queries import UNKNOWN, WAITS, tell
from desk import Desk, frame
from wire_bytes import decode


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_is_unanswered_goes_again_in_order_and_byte_for_byte(desk: Desk) -> None:
    parts = [desk.mutation(), desk.pull(), desk.mutation(), desk.mutation()]
    desk.send()
    first = [bytes(part.header) + bytes(part.payload) for part in parts]
    desk.answer(parts[2])
    desk.channel.epoch = 9
    for _ in range(3):  # however often the connection is lost
        desk.channel.lost()
        again = desk.send()
        assert again == [parts[0], parts[3], parts[1]], "mutations first, as at the first time"
        assert all(part.resent for part in again)
        for part in again:
            assert bytes(part.header) + bytes(part.payload) == first[parts.index(part)]
    late = desk.mutation()
    assert desk.send() == [late]
    assert not late.resent
    assert frame(late).epoch == 9


def test_what_goes_again_goes_before_what_is_new(desk: Desk) -> None:
    old = [desk.mutation() for _ in range(3)]
    desk.send()
    desk.channel.lost()
    new = desk.mutation()
    assert desk.channel.next_part(0.0) is old[0]
    desk.channel.lost()  # in the middle of it
    assert desk.send() == [*old, new]


def test_an_answer_that_comes_between_loss_and_repeat_settles_it(desk: Desk) -> None:
    parts = [desk.mutation() for _ in range(2)]
    desk.send()
    desk.channel.lost()
    desk.answer(parts[0])
    assert desk.send() == [parts[1]]


def test_owned_payloads_are_what_they_were(desk: Desk) -> None:
    array = np.arange(4, dtype=np.float32)
    part = Part(
        desk.operation(), Push, 1, 0, begin=0, end=4, payload=array.data.cast("B"), outbox=Outbox()
    )
    desk.channel.submit(part)
    desk.send()
    part.own()
    array[:] = 9
    desk.channel.lost()
    (again,) = desk.send()
    assert frame(again).payload == np.arange(4, dtype=np.float32).tobytes()


def known(desk: Desk, question: tuple[bytes, Buffer], *outcomes: int) -> list[Reply]:
    """Answer a question; returns the late answers, which the channel has taken."""
    query = decode(bytes(question[0]) + bytes(question[1]))
    assert isinstance(query, Query)
    late = desk.channel.known(
        Known(request_id=query.request_id, version=8, payload=tell(1, outcomes))
    )
    for reply in late:
        desk.channel.answer(reply, 0.0)
    desk.channel.validate()
    return late


def test_before_much_goes_again_the_server_is_asked_what_it_has(desk: Desk) -> None:
    desk.channel.ask_from_bytes = 60
    parts = [desk.mutation(20) for _ in range(4)]
    desk.send()
    desk.channel.lost()
    (question,) = desk.channel.ask()
    new = desk.mutation(4)
    assert desk.send() == [], "what is new must not overtake what may have to go again"
    late = known(desk, question, ErrorCode.OK, UNKNOWN, WAITS, ErrorCode.NOT_FINITE)
    assert [type(reply) for reply in late] == [Ack, Reject]
    assert [part.settled for part in parts] == [True, False, False, True]
    assert parts[0].operation.versions == {0: 8}
    assert isinstance(parts[3].operation.error, UsageError)
    assert desk.send() == [parts[1], new], "what waits at the server does not go again"
    assert parts[1].resent
    desk.answer(parts[2])
    desk.channel.lost()
    assert desk.channel.ask() == [], "now there is too little"
    assert desk.send() == [parts[1], new]


def test_what_waited_and_is_lost_again_is_asked_about_again(desk: Desk) -> None:
    desk.channel.ask_from_bytes = 1
    part = desk.mutation(20)
    desk.send()
    for _ in range(2):
        desk.channel.lost()
        (question,) = desk.channel.ask()
        known(desk, question, WAITS)
        assert desk.send() == []
    desk.channel.lost()
    (question,) = desk.channel.ask()
    known(desk, question, UNKNOWN)
    assert desk.send() == [part]


def test_an_answer_that_does_not_fit_its_question_means_nothing_is_known(desk: Desk) -> None:
    desk.channel.ask_from_bytes = 1
    part = desk.mutation(20)
    desk.send()
    desk.channel.lost()
    (question,) = desk.channel.ask()
    assert known(desk, question, WAITS, WAITS) == []
    assert desk.send() == [part]
    assert known(desk, question, ErrorCode.OK) == [], "nobody asks any more"
    assert not part.settled


def test_what_never_left_goes_for_the_first_time(desk: Desk) -> None:
    desk.channel.window_bytes = 1 << 20
    parts = [desk.mutation(20) for _ in range(3)]
    sent = 1000  # with what was sent before
    for part in desk.send():
        sent += len(part.header) + len(part.payload)
        part.sent_to = sent
    desk.channel.lost(parts[1].sent_to - 1)  # the second one left in part
    assert desk.send() == parts
    assert [part.resent for part in parts] == [True, True, False]
    for part in parts:
        part.sent_to = 10_000
    desk.channel.lost(0)
    desk.send()
    assert [part.resent for part in parts] == [True, True, False], "nor now"


# --- silence ---


def sent(desk: Desk, *sizes: int) -> list[Part]:
    """Send mutations, as a connection does."""
    parts = [desk.mutation(size) for size in sizes]
    for index, part in enumerate(desk.send(), 1):
        part.sent_to = 1000 * index
    return parts


def test_a_mutation_is_passed_over_when_later_ones_are_answered(desk: Desk) -> None:
    parts = sent(desk, 4, 4, 4)
    assert not desk.channel.passed_over(100.0, 1.0), "nothing is answered"
    desk.answer(parts[1])
    assert desk.channel.passed_over(100.0, 1.0)
    assert not desk.channel.passed_over(0.5, 1.0), "not for so long"
    desk.answer(parts[0], Parked)
    assert not desk.channel.passed_over(100.0, 1.0), "it waits by rule; the last one is the newest"


def test_what_is_owed_is_asked_about_and_what_was_answered_in_vain_is_settled(desk: Desk) -> None:
    parts = sent(desk, 4, 4, 4)
    desk.answer(parts[1], Parked)
    assert desk.channel.owed
    (question,) = desk.channel.ask_about_owed()
    late = known(desk, question, ErrorCode.OK, WAITS)
    assert [reply.request_id for reply in late] == [parts[0].request_id]
    assert parts[0].settled
    assert not desk.channel.owed, "both that are left wait by rule"
    assert not desk.channel.questions.forgotten
    assert desk.send() == []


def test_a_server_that_does_not_know_what_it_was_sent_has_lost_it(desk: Desk) -> None:
    sent(desk, 4)
    (question,) = desk.channel.ask_about_owed()
    known(desk, question, UNKNOWN)
    assert desk.channel.questions.forgotten
    desk.channel.lost()
    assert not desk.channel.questions.forgotten, "the next connection begins anew"


def test_round_trips_are_taken_of_what_only_the_way_has_kept(desk: Desk) -> None:
    def rto_s() -> float:
        return desk.channel.trips.rto_s(0)

    (part,) = sent(desk, 4)
    desk.answer(part, now=0.3)
    assert rto_s() == pytest.approx(0.3 + 4 * 0.15)
    (part,) = sent(desk, 4)
    desk.answer(part, Parked, now=5.0)
    desk.answer(part, now=9.0)
    assert rto_s() == pytest.approx(0.9), "it waited by rule"
    (part,) = sent(desk, 4)
    desk.channel.lost()
    desk.send()
    part.sent_to = 1000
    desk.answer(part, now=20.0)
    assert rto_s() == pytest.approx(0.9), "it was sent twice"
