"""What is kept of members that are ahead: all that they may send, and no more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aiops.collective.plan import make_plan
from aiops.runtime.ring_call import RingCall, RingWork
from aiops.runtime.ring_early import EarlyFrames, StrangerFrames
from aiops.runtime.ring_peer import CONNECTIONS_MAX, EarlyMemory
from aiops_protocol.frames import RingBegin, RingConfirm, RingPiece
from aiops_protocol.limits import EARLY_BYTES_MAX, OPERATIONS_AHEAD_MAX, TEXT_BYTES_MAX, WORKERS_MAX

OF: Any = {"ring": 1, "generation": 1}
ENOUGH = 100_000
"""Frames that nobody may keep."""


def member() -> Any:
    return SimpleNamespace(index=1, early=EarlyMemory())


def beside(operation: int) -> list[RingBegin | RingConfirm]:
    """Return all that a member sends for an operation besides pieces, as long as it can be."""
    text = bytes(TEXT_BYTES_MAX)
    begins = [RingBegin(operation=operation, payload=text, **OF) for _ in range(CONNECTIONS_MAX)]
    rounds = range((WORKERS_MAX - 1).bit_length())
    return [*begins, *(RingConfirm(operation=operation, message=k, **OF) for k in rounds)]


async def pieces(sizes: list[int]) -> list[RingPiece]:
    """Return the pieces that a member sends before it hears from another one."""
    nothing = np.empty(0, np.float32)
    work = RingWork("x", "x", make_plan(()), nothing, nothing, np.add, lambda: None)
    call = RingCall(work, 0, 2, 1.0)
    sent = []
    for size in sizes:
        if call.may_send(1, size):
            call.count_early(1, size)
            sent.append(RingPiece(operation=1, count=1, payload=bytes(size), **OF))
    return sent


@given(st.lists(st.sampled_from([1, 4, 1000, 1025, 65536, 400_000]), min_size=1, max_size=3000))
def test_all_that_a_member_may_send_is_kept(sizes: list[int]) -> None:
    sent = asyncio.run(pieces(sizes))
    assert sent[0].payload == bytes(sizes[0])
    early, stranger, peer = EarlyFrames(), StrangerFrames(), member()
    assert all(early.keep(peer, frame) for frame in [*beside(1), *sent])
    assert len(early.pop(1)) == len(sent) + len(beside(1))
    for operation in range(1, 1 + OPERATIONS_AHEAD_MAX):
        assert all(stranger.keep(frame) for frame in [*beside(operation), *sent])


def test_members_that_hear_nothing_send_little() -> None:
    for size in (1, 100_000, EARLY_BYTES_MAX):
        sent = asyncio.run(pieces([size] * 5000))
        assert 0 < sum(len(piece.payload) for piece in sent) <= EARLY_BYTES_MAX
        assert len(sent) <= 1024


def test_frames_without_bytes_are_counted_too() -> None:
    early, stranger, peer = EarlyFrames(), StrangerFrames(), member()
    frame = RingConfirm(operation=1, **OF)
    assert not all(early.keep(peer, frame) for _ in range(ENOUGH))
    assert not all(stranger.keep(frame) for _ in range(ENOUGH))
    assert early.keep(peer, RingConfirm(operation=2, **OF))
    assert len(early.of(1)) < 2000
    assert len(stranger.frames) < 2000 * OPERATIONS_AHEAD_MAX
