"""Exactly-once bookkeeping: `Outbox` at the sender, `Inbox` at the receiver of mutations.

A session is (worker, incarnation, customer, shard). Its mutations are numbered from 1; at
most a window of them is unanswered. The inbox applies each number once, whatever is repeated
or reordered across connections, and its memory is one counter and one window of bits.
"""

from __future__ import annotations

from enum import Enum

from aiops_protocol.errors import ErrorCode
from aiops_protocol.limits import WINDOW_MUTATIONS

__all__ = ["Inbox", "Outbox", "Verdict"]


class Outbox:
    """Numbers the mutations of one session and knows which are unanswered.

    Attributes
    ----------
    answered_below
        All numbers below this one are answered or given up; the receiver may forget them.
    """

    __slots__ = ("_next", "_unanswered", "answered_below", "window")

    def __init__(self, window: int = WINDOW_MUTATIONS) -> None:
        self.window = window
        self.answered_below = 1
        self._next = 1
        self._unanswered: dict[int, None] = {}  # in order of sending

    @property
    def open(self) -> bool:
        """Whether the window lets one more mutation out."""
        return self._next - self.answered_below < self.window

    @property
    def idle(self) -> bool:
        """Whether nothing is unanswered."""
        return not self._unanswered

    def take(self) -> int:
        """Return the number of the mutation that is sent now."""
        seq = self._next
        self._next = seq + 1
        self._unanswered[seq] = None
        return seq

    def answered(self, seq: int) -> None:
        """Note an answer, or that nobody waits for one any more; repeats are harmless."""
        self._unanswered.pop(seq, None)
        if seq == self.answered_below:
            below = seq + 1
            while below < self._next and below not in self._unanswered:
                below += 1
            self.answered_below = below

    def validate(self) -> None:
        """Check what must always hold."""
        assert len(self._unanswered) <= self.window
        assert list(self._unanswered) == sorted(self._unanswered)
        assert all(seq < self._next for seq in self._unanswered)
        assert self.answered_below == min(self._unanswered, default=self._next)


class Verdict(Enum):
    """What to do with a mutation that has arrived."""

    APPLY = "apply"
    DUPLICATE = "duplicate"
    FENCED = "fenced"
    OUT_OF_WINDOW = "out of window"


class Inbox:
    """Judges the mutations of one (worker, customer) at one shard; part of the shard's state.

    Notes
    -----
    `judge` applies nothing: it takes note of a new incarnation, which starts from an empty
    record, and of the sender's mark. `record` must follow an APPLY in the same step as the
    effect, without a wait in between.
    """

    __slots__ = ("_applied", "_base", "_refused", "incarnation", "window")

    def __init__(self, incarnation: int = 0, window: int = WINDOW_MUTATIONS) -> None:
        self.incarnation = incarnation
        self.window = window
        self._base = 0  # every number up to here is settled
        self._applied = 0  # bit i: number base + 1 + i is settled
        self._refused: dict[int, ErrorCode] = {}

    def judge(self, incarnation: int, seq: int, answered_below: int) -> Verdict:
        """Decide about mutation `seq`; `answered_below` is the sender's mark.

        A number from 1 that is not below its own mark: anything else was never numbered by an
        `Outbox`, and taking it for a repeat would acknowledge what was not applied.
        """
        if seq < 1 or seq < answered_below:
            return Verdict.OUT_OF_WINDOW
        if incarnation != self.incarnation:
            if incarnation < self.incarnation:
                return Verdict.FENCED
            self.incarnation = incarnation
            self._base = self._applied = 0
            self._refused.clear()
        if answered_below > self._base + 1:
            self._advance(answered_below - 1)
        if self.settled(seq):
            return Verdict.DUPLICATE
        if seq > self._base + self.window:
            return Verdict.OUT_OF_WINDOW
        return Verdict.APPLY

    def record(self, seq: int, code: ErrorCode = ErrorCode.OK) -> None:
        """Note that `seq` has been applied, or refused with `code`; it never happens again.

        Of a number below the sender's mark nobody waits for the answer: a mutation that waited at
        the receiver by rule, and was given up by its sender meanwhile.
        """
        if seq <= self._base:
            return
        if code is not ErrorCode.OK:
            self._refused[seq] = code
            if len(self._refused) > self.window:
                self._forget_refusals()
        if seq == self._base + 1 and not self._applied:
            self._base = seq
            return
        self._applied |= 1 << (seq - self._base - 1)
        while self._applied & 1:
            self._applied >>= 1
            self._base += 1

    def settled(self, seq: int) -> bool:
        """Whether `seq` has been applied or refused, or is below the sender's mark."""
        return seq <= self._base or bool(self._applied >> (seq - self._base - 1) & 1)

    def outcome(self, seq: int) -> ErrorCode:
        """Return how a settled mutation ended, for the answer to its repeat."""
        return self._refused.get(seq, ErrorCode.OK)

    def _advance(self, base: int) -> None:
        self._applied >>= base - self._base
        self._base = base
        while self._applied & 1:
            self._applied >>= 1
            self._base += 1

    def _forget_refusals(self) -> None:
        # A sender has at most a window unanswered, so nobody asks about older ones again.
        below = max(self._refused) - self.window
        self._refused = {seq: code for seq, code in self._refused.items() if seq > below}

    def validate(self) -> None:
        """Check what must always hold."""
        assert self._applied.bit_length() <= self.window
        assert not self._applied & 1
        assert len(self._refused) <= self.window
