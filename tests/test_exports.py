"""What the packages promise: each public name exists, once, and says what it is for."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

import aiops
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
