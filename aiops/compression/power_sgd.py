"""Matrices of low rank: PowerSGD."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np

from aiops.compression.base import Codec, State, register
from aiops.errors import ConfigError
from aiops.optim.settings import whole
from aiops.wording import shown
from aiops_protocol.codecs import RANK_MAX, Encoded, LowRank, Section, uniforms
from aiops_protocol.payload import Float32Array

__all__ = ["PowerSGD", "orthonormal"]

_EMPTY = np.empty((0, 0), np.float32)
_NO_VALUES = np.empty(0, np.float32)


@register
@dataclass(frozen=True, slots=True)
class PowerSGD(Codec):
    """Each matrix as the product of two thin ones, by one step of power iteration.

    PowerSGD (Vogels et al., NeurIPS 2019), each worker for itself. It starts from the last
    result, so that it gets better while gradients change slowly. What is no matrix, or would not
    shrink, is sent as it is.

    Parameters
    ----------
    rank
        Columns of the thin matrices.
    shapes
        Of the arrays that lie one after the other in a flat table, such as
        `((64, 256), (256,))`; a tensor counts as its first axis by all others. Without it the
        table is one array.
    """

    name: ClassVar[str] = "power-sgd"
    argument: ClassVar[str] = "rank"

    rank: int = 1
    shapes: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        """Check the settings."""
        rank = whole("PowerSGD", "rank", self.rank, at_least=1, at_most=RANK_MAX)
        object.__setattr__(self, "rank", rank)
        given: object = self.shapes
        if not isinstance(given, tuple | list) or not all(
            isinstance(shape, tuple | list) for shape in given
        ):
            raise ConfigError(
                f"PowerSGD: shapes is {shown(self.shapes)}; pass one shape for each tensor, such "
                "as ((64, 10), (10,))"
            )
        shapes = tuple(
            tuple(whole("PowerSGD", "shapes", size, at_least=1) for size in shape)
            for shape in self.shapes
        )
        object.__setattr__(self, "shapes", shapes)

    def for_shape(self, shape: tuple[int, ...]) -> Codec:
        """Take the table's shape, unless shapes were given.

        Raises
        ------
        ConfigError
            The shapes have another number of elements.
        """
        size = prod(shape)
        if not self.shapes:
            return replace(self, shapes=(shape,)) if shape and size else self
        if self._size != size:
            raise ConfigError(f"PowerSGD: shapes have {self._size} elements, the table has {size}")
        return self

    @property
    def _size(self) -> int:
        return sum(prod(shape) for shape in self.shapes)

    def matrices(self, size: int) -> Iterator[tuple[int, int, int]]:
        """Yield begin, rows and columns of each section; rows are values where columns are 0."""
        if self._size != size:  # some rows of the table
            width = prod(self.shapes[0][1:]) if len(self.shapes) == 1 else 0
            rows = size // width if width and size % width == 0 else 0
            yield (0, rows, width) if self._shrinks(rows, width) else (0, size, 0)
            return
        begin = 0
        for shape in self.shapes:
            rows, columns = shape[0] if shape else 1, prod(shape[1:])
            if len(shape) > 1 and self._shrinks(rows, columns):
                yield begin, rows, columns
            else:
                yield begin, prod(shape), 0
            begin += prod(shape)

    def _shrinks(self, rows: int, columns: int) -> bool:
        return self.rank * (rows + columns) < rows * columns

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Do one step of power iteration for each matrix; see `Codec.encode`."""
        sections: list[Section] = []
        made: State = {}
        for begin, rows, columns in self.matrices(x.size):
            if not columns:
                end = begin + rows
                sections.append(Section(begin, end, _EMPTY, _EMPTY, x[begin:end].copy()))
                continue
            end = begin + rows * columns
            # As large as float32 allows, products of elements would not fit it.
            matrix = x[begin:end].reshape(rows, columns)
            largest = np.abs(matrix).max() or np.float32(1)
            matrix = matrix / largest
            key = f"right-{begin}-{columns}"
            right = state.get(key, _EMPTY)
            if right.shape != (columns, self.rank) or not right.any():
                right = uniforms(seed, begin, columns * self.rank).reshape(columns, self.rank)
                right -= np.float32(0.5)
            left = orthonormal(matrix @ right)
            right = matrix.T @ left
            made[key] = right
            sections.append(Section(begin, end, left, right * largest, _NO_VALUES))
        state.update(made)
        return LowRank(sections)


def orthonormal(columns: Float32Array) -> Float32Array:
    """Return an orthonormal basis of the columns (modified Gram-Schmidt); zero where they depend.

    Plain sums in float64, column by column: the same bits for the same input.
    """
    basis = columns.astype(np.float64)
    for at in range(basis.shape[1]):
        column = basis[:, at]
        before = float(np.sqrt(np.sum(column * column)))
        for done in range(at):
            column -= np.sum(basis[:, done] * column) * basis[:, done]
        norm = float(np.sqrt(np.sum(column * column)))
        # What is left of a dependent column is rounding: it is no direction.
        column *= 0.0 if norm <= 1e-6 * before or norm == 0.0 else 1.0 / norm
    return basis.astype(np.float32)
