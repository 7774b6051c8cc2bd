"""Compressed all-reduce in one process: the same bits on every rank, and nothing lost for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from aiops.collective import CompressedReducer, InProcessRing
from aiops.compression import Codec, PowerSGD, codec_from
from aiops.errors import AiopsError, CollectiveAborted, ConfigError, UsageError
from aiops_protocol.payload import Float32Array

SHAPE = (30, 40)
CODECS = [
    "fp16", "int8", "fp8", "int4", "one-bit", "top-k:0.02", "top-k:0.02+fp16+lz4", "agc:30",
    "qsgd", "dgc:0.02", "random-k:0.1", "dense", "power-sgd:1", "power-sgd:3",
]  # fmt: skip


def vector(rank: int, step: int, shape: tuple[int, ...] = SHAPE) -> Float32Array:
    chance = np.random.default_rng([rank, step])
    return chance.standard_normal(shape).astype(np.float32)


async def on_all(
    world_size: int, work: Callable[[Any], Coroutine[Any, Any, Any]], **options: Any
) -> list[Any]:
    ring = InProcessRing(world_size, **options)
    calls = (work(ring.member(rank)) for rank in range(world_size))
    return list(await asyncio.gather(*calls, return_exceptions=True))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("codec", CODECS)
async def test_all_ranks_have_the_same_bits_and_nothing_is_lost(
    codec: str, world_size: int
) -> None:
    steps = 6

    async def work(member: Any) -> tuple[list[Float32Array], dict[str, Any]]:
        reducer = CompressedReducer(member, codec, SHAPE, seed=5)
        results = []
        for step in range(steps):
            if step == 3:  # as after a restart
                state = reducer.state_dict()
                reducer = CompressedReducer(member, codec, SHAPE, seed=5)
                reducer.load_state_dict(state)
            results.append(await reducer.reduce(vector(member.rank, step), "sum"))
        return results, reducer.state_dict()

    outcomes = await on_all(world_size, work)
    first = outcomes[0][0]
    for results, _ in outcomes[1:]:
        assert [r.tobytes() for r in results] == [r.tobytes() for r in first]
    if codec in ("qsgd", "dgc:0.02"):
        return  # unbiased, and with momentum: no sum to keep
    given = sum(
        vector(rank, step).astype(np.float64) for rank in range(world_size) for step in range(steps)
    )
    arrived = sum(r.astype(np.float64) for r in first)
    held = sum(state.get("residual", np.zeros(1200)).astype(np.float64) for _, state in outcomes)
    np.testing.assert_allclose(arrived + np.reshape(held, SHAPE), given, atol=2e-3)


async def test_the_mean_is_the_sum_divided() -> None:
    async def work(member: Any) -> tuple[Float32Array, Float32Array]:
        one, two = (CompressedReducer(member, "int8", SHAPE) for _ in range(2))
        x = vector(member.rank, 1)
        return await one.reduce(x, "sum"), await two.reduce(x)

    for total, mean in await on_all(4, work):
        np.testing.assert_array_equal(mean, total / np.float32(4))


async def test_low_rank_of_several_arrays_is_that_of_the_mean() -> None:
    """The members agree on the matrices: not each its own, as a table has them."""
    codec: Codec = PowerSGD(2, shapes=((40, 30), (17,)))
    left, right = vector(0, 1, (40, 2)), vector(0, 2, (30, 2))

    async def work(member: Any) -> Float32Array:
        reducer = CompressedReducer(member, codec, (1217,))
        noise = vector(7, 3, (40, 30)) * np.float32(member.rank * 2 - 1)  # cancels in the mean
        rest = np.full(17, member.rank, np.float32)
        return await reducer.reduce(np.concatenate([(left @ right.T + noise).reshape(-1), rest]))

    for mean in await on_all(2, work):
        np.testing.assert_allclose(mean[:1200].reshape(40, 30), left @ right.T, atol=1e-4)
        assert (mean[1200:] == 0.5).all()


async def test_int8_moves_a_quarter_of_dense() -> None:
    """Two members: each sends a byte for each value, the scales and a size."""
    ring = InProcessRing(2, trace=True)

    async def work(rank: int) -> None:
        await CompressedReducer(ring.member(rank), "int8", (10_000,)).reduce(
            vector(rank, 0, (10_000,))
        )

    await asyncio.gather(work(0), work(1))
    moved = sum(message.end - message.begin for message in ring.trace)
    assert 2 * 10_000 < 4 * moved < 2 * 10_400


@pytest.mark.parametrize("codec", ["top-k:0.02", "power-sgd:1"])
async def test_a_call_that_fails_leaves_what_is_held_back(codec: str) -> None:
    ring = InProcessRing(2, timeout_s=0.2)
    reducer = CompressedReducer(ring.member(0), codec, SHAPE)
    before = {name: array.tobytes() for name, array in reducer.state_dict().items()}
    with pytest.raises(AiopsError):
        await reducer.reduce(vector(0, 0))  # the other one never comes
    after = {name: array.tobytes() for name, array in reducer.state_dict().items()}
    assert after == before


@pytest.mark.parametrize("codec", ["int8", "power-sgd:1"])
async def test_misuse_is_said(codec: str) -> None:
    member = InProcessRing(1).member(0)
    reducer = CompressedReducer(member, codec, SHAPE)
    bad = vector(0, 0)
    bad[3, 3] = np.nan
    for wrong in (bad, vector(0, 0, (40, 30)), vector(0, 0).astype(np.float64)):
        with pytest.raises(UsageError):
            await reducer.reduce(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="op is"):
        await reducer.reduce(vector(0, 0), "max")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="codec is 3; pass a codec"):
        CompressedReducer(member, 3, SHAPE)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        reducer.load_state_dict({})
    assert isinstance(codec_from(codec), Codec)
    assert issubclass(CollectiveAborted, AiopsError)
