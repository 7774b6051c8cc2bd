"""Operations carried out piece by piece, in any order of events: the same right bits on all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.collective import schedule
from aiops.collective.operation import Confirmation, Operation, UnexpectedPiece
from aiops.collective.plan import make_plan
from aiops.collective.steps import Combine, Schedule, Step, Transfer
from aiops_protocol.checksum import crc32c

SINGLE = ("ring", "recursive-doubling", "halving-doubling", "tree", "chain")
REDUCE = {"sum": np.add, "max": np.maximum}


def carry_out(
    schedules: Sequence[Schedule],
    inputs: Sequence[Any],
    reduce: np.ufunc,
    piece_elements: int,
    chance: random.Random,
) -> list[Any]:
    """Let all ranks work, with the next event drawn each time; what is lent is read when it leaves.

    A message in flight keeps a view of lent memory until it is delivered: if anything changed
    that memory before, the result would be wrong.
    """
    works = [np.full_like(values, 77.0) for values in inputs]
    plans = [make_plan(steps, piece_elements) for steps in schedules]
    members = [
        Operation(plan, values, work, reduce)
        for plan, values, work in zip(plans, inputs, works, strict=True)
    ]
    wires: dict[tuple[int, int], list[Any]] = {}
    while not all(member.finished for member in members):
        moves: list[tuple[str, int, int]] = [
            ("send", rank, peer)
            for rank, member in enumerate(members)
            for peer in plans[rank].peers
            if member.next_send(peer)
        ]
        moves += [("receive", *ends) for ends, queue in wires.items() if queue]
        move, one, other = chance.choice(moves)
        if move == "send":
            found = members[one].next_send(other)
            assert found is not None
            number, piece = found
            payload = members[one].payload(piece)
            lent = payload if piece.borrowed else bytes(payload)
            assert members[one].checksum(number) in (None, crc32c(lent))
            wires.setdefault((one, other), []).append((piece, members[one].words(piece), lent))
            members[one].sent(number)
        else:
            piece, (begin, count), lent = wires[one, other].pop(0)
            place = None
            if chance.random() < 0.6:
                place = members[other].destination(one, piece.message, begin, count)
            if place is not None:
                place[:] = lent
            payload = lent if place is None else place
            known = (lambda payload=payload: crc32c(payload)) if chance.random() < 0.7 else None
            where = (one, piece.message, begin, count)
            members[other].receive(*where, payload, checksum=known)
    for values, work, plan in zip(inputs, works, plans, strict=True):
        written = np.zeros(values.size, bool)
        for span in plan.written:
            written[span.begin : span.end] = True
        work[~written] = values[~written]
    return works


def some_inputs(size: int, count: int, seed: int, dtype: Any = np.float32) -> list[Any]:
    made = np.random.default_rng(seed)
    return [made.normal(size=count).astype(dtype) for _ in range(size)]


sizes = st.integers(1, 8)
counts = st.sampled_from([0, 1, 2, 5, 7, 64, 101])
pieces = st.sampled_from([1, 3, 16, 1000])
seeds = st.integers(0, 2**32 - 1)


@given(sizes, counts, pieces, st.sampled_from(SINGLE), st.sampled_from(["sum", "max"]), seeds)
def test_all_reduce_is_right_and_the_same_bits_on_all_ranks(
    size: int, count: int, piece: int, algorithm: Any, op: str, seed: int
) -> None:
    inputs = some_inputs(size, count, seed)
    kept = [values.copy() for values in inputs]
    schedules = [schedule.all_reduce(algorithm, rank, size, count) for rank in range(size)]
    results = carry_out(schedules, inputs, REDUCE[op], piece, random.Random(seed))
    assert len({result.tobytes() for result in results}) == 1
    exact = np.add.reduce(np.array(kept, np.float64)) if op == "sum" else np.max(kept, axis=0)
    bound = size * np.finfo(np.float32).eps * np.abs(np.array(kept)).sum(axis=0)
    assert (np.abs(results[0] - exact) <= bound).all()
    assert all((a == b).all() for a, b in zip(inputs, kept, strict=True)), "inputs are only read"


@given(st.integers(2, 4), st.integers(1, 3), counts, pieces, seeds)
def test_hierarchical_all_reduce(groups: int, each: int, count: int, piece: int, seed: int) -> None:
    size = groups * each
    hosts = tuple(tuple(range(each * g, each * (g + 1))) for g in range(groups))
    inputs = some_inputs(size, count, seed)
    schedules = [
        schedule.all_reduce("hierarchical", rank, size, count, hosts) for rank in range(size)
    ]
    results = carry_out(schedules, inputs, np.add, piece, random.Random(seed))
    assert len({result.tobytes() for result in results}) == 1
    np.testing.assert_allclose(results[0], np.sum(inputs, axis=0), rtol=1e-4, atol=1e-5)


@given(sizes, counts, pieces, seeds)
def test_a_chain_adds_in_the_order_of_the_ranks(
    size: int, count: int, piece: int, seed: int
) -> None:
    inputs = some_inputs(size, count, seed)
    schedules = [schedule.all_reduce("chain", rank, size, count) for rank in range(size)]
    results = carry_out(schedules, inputs, np.add, piece, random.Random(seed))
    total = inputs[0].copy()
    for values in inputs[1:]:
        total += values
    assert results[0].tobytes() == total.tobytes()


@given(sizes, counts, pieces, st.sampled_from(["ring", "halving-doubling", "chain"]), seeds)
def test_reduce_scatter_gives_each_rank_its_chunk(
    size: int, count: int, piece: int, algorithm: Any, seed: int
) -> None:
    inputs = some_inputs(size, count, seed, np.float64)
    schedules = [schedule.reduce_scatter(algorithm, rank, size, count) for rank in range(size)]
    results = carry_out(schedules, inputs, np.add, piece, random.Random(seed))
    exact = np.sum(inputs, axis=0)
    for rank, result in enumerate(results):
        low, high = count * rank // size, count * (rank + 1) // size
        np.testing.assert_allclose(result[low:high], exact[low:high])


@given(sizes, counts, pieces, st.sampled_from(["ring", "halving-doubling"]), seeds)
def test_all_gather_gives_everybody_everything(
    size: int, count: int, piece: int, algorithm: Any, seed: int
) -> None:
    inputs = some_inputs(size, count, seed)
    whole = inputs[0].copy()
    for rank, values in enumerate(inputs):
        low, high = count * rank // size, count * (rank + 1) // size
        whole[low:high] = values[low:high]
    schedules = [schedule.all_gather(algorithm, rank, size, count) for rank in range(size)]
    results = carry_out(schedules, inputs, np.add, piece, random.Random(seed))
    assert all(result.tobytes() == whole.tobytes() for result in results)


@given(sizes, counts, pieces, st.sampled_from(["tree", "chain"]), st.integers(0, 7), seeds)
def test_broadcast_gives_everybody_what_the_root_has(
    size: int, count: int, piece: int, algorithm: Any, root: int, seed: int
) -> None:
    inputs = some_inputs(size, count, seed)
    root %= size
    schedules = [schedule.broadcast(algorithm, rank, size, count, root) for rank in range(size)]
    results = carry_out(schedules, inputs, np.add, piece, random.Random(seed))
    assert all(result.tobytes() == inputs[root].tobytes() for result in results)


@pytest.mark.parametrize("algorithm", SINGLE)
def test_nan_and_infinity_travel(algorithm: Any) -> None:
    inputs = some_inputs(5, 6, 1)
    inputs[1][0] = np.nan
    inputs[2][1], inputs[3][1] = np.inf, -np.inf
    inputs[4][2] = np.inf
    inputs[0][0] = np.float32(np.nan) * -1  # another NaN: which one survives is the same everywhere
    schedules = [schedule.all_reduce(algorithm, rank, 5, 6) for rank in range(5)]
    results = carry_out(schedules, inputs, np.add, 2, random.Random(7))
    assert len({result.tobytes() for result in results}) == 1
    assert np.isnan(results[0][:2]).all()
    assert results[0][2] == np.inf
    assert np.isfinite(results[0][3:]).all()


def test_a_piece_that_nobody_sends_is_refused() -> None:
    plan = make_plan(schedule.all_reduce("ring", 0, 3, 30), 4)
    values = np.zeros(30, np.float32)
    operation = Operation(plan, values, values.copy(), np.add)
    first = plan.receives[0]
    count = first.end - first.begin
    for peer, message, begin, size in [
        (1, 0, first.begin, count),  # from the wrong side
        (2, 9, first.begin, count),
        (2, 0, first.begin + 1, count),
        (2, 0, first.begin, count - 1),
        (2, 0, 29, 1),
    ]:
        with pytest.raises(UnexpectedPiece):
            operation.receive(peer, message, begin, size, bytes(4 * size))
    operation.receive(2, 0, first.begin, count, bytes(4 * count))
    with pytest.raises(UnexpectedPiece, match="twice"):
        operation.receive(2, 0, first.begin, count, bytes(4 * count))


# --- the confirmation ---


@given(st.integers(1, 9), st.randoms(use_true_random=False), st.integers(0, 511))
def test_nobody_is_done_before_all_have_confirmed(
    size: int, chance: random.Random, wanted: int
) -> None:
    members = [Confirmation(rank, size) for rank in range(size)]
    wires: list[tuple[int, int, int, int]] = []
    waiting = list(range(size))
    while waiting or wires:
        if waiting and (not wires or chance.random() < 0.5):
            rank = waiting.pop(chance.randrange(len(waiting)))
            told = members[rank].start(wanted >> rank & 1)
        else:
            sender, rank, number, flags = wires.pop(chance.randrange(len(wires)))
            told = members[rank].heard(sender, number, flags)
        wires += [(rank, to, number, flags) for number, to, flags in told]
        if waiting:
            assert not any(member.done for member in members)
    assert all(member.done for member in members)
    expected = 1 if wanted & ((1 << size) - 1) else 0
    assert [member.flags for member in members] == [expected] * size


def test_a_confirmation_of_the_wrong_peer_is_refused() -> None:
    member = Confirmation(0, 4)
    member.heard(3, 0, 0)
    for peer, number in ((3, 0), (3, 1), (1, 0), (2, 2), (2, 7)):
        with pytest.raises(UnexpectedPiece):
            member.heard(peer, number, 0)


def test_what_is_passed_on_has_its_checksum() -> None:
    """Sums are checked as they are made; what is only passed on has the checksum it came with."""
    plan = make_plan(schedule.all_reduce("ring", 0, 3, 300_000), 60_000)
    source, work = np.ones(300_000, np.float32), np.empty(300_000, np.float32)
    member = Operation(plan, source, work, np.add)
    asked: list[int] = []
    for number, piece in enumerate(plan.receives):
        for sent in [i for i, s in enumerate(plan.sends) if not plan.send_waits[i]]:
            if member.next_send(1) == (sent, plan.sends[sent]):
                assert member.checksum(sent) is None  # of the caller's own array
                member.sent(sent)
        payload = np.full(piece.end - piece.begin, number, np.float32).data.cast("B")
        sends, _ = plan.after_receive[number]

        def checksum(number: int = number, payload: memoryview = payload) -> int:
            asked.append(number)
            return crc32c(payload)

        begin, count = piece.begin, piece.end - piece.begin
        member.receive(2, piece.message, begin, count, payload, checksum=checksum)
        for send in sends:
            assert member.checksum(send) == crc32c(member.payload(plan.sends[send]))
            member.sent(send)
    replaced = [i for i, p in enumerate(plan.receives) if p.combine is Combine.REPLACE]
    assert asked == [i for i in replaced if plan.after_receive[i][0]]
    assert asked


def turns(combine: Combine) -> Operation:
    """Return an operation in which the piece of 2 has its turn after that of 1, and 3 gets both."""
    whole = (0, 10)
    steps = (
        Step(None, Transfer(1, *whole), combine),
        Step(None, Transfer(2, *whole), combine),
        Step(Transfer(3, *whole), None, Combine.REPLACE),
    )
    source, work = np.ones(10, np.float32), np.empty(10, np.float32)
    return Operation(make_plan(steps), source, work, np.add)


def test_a_piece_that_comes_before_its_turn_is_kept_as_it_came() -> None:
    """Its bytes lie where the next ones will."""
    operation = turns(Combine.OWN_FIRST)
    payload = bytearray(np.full(10, 3, np.float32).tobytes())
    operation.receive(2, 0, 0, 10, payload)
    payload[:] = bytes(40)
    with pytest.raises(UnexpectedPiece, match="has come twice"):
        operation.receive(2, 0, 0, 10, payload)
    operation.receive(1, 0, 0, 10, np.full(10, 5, np.float32).tobytes())
    ready = operation.next_send(3)
    assert ready is not None
    assert (np.frombuffer(operation.payload(ready[1]), np.float32) == 9).all()


def test_a_piece_that_was_kept_has_not_the_checksum_of_the_one_before() -> None:
    operation = turns(Combine.REPLACE)
    first, second = np.full(10, 5, np.float32).tobytes(), np.full(10, 3, np.float32).tobytes()
    operation.receive(2, 0, 0, 10, second)
    operation.receive(1, 0, 0, 10, first, checksum=lambda: crc32c(first))
    ready = operation.next_send(3)
    assert ready is not None
    assert operation.payload(ready[1]) == second
    assert operation.checksum(ready[0]) in (None, crc32c(second))
