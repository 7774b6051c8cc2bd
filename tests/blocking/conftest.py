"""A running blocking cluster for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import aiops.blocking


@pytest.fixture
def cluster() -> Iterator[aiops.blocking.LocalCluster]:
    with aiops.blocking.LocalCluster(servers=2) as cluster:
        yield cluster
