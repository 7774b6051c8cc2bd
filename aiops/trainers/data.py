"""Data sets for the built-in trainers: from a name, a file or arrays to train and test rows.

What lives here: `load` and `Dataset`, labels, the split, standardisation. What does not: file
formats (`readers/`), and which worker trains on which rows (`batches.py`).

Everything is decided by the source, the target and the seed alone, so that each worker of a job
makes the same data set by itself. scikit-learn is only imported when its digits are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from aiops.checks import is_one_of
from aiops.errors import DataError
from aiops.optim.settings import whole
from aiops.trainers.readers import Rows, array_rows, read_csv, read_libsvm, read_npz
from aiops.trainers.readers.rows import Float64Array, IntArray
from aiops.wording import shown
from aiops_protocol.payload import Float32Array

Task = Literal["classification", "regression"]
Target = NDArray[np.int64] | Float32Array

TEST_PART: Final = 5  # every fifth row is kept for the test
ROWS_MIN: Final = 3  # two rows to train on are the fewest that can differ
# A column of different numbers read as labels would make a model of one output per row.
CLASSES_MAX: Final = 4096
# Whole numbers from here on are not all told apart in double precision, in which files are read.
LABEL_END: Final = 2**53
# Spread below this part of the mean is rounding noise of a column that is in truth constant.
CONSTANT_SPREAD: Final = 1e-9

DIGITS_SEED: Final = 1234  # the split that published figures of this project refer to
DIGITS_TRAIN: Final = 1437


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Rows to train on and rows to test with, ready for a model.

    Parameters
    ----------
    name
        What it was made from, for reports.
    task
        What the target is: a class or a number.
    x_train, x_test : ndarray of float32, shape (rows, features)
        Features, standardised by mean and spread of the train rows.
    y_train, y_test : ndarray of int64 or float32, shape (rows,)
        Classification: classes 0..k-1. Regression: the target, standardised like a feature.
    labels
        Classification: the label that each class had in the source. Regression: empty.
    target_scale
        Regression: one unit of the standardised target, in units of the source.
    target_mean
        Regression: what was subtracted from the target, in units of the source.
    """

    name: str
    task: Task
    x_train: Float32Array
    y_train: Target
    x_test: Float32Array
    y_test: Target
    labels: tuple[int, ...] = ()
    target_scale: float = 1.0
    target_mean: float = 0.0

    @property
    def features(self) -> int:
        """How many numbers describe one row."""
        return int(self.x_train.shape[1])

    @property
    def classes(self) -> int:
        """How many classes there are; 0 for regression."""
        return len(self.labels)


def load(
    source: str | os.PathLike[str],
    *,
    target: str | int | None = None,
    seed: int = 0,
    task: Task = "classification",
) -> Dataset:
    """Load a data set by name or from a file.

    Parameters
    ----------
    source
        `digits` (1,797 images of 8x8 from scikit-learn), or the path of a `.csv`, `.npz` or
        `.libsvm` file.
    target
        What to predict: a column of a csv file (name or number), an array of an npz file.
        `None` takes the usual names; see the readers.
    seed
        Decides which fifth of the rows is kept for the test. The split of `digits` is fixed.
    task
        `classification` wants whole numbers as labels, `regression` takes any numbers.

    Returns
    -------
    dataset : Dataset
        The same for each worker that gives the same arguments.

    Raises
    ------
    DataError
        The source is unknown or cannot be read as asked; names file and line where there is one.
    """
    seed = whole("load", "seed", seed)
    _check_task("load", task)
    given: object = source
    if not isinstance(given, str | os.PathLike):
        raise DataError(f"load: source is {shown(source)}; give 'digits' or the path of a file")
    wanted: object = target
    if not isinstance(wanted, str | int | np.integer | None) or isinstance(wanted, bool):
        raise DataError(
            f"load: target is {shown(target)}; give the name of a column or array, or a number"
        )
    if os.fspath(source) == "digits":
        if target is not None:
            raise DataError(f"digits: no target {shown(target)} to choose; leave the target out")
        return _digits(task)
    path = Path(source)
    if "\0" in str(path):
        raise DataError(f"load: source is {shown(os.fspath(source))}, which cannot be a path")
    suffix = path.suffix.lower()
    if suffix not in (*_READERS, ".npz"):
        raise DataError(
            f"unknown data source {shown(os.fspath(source))}; give 'digits' or a file that ends in "
            f"{', '.join(sorted((*_READERS, '.npz')))}"
        )
    if suffix in _READERS:
        return _split(path.name, _READERS[suffix](path, target), seed, task)
    rows, test = read_npz(path, target)
    if test is None:
        return _split(path.name, rows, seed, task)
    (y, y_test), labels = _encode(task, rows, test)
    return _standardised(path.name, task, labels, (rows.features, y), (test.features, y_test))


def from_arrays(
    features: NDArray[Any],
    target: NDArray[Any],
    *,
    seed: int = 0,
    task: Task = "classification",
    name: str = "arrays",
) -> Dataset:
    """Make a data set of arrays, split and standardised like a file.

    Parameters
    ----------
    features : ndarray, shape (rows, columns)
        Real numbers of any dtype; more axes are flattened.
    target : ndarray, shape (rows,)
        Labels (whole numbers) or numbers to predict.
    seed
        Decides which fifth of the rows is kept for the test.
    task
        `classification` or `regression`.
    name
        For messages and reports.

    Raises
    ------
    DataError
        The arrays are no numbers, do not fit together or cannot be trained on.
    """
    _check_task("data", task)
    return _split(name, array_rows(name, features, target), whole("data", "seed", seed), task)


