"""Which rule a table's settings name, and what it needs.

One table for all: a rule that this server does not know is refused, because to take it for
another would be worse.
"""

from __future__ import annotations

from typing import Final

from aiops.compression.pulls import pull_codecs, unit_elements
from aiops.errors import ConfigError
from aiops.roles.bounded import SspRule
from aiops.roles.bulk_rule import BspRule
from aiops.roles.consistency import AspRule, Rule
from aiops.roles.memory import Budget
from aiops.roles.quorum import Policy, QuorumRounds
from aiops.roles.quorum_rule import QuorumRule
from aiops.roles.shards import AnyShard
from aiops.shards.reduction import reduction_from
from aiops_protocol.control import TableSpec
from aiops_protocol.key_range import ALIGNMENT_ELEMENTS

__all__ = [
    "CLOCKED",
    "ROUNDS",
    "check_consistency",
    "has_lead",
    "part_unit",
    "places",
    "rule_for",
]

CLOCKED: Final = frozenset({"bsp", "ssp", "quorum"})
"""Modes in which workers take part: others wait for their seals."""

ROUNDS: Final = frozenset({"bsp", "quorum"})
"""Modes whose version rises by rounds: one step of the optimizer for all elements together."""


def has_lead(spec: TableSpec) -> bool:
    """Whether rounds close without those who are late, as the lead shard decides."""
    return spec.consistency == "quorum" or bool(spec.consistency_settings.get("drop_slowest"))


def check_consistency(spec: TableSpec) -> None:
    """Raise `ConfigError` for a rule that is not known here."""
    settings = spec.consistency_settings
    reduction = reduction_from(settings.get("reduce"), settings.get("trim"))
    match spec.consistency:
        case "asp":
            return
        case "bsp" if reduction and type(settings.get("drop_slowest", 0)) is int:
            return
        case "quorum" if reduction and _policy(spec) is not None:
            return
        case "ssp" if type(settings.get("staleness")) is int:
            return
    raise ConfigError(
        f"table {spec.name}: consistency {spec.consistency} with {settings} is not known here; "
        'there is "bsp" and "quorum" with a reduce, "ssp" with a staleness, and "asp"'
    )


def part_unit(spec: TableSpec) -> int:
    """Return at multiples of how many elements the parts of a table begin.

    Raises
    ------
    ConfigError
        A codec for pulls that is not known here.
    """
    if not spec.pull_compression:
        return ALIGNMENT_ELEMENTS
    codecs = pull_codecs(spec.pull_compression)
    return max(unit_elements(codec) for codec in codecs if codec is not None)


def _policy(spec: TableSpec) -> Policy | None:
    """Return when rounds of a table may close without somebody."""
    settings = spec.consistency_settings
    if spec.consistency == "bsp":
        return Policy(0, int(settings["drop_slowest"] or 0), 0.0, keeps_late=False)
    minimum, grace_s, late = (settings.get(name) for name in ("minimum", "grace_s", "late"))
    if type(minimum) is not int or minimum < 1 or late not in ("drop", "next"):
        return None
    if grace_s is not None and not (isinstance(grace_s, int | float) and grace_s >= 0):
        return None
    return Policy(minimum, 0, grace_s, keeps_late=late == "next")


def places(spec: TableSpec, workers: int) -> int:
    """Return for how many contributions memory is reserved.

    A worker whose late contribution is kept may give another one to the open round.
    """
    if spec.consistency not in ROUNDS:
        return 0
    return 2 * workers if spec.consistency_settings.get("late") == "next" else workers


def rule_for(
    spec: TableSpec, shard: AnyShard, workers: list[int], budget: Budget, *, leads: bool = True
) -> Rule:
    """Make the rule; `workers` are those that take part from the beginning."""
    settings = spec.consistency_settings
    if spec.consistency == "asp":
        return AspRule(shard)
    if spec.consistency == "ssp":
        staleness = settings["staleness"]
        assert isinstance(staleness, int)
        return SspRule(shard, staleness, workers)
    reduction = reduction_from(settings["reduce"], settings.get("trim"))
    assert reduction is not None
    if not has_lead(spec):
        return BspRule(shard, reduction, workers, budget)
    policy = _policy(spec)
    assert policy is not None
    paid = places(spec, len(workers))
    rounds = QuorumRounds(workers, policy, leads=leads)
    return QuorumRule(shard, reduction, rounds, budget, places=paid)
