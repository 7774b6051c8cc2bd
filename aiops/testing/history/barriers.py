"""Barriers: nobody leaves before everybody of the same generation has come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from aiops.testing.history.run import Operation, Run, WorkerHistory
from aiops.testing.history.violation import Violation

__all__ = ["leaving_of_barriers"]


def leaving_of_barriers(run: Run) -> Iterator[Violation]:
    """Check every generation of every barrier, per machine: clocks of several differ."""
    for host in sorted({worker.host for worker in run.workers}):
        workers = [worker for worker in run.workers if worker.host == host]
        opened: dict[tuple[str, int], list[Operation]] = defaultdict(list)
        for worker in workers:
            for barrier in worker.of_kind("barrier"):
                if barrier.outcome == "ok":
                    opened[barrier.invoked.name, barrier.generation].append(barrier)
        for passed in opened.values():
            yield from _check(passed, workers)


def _check(passed: list[Operation], workers: list[WorkerHistory]) -> Iterator[Violation]:
    first = min(passed, key=lambda barrier: barrier.ended_at)
    name, generation = first.invoked.name, first.generation
    left = f"{first.worker} left generation {generation} of barrier {name}"
    for barrier in passed:
        if barrier.invoked_at > first.ended_at:
            text = f"{left} before {barrier.worker} had come to it"
            yield Violation("barriers", text, (first, barrier))
    came = {id(barrier.worker) for barrier in passed}
    for worker in workers:
        if id(worker) not in came and _was_needed(worker, first):
            text = f"{left}, and {worker}, which was there all the time, never came to it"
            yield Violation("barriers", text, (first,))


def _was_needed(worker: WorkerHistory, first: Operation) -> bool:
    """Whether a worker was surely a live member, not finished, and not at this barrier.

    A worker that had joined before is a member, and one that leaves cleanly afterwards was never
    lost. One whose call has failed, or goes on, may have come.
    """
    closed = worker.closed
    if worker.header.at > first.invoked_at or closed is None or not closed.clean:
        return False
    if any(call.invoked_at < first.ended_at for call in worker.of_kind("finish")):
        return False
    return closed.at > first.ended_at and not any(
        barrier.invoked.name == first.invoked.name
        and barrier.outcome != "ok"
        and barrier.invoked_at < first.ended_at
        for barrier in worker.of_kind("barrier")
    )
