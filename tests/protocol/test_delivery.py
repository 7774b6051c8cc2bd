"""Exactly once: an inbox applies each number once, whatever a network does to the frames."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from aiops_protocol.delivery import Inbox, Outbox, Verdict
from aiops_protocol.errors import ErrorCode
from aiops_protocol.limits import WINDOW_MUTATIONS

WINDOW = 5

# --- examples to read -------------------------------------------------------------------------


def test_numbers_begin_at_one_and_the_mark_follows_the_answers() -> None:
    outbox = Outbox(window=3)
    assert outbox.answered_below == 1
    assert [outbox.take() for _ in range(3)] == [1, 2, 3]
    assert not outbox.open
    outbox.answered(2)
    assert outbox.answered_below == 1
    assert not outbox.open  # the window is counted from the oldest that is unanswered
    outbox.answered(1)
    assert outbox.answered_below == 3
    assert outbox.open
    outbox.answered(1)  # a repeat
    assert not outbox.idle
    outbox.answered(3)
    assert outbox.answered_below == 4
    assert outbox.idle
    outbox.validate()


def test_a_repeat_gets_the_old_answer_again() -> None:
    inbox = Inbox(incarnation=1)
    assert inbox.judge(1, 1, 1) is Verdict.APPLY
    inbox.record(1, ErrorCode.NOT_FINITE)
    assert inbox.judge(1, 1, 1) is Verdict.DUPLICATE
    assert inbox.outcome(1) is ErrorCode.NOT_FINITE
    assert inbox.outcome(2) is ErrorCode.OK


def test_a_worker_that_was_started_again_fences_its_former_self() -> None:
    inbox = Inbox(incarnation=1)
    inbox.record(1, ErrorCode.NOT_FINITE)
    assert inbox.judge(2, 1, 1) is Verdict.APPLY
    assert inbox.outcome(1) is ErrorCode.OK
    assert inbox.judge(1, 2, 1) is Verdict.FENCED
    assert inbox.incarnation == 2


def test_a_new_incarnation_starts_from_an_empty_record() -> None:
    """Also where the old one had come out of order and left a gap."""
    inbox = Inbox(incarnation=1)
    inbox.record(1)
    inbox.record(3)
    assert inbox.judge(2, 3, 1) is Verdict.APPLY
    inbox.record(3)
    assert [inbox.judge(2, seq, 1) for seq in (1, 2)] == [Verdict.APPLY, Verdict.APPLY]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_no_number_of_a_peer_can_hurt(incarnation: int, seq: int, mark: int) -> None:
    """All three are 64-bit fields of a frame, and a peer may put anything there."""
    inbox = Inbox(incarnation=3)
    inbox.record(1)
    inbox.record(3, ErrorCode.NOT_FINITE)
    before = inbox.incarnation
    verdict = inbox.judge(incarnation, seq, mark)
    assert (verdict is Verdict.FENCED) <= (incarnation < before)
    assert verdict is not Verdict.DUPLICATE or seq >= 1
    inbox.validate()


def test_a_push_without_a_number_is_not_taken_for_a_repeat() -> None:
    """It would be acknowledged and never applied."""
    assert Inbox(1).judge(1, 0, 0) is Verdict.OUT_OF_WINDOW


def test_a_number_below_its_own_mark_is_not_taken_for_a_repeat() -> None:
    """No outbox says that a mutation is answered in the very frame that carries it."""
    inbox = Inbox(1)
    assert inbox.judge(1, 5, 6) is Verdict.OUT_OF_WINDOW
    assert inbox.judge(1, 5, 5) is Verdict.APPLY


def test_a_sender_that_never_moves_its_mark_costs_no_memory() -> None:
    """Each of its mutations is refused, and refusals are remembered for their repeats."""
    inbox = Inbox(1)
    for seq in range(1, 10_000):
        assert inbox.judge(1, seq, 0) is Verdict.APPLY
        inbox.record(seq, ErrorCode.NOT_FINITE)
        inbox.validate()
    assert inbox.outcome(9_999) is ErrorCode.NOT_FINITE
    assert inbox.outcome(9_999 - WINDOW_MUTATIONS + 1) is ErrorCode.NOT_FINITE


def test_what_was_given_up_is_never_applied_later() -> None:
    """The call has timed out and was reported as such; its frame comes out of a queue at last."""
    outbox, inbox = Outbox(), Inbox(1)
    lost, kept = outbox.take(), outbox.take()
    outbox.answered(lost)
    assert inbox.judge(1, kept, outbox.answered_below) is Verdict.APPLY
    inbox.record(kept)
    assert inbox.judge(1, lost, 1) is Verdict.DUPLICATE


def test_what_was_given_up_while_it_waited_is_recorded_without_harm() -> None:
    """Its round opens at last; the sender has gone on and told so."""
    inbox = Inbox(1)
    assert inbox.judge(1, 1, 1) is Verdict.APPLY  # and it must wait
    assert inbox.judge(1, 2, 2) is Verdict.APPLY
    inbox.record(2)
    inbox.record(1, ErrorCode.NOT_FINITE)
    inbox.validate()
    assert inbox.judge(1, 1, 1) is Verdict.DUPLICATE
    assert inbox.judge(1, 3, 3) is Verdict.APPLY


def test_a_mark_closes_the_gap_before_what_came_out_of_order() -> None:
    """Number 2 was given up and 3 has arrived: everything up to 3 is settled."""
    inbox = Inbox(1, window=WINDOW)
    inbox.record(1)
    inbox.record(3)
    assert inbox.judge(1, 3 + WINDOW, 3) is Verdict.APPLY
    inbox.validate()
    assert inbox.judge(1, 4 + WINDOW, 3) is Verdict.OUT_OF_WINDOW


def test_beyond_the_window() -> None:
    inbox = Inbox(1, window=WINDOW)
    assert inbox.judge(1, WINDOW, 1) is Verdict.APPLY
    assert inbox.judge(1, WINDOW + 1, 1) is Verdict.OUT_OF_WINDOW
    assert inbox.judge(1, WINDOW + 1, 2) is Verdict.APPLY


# --- any history ------------------------------------------------------------------------------


class Delivery(RuleBasedStateMachine):
    """A worker, a network that repeats and reorders, and a server, against sets of numbers.

    A mutation may wait at the server by rule: judged, but neither applied nor recorded yet.
    The network keeps every frame it ever saw and may deliver it again, also after the worker
    was started anew. An answer may be lost; a call may be given up.
    """

    frames = Bundle("frames")

    @initialize()
    def begin(self) -> None:
        self.incarnation = 1
        self.outbox = Outbox(window=WINDOW)
        self.inbox = Inbox(incarnation=1, window=WINDOW)
        self.unanswered: set[int] = set()
        self.given_up: set[tuple[int, int]] = set()
        self.applied: dict[tuple[int, int], ErrorCode] = {}
        self.parked: list[tuple[int, int]] = []
        self.newest = 1  # incarnation that the server has heard of

    @precondition(lambda self: self.outbox.open)
    @rule(target=frames)
    def send(self) -> tuple[int, int, int]:
        seq = self.outbox.take()
        assert seq not in self.unanswered
        self.unanswered.add(seq)
        return self.incarnation, seq, self.outbox.answered_below

    @rule(
        frame=frames,
        code=st.sampled_from([ErrorCode.OK, ErrorCode.OK, ErrorCode.NOT_FINITE]),
        answered=st.booleans(),
        waits=st.booleans(),
    )
    def deliver(
        self, frame: tuple[int, int, int], code: ErrorCode, answered: bool, waits: bool
    ) -> None:
        incarnation, seq, mark = frame
        verdict = self.inbox.judge(incarnation, seq, mark)
        name = (incarnation, seq)
        if incarnation < self.newest:
            assert verdict is Verdict.FENCED
            return
        if incarnation > self.newest:
            self.newest = incarnation
            self.parked = []
        if verdict is Verdict.APPLY and (waits or name in self.parked):
            if name not in self.parked:
                self.parked.append(name)
            return
        if verdict is Verdict.APPLY:
            assert name not in self.applied, "applied twice"
            self.applied[name] = code
            self.inbox.record(seq, code)
        else:
            # A correct sender within its window is never refused, and a repeat has been applied
            # or was given up, which the sender has told by a later mark.
            assert verdict is Verdict.DUPLICATE
            assert name in self.applied or name in self.given_up
        if incarnation == self.incarnation and seq in self.unanswered:
            assert self.inbox.outcome(seq) == self.applied[name]
        if answered and incarnation == self.incarnation:
            self.outbox.answered(seq)
            self.unanswered.discard(seq)

    @precondition(lambda self: self.parked)
    @rule()
    def open_round(self) -> None:
        """What waited by rule takes effect, the oldest first; it may have been given up."""
        name = self.parked.pop(0)
        assert name not in self.applied, "applied twice"
        self.applied[name] = ErrorCode.OK
        self.inbox.record(name[1])

    @precondition(lambda self: self.unanswered)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.unanswered)))
        self.outbox.answered(seq)
        self.unanswered.discard(seq)
        self.given_up.add((self.incarnation, seq))

    @rule()
    def start_again(self) -> None:
        self.incarnation += 1
        self.outbox = Outbox(window=WINDOW)
        self.unanswered = set()

    @rule(target=frames, frame=consumes(frames))
    def lose_or_keep(self, frame: tuple[int, int, int]) -> object:
        """A frame may vanish for good."""
        return multiple() if frame[1] % 3 == 0 else frame

    @invariant()
    def bounded(self) -> None:
        self.outbox.validate()
        self.inbox.validate()

    @invariant()
    def mark_and_window_are_those_of_the_model(self) -> None:
        oldest = min(self.unanswered, default=None)
        if oldest is not None:
            assert self.outbox.answered_below == oldest
        assert len(self.unanswered) <= WINDOW


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(stateful_step_count=60)
