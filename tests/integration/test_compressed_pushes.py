"""Compressed pushes: the bits of one process, nothing lost, nothing charged twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP
from aiops.compression import Codec, NoFeedback, OneBit, RandomK, TopK, codec_from
from aiops.compression.compressor import Compressor
from aiops.compression.gate import CANDIDATES
from aiops.consistency import Consistency
from aiops.errors import ConfigError, TableMismatch, UsageError
from aiops.optim import SGD, Add, Momentum
from aiops_protocol.codecs import mix
from aiops_protocol.payload import Float32Array
from local_jobs import local_job, random_array, rank_ordered_mean, same_bits, together, until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

SHAPE = (37, 11)  # 407 elements: no cut at a multiple of 16 falls on a row
CODECS = [
    "dense", "lz4", "fp16", "bf16", "fp8", "int8:32", "int4:32", "int8:stochastic=true",
    "one-bit:64", "ternary", "qsgd", "top-k:0.05", "top-k:0.05+fp16+lz4", "random-k:0.1",
    "power-sgd:2", "dgc:0.05", "agc:20", "no-feedback(top-k:0.05)",
]  # fmt: skip


def compressors(spelling: str, workers: int) -> list[Compressor]:
    """What each worker of a table named w keeps."""
    codec = codec_from(spelling)
    return [Compressor(codec, SHAPE, mix(*b"w", rank)) for rank in range(workers)]


def reference(spelling: str, workers: int, steps: int) -> Float32Array:
    """The values after so many steps, by one process."""
    senders = compressors(spelling, workers)
    values = np.zeros(SHAPE, np.float32).reshape(-1)
    for step in range(steps):
        arrived = [
            sender.encode(random_array(SHAPE, step, rank).reshape(-1)).dense()
            for rank, sender in enumerate(senders)
        ]
        values = values - np.float32(0.3) * rank_ordered_mean(arrived, workers)
    return values.reshape(SHAPE)


@pytest.mark.parametrize("spelling", CODECS)
async def test_training_gives_the_bits_of_one_process(spelling: str) -> None:
    """On one server and on three, by push and by push_pull."""

    async def train(worker: aiops.Worker) -> Float32Array:
        table = await worker.table("w", SHAPE, optimizer=SGD(lr=0.3), compression=spelling)
        await table.pull()  # before any push
        async for step in worker.steps(4):
            gradient = random_array(SHAPE, step, worker.rank)
            if step % 2:
                await table.push_pull(gradient)
            else:
                await table.push(gradient)
        return await table.pull()

    expected = reference(spelling, 2, 4)
    for servers in (1, 3):
        async with local_job(servers) as cluster:
            for got in await cluster.run(train, workers=2):
                assert same_bits(got, expected)


@pytest.mark.parametrize("optimizer", [Add(), SGD(lr=1.0), Momentum(lr=0.1)], ids=lambda o: o.name)
@pytest.mark.parametrize("spelling", ["top-k:0.05", "dgc:0.05", "one-bit:64"])
async def test_without_rounds_one_worker_gives_the_bits_of_one_process(
    optimizer: aiops.optim.Optimizer, spelling: str
) -> None:
    """Where zeros change nothing, few values are applied alone; else the whole is."""
    (sender,) = compressors(spelling, 1)
    expected = np.zeros(407, np.float32)
    state = {slot: np.zeros(407, np.float32) for slot in optimizer.slots}
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table(
            "w", SHAPE, optimizer=optimizer, consistency=ASP(), compression=spelling
        )
        async for step in worker.steps(5):
            gradient = random_array(SHAPE, step)
            if step % 2:
                got = await table.push_pull(gradient)
            else:
                await table.push(gradient)
                got = await table.pull()
            moved = sender.encode(gradient.reshape(-1)).dense()
            optimizer.update(expected, moved, state, step + 1, np.empty_like(expected))
            np.testing.assert_array_equal(got.reshape(-1), expected)


# --- nothing is lost --------------------------------------------------------------------------


async def pushes(
    worker: aiops.Worker, spelling: str, steps: range, consistency: Consistency
) -> tuple[Float32Array, Mapping[str, Any]]:
    """Push to a sum; return its values and what is held back."""
    table = await worker.table(
        "w", SHAPE, optimizer=Add(), consistency=consistency, compression=spelling
    )
    for step in steps:
        await table.push(random_array(SHAPE, step, worker.rank))
        if step % 3 == 0:
            rows = np.array([5, 3, 20, 3])
            await table.push(random_array((4, 11), step, 7), rows=rows)
            await table.push_soon(random_array(SHAPE, step, 8))
            await table.push(random_array((9, 11), step, 9), rows=slice(10, 19))
        await worker.tick()
    return await table.pull(), worker.state_dict()


def pushed(workers: int, steps: range) -> np.ndarray[Any, np.dtype[np.float64]]:
    total = np.zeros(SHAPE)
    for rank in range(workers):
        for step in steps:
            total += random_array(SHAPE, step, rank)
            if step % 3 == 0:
                np.add.at(total, np.array([5, 3, 20, 3]), random_array((4, 11), step, 7))
                total += random_array(SHAPE, step, 8)
                total[10:19] += random_array((9, 11), step, 9)
    return total


def held(state: Mapping[str, Any]) -> Float32Array:
    residual: Float32Array = state["compression/w/residual"]
    return residual.reshape(SHAPE)


@pytest.mark.parametrize("consistency", [BSP(reduce="sum"), ASP()], ids=lambda c: c.mode)
@pytest.mark.parametrize("spelling", ["top-k:0.05", "int8:32", "one-bit:64", "agc:20"])
async def test_values_and_what_is_held_back_are_what_was_pushed(
    consistency: Consistency, spelling: str
) -> None:
    steps = range(9)
    async with local_job(3) as cluster:
        results = await cluster.run(
            lambda worker: pushes(worker, spelling, steps, consistency), workers=2
        )
    rest = sum(held(state).astype(np.float64) for _, state in results)
    final = results[0][0] if consistency.mode == "bsp" else None
    if final is not None:
        np.testing.assert_allclose(final + rest, pushed(2, steps), atol=1e-4)
    else:  # who ended first has not seen the other's last pushes
        seen = [float(np.abs(v + rest - pushed(2, steps)).max()) for v, _ in results]
        assert min(seen) < 1e-4


@pytest.mark.parametrize("spelling", ["top-k:0.05", "dgc:0.05", "power-sgd:2", "random-k:0.1"])
async def test_a_restored_worker_goes_on_with_the_same_bits_on_other_servers(
    spelling: str, tmp_path: Any
) -> None:
    """Ten steps at once, or five, saved to a file, and five more elsewhere."""

    async def train(
        worker: aiops.Worker, steps: range, start: Float32Array, state: Mapping[str, Any]
    ) -> tuple[Float32Array, Mapping[str, Any]]:
        worker.load_state_dict(state)
        table = await worker.table(
            "w", SHAPE, init=start, optimizer=SGD(lr=0.1), compression=spelling
        )
        for step in steps:
            await table.push(random_array(SHAPE, step, worker.rank))
            await worker.tick()
        return await table.pull(), worker.state_dict()

    async def run(servers: int, steps: range, start: Float32Array, states: Any) -> Any:
        async with local_job(servers) as cluster:
            return await cluster.run(
                lambda worker: train(worker, steps, start, states[worker.rank]), workers=2
            )

    zeros = np.zeros(SHAPE, np.float32)
    straight = await run(1, range(10), zeros, [{}, {}])
    half = await run(2, range(5), zeros, [{}, {}])
    for rank, (_, state) in enumerate(half):
        np.savez(tmp_path / f"{rank}.npz", **state)
    with np.load(tmp_path / "0.npz") as zero, np.load(tmp_path / "1.npz") as one:
        rest = await run(3, range(5, 10), half[0][0], [zero, one])
    assert same_bits(rest[0][0], straight[0][0])
    forgetful = await run(3, range(5, 10), half[0][0], [{}, {}])
    assert not same_bits(forgetful[0][0], straight[0][0])


async def test_a_push_that_is_cancelled_still_happens() -> None:
    """What was held back counts on it, whether or not anything had left."""
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table(
            "w", SHAPE, optimizer=Add(), consistency=ASP(), compression="top-k:0.05"
        )
        gradient = random_array(SHAPE, 1)
        for turns in range(4):
            push = asyncio.ensure_future(table.push(gradient))
            for _ in range(turns):
                await asyncio.sleep(0)
            begun = table.core.compressor is not None and table.core.compressor.pushes
            push.cancel()
            await asyncio.gather(push, return_exceptions=True)
            await table.flush()
            assert begun == table.core.compressor.pushes  # type: ignore[union-attr]
            total = await table.pull() + held({**_zeros(), **worker.state_dict()})
            np.testing.assert_allclose(total, float(begun) * gradient, atol=1e-5)


def _zeros() -> dict[str, Any]:
    return {"compression/w/residual": np.zeros(SHAPE, np.float32)}


async def test_what_is_too_large_is_not_sent_and_not_kept() -> None:
    async with local_job(1) as cluster, cluster.connect() as worker:
        table = await worker.table("w", SHAPE, optimizer=Add(), compression=TopK(0.01))
        large = np.full(SHAPE, 3e38, np.float32)
        await table.push(large)
        before = worker.state_dict()
        with pytest.raises(UsageError, match="top-k"):
            await table.push(large)
        after = worker.state_dict()
        assert all(np.array_equal(before[name], after[name]) for name in before)
        assert (await table.push(-large)).status == "applied"


# --- settings ---------------------------------------------------------------------------------


async def test_all_workers_agree_on_the_codec() -> None:
    async with local_job(1) as cluster:
        first, second = await together([cluster.connect(name="a"), cluster.connect(name="b")])
        async with first, second:
            await first.table("w", 9, consistency=ASP(), compression=TopK(0.1))
            with pytest.raises(TableMismatch, match=r"compression is top-k:0\.1, not top-k:0\.2"):
                await second.table("w", 9, consistency=ASP(), compression=TopK(0.2))
            joined = await second.table("w")
            await joined.push(np.ones(9, np.float32))
            assert second.stats()["compression"]["w"]["codec"] == "feedback(top-k:0.1)"


@pytest.mark.parametrize(
    ("compression", "options", "says"),
    [
        ("zip", {}, "no codec"),
        (3, {}, "pass a codec"),
        (TopK(0.1), {"allow_nonfinite": True}, "allow_nonfinite"),
        ("power-sgd:1:shapes=3x4", {}, "12 elements"),
        ("power-sgd:1", {}, r"nothing in a table of shape \(9,\) is a matrix"),
    ],
)
async def test_what_cannot_be_is_said_before_anything_starts(
    compression: Codec | str, options: dict[str, Any], says: str
) -> None:
    async with local_job(1) as cluster, cluster.connect() as worker:
        with pytest.raises(ConfigError, match=says):
            await worker.table("w", 9, compression=compression, **options)


async def test_stats_count_what_was_given_and_sent() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", 4000, compression=TopK(0.01))
        gradient = random_array((4000,), 3)
        await table.push(gradient)
        stats = worker.stats()["compression"]["w"]
        assert stats["bytes_given"] == 16_000
        assert stats["bytes_sent"] == 40 * 8 + 2 * 4
        largest = np.sort(np.abs(gradient.astype(np.float64)))[:-40]
        assert stats["residual_norm"] == pytest.approx(np.sqrt(np.sum(largest**2)))
        plain = await worker.table("v", 10)
        assert plain.compression_state() == {}
        with pytest.raises(UsageError, match="no compression"):
            plain.load_compression_state({})
        with pytest.raises(ConfigError, match="no name"):
            worker.load_state_dict({"x": np.ones(1)})


async def test_a_ratio_that_is_known_to_diverge_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with local_job(1) as cluster, cluster.connect() as worker:
        await worker.table("w", 9, compression=NoFeedback(RandomK(0.01)))
        await worker.table("v", 9, compression="dgc", optimizer=Momentum(lr=0.1))
    assert "diverge" in caplog.text
    assert "dgc:0.001 has momentum of its own, and so may momentum" in caplog.text


async def test_auto_chooses_and_says_why() -> None:
    """On a link that is as fast as this one nothing is lost by it; and nothing is lost at all."""
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table(
            "w", SHAPE, optimizer=Add(), consistency=ASP(), compression="auto"
        )
        total = np.zeros(SHAPE)
        for step in range(20):
            total += random_array(SHAPE, step)
            await table.push(random_array(SHAPE, step))
        stats = worker.stats()["compression"]["w"]
        assert stats["codec"] == "auto"
        assert stats["chosen"] in CANDIDATES
        assert "Mbit/s" in stats["reason"]
        worker._reports.send()
        await until(lambda: cluster.status()["workers"][0]["choices"])
        told = cluster.status()["workers"][0]["choices"]
        assert told == {"w push": f"{stats['chosen']}: {stats['reason']}"}
        rest = held({**_zeros(), **worker.state_dict()})
        np.testing.assert_allclose(await table.pull() + rest, total, atol=1e-3)
    async with local_job(1) as cluster, cluster.connect() as worker:
        with pytest.raises(ConfigError, match="allow_nonfinite"):
            await worker.table("w", 9, compression="auto", allow_nonfinite=True)
        with pytest.raises(ConfigError, match="pull_compression auto with allow_nonfinite"):
            await worker.table("w", 9, pull_compression="auto", allow_nonfinite=True)


@pytest.mark.parametrize("spelling", ["one-bit", "auto"])
async def test_compressed_pushes_say_how_stale_they_are(spelling: str) -> None:
    async with local_job(1) as cluster, cluster.connect() as one, cluster.connect() as other:
        slow = await one.table("w", 64, optimizer=Add(), consistency=ASP(), compression=spelling)
        quick = await other.table("w")
        await slow.pull()
        await quick.pull()
        for _ in range(3):
            await quick.push(np.ones(64, np.float32))
        await slow.push(np.ones(64, np.float32))
        assert one.stats()["tables"]["w"]["staleness"] == {3: 1}


async def test_signs_by_majority_outvote_a_liar_in_both_directions() -> None:
    """Three of five honest workers decide; signs go up and come down, a bit for each value."""
    size = 20_000
    target = np.where(np.arange(size) % 3 == 0, np.float32(-0.2), np.float32(0.2))

    async def train(worker: aiops.Worker) -> tuple[Float32Array, dict[str, int]]:
        table = await worker.table(
            "w",
            size,
            optimizer=SGD(lr=0.01),
            consistency=BSP(reduce="majority_sign"),
            compression=NoFeedback(OneBit()),
            pull_compression=OneBit(),
        )
        for step in range(15):
            noise = random_array((size,), step, worker.rank) * np.float32(0.02)
            values = await table.pull()
            gradient = values - target + noise
            await table.push(gradient if worker.rank < 3 else -gradient)
            await worker.tick()
        return await table.pull(), worker.stats()["bytes"]

    async with local_job(2) as cluster:
        results = await cluster.run(train, workers=5)
        exact = [server._core.tables[1].rule.shard for server in cluster.servers]
    values, sent = results[0]
    assert all(same_bits(other, values) for other, _ in results)
    whole = np.concatenate(
        [shard.values for shard in sorted(exact, key=lambda s: s.begin)]  # type: ignore[attr-defined]
    )
    # Each step moves every value by the rate: one bit tells all of it.
    np.testing.assert_allclose(values, whole, atol=1e-5)
    assert np.abs(values - target).mean() < 0.1
    assert sent["pushed"] < 15 * (size / 8 + 500)
    assert sent["pulled"] - 4 * size < 15 * (size / 8 + 500)


async def test_the_loss_of_a_worker_says_what_was_held_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is lost with the worker, unless it was saved."""

    async def fail(worker: aiops.Worker) -> None:
        table = await worker.table("w", 100, compression=TopK(0.05))
        await table.push(np.ones(100, np.float32))
        raise LookupError

    async with local_job(1) as cluster:
        with pytest.raises(LookupError):
            await cluster.run(fail, workers=1)
    assert "held_back" in caplog.text
    assert "9.7" in caplog.text  # the square root of 95


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0)], ids=str)
async def test_small_and_empty_tables(shape: tuple[int, ...]) -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        spellings = [codec for codec in CODECS if not codec.startswith("power-sgd")]
        for number, spelling in enumerate([*spellings, "auto"]):
            table = await worker.table(
                f"t{number}", shape, optimizer=Add(), consistency=ASP(), compression=spelling
            )
            for _ in range(2):
                await table.push(np.ones(shape, np.float32))
            assert (await table.pull()).shape == shape
