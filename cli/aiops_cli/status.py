"""`aiops status`: what a running job is doing, once or again and again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any, Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

import aiops
from aiops.errors import DialFailed
from aiops.observability import LatencyHistogram
from aiops.observability.staleness import bucket_name
from aiops_cli.cluster_file import ClusterFile
from aiops_cli.console import print_json
from aiops_cli.options import (
    cluster_option,
    logging_options,
    option,
    scheduler_address,
    scheduler_option,
)
from aiops_cli.stopping import stop_signals

STOP_WITHIN_S: Final = 2.0
WATCH_EVERY_S: Final = 1.0  # the nodes report once a second
STATE_STYLES: Final = {"alive": "green", "finished": "cyan", "left": "dim", "lost": "bold red"}


@click.command(
    epilog="Examples:  aiops status --scheduler 127.0.0.1:9070 --watch"
    "  |  aiops status --scheduler 127.0.0.1:9070 --json"
)
@scheduler_option
@cluster_option
@option("--watch", is_flag=True, help="Show it again every second until the job ends.")
@option("--timeout-s", type=float, default=5.0, show_default=True, help="Seconds to wait for it.")
@option("--json", "as_json", is_flag=True, help="Print JSON, one line for each look.")
@logging_options("warning")
def status(
    scheduler: str | None,
    cluster: ClusterFile | None,
    watch: bool,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Show the members, tables, rounds and waits of a running job."""
    address = scheduler_address(scheduler, cluster)
    if watch:
        return aiops.run(_watch(address, timeout_s, as_json=as_json))
    document = aiops.run(aiops.fetch_status(address, timeout_s=timeout_s))
    if as_json:
        print_json(document)
    else:
        Console().print(picture(document))
    return 0


async def _watch(address: str, timeout_s: float, *, as_json: bool) -> int:
    """Look again and again until the job is over or a signal comes."""
    live = Live(console=Console(), auto_refresh=False) if _on_terminal(as_json) else None
    with stop_signals(STOP_WITHIN_S) as stop:
        asked = asyncio.create_task(stop.wait())
        seen = False
        if live is not None:
            live.start()
        try:
            while stop.signum is None:
                try:
                    document = await aiops.fetch_status(address, timeout_s=timeout_s)
                except DialFailed as error:
                    if not seen:
                        raise
                    # A scheduler leaves with its job, most likely between two looks.
                    print(f"the job has ended, or its scheduler is lost: {error}", file=sys.stderr)
                    return 0
                seen = True
                if live is not None:
                    live.update(picture(document), refresh=True)
                elif as_json:
                    print_json(document)
                else:
                    print(f"{summary(document)}", flush=True)
                if document["ended"] is not None:
                    return 0
                await asyncio.wait([asked], timeout=WATCH_EVERY_S)
            return 128 + stop.signum
        finally:
            asked.cancel()
            if live is not None:
                live.stop()


def _on_terminal(as_json: bool) -> bool:
    return not as_json and sys.stdout.isatty()


def summary(document: dict[str, Any]) -> str:
    """Return one line about a job."""
    alive = {
        role: sum(node["state"] in ("alive", "finished") for node in document[role])
        for role in ("servers", "workers")
    }
    clocks = [node["clock"] for node in document["workers"] if node["state"] == "alive"]
    clock = f", clocks {min(clocks)} to {max(clocks)}" if clocks else ""
    return (
        f"job {document['job'][:8]}, {_condition(document)}, up {document['uptime_s']:.0f} s, "
        f"{alive['servers']} of {document['expected']['server']} servers, "
        f"{alive['workers']} of {document['expected']['worker'] or 'any number of'} workers{clock}"
    )


def _condition(document: dict[str, Any]) -> str:
    if document["ended"] is not None:
        how = "ended" if document["ended"]["ok"] else "failed"
        return f"{how}: {document['ended']['reason']}"
    if document["stop"]:
        return f"stopping: {document['stop']}"
    return "running" if document["ready"] else "waiting for its nodes"


