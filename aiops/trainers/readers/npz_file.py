"""Read a `.npz` file: named arrays of numbers in a zip archive, as `numpy.savez` writes it.

What lives here: the names that are understood, and the checks before anything is allocated. What
does not: checks of the numbers themselves (`rows.py`). Arrays of Python objects are refused:
they hold pickled code.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from aiops.errors import DataError
from aiops.trainers.readers.rows import VALUES_MAX, Rows, check_size, unreadable
from aiops.wording import shown

FEATURE_NAMES: Final = ("x", "X", "features", "data")
TARGET_NAMES: Final = ("y", "target", "targets", "label", "labels")
SPLIT_NAMES: Final = ("x_train", "y_train", "x_test", "y_test")
# What numpy needs for any dtype of numbers; a header is text that is parsed.
HEADER_BYTES_MAX: Final = 10_000

Array = NDArray[Any]


def read_npz(path: Path, target: str | int | None = None) -> tuple[Rows, Rows | None]:
    """Read an archive of arrays.

    Parameters
    ----------
    path
        Holds `x` (or `X`, `features`, `data`) and `y` (or `target`, `labels`); or `x_train`,
        `y_train`, `x_test` and `y_test`. Features with more than two axes are flattened.
    target
        Name of the target array; `None` takes the names above.

    Returns
    -------
    rows, test
        `test` is `None` unless the file brings its own split.

    Raises
    ------
    DataError
        Not such an archive, no such arrays, arrays that are no numbers or do not fit together.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            if target is None and set(SPLIT_NAMES) <= set(names):
                x, y, x_test, y_test = (_load(path, archive, name) for name in SPLIT_NAMES)
                return array_rows(path, x, y), array_rows(path, x_test, y_test)
            feature_name = _pick(path, "feature", FEATURE_NAMES, names)
            wanted = TARGET_NAMES if target is None else (str(target),)
            target_name = _pick(path, "target", wanted, names)
            features = _load(path, archive, feature_name)
            return array_rows(path, features, _load(path, archive, target_name)), None
    except OSError as error:
        raise unreadable(path, error) from error
    except zipfile.BadZipFile as error:
        raise DataError(f"{path}: not an .npz archive ({error}); write it with numpy.savez") from (
            error
        )


def array_rows(source: Path | str, features: Array, target: Array) -> Rows:
    """Check arrays and make rows of them.

    Raises
    ------
    DataError
        Not arrays of numbers, shapes that do not fit, or numbers that cannot be trained on.
    """
    for what, given in (("feature", features), ("target", target)):
        if not isinstance(given, np.ndarray):
            raise DataError(f"{source}: the {what} array is {shown(given)}; pass a numpy array")
    _check_numbers(f"{source}: the feature array", features.dtype)
    _check_numbers(f"{source}: the target array", target.dtype)
    if features.ndim < 1 or len(features) != target.size or target.ndim not in (1, 2):
        raise DataError(
            f"{source}: features of shape {features.shape} and a target of shape {target.shape} "
            "do not fit; they must be (rows, columns) and (rows,)"
        )
    rows = len(features)
    columns = features.size // rows if rows else 0
    check_size(source, rows, columns)
    # float128 and the like may overflow to infinity here, which the check then names
    with np.errstate(over="ignore"):
        flat = features.astype(np.float64).reshape(rows, columns)
        return Rows(source, flat, target.astype(np.float64).reshape(rows)).check()


def _check_numbers(what: str, dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise DataError(
            f"{what} holds Python objects, which are never loaded because they can run code; "
            "save plain numbers"
        )
    if dtype.kind not in "fiub":
        raise DataError(f"{what} has dtype {dtype}; it must hold real numbers")


def _pick(path: Path, what: str, wanted: Sequence[str], names: Sequence[str]) -> str:
    found = [name for name in wanted if name in names]
    if not found:
        raise DataError(
            f"{path}: no {what} array; looked for {', '.join(wanted)}, "
            f"found {', '.join(names[:20]) or 'nothing'}"
        )
    return found[0]


def _load(path: Path, archive: zipfile.ZipFile, name: str) -> Array:
    """Read one array after looking at what its header claims."""
    try:
        info = archive.getinfo(f"{name}.npy")
        with archive.open(info) as member:
            shape, dtype = _header(member)
            _check_numbers(f"{path}: {name}", dtype)
            count = prod(shape)
            # An archive can claim any size in a few bytes, and numpy would allocate it at once.
            negative = any(length < 0 for length in shape)
            if negative or count > VALUES_MAX or count * dtype.itemsize > info.file_size:
                raise DataError(
                    f"{path}: {name} claims the shape {shape}, which is more than the file holds "
                    f"or than the {VALUES_MAX:,} values that the built-in trainers take"
                )
        with archive.open(info) as member:
            loaded: Array = np.lib.format.read_array(
                member, allow_pickle=False, max_header_size=HEADER_BYTES_MAX
            )
            return loaded
    except KeyError as error:
        raise DataError(f"{path}: {name} is no .npy array; write it with numpy.savez") from error
    except DataError:
        raise
    # The archive is a stranger's: zlib, zipfile, numpy and the tokenizer that numpy reads headers
    # with all raise errors of their own kinds.
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: {name} cannot be read ({words}); write it again") from error


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    readers: Mapping[tuple[int, int], Any] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(member)
    if version not in readers:
        raise ValueError(f"array format {version} is unknown")
    shape, _, dtype = readers[version](member, max_header_size=HEADER_BYTES_MAX)
    return shape, dtype
