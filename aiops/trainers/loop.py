"""The training loop of one worker: pull, gradient, push, step after step.

What lives here: the loop, its clock per phase, and the checks that may end it early. What does
not: the mathematics (`models/`), the choice of rows (`batches.py`), the rules for ending
(`stop_rules.py`), and the report over all workers (`report.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiops.errors import TrainingDiverged
from aiops.optim import clip_by_global_norm
from aiops.trainers.batches import Batches
from aiops.trainers.config import TrainConfig
from aiops.trainers.data import Dataset
from aiops.trainers.exchange import Exchange, open_exchange
from aiops.trainers.handles import TrainingWorker
from aiops.trainers.models import Model
from aiops.trainers.report import Evaluation, WorkerReport
from aiops.trainers.stop_rules import StopRules

# The loss of a check is taken over this many train rows at most: the others wait for the
# worker that computes it.
CHECK_ROWS: Final = 8192


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a worker stands after a step.

    Parameters
    ----------
    rank
        The worker.
    step, planned
        Steps done, and steps to do if nothing ends the training early.
    loss
        Mean loss over the batch of this step, before the step.
    elapsed_s
        Seconds since the training began.
    """

    rank: int
    step: int
    planned: int
    loss: float
    elapsed_s: float


async def train(
    worker: TrainingWorker,
    dataset: Dataset,
    model: Model,
    config: TrainConfig,
    on_progress: Callable[[Progress], object] | None = None,
) -> WorkerReport:
    """Train a model together with the other workers of a cluster.

    All workers call it with equal arguments. The parameters are the table `model`; it can be
    pulled afterwards. When the steps are done, all meet, and the worker of the lowest rank
    evaluates the model.

    Parameters
    ----------
    worker
        A connected worker that has not taken a step yet in this process.
    dataset
        The data, the same for all workers; each trains on its own part of it.
    model
        What to train, as from `config.make_model(dataset)`.
    config
        How to train.
    on_progress
        Called after each step; what it raises ends the training.

    Returns
    -------
    report : WorkerReport
        What this worker did; see `final_report`.

    Raises
    ------
    TrainingDiverged
        The loss is no finite number any more.
    ConfigError
        There are more workers than rows.

    Notes
    -----
    Cancelling leaves the table as it is after the last whole step; the open step may or may not
    have been pushed.
    """
    run = await _Run.begin(worker, dataset, model, config)
    await run.take_steps(on_progress or _nothing)
    return await run.conclude()


def _overflow_shows_in_the_result() -> np.errstate:
    """Let numpy be silent where a loss that is no number is looked for, and reported, anyway."""
    return np.errstate(over="ignore", invalid="ignore")


def _worker_ranks(worker: TrainingWorker) -> list[int]:
    return sorted(member.rank for member in worker.members if member.role == "worker")


def _nothing(progress: Progress) -> None:
    """Take no notice of progress."""


