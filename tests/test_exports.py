"""What the packages promise: each public name exists, once, and says what it is for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType

import pytest

import aiops
import aiops.collective
import aiops.testing
import aiops.trainers.sparse
import aiops_protocol

PACKAGES = (aiops, aiops_protocol)


def public_objects(package: ModuleType) -> list[tuple[str, object]]:
    return [(name, getattr(package, name)) for name in package.__all__]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_each_public_name_exists_once(package: ModuleType) -> None:
    names = list(package.__all__)
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(package, name)] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_each_public_class_and_function_is_documented(package: ModuleType) -> None:
    """Also the public methods of a public class; an inherited docstring counts."""
    silent = []
    for name, value in public_objects(package):
        explains_itself = not (inspect.isclass(value) or inspect.isfunction(value))
        if not explains_itself and not inspect.getdoc(value):
            silent.append(name)
        if inspect.isclass(value):
            for member, function in inspect.getmembers(value, inspect.isfunction):
                ours = function.__module__.startswith(("aiops", "aiops_protocol"))
                if ours and not member.startswith("_") and not inspect.getdoc(function):
                    silent.append(f"{name}.{member}")
    assert silent == []


CALLS: list[tuple[Callable[..., object], str]] = [
    (aiops.connect, "scheduler name="),
    (
        aiops.Worker.table,
        "name shape= init= optimizer= consistency= compression= pull_compression=",
    ),
    (aiops.Worker.table, "name"),
    (aiops.Worker.sparse_table, "name width= init= optimizer= consistency= compression= layout="),
    (aiops.Worker.barrier, "name timeout_s="),
    (aiops.Worker.shard, "n"),
    (aiops.Worker.steps, "n"),
    (aiops.Worker.stop, "reason"),
    (aiops.Worker.ring, "name"),
    (aiops.Table.pull, "rows= out="),
    (aiops.Table.push, "grad rows="),
    (aiops.Table.push_pull, "grad"),
    (aiops.Table.push_soon, "grad"),
    (aiops.Table.assign, "values rows="),
    (aiops.LocalCopy.apply, "gradient"),
    (aiops.SparseTable.pull, "keys"),
    (aiops.SparseTable.push, "keys grads"),
    (aiops.BSP, "reduce= drop_slowest="),
    (aiops.SSP, "staleness="),
    (aiops.Quorum, "minimum= grace_s="),
    (aiops.LocalCluster, "servers="),
    (aiops.LocalCluster.connect, "name="),
    (aiops.LocalCluster.run, "train workers="),
    (aiops.Scheduler, "sock="),
    (aiops.Server, "scheduler= bind= sock="),
    (aiops.Ring.all_reduce, "array op= order="),
    (aiops.Ring.broadcast, "array root="),
    (aiops.Ring.empty, "shape"),
    (aiops.collective.InProcessRing, "world_size"),
    (aiops.collective.InProcessRing.member, "rank"),
    (aiops.init.Normal, "std= seed="),
    (aiops.optim.SGD, "lr="),
    (aiops.optim.Momentum, "lr= nesterov="),
    (aiops.compression.TopK, "ratio"),
]


@pytest.mark.parametrize(("call", "written"), CALLS, ids=str)
def test_parameters_have_the_names_that_users_type(
    call: Callable[..., object], written: str
) -> None:
    """In this order without a name, and with it; a better name is a change for users."""
    given = [word.removesuffix("=") for word in written.split()]
    parameters = [name for name in inspect.signature(call).parameters if name != "self"]
    positional = [word for word in written.split() if not word.endswith("=")]
    assert parameters[: len(positional)] == positional
    assert set(given) <= set(parameters)


HANDED_OUT = (
    *(aiops, aiops.blocking, aiops.collective, aiops.filters),
    *(aiops.testing, aiops.trainers, aiops.trainers.sparse),
)


def test_no_public_object_prints_as_an_address_in_memory() -> None:
    """What is only derived from is not meant, as it cannot be held."""
    silent = {
        f"{package.__name__}.{name}"
        for package in HANDED_OUT
        for name, value in public_objects(package)
        if inspect.isclass(value)
        and not inspect.isabstract(value)
        and value.__repr__ is object.__repr__
    }
    assert silent == set()
