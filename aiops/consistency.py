"""Consistency modes as users name them; what they mean is `docs/explanation/consistency.md`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from aiops.errors import ConfigError

__all__ = ["ASP", "BSP", "Consistency"]

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


Consistency = BSP | ASP
