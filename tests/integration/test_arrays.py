"""Which arrays travel, and that what travels is what was given."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP
from aiops.errors import UsageError
from aiops.optim import Add, Assign
from aiops_protocol.payload import Float32Array
from local_jobs import SyncJob, random_array, same_bits

SHAPE = (30, 4)


@pytest.fixture(scope="module")
def job() -> Iterator[SyncJob]:
    with SyncJob(servers=2) as job:
        yield job


@pytest.fixture
def table(job: SyncJob) -> aiops.Table:
    return job.table(SHAPE, optimizer=Assign(), consistency=ASP())


def given() -> Float32Array:
    return random_array(SHAPE, 1)


def read_only(array: Float32Array) -> Float32Array:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        given(),
        np.asfortranarray(given()),
        np.repeat(given(), 2, axis=0)[::2],
        np.repeat(given(), 3, axis=1)[:, ::3],
        given()[::-1][::-1],
        np.ascontiguousarray(given()[::-1])[::-1],
        read_only(given()),
        np.frombuffer(given().tobytes(), np.float32).reshape(SHAPE),
        np.frombuffer(b"x" + given().tobytes(), np.uint8)[1:].view(np.float32).reshape(SHAPE),
        given().view(np.recarray),
    ],
    ids=[
        "plain",
        "fortran",
        "row-stride",
        "column-stride",
        "there-and-back",
        "negative-stride",
        "read-only",
        "bytes",
        "unaligned",
        "subclass",
    ],
)
def test_arrays_that_travel(job: SyncJob, table: aiops.Table, array: Float32Array) -> None:
    assert not same_bits(job.run(table.pull()), given())
    for call in (table.push, table.assign, soon_with(table)):
        job.run(table.push(np.zeros(SHAPE, np.float32)))
        job.run(call(array))
        assert same_bits(job.run(table.pull()), given())
    assert same_bits(job.run(table.push_pull(array)), given())


def test_a_broadcast_array(job: SyncJob, table: aiops.Table) -> None:
    job.run(table.push(np.broadcast_to(np.float32(3), SHAPE)))
    assert (job.run(table.pull()) == 3).all()


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.zeros(SHAPE), r"array is float64.*astype\(numpy.float32\)"),
        (np.zeros(SHAPE, np.float16), "float16"),
        (np.zeros(SHAPE, np.int32), "int32"),
        (np.zeros(SHAPE, np.bool_), "bool"),
        (np.zeros(SHAPE, np.complex64), "complex64"),
        (np.zeros(SHAPE, ">f4"), ">f4"),
        (np.zeros(SHAPE, object), "object"),
        ([[0.0] * 4] * 30, "numpy array of float32, not list"),
        (1.0, "not float"),
        (None, "not NoneType"),
        (memoryview(bytes(480)), "not memoryview"),
        (np.ma.masked_array(given(), given() > 0), r"masked.*filled"),
        (np.zeros((4, 30), np.float32), r"shape \(4, 30\), expected \(30, 4\)"),
        (np.zeros(120, np.float32), r"shape \(120,\), expected"),
        (np.zeros((30, 4, 1), np.float32), r"shape \(30, 4, 1\), expected"),
        (np.float32(1), r"shape \(\), expected"),
    ],
    ids=[
        "float64", "float16", "int32", "bool", "complex", "big-endian", "object", "list", "float",
        "none", "memoryview", "masked", "transposed", "flat", "deeper", "scalar",
    ],
)  # fmt: skip
def test_arrays_that_are_refused(job: SyncJob, table: aiops.Table, array: Any, why: str) -> None:
    before = job.run(table.pull())
    for verb, call in (
        ("push", table.push(array)),
        ("assign", table.assign(array)),
        ("push_pull", table.push_pull(array)),
    ):
        with pytest.raises(UsageError, match=f"{verb} to table {table.name}: .*{why}"):
            job.run(call)
    with pytest.raises(UsageError, match=f"push_soon to table {table.name}: .*{why}"):
        job.run(soon_with(table)(array))
    assert same_bits(job.run(table.pull()), before)


def soon_with(table: aiops.Table) -> Callable[[Any], Coroutine[Any, Any, object]]:
    async def push_soon(array: Any) -> object:
        return await table.push_soon(array)

    return push_soon


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_what_is_not_finite_is_refused_with_its_place(
    job: SyncJob, table: aiops.Table, bad: float
) -> None:
    array = given()
    array[17, 3] = bad
    with pytest.raises(UsageError, match=rf"value at \(17, 3\) is {bad}; nothing was sent"):
        job.run(table.push(array))
    with pytest.raises(UsageError, match=r"value at \(0, 3\)"):
        job.run(table.push(array[17:18], rows=[5]))
    assert (job.run(table.pull()) == 0).all()


def test_squares_that_overflow_are_not_taken_for_infinity(job: SyncJob, table: aiops.Table) -> None:
    array = np.full(SHAPE, 3e38, np.float32)
    job.run(table.push(array))
    assert same_bits(job.run(table.pull()), array)


def test_an_overflow_on_the_server_is_seen_in_the_values(job: SyncJob) -> None:
    table = job.table(SHAPE, optimizer=Add(), consistency=ASP())
    array = np.full(SHAPE, 3e38, np.float32)
    for _ in range(2):
        job.run(table.push(array))
    assert np.isinf(job.run(table.pull())).all()


def test_what_was_pulled_is_the_callers(job: SyncJob, table: aiops.Table) -> None:
    """No array that was handed out changes later, and none reaches the table."""
    first = job.run(table.pull())
    copy = first.copy()
    job.run(table.push(given()))
    second = job.run(table.pull())
    assert same_bits(first, copy)
    second[:] = 7
    assert same_bits(job.run(table.pull()), given())
    assert same_bits(table.local.values, given())
    assert second.flags.owndata
    assert second.flags.writeable


def test_a_view_of_the_local_copy_does_not_change(job: SyncJob, table: aiops.Table) -> None:
    job.run(table.pull())
    view = table.local.values
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1
    job.run(table.push(given()))
    job.run(table.pull())
    assert (view == 0).all()
    assert same_bits(table.local.values, given())