_READERS: Final[Mapping[str, Callable[[Path, str | int | None], Rows]]] = {
    ".csv": read_csv,
    ".libsvm": read_libsvm,
}


def _check_task(owner: str, task: object) -> None:
    if not is_one_of(task, ("classification", "regression")):
        raise DataError(
            f'{owner}: task is {shown(task)}; it must be "classification" or "regression"'
        )


Part = tuple[Float64Array, NDArray[Any]]  # features and target of the train or the test rows


def _digits(task: Task) -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "the digits data come with scikit-learn, which is not installed: "
            "run 'pip install scikit-learn', or give a .csv, .npz or .libsvm file"
        ) from error
    raw = load_digits()
    rows = array_rows("digits", raw.data / 16.0, raw.target)  # pixels go from 0 to 16
    order = np.random.default_rng(DIGITS_SEED).permutation(rows.target.size)
    # Some pixels are blank in nearly every image: adding a tenth keeps the few that are not from
    # becoming huge.
    return _taken("digits", task, rows, order, DIGITS_TRAIN, soften=0.1)


def _split(name: str, rows: Rows, seed: int, task: Task) -> Dataset:
    count = rows.target.size
    if count < ROWS_MIN:
        raise DataError(
            f"{rows.source}: {count} data rows are too few; there must be at least {ROWS_MIN}, of "
            "which one is kept for the test"
        )
    order = np.random.default_rng(seed).permutation(count)
    return _taken(name, task, rows, order, count - max(1, count // TEST_PART))


def _taken(
    name: str, task: Task, rows: Rows, order: IntArray, count: int, soften: float = 0.0
) -> Dataset:
    """Train on the first `count` rows of an order, test with the others."""
    (target,), labels = _encode(task, rows)
    train, test = order[:count], order[count:]
    return _standardised(
        name,
        task,
        labels,
        (rows.features[train], target[train]),
        (rows.features[test], target[test]),
        soften,
    )


def _encode(task: Task, *parts: Rows) -> tuple[list[NDArray[Any]], tuple[int, ...]]:
    """Return targets with labels numbered over all parts, and the labels (none: regression)."""
    if task == "regression":
        return [part.target for part in parts], ()
    for part in parts:
        broken = part.target != np.floor(part.target)
        if broken.any():
            row = int(broken.argmax())
            raise DataError(
                f"{part.place(row)}: the label {part.target[row]:g} is not a whole number; number "
                "the classes 0, 1, 2, ..., or train the model 'linear' to predict a number"
            )
        large = np.abs(part.target) >= LABEL_END
        if large.any():
            row = int(large.argmax())
            raise DataError(
                f"{part.place(row)}: the label {part.target[row]:.0f} may be another one that was "
                f"rounded, as numbers of {LABEL_END} and more are; number the classes 0, 1, 2, ..."
            )
    labels, numbers = np.unique(np.concatenate([p.target for p in parts]), return_inverse=True)
    source = parts[0].source
    if labels.size < 2:
        raise DataError(
            f"{source}: every row has the label {labels[0]:g}; there must be at least two classes"
        )
    if labels.size > CLASSES_MAX:
        raise DataError(
            f"{source}: {labels.size:,} different labels are more than {CLASSES_MAX:,} classes; "
            "train the model 'linear' to predict a number, or choose another target"
        )
    bounds = np.cumsum([part.target.size for part in parts])[:-1]
    return np.split(numbers.astype(np.int64), bounds), tuple(map(int, labels))


def _standardised(
    name: str, task: Task, labels: tuple[int, ...], train: Part, test: Part, soften: float = 0.0
) -> Dataset:
    """Shift and scale every feature (and the target of a regression) by its train rows."""
    (x, y), (x_test, y_test) = train, test
    if x_test.shape[1] != x.shape[1]:
        raise DataError(
            f"{name}: {x.shape[1]} columns to train on but {x_test.shape[1]} to test with; "
            "they must be the same"
        )
    mean, spread = _mean_and_spread(x)
    if not spread.any():
        raise DataError(
            f"{name}: every feature has the same value in all rows to train on, so there is "
            "nothing to learn from"
        )
    scale = np.where(spread > 0.0, spread + soften, 1.0)
    target_mean, target_scale = 0.0, 1.0
    if task == "regression":
        middle, width = _mean_and_spread(y)
        target_mean, target_scale = float(middle), float(width)
        if not target_scale:
            raise DataError(
                f"{name}: the target is {target_mean:g} in all rows to train on, so there is "
                "nothing to learn"
            )
        y, y_test = (_scaled(name, part, middle, width) for part in (y, y_test))
    return Dataset(
        name=name,
        task=task,
        x_train=_scaled(name, x, mean, scale),
        y_train=y,
        x_test=_scaled(name, x_test, mean, scale),
        y_test=y_test,
        labels=labels,
        target_scale=target_scale,
        target_mean=target_mean,
    )


def _scaled(
    name: str, values: NDArray[Any], mean: NDArray[Any], scale: NDArray[Any]
) -> Float32Array:
    with np.errstate(over="ignore"):
        scaled: Float32Array = ((values - mean) / scale).astype(np.float32)
    if not np.isfinite(scaled).all():
        raise DataError(
            f"{name}: a value lies so far from the others of its column that it does not fit "
            "float32 in units of their spread; look for damaged rows"
        )
    return scaled


def _mean_and_spread(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return mean and standard deviation along the first axis; rounding noise counts as none."""
    mean, spread = values.mean(axis=0), values.std(axis=0)
    return mean, np.where(spread > CONSTANT_SPREAD * np.abs(mean), spread, 0.0)
