"""Bad histories of SSP and quorum tables, and of weighted rounds: every one must be rejected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiops.testing.history import check
from aiops.testing.history.run import Run
from history_builder import BSP, QUORUM, SSP, Author, run_of

Story = Callable[[], Run]
BAD: list[tuple[str, Story]] = []
GOOD: list[Story] = []


def bad(promise: str) -> Callable[[Story], Story]:
    def keep(story: Story) -> Story:
        BAD.append((promise, story))
        return story

    return keep


def good(story: Story) -> Story:
    GOOD.append(story)
    return story


# --- SSP: staleness 1 ---


def pair(**more: object) -> tuple[Author, Author]:
    first, second = (Author(rank, tables=(SSP,), **more) for rank in (0, 1))  # type: ignore[arg-type]
    return first, second


def apart(clocks: int, *, leaves: int | None = None, clean: bool = True, first: int = 0) -> Run:
    """One worker goes on for so many clocks, and then reads; the other has done none of them."""
    fast, slow = pair()
    if first:
        slow = Author(1, tables=(SSP,), first=first)
    for clock in range(clocks):
        fast.seal(10 * clock + 1, 10 * clock + 2, clock, table=SSP, version=0)
    at = 10 * clocks
    if leaves is not None:
        slow.seal(leaves, leaves + 1, first, final=True, table=SSP, version=0)
    fast.pull(at + 1, at + 2, 0, [0, 0, 0, 0], table=SSP, clock=clocks)
    slow.seal(at + 5, at + 6, first, table=SSP, version=0) if leaves is None else None
    fast.close(at + 20)
    slow.close(at + 20, clean=clean)
    return run_of(fast, slow)


@good
def the_bound_is_reached() -> Run:
    return apart(1)


@bad("staleness")
def a_read_is_one_clock_too_far_ahead() -> Run:
    return apart(2)


@good
def whoever_left_is_not_waited_for() -> Run:
    return apart(5, leaves=3)


@bad("staleness")
def whoever_leaves_later_should_have_been_waited_for() -> Run:
    return apart(2, leaves=30)


@good
def whoever_was_lost_may_have_been_gone() -> Run:
    return apart(4, clean=False)


@good
def who_entered_late_had_nothing_to_seal_before() -> Run:
    return apart(3, first=2)


@bad("staleness")
def a_push_is_too_far_ahead() -> Run:
    fast, slow = pair()
    for clock in range(2):
        fast.seal(10 * clock + 1, 10 * clock + 2, clock, table=SSP, version=0)
    fast.push(31, 32, [1, 0, 0, 0], 1, table=SSP, clock=2)
    slow.seal(40, 41, 0, table=SSP, version=0)
    fast.close(50)
    slow.close(50)
    return run_of(fast, slow)


@good
def a_push_that_waited_for_the_slow_one() -> Run:
    fast, slow = pair()
    for clock in range(2):
        fast.seal(10 * clock + 1, 10 * clock + 2, clock, table=SSP, version=0)
    fast.push(31, 45, [1, 0, 0, 0], 1, table=SSP, clock=2)
    slow.seal(40, 41, 0, table=SSP, version=0)
    slow.pull(50, 51, 1, [1, 0, 0, 0], table=SSP, clock=1)
    fast.close(60)
    slow.close(60)
    return run_of(fast, slow)


@bad("order")
def a_read_goes_back() -> Run:
    one, two = pair()
    one.push(1, 2, [1, 0, 0, 0], 1, table=SSP)
    two.pull(3, 4, 1, [1, 0, 0, 0], table=SSP)
    two.pull(5, 6, 0, [0, 0, 0, 0], table=SSP)
    return run_of(one, two)


@bad("own-writes")
def an_own_push_is_not_seen() -> Run:
    one, _ = pair(values=False)
    one.push(1, 2, [1, 0, 0, 0], 1, table=SSP)
    one.pull(3, 4, 0, [], table=SSP)
    return run_of(one)


@bad("exactly-once")
def a_push_of_another_counts_twice() -> Run:
    one, two = pair()
    one.push(1, 2, [1, 0, 0, 0], 1, table=SSP)
    two.pull(3, 4, 1, [2, 0, 0, 0], table=SSP)
    return run_of(one, two)


@bad("exactly-once")
def two_pushes_make_one_version() -> Run:
    one, two = pair(values=False)
    one.push(1, 2, [1, 0, 0, 0], 1, table=SSP)
    two.push(1, 2, [1, 0, 0, 0], 1, table=SSP)
    return run_of(one, two)


@bad("clocks")
def a_clock_is_left_out() -> Run:
    one, _ = pair()
    one.seal(1, 2, 0, table=SSP, version=0)
    one.push(3, 4, [1, 0, 0, 0], 1, table=SSP, clock=2)
    return run_of(one)


# --- quorums ---


def three(**more: object) -> list[Author]:
    return [Author(rank, tables=(QUORUM,), **more) for rank in range(3)]  # type: ignore[arg-type]


def give(author: Author, at: int, clock: int, value: float, version: int | None = None) -> None:
    author.push(
        at, at + 1, [value, 0, 0, 0], clock if version is None else version, table=QUORUM,
        clock=clock,
    )  # fmt: skip
    author.seal(at + 2, at + 3, clock, table=QUORUM, version=version)


def look(author: Author, at: int, version: int, value: float, clock: int | None = None) -> None:
    clock = version if clock is None else clock
    author.pull(at, at + 1, version, [value, 0, 0, 0], table=QUORUM, clock=clock)


@good
def two_of_three_are_in_the_round() -> Run:
    one, two, three_ = three()
    give(one, 1, 0, 1)
    give(two, 1, 0, 10)
    look(one, 6, 1, 11)
    give(three_, 8, 0, 100, version=1)
    look(three_, 13, 1, 11)
    give(three_, 16, 1, 100)
    look(three_, 21, 2, 111)
    return run_of(one, two, three_)


@bad("one-value")
def a_closed_round_was_changed() -> Run:
    one, two, three_ = three()
    give(one, 1, 0, 1)
    give(two, 1, 0, 10)
    look(one, 6, 1, 11)
    give(three_, 8, 0, 100, version=1)
    look(three_, 13, 1, 111)
    return run_of(one, two, three_)


@bad("exactly-once")
def a_contribution_counts_twice_in_its_round() -> Run:
    one, two, three_ = three()
    give(one, 1, 0, 1)
    give(two, 1, 0, 10)
    look(one, 6, 1, 12)
    return run_of(one, two, three_)


@good
def a_late_one_counts_in_the_next_round() -> Run:
    one, two, three_ = three(keeps_late=True)
    give(one, 1, 0, 1)
    give(two, 1, 0, 10)
    look(one, 6, 1, 11)
    give(three_, 8, 0, 100, version=1)
    give(one, 13, 1, 1)
    give(two, 13, 1, 10)
    look(one, 20, 2, 122)
    return run_of(one, two, three_)


@bad("exactly-once")
def a_late_one_counts_though_it_was_to_be_dropped() -> Run:
    one, two, three_ = three()
    give(one, 1, 0, 1)
    give(two, 1, 0, 10)
    look(one, 6, 1, 11)
    give(three_, 8, 0, 100, version=1)
    give(one, 13, 1, 1)
    give(two, 13, 1, 10)
    look(one, 20, 2, 122)
    return run_of(one, two, three_)


@bad("exactly-once")
def a_late_one_counts_in_two_rounds() -> Run:
    one, two, three_ = three(keeps_late=True)
    give(one, 1, 0, 1)
    give(two, 1, 0, 10)
    look(one, 6, 1, 11)
    give(three_, 8, 0, 100, version=1)
    give(one, 13, 1, 1)
    look(one, 20, 2, 112)
    give(one, 23, 2, 1)
    look(one, 30, 3, 213)
    return run_of(one, two, three_)


@bad("exactly-once")
def a_contribution_is_in_one_shard_and_not_in_another() -> Run:
    one, two = (Author(rank, tables=(QUORUM,), shards=2) for rank in range(2))
    for author, value in ((one, 1.0), (two, 10.0)):
        for shard in (0, 1):
            author.push(1, 2, [value, 0, 0, 0], 0, table=QUORUM, shard=shard)
        author.seal(3, 4, 0, table=QUORUM)
    one.pull(6, 7, 1, [11, 0, 0, 0], table=QUORUM, shard=0, clock=1)
    one.pull(6, 7, 1, [1, 0, 0, 0], table=QUORUM, shard=1, clock=1)
    return run_of(one, two)


@bad("rounds")
def a_pull_gets_an_older_version_than_it_asked_for() -> Run:
    one, *_ = three()
    look(one, 1, 0, 0, clock=2)
    return run_of(one)


@bad("clocks")
def a_clock_is_sealed_again() -> Run:
    one, *_ = three()
    give(one, 1, 0, 1)
    give(one, 6, 0, 1)
    return run_of(one)


@bad("rounds")
def a_push_is_sealed_under_another_clock() -> Run:
    one, *_ = three()
    one.push(1, 2, [1, 0, 0, 0], 0, table=QUORUM, clock=0)
    one.seal(3, 4, 1, table=QUORUM)
    return run_of(one)


# --- weights ---


def weighted(value: float) -> Run:
    one, two = (Author(rank, tables=(BSP,), reduce="mean") for rank in range(2))
    for author, given, weight in ((one, 1.0, 3.0), (two, 5.0, 1.0)):
        author.push(1, 2, [given, 0, 0, 0], 0, table=BSP)
        author.seal(3, 4, 0, weight=weight)
    one.pull(6, 7, 1, [value, 0, 0, 0], table=BSP, clock=1)
    return run_of(one, two)


@good
def a_mean_by_weight() -> Run:
    return weighted(2.0)


@bad("exactly-once")
def a_mean_that_has_forgotten_the_weights() -> Run:
    return weighted(3.0)


@pytest.mark.parametrize(("promise", "story"), BAD, ids=[story.__name__ for _, story in BAD])
def test_a_bad_history_is_rejected(promise: str, story: Story) -> None:
    verdict = check(story())
    assert promise in [violation.promise for violation in verdict.violations]
    for violation in verdict.violations:
        assert violation.operations, "somebody must be named"


@pytest.mark.parametrize("story", GOOD, ids=[story.__name__ for story in GOOD])
def test_its_good_neighbour_is_accepted(story: Story) -> None:
    assert check(story()).violations == []


def test_the_staleness_is_what_others_changed_since_the_read() -> None:
    one, two = pair(values=False)
    one.pull(1, 2, 0, [], table=SSP)
    two.push(3, 4, [1, 0, 0, 0], 1, table=SSP)  # computed on nothing
    two.push(5, 6, [1, 0, 0, 0], 2, table=SSP)
    one.push(7, 8, [1, 0, 0, 0], 3, table=SSP)
    one.push(9, 10, [1, 0, 0, 0], 4, table=SSP)
    one.pull(11, 12, 4, [], table=SSP)
    one.push(13, 14, [1, 0, 0, 0], 5, table=SSP)
    one.push(15, 16, [1, 0, 0, 0], 9, table=SSP, resent=True)
    assert check(run_of(one, two)).staleness == {"ssp": {0: 1, 2: 2}}
