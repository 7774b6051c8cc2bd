"""What every test shares: hypothesis profiles and the event loops to choose from.

An async test runs on the loop that production uses (uvloop where it exists). A test that cares
names its loops: ``@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])``.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

LOOPS: dict[str, LoopFactory] = {"asyncio": asyncio.SelectorEventLoop}
try:
    import uvloop
except ImportError:  # Windows: tests that ask for uvloop are skipped there
    DEFAULT_LOOP = "asyncio"
else:
    LOOPS["uvloop"] = uvloop.new_event_loop
    DEFAULT_LOOP = "uvloop"

# Programs that a test starts find the packages as the test does, installed or not.
ROOT = Path(__file__).resolve().parent.parent
os.environ["PYTHONPATH"] = os.pathsep.join(
    str(ROOT / source) for source in (".", "protocol", "cli")
)

# Threads of the BLAS library that wait for one another on busy processors cost minutes.
try:
    import threadpoolctl
except ImportError:  # comes with scikit-learn
    pass
else:
    assert np.__version__  # loaded: only the libraries that are there by now are limited
    threadpoolctl.threadpool_limits(1)

# A shell that runs the tests in the background has SIGINT ignored, and what starts from it
# inherits that; tests of Ctrl-C would then wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: the machine is shared, and a slow example is not a wrong one.
settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile(
    "ci",
    max_examples=100,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "nightly",
    max_examples=10_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    """Offer every loop to a test that names some, and the default one to all others."""
    marker = item.get_closest_marker("asyncio")
    if marker is not None and "loop_factories" in marker.kwargs:
        return LOOPS
    return {DEFAULT_LOOP: LOOPS[DEFAULT_LOOP]}


LONG = ("local_sgd", "chaos", "soak", "conservation")
"""Marks of tests that run only when asked for, each by an option of its name."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what only some targets of the Makefile ask for."""
    parser.addoption("--all-mutants", action="store_true", help="find planted bugs from seed 0 on")
    parser.addoption(
        "--local-sgd", action="store_true", help="compare local steps over five seeds each"
    )
    parser.addoption(
        "--ring-matrix", action="store_true", help="a fault at every step of rings, not only some"
    )
    parser.addoption(
        "--ring-kills", action="store_true", help="kill members of rings two hundred times"
    )
    parser.addoption(
        "--codec-sweep", action="store_true", help="every codec on the digits, over five seeds"
    )
    parser.addoption(
        "--kill-matrix", action="store_true", help="every cell of the kill matrix, not only four"
    )
    parser.addoption(
        "--chaos", action="store_true", help="whole trainings over bad networks, not only short"
    )
    parser.addoption(
        "--conservation", action="store_true", help="count pushes of processes that are killed"
    )
    parser.addoption(
        "--soak", action="store_true", help="100,000 pushes and 5,000 reconnections: minutes"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only some targets of the Makefile ask for."""
    asked = {name: config.getoption(f"--{name.replace('_', '-')}") for name in LONG}
    left_out = [
        item
        for item in items
        if any(item.get_closest_marker(name) and not asked[name] for name in LONG)
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Watch over what comes after a failure, too: pytest itself stops watching there.

    uvloop waits for ever in `close` for what a failed test has left open.
    """
    limit_s = float(node.config.getini("faulthandler_timeout"))
    if limit_s and isinstance(node, pytest.Item):
        stderr = node.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(limit_s, exit=True, file=stderr)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the collector of garbage pass over what all tests share: it takes 0.2 s to look at.

    Simulated runs and checks that nothing is left behind collect thousands of times.
    """
    gc.collect()
    gc.freeze()
