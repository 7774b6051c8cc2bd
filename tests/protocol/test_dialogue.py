"""What two nodes say to each other arrives once and in order, whatever connections break."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aiops_protocol.dialogue import Dialogue, Said
from aiops_protocol.errors import UnexpectedFrame
from aiops_protocol.limits import DIALOGUE_BYTES_MAX, DIALOGUE_MESSAGES_MAX, HEARD_EVERY


def said(number: int, size: int = 8) -> Said:
    return number.to_bytes(8, "little"), bytes(size)


class Side:
    """One side: its dialogue, what it has said and taken, and what is on the way to it."""

    def __init__(self) -> None:
        self.dialogue = Dialogue()
        self.said: list[Said] = []
        self.taken: list[Said] = []
        self.coming: deque[Said | int] = deque()  # a number is a Heard


class TwoSides(RuleBasedStateMachine):
    """Two sides over connections that break; what was on the way is lost from some point on."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = [Side(), Side()]
        self.connected = True

    @rule(one=st.integers(0, 1), count=st.integers(1, HEARD_EVERY + 3))
    def say(self, one: int, count: int) -> None:
        side, other = self.sides[one], self.sides[1 - one]
        for _ in range(count):
            message = said(len(side.said))
            side.said.append(message)
            side.dialogue.say(*message)
            if self.connected:
                other.coming.append(message)

    @precondition(lambda self: self.connected)
    @rule(one=st.integers(0, 1), count=st.integers(1, 40))
    def arrive(self, one: int, count: int) -> None:
        side, other = self.sides[one], self.sides[1 - one]
        for _ in range(min(count, len(side.coming))):
            message = side.coming.popleft()
            if isinstance(message, int):
                side.dialogue.heard(message)
                continue
            side.taken.append(message)
            if side.dialogue.take():
                other.coming.append(side.dialogue.tell())

    @precondition(lambda self: self.connected)
    @rule()
    def break_off(self) -> None:
        self.connected = False
        for side in self.sides:
            side.coming.clear()

    @precondition(lambda self: not self.connected)
    @rule()
    def connect(self) -> None:
        self.connected = True
        left, right = self.sides
        right.coming.extend(left.dialogue.repeat(right.dialogue.tell()))
        left.coming.extend(right.dialogue.repeat(left.dialogue.tell()))

    @invariant()
    def once_and_in_order(self) -> None:
        for side, other in (self.sides, self.sides[::-1]):
            side.dialogue.validate()
            assert side.taken == other.said[: len(side.taken)]

    def teardown(self) -> None:
        if not self.connected:
            self.connect()
        for _ in range(2):
            for one in (0, 1):
                self.arrive(one, len(self.sides[one].coming))
        for side, other in (self.sides, self.sides[::-1]):
            assert side.taken == other.said


TestTwoSides = TwoSides.TestCase


def test_a_side_that_claims_what_was_never_said_is_no_peer() -> None:
    dialogue = Dialogue()
    dialogue.say(*said(0))
    for call in (dialogue.heard, dialogue.repeat):
        with pytest.raises(UnexpectedFrame, match="claims to have 2 messages of 1"):
            call(2)
    dialogue.heard(1)
    with pytest.raises(UnexpectedFrame, match="claims to have 0 messages of 1"):
        dialogue.repeat(0)


@pytest.mark.parametrize(
    ("size", "most"), [(8, DIALOGUE_MESSAGES_MAX), (1 << 20, DIALOGUE_BYTES_MAX // (1 << 20) - 1)]
)
def test_what_is_kept_is_bounded(size: int, most: int) -> None:
    """A peer that hears nothing for long cannot go on where it was, and says so."""
    dialogue = Dialogue()
    payload = bytes(size)
    for number in range(most):
        dialogue.say(number.to_bytes(8, "little"), payload)
    assert dialogue.lasting
    assert len(dialogue.repeat(0)) == most
    for number in range(2):
        dialogue.say(number.to_bytes(8, "little"), payload)
    assert not dialogue.lasting
    dialogue.validate()
    dialogue.heard(most)  # late news of what is forgotten is no fault of the peer
    with pytest.raises(UnexpectedFrame, match="are forgotten"):
        dialogue.repeat(most)
