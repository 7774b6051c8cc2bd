"""From a source to train and test rows: labels, split, standardisation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.errors import ConfigError, DataError
from aiops.trainers import data
from aiops.trainers.data import Dataset, from_arrays, load


def points(
    rows: int = 50, columns: int = 3, seed: int = 0
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).standard_normal((rows, columns))


def test_digits_are_split_as_published() -> None:
    """1,437 train rows and 360 test rows, pixels standardised with a softened spread."""
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_digits

    digits = load("digits")
    assert (digits.features, digits.classes, digits.task) == (64, 10, "classification")
    assert digits.x_train.shape == (1437, 64)
    assert digits.x_test.shape == (360, 64)
    raw = load_digits()
    order = np.random.default_rng(1234).permutation(1797)
    pixels = raw.data[order] / 16
    wanted = (pixels - pixels[:1437].mean(0)) / (pixels[:1437].std(0) + 0.1)
    constant = pixels[:1437].std(0) == 0
    assert digits.x_train.dtype == digits.x_test.dtype == np.float32
    np.testing.assert_allclose(digits.x_train, wanted[:1437], atol=1e-5)
    np.testing.assert_allclose(digits.x_test[:, ~constant], wanted[1437:, ~constant], atol=1e-5)
    np.testing.assert_array_equal(digits.y_train, raw.target[order][:1437])
    np.testing.assert_array_equal(digits.y_test, raw.target[order][1437:])
    same = load("digits", seed=5)
    np.testing.assert_array_equal(same.x_test, digits.x_test)


def test_digits_without_scikit_learn_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        load("digits")


def test_nothing_imports_scikit_learn_before_it_is_needed() -> None:
    code = "import sys, aiops.trainers; sys.exit('sklearn' in sys.modules)"
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(paths)}, check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize("suffix", ["csv", "npz", "libsvm"])
def test_every_format_gives_the_same_data(tmp_path: Path, suffix: str) -> None:
    x, y = points(), np.arange(50) % 3
    path = tmp_path / f"points.{suffix}"
    rows = list(zip(x.tolist(), y.tolist(), strict=True))
    if suffix == "npz":
        np.savez(path, x=x, y=y)
    elif suffix == "csv":
        path.write_text("\n".join(f"{a!r},{b!r},{c!r},{k}" for (a, b, c), k in rows))
    else:
        path.write_text("\n".join(f"{k} 1:{a!r} 2:{b!r} 3:{c!r}" for (a, b, c), k in rows))
    got, wanted = load(path, seed=7), from_arrays(x, y, seed=7)
    assert got.name == path.name
    for field in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(got, field), getattr(wanted, field))


@given(rows=st.integers(3, 80), seed=st.integers(0, 2**64 - 1))
def test_the_split_loses_and_repeats_nothing(rows: int, seed: int) -> None:
    x = np.arange(rows * 2.0).reshape(rows, 2)
    y = np.arange(rows) % 2
    one, two = (from_arrays(x, y, seed=seed) for _ in range(2))
    assert len(one.x_test) == max(1, rows // 5)
    assert len(one.x_train) + len(one.x_test) == rows
    np.testing.assert_array_equal(one.x_train, two.x_train)
    # The rows are evenly spaced, so after standardisation each still has its own place.
    both = np.concatenate([one.x_train, one.x_test])[:, 0].astype(np.float64)
    order = np.argsort(both)
    labels = np.concatenate([one.y_train, one.y_test])[order]
    np.testing.assert_array_equal(labels, y)
    assert np.unique(both).size == rows


def test_another_seed_splits_otherwise() -> None:
    x, y = points(), np.arange(50) % 3
    assert not np.array_equal(from_arrays(x, y, seed=0).x_test, from_arrays(x, y, seed=1).x_test)


def test_features_are_standardised_by_the_train_rows() -> None:
    x = points(500, 4) * [1.0, 1e4, 1e-6, 0.0] + [0.0, 1e6, 5.0, 0.1]
    made = from_arrays(x, np.arange(500) % 2)
    train = made.x_train.astype(np.float64)
    np.testing.assert_allclose(train.mean(0), 0.0, atol=1e-4)
    np.testing.assert_allclose(train.std(0), [1, 1, 1, 0], atol=1e-4)
    # rounding noise of a constant column must not be blown up
    np.testing.assert_allclose(made.x_test[:, 3], 0.0, atol=1e-12)
    assert abs(made.x_test[:, 1].mean()) < 1


def test_a_value_that_no_float32_can_hold_after_scaling_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    tiny = points(6, 1) * 1e-30
    np.savez(path, x_train=tiny, y_train=[0, 1] * 3, x_test=[[1e10]], y_test=[1])
    with pytest.raises(DataError, match="so far from the others"):
        load(path)


def test_labels_are_numbered_and_remembered() -> None:
    made = from_arrays(points(4), np.array([-1, 7, 7, 3]))
    assert made.labels == (-1, 3, 7)
    assert made.classes == 3
    numbers = np.concatenate([made.y_train, made.y_test])
    assert numbers.dtype == np.int64
    assert sorted(numbers.tolist()) == [0, 1, 2, 2]


def test_the_target_of_a_regression_is_standardised_and_can_be_turned_back() -> None:
    y = points(200)[:, 0] * 250.0 + 1e4
    made = from_arrays(points(200), y, task="regression")
    assert (made.classes, made.labels) == (0, ())
    assert made.y_train.dtype == np.float32
    assert abs(float(made.y_train.mean())) < 1e-4
    back = np.concatenate([made.y_train, made.y_test]) * made.target_scale + made.target_mean
    np.testing.assert_allclose(np.sort(back), np.sort(y), rtol=1e-5)


def test_a_split_that_the_file_brings_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    np.savez(path, x_train=points(5), y_train=[0, 1, 0, 1, 0], x_test=points(2), y_test=[2, 1])
    made = load(path)
    assert (len(made.x_train), len(made.x_test)) == (5, 2)
    assert made.labels == (0, 1, 2)
    assert made.y_test.tolist() == [2, 1]
    np.savez(path, x_train=points(5), y_train=[0, 1, 0, 1, 0], x_test=points(2, 4), y_test=[1, 1])
    with pytest.raises(DataError, match="3 columns to train on but 4 to test with"):
        load(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("1,0\n2,0.5\n3,1\n", "points.csv:2: the label 0.5 is not a whole number"),
        ("1,0\n2,9007199254740993\n3,1\n", "points.csv:2: the label 9007199254740992 may be"),
        ("1,0\n2,1\n3,-9007199254740993\n", "points.csv:3: the label -9007199254740992 may be"),
        ("1,3\n2,3\n3,3\n", "every row has the label 3"),
        ("1,0\n", "1 data rows are too few"),
        ("1,0\n2,1\n", "at least 3"),
        ("1,0\n1,1\n1,0\n1,1\n", "every feature has the same value"),
    ],
)
def test_data_that_cannot_be_learned_from(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "points.csv"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        load(path)
    assert words in str(caught.value)


def test_a_constant_target_is_nothing_to_learn() -> None:
    with pytest.raises(DataError, match="nothing to learn"):
        from_arrays(points(), np.full(50, 0.1), task="regression")


def test_a_column_of_numbers_is_not_taken_for_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "CLASSES_MAX", 10)
    assert from_arrays(points(), np.arange(50) % 10).classes == 10
    with pytest.raises(DataError, match="11 different labels"):
        from_arrays(points(), np.arange(50) % 11)


@pytest.mark.parametrize("source", ["digit", "points.txt", "points", "", "points.csv.gz"])
def test_an_unknown_source_lists_the_known_ones(source: str) -> None:
    with pytest.raises(DataError) as caught:
        load(source)
    for word in ("digits", ".csv", ".npz", ".libsvm"):
        assert word in str(caught.value)


def test_what_else_is_refused() -> None:
    with pytest.raises(DataError, match="leave the target out"):
        load("digits", target="y")
    with pytest.raises(ConfigError, match="seed"):
        load("digits", seed=-1)
    with pytest.raises(ConfigError, match="seed"):
        from_arrays(points(), np.zeros(50), seed=-1)
    for task in ("", "classify", None):
        with pytest.raises(DataError, match='"classification" or "regression"'):
            load("digits", task=task)  # type: ignore[arg-type]
        with pytest.raises(DataError, match='"classification" or "regression"'):
            from_arrays(points(), np.zeros(50), task=task)  # type: ignore[arg-type]
    for target in (1.5, True, [1], b"y"):
        with pytest.raises(DataError, match="target is"):
            load("points.csv", target=target)  # type: ignore[arg-type]
    for source in (5, None, b"digits", "a\0b.csv"):
        with pytest.raises(DataError, match="source is"):
            load(source)  # type: ignore[arg-type]
    assert not hasattr(from_arrays(points(), np.arange(50) % 2), "__dict__")
    assert Dataset.__dataclass_params__.frozen  # type: ignore[attr-defined]
