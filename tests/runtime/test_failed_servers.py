"""A call that needs a server which is known to be gone fails by name, whatever else it needs."""

from __future__ import annotations

import numpy as np
import pytest

from aiops.errors import NodeFailed
from local_jobs import local_job


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("verb", ["push", "pull"])
async def test_nothing_is_begun_for_the_other_servers(gone: int, verb: str) -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", shape=(64,))
        server = worker.main_customer._servers[gone]
        before, server.failure = server.failure, "it went down"
        with pytest.raises(NodeFailed, match="it went down") as caught:
            await (table.push(np.ones(64, np.float32)) if verb == "push" else table.pull())
        assert caught.value.node == f"server {gone} ({server.member.name})"
        server.failure = before
        assert not worker.main_customer._operations
