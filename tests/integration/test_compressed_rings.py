"""All-reduce in fewer bytes: the same bits on all members, and what does not go with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import aiops
from aiops.collective.shared import supported
from aiops.errors import CollectiveMismatch, ConfigError, UsageError
from aiops.workers.ring import Ring
from local_jobs import local_job

Member = Callable[[aiops.Worker, Ring], Awaitable[Any]]


async def run_members(size: int, member: Member, transport: str = "tcp") -> list[Any]:
    """Run a function as each member of a ring, and return the results in order of rank."""

    async def work(worker: aiops.Worker) -> Any:
        return await member(worker, await worker.ring("grads", transport=transport))

    async with local_job() as cluster:
        return await cluster.run(work, workers=size)


def values(rank: int, count: int) -> Any:
    return np.random.default_rng(rank).normal(size=count).astype(np.float32)


@pytest.mark.parametrize("compression", ["fp16", "int8", "lz4"])
async def test_compressed_pieces_give_the_same_bits_on_all(compression: str) -> None:
    sent: list[int] = []

    async def member(worker: aiops.Worker, ring: Ring) -> bytes:
        array = values(ring.rank, 300_001)
        await ring.all_reduce([array[:1000], array[1000:]], "mean", compression=compression)
        sent.append(ring.traffic["sent"])
        exact = np.mean([values(rank, 300_001) for rank in range(4)], axis=0)
        assert np.abs(array - exact).max() < 0.1
        return bytes(array.tobytes())

    results = await run_members(4, member)
    assert len(set(results)) == 1
    if compression != "lz4":
        assert max(sent) < 0.6 * 1.5 * 4 * 300_001


@pytest.mark.parametrize("compression", ["fp16", "int8"])
async def test_sums_that_a_codec_cannot_hold_are_no_error(compression: str) -> None:
    """Members may have told numpy to raise one, some of them, and the result is everywhere."""

    async def member(worker: aiops.Worker, ring: Ring) -> bytes:
        array = np.array([3e38, 6e4, 1e-45 * ring.rank], np.float32)
        await ring.all_reduce(array, compression=compression)
        return bytes(array.tobytes())

    with np.errstate(all="raise"):
        results = await run_members(4, member)
    assert len(set(results)) == 1


async def test_what_does_not_go_with_compression_is_refused() -> None:
    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.ones(3, np.float32)
        for wrong in ({"op": "max"}, {"order": "rank"}, {"algorithm": "tree"}):
            with pytest.raises(UsageError, match="fp16"):
                await ring.all_reduce(array, compression="fp16", **wrong)  # type: ignore[arg-type]
        for codec in ("agc", "dgc", "feedback(top-k:0.1)"):
            with pytest.raises(UsageError, match="holds back what it does not send"):
                await ring.all_reduce(array, compression=codec)
        with pytest.raises(ConfigError, match="all_reduce: compression is 5; pass a codec"):
            await ring.all_reduce(np.ones(3, np.float32), compression=5)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="finite"):
            await ring.all_reduce(array * np.float32(np.nan), compression="fp16")
        with pytest.raises(CollectiveMismatch, match="fp16"):
            await ring.all_reduce(array, compression="fp16" if ring.rank else None)

    await run_members(2, member)


@pytest.mark.skipif(not supported(), reason="needs Linux")
async def test_shared_memory_has_no_use_for_it() -> None:
    async def member(worker: aiops.Worker, ring: Ring) -> None:
        with pytest.raises(UsageError, match="shared memory"):
            await ring.all_reduce(np.ones(3, np.float32), compression="fp16")

    await run_members(2, member, "shared-memory")
