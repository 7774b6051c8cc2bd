"""Files of every format: what is read, and what a damaged file is told."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.errors import ConfigError, DataError
from aiops.trainers.readers import Rows, read_csv, read_libsvm, read_npz, rows
from aiops.trainers.readers.libsvm_file import INDEX_MAX

numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
tables = st.integers(2, 5).flatmap(
    lambda width: st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1)
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "points.any"


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def table_of(read: Rows) -> list[list[float]]:
    columns = np.column_stack([read.features, read.target])
    return [[float(value) for value in row] for row in columns]


def saved(path: Path, compress: bool = False, **arrays: Any) -> Path:
    with path.open("wb") as out:
        (np.savez_compressed if compress else np.savez)(out, **arrays)
    return path


# --- csv ----------------------------------------------------------------------------------


@given(table=tables, header=st.booleans(), quoted=st.booleans())
def test_a_csv_file_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    table: list[list[float]],
    header: bool,
    quoted: bool,
) -> None:
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    lines = [",".join(f'"{v!r}"' if quoted else repr(v) for v in row) for row in table]
    if header:
        lines.insert(0, ",".join(f"column {i}" for i in range(len(table[0]))))
    read = read_csv(written(path, "\n".join(lines)))
    assert table_of(read) == table
    assert read.place(0) == f"{path}:{2 if header else 1}"


@pytest.mark.parametrize(
    ("content", "target", "features", "wanted"),
    [
        ("1,2,3\n4,5,6\n", None, [[1, 2], [4, 5]], [3, 6]),
        ("1,2,3\n4,5,6\n", 0, [[2, 3], [5, 6]], [1, 4]),
        ("1,2,3\n4,5,6\n", "1", [[1, 3], [4, 6]], [2, 5]),
        ("1,2,3\n4,5,6\n", -3, [[2, 3], [5, 6]], [1, 4]),
        ("a,b,c\n4,5,6\n", "a", [[5, 6]], [4]),
        ("a,b,c\n4,5,6\n", None, [[4, 5]], [6]),
        ("a,Label,c\n4,5,6\n", None, [[4, 6]], [5]),
        ('"a, or b",c\r\n4,5\r\n', "a, or b", [[5]], [4]),
        (" a , b \n 4 , 5 \n", "a", [[5]], [4]),
        ("\ufeffa,b\n4,5\n", "a", [[5]], [4]),
        ("a,b\n\n4,5\n\n", None, [[4]], [5]),
        ("0,1,label\n4,5,6\n", None, [[4, 5]], [6]),
        ('"multi\nline",b\n4,5\n', None, [[4]], [5]),
        ("label,1x1,1x2\n7,0,255\n", None, [[0, 255]], [7]),
    ],
)
def test_header_and_target_column(
    file: Path,
    content: str,
    target: str | int | None,
    features: list[list[float]],
    wanted: list[float],
) -> None:
    read = read_csv(written(file, content), target)
    assert read.features.tolist() == features
    assert read.target.tolist() == wanted


@pytest.mark.parametrize(
    ("content", "target", "line", "words"),
    [
        ("a,b\n1,2\nx,4\n", None, 3, "column 'a' is 'x', which is not a number"),
        ("1,2\n3,\n", None, 2, "column 1 is empty"),
        ("1,2\n3,4,5\n", None, 2, "3 fields where the first row has 2"),
        ("a,b\n1,2\n\n3\n", None, 4, "1 fields"),
        ("1,2\n,\n", None, 2, "empty"),
        ("1,oops,3\n1,2,3\n", None, 1, "'oops'"),
        ("1,2,?\n1,2,3\n", None, 1, "'?'"),
        ("1,2\nnan,4\n", None, 2, "column 0 is nan, which is not a finite number"),
        ("a,b\n1,2\n3,inf\n", None, 3, "the target is inf"),
        ("a,b\n1e39,2\n", None, 2, "column 'a' is 1e+39, which does not fit float32"),
        ('a,b\n1,"2\n', None, 2, "unexpected end of data"),
        ("a;b\n1;2\n", None, 1, "only one column"),
        (b"a,b\n1,2\n\xff,4\n", None, 1, "not UTF-8"),
    ],
)
def test_a_damaged_line_is_named(
    file: Path, content: str | bytes, target: str | None, line: int, words: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_csv(written(file, content), target)
    assert f"{file}:{line}" in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "target", "words"),
    [
        ("", None, "empty"),
        ("\n\n", None, "empty"),
        ("a,b\n", None, "no data rows"),
        ("a,b\n1,2\n", "c", "no target column 'c'; its columns are 'a', 'b'"),
        ("a,b\n1,2\n", 2, "no target column 2"),
        ("1,2\n", "c", "it has no header"),
        ("a,a\n1,2\n", "a", "2 columns are called 'a'"),
    ],
)
def test_a_file_without_what_is_asked_for(
    file: Path, content: str, target: str | int | None, words: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_csv(written(file, content), target)
    assert str(file) in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("read", [read_csv, read_libsvm, read_npz])
def test_a_file_that_cannot_be_opened(tmp_path: Path, read: Callable[[Path], object]) -> None:
    for path, words in ((tmp_path / "absent", "No such file"), (tmp_path, "directory")):
        with pytest.raises(DataError, match=words) as caught:
            read(path)
        assert str(path) in str(caught.value)
    assert issubclass(DataError, ConfigError)


def test_a_csv_file_larger_than_the_limit_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "VALUES_MAX", 6)
    assert read_csv(written(file, "1,2\n" * 3)).target.size == 3
    with pytest.raises(DataError, match="more than the 6 values"):
        read_csv(written(file, "1,2\n" * 4))


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = written(tmp_path_factory.mktemp("any") / "points", content)
    for read in (read_csv, read_libsvm, read_npz):
        with suppress(DataError):
            read(path)


# --- libsvm -------------------------------------------------------------------------------


def test_libsvm_counts_from_one_or_from_zero(file: Path) -> None:
    read = read_libsvm(written(file, "+1 1:0.5 3:2\n\n# all zeros:\n-1\n2.5 2:1e-3 # last\n"))
    assert read.features.tolist() == [[0.5, 0, 2], [0, 0, 0], [0, 0.001, 0]]
    assert read.target.tolist() == [1, -1, 2.5]
    assert [read.place(i).rpartition(":")[2] for i in range(3)] == ["1", "4", "5"]
    read = read_libsvm(written(file, "1 1:0.5\n0 0:3\n"))
    assert read.features.tolist() == [[0, 0.5], [3, 0]]


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("1 1:2\nx 1:2\n", 2, "label 'x'"),
        ("1 1\n", 1, "'1' is not index:value"),
        ("1 a:1\n", 1, "'a:1' is not index:value"),
        ("1 -1:1\n", 1, "not index:value"),
        ("1 qid:3 1:1\n", 1, "'qid:3'"),
        ("1 1:x\n", 1, "value of index 1 is 'x'"),
        ("1 2:1 2:1\n", 1, "index 2 after 2"),
        ("1 2:1 1:1\n", 1, "must rise"),
        (f"1 {INDEX_MAX + 1}:1\n", 1, f"above {INDEX_MAX}"),
        ("1 1:1\n1 99999999999999999999999:1\n", 2, "is not index:value"),
        ("1 1:nan\n", 1, "column 0 is nan"),
        ("1 1:1\ninf 1:1\n", 2, "target is inf"),
        (b"1 1:1\n1 \xff:1\n", 2, "not UTF-8"),
    ],
)
def test_a_damaged_libsvm_line_is_named(
    file: Path, content: str | bytes, line: int, words: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_libsvm(written(file, content))
    assert f"{file}:{line}" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("content", "target", "words"),
    [
        ("", None, "empty"),
        ("# nothing\n", None, "empty"),
        ("1\n0\n", None, "nothing to learn from"),
        ("1 1:1\n", "label", "begin with the label"),
    ],
)
def test_a_libsvm_file_without_what_is_asked_for(
    file: Path, content: str, target: str | None, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        read_libsvm(written(file, content), target)


def test_one_hostile_index_takes_no_memory(file: Path) -> None:
    """2,000 lines of the highest index would be 1 GB in double precision."""
    with pytest.raises(DataError, match="more than the"):
        read_libsvm(written(file, f"1 {INDEX_MAX}:1\n" * 2_000))


# --- npz ----------------------------------------------------------------------------------


def test_npz_arrays_by_their_usual_names(file: Path) -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 2], np.uint8)
    for features, target in (("x", "y"), ("X", "target"), ("features", "labels")):
        saved(file, compress=True, **{features: x, target: y, "other": y})
        read, test = read_npz(file)
        assert test is None
        assert table_of(read) == [[0, 1, 0], [2, 3, 1], [4, 5, 2]]
        assert read.place(2) == f"{file}, row 2"
    read, _ = read_npz(file, "other")
    assert read.target.tolist() == [0, 1, 2]


def test_npz_images_are_flattened_and_a_split_is_kept(file: Path) -> None:
    images = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    saved(file, x_train=images[:2], y_train=[0, 1], x_test=images[2:], y_test=[[1]])
    read, test = read_npz(file)
    assert read.features.shape == (2, 8)
    assert test is not None
    assert test.features.tolist() == [[16, 17, 18, 19, 20, 21, 22, 23]]
    assert test.target.tolist() == [1]


@pytest.mark.parametrize(
    ("arrays", "target", "words"),
    [
        ({"x": np.ones((2, 2))}, None, "no target array"),
        ({"y": np.ones(2)}, None, "no feature array"),
        ({"x": np.ones((2, 2)), "y": np.ones(2)}, "z", "looked for z, found x, y"),
        ({"x": np.ones((2, 2)), "y": np.ones(3)}, None, "do not fit"),
        ({"x": np.ones(()), "y": np.ones(1)}, None, "do not fit"),
        ({"x": np.ones((0, 2)), "y": np.ones(0)}, None, "empty"),
        ({"x": np.ones((2, 0)), "y": np.ones(2)}, None, "no feature columns"),
        ({"x": np.array([["a"], ["b"]]), "y": np.ones(2)}, None, "must hold real numbers"),
        ({"x": np.ones((2, 1), complex), "y": np.ones(2)}, None, "must hold real numbers"),
        ({"x": np.array([[1.0], [np.nan]]), "y": np.ones(2)}, None, "row 1: column 0 is nan"),
        ({"x": np.ones((2, 1)), "y": np.array([1.0, np.inf])}, None, "row 1: the target is inf"),
        ({"x": np.array([[1e300], [1.0]]), "y": np.ones(2)}, None, "does not fit float32"),
        ({"x": np.array([[{}], [1]], object), "y": np.ones(2)}, None, "can run code"),
    ],
)
def test_npz_arrays_that_cannot_be_used(
    file: Path,
    arrays: dict[str, Any],
    target: str | None,
    words: str,
) -> None:
    saved(file, **arrays)
    with pytest.raises(DataError) as caught:
        read_npz(file, target)
    assert str(file) in str(caught.value)
    assert words in str(caught.value)


def crafted(path: Path, header: bytes, body: bytes = b"") -> Path:
    """An archive whose array `x` has a hand-made header."""
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body
    good = io.BytesIO()
    np.save(good, np.ones(2))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", member)
        archive.writestr("y.npy", good.getvalue())
    return path


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 1000000000000), }\n", "claims"),
        (b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 300), }\n", "claims"),
        (b"{'descr': '<f8', 'fortran_order': False, 'shape': (-2, 1099511627776), }\n", "claims"),
        (b"{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }\n", "can run code"),
        (b"{'descr': '|S9000000', 'fortran_order': False, 'shape': (2,), }\n", "real numbers"),
        (b"{'descr': '<f8', 'shape': (2,), }\n", "cannot be read"),
        (b"__import__('os').system('true')\n", "cannot be read"),
        (b" " * 60_000 + b"\n", "cannot be read"),
    ],
)
def test_a_hostile_header_is_refused_before_memory_is_taken(
    file: Path, header: bytes, words: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_npz(crafted(file, header))
    assert words in str(caught.value)


@given(header=st.text("{}()[]'\"\\,:#\n\t 0x1dL<f8shapedescrfortran_orderTrueFalse", max_size=80))
def test_any_header_is_an_array_or_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, header: str
) -> None:
    """Numpy reads a header with Python's own tokenizer, which has errors of many kinds."""
    path = crafted(tmp_path_factory.mktemp("any") / "points.npz", header.encode())
    with pytest.raises(DataError):
        read_npz(path)


def test_npz_members_that_are_no_arrays(file: Path) -> None:
    for name, content, words in (
        ("x", b"hello", "no .npy array"),
        ("x.npy", b"hello", "cannot be read"),
        ("x.npy", b"\x93NUMPY\x09\x00", "unknown"),
    ):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(name, content)
            archive.writestr("y.npy", content)
        with pytest.raises(DataError) as caught:
            read_npz(file)
        assert words in str(caught.value)
    with pytest.raises(DataError, match=r"numpy\.savez"):
        read_npz(written(file, "hello"))


def test_a_damaged_archive_is_a_data_error(file: Path) -> None:
    """Flip each byte once: rows or an error, nothing else."""
    saved(file, compress=True, x=np.arange(6.0).reshape(3, 2), y=np.arange(3))
    whole = file.read_bytes()
    for position in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        written(file, bytes(damaged))
        with suppress(DataError):
            read_npz(file)
