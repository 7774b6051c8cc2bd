"""What a line decides about bytes, without sockets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.errors import ConfigError
from aiops.testing.faults import PIECE_BYTES, Faults, Line

sizes = st.lists(st.integers(1, 300), max_size=60)
seeds = st.integers(0, 2**32)


def line(seed: int = 0, **faults: object) -> Line:
    return Line(Faults(**faults), random.Random(seed))  # type: ignore[arg-type]


@given(sizes, seeds, st.integers(1, 500))
def test_one_byte_of_each_n_is_changed(pieces: list[int], seed: int, every: int) -> None:
    """Whatever the pieces: n bytes have one changed byte, and the rest at most one."""
    spoiler, stream = line(seed, corrupt_every_bytes=every), bytearray()
    counted = 0
    for size in pieces:
        piece = bytearray(size)
        counted += spoiler.spoil(piece)
        stream += piece
    changed = [at for at, value in enumerate(stream) if value]
    assert len(changed) == counted
    for window in range(len(stream) // every):
        assert sum(window * every <= at < (window + 1) * every for at in changed) == 1
    assert len(changed) <= -(-len(stream) // every)


@given(sizes, st.integers(1, 1000))
def test_every_n_bytes_there_is_a_cut_right_behind_them(pieces: list[int], every: int) -> None:
    cutter = line(cut_every_bytes=every)
    passed = 0
    for size in pieces:
        cut = cutter.cut(size)
        if cut is None:
            passed += size
            assert passed < every
        else:
            assert cut.exact
            assert cut.reset
            assert passed + cut.after == every
            passed = 0


@given(sizes, st.integers(0, 3000))
def test_a_cut_after_n_bytes_happens_once_and_exactly_there(pieces: list[int], count: int) -> None:
    cutter = line()
    cutter.cut_after(count, reset=False)
    passed, cuts = 0, []
    for size in pieces:
        cut = cutter.cut(size)
        if cut is not None:
            assert not cut.reset
            cuts.append(passed + cut.after)
        passed += size
    assert cuts == ([count] if pieces and count <= sum(pieces) else [])


@given(seeds)
def test_a_probability_of_one_cuts_each_piece_somewhere_within(seed: int) -> None:
    cutter = line(seed, cut_probability=1.0)
    for size in (1, 10, PIECE_BYTES):
        cut = cutter.cut(size)
        assert cut is not None
        assert 0 <= cut.after <= size
        assert not cut.exact


@given(sizes, seeds, st.floats(0, 1), st.floats(0, 1))
def test_a_delay_lies_between_its_bounds(
    pieces: list[int], seed: int, delay_s: float, jitter_s: float
) -> None:
    slow = line(seed, delay_s=delay_s, jitter_s=jitter_s)
    for now, size in enumerate(pieces):
        assert now + delay_s <= slow.due(size, now) <= now + delay_s + jitter_s + 1e-9


@given(sizes, st.integers(10, 10**6))
def test_a_rate_is_never_exceeded(pieces: list[int], rate: int) -> None:
    """What is sent at once arrives one after the other; an idle link saves nothing up."""
    narrow = line(rate_bytes_per_s=rate)
    total = 0
    for size in pieces:
        total += size
        assert narrow.due(size, 100.0) == pytest.approx(100.0 + total / rate)
    later = 200.0 + total / rate
    assert narrow.due(rate, later) == pytest.approx(later + 1.0)


def test_equal_seeds_decide_equally() -> None:
    def decisions(seed: int) -> list[object]:
        subject = line(seed, jitter_s=1.0, cut_probability=0.3, corrupt_every_bytes=7)
        found: list[object] = []
        for _ in range(50):
            piece = bytearray(20)
            found += [subject.spoil(piece), bytes(piece), subject.due(20, 0.0), subject.cut(20)]
        return found

    assert decisions(7) == decisions(7)
    assert decisions(7) != decisions(8)


def test_a_slow_link_takes_small_pieces() -> None:
    """Or a link of 1 KB/s would deliver 64 KB once a minute."""
    assert line().piece_bytes == PIECE_BYTES
    assert line(rate_bytes_per_s=1000).piece_bytes == 50
    assert line(rate_bytes_per_s=1).piece_bytes == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay_s": -1},
        {"jitter_s": float("nan")},
        {"delay_s": float("inf")},
        {"cut_probability": 1.5},
        {"cut_every_bytes": 0},
        {"corrupt_every_bytes": -3},
        {"rate_bytes_per_s": 0},
    ],
)
def test_settings_without_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Faults(**wrong)  # type: ignore[arg-type]
