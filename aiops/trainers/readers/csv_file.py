"""Read a `.csv` file: commas, optional header, quoted fields, one row per example.

What lives here: the grammar, the choice of header and of target column. What does not: checks of
the numbers themselves (`rows.py`).
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

import numpy as np

from aiops.errors import DataError
from aiops.trainers.readers.rows import Rows, check_size, unreadable
from aiops.wording import shown

# Columns that are taken for the target when none is named; otherwise it is the last one.
TARGET_NAMES: Final = frozenset({"target", "label", "labels", "class", "y"})
# Words for "unknown" in other people's files: never the name of a column.
MISSING: Final = frozenset({"", "?", "-", "na", "n/a", "nan", "none", "null"})


def read_csv(path: Path, target: str | int | None = None) -> Rows:
    """Read a comma-separated file.

    Parameters
    ----------
    path
        A UTF-8 file, with or without a byte order mark.
    target
        Column to predict: a name from the header, or a number that counts from 0, or from the
        end when negative. `None`: the column called target, label, class or y if there is one,
        else the last.

    Raises
    ------
    DataError
        The file cannot be read, a row is not a row of numbers, or there is no such column; names
        the file and the line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read(path, _records(path, file), target)
    except OSError as error:
        raise unreadable(path, error) from error


Record = tuple[int, list[str]]


def _records(path: Path, file: TextIO) -> Iterator[Record]:
    """Yield (line, fields) for each line that is not blank."""
    reader = csv.reader(file, strict=True, skipinitialspace=True)
    while True:
        line = reader.line_num + 1  # where the record begins: quoted fields may span lines
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{path}:{line}: {error}; mend the line") from error
        except UnicodeDecodeError as error:
            # The text layer decodes ahead, so the line is where reading stood, not where it is.
            raise DataError(
                f"{path}:{line} or later: not UTF-8 text ({error.reason}); save the file as UTF-8"
            ) from error
        if fields is None:
            return
        if len(fields) > 1 or (fields and fields[0].strip()):
            yield line, fields


def _read(path: Path, records: Iterator[Record], target: str | int | None) -> Rows:
    first = next(records, None)
    if first is None:
        raise DataError(f"{path}: the file is empty; it needs rows of numbers")
    line, fields = first
    width = len(fields)
    if width < 2:
        raise DataError(
            f"{path}:{line}: only one column ({fields[0][:40]!r}); there must be a feature and a "
            "target, separated by commas"
        )
    header = [field.strip() for field in fields] if _is_header(fields, target) else []
    values, lines = array("d"), array("q")
    if not header:
        _append(path, line, fields, header, values)
        lines.append(line)
    for line, fields in records:
        if len(fields) != width:
            raise DataError(
                f"{path}:{line}: {len(fields)} fields where the first row has {width}; "
                "mend the line"
            )
        _append(path, line, fields, header, values)
        lines.append(line)
        check_size(path, len(lines), width)
    if not lines:
        raise DataError(f"{path}: a header but no data rows; it needs rows of numbers")
    return _split(path, header, np.frombuffer(values).reshape(-1, width), lines, target)


def _append(
    path: Path, line: int, fields: list[str], header: Sequence[str], values: array[float]
) -> None:
    try:
        values.extend(map(float, fields))
    except ValueError as error:
        column, text = next((i, f) for i, f in enumerate(fields) if not _is_number(f))
        name = repr(header[column]) if header else str(column)
        what = f"is {text.strip()[:40]!r}, which is not a number" if text.strip() else "is empty"
        raise DataError(f"{path}:{line}: column {name} {what}; mend the line") from error


def _split(
    path: Path,
    header: Sequence[str],
    table: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    lines: array[int],
    target: str | int | None,
) -> Rows:
    column = _target_column(path, header, table.shape[1], target)
    return Rows(
        source=path,
        features=np.delete(table, column, axis=1),
        target=table[:, column].copy(),
        names=[name for index, name in enumerate(header) if index != column],
        lines=np.array(lines, np.int64),
    ).check()


def _target_column(path: Path, header: Sequence[str], width: int, target: str | int | None) -> int:
    if target is None:
        return _named(header) if header else width - 1
    if isinstance(target, str) and header.count(target) > 1:
        raise DataError(
            f"{path}: {header.count(target)} columns are called {shown(target)}; use a number"
        )
    if isinstance(target, str) and target in header:
        return header.index(target)
    index = _as_index(target)
    if index is not None and -width <= index < width:
        return index % width
    known = f"its columns are {', '.join(map(repr, header[:20]))}" if header else "it has no header"
    raise DataError(
        f"{path}: no target column {shown(target)}; {known}; a number from 0 to {width - 1} works "
        "too"
    )


def _is_header(fields: Sequence[str], target: str | int | None) -> bool:
    """Tell names from a first row of data.

    A row without any number is a header. A row of numbers and words is one only if the target
    column has a word: files written from a table with numbered columns begin `0,1,2,label`. Any
    other word among numbers is a damaged row, which must be reported and not be skipped.
    """
    names = [field.strip() for field in fields]
    words = [not _is_number(name) and name.lower() not in MISSING for name in names]
    if not any(words):
        return False
    if not any(_is_number(name) for name in names) or (
        target in names and _as_index(target) is None
    ):
        return True
    index = _named(names) if target is None else _as_index(target)
    return index is not None and -len(names) <= index < len(names) and words[index]


def _named(names: Sequence[str]) -> int:
    """Return the column that is called like a target, or the last one."""
    found = [index for index, name in enumerate(names) if name.lower() in TARGET_NAMES]
    return found[0] if len(found) == 1 else len(names) - 1


def _as_index(target: str | int | None) -> int | None:
    try:
        return None if target is None else int(target)
    except ValueError:
        return None


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