class PhaseTimes:
    """Seconds spent in each phase of the steps."""

    def __init__(self, worker: TrainingWorker) -> None:
        self._worker = worker
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Measure a block."""
        begun = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - begun

    @contextmanager
    def traced(self, phase: str, step: int) -> Iterator[None]:
        """Measure a block and record it as a span of the trace."""
        with self.timed(phase), self._worker.span(phase, step):
            yield


@dataclass(slots=True)
class _Run:
    """One training run of one worker."""

    worker: TrainingWorker
    dataset: Dataset
    model: Model
    config: TrainConfig
    exchange: Exchange
    batches: Batches
    rules: StopRules
    phases: PhaseTimes
    begun: float
    planned: int
    gradient: NDArray[np.float32]
    taken: int = field(default=0)
    loss: float = field(default=float("nan"))
    asked_to_stop: bool = field(default=False)

    @classmethod
    async def begin(
        cls, worker: TrainingWorker, dataset: Dataset, model: Model, config: TrainConfig
    ) -> _Run:
        """Share out the rows and open the table."""
        begun = time.perf_counter()
        ranks = _worker_ranks(worker)
        rows = len(dataset.x_train)
        part = ranks.index(worker.rank)
        batches = Batches(rows, config.batch_size, part, len(ranks), config.seed)
        initial = model.initial(config.seed)
        exchange = await open_exchange(worker, config, initial)
        return cls(
            worker=worker,
            dataset=dataset,
            model=model,
            config=config,
            exchange=exchange,
            batches=batches,
            rules=StopRules(config.target_loss, config.patience),
            phases=PhaseTimes(worker),
            begun=begun,
            planned=config.planned_steps(batches.per_epoch),
            gradient=np.empty_like(initial),
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds since the training began."""
        return time.perf_counter() - self.begun

    async def take_steps(self, on_progress: Callable[[Progress], object]) -> None:
        """Step until the plan is done or all have agreed to stop."""
        numbers = aiter(self.exchange.steps(self.planned))
        step = await anext(numbers, None)
        while step is not None:
            await self._step(step)
            on_progress(
                Progress(self.worker.rank, step + 1, self.planned, self.loss, self.elapsed_s)
            )
            await self._consider_stopping(step + 1)
            with self.phases.timed("repeat"):  # the tick, which `steps` itself records as a span
                step = await anext(numbers, None)

    async def _step(self, step: int) -> None:
        with self.phases.timed("start"):
            rows = self.batches.at(step)
            x, y = self.dataset.x_train[rows], self.dataset.y_train[rows]
        if self.config.local is None:
            with self.phases.traced("pull", step):
                await self.exchange.fetch()
        # Overflow is no accident of this line but a property of the training: see below.
        with (
            self.phases.traced("local gradient", step),
            np.errstate(over="ignore", invalid="ignore"),
        ):
            weights = self.exchange.weights
            self.loss, _ = self.model.loss_and_gradient(weights, x, y, out=self.gradient)
            if self.config.clip_norm is not None:
                clip_by_global_norm(self.gradient, self.config.clip_norm)
        if not isfinite(self.loss):
            raise self._diverged(f"{self.loss} at step {step}")
        with self.phases.traced("push" if self.config.local is None else "local step", step):
            await self.exchange.give(self.gradient)
        self.taken += 1
        self.worker.publish_metrics(loss=self.loss)

    async def _consider_stopping(self, done: int) -> None:
        """Ask all to stop if there is a reason; `done` steps are behind this worker."""
        if self.asked_to_stop or done >= self.planned:
            return
        reason = None
        limit = self.config.max_seconds
        if limit is not None and self.elapsed_s >= limit:
            reason = f"{limit:g} s have passed"
        elif self.rules.watching and done % self.config.check_every == 0 and self._leads:
            with self.phases.traced("check", done - 1):
                reason = self.rules.verdict(self._metrics(CHECK_ROWS)["loss"])
        if reason is not None:
            self.asked_to_stop = True
            await self.worker.stop(reason)

    async def conclude(self) -> WorkerReport:
        """Meet the others, evaluate if this worker is the one to do it, and report."""
        seconds = self.elapsed_s
        leads = self._leads  # before the barrier: after it the others begin to leave
        await self.exchange.end()
        await self.worker.barrier("trained")
        evaluation = await self._evaluate() if leads else None
        stats = self.worker.stats()
        return WorkerReport(
            rank=self.worker.rank,
            model=self.model.name,
            parameters=self.model.size,
            data=self.dataset.name,
            train_rows=len(self.dataset.x_train),
            test_rows=len(self.dataset.x_test),
            steps=self.taken,
            seconds=seconds,
            phases=dict(self.phases.seconds),
            loss=self.loss,
            stopped_because=self.worker.stop_reason or f"all {self.planned} steps are done",
            latency={
                verb: dict(values)
                for verb, values in (*stats["latency"].items(), *self.exchange.latency.items())
            },
            bytes=self._bytes(stats),
            servers={str(rank): dict(counts) for rank, counts in stats["servers"].items()},
            evaluation=evaluation,
            tables={name: dict(counts) for name, counts in stats.get("tables", {}).items()},
            compression={
                name: dict(counts)
                for name, counts in (
                    *stats.get("compression", {}).items(),
                    *self.exchange.compression.items(),
                )
            },
        )

    def _bytes(self, stats: Mapping[str, Any]) -> dict[str, int]:
        """Return the bytes by cause; in a ring those to and from other workers are in them."""
        exchanged = self.exchange.among_workers
        return {cause: size + exchanged.get(cause, 0) for cause, size in stats["bytes"].items()}

    async def _evaluate(self) -> Evaluation:
        await self.exchange.newest()
        train = self._metrics(len(self.dataset.x_train))
        test = self._metrics_of(self.dataset.x_test, self.dataset.y_test)
        if not all(map(isfinite, (*train.values(), *test.values()))):
            raise self._diverged(f"{train['loss']} after the last step")
        return Evaluation(train, test)

    @property
    def _leads(self) -> bool:
        return self.worker.rank == _worker_ranks(self.worker)[0]

    def _metrics(self, rows: int) -> dict[str, float]:
        return self._metrics_of(self.dataset.x_train[:rows], self.dataset.y_train[:rows])

    def _metrics_of(self, x: NDArray[np.float32], y: NDArray[Any]) -> dict[str, float]:
        with _overflow_shows_in_the_result():
            return self.model.metrics(self.exchange.weights, x, y)

    def _diverged(self, what: str) -> TrainingDiverged:
        return TrainingDiverged(
            f"worker {self.worker.rank}: the loss became {what}, so the training has diverged; "
            f"use a lower learning rate than {self.config.lr:g}, or the optimizer adam"
        )
