"""Which rule a table's settings name, and what it needs.

One table for all: a rule that this server does not know is refused, because to take it for
another would be worse.
"""

from __future__ import annotations

from typing import Final

from aiops.compression import codec_from
from aiops.compression.pulls import pull_codec, unit_elements
from aiops.errors import ConfigError
from aiops.reduction import reduction_from
from aiops.roles.bounded import SspRule
from aiops.roles.consistency import AspRule, BspRule, Rule
from aiops.roles.memory import Budget
from aiops.roles.shards import AnyShard
from aiops_protocol.control import TableSpec
from aiops_protocol.key_range import ALIGNMENT_ELEMENTS

__all__ = ["CLOCKED", "ROUNDS", "check_consistency", "part_unit", "places", "rule_for"]

CLOCKED: Final = frozenset({"bsp", "ssp"})
"""Modes in which workers take part: others wait for their seals."""

ROUNDS: Final = frozenset({"bsp"})
"""Modes whose version rises by rounds: one step of the optimizer for all elements together."""


def check_consistency(spec: TableSpec) -> None:
    """Raise `ConfigError` for a rule that is not known here."""
    settings = spec.consistency_settings
    match spec.consistency:
        case "asp":
            return
        case "bsp" if reduction_from(settings.get("reduce"), settings.get("trim")):
            return
        case "ssp" if type(settings.get("staleness")) is int:
            return
    raise ConfigError(
        f"table {spec.name}: consistency {spec.consistency} with {settings} is not known here; "
        'there is "bsp" with a reduce, "ssp" with a staleness, and "asp"'
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
    return unit_elements(pull_codec(codec_from(spec.pull_compression)))


def places(spec: TableSpec, workers: int) -> int:
    """Return for how many contributions memory is reserved."""
    return workers if spec.consistency in ROUNDS else 0


def rule_for(spec: TableSpec, shard: AnyShard, workers: list[int], budget: Budget) -> Rule:
    """Make the rule; `workers` are those that take part from the beginning."""
    settings = spec.consistency_settings
    if spec.consistency == "bsp":
        reduction = reduction_from(settings["reduce"], settings.get("trim"))
        assert reduction is not None
        return BspRule(shard, reduction, workers, budget)
    if spec.consistency == "ssp":
        staleness = settings["staleness"]
        assert isinstance(staleness, int)
        return SspRule(shard, staleness, workers)
    return AspRule(shard)
