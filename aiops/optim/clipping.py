"""Clipping by norms: what spans elements, and is therefore done before a gradient is cut apart.

Clipping by value is a setting of the optimizers; it looks at one element at a time. So is clipping
by row, which a sparse table does before its optimizer steps: there a row is never cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from aiops.errors import ConfigError, UsageError
from aiops.optim.base import Optimizer
from aiops.optim.settings import number
from aiops.wording import shown
from aiops_protocol.payload import Float32Array

__all__ = ["clip_by_global_norm", "clip_rows", "refuse_row_limit", "row_limit"]

_BLOCK: Final = 65_536  # squared in double precision, a block at a time


def clip_by_global_norm(
    gradients: Float32Array | Iterable[Float32Array] | Mapping[str, Float32Array],
    max_norm: float,
) -> float:
    """Scale gradients, in place, so that their common norm is at most `max_norm`.

    Call it on a worker, before the push: there the gradient is whole, so that the bits of the
    result do not depend on the number of servers.

    Parameters
    ----------
    gradients : ndarray of float32, or several of them
        Of any shapes; an iterable, or a mapping of which the values count.
    max_norm
        Above 0.

    Returns
    -------
    norm : float
        The root of the sum of all squares before, in double precision. If it is no finite number
        nothing is scaled; a push of such a gradient says where it is not finite.

    Raises
    ------
    ConfigError
        A bad `max_norm`.
    UsageError
        Something that is no writeable array of float32. Nothing was scaled.

    References
    ----------
    .. [1] R. Pascanu, T. Mikolov and Y. Bengio, "On the difficulty of training recurrent neural
       networks", ICML 2013.
    """
    limit = number("clip_by_global_norm", "max_norm", max_norm, above=0.0)
    if isinstance(gradients, np.ndarray):
        arrays = [gradients]
    elif isinstance(gradients, Iterable):
        arrays = list(gradients.values() if isinstance(gradients, Mapping) else gradients)
    else:
        raise UsageError(
            f"clip_by_global_norm: gradients is {shown(gradients)}; pass an array of float32, a "
            "list of them, or a dict"
        )
    for array in arrays:
        _check(array)
    with np.errstate(all="ignore"):
        norm = sum(map(_squares, arrays)) ** 0.5
        if np.isfinite(norm) and norm > limit:
            factor = np.float32(limit / norm)
            for array in arrays:
                np.multiply(array, factor, out=array)
    return float(norm)


def _check(array: object) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        what = getattr(array, "dtype", type(array).__name__)
        raise UsageError(f"clip_by_global_norm: pass arrays of float32, not {what}")
    if not array.flags.writeable:
        raise UsageError("clip_by_global_norm: an array may not be written to; pass a copy")


def _squares(array: Float32Array) -> float:
    flat = array.reshape(-1)
    total = 0.0
    for at in range(0, flat.size, _BLOCK):
        block = flat[at : at + _BLOCK].astype(np.float64)
        # Not `dot`, whose order of sums is the BLAS library's own.
        total += float(np.square(block, out=block).sum())
    return total


def row_limit(optimizer: Optimizer) -> float | None:
    """Return the norm to which an optimizer wants each row of a gradient cut, if it wants that."""
    limit: float | None = getattr(optimizer, "clip_row", None)
    return limit


def refuse_row_limit(optimizer: Optimizer, where: str) -> None:
    """Raise `ConfigError` if an optimizer wants rows cut where there are none."""
    if row_limit(optimizer) is not None:
        raise ConfigError(
            f"{where}: {type(optimizer).__name__} has clip_row={row_limit(optimizer)}, but a row "
            "of a dense table may lie on several servers; use a sparse table, or "
            "clip_by_global_norm on the worker"
        )


def clip_rows(gradient: Float32Array, max_norm: float) -> None:
    """Scale each row, in place, so that its norm is at most `max_norm`.

    The norm is taken in double precision. A row that is not finite stays as it is. What becomes of
    a row does not depend on the others.

    Parameters
    ----------
    gradient : ndarray of float32, shape (rows, width)
    max_norm
        Above 0.
    """
    norms = np.sqrt(np.square(gradient, dtype=np.float64).sum(axis=1))
    long = np.flatnonzero((norms > max_norm) & np.isfinite(norms))
    if long.size:
        gradient[long] *= (max_norm / norms[long]).astype(np.float32)[:, None]
