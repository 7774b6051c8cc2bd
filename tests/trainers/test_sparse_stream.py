"""Files of examples are read in batches and parts, and nothing wrong with them passes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiops.errors import DataError
from aiops.trainers.sparse import Batch, batches
from aiops.trainers.sparse.stream import INTERCEPT, LINE_BYTES_MAX

TEXT = """1 3:0.5 18446744073709551613:2
-1 7:1   # a comment

0
+1 3:-1e-2 4:1\t5:2
"""


def examples(found: list[Batch]) -> list[tuple[float, tuple[tuple[int, float], ...]]]:
    """Label and features of each row, the intercept left out but looked for."""
    rows = []
    for batch in found:
        assert (batch.keys[:-1] < batch.keys[1:]).all()
        assert (np.diff(batch.rows) >= 0).all()
        for number, label in enumerate(batch.labels.tolist()):
            mine = batch.rows == number
            keys, values = batch.keys[batch.places[mine]].tolist(), batch.values[mine].tolist()
            assert (keys[-1], values[-1]) == (INTERCEPT, 1.0)
            rows.append((label, tuple(zip(keys[:-1], values[:-1], strict=True))))
    return rows


def test_a_file_as_its_lines_say(tmp_path: Path) -> None:
    path = tmp_path / "a.libsvm"
    path.write_text(TEXT)
    assert examples(list(batches(path, 2))) == [
        (1.0, ((3, 0.5), (2**64 - 3, 2.0))),
        (0.0, ((7, 1.0),)),
        (0.0, ()),
        (1.0, ((3, pytest.approx(-0.01)), (4, 1.0), (5, 2.0))),
    ]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 6), max_size=30),
    parts=st.integers(1, 9),
    batch=st.integers(1, 7),
    ends=st.booleans(),
)
def test_parts_have_every_row_once(
    tmp_path: Path, sizes: list[int], parts: int, batch: int, ends: bool
) -> None:
    path = tmp_path / "a.libsvm"
    lines = [
        f"{number % 2} " + " ".join(f"{number * 10 + i}:{i + 1}" for i in range(size))
        for number, size in enumerate(sizes)
    ]
    path.write_text("\n".join(lines) + ("\n" if ends else ""))
    whole = examples(list(batches(path, batch)))
    assert len(whole) == len(sizes)
    found = Counter(
        row
        for part in range(parts)
        for row in examples(list(batches(path, batch, part=part, parts=parts)))
    )
    assert found == Counter(whole)


def test_names_are_hashed_the_same_beside_any_others(tmp_path: Path) -> None:
    """Long neighbours make the array of a batch wider; that must not change a hash."""
    path = tmp_path / "a.libsvm"
    path.write_text("1 city=Paris:1\n0 city=Rome:1 a-name-of-many-more-than-eight-letters:1\n")
    alone = examples(list(batches(path, 1, hash_names=True)))
    assert examples(list(batches(path, 2, hash_names=True))) == alone
    keys = [key for _, features in alone for key, _ in features]
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x 1:1", "x"),
        ("1 1:x", "x"),
        ("1 a:1", "a"),
        ("1 -3:1", "below 0"),
        ("1 18446744073709551614:1", "above"),
        ("1 1", "label and then"),
        ("1 :5", "missing"),
        ("1 1:1:1", "label and then"),
        ("1 1:nan", "finite"),
        ("inf 1:1", "finite"),
        ("1 1:1e39", "float32"),
        ("1 1:1\0", "a byte 0"),
    ],
)
def test_what_is_no_example_is_said(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "bad.libsvm"
    path.write_text(f"1 2:1\n{line}\n0 3:1\n")
    with pytest.raises(DataError, match=words) as caught:
        list(batches(path, 10))
    assert str(caught.value).startswith(f"{path}:2: ")
    assert line[:5] in str(caught.value)


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("parts", [1, 3])
def test_the_line_is_that_of_the_file_in_every_part_of_it(
    tmp_path: Path, size: int, parts: int
) -> None:
    path = tmp_path / "bad.libsvm"
    lines = ["# made by hand", "1 2:1", "", "0 3:1"] * 5
    for bad in (1, 7, 15, 19):
        path.write_text("\n".join([*lines[:bad], "1 7", *lines[bad + 1 :]]))
        said = []
        for part in range(parts):
            try:
                list(batches(path, size, part=part, parts=parts))
            except DataError as error:
                said.append(str(error))
        assert said == [f"{path}:{bad + 1}: '1 7': a line is a label and then index:value pairs"]


def test_files_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        list(batches(tmp_path / "none", 10))
    long = tmp_path / "long"
    long.write_bytes(b"1 1:1\n1 " + b"1:1 " * LINE_BYTES_MAX)
    with pytest.raises(DataError, match="long:2: a line of over"):
        list(batches(long, 10))
    assert list(batches(Path("/dev/null"), 10)) == []
