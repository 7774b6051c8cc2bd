"""Planted bugs: the simulator must find each of them, or it would not find the like in earnest.

A mutant changes one function of the product for the length of a run. Each names the scenario
that is meant to catch it. The tests begin with a seed that is known to find it, `make mutants`
with seed 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import msgspec

from aiops.errors import AiopsError
from aiops.roles import (
    bounded,
    bulk_rule,
    consistency,
    detector,
    patience,
    quorum,
    quorum_rule,
    requests,
    rounds,
)
from aiops.runtime import control_link, data_connection
from aiops.tables import rounds as table_rounds
from aiops.van import link
from aiops_protocol import buffer, delivery, dialogue

__all__ = ["MUTANTS", "Mutant"]


class Mutant(msgspec.Struct, frozen=True):
    """One planted bug; `seed` is one that found it when somebody last looked."""

    name: str
    scenario: str
    why: str
    plant: Callable[[], AbstractContextManager[None]]
    seed: int = 0


def _replace(owner: Any, name: str, value: Any) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def plant() -> Iterator[None]:
        original = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, original)

    return plant


def _apply_always(self: delivery.Inbox, *_: object) -> delivery.Verdict:
    return delivery.Verdict.APPLY


_judge = delivery.Inbox.judge


def _forget_duplicates(
    self: delivery.Inbox, incarnation: int, seq: int, answered_below: int
) -> delivery.Verdict:
    verdict = _judge(self, incarnation, seq, answered_below)
    if verdict is delivery.Verdict.DUPLICATE and seq == self._base:
        return delivery.Verdict.APPLY
    return verdict


class _Equal:
    """A checksum that is always right."""

    def __ne__(self, other: object) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]  # equal to all, so no key


def _any_checksum(*_: object) -> Any:
    return _Equal()


def _send_nothing_again(self: requests.Channel, handed_on: int) -> None:
    """Forget that requests in flight must go again."""


def _take_for_answered(self: requests.Channel, handed_on: int) -> None:
    for part in list(self._flight.values()):
        if part.outbox is not None:
            self._settle(part)


def _renumber(self: requests.Channel, handed_on: int) -> None:
    for part in list(self._flight.values()):
        if part.outbox is not None and part.outbox.open:
            del self._flight[part.request_id]
            part.outbox.answered(part.seq)
            part.seq = part.outbox.take()
            self._launch(part, part.outbox.answered_below, 0.0)
    _lost(self, handed_on)


_lost = requests.Channel.lost


def _everything_answered(self: delivery.Outbox) -> int:
    return self._next


def _arrival_order(self: rounds.Rounds) -> dict[int, float]:
    pushed = list(_close(self).items())
    return dict(pushed[1:] + pushed[:1])


_close = rounds.Rounds.close


def _read_early(self: bulk_rule.BspRule, version: int) -> bool:
    return True


def _settle_nothing(self: bulk_rule.BspRule, rank: int, verdict: rounds.Mark) -> None:
    """Never come to a verdict about a lost worker."""


_settle = bulk_rule.BspRule.settle


def _settle_alone(self: bulk_rule.BspRule, rank: int, verdict: rounds.Mark) -> None:
    _settle(self, rank, rounds.NOTHING_SEALED)


def _never_dead(self: detector.FailureDetector, now: float) -> tuple[list[int], list[int]]:
    return [], []


def _count_everybody(
    self: rounds.Rounds, rank: int, contributed: bool, final: bool, weight: float = 1.0
) -> None:
    _seal(self, rank, True, final, weight)


_seal = rounds.Rounds.seal


def _no_reconnect(self: data_connection.DataConnection, gone: link.Link, error: object) -> None:
    if self.link is gone:
        self.link = None
        self.channel.lost(gone.bytes_sent)


def _say_nothing_again(self: dialogue.Dialogue, count: int) -> list[dialogue.Said]:
    self.heard(count)
    return []


def _skip_nothing(self: table_rounds.Place, rounds: int) -> None:
    """Stay where the table was entered."""


def _one_for_all(self: Any, *args: Any, **options: Any) -> None:
    _connection(self, *args, **options)
    self.channel.session = self.channel.questions.session = 0


_connection = data_connection.DataConnection.__init__


def _no_second_connection(
    self: control_link.ControlLink, gone: link.Link, error: AiopsError | None
) -> None:
    if self.link is gone:
        self.link, self._speaking = None, False
        self._end(error, gone.goodbye)


_look = patience.Patience.look


def _see_no_movement(self: patience.Patience, sight: patience.Sight, now: float) -> patience.Step:
    return _look(self, sight._replace(moved=0), now)


def _replace_at_once(self: patience.Patience, received: int, now: float) -> patience.Step:
    self._probing = False
    return patience.Step.REPLACE


def _never_replace(self: patience.Patience, received: int, now: float) -> patience.Step:
    self._probing = False
    self._put_off(now)
    return patience.Step.NOTHING


def _owe_always(self: requests.Channel) -> bool:
    return True


@contextmanager
def _resend_what_moves() -> Iterator[None]:
    with (
        _replace(patience.Patience, "look", _see_no_movement)(),
        _replace(patience.Patience, "probe_answered", _replace_at_once)(),
    ):
        yield


def _wide_gate(self: bounded.SspRule, version: int) -> bool:
    return self.floor.value >= version - self._staleness - 1


def _narrow_gate(self: bounded.SspRule, version: int) -> bool:
    return self.floor.value >= version - self._staleness + 1 or not version


def _no_gate_for_pushes(self: bounded.SspRule, rank: int, clock: int) -> Any:
    return consistency.OK


def _never_enough(self: quorum.Policy, contributed: int, sealed: int, present: int) -> bool:
    return False


def _judge_alone(self: quorum_rule.QuorumRule, version: int, shares: list[quorum.Share]) -> None:
    """Take what is here for the decision, whatever was decided."""
    here = {(rank, number) for rank, number in self._contributions}
    _decided(self, version, [share for share in shares if (share.rank, share.round) in here][:2])


_decided = quorum_rule.QuorumRule.decided


MUTANTS: Final = (
    Mutant(
        "no-dedup",
        "conservation",
        "every repeat is applied",
        _replace(delivery.Inbox, "judge", _apply_always),
    ),
    Mutant(
        "short-memory",
        "conservation",
        "the newest mutation is forgotten by the record",
        _replace(delivery.Inbox, "judge", _forget_duplicates),
    ),
    Mutant(
        "no-checksum",
        "conservation",
        "damaged bodies are believed",
        _replace(buffer, "crc32c", _any_checksum),
        seed=15,
    ),
    Mutant(
        "no-resend",
        "conservation",
        "what was in flight at a cut is never sent again",
        _replace(requests.Channel, "lost", _send_nothing_again),
    ),
    Mutant(
        "false-ack",
        "conservation",
        "a cut counts as an acknowledgement",
        _replace(requests.Channel, "lost", _take_for_answered),
    ),
    Mutant(
        "new-number",
        "conservation",
        "a repeat is sent as a new mutation",
        _replace(requests.Channel, "lost", _renumber),
    ),
    Mutant(
        "false-mark",
        "conservation",
        "the mark says answered of what is not",
        _replace(delivery.Outbox, "answered_below", property(_everything_answered)),
    ),
    Mutant(
        "no-reconnect",
        "conservation",
        "a lost connection is not opened again",
        _replace(data_connection.DataConnection, "link_lost", _no_reconnect),
    ),
    Mutant(
        "fold-order",
        "agreement",
        "contributions are not folded in rank order",
        _replace(rounds.Rounds, "close", _arrival_order),
        seed=3,
    ),
    Mutant(
        "read-early",
        "agreement",
        "a pull does not wait for its version",
        _replace(bulk_rule.BspRule, "readable", _read_early),
    ),
    Mutant(
        "wrong-divisor",
        "agreement",
        "who did not push is in the divisor",
        _replace(rounds.Rounds, "seal", _count_everybody),
    ),
    Mutant(
        "no-verdict",
        "survival",
        "a lost worker is waited for",
        _replace(bulk_rule.BspRule, "settle", _settle_nothing),
    ),
    Mutant(
        "lonely-verdict",
        "survival",
        "each server judges a lost worker by itself",
        _replace(bulk_rule.BspRule, "settle", _settle_alone),
        seed=83,
    ),
    Mutant(
        "no-detector",
        "survival",
        "silence is never taken for death",
        _replace(detector.FailureDetector, "judge", _never_dead),
    ),
    Mutant(
        "no-repeat",
        "agreement",
        "what was said over a control connection that broke is not said again",
        _replace(dialogue.Dialogue, "repeat", _say_nothing_again),
        seed=9,
    ),
    Mutant(
        "no-return",
        "agreement",
        "a control connection that broke is the end",
        _replace(control_link.ControlLink, "link_lost", _no_second_connection),
        seed=6,
    ),
    Mutant(
        "resend-what-moves",
        "silence",
        "a connection that still moves is replaced, and all is sent again",
        _resend_what_moves,
        seed=1,
    ),
    Mutant(
        "blind-watch",
        "silence",
        "what moves at this end is not seen to move",
        _replace(patience.Patience, "look", _see_no_movement),
        seed=1,
    ),
    Mutant(
        "endless-patience",
        "silence",
        "a dead connection is waited for as long as the kernel waits",
        _replace(patience.Patience, "probe_answered", _never_replace),
        seed=2,
    ),
    Mutant(
        "impatience-by-rule",
        "silence",
        "the RTO runs for what waits by rule",
        _replace(requests.Channel, "owed", property(_owe_always)),
        seed=1,
    ),
    Mutant(
        "one-session",
        "conservation",
        "two customers of a worker are one to the servers",
        _replace(data_connection.DataConnection, "__init__", _one_for_all),
    ),
    Mutant(
        "own-places",
        "comeback",
        "who enters several tables late is at another clock of the job in each",
        _replace(table_rounds.Place, "skip", _skip_nothing),
        seed=1,
    ),
    Mutant(
        "wide-gate",
        "bounded",
        "workers get one clock further apart than they may",
        _replace(bounded.SspRule, "readable", _wide_gate),
    ),
    Mutant(
        "narrow-gate",
        "bounded",
        "workers wait one clock too early",
        _replace(bounded.SspRule, "readable", _narrow_gate),
    ),
    Mutant(
        "open-push",
        "bounded",
        "pushes pass where pulls would wait",
        _replace(bounded.SspRule, "_gate", _no_gate_for_pushes),
        seed=7,
    ),
    Mutant(
        "never-enough",
        "quorums",
        "rounds wait for everybody",
        _replace(quorum.Policy, "suffices", _never_enough),
    ),
    Mutant(
        "own-decision",
        "quorums",
        "a server carries out another decision than the lead's",
        _replace(quorum_rule.QuorumRule, "decided", _judge_alone),
    ),
)