def picture(document: dict[str, Any]) -> RenderableType:
    """Return the tables that a person reads."""
    parts: list[RenderableType] = [escape(summary(document)), _nodes(document)]
    if document["tables"]:
        parts.append(_tables(document))
    parts += [escape(line) for line in (*waits(document), *slowness(document), *choices(document))]
    parts.append(
        "bytes  " + ", ".join(f"{cause} {size(n)}" for cause, n in document["bytes"].items())
    )
    return Group(*parts)


def _nodes(document: dict[str, Any]) -> Table:
    table = Table("role", "rank", "name", "state", "address", "clock", "loss", "push", "pull")
    for role in ("servers", "workers"):
        for node in document[role]:
            state = f"[{STATE_STYLES[node['state']]}]{node['state']}[/]"
            if node["reason"]:
                state += f" ({escape(node['reason'])})"
            loss = node["metrics"].get("loss")
            table.add_row(
                role.removesuffix("s"),
                str(node["rank"]),
                escape(node["name"]),
                state,
                escape(node["address"]),
                str(node["clock"]) if role == "workers" else "",
                "" if loss is None else f"{loss:.4f}",
                *(_latency(node, verb) for verb in ("push", "pull")),
            )
    return table


def _latency(node: dict[str, Any], verb: str) -> str:
    counts = node["latency"].get(verb)
    if not counts:
        return ""
    # bucket numbers are texts in a JSON document
    found = LatencyHistogram.from_counts({int(bucket): n for bucket, n in counts.items()}).summary()
    middle, worst = found["p50_s"], found["p99_s"]
    if middle is None or worst is None:
        return ""
    return f"p50 {middle * 1e3:.2f} p99 {worst * 1e3:.2f} ms"


def _tables(document: dict[str, Any]) -> Table:
    shown = Table("table", "shape", "updater", "consistency", "version", "server: keys")
    for table in document["tables"]:
        versions = document["rounds"].get(table["name"], {}).get("versions", {})
        ranges = map(_part, table["ranges"])
        shown.add_row(
            escape(table["name"]),
            "x".join(map(str, table["shape"])) or "scalar",
            escape(str(table["optimizer"])),
            escape(str(table["consistency"])),
            str(min(versions.values(), default="")),
            "\n".join(ranges),
        )
    return shown


def _part(part: dict[str, Any]) -> str:
    """Return one server's part of a table: the keys of a dense one, the rows of a sparse one."""
    held = f"{part['rows']} rows" if "rows" in part else f"{part['begin']}..{part['end']}"
    return f"{part['server']}: {held} ({size(part['bytes'])})"


def choices(document: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each thing that workers have chosen by themselves, and why."""
    for node in document["workers"]:
        for what, choice in sorted(node["choices"].items()):
            yield f"worker {node['rank']} chose for {what} {choice}"


def waits(document: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each thing that is waited for, and who it is that is waited for."""
    for name, entry in document["rounds"].items():
        if entry["waiting_for"]:
            ranks = ", ".join(map(str, sorted(entry["waiting_for"])))
            yield f"table {name} waits for worker {ranks}"
    live = [node["rank"] for node in document["workers"] if node["state"] == "alive"]
    for name, arrived in document["barriers"].items():
        missing = ", ".join(str(rank) for rank in live if rank not in arrived)
        yield f"barrier {name} waits for worker {missing}"


def slowness(document: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each worker that keeps the others waiting, and how stale gradients are."""
    for name, workers in document["slow"].items():
        for rank, entry in workers.items():
            yield (
                f"table {name}: the others have waited {entry['waited_s']:g} of the last 10 s for "
                f"worker {rank}, which is {entry['clocks_behind']} clocks behind"
            )
    for name, counts in document["late"].items():
        listed = ", ".join(f"worker {rank}: {count}" for rank, count in counts.items())
        yield f"table {name}: contributions that came too late: {listed}"
    for name, counts in document["staleness"].items():
        listed = ", ".join(f"{bucket_name(int(least))}: {n}" for least, n in counts.items())
        yield f"table {name}: staleness of gradients: {listed}"


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("the last unit takes everything")
