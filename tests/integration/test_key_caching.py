"""Key caching saves most of the bytes of repeated lists, and changes no bit of a result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aiops
from aiops.init import Normal
from aiops.optim import FTRL
from aiops.roles import key_lists
from aiops.roles.key_lists import KeyCache
from aiops_protocol.payload import Float32Array
from local_jobs import local_job, same_bits

ROUNDS, KEYS, WORKERS = 60, 2_000, 4


async def train(worker: aiops.Worker, forget: Any = None) -> tuple[int, Float32Array]:
    """Sparse logistic regression in outline: fixed keys, a pull and a push of them per round."""
    table = await worker.sparse_table("w", 1, init=Normal(std=0.1), optimizer=FTRL(lr=0.1, l1=0.01))
    rng = np.random.default_rng(worker.rank)
    keys = rng.choice(20_000, KEYS, replace=False)
    async for step in worker.steps(ROUNDS):
        rows = await table.pull(keys)
        await table.push(keys, np.tanh(rows) + rng.normal(size=rows.shape).astype(np.float32))
        if forget is not None and step == ROUNDS // 2:
            forget()
    counted = worker.stats()["bytes"]
    assert counted["retransmitted"] == 0
    total = sum(
        server["sent"] + server["received"] for server in worker.stats()["servers"].values()
    )
    return total, await table.pull(np.arange(20_000))


async def run(forget: bool = False) -> tuple[int, Float32Array]:
    """Return the bytes of all workers, and the values in the end."""
    async with local_job(servers=2) as cluster:

        def forget_all() -> None:
            for server in cluster.servers:
                server._core._lists = KeyCache()

        results = await cluster.run(
            lambda worker: train(worker, forget_all if forget else None), workers=WORKERS
        )
    assert all(same_bits(values, results[0][1]) for _, values in results)
    return sum(size for size, _ in results), results[0][1]


async def test_repeated_lists_take_a_third_of_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    cached, values = await run()
    healed, same = await run(forget=True)
    monkeypatch.setattr(key_lists, "CACHED_KEYS_MIN", 1 << 60)
    plain, expected = await run()
    assert same_bits(values, expected)
    assert same_bits(same, expected)
    assert plain / cached >= 2.8 * 0.9, (plain, cached)
    assert healed < 1.05 * cached
