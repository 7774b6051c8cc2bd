"""What a training run came to: one worker's account, all of them merged, and the text for people.

Pure functions and records. What does not live here: measuring (`loop.py`), and how the pieces
travel from the workers to whoever prints the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiops.errors import UsageError
from aiops.observability import PHASES, LatencyHistogram
from aiops.observability.staleness import StalenessHistogram, bucket_name
from aiops.trainers.shortened import compression_lines, compression_of

CAUSES: Final = ("pushed", "pulled", "retransmitted", "control")
VERBS: Final = ("push", "pull")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The final model measured on all rows: `loss` and `accuracy` or `rmse` of each part."""

    train: dict[str, float]
    test: dict[str, float]


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one worker did.

    Parameters
    ----------
    rank
        The worker.
    model, parameters
        What was trained, and how many parameters it has.
    data, train_rows, test_rows
        With what.
    steps
        Steps this worker took.
    seconds
        From the start to the end of the last step, without the evaluation.
    phases
        Seconds spent in each phase of the steps, summed.
    loss
        Of the last batch.
    stopped_because
        Why it ended when it did.
    latency, bytes, servers
        As from `Worker.stats`: by verb; by cause; sent to and received from each server. In a ring
        a push is an all-reduce, and what has gone to and come from other workers is in the bytes.
    tables, compression
        What each table has counted; what compression has done with each, and with a ring.
    evaluation
        From the worker that evaluated; `None` from the others.
    """

    rank: int
    model: str
    parameters: int
    data: str
    train_rows: int
    test_rows: int
    steps: int
    seconds: float
    phases: dict[str, float]
    loss: float
    stopped_because: str
    latency: dict[str, dict[str, Any]]
    bytes: dict[str, int]
    servers: dict[str, dict[str, int]]
    evaluation: Evaluation | None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    compression: dict[str, dict[str, Any]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WorkerReport:
        """Rebuild a report from `to_dict`."""
        evaluation = values["evaluation"]
        return cls(**{**values, "evaluation": Evaluation(**evaluation) if evaluation else None})


def final_report(
    workers: Sequence[WorkerReport], *, servers: int, status: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Merge the accounts of all workers into one report.

    Parameters
    ----------
    workers
        One report per worker.
    servers
        How many servers there were.
    status
        The scheduler's last status of the job, if there is one: then the latencies are those of
        all requests together; without it `p50_s` is the middle one of the workers' medians and
        `p99_s` the worst of theirs.

    Returns
    -------
    report : dict
        `train_loss`, `test_loss`, and `train_accuracy` and `test_accuracy` (fractions) or
        `train_rmse` and `test_rmse`; `steps` (the most that a worker took), `seconds` (the
        slowest worker's), `workers`, `servers`; `bytes` by cause; `phases` (seconds of a worker,
        on average); `latency` by verb; `stopped_because`; `by_worker` and `by_server`; where there
        is any, `staleness` of gradients (changes of others between read and push, 16 and more under
        powers of two) and `late`, contributions that came too late for their round; and
        `compression`, by table or ring and direction: codec, bytes before and after, `ratio`; with
        `auto` how many workers chose what, and the reason of one of them.

    Raises
    ------
    UsageError
        No reports, or none with an evaluation.
    """
    evaluation = next((w.evaluation for w in workers if w.evaluation is not None), None)
    if evaluation is None:
        raise UsageError("no worker has evaluated the model, so there is nothing to report")
    first = workers[0]
    metrics = {
        f"{part}_{name}": value
        for part, values in (("test", evaluation.test), ("train", evaluation.train))
        for name, value in values.items()
    }
    return {
        "model": first.model,
        "parameters": first.parameters,
        "data": first.data,
        "train_rows": first.train_rows,
        "test_rows": first.test_rows,
        **metrics,
        "steps": max(w.steps for w in workers),
        "seconds": max(w.seconds for w in workers),
        "workers": len(workers),
        "servers": servers,
        "stopped_because": first.stopped_because,
        "bytes": _summed(w.bytes for w in workers),
        "phases": _phases(workers),
        "latency": _all_latency(workers, status),
        "by_worker": [_account(w) for w in sorted(workers, key=lambda w: w.rank)],
        "by_server": _by_server(workers),
        **_staleness_of(workers),
        **compression_of([w.compression for w in workers]),
    }


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = dict.fromkeys(CAUSES, 0)
    for count in counts:
        for cause in CAUSES:
            total[cause] += count.get(cause, 0)
    return total


def _phases(workers: Sequence[WorkerReport]) -> dict[str, float]:
    known = dict.fromkeys(phase for w in workers for phase in w.phases)
    names = [*(phase for phase in PHASES if phase in known), *(n for n in known if n not in PHASES)]
    return {name: sum(w.phases.get(name, 0.0) for w in workers) / len(workers) for name in names}


