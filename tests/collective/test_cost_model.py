"""The cost model: it finds the costs that times were made of, and chooses what is fastest."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.collective import patterns, schedule
from aiops.collective.cost_model import (
    HOST_MEMORY,
    Link,
    Sample,
    choose,
    fit,
    predict,
    predict_by_hosts,
    predict_in_process,
)
from aiops.collective.counts import all_reduce_counts
from aiops.collective.plan import SendPiece, make_plan, piece_elements
from aiops.collective.schedule import Algorithm
from aiops.collective.steps import Combine, Schedule, Span

ALGORITHMS: tuple[Algorithm, ...] = ("ring", "recursive-doubling", "halving-doubling", "tree")
SLOW = Link(1e-3, 8e-8, 1e-10)  # 1 ms, 100 Mbit/s


@given(
    st.floats(1e-7, 1e-2), st.floats(1e-11, 1e-6), st.one_of(st.just(0.0), st.floats(1e-11, 1e-6))
)
def test_fit_finds_the_costs(alpha: float, beta: float, gamma: float) -> None:
    samples = [
        Sample(
            messages,
            size,
            size * combined,
            messages * (alpha + beta * size) + gamma * size * combined,
        )
        for messages in (1, 2)
        for size in (0, 1000, 100_000, 10_000_000)
        for combined in (0, 1)
    ]
    link = fit(samples)
    assert link.alpha_s == pytest.approx(alpha, rel=1e-3)
    assert [predict("broadcast", "tree", 2, n, link) for n in (0, 10_000_000)] == pytest.approx(
        [alpha, alpha + 1e7 * beta], rel=1e-3
    )


def test_no_cost_is_below_zero() -> None:
    """Noise may make longer messages look cheaper."""
    link = fit([Sample(1, 10, 0, 2e-5), Sample(1, 1000, 0, 1e-5), Sample(1, 2000, 0, 1.2e-5)])
    assert link.beta_s_per_byte == 0.0
    assert link.alpha_s > 0


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [Sample(1, 10, 0, 1e-5), Sample(1, 10, 0, 1e-5)],  # one size
        [Sample(1, 10, 0, 1e-5), Sample(1, 20, 0, 0.0)],
    ],
)
def test_samples_that_tell_nothing_are_refused(samples: list[Sample]) -> None:
    with pytest.raises(ValueError, match="samples"):
        fit(samples)


@given(st.integers(2, 64), st.sampled_from(ALGORITHMS))
def test_the_prediction_follows_the_counts(world_size: int, algorithm: Algorithm) -> None:
    """With only messages, or only bytes, to pay for it says what is counted on the longest way."""
    count = 1 << 20
    counts = [all_reduce_counts(algorithm, r, world_size, count) for r in range(world_size)]
    messages = predict("all_reduce", algorithm, world_size, 0, Link(1.0, 0.0, 0.0))
    assert messages == counts[0].rounds
    sent = predict("all_reduce", algorithm, world_size, count, Link(0.0, 1.0, 0.0))
    busiest = max(c.elements for c in counts)
    # Whoever folds or stands in a tree also waits for what others send one after the other.
    assert busiest - world_size <= sent <= 2 * busiest + 2 * count


@given(st.integers(1, 16), st.sampled_from((*ALGORITHMS, "chain")))
def test_in_one_process_every_message_is_paid_for(world_size: int, algorithm: Algorithm) -> None:
    counts = [all_reduce_counts(algorithm, r, world_size, 1 << 20) for r in range(world_size)]
    for kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
        assert predict_in_process(kind, algorithm, world_size, 8, Link(1.0, 1.0, 1.0)) >= 0
    messages = predict_in_process("all_reduce", algorithm, world_size, 0, Link(1.0, 0.0, 0.0))
    assert messages == sum(c.messages for c in counts)
    if world_size & (world_size - 1) == 0:
        sent = predict_in_process("all_reduce", algorithm, world_size, 1 << 20, Link(0, 1.0, 0))
        assert sent == sum(c.elements for c in counts)


@pytest.mark.parametrize(("size_bytes", "best"), [(256, "recursive-doubling"), (16 << 20, "ring")])
def test_short_arrays_want_few_messages_and_long_ones_few_bytes(
    size_bytes: int, best: Algorithm
) -> None:
    choice = choose("all_reduce", 4, size_bytes, SLOW)
    bytes_alike = ("ring", "halving-doubling")
    assert choice.algorithm == best or (best == "ring" and choice.algorithm in bytes_alike)
    assert choice.predicted_s[choice.algorithm] == min(choice.predicted_s.values())
    assert f"over 4 ranks: {choice.algorithm}" in str(choice)


def test_the_choice_depends_on_the_link() -> None:
    """For each size there is a link for which few messages win, and one for which few bytes do."""
    size = 100_000
    quick = choose("all_reduce", 8, size, Link(1e-9, 1e-9, 0.0)).algorithm
    wide = choose("all_reduce", 8, size, Link(1e-2, 1e-12, 0.0)).algorithm
    assert quick in ("ring", "halving-doubling")
    assert wide == "recursive-doubling"
    assert choose("broadcast", 8, 10, SLOW).algorithm == "tree"
    assert choose("broadcast", 8, 100_000_000, SLOW).algorithm == "chain"
    assert np.isfinite(list(choose("reduce_scatter", 5, 1000, SLOW).predicted_s.values())).all()
    assert choose("all_gather", 1, 1000, SLOW).predicted_s["ring"] == 0


def test_by_hosts_fewer_bytes_go_over_links() -> None:
    """That is worth two meetings on each host for long arrays, and not for short ones."""
    hosts = ((0, 1, 2), (3, 4, 5))
    link = Link(1e-4, 1e-8, 1e-10)
    assert "hierarchical" not in choose("all_reduce", 6, 1 << 20, link).predicted_s
    assert choose("all_reduce", 6, 1 << 20, link, hosts=hosts).algorithm == "hierarchical"
    assert choose("all_reduce", 6, 64, Link(1e-5, 1e-8, 0), hosts=hosts).algorithm != "hierarchical"
    for kind in ("broadcast", "reduce_scatter", "all_gather"):
        assert "hierarchical" not in choose(kind, 6, 1 << 20, link, hosts=hosts).predicted_s
    # Of bytes on links alone each host sends 2n(h-1)/h, whatever its number of ranks.
    bytes_only = Link(0.0, 1.0, 0.0)
    three = ((0,), (1, 2), (3, 4, 5))
    assert predict_by_hosts(three, 9_000_000, bytes_only) == pytest.approx(12_000_000)
    # What the ranks combine is shared among as many as the smallest host has.
    combined = Link(0.0, 0.0, 1.0)
    assert predict_by_hosts(hosts, 6_000_000, combined) == pytest.approx(1_000_000, rel=1e-6)


# --- an emulated link: every piece of a schedule in virtual time ---

LATENCY_S, BYTES_PER_S, COMBINE_S = 1e-3, 100e6 / 8, 1e-9


class _Emulated:
    """One member: what it may send, and when its link and its processor are free again."""

    def __init__(self, schedule: Schedule, item_bytes: int) -> None:
        self.plan = make_plan(schedule)
        self.item_bytes = item_bytes
        self.sends = list(self.plan.send_waits)
        self.receives = list(self.plan.receive_waits)
        self.held: set[int] = set()
        self.link_free = self.free = 0.0
        self.ready = deque(n for n, waits in enumerate(self.sends) if not waits)

    def send(self, now: float) -> list[tuple[float, int, SendPiece]]:
        """Put on the link whatever is ready; return when it arrives, and where."""
        arrivals = []
        while self.ready:
            number = self.ready.popleft()
            piece = self.plan.sends[number]
            size = (piece.end - piece.begin) * self.item_bytes
            self.link_free = max(now, self.link_free) + size / BYTES_PER_S
            arrivals.append((self.link_free + LATENCY_S, piece.peer, piece))
            self._release(self.plan.after_send[number], now)
        return arrivals

    def receive(self, sender: int, piece: SendPiece, now: float) -> None:
        first, low, high = self.plan.messages[sender, piece.message]
        place = (piece.begin - low) // max(1, min(piece_elements(high - low), high - low))
        self.held.add(first + place)
        if not self.receives[first + place]:
            self._combine(first + place, now)

    def _combine(self, number: int, now: float) -> None:
        self.held.remove(number)
        piece = self.plan.receives[number]
        combines = piece.combine is not Combine.REPLACE
        size = (piece.end - piece.begin) * self.item_bytes
        self.free = max(now, self.free) + combines * size * COMBINE_S
        sends, receives = self.plan.after_receive[number]
        for send in sends:
            self.sends[send] -= 1
            if not self.sends[send]:
                self.ready.append(send)
        self._release(receives, now)

    def _release(self, receives: Sequence[int], now: float) -> None:
        for number in receives:
            self.receives[number] -= 1
            if not self.receives[number] and number in self.held:
                self._combine(number, now)


def emulated_s(schedules: Sequence[Schedule], item_bytes: int = 4) -> float:
    """Perform schedules in pieces, as they travel, and return the seconds.

    Every member has a link of 1 ms and 100 Mbit/s, over which goes what it sends to anybody.
    """
    members = [_Emulated(one, item_bytes) for one in schedules]
    coming: list[tuple[float, int, int, SendPiece]] = []

    def send(rank: int, now: float) -> None:
        for at, peer, piece in members[rank].send(now):
            heappush(coming, (at, rank, peer, piece))

    now = 0.0
    for rank in range(len(members)):
        send(rank, 0.0)
    while coming:
        now, sender, rank, piece = heappop(coming)
        member = members[rank]
        member.receive(sender, piece, now)
        send(rank, max(now, member.free))
    assert all(not any(member.receives) and not member.held for member in members)
    return max(now, *(member.free for member in members))


def fitted_link() -> Link:
    """Measure the emulated link by single messages of several sizes, combined or not."""
    samples = []
    for count in (1, 1000, 100_000, 1_000_000):
        for combine in (Combine.REPLACE, Combine.OWN_FIRST):
            pair = (
                (patterns.send(1, Span(0, count)),),
                (patterns.receive(0, Span(0, count), combine),),
            )
            combined = 4 * count if combine is Combine.OWN_FIRST else 0
            samples.append(Sample(1, 4 * count, combined, emulated_s(pair)))
    return fit(samples)


@pytest.mark.parametrize("world_size", [4, 8])
@pytest.mark.parametrize("size_bytes", [256, 16 << 20])
def test_predictions_on_an_emulated_link(world_size: int, size_bytes: int) -> None:
    """Within 25 % of what it takes, in the right order, and the choice within 10 % of the best."""
    link = fitted_link()
    predicted, taken = {}, {}
    for algorithm in ALGORITHMS:
        predicted[algorithm] = predict("all_reduce", algorithm, world_size, size_bytes, link)
        taken[algorithm] = emulated_s(
            [
                schedule.all_reduce(algorithm, rank, world_size, size_bytes // 4)
                for rank in range(world_size)
            ]
        )
        assert predicted[algorithm] == pytest.approx(taken[algorithm], rel=0.25)
    for one in ALGORITHMS:
        for other in ALGORITHMS:
            if taken[one] < 0.99 * taken[other]:
                assert predicted[one] < predicted[other]
    chosen = choose("all_reduce", world_size, size_bytes, link).algorithm
    assert taken[chosen] <= 1.1 * min(taken.values())


def test_what_is_put_aside_and_how_often_a_host_meets_is_reckoned_with() -> None:
    """By hand: 3/4 of an array are combined, and a tenth is put aside; two meetings on a host."""
    combining = Link(0.0, 0.0, 1e-9)
    seconds = predict("all_reduce", "halving-doubling", 4, 1_000_000, combining)
    assert seconds == pytest.approx((0.75 + 0.1) * 1e-3)
    seconds = predict_by_hosts(((0, 1), (2, 3)), 0, Link(1.0, 0.0, 0.0))
    assert seconds == pytest.approx(2 + 2 * HOST_MEMORY.alpha_s)
