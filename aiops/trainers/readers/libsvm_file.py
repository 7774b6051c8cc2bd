"""Read a `.libsvm` file: `label index:value index:value ... # comment`, one example per line.

What lives here: the grammar and its limits. What does not: checks of the numbers themselves
(`rows.py`). The result is dense, because the built-in models are; an index is checked against
the limits before anything is allocated for it.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Final

import numpy as np

from aiops.errors import DataError
from aiops.trainers.readers.rows import Rows, check_size, unreadable
from aiops.wording import shown

# A row of 65,536 float32 is 256 KiB, already far more than a dense model wants per example; one
# hostile index must not decide how much memory is taken.
INDEX_MAX: Final = 65_535


def read_libsvm(path: Path, target: str | int | None = None) -> Rows:
    """Read a sparse text file into dense rows.

    Indices count from 1, or from 0 if an index 0 occurs anywhere.

    Parameters
    ----------
    path
        A UTF-8 file.
    target
        Must be `None`: the label stands first on each line.

    Raises
    ------
    DataError
        The file cannot be read or a line breaks the grammar; names the file and the line.
    """
    if target is not None:
        raise DataError(
            f"{path}: a target column ({shown(target)}) cannot be chosen in a libsvm file, whose "
            "lines begin with the label; leave the target out"
        )
    labels, lines = array("d"), array("q")
    rows, indices, values = array("q"), array("q"), array("d")
    try:
        with path.open("rb") as file:
            for line, raw in enumerate(file, start=1):
                fields = _text(path, line, raw).split("#", 1)[0].split()
                if not fields:
                    continue
                labels.append(_label(path, line, fields[0]))
                lines.append(line)
                _entries(path, line, fields[1:], indices, values)
                rows.extend([len(lines) - 1] * (len(indices) - len(rows)))
                check_size(path, len(indices), 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if not lines:
        raise DataError(f"{path}: the file is empty; it needs lines of 'label index:value ...'")
    if not indices:
        raise DataError(
            f"{path}: no line has an index:value pair, so there is nothing to learn from"
        )
    columns = np.array(indices)
    columns -= min(1, int(columns.min()))
    width = int(columns.max()) + 1
    check_size(path, len(lines), width)
    features = np.zeros((len(lines), width))
    features[np.array(rows), columns] = np.array(values)
    return Rows(path, features, np.array(labels), (), np.array(lines, np.int64)).check()


def _text(path: Path, line: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{line}: not UTF-8 text; is this a libsvm file?") from error


def _label(path: Path, line: int, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DataError(
            f"{path}:{line}: the label {text[:40]!r} is not a number; mend the line"
        ) from None


def _entries(
    path: Path, line: int, fields: list[str], indices: array[int], values: array[float]
) -> None:
    previous = -1
    for field in fields:
        index_text, colon, value_text = field.partition(":")
        # isdecimal also accepts digits of other scripts, which int() reads, too
        if not colon or not index_text.isdecimal() or len(index_text) > 20:
            raise DataError(f"{path}:{line}: {field[:40]!r} is not index:value; mend the line")
        index = int(index_text)
        if index > INDEX_MAX:
            raise DataError(
                f"{path}:{line}: index {index} is above {INDEX_MAX}, the most that the dense "
                "built-in trainers take"
            )
        if index <= previous:
            raise DataError(
                f"{path}:{line}: index {index} after {previous}; indices must rise within a line"
            )
        try:
            values.append(float(value_text))
        except ValueError:
            raise DataError(
                f"{path}:{line}: the value of index {index} is {value_text[:40]!r}, which is not "
                "a number; mend the line"
            ) from None
        indices.append(index)
        previous = index
