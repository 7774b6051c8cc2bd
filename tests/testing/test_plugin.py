"""The pytest plugin, as somebody else's test suite uses it: in a pytest of its own."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

pytest_plugins = ["pytester"]

RunTests: TypeAlias = Callable[..., pytest.RunResult]

ROOT = Path(__file__).resolve().parent.parent.parent

ASYNC_TESTS = """
    import numpy as np
    import aiops
    from aiops.optim import Add

    async def train(worker):
        table = await worker.table("sum", (), optimizer=Add())
        async for _ in worker.steps(3):
            await table.push(np.float32(worker.rank))
        return float(await table.pull())

    async def test_two_workers(local_cluster):
        assert await local_cluster.run(train, workers=2) == [1.5, 1.5]

    async def test_each_test_has_a_cluster_of_its_own(local_cluster):
        assert isinstance(local_cluster, aiops.LocalCluster)
        assert local_cluster.status()["tables"] == []
        assert len(local_cluster.status()["servers"]) == 2
"""

BLOCKING_TESTS = """
    def train(worker):
        return [step for step in worker.steps(2)]

    def test_two_workers(blocking_local_cluster):
        assert blocking_local_cluster.run(train, workers=2) == [[0, 1], [0, 1]]
"""


ASYNCIO = (
    "-p",
    "pytest_asyncio.plugin",
    "-o",
    "asyncio_default_fixture_loop_scope=function",  # pytest-asyncio warns if it is not said
)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunTests:
    """Run tests with our plugin, whether aiops is installed here or only lies on the path."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run_tests(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        plugin = ("-p", "aiops.testing.plugin", "-W", "error")
        return pytester.runpytest_subprocess(*arguments, *plugin, timeout=180)

    return run_tests


def test_the_cluster_of_an_asynchronous_test(run: RunTests) -> None:
    result = run(ASYNC_TESTS, *ASYNCIO, "-o", "asyncio_mode=auto")
    result.assert_outcomes(passed=2)


def test_marked_tests_in_strict_mode(run: RunTests) -> None:
    """What pytest-asyncio does unless told otherwise."""
    source = "    import pytest\n    pytestmark = pytest.mark.asyncio\n" + ASYNC_TESTS
    run(source, *ASYNCIO).assert_outcomes(passed=2)


def test_the_blocking_cluster_needs_no_pytest_asyncio(run: RunTests) -> None:
    run(BLOCKING_TESTS).assert_outcomes(passed=1)


def test_without_pytest_asyncio_the_fixture_says_what_is_missing(
    run: RunTests, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(pytest_asyncio="raise ImportError('not installed')")
    path = os.pathsep.join([str(pytester.path), os.environ["PYTHONPATH"]])
    monkeypatch.setenv("PYTHONPATH", path)
    result = run("def test_that_uses_it(local_cluster): ...")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*needs pytest-asyncio: pip install pytest-asyncio*"])


def test_the_fixtures_are_listed(run: RunTests) -> None:
    result = run(BLOCKING_TESTS, "--fixtures", *ASYNCIO)
    result.stdout.fnmatch_lines(["local_cluster*", "*Run a cluster of two servers*"])
    result.stdout.fnmatch_lines(["blocking_local_cluster*"])


def test_pytest_finds_the_plugin_of_an_installed_aiops() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"aiops": "aiops.testing.plugin"}
