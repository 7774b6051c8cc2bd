"""What a member asks for in one collective call, and in which words two of them differ.

Plain values: the members of a ring compare their calls before anything is changed, so that a
program whose ranks have gone different ways hears about it on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aiops.collective import schedule
from aiops.collective.schedule import Algorithm, Groups
from aiops.collective.steps import Schedule

__all__ = ["NAMES", "REDUCTIONS", "Array", "Call", "Kind", "difference", "divide"]

Array: TypeAlias = NDArray[Any]
Kind: TypeAlias = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"]

REDUCTIONS: Final[Mapping[str, np.ufunc]] = {
    "sum": np.add,
    "mean": np.add,  # divided at the end, on every rank alike
    "max": np.maximum,
    "min": np.minimum,
}
"""How two operands become one; a NaN in either gives NaN."""

NAMES: Final[Mapping[np.dtype[Any], str]] = {
    np.dtype(np.float32): "float32",
    np.dtype(np.float64): "float64",
}
"""What can be moved. `dtype.name` takes a microsecond and more to say the same."""


SHAPES_CHARACTERS: Final = 240
"""A list of so many has all its shapes in the words of a call; of a longer one the end is replaced
by a digest. So the words of two members fit into one error text, and differ if their calls do."""


@dataclass(frozen=True, slots=True)
class Call:
    """Everything on which the members must agree.

    Attributes
    ----------
    kind
        Which collective.
    shapes, dtype
        Of the arrays that the caller gave: one, or several that are fused.
    count
        Elements that the schedule covers: for an all-gather those of all ranks.
    op
        For reductions "sum", "mean", "max" or "min", else empty.
    order
        "any", or "rank": a left fold in the order of the ranks, then one division.
    root
        For a broadcast the rank that gives.
    algorithm
        Which schedule; resolved, never "auto".
    compression
        The spelling of the codec in which float32 travels; empty for as it is.
    """

    kind: Kind
    count: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str = "float32"
    op: str = ""
    order: str = "any"
    root: int = 0
    algorithm: Algorithm = "ring"
    compression: str = ""

    def __str__(self) -> str:
        if self.kind == "barrier":
            return "barrier()"
        of = _shown_shapes(self.shapes)
        many = len(self.shapes) > 1
        words = [f"{self.dtype} {f'arrays of shapes {of}' if many else f'array of shape {of}'}"]
        if not self.shapes:
            words = ["no arrays"]
        if self.op:
            words.append(f'op="{self.op}"')
        if self.order != "any":
            words.append(f'order="{self.order}"')
        if self.kind == "broadcast":
            words.append(f"root={self.root}")
        words.append(f'algorithm="{self.algorithm}"')
        compressed = f" compressed by {self.compression}" if self.compression else ""
        return f"{self.kind}({', '.join(words)}){compressed}"

    def schedule(self, rank: int, world_size: int, groups: Groups | None = None) -> Schedule:
        """Return one rank's steps of this call."""
        match self.kind:
            case "all_reduce":
                return schedule.all_reduce(self.algorithm, rank, world_size, self.count, groups)
            case "reduce_scatter":
                return schedule.reduce_scatter(self.algorithm, rank, world_size, self.count)
            case "all_gather":
                return schedule.all_gather(self.algorithm, rank, world_size, self.count)
            case "broadcast":
                return schedule.broadcast(self.algorithm, rank, world_size, self.count, self.root)
            case "barrier":
                return schedule.barrier(rank, world_size)


def _shown_shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    shown = ", ".join(map(str, shapes))
    if len(shown) <= SHAPES_CHARACTERS:
        return shown
    digest = blake2b(shown.encode(), digest_size=8).hexdigest()
    begin = shown[: SHAPES_CHARACTERS // 2].rpartition(", ")[0]
    return f"{begin}, ... ({len(shapes)} in all, digest {digest})"


def divide(total: Array, parts: int, out: Array) -> None:
    """Make a sum a mean.

    What is too small for the type is rounded, also in a program that lets numpy raise an error: it
    would come when the other members have the result.
    """
    with np.errstate(all="ignore"):
        np.divide(total, total.dtype.type(parts), out=out)


def difference(first: str, a: Call, second: str, b: Call) -> str | None:
    """Say in which way two members' calls differ, or `None` if they agree.

    Parameters
    ----------
    first, second
        Who they are, for example "rank 0".
    """
    if a == b:
        return None
    names = ("kind", "shapes", "dtype", "op", "order", "root", "compression", "algorithm", "count")
    field = next(name for name in names if getattr(a, name) != getattr(b, name))
    what = {"kind": "operation", "op": "operation", "shapes": "shape"}.get(field, field)
    return (
        f"the members of the ring differ in {what}: {first} called {a}, {second} called {b}; "
        "all members must make the same calls in the same order, with arrays that look the same"
    )
