"""Progress of a training run: what it says, and that a picture of it can be drawn at all."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from aiops_cli.lines import SharedOutput
from aiops_cli.progress import LINE_EVERY_S, Bar, PlainLines, Standing, display, standing


@pytest.fixture
def pipe() -> Iterator[tuple[int, SharedOutput]]:
    reader, writer = os.pipe()
    output = SharedOutput(writer)
    yield reader, output
    output.close()
    os.close(writer)
    os.close(reader)


def worker(state: str, clock: int, **metrics: float) -> dict[str, Any]:
    return {"state": state, "clock": clock, "metrics": metrics}


def test_the_slowest_worker_that_lives_counts() -> None:
    workers = [
        worker("alive", 7, loss=1.0),
        worker("alive", 9, loss=3.0),
        worker("lost", 2, loss=8),
    ]
    assert standing({"workers": workers}, 100, 1.5) == Standing(2, 7, 100, 2.0, 1.5)
    assert standing({"workers": [worker("left", 5)]}, 100, 1.5) == Standing(0, 0, 100, None, 1.5)


async def test_plain_lines_come_only_with_news(pipe: tuple[int, SharedOutput]) -> None:
    reader, output = pipe
    lines = PlainLines(output, "training")
    lines.show(Standing(1, 5, 10, None, 0.0))
    lines.show(Standing(1, 6, 10, 0.5, LINE_EVERY_S / 2))  # too early
    lines.show(Standing(2, 5, 10, 0.5, LINE_EVERY_S))  # nothing has moved
    lines.show(Standing(2, 7, 10, 0.25, LINE_EVERY_S))
    lines.close()
    await output.drain()
    assert os.read(reader, 1000).decode().splitlines() == [
        "training",
        "step 5/10  1 worker  0.0 s",
        "step 7/10  loss 0.2500  2 workers  2.0 s",
    ]


async def test_a_bar_and_the_lines_of_children_above_it(pipe: tuple[int, SharedOutput]) -> None:
    reader, output = pipe
    screen = io.StringIO()
    bar = Bar(output, Console(file=screen, force_terminal=True, width=100))
    bar.show(Standing(4, 120, 440, 0.125, 1.0))
    await output.write("worker-0", b"a warning of a child [not markup]\n")
    bar.show(Standing(3, 220, 440, None, 2.0))
    bar.close()
    await output.drain()  # raises what a drawing raised
    shown = screen.getvalue()
    for text in ("starting", "training on 4 workers", "120/440", "loss 0.1250", "[not markup]"):
        assert text in shown
    output.note("after the bar\n")
    await output.drain()
    assert os.read(reader, 1000) == b"after the bar\n"


async def test_quiet_is_quiet(pipe: tuple[int, SharedOutput]) -> None:
    reader, output = pipe
    shown = display(output, "training", quiet=True, is_terminal=True)
    shown.show(Standing(1, 1, 1, None, 9.0))
    shown.close()
    output.note("end\n")
    await output.drain()
    assert os.read(reader, 1000) == b"end\n"
