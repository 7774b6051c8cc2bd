"""Bad histories, written by hand: each breaks one promise, and every one must be rejected.

Beside each stands the good history that it was made from, where the difference is small.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiops.testing.history import check
from aiops.testing.history.run import Run
from history_builder import BSP, Author, run_of

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


# --- asynchronous tables: lost, doubled, reordered, stale ---


@good
def two_pushes_and_a_pull() -> Run:
    one, two = Author(0), Author(1)
    one.push(1, 4, [1, 0, 0, 0], 1)
    two.push(2, 5, [0, 1, 0, 0], 2)
    one.pull(6, 7, 2, [1, 1, 0, 0])
    return run_of(one, two)


@bad("exactly-once")
def a_push_is_lost_and_the_version_shows_it() -> Run:
    one, two = Author(0, values=False), Author(1, values=False)
    one.push(1, 4, [1, 0, 0, 0], 1)
    two.push(2, 5, [0, 1, 0, 0], 1)
    return run_of(one, two)


@bad("exactly-once")
def a_push_that_was_resent_is_lost() -> Run:
    """The answer to a repeat has a later version, so it alone proves nothing."""
    one, two = Author(0, values=False), Author(1, values=False)
    one.push(1, 4, [1, 0, 0, 0], 1, resent=True)
    two.push(2, 5, [0, 1, 0, 0], 1)
    one.pull(6, 7, 1, [])
    return run_of(one, two)


@bad("exactly-once")
def a_push_is_lost_and_only_the_values_show_it() -> Run:
    one, two = Author(0), Author(1)
    one.push(1, 4, [1, 0, 0, 0], 1)
    two.push(2, 5, [0, 1, 0, 0], 2)
    one.pull(6, 7, 2, [1, 0, 0, 0])
    return run_of(one, two)


@bad("exactly-once")
def a_push_is_applied_twice_and_the_version_shows_it() -> Run:
    one = Author(0, values=False)
    one.push(1, 2, [1, 0, 0, 0], 1)
    one.pull(3, 4, 2, [])
    return run_of(one)


@bad("exactly-once")
def a_push_is_applied_twice_and_only_the_values_show_it() -> Run:
    one = Author(0)
    one.push(1, 2, [1, 0, 0, 0], 1)
    one.pull(3, 4, 1, [2, 0, 0, 0])
    return run_of(one)


@bad("exactly-once")
def an_unknown_push_hides_a_doubled_one_in_the_versions_but_not_in_the_values() -> Run:
    one, two = Author(0), Author(1)
    one.push(1, 2, [1, 0, 0, 0], 1)
    two.push(1, 3, [0, 1, 0, 0], outcome="unknown")
    one.pull(4, 5, 2, [2, 0, 0, 0])
    return run_of(one, two)


@bad("exactly-once")
def an_unknown_push_is_applied_twice() -> Run:
    one, two = Author(0), Author(1)
    two.push(1, 3, [0, 1, 0, 0], outcome="unknown")
    one.pull(4, 5, 2, [0, 2, 0, 0])
    return run_of(one, two)


@bad("exactly-once")
def a_refused_push_is_applied() -> Run:
    one = Author(0)
    one.push(1, 2, [1, 0, 0, 0], outcome="fail")
    one.pull(3, 4, 0, [1, 0, 0, 0])
    return run_of(one)


@bad("exactly-once")
def an_unknown_push_is_seen_and_then_not() -> Run:
    one, two = Author(0), Author(1)
    two.push(1, None, [0, 1, 0, 0], outcome="unknown")
    one.push(1, 2, [1, 0, 0, 0], 2)
    one.pull(4, 5, 2, [1, 1, 0, 0])
    one.push(6, 7, [0, 0, 1, 0], 3)
    one.pull(8, 9, 3, [1, 0, 1, 0])
    return run_of(one, two)


@good
def an_unknown_push_takes_effect_much_later() -> Run:
    one, two = Author(0), Author(1)
    two.push(1, 2, [0, 1, 0, 0], outcome="unknown")
    one.pull(4, 5, 0, [0, 0, 0, 0])
    one.push(6, 7, [1, 0, 0, 0], 1)
    one.pull(8, 9, 2, [1, 1, 0, 0])
    return run_of(one, two)


@bad("exactly-once")
def something_is_there_that_nobody_has_pushed() -> Run:
    one = Author(0)
    one.pull(1, 2, 0, [0, 0, 0, 7])
    return run_of(one)


@bad("exactly-once")
def a_push_is_seen_before_it_began() -> Run:
    one, two = Author(0), Author(1)
    one.pull(1, 2, 1, [1, 0, 0, 0])
    two.push(3, 4, [1, 0, 0, 0], 1)
    return run_of(one, two)


@bad("exactly-once")
def two_mutations_have_one_number() -> Run:
    one = Author(0)
    one.push(1, 2, [1, 0, 0, 0], 1)
    one._seq.clear()
    one.push(3, 4, [0, 1, 0, 0], 2)
    return run_of(one)


@bad("order")
def pushes_are_reordered() -> Run:
    """The second began after the first was acknowledged, and yet comes before it."""
    one, two = Author(0, values=False), Author(1, values=False)
    one.push(1, 2, [1, 0, 0, 0], 2)
    two.push(3, 4, [0, 1, 0, 0], 1)
    return run_of(one, two)


@bad("order")
def reads_of_one_worker_go_back() -> Run:
    one, two = Author(0, values=False), Author(1, values=False)
    two.push(1, 9, [1, 0, 0, 0], 1)
    one.pull(2, 3, 1, [1])
    one.pull(4, 5, 0, [])
    return run_of(one, two)


@bad("order")
def a_pull_is_stale() -> Run:
    """Acknowledged as applied means: seen by every later pull of anybody."""
    one, two = Author(0, values=False), Author(1, values=False)
    one.push(1, 2, [1, 0, 0, 0], 1)
    two.pull(3, 4, 0, [])
    return run_of(one, two)


@bad("own-writes")
def a_worker_does_not_see_its_own_push() -> Run:
    one = Author(0, values=False)
    one.push(1, 2, [1, 0, 0, 0], 1)
    one.pull(3, 4, 0, [])
    return run_of(one)


@good
def a_pull_that_began_before_the_acknowledgement_may_miss_the_push() -> Run:
    one, two = Author(0, values=False), Author(1, values=False)
    one.push(1, 4, [1, 0, 0, 0], 1)
    two.pull(3, 9, 0, [])
    return run_of(one, two)


@good
def clocks_of_two_machines_are_not_compared() -> Run:
    one, two = Author(0), Author(1, host="there")
    one.push(1, 2, [1, 0, 0, 0], 1)
    two.pull(3, 4, 0, [0, 0, 0, 0])
    return run_of(one, two)


@bad("one-value")
def one_version_has_two_values() -> Run:
    one, two = Author(0, values=False), Author(1, values=False)
    one.push(1, 9, [1, 0, 0, 0], 1)
    one.pull(2, 3, 1, [1, 0, 0, 0])
    two.pull(2, 3, 1, [9, 0, 0, 0])
    return run_of(one, two)


# --- rounds ---


def round_of(
    one: Author, two: Author, at: int, clock: int, *, seen: list[float] | None = None
) -> list[float]:
    """Both pull, push their element of the clock, and seal; return the values that follow."""
    before = seen or [0.0] * 4
    for author, element in ((one, 0), (two, 1)):
        author.pull(at, at + 1, clock, before, table=BSP, clock=clock)
        push = [0.0] * 4
        push[element] = 1.0
        author.push(at + 2, at + 3, push, clock, table=BSP, clock=clock)
        author.seal(at + 4, at + 6, clock)
        author.tick(at + 4, at + 6, clock)
    return [before[0] + 1, before[1] + 1, *before[2:]]


@good
def three_rounds() -> Run:
    one, two = Author(0), Author(1)
    values = round_of(one, two, 10, 0)
    values = round_of(one, two, 20, 1, seen=values)
    values = round_of(one, two, 30, 2, seen=values)
    two.pull(40, 41, 3, values, table=BSP, clock=3)
    return run_of(one, two)


@good
def a_mean_is_rounded_once() -> Run:
    authors = [Author(rank, reduce="mean") for rank in range(3)]
    for author in authors:
        author.push(1, 2, [1.0, float(author.rank), 0, 0], 0, table=BSP)
        author.seal(3, 4, 0)
    authors[0].pull(5, 6, 1, [1, 1, 0, 0], table=BSP, clock=1)
    return run_of(*authors)


@bad("rounds")
def a_pull_gets_another_version_than_its_clock() -> Run:
    one, two = Author(0, values=False), Author(1, values=False)
    round_of(one, two, 10, 0)
    one.pull(20, 21, 0, [0.0] * 4, table=BSP, clock=1)
    return run_of(one, two)


@bad("rounds")
def a_pull_gets_a_version_from_the_future() -> Run:
    one, two = Author(0, values=False), Author(1, values=False)
    one.pull(1, 20, 1, [1.0] * 4, table=BSP)
    two.seal(2, 3, 0, contributed=False)
    one.seal(21, 22, 0, contributed=False)
    return run_of(one, two)


@bad("rounds")
def a_round_closes_before_all_have_sealed_it() -> Run:
    one, two = Author(0, values=False), Author(1, values=False)
    one.push(1, 2, [1, 0, 0, 0], 0, table=BSP)
    one.seal(3, 4, 0)
    one.pull(5, 6, 1, [1, 0, 0, 0], table=BSP, clock=1)
    two.push(7, 8, [0, 1, 0, 0], 1, table=BSP, resent=True)
    two.seal(9, 10, 0)
    return run_of(one, two)


@bad("rounds")
def a_push_is_taken_after_its_round_has_closed() -> Run:
    one = Author(0, values=False)
    one.push(1, 2, [1, 0, 0, 0], 1, table=BSP)
    return run_of(one)


@bad("rounds")
def a_worker_is_left_out_of_the_divisor() -> Run:
    one = Author(0, values=False)
    one.push(1, 2, [1, 0, 0, 0], 0, table=BSP)
    one.seal(3, 4, 0, contributed=False)
    return run_of(one)


@bad("exactly-once")
def a_contribution_is_lost() -> Run:
    one, two = Author(0), Author(1)
    round_of(one, two, 10, 0)
    one.pull(20, 21, 1, [1, 0, 0, 0], table=BSP, clock=1)
    return run_of(one, two)


@bad("exactly-once")
def a_contribution_is_doubled() -> Run:
    one, two = Author(0), Author(1)
    round_of(one, two, 10, 0)
    one.pull(20, 21, 1, [1, 2, 0, 0], table=BSP, clock=1)
    return run_of(one, two)


@bad("exactly-once")
def a_doubled_contribution_hides_in_a_mean() -> Run:
    """Twice the same in sum and divisor is nothing to see, unless the others differ."""
    one, two = Author(0, reduce="mean"), Author(1, reduce="mean")
    round_of(one, two, 10, 0)
    one.pull(20, 21, 1, [1 / 3, 2 / 3, 0, 0], table=BSP, clock=1)
    return run_of(one, two)


@bad("one-value")
def a_closed_round_is_changed() -> Run:
    one, two = Author(0, values=False), Author(1, values=False)
    values = round_of(one, two, 10, 0)
    one.pull(20, 21, 1, values, table=BSP, clock=1)
    two.pull(22, 23, 1, [1, 5, 0, 0], table=BSP, clock=1)
    return run_of(one, two)


@bad("exactly-once")
def a_late_push_slips_into_the_round_after() -> Run:
    one, two = Author(0), Author(1)
    values = round_of(one, two, 10, 0)
    for author in (one, two):
        author.seal(20, 21, 1, contributed=False)
    one.pull(25, 26, 2, [values[0] + 1, *values[1:]], table=BSP, clock=2)
    return run_of(one, two)


@bad("exactly-once")
def what_was_never_sealed_is_in_a_round() -> Run:
    """A worker that dies before its seal has given nothing."""
    one, two = Author(0), Author(1)
    two.push(1, 2, [0, 1, 0, 0], 0, table=BSP)
    two.close(3, clean=False)
    one.seal(4, 5, 0, contributed=False)
    one.pull(6, 7, 1, [0, 1, 0, 0], table=BSP, clock=1)
    return run_of(one, two)


def half(in_second: float) -> Run:
    one, two = Author(0, shards=2), Author(1, shards=2)
    for shard in (0, 1):
        two.push(1 + shard, 3, [0, 1, 0, 0], 0, table=BSP, shard=shard)
    two.seal(4, None, 0)
    one.seal(4, 5, 0, contributed=False)
    one.pull(6, 7, 1, [0, 1, 0, 0], table=BSP, clock=1)
    one.pull(6, 7, 1, [0, in_second, 0, 0], table=BSP, clock=1, shard=1)
    return run_of(one, two)


@bad("exactly-once")
def a_contribution_is_half_in() -> Run:
    return half(in_second=0)


@good
def a_contribution_of_unknown_outcome_is_in_everywhere() -> Run:
    return half(in_second=1)


@bad("clocks")
def a_clock_is_sealed_twice() -> Run:
    one = Author(0, values=False)
    one.seal(1, 2, 0, contributed=False)
    one.seal(3, 4, 0, contributed=False)
    return run_of(one)


@bad("clocks")
def a_seal_follows_the_last_one() -> Run:
    one = Author(0, values=False)
    one.seal(1, 2, 0, contributed=False, final=True)
    one.seal(3, 4, 0, contributed=False)
    return run_of(one)


@bad("clocks")
def a_push_belongs_to_another_clock() -> Run:
    one = Author(0, values=False)
    one.push(1, 2, [1, 0, 0, 0], 1, table=BSP, clock=1)
    return run_of(one)


@bad("clocks")
def a_clock_is_skipped() -> Run:
    one = Author(0)
    one.tick(1, 2, 0)
    one.tick(3, 4, 2)
    return run_of(one)


@bad("clocks")
def a_restarted_worker_begins_at_a_clock_that_it_had_completed() -> Run:
    one, again = Author(0), Author(0, incarnation=2, clock=2, at=10)
    one.tick(1, 2, 0)
    one.tick(3, 4, 1)
    again.tick(11, 12, 1)
    return run_of(one, again)


# --- barriers ---


@good
def a_barrier_is_used_twice() -> Run:
    one, two = Author(0), Author(1)
    one.barrier(1, 10, 1)
    two.barrier(9, 11, 1)
    one.barrier(12, 21, 2)
    two.barrier(20, 22, 2)
    for author in (one, two):
        author.close(30)
    return run_of(one, two)


@bad("barriers")
def a_barrier_is_left_early() -> Run:
    one, two = Author(0), Author(1)
    one.barrier(1, 5)
    two.barrier(6, 7)
    return run_of(one, two)


@bad("barriers")
def a_barrier_opens_without_a_live_member() -> Run:
    one, two = Author(0), Author(1)
    one.barrier(1, 5)
    two.pull(6, 7, 0, [0, 0, 0, 0])
    two.close(8)
    return run_of(one, two)


@bad("barriers")
def a_generation_is_left_by_who_waits_for_the_next() -> Run:
    one, two = Author(0), Author(1)
    one.barrier(1, 10, 1)
    two.barrier(2, 11, 1)
    one.barrier(12, 13, 2)
    two.barrier(14, 15, 2)
    return run_of(one, two)


@good
def a_barrier_does_not_wait_for_the_lost_or_the_finished_or_the_late() -> Run:
    one, lost, finished = Author(0), Author(1), Author(2)
    late, gone = Author(3, at=4), Author(4)
    one.barrier(1, 5)
    lost.push(1, 2, [1, 0, 0, 0], 1)
    finished.finish(2, 3)
    finished.close(9)
    late.close(9)
    gone.close(3)
    return run_of(one, lost, finished, late, gone)


@pytest.mark.parametrize(("promise", "story"), BAD, ids=[story.__name__ for _, story in BAD])
def test_a_bad_history_is_rejected(promise: str, story: Story) -> None:
    verdict = check(story())
    assert not verdict.holds
    assert promise in [violation.promise for violation in verdict.violations]
    for violation in verdict.violations:
        assert violation.operations, "somebody must be named"
        assert str(violation).startswith(violation.promise)


@pytest.mark.parametrize("story", GOOD, ids=[story.__name__ for story in GOOD])
def test_its_good_neighbour_is_accepted(story: Story) -> None:
    verdict = check(story())
    assert verdict.violations == []
