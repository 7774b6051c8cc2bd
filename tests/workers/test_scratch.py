"""Working arrays: used again, exchanged where that is possible, and never one's caller's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aiops.collective.shared import Arena, mapping, supported
from aiops.collective.shared.mapping import address_of, can_exchange
from aiops.workers.scratch import Scratch

Array = NDArray[Any]
LARGE = 300_001  # so many float32 have a segment of their own
EXCHANGES = supported() and can_exchange()


def fill_and_put(scratch: Scratch, flat: Array, value: float) -> int:
    """Carry a result into effect; returns where it came about."""
    work = scratch.take(flat)
    assert not np.shares_memory(work, flat)
    assert (work.size, work.dtype) == (flat.size, flat.dtype)
    work[:] = value
    scratch.put(work, flat)
    assert (flat == value).all()
    scratch.give(work)
    return address_of(work)


@pytest.mark.parametrize("count", [0, 7, LARGE])
@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.skipif(
    not supported(), reason="shared memory needs Linux"))])  # fmt: skip
def test_a_result_takes_effect_and_its_memory_is_used_again(count: int, shared: bool) -> None:
    arena = Arena()
    scratch = Scratch(arena)
    flat = arena.empty(count) if shared else np.empty(count, np.float32)
    view, at = flat[:5], address_of(flat)
    places = {fill_and_put(scratch, flat, float(value)) for value in range(4)}
    assert len(places) == 1
    assert address_of(flat) == at
    assert (view == 3.0).all()
    exchanged = shared and count == LARGE and EXCHANGES
    assert len(arena.segments) == (0 if not shared else 2 if exchanged else 1)


@pytest.mark.skipif(not EXCHANGES, reason="mappings cannot change places here")
def test_memory_that_shows_the_callers_pages_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exchange = mapping.exchange

    def one_way(one: int, two: int, size: int) -> bool:
        exchange(one, two, size)
        return False

    arena = Arena()
    scratch = Scratch(arena)
    flat = arena.empty(LARGE)
    monkeypatch.setattr("aiops.collective.shared.mapping.exchange", one_way)
    fill_and_put(scratch, flat, 1.0)
    monkeypatch.undo()
    assert not scratch._spares
    fill_and_put(scratch, flat, 2.0)
    assert len(scratch._spares) == 1


@pytest.mark.skipif(not EXCHANGES, reason="mappings cannot change places here")
def test_without_mappings_the_result_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> bool:
        raise OSError(12, "Cannot allocate memory")

    arena = Arena()
    monkeypatch.setattr("aiops.collective.shared.mapping.exchange", none_left)
    fill_and_put(Scratch(arena), arena.empty(LARGE), 1.0)


def test_very_large_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiops.workers.scratch.SCRATCH_BYTES_MAX", 100)
    scratch = Scratch(Arena())
    fill_and_put(scratch, np.empty(7, np.float32), 1.0)
    fill_and_put(scratch, np.empty(LARGE, np.float32), 2.0)
    assert [memory.nbytes for memory in scratch._free] == [28]
