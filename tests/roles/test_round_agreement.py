"""Rounds of one shard, and the moments in which several shards could come to disagree."""

from __future__ import annotations

import pytest

from aiops.roles.rounds import NOTHING_SEALED, Mark, Rounds


def closed(rounds: Rounds) -> list[list[int]]:
    """Close all that can be closed; the contributors of each round."""
    result = []
    while rounds.closable:
        result.append(list(rounds.close()))
        rounds.validate()
    rounds.validate()
    return result


def seal(rounds: Rounds, rank: int, *pushed: bool, final: bool = False) -> None:
    for contributed in pushed:
        rounds.seal(rank, contributed, final=False)
    if final:
        rounds.seal(rank, False, final=True)


def test_a_round_closes_on_the_seals_of_all_who_take_part() -> None:
    rounds = Rounds([2, 0, 5])
    seal(rounds, 5, True)
    seal(rounds, 0, False)
    assert not rounds.closable
    assert rounds.missing == [2]
    seal(rounds, 2, True)
    assert closed(rounds) == [[2, 5]]
    assert rounds.version == 1
    assert rounds.missing == [0, 2, 5]


def test_a_round_in_which_nobody_pushed_closes_all_the_same() -> None:
    rounds = Rounds([0])
    seal(rounds, 0, False, False, True)
    assert closed(rounds) == [[], [], [0]]


def test_without_anybody_the_version_stays() -> None:
    rounds = Rounds([])
    assert closed(rounds) == []
    rounds = Rounds([0])
    seal(rounds, 0, True, final=True)
    assert closed(rounds) == [[0]]
    assert rounds.missing == rounds.members == []


def test_who_has_left_is_not_waited_for_in_rounds_after_its_last() -> None:
    rounds = Rounds([0, 1])
    seal(rounds, 0, True, True, final=True)
    seal(rounds, 1, True, True, True)
    assert closed(rounds) == [[0, 1], [0, 1], [1]]
    assert not rounds.takes_part(0)


@pytest.mark.parametrize("behind", range(1, 9))
def test_a_verdict_tells_about_every_round_that_a_shard_lacks(behind: int) -> None:
    """A worker whose pushes concern one shard only can be several seals ahead there.

    The connection to the other shard is slow; it dies before any of them arrives. The divisor
    must be the same everywhere.
    """
    pushes = [True, False, True, True, False, True, False, False][:behind]
    ahead, lacking = Rounds([0, 1]), Rounds([0, 1])
    seal(ahead, 0, *pushes)
    seal(ahead, 1, *[True] * behind)
    seal(lacking, 1, *[True] * behind)
    expected = [[0, 1] if pushed else [1] for pushed in pushes]
    assert closed(ahead) == expected
    assert closed(lacking) == []
    marks = [rounds.lose(0) for rounds in (ahead, lacking)]
    assert marks[1] == NOTHING_SEALED
    verdict = max(mark for mark in marks if mark is not None)
    for rounds in (ahead, lacking):
        rounds.settle(0, verdict)
    assert closed(ahead) == []
    assert closed(lacking) == expected


def test_what_a_departed_worker_had_sealed_is_still_known_where_it_is_asked_for() -> None:
    """It seals, leaves, and is lost before its last words reach the other shard."""
    here, there = Rounds([0, 1]), Rounds([0, 1])
    seal(here, 0, True, final=True)
    seal(here, 1, True, True)
    seal(there, 1, True, True)
    assert closed(here) == [[0, 1], [1]]
    mark = here.lose(0)
    assert mark == Mark(1, 1)
    there.lose(0)
    for rounds in (here, there):
        rounds.settle(0, mark)
    assert closed(there) == [[0, 1], [1]]
    assert here.version == there.version == 2


def test_what_was_sealed_nowhere_counts_nowhere_and_is_waited_for_until_then() -> None:
    rounds = Rounds([0, 1])
    seal(rounds, 1, True)
    assert rounds.lose(0) == NOTHING_SEALED
    assert closed(rounds) == []
    rounds.settle(0, NOTHING_SEALED)
    assert closed(rounds) == [[1]]


def test_a_worker_enters_at_the_round_that_all_agree_on() -> None:
    rounds = Rounds([0])
    assert rounds.hold(1) == (0, False)
    seal(rounds, 0, True, True)
    assert closed(rounds) == [[0]], "one more round may close, not two"
    rounds.admit(1, 1)
    assert closed(rounds) == []
    seal(rounds, 1, True)
    assert closed(rounds) == [[0, 1]]


def test_two_who_enter_an_idle_table_begin_together_or_one_after_the_other() -> None:
    """Both were told that nobody takes part, so both may be told to begin with the open round."""
    rounds = Rounds([])
    assert rounds.hold(0) == (0, True)
    assert rounds.hold(1) == (0, True)
    rounds.admit(0, 0)
    seal(rounds, 0, True)
    assert closed(rounds) == [], "worker 1 may belong to this round"
    rounds.admit(1, 0)
    seal(rounds, 1, True)
    assert closed(rounds) == [[0, 1]]


def test_who_comes_after_a_gap_closes_the_rounds_before_it() -> None:
    """At one shard the last worker had left before the hold, at another after it."""
    rounds = Rounds([0])
    seal(rounds, 0, True)
    assert closed(rounds) == [[0]]
    assert rounds.hold(1) == (1, False)
    seal(rounds, 0, final=True)
    assert closed(rounds) == []
    rounds.admit(1, 2)
    assert closed(rounds) == [[]]
    assert rounds.version == 2


def test_who_comes_back_takes_part_from_its_new_first_round_on() -> None:
    """Its former self had sealed rounds ahead, without pushes; those do not count any more."""
    rounds = Rounds([0, 1])
    seal(rounds, 0, True, False, False, final=True)
    rounds.settle(0, NOTHING_SEALED)
    rounds.hold(0)
    rounds.admit(0, 1)
    seal(rounds, 1, True, True)
    assert closed(rounds) == [[0, 1]]
    assert rounds.missing == [0]
    seal(rounds, 0, True)
    assert closed(rounds) == [[0, 1]]


def test_who_does_not_come_after_all_holds_nothing_up() -> None:
    rounds = Rounds([0])
    rounds.hold(1)
    seal(rounds, 0, True, True)
    closed(rounds)
    assert rounds.lose(1) is None
    assert closed(rounds) == [[0]]
    rounds.hold(2)
    rounds.settle(2, NOTHING_SEALED)
    seal(rounds, 0, True)
    assert closed(rounds) == [[0]]


def test_nothing_is_kept_of_those_who_are_gone() -> None:
    rounds = Rounds([0])
    for rank in range(1, 200):
        version, _ = rounds.hold(rank)
        rounds.admit(rank, version + 1)
        seal(rounds, 0, True)
        closed(rounds)
        seal(rounds, rank, True, final=rank % 2 == 0)
        seal(rounds, 0, True)
        closed(rounds)
        if rank % 2:
            rounds.lose(rank)
        rounds.settle(rank, NOTHING_SEALED)
    closed(rounds)
    sizes = [
        len(getattr(rounds, name)) for name in Rounds(list(range(3))).__dict__ if name != "version"
    ]
    assert max(sizes) <= 1
