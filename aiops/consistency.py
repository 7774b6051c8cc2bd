"""Consistency modes as users name them; what they mean is `docs/explanation/consistency.md`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, get_args

from aiops.errors import ConfigError

__all__ = ["ASP", "BSP", "SSP", "Consistency", "consistency_from"]

Reduce = Literal["mean", "sum"]


@dataclass(frozen=True, slots=True)
class BSP:
    """Bulk-synchronous: all workers see exactly the same version in each step.

    Parameters
    ----------
    reduce
        What the contributions of a round become: their `"mean"` over the workers that pushed,
        or their `"sum"`; a float32 left fold in rank order, so the bits never vary.
    """

    mode: ClassVar[str] = "bsp"
    reduce: Reduce = "mean"

    def __post_init__(self) -> None:
        if self.reduce not in get_args(Reduce):
            raise ConfigError(f'BSP: reduce is {self.reduce!r}; it must be "mean" or "sum"')

    def settings(self) -> dict[str, float | int | bool | str | None]:
        """Return what travels to the servers."""
        return {"reduce": self.reduce}


@dataclass(frozen=True, slots=True)
class ASP:
    """Asynchronous: every push takes effect at once, every pull gets what is there."""

    mode: ClassVar[str] = "asp"

    def settings(self) -> dict[str, float | int | bool | str | None]:
        """Return what travels to the servers."""
        return {}


STALENESS_MAX: Final = 1_000_000
"""More clocks than this apart is no bound: `ASP` says so plainly."""


@dataclass(frozen=True, slots=True)
class SSP:
    """Stale-synchronous: pushes take effect at once, but nobody runs far ahead.

    A worker that has completed c clocks may pull and push only when everybody has completed
    c - `staleness`. What it pulls then contains all that everybody pushed in their first
    c - `staleness` clocks, and all that it has pushed itself [1]_, [2]_.

    Parameters
    ----------
    staleness
        By how many clocks a worker may be ahead of the slowest; 0 waits like `BSP`.

    References
    ----------
    .. [1] Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel
       Parameter Server", NIPS 2013.
    .. [2] J. Wei et al., "Managed Communication and Consistency for Fast Data-Parallel
       Iterative Analytics" (Bösen), SoCC 2015.
    """

    mode: ClassVar[str] = "ssp"
    staleness: int = 3

    def __post_init__(self) -> None:
        staleness: object = self.staleness
        if isinstance(staleness, bool) or not isinstance(staleness, int) or staleness < 0:
            raise ConfigError(
                f"SSP: staleness is {staleness!r}; it must be a whole number of clocks, 0 or more"
            )
        if staleness > STALENESS_MAX:
            raise ConfigError(f"SSP: staleness is {staleness}; at most {STALENESS_MAX}, or ASP()")

    def settings(self) -> dict[str, float | int | bool | str | None]:
        """Return what travels to the servers."""
        return {"staleness": self.staleness}


Consistency = BSP | ASP | SSP


def consistency_from(text: str) -> Consistency:
    """Return the mode that a short text names: `bsp`, `asp`, or `ssp:3`.

    Raises
    ------
    ConfigError
        It names none, or its number is wrong.
    """
    name, colon, given = text.partition(":")
    number = int(given) if given.isascii() and given.isdigit() else None
    match name:
        case "bsp" if not colon:
            return BSP()
        case "asp" if not colon:
            return ASP()
        case "ssp" if number is not None:
            return SSP(staleness=number)
    raise ConfigError(f"consistency is {text!r}; it must be bsp, asp, or ssp:N such as ssp:3")
