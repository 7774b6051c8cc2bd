"""What every reader returns, and the checks that do not depend on the format.

What lives here: `Rows` (features, target, and where each row came from) and its validation. What
does not: formats (one file each beside this one), and what becomes of the rows afterwards
(labels, split, standardisation: `aiops.trainers.data`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from aiops.errors import DataError
from aiops.optim.settings import FLOAT32_MAX
from aiops_protocol.payload import Float32Array

Float64Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

# 64 Mi values: 512 MiB in double precision while the file is read, 256 MiB afterwards, in each
# worker. More than that wants a reader that streams, which these trainers do not have.
VALUES_MAX: Final = 64 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of numbers as they stood in a file.

    Parameters
    ----------
    source
        The file, for messages.
    features : ndarray of float64, shape (rows, columns)
        The inputs.
    target : ndarray of float64, shape (rows,)
        What is to be predicted, as read.
    names
        Name of each feature column, or empty: columns are then named by number.
    lines : ndarray of int64, shape (rows,), or None
        Line of each row; `None` for formats without lines, which name the row number.
    """

    source: Path | str
    features: Float64Array
    target: Float64Array
    names: Sequence[str] = ()
    lines: IntArray | None = None

    def place(self, row: int) -> str:
        """Say where a row came from: `points.csv:17` or `points.npz, row 16`."""
        if self.lines is not None:
            return f"{self.source}:{self.lines[row]}"
        return f"{self.source}, row {row}"

    def column(self, index: int) -> str:
        """Name a feature column."""
        return repr(self.names[index]) if self.names else str(index)

    def check(self) -> Rows:
        """Return the same rows if each number is finite and fits float32.

        Raises
        ------
        DataError
            No rows, no columns, or a number that cannot be trained on; names its place.
        """
        if not self.target.size:
            raise DataError(f"{self.source}: no data rows; the file is empty")
        if not self.features.shape[1]:
            raise DataError(
                f"{self.source}: no feature columns; there must be at least one beside the target"
            )
        for row, column in _first(~_usable(self.features)):
            self._refuse(row, f"column {self.column(column)}", float(self.features[row, column]))
        for (row,) in _first(~_usable(self.target)):
            self._refuse(row, "the target", float(self.target[row]))
        return self

    def _refuse(self, row: int, what: str, value: float) -> NoReturn:
        problem = "does not fit float32" if np.isfinite(value) else "is not a finite number"
        raise DataError(f"{self.place(row)}: {what} is {value:g}, which {problem}; mend the row")


def check_size(source: Path | str, rows: int, columns: int) -> None:
    """Refuse what would not fit in memory, before anything is allocated for it.

    Raises
    ------
    DataError
        More than `VALUES_MAX` values.
    """
    if rows * columns > VALUES_MAX:
        raise DataError(
            f"{source}: {rows:,} rows of {columns:,} columns are more than the {VALUES_MAX:,} "
            "values that the built-in trainers hold in memory; use fewer rows or columns"
        )


def unreadable(source: Path | str, error: OSError) -> DataError:
    """Return the error for a file that cannot be opened or read."""
    return DataError(f"cannot read {source}: {error.strerror or error}; check the path")


def _usable(values: Float64Array | Float32Array) -> NDArray[np.bool_]:
    usable: NDArray[np.bool_] = np.abs(values) <= FLOAT32_MAX  # also False for NaN
    return usable


def _first(wrong: NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """Return the index of the first `True`, in a list of one, or an empty list."""
    if not wrong.any():
        return []
    return [tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))]
