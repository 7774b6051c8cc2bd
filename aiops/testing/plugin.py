"""A pytest plugin: a running cluster as a fixture, for tests of one's own training.

    async def test_it_learns(local_cluster: aiops.LocalCluster) -> None:
        losses = await local_cluster.run(train, workers=2)

pytest finds it by its entry point once aiops is installed. What a cluster is stands in
`aiops.local_cluster` and `aiops.blocking`; nothing but fixtures is here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import aiops

__all__ = ["blocking_local_cluster", "local_cluster"]

SERVERS = 2
"""Two servers are the least with which a table is cut, so that a test sees what that does."""

try:
    import pytest_asyncio
except ImportError:

    @pytest.fixture
    def local_cluster() -> None:
        """Say what is missing."""
        pytest.fail(
            "the fixture local_cluster needs pytest-asyncio: pip install pytest-asyncio, or use "
            "blocking_local_cluster",
            pytrace=False,
        )

else:

    @pytest_asyncio.fixture(loop_scope="function")
    async def local_cluster() -> AsyncIterator[aiops.LocalCluster]:  # type: ignore[misc]  # the other one
        """Run a cluster of two servers for one test, over loopback TCP.

        Workers come by `local_cluster.connect()` or `local_cluster.run(train, workers=...)`.
        """
        async with aiops.LocalCluster(servers=SERVERS) as cluster:
            yield cluster


@pytest.fixture
def blocking_local_cluster() -> Iterator[aiops.blocking.LocalCluster]:
    """Run a cluster of two servers for one test without asyncio; needs no pytest-asyncio."""
    with aiops.blocking.LocalCluster(servers=SERVERS) as cluster:
        yield cluster
