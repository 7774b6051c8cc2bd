"""What tests of commands share: those that run here, and not in a process of their own."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest

from aiops.observability import logs
from aiops_cli.stopping import HANDLED


@pytest.fixture(autouse=True)
def process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command owns its process: it sets up logs and signals. This one has other tests to run."""
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    monkeypatch.setattr(logs, "_settings", None)
    before = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = before
    for number, handler in handlers.items():
        signal.signal(number, handler)
