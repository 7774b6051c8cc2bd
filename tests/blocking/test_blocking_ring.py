"""Rings without asyncio: each member in a thread of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiops import blocking
from aiops.errors import CollectiveMismatch


def test_members_in_threads_reduce_and_disagree() -> None:
    def train(worker: blocking.Worker) -> Any:
        ring = worker.ring("grads", timeout_s=60, call_timeout_s=60)
        assert worker.ring("grads") is ring
        assert (ring.name, ring.rank, ring.world_size) == ("grads", worker.rank, 3)
        assert (ring.generation, ring.workers, ring.newcomers) == (1, [0, 1, 2], [])
        assert not ring.wanted
        array = ring.empty(5)
        array[:] = ring.rank
        ring.all_reduce(array, "mean")
        assert (array == 1).all()
        handle = ring.all_reduce_async([array, array.copy()], bucket_bytes=8)
        handle.result(timeout=60)
        assert (array == 3).all()
        assert (ring.reduce_scatter(np.ones(3, np.float32)) == 3).all()
        assert ring.all_gather(np.full(1, ring.rank, np.float32)).tolist() == [[0], [1], [2]]
        ring.broadcast(array, root=1)
        ring.barrier()
        with pytest.raises(CollectiveMismatch):
            ring.all_reduce(np.ones(3 + (ring.rank == 1), np.float32))
        assert ring.broken
        ring.reform()
        assert not ring.broken
        assert ring.explain("all_reduce", 10).algorithm
        ring.all_reduce(array, "max")
        return array.tolist()

    with blocking.LocalCluster() as cluster:
        assert cluster.run(train, workers=3) == [[3.0] * 5] * 3
