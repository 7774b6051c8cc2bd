"""The raw server, whose child process ends with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiops.benchmarking.raw import RawClient


@pytest.fixture
def raw_client() -> Iterator[RawClient]:
    with RawClient() as client:
        yield client
