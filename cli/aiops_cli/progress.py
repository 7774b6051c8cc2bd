"""Progress of a training run: a bar on a terminal, plain lines elsewhere; always on stderr.

Nothing here writes by itself: everything goes through a `SharedOutput`, whose thread waits for a
slow terminal in place of the event loop.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from aiops_cli.lines import SharedOutput

LINE_EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Standing:
    """How far the training is: by the slowest worker, with the mean of the workers' losses."""

    workers: int
    step: int
    planned: int
    loss: float | None
    elapsed_s: float

    def line(self) -> str:
        """Return it as a line of text."""
        loss = "" if self.loss is None else f"  loss {self.loss:.4f}"
        return f"step {self.step}/{self.planned}{loss}  {self.on()}  {self.elapsed_s:.1f} s"

    def on(self) -> str:
        """Say how many workers take part."""
        return f"{self.workers} worker{'' if self.workers == 1 else 's'}"


def standing(
    status: Mapping[str, Any], planned: int, elapsed_s: float, steps_per_clock: int = 1
) -> Standing:
    """Read the standing of a training run out of the scheduler's status."""
    workers = [worker for worker in status["workers"] if worker["state"] == "alive"]
    losses = [worker["metrics"]["loss"] for worker in workers if "loss" in worker["metrics"]]
    clock = min((worker["clock"] for worker in workers), default=0)
    return Standing(
        workers=len(workers),
        step=min(planned, steps_per_clock * clock),
        planned=planned,
        loss=sum(losses) / len(losses) if losses else None,
        elapsed_s=elapsed_s,
    )


class Display(Protocol):
    """Something that shows how far the training is."""

    def show(self, standing: Standing) -> None:
        """Show the newest standing; never waits."""

    def close(self) -> None:
        """Show nothing more; never waits."""


class Nothing:
    """No progress."""

    def show(self, standing: Standing) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


class PlainLines:
    """A line every few seconds, while something moves."""

    def __init__(self, output: SharedOutput, what: str) -> None:
        self._output = output
        output.note(f"{what}\n")
        self._last = Standing(0, 0, 0, None, float("-inf"))

    def show(self, standing: Standing) -> None:
        """Write a line if it is time for one and there is news."""
        moved = standing.step != self._last.step
        if moved and standing.elapsed_s - self._last.elapsed_s >= LINE_EVERY_S:
            self._last = standing
            self._output.note(standing.line() + "\n")

    def close(self) -> None:
        """Do nothing: there is nothing on the screen to take away."""


class Bar:
    """A progress bar below the lines of the children."""

    def __init__(self, output: SharedOutput, console: Console | None = None) -> None:
        self._output = output
        self._console = console or Console(file=sys.__stderr__)
        # Refreshed by hand: rich's own thread would hold its lock while the terminal waits.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}  loss {task.fields[loss]}"),
            TimeRemainingColumn(),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("starting", total=1.0, loss="-")
        output.redirect(self._print_above)
        output.call(self._progress.start)

    def show(self, standing: Standing) -> None:
        """Move the bar."""
        loss = "-" if standing.loss is None else f"{standing.loss:.4f}"

        def draw() -> None:
            self._progress.update(
                self._task,
                description=f"training on {standing.on()}",
                completed=standing.step,
                total=standing.planned,
                loss=loss,
            )
            self._progress.refresh()

        self._output.call(draw)

    def close(self) -> None:
        """Take the bar away; what is written afterwards goes straight to the terminal."""
        self._output.call(self._progress.stop)
        self._output.redirect(None)

    def _print_above(self, data: bytes) -> None:
        text = Text.from_ansi(data.decode(errors="replace").rstrip("\n"))
        self._console.print(text, soft_wrap=True)


def display(output: SharedOutput, what: str, *, quiet: bool, is_terminal: bool) -> Display:
    """Return the display that fits; `what` says in a few words what is to begin."""
    if quiet:
        return Nothing()
    return Bar(output) if is_terminal else PlainLines(output, what)
