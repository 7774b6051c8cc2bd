"""Compressed rows of sparse tables: nothing lost for any key, the same bits for any servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP, BSP
from aiops.compression import (
    AGC,
    DGC,
    BFloat16,
    Chain,
    Float16,
    Int8,
    Lz4,
    NoFeedback,
    OneBit,
    PowerSGD,
    RandomK,
    TopK,
)
from aiops.errors import ConfigError, TableMismatch, UsageError
from aiops.optim import SGD, Add
from aiops.tables import row_compression
from aiops.tables.row_compression import HeldRows, RowCompressor, row_codec
from aiops_protocol.codecs import to_bfloat16
from aiops_protocol.key_list import mix
from aiops_protocol.payload import Float32Array
from local_jobs import local_job, same_bits

BOTH = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
ONE = pytest.mark.asyncio(loop_factories=["asyncio"])

WIDTH = 24
KEYS = 3000
CODECS = ["fp16", "bf16", "fp8", "int8", "int4", "one-bit", "qsgd:4", "int8:64:stochastic=true"]


def batch(step: int, rank: int = 0) -> tuple[Any, Float32Array]:
    """Keys and rows of a push, of sizes that differ by orders of magnitude."""
    chance = np.random.default_rng([step, rank])
    keys = chance.choice(KEYS, 400, replace=False).astype(np.uint64) * np.uint64(7_919_191_919)
    rows = chance.standard_normal((400, WIDTH), np.float32)
    rows *= np.exp(chance.uniform(-6, 3, (400, 1))).astype(np.float32)
    return keys, rows


@ONE
@pytest.mark.parametrize("spelling", [*CODECS, "int8+lz4", "lz4", "feedback(one-bit)"])
async def test_nothing_is_lost_for_any_key(spelling: str) -> None:
    """What has arrived and what is held back is what was pushed; bits as with three servers."""
    batches = [batch(step) for step in range(6)]
    keys, place = np.unique(np.concatenate([keys for keys, _ in batches]), return_inverse=True)
    given = np.zeros((keys.size, WIDTH))
    np.add.at(given, place, np.concatenate([rows for _, rows in batches]))
    arrived: list[Float32Array] = []
    stats: dict[str, Any] = {}
    state: dict[str, Any] = {}
    for servers in (1, 3):
        async with local_job(servers) as cluster, cluster.connect() as worker:
            table = await worker.sparse_table(
                "emb", WIDTH, optimizer=Add(), consistency=ASP(), compression=spelling
            )
            for some, rows in batches:
                await table.push(some, rows)
            arrived.append(await table.pull(keys))
            stats = worker.stats()["compression"]["emb"]
            state = table.compression_state()
    assert same_bits(*arrived)
    held = state["residual"]
    assert stats["residual_norm"] == pytest.approx(np.linalg.norm(held), rel=1e-5)
    if stats["rows_held"]:
        assert stats["rows_held"] == keys.size
        order = np.argsort(state["keys"])
        rest = held[order[np.searchsorted(state["keys"][order], mix(keys))]]
        scale = np.abs(given).max(axis=1, keepdims=True)
        assert (np.abs(arrived[0] + rest - given) <= 1e-4 * scale + 1e-5).all()
        again = RowCompressor(spelling, WIDTH, 0)
        again.load_state_dict(state)
        assert same_bits(again.state_dict()["residual"], held)
    else:
        assert spelling in ("lz4", "qsgd:4", "int8:64:stochastic=true")
    if spelling == "lz4":
        np.testing.assert_allclose(arrived[0], given, rtol=1e-4, atol=1e-4)
    assert stats["bytes_given"] == 6 * 400 * WIDTH * 4
    assert stats["bytes_sent"] < stats["bytes_given"] * (1.01 if spelling == "lz4" else 0.51)


@BOTH
@pytest.mark.parametrize("spelling", ["one-bit", "int8"])
async def test_what_is_held_back_goes_with_the_key_and_survives_a_restart(spelling: str) -> None:
    """In rounds, over two servers, the bits are those of one process."""

    async def train(worker: aiops.Worker, first: int, state: Any) -> tuple[Any, Any]:
        if state is not None:
            worker.load_state_dict(state)
        table = await worker.sparse_table(
            "emb", WIDTH, optimizer=SGD(lr=0.5), consistency=BSP(), compression=spelling
        )
        for step in range(first, first + 3):
            await table.push(*batch(step))
            await worker.tick()
        keys = np.unique(np.concatenate([batch(step)[0] for step in range(6)]))
        return worker.state_dict(), await table.pull(keys)

    async with local_job(2) as cluster, cluster.connect(name="w") as worker:
        state, _ = await train(worker, 0, None)
        _, whole = await train(worker, 3, None)
    async with local_job(1) as cluster:
        async with cluster.connect(name="w") as worker:
            again, _ = await train(worker, 0, None)
        assert all(same_bits(again[name], state[name]) for name in state if "codec" not in name)
        async with cluster.connect(name="w") as worker:
            _, rows = await train(worker, 3, again)
    assert same_bits(rows, whole)


@ONE
async def test_rows_beyond_the_limit_go_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_compression, "HELD_BYTES_MAX", 500 * (4 * WIDTH + 24))
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.sparse_table(
            "emb", WIDTH, optimizer=Add(), consistency=ASP(), compression="one-bit"
        )
        keys, rows = batch(0)
        await table.push(keys, rows)
        more = np.arange(10**12, 10**12 + 400, dtype=np.uint64)
        await table.push(more, rows)
        stats = worker.stats()["compression"]["emb"]
        assert (stats["rows_held"], stats["rows_plain"]) == (500, 300)
        arrived = await table.pull(more)
        assert sum(same_bits(*pair) for pair in zip(arrived, rows, strict=True)) == 300
        await table.push(keys, rows)  # those that have a place keep it
        assert worker.stats()["compression"]["emb"]["rows_plain"] == 300


@BOTH
@pytest.mark.parametrize("spelling", ["fp16", "bf16"])
async def test_pulls_are_rounded_and_half_as_long(spelling: str) -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.sparse_table(
            "emb", WIDTH, optimizer=Add(), consistency=BSP(), pull_compression=spelling
        )
        keys, rows = batch(1)
        await table.push(keys, rows)
        await worker.tick()
        out = np.empty_like(rows)
        before = worker.stats()["bytes"]["pulled"]
        values = await table.pull(keys, out=out)
        assert values is out
        assert worker.stats()["bytes"]["pulled"] - before < 0.55 * rows.nbytes
        if spelling == "bf16":
            expected = (to_bfloat16(rows).astype(np.uint32) << 16).view(np.float32)
        else:
            expected = rows.astype(np.float16).astype(np.float32)
        assert same_bits(values, expected)
        twice = await table.pull(np.concatenate([keys[:5], keys[:5]]))
        assert same_bits(twice[:5], twice[5:])


@ONE
async def test_a_customer_and_an_assign_share_the_table() -> None:
    """What is held back is held once; an assign travels as it is."""
    async with local_job(1) as cluster, cluster.connect() as worker:
        table = await worker.sparse_table(
            "emb", 16, optimizer=Add(), consistency=ASP(), compression="one-bit"
        )
        row = np.arange(16, dtype=np.float32)[None]
        await table.assign([5], row)
        assert same_bits(await table.pull([5]), row)
        async with worker.customer("more") as customer:
            other = await customer.sparse_table("emb")
            await other.push([5], row)
        assert worker.stats()["compression"]["emb"]["pushes"] == 1
        with pytest.raises(UsageError, match="NaN"):
            await table.push([5], np.full((1, 16), np.nan, np.float32))


@ONE
async def test_what_makes_no_sense_for_rows_is_refused() -> None:
    async with local_job(1) as cluster, cluster.connect() as worker:
        for codec in (TopK(0.01), AGC(), DGC(), PowerSGD(1), RandomK(0.1), Chain(TopK(0.1), Lz4())):
            with pytest.raises(ConfigError, match="might never be pushed again; there is fp16"):
                await worker.sparse_table("emb", 8, compression=codec)
        with pytest.raises(ConfigError, match="compression auto is for dense tables"):
            await worker.sparse_table("emb", 8, compression="auto")
        with pytest.raises(ConfigError, match="pull_compression auto is for dense tables"):
            await worker.sparse_table("emb", 8, pull_compression="auto")
        for pulls in ("int8", "one-bit", "no-feedback(fp16)", "fp16+lz4"):
            with pytest.raises(ConfigError, match="rows are only rounded; there is fp16 and bf16"):
                await worker.sparse_table("emb", 8, pull_compression=pulls)
        with pytest.raises(ConfigError, match="allow_nonfinite"):
            await worker.sparse_table("emb", 8, compression="fp16", allow_nonfinite=True)
        with pytest.raises(ConfigError, match="no codec 'zip'"):
            await worker.sparse_table("emb", 8, compression="zip")
        wrong: Any = 3
        with pytest.raises(ConfigError, match="pass a codec of"):
            await worker.sparse_table("emb", 8, compression=wrong)
        table = await worker.sparse_table("emb", 8, compression=Int8(), pull_compression=Float16())
        with pytest.raises(TableMismatch, match="compression"):
            await worker.sparse_table("emb", 8, compression=BFloat16())
        with pytest.raises(ConfigError, match="is of one-bit"):
            table.load_compression_state(RowCompressor("one-bit", 8, 0).state_dict())
        plain = await worker.sparse_table("plain", 8)
        with pytest.raises(UsageError, match="has no compression"):
            plain.load_compression_state({})
        assert plain.compression_state() == {}


def test_a_scale_spans_no_more_than_a_row_where_that_is_possible() -> None:
    assert row_codec("one-bit", 64) == OneBit(64)
    assert row_codec("int8", 48) == Int8(16)
    assert row_codec("int8:16", 64) == Int8(16)
    assert row_codec("no-feedback(int8)", 1024) == Int8(256)
    assert row_codec("one-bit+lz4", 3) == Chain(OneBit(16), Lz4())
    assert row_codec("fp16", 3) == Float16()
    assert not RowCompressor(NoFeedback(OneBit()).spelling(), 8, 0)._feeds


def test_rows_that_are_held_are_found_again() -> None:
    held = HeldRows(3)
    expected: dict[int, Float32Array] = {}
    for step in range(20):
        chance = np.random.default_rng(step)
        keys = np.unique(chance.integers(0, 3000, 200).astype(np.uint64))
        numbers, fits = held.find(keys)
        assert fits.all()
        known = held.get(numbers)
        for key, row in zip(keys.tolist(), known, strict=True):
            assert same_bits(row, expected.get(key, np.zeros(3, np.float32)))
        rows = chance.standard_normal((keys.size, 3), np.float32)
        held.put(keys, numbers, rows)
        expected.update(zip(keys.tolist(), rows, strict=True))
    assert held.count == len(expected)