def _all_latency(
    workers: Sequence[WorkerReport], status: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]]:
    """Return latencies as the scheduler has them; it knows nothing of those in a ring."""
    of_workers = _latency(workers)
    known = _latency_of(status) if status else of_workers
    return {verb: found if found["count"] else of_workers[verb] for verb, found in known.items()}


def _latency(workers: Sequence[WorkerReport]) -> dict[str, dict[str, Any]]:
    merged = {}
    for verb in VERBS:
        accounts = [w.latency[verb] for w in workers if w.latency.get(verb, {}).get("count")]
        medians = sorted(account["p50_s"] for account in accounts)
        merged[verb] = {
            "count": sum(account["count"] for account in accounts),
            "p50_s": medians[len(medians) // 2] if medians else None,
            "p99_s": max((account["p99_s"] for account in accounts), default=None),
        }
    return merged


def _latency_of(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    merged = {}
    for verb in VERBS:
        histogram = LatencyHistogram()
        for worker in status["workers"]:
            counts = worker["latency"].get(verb, {})
            # keys are numbers in the scheduler's process and texts in a JSON document
            histogram.merge(
                LatencyHistogram.from_counts({int(bucket): n for bucket, n in counts.items()})
            )
        merged[verb] = histogram.summary()
    return merged


def _staleness_of(workers: Sequence[WorkerReport]) -> dict[str, Any]:
    """Return how stale gradients were, and how many contributions came too late, if any can be."""
    staleness, late = StalenessHistogram(), 0
    for worker in workers:
        for counts in worker.tables.values():
            late += counts.get("late", 0)
            staleness.add({int(least): n for least, n in counts.get("staleness", {}).items()})
    shown = {str(least): count for least, count in sorted(staleness.counts.items())}
    return ({"staleness": shown} if shown else {}) | ({"late": late} if late else {})


def _account(worker: WorkerReport) -> dict[str, Any]:
    return {
        "rank": worker.rank,
        "steps": worker.steps,
        "seconds": worker.seconds,
        "loss": worker.loss,
        "bytes": _summed([worker.bytes]),
        "phases": dict(worker.phases),
    }


def _by_server(workers: Sequence[WorkerReport]) -> list[dict[str, Any]]:
    """Add up what the workers exchanged with each server, from the server's side."""
    ranks = sorted({int(rank) for w in workers for rank in w.servers})
    accounts = []
    for rank in ranks:
        traffic = [w.servers[str(rank)] for w in workers if str(rank) in w.servers]
        counts = {
            "received": sum(t["sent"] for t in traffic),
            "sent": sum(t["received"] for t in traffic),
        }
        accounts.append({"rank": rank, "bytes": counts})
    return accounts


def render(report: Mapping[str, Any]) -> list[str]:
    """Return a final report as lines of text."""
    return list(_lines(report))


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    seconds = report["seconds"]
    yield (
        f"{report['model']} on {report['data']}: {_count(report['parameters'], 'parameter')}, "
        f"{_count(report['train_rows'], 'row')} to train on, "
        f"{_count(report['test_rows'], 'row')} to test with"
    )
    yield (
        f"{_count(report['steps'], 'step')} in {seconds:.2f} s "
        f"({report['steps'] / max(seconds, 1e-9):.0f} a second), "
        f"{_count(report['workers'], 'worker')}, {_count(report['servers'], 'server')}; "
        f"ended because {report['stopped_because']}"
    )
    for part in ("test", "train"):
        shown = [f"loss {report[f'{part}_loss']:.4f}"]
        if f"{part}_accuracy" in report:
            shown.insert(0, f"accuracy {report[f'{part}_accuracy']:.2%}")
        if f"{part}_rmse" in report:
            shown.insert(0, f"rmse {report[f'{part}_rmse']:.4g}")
        yield f"{part:<6} {', '.join(shown)}"
    yield (
        "time   "
        + ", ".join(f"{name} {spent:.2f} s" for name, spent in report["phases"].items())
        + " (mean of the workers)"
    )
    for verb, latency in report["latency"].items():
        if latency["count"]:
            yield (
                f"{verb:<6} {_count(latency['count'], 'request')}, "
                f"p50 {latency['p50_s'] * 1e3:.2f} ms, p99 {latency['p99_s'] * 1e3:.2f} ms"
            )
    if "staleness" in report:
        counts = ((bucket_name(int(least)), n) for least, n in report["staleness"].items())
        yield "stale  by changes of others: " + ", ".join(f"{name}: {n:,}" for name, n in counts)
    if "late" in report:
        yield f"late   {_count(report['late'], 'contribution')} came after their round"
    yield from compression_lines(report.get("compression", {}))
    yield f"bytes  {_bytes(report['bytes'])}"
    for kind in ("server", "worker"):
        for account in report[f"by_{kind}"]:
            yield f"  {kind} {account['rank']}: {_bytes(account['bytes'])}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _bytes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{cause} {_size(count)}" for cause, count in counts.items())


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
