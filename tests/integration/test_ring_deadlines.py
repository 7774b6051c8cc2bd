"""When the time of a call is up, everybody hears who is late, and with what."""

from __future__ import annotations

import numpy as np
import pytest

import aiops
from aiops.errors import CollectiveAborted, CollectiveTimeout
from aiops.workers.ring import Ring
from apart import run_members

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

PIECES, CONFIRMS = "_pump_peer", "_send_confirms"


@pytest.mark.parametrize(
    ("size", "call", "mute", "what", "text"),
    [
        (2, "all_reduce", 1, PIECES, r"not all pieces of worker 1 \(worker-1\) have come"),
        (2, "broadcast", 0, PIECES, r"not all pieces have left for worker 1 \(worker-1\)"),
        # Worker 0 hears worker 2 first, and worker 1 in the second round.
        (3, "all_reduce", 1, CONFIRMS, r"s worker 1 \(worker-1\) has not confirmed it"),
    ],
)
async def test_who_has_begun_and_goes_no_further_is_named(
    size: int,
    call: str,
    mute: int,
    what: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.full(5, ring.rank, np.float32)
        await ring.barrier()
        if ring.rank == mute:
            monkeypatch.setattr(ring._group, what, lambda *_: False)
        error: type[Exception] = CollectiveTimeout if ring.rank == 0 else CollectiveAborted
        with pytest.raises(error, match=text) as caught:
            await getattr(ring, call)(array, timeout_s=60 if ring.rank else 0.2)
        assert ring.rank == 0 or "worker 0 (worker-0) gives up" in str(caught.value)
        assert (array == ring.rank).all()
        await ring.reform()
        await ring.all_reduce(array)
        assert (array == sum(range(size))).all()

    await run_members(size, member)
