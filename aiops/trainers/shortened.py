"""The part of a report that is about compression: what it saved, and what the cost gate chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["compression_lines", "compression_of"]


def compression_of(workers: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Merge what the workers' compression has done.

    Parameters
    ----------
    workers
        From each, by table or ring, as `Worker.stats()["compression"]`.

    Returns
    -------
    report : dict
        Empty, or with the one key `compression`: by table or ring, then by direction.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in sorted({name for worker in workers for name in worker}):
        accounts = [worker[name] for worker in workers if name in worker]
        pushes = [account for account in accounts if "bytes_sent" in account]
        pulls = [account["pull"] for account in accounts if "pull" in account]
        directions = {
            "push": _merged(pushes, "bytes_given", "bytes_sent"),
            "pull": _merged(pulls, "bytes_meant", "bytes_received"),
        }
        found[name] = {direction: merged for direction, merged in directions.items() if merged}
    return {"compression": found} if found else {}


def _merged(accounts: Sequence[Mapping[str, Any]], before: str, after: str) -> dict[str, Any]:
    if not accounts:
        return {}
    given, sent = sum(a[before] for a in accounts), sum(a[after] for a in accounts)
    merged: dict[str, Any] = {
        "codec": accounts[0]["codec"],
        "bytes_before": given,
        "bytes_after": sent,
        "ratio": given / sent if sent else 1.0,
    }
    if "chosen" in accounts[0]:
        merged["chosen"] = dict(Counter(account["chosen"] for account in accounts))
        merged["reason"] = accounts[0]["reason"]
    return merged


def compression_lines(report: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what compression has done, as lines of text."""
    for name, directions in report.items():
        for direction, merged in directions.items():
            before, after = merged["bytes_before"] / 1e6, merged["bytes_after"] / 1e6
            yield (
                f"{direction:<6} {name} by {merged['codec']}: {before:.2f} MB became "
                f"{after:.2f} MB, {merged['ratio']:.1f} times shorter"
            )
            if "chosen" in merged:
                chosen = ", ".join(f"{codec} ({n})" for codec, n in merged["chosen"].items())
                yield f"       at the end chosen by so many workers: {chosen}; {merged['reason']}"
