"""The blocking API has the names of the other one, with the same parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import aiops
from aiops import blocking

TWINS = [
    (aiops.Worker, blocking.Worker),
    (aiops.CustomerHandle, blocking.CustomerHandle),
    (aiops.Table, blocking.Table),
    (aiops.SparseTable, blocking.SparseTable),
    (aiops.LocalCopy, blocking.LocalCopy),
    (aiops.LocalSGD, blocking.LocalSGD),
    (aiops.LocalCluster, blocking.LocalCluster),
    (aiops.Ring, blocking.Ring),
]

# What the rooms of aiops call among themselves, or what only makes sense on the event loop.
NOT_FOR_USERS = {
    "Table": {"close", "close_clock", "fetch", "initialise", "leave_rounds", "perform", "used_by"},
    "SparseTable": {"close", "used_by"},
    "LocalCopy": {"keep", "refresh"},
    "LocalCluster": {"scheduler"},
}


def public_names(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


def by_name(pair: tuple[type, type]) -> str:
    return pair[0].__name__


@pytest.mark.parametrize("pair", TWINS, ids=by_name)
def test_the_twin_has_every_public_name(pair: tuple[type, type]) -> None:
    ours, twin = pair
    expected = public_names(ours) - NOT_FOR_USERS.get(ours.__name__, set())
    assert expected - public_names(twin) == set()


@pytest.mark.parametrize("pair", TWINS, ids=by_name)
def test_the_twin_has_no_name_of_its_own(pair: tuple[type, type]) -> None:
    """An attribute that the original sets in `__init__` may be a property here."""
    ours, twin = pair
    attributes: dict[str, set[str]] = {
        "Worker": {"finished"},
        "LocalCopy": {"version"},
        "Ring": {"rank", "world_size"},
    }
    assert public_names(twin) - public_names(ours) == attributes.get(ours.__name__, set())


@pytest.mark.parametrize("pair", TWINS, ids=by_name)
def test_each_method_of_the_twin_takes_the_same_parameters(pair: tuple[type, type]) -> None:
    ours, twin = pair
    different = {
        name
        for name in public_names(twin) & public_names(ours)
        if inspect.isfunction(getattr(ours, name))
        and parameters(getattr(ours, name)) != parameters(getattr(twin, name))
    }
    assert different == set()


@pytest.mark.parametrize("pair", TWINS, ids=by_name)
def test_no_method_of_the_twin_has_to_be_awaited(pair: tuple[type, type]) -> None:
    _, twin = pair
    waiting = {
        name
        for name in public_names(twin)
        if inspect.iscoroutinefunction(getattr(twin, name))
        or inspect.isasyncgenfunction(getattr(twin, name))
    }
    assert waiting == set()


@pytest.mark.parametrize("pair", TWINS, ids=by_name)
def test_what_is_a_property_there_is_one_here(pair: tuple[type, type]) -> None:
    ours, twin = pair
    for name in public_names(twin) & public_names(ours):
        assert isinstance(getattr(ours, name), property) == isinstance(
            getattr(twin, name), property
        ), name


@pytest.mark.parametrize(
    ("ours", "twin"),
    [
        (aiops.connect, blocking.connect),
        (aiops.fetch_status, blocking.fetch_status),
        (aiops.LocalCluster, blocking.LocalCluster),
    ],
    ids=["connect", "fetch_status", "LocalCluster"],
)
def test_each_function_of_the_twin_takes_the_same_parameters(
    ours: Callable[..., Any], twin: Callable[..., Any]
) -> None:
    assert parameters(ours) == parameters(twin)
