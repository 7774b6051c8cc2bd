"""`aiops train`: the built-in trainers on a cluster of their own, or as workers of a running one.

Here the flags become settings; `train_cluster` and `train_worker` do the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import aiops
from aiops.consistency import consistency_from
from aiops.trainers.config import MODELS, OPTIMIZERS, RING_ORDERS, SYNCS, TrainConfig
from aiops.trainers.local_steps import LocalSteps
from aiops.trainers.sparse.config import SPARSE_MODELS
from aiops_cli.cluster_file import ClusterFile
from aiops_cli.launch import Plan, log_flags, plan_count
from aiops_cli.options import (
    cluster_option,
    logging_options,
    option,
    policy_options,
    scheduler_address,
    scheduler_option,
)
from aiops_cli.scheduler import loss_policy
from aiops_cli.train_cluster import train_on_cluster
from aiops_cli.train_sparse import (
    SPARSE_ONLY,
    SparseTask,
    sparse_task,
    train_sparse_as_worker,
    train_sparse_on_cluster,
)
from aiops_cli.train_worker import Seat, train_as_worker

# Options of this command that are settings of the training, in the order of --help.
SETTINGS = (
    option("--steps", type=int, help="Steps of each worker."),
    option("--epochs", type=int, help="Passes over the data, in place of --steps."),
    option(
        "--batch-size",
        type=int,
        default=32,
        show_default=True,
        help="Rows per worker and step; 256 for logistic and fm.",
    ),
    option("--optimizer", type=click.Choice(list(OPTIMIZERS)), help="How servers update."),
    option("--lr", type=float, help="Learning rate."),
    option("--lr-schedule", help="As in warmup:100,cosine:900:0.1, by steps; also step and sqrt."),
    option("--momentum", type=float, default=0.9, show_default=True, help="For that optimizer."),
    option("--weight-decay", type=float, help="Pull towards 0 in every step."),
    option("--l1", type=float, help="Penalty that makes zeros, for ftrl and proximal-sgd."),
    option("--l2", type=float, help="Penalty of squares, for ftrl and proximal-sgd."),
    option("--clip-norm", type=float, help="Scale each worker's gradient down to this norm."),
    option("--hidden", default="256,128", show_default=True, help="Hidden layers of the mlp."),
    option("--seed", type=int, default=0, show_default=True, help="Start values and row order."),
    option(
        "--consistency",
        metavar="MODE",
        default="bsp",
        show_default=True,
        help="bsp: all workers step together; asp: nobody waits; ssp:3: at most 3 steps ahead; "
        "quorum:3: three are enough for a step.",
    ),
    option(
        "--sync",
        type=click.Choice(SYNCS),
        default="servers",
        show_default=True,
        help="Where parameters are: on servers, or at every worker of a ring.",
    ),
    option(
        "--ring-order",
        type=click.Choice(RING_ORDERS),
        default="any",
        show_default=True,
        help="With --sync ring: rank gives the bits of servers with bsp.",
    ),
    option(
        "--compression",
        metavar="CODEC",
        help="How gradients go: auto, top-k:0.01, int8, one-bit, ...; + puts one after the other.",
    ),
    option(
        "--pull-compression", metavar="CODEC", help="How values come back: auto, top-k:0.04, ..."
    ),
    option("--target-loss", type=float, help="Stop at this loss on the train rows."),
    option("--patience", type=int, help="Stop after so many checks without a lower loss."),
    option("--check-every", type=int, default=20, show_default=True, help="Steps between checks."),
    option("--max-seconds", type=float, help="Stop at the first step boundary after this time."),
    option("--factors", type=int, default=8, show_default=True, help="Vectors of the fm."),
    option("--hash-names", is_flag=True, help="Features of logistic and fm are names."),
    option(
        "--test",
        type=click.Path(dir_okay=False, exists=True, path_type=Path),
        help="Rows to test logistic and fm with.",
    ),
)

# Training with local steps: flag, field of LocalSteps, type, help.
LOCAL = (
    ("--local-steps", "every", int, "Exchange only after so many steps of each worker (DiLoCo)."),
    ("--outer-lr", "outer_lr", float, "Learning rate of the servers then.  [default: 0.7]"),
    ("--outer-momentum", "outer_momentum", float, "Their momentum.  [default: 0.9]"),
    ("--fragments", "fragments", int, "Exchange the model in so many parts, in turn."),
    ("--outer-delay", "delay", int, "Steps until a part that was exchanged is taken in."),
)


@dataclass(frozen=True, slots=True)
class Task:
    """What to train on what, as the flags say it."""

    data: str
    target: str | None
    config: TrainConfig

    def flags(self) -> Iterator[str]:
        """Yield the arguments that make another `aiops train` do the same."""
        yield self.config.model
        yield from ("--data", self.data)
        if self.target is not None:
            yield from ("--target", self.target)
        unused = unused_settings(self.config)
        for name, value in self.config.to_dict().items():
            if name in unused:
                continue
            if name == "hidden":
                yield from ("--hidden", ",".join(map(str, value)))
            elif name == "local":
                for flag, field, _, _ in LOCAL if value else ():
                    yield from (flag, str(value[field]))
            elif name != "model" and value is not None:
                yield from (f"--{name.replace('_', '-')}", str(value))


def unused_settings(config: TrainConfig) -> dict[str, str]:
    """Return the settings that mean nothing for this training, and what each is for."""
    unused = {}
    if config.model != "mlp":
        unused["hidden"] = "mlp"
    if config.optimizer != "momentum":
        unused["momentum"] = "--optimizer momentum"
    return unused


def training_options(command: Any) -> Any:
    """Add the settings of the training to a command."""
    local = (option(flag, type=kind, help=text) for flag, _, kind, text in LOCAL)
    for add in reversed((*SETTINGS, *local)):
        command = add(command)
    return command


def local_steps(settings: dict[str, Any]) -> LocalSteps | None:
    """Take the flags for local steps out of all settings, and return what they say."""
    given = {
        field: value
        for flag, field, _, _ in LOCAL
        if (value := settings.pop(flag[2:].replace("-", "_"))) is not None
    }
    if given and "every" not in given:
        flags = ", ".join(flag for flag, field, _, _ in LOCAL if field in given)
        raise click.UsageError(f"{flags}: only with --local-steps")
    return LocalSteps(**given) if given else None


@click.command(
    epilog="Examples:  aiops train softmax --data digits --servers 2 --workers 4 --steps 200"
    "  |  aiops train linear --data houses.csv --target price --scheduler 127.0.0.1:9070"
    "  |  aiops train logistic --data clicks.libsvm --test later.libsvm --l1 0.01 --workers 2"
)
@click.argument("model", type=click.Choice([*MODELS, *SPARSE_MODELS]))
@option("--data", default="digits", show_default=True, help="digits, or a .csv .npz .libsvm file.")
@option("--target", help="What to predict: a column of the csv file, an array of the npz file.")
@option(
    "--servers",
    type=click.IntRange(min=0),
    help="Servers to start.  [default: 1, with --sync ring 0]",
)
@option("--workers", type=click.IntRange(min=1), help="Workers to start.  [default: 1]")
@scheduler_option
@option("--name", help="With --scheduler: the name of this worker.")
@cluster_option
@training_options
@policy_options
@option("--insecure", is_flag=True, help="Listen beyond loopback, without encryption.")
@option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the phases of every step as a Chrome/Perfetto trace.",
)
@option("--quiet", is_flag=True, help="Show no progress.")
@option("--json", "as_json", is_flag=True, help="End with one JSON object on the last line.")
@logging_options("warning")
def train(
    model: str,
    data: str,
    target: str | None,
    servers: int | None,
    workers: int | None,
    scheduler: str | None,
    name: str | None,
    cluster: ClusterFile | None,
    on_worker_loss: str | None,
    min_workers: int | None,
    heartbeat_s: float,
    insecure: bool,
    trace: Path | None,
    quiet: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Train MODEL on servers and workers that are started here, and report.

    With --scheduler this process joins a running cluster as one worker instead.
    """
    own = {flag: settings.pop(flag) for flag in SPARSE_ONLY}
    task: Task | SparseTask
    if model in SPARSE_MODELS:
        given = settings | {"target": target, "trace": trace}
        task = sparse_task(model, data, own, given, set(filter(_typed, given)))
    else:
        for flag in filter(_typed, own):
            raise click.UsageError(f"--{flag.replace('_', '-')}: only for logistic and fm")
        settings["hidden"] = _layers(settings["hidden"])
        local = local_steps(settings)
        task = Task(data, target, TrainConfig(model=model, local=local, **settings))
        for flag, owner in unused_settings(task.config).items():
            if _typed(flag):
                raise click.UsageError(f"--{flag}: only for {owner}")
    if scheduler is not None:
        for flag, value in (("servers", servers), ("workers", workers), ("trace", trace)):
            if value is not None and _typed(flag):
                raise click.UsageError(
                    f"--{flag} is for a cluster started here; not with --scheduler"
                )
        seat = Seat(scheduler_address(scheduler, cluster), name, quiet, as_json, insecure)
        if isinstance(task, SparseTask):
            return aiops.run(train_sparse_as_worker(task, seat))
        return aiops.run(train_as_worker(task.data, task.target, task.config, seat))
    if name is not None and _typed("name"):
        raise click.UsageError("--name is for a worker of a running cluster; give --scheduler too")
    in_ring = isinstance(task, Task) and task.config.sync == "ring"
    if servers == 0 and not in_ring:
        raise click.UsageError("--servers 0: only with --sync ring; otherwise at least 1")
    in_file = len(cluster.servers) if cluster else None
    plan = Plan(
        servers=plan_count("servers", servers, in_file, default=0 if in_ring else 1),
        workers=plan_count("workers", workers, cluster.workers if cluster else None),
        cluster=cluster,
        on_worker_loss=loss_policy(on_worker_loss, min_workers),
        min_workers=min_workers,
        heartbeat_s=heartbeat_s,
        insecure=insecure,
        trace=trace is not None,
        log_options=log_flags(click.get_current_context().params),
    )
    consistency_from(task.config.consistency).check_workers(plan.workers)
    if isinstance(task, SparseTask):
        return train_sparse_on_cluster(plan, task, quiet=quiet, as_json=as_json)
    return train_on_cluster(plan, task, trace, quiet=quiet, as_json=as_json)


def _typed(parameter: str) -> bool:
    # A variable of the environment that this way of running has no use for is no mistake.
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(units) for units in text.split(",") if units.strip())
    except ValueError as error:
        raise click.UsageError(f"--hidden {text!r}: give sizes of layers, as in 256,128") from error
