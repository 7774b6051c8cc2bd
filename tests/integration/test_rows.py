"""Rows of a table behave as rows of a numpy array, wherever they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aiops
from aiops import ASP
from aiops.errors import UsageError
from aiops.optim import Add
from aiops_protocol.limits import RANGES_PER_FRAME_MAX, SEGMENT_ELEMENTS
from aiops_protocol.payload import Float32Array
from local_jobs import SyncJob, random_array, same_bits

ROWS, WIDTH = 203, 7


@pytest.fixture(scope="module")
def job() -> Iterator[SyncJob]:
    with SyncJob(servers=5) as job:
        yield job


@pytest.fixture(scope="module")
def table(job: SyncJob) -> aiops.Table:
    return job.table((ROWS, WIDTH), init=base(), optimizer=Add(), consistency=ASP())


def base() -> Float32Array:
    return random_array((ROWS, WIDTH), 1)


def slices(rows: int) -> st.SearchStrategy[slice]:
    bound = st.integers(0, rows)
    return st.tuples(bound, bound).map(lambda pair: slice(min(pair), max(pair)))


def row_lists(rows: int) -> st.SearchStrategy[Any]:
    """Numbers in any order, repeated or not, as the kinds of sequence that people have."""
    numbers = st.lists(st.integers(0, rows - 1), max_size=40)
    kinds = st.sampled_from([list, tuple, np.int64, np.uint8, np.int32, np.uint64])
    return st.builds(
        lambda values, kind: kind(values) if kind in (list, tuple) else np.array(values, kind),
        numbers,
        kinds,
    )


def any_rows(rows: int) -> st.SearchStrategy[Any]:
    ranges = slices(rows).map(lambda s: range(s.start, s.stop))
    return slices(rows) | row_lists(rows) | ranges | st.just(slice(None))


@given(rows=any_rows(ROWS))
def test_pull_of_rows(job: SyncJob, table: aiops.Table, rows: Any) -> None:
    expected = base()[rows if isinstance(rows, slice) else np.asarray(rows, np.int64)]
    assert same_bits(job.run(table.pull(rows)), expected)
    out = np.empty(expected.shape, np.float32)
    assert job.run(table.pull(rows, out=out)) is out
    assert same_bits(out, expected)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=25)
@given(data=st.data(), shape=st.sampled_from([(40,), (33, 3), (9, 2, 5), (1, 50), (64, 1)]))
def test_changes_of_rows_against_an_array(
    job: SyncJob, data: st.DataObject, shape: tuple[int, ...]
) -> None:
    """A run of pushes and assignments, whole and of rows, gives the array that numpy gives."""
    table = job.table(shape, optimizer=Add(), consistency=ASP())
    model = np.zeros(shape, np.float32)
    for _ in range(data.draw(st.integers(1, 6))):
        rows = data.draw(st.none() | any_rows(shape[0]))
        everything = np.arange(shape[0])
        index = (
            everything if rows is None else everything[rows if type(rows) is slice else list(rows)]
        )
        values = random_array(model[index].shape, data.draw(st.integers(0, 99)))
        unique = np.unique(index).size == index.size
        if unique and data.draw(st.booleans()):
            job.run(table.assign(values, rows))
            model[index] = values
        else:
            job.run(table.push(values, rows))
            summed = np.zeros_like(model)
            np.add.at(summed, index, values)
            touched = np.zeros(shape[0], np.bool_)
            touched[index] = True
            model[touched] += summed[touched]
    assert same_bits(job.run(table.pull()), model)


def test_rows_over_many_segments(job: SyncJob) -> None:
    """More ranges than one frame may name, and more values than one segment holds."""
    width = 3
    rows = 2 * (RANGES_PER_FRAME_MAX + 7) * 5
    table = job.table((rows, width), optimizer=Add(), consistency=ASP())
    numbers = np.random.default_rng(3).permutation(rows)[: rows // 2]
    values = random_array((numbers.size, width), 4)
    job.run(table.push(values, numbers))
    model = np.zeros((rows, width), np.float32)
    model[numbers] = values
    assert same_bits(job.run(table.pull()), model)
    assert same_bits(job.run(table.pull(numbers)), values)


def test_rows_wider_than_a_segment(job: SyncJob) -> None:
    width = SEGMENT_ELEMENTS + 5
    table = job.table((11, width), optimizer=Add(), consistency=ASP())
    values = random_array((3, width), 5)
    job.run(table.push(values, [9, 2, 3]))
    assert same_bits(job.run(table.pull([3, 9, 2])), values[[2, 0, 1]])
    assert same_bits(job.run(table.pull(slice(2, 4))), values[1:])
    assert (job.run(table.pull([0])) == 0).all()


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([ROWS], f"row {ROWS} is outside of its {ROWS} rows"),
        ([0, -1], "row -1 is outside"),
        (np.array([2**63 + 5], np.uint64), "is outside"),
        (slice(0, ROWS + 1), f"rows 0:{ROWS + 1} are outside"),
        (slice(-3, None), "rows -3:203 are outside.*negative"),
        (slice(5, 3), "rows 5:3 are outside"),
        (slice(0, 10, 2), r"step 2; pass numpy.arange"),
        (slice(None, None, -1), "step -1"),
        (slice(0.5, 3), "bound 0.5; it must be an integer"),
        ([1.0, 2.0], "one-dimensional array of integers, not float64"),
        ([True, False], "integers, not bool"),
        (np.zeros((2, 2), np.int64), r"not int64 of shape \(2, 2\)"),
        (3, r"not int64 of shape \(\)"),
        ("abc", "one-dimensional array of integers"),
        ([[1, 2], [3]], "one-dimensional array of integers"),
        ([None], "integers, not object"),
        ({"a": 1}, "integers, not object"),
    ],
    ids=str,
)
def test_rows_that_do_not_exist(job: SyncJob, table: aiops.Table, rows: Any, why: str) -> None:
    gradient = np.ones((1, WIDTH), np.float32)
    for verb, call in (
        ("pull", table.pull(rows)),
        ("push", table.push(gradient, rows)),
        ("assign", table.assign(gradient, rows)),
    ):
        with pytest.raises(UsageError, match=f"{verb} on table {table.name}.*{why}"):
            job.run(call)
    assert same_bits(job.run(table.pull()), base())


def test_a_repeated_row_cannot_be_assigned(job: SyncJob, table: aiops.Table) -> None:
    with pytest.raises(UsageError, match="named twice"):
        job.run(table.assign(np.ones((2, WIDTH), np.float32), [4, 4]))


def test_a_table_of_one_number_has_no_rows(job: SyncJob) -> None:
    table = job.table((), consistency=ASP())
    with pytest.raises(UsageError, match="has no rows"):
        job.run(table.pull([0]))


@pytest.mark.parametrize("rows", [[], (), slice(3, 3), np.zeros(0, np.int64), range(0)], ids=str)
def test_no_rows_at_all(job: SyncJob, table: aiops.Table, rows: Any) -> None:
    nothing = np.empty((0, WIDTH), np.float32)
    assert same_bits(job.run(table.pull(rows)), nothing)
    assert job.run(table.push(nothing, rows)).status == "applied"
    job.run(table.assign(nothing, rows))
    assert same_bits(job.run(table.pull()), base())


@pytest.mark.parametrize(
    ("out", "why"),
    [
        (np.empty((ROWS, WIDTH)), "float32"),
        ([[0.0] * WIDTH] * ROWS, "numpy array of float32"),
        (np.empty((ROWS, WIDTH + 1), np.float32), "shape"),
        (np.empty((ROWS, 2 * WIDTH), np.float32)[:, ::2], "contiguous"),
        (np.empty((WIDTH, ROWS), np.float32).T, "contiguous"),
        (np.frombuffer(bytes(4 * ROWS * WIDTH), np.float32).reshape(ROWS, WIDTH), "writeable"),
    ],
    ids=["float64", "list", "shape", "strided", "fortran", "read-only"],
)
def test_out_that_does_not_do(job: SyncJob, table: aiops.Table, out: Any, why: str) -> None:
    for call in (table.pull(out=out), table.push_pull(base(), out=out)):
        with pytest.raises(UsageError, match=f"{table.name}: out .*{why}"):
            job.run(call)
    assert same_bits(job.run(table.pull()), base())
