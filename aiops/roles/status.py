"""The status of a job as one document, from what the scheduler and the nodes' reports know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aiops.observability.staleness import StalenessHistogram
from aiops.roles.membership import Node, NodeState
from aiops_protocol.control import TableReport

if TYPE_CHECKING:
    from aiops.roles.job import Job

__all__ = ["status"]


def status(core: Job, now: float) -> dict[str, object]:
    """Return members, tables with their range map, rounds, clocks and who is waited for."""
    servers = core.members.nodes("server")
    workers = core.members.nodes("worker")
    return {
        "job": core.job,
        "epoch": core.members.epoch,
        "ready": core.members.ready,
        "ended": None if core.ended is None else {"ok": core.ended.ok, "reason": core.ended.reason},
        "uptime_s": round(now - core.started_at, 3),
        "expected": dict(core.members.expected),
        "servers": [_node(node) for node in servers],
        "workers": [_node(node) | _refused(core, node, now) for node in workers],
        "tables": _tables(core, servers),
        "rounds": _rounds(servers),
        "staleness": _staleness(servers),
        "late": _late(servers),
        "slow": _slow(servers),
        "barriers": core.barriers.waiting(),
        "stop": core.stopping.reason,
        "bytes": _bytes(workers),
    }


def _node(node: Node) -> dict[str, object]:
    report = node.report
    return {
        "rank": node.rank,
        "name": node.name,
        "state": node.state.value,
        "reason": node.reason,
        "incarnation": node.incarnation,
        "address": f"{node.host}:{node.port}" if node.port else node.host,
        "process_id": node.process_id,
        "clock": node.clock,
        "counters": dict(report.counters) if report else {},
        "latency": {verb: dict(counts) for verb, counts in report.latency.items()}
        if report
        else {},
        "metrics": dict(report.metrics) if report else {},
        "choices": dict(report.choices) if report else {},
    }


def _refused(core: Job, node: Node, now: float) -> dict[str, float]:
    """Say for how long a name that was lost too often is refused, if it is."""
    left_s = core.restarts.refused_for_s(node.name, now)
    return {"refused_for_s": round(left_s, 1)} if left_s else {}


def _tables(core: Job, servers: list[Node]) -> list[dict[str, object]]:
    """Add to each part of a sparse table what its server has told: rows, and bytes of memory."""
    reports = {node.rank: node.report for node in servers}
    tables = core.catalogue.describe()
    for table in tables:
        parts = table["ranges"]
        assert isinstance(parts, list)
        for part in parts:
            report = reports.get(part["server"])
            if table["layout"] != "dense":
                metrics = report.metrics if report else {}
                part["rows"] = int(metrics.get(f"rows of {table['name']}", 0))
                part["bytes"] = int(metrics.get(f"bytes of {table['name']}", 0))
    return tables


def _rounds(servers: list[Node]) -> dict[str, dict[str, object]]:
    rounds: dict[str, dict[str, object]] = {}
    for node in servers:
        if node.report is None or node.state is not NodeState.ALIVE:
            continue
        for table, (version, missing) in node.report.rounds.items():
            entry = rounds.setdefault(table, {"versions": {}, "waiting_for": []})
            versions, waiting = entry["versions"], entry["waiting_for"]
            assert isinstance(versions, dict)
            assert isinstance(waiting, list)
            versions[node.rank] = version
            waiting += [rank for rank in missing if rank not in waiting]
    return rounds


def _reports(servers: list[Node]) -> Iterator[TableReport]:
    for node in servers:
        yield from node.tables.values()


def _staleness(servers: list[Node]) -> dict[str, dict[int, int]]:
    """Per table: gradients by the changes of others between read and push, over all servers."""
    found: dict[str, StalenessHistogram] = {}
    for report in _reports(servers):
        if report.staleness:
            found.setdefault(report.table, StalenessHistogram()).add(report.staleness)
    return {table: dict(sorted(each.counts.items())) for table, each in found.items()}


def _late(servers: list[Node]) -> dict[str, dict[int, int]]:
    """Per table: contributions of each worker that came after their round had closed."""
    return {report.table: dict(report.late) for report in _reports(servers) if report.late}


def _slow(servers: list[Node]) -> dict[str, dict[int, dict[str, float]]]:
    """Per table: workers that keep the others waiting, as seen where it is worst."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for report in _reports(servers):
        for rank, (clocks, waited_s) in report.slow.items():
            known = found.setdefault(report.table, {}).get(rank)
            if known is None or waited_s > known["waited_s"]:
                entry = {"clocks_behind": clocks, "waited_s": round(waited_s, 1)}
                found[report.table][rank] = entry
    return found


def _bytes(workers: list[Node]) -> dict[str, int]:
    total = {"pushed": 0, "pulled": 0, "retransmitted": 0, "control": 0}
    for node in workers:
        if node.report is not None:
            for cause in total:
                total[cause] += node.report.counters.get(f"bytes_{cause}", 0)
    return total
