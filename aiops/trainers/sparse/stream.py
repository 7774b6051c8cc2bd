"""Batches of a `.libsvm` file, read as they are needed: the file may be larger than memory.

`label index:value index:value ... # comment` on each line; a label above 0 is a click, any other
none. Every worker reads its own part of the bytes, cut at line ends. Each row gets one feature
more, the same in all, for the intercept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiops.errors import DataError
from aiops.optim.settings import FLOAT32_MAX
from aiops_protocol.key_list import KEY_END, Keys, mix
from aiops_protocol.payload import Float32Array

__all__ = ["INTERCEPT", "Batch", "batches"]

INTERCEPT: Final = KEY_END - 1
"""The key of the feature that every row has; no index of the file may be this."""

LINE_BYTES_MAX: Final = 1 << 20
"""A longer line is no example, and must not decide how much memory is taken."""


class Batch(NamedTuple):
    """Some rows of a file.

    `keys` are the features in them, sorted, each once. An entry is one feature of one row: of row
    `rows[i]` the feature `keys[places[i]]`, with `values[i]`; entries are sorted by row.
    """

    labels: Float32Array
    keys: Keys
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    values: Float32Array


def batches(
    path: Path, size: int, *, part: int = 0, parts: int = 1, hash_names: bool = False
) -> Iterator[Batch]:
    """Iterate over the rows of one part of a file, so many at a time.

    Parameters
    ----------
    path
        The file.
    size
        Rows of a batch; the last one may have fewer.
    part, parts
        Which of how many parts, which are equal in bytes.
    hash_names
        Take what stands before a colon for a name and not for a number: its key is a hash.

    Raises
    ------
    DataError
        The file cannot be read, or a line breaks the grammar; names the file and the line.
    """
    try:
        with path.open("rb") as file:
            length = file.seek(0, 2)
            begin, end = length * part // parts, length * (part + 1) // parts
            file.seek(max(begin - 1, 0))
            if begin:
                file.readline()  # it began in the part before
            at = file.tell()
            lines: dict[int, bytes] = {}  # by where they begin
            while at < end and (line := file.readline(LINE_BYTES_MAX)):
                if len(line) == LINE_BYTES_MAX:
                    where = _place(path, file, at)
                    raise DataError(f"{where}: a line of over {LINE_BYTES_MAX} bytes")
                content = line.partition(b"#")[0]
                if content.strip():
                    lines[at] = content
                at += len(line)
                if len(lines) == size:
                    yield _parsed(path, file, lines, hash_names)
                    lines = {}
            if lines:
                yield _parsed(path, file, lines, hash_names)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _parsed(path: Path, file: BinaryIO, lines: dict[int, bytes], hash_names: bool) -> Batch:
    try:
        return _batch(list(lines.values()), hash_names)
    except (ValueError, OverflowError):
        pass
    for at, line in lines.items():  # once more, to say which it is
        try:
            _batch([line], hash_names)
        except (ValueError, OverflowError) as error:
            shown = line[:60].decode("utf-8", "replace").strip()
            raise DataError(f"{_place(path, file, at)}: {shown!r}: {error}") from None
    raise DataError(f"{_place(path, file, min(lines))} and after: the lines are no examples")


def _place(path: Path, file: BinaryIO, at: int) -> str:
    """Name the line that begins at this byte: only an error needs it, so it is counted then."""
    file.seek(0)
    line = 1
    while at > 0 and (chunk := file.read(min(at, LINE_BYTES_MAX))):
        line += chunk.count(b"\n")
        at -= len(chunk)
    return f"{path}:{line}"


def _batch(lines: list[bytes], hash_names: bool) -> Batch:
    counts = np.array([line.count(b":") for line in lines])
    fields = np.array([len(line.split()) for line in lines])
    if not (fields == counts + 1).all():
        raise ValueError("a line is a label and then index:value pairs")
    if any(b"\0" in line for line in lines):  # numpy would take the end of a token for padding
        raise ValueError("a byte 0 in a line")
    tokens = np.array(b" ".join(lines).replace(b":", b" ").split())
    if tokens.size != int((1 + 2 * counts).sum()):
        raise ValueError("an index or a value is missing")
    starts = np.cumsum(1 + 2 * counts) - (1 + 2 * counts)
    is_feature = np.ones(tokens.size, np.bool_)
    is_feature[starts] = False
    labels = tokens[starts].astype(np.float64)
    pairs = tokens[is_feature].reshape(-1, 2)
    amounts_given = pairs[:, 1].astype(np.float64)
    if not (np.isfinite(labels).all() and (np.abs(amounts_given) <= FLOAT32_MAX).all()):
        raise ValueError("a label or a value is not finite, or does not fit float32")
    values = amounts_given.astype(np.float32)
    features = _hashed(pairs[:, 0]) if hash_names else _numbers(pairs[:, 0])
    rows = np.repeat(np.arange(len(lines)), counts + 1)
    last = np.cumsum(counts + 1) - 1  # of each row: the intercept
    every = np.full(rows.size, INTERCEPT, np.uint64)
    amounts = np.ones(rows.size, np.float32)
    given = np.ones(rows.size, np.bool_)
    given[last] = False
    every[given], amounts[given] = features, values
    keys, places = np.unique(every, return_inverse=True)
    return Batch((labels > 0).astype(np.float32), keys, rows, places.reshape(-1), amounts)


def _numbers(tokens: NDArray[np.bytes_]) -> Keys:
    if tokens.size and (np.char.startswith(tokens, b"-").any()):
        raise ValueError("an index is below 0")
    numbers: Keys = tokens.astype(np.uint64)
    if numbers.size and int(numbers.max()) >= INTERCEPT:
        raise ValueError(f"an index is above {INTERCEPT - 1}")
    return numbers


def _hashed(names: NDArray[np.bytes_]) -> Keys:
    """Hash names of any length, eight bytes at a time; the intercept's key is never one."""
    words = max(1, -(-names.dtype.itemsize // 8))
    table = names.astype(f"S{8 * words}").view("<u8").reshape(-1, words)
    keys = np.zeros(names.size, np.uint64)
    for column in table.T:
        # A name that ends earlier goes on with zeros; those must not change its hash.
        keys = np.where(column == 0, keys, mix(keys ^ column))
    return np.minimum(keys, np.uint64(INTERCEPT - 1))
