"""Write the reference pages from the code: `python docs/reference/generate.py`.

One line for each public name, which is the first line of its docstring. A test compares the pages
with what this would write.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import aiops
import aiops.trainers
from aiops_cli.main import COMMANDS

HERE = Path(__file__).resolve().parent

# What is made by others and only used: its attributes are listed, its constructor is not shown.
HANDLES = {"Worker", "CustomerHandle", "Table", "SparseTable", "LocalSGD", "LocalCopy", "Ring"}
MODULES = {
    "aiops": "The asyncio API.",
    "aiops.optim": "What servers do with a push.",
    "aiops.filters": "Which keys of a [sparse model](../how-to/sparse-models.md) to pull and push.",
    "aiops.functions": "Functions that [run on the servers](../how-to/functions-on-servers.md).",
    "aiops.compression": "Gradients and values in fewer bytes.",
    "aiops.init": "Initial values that each server can compute for its own range.",
    "aiops.collective": "All-reduce and its relatives, "
    "[without servers](../explanation/collectives.md).",
    "aiops.errors": "Every error that aiops raises. All derive from `AiopsError`.",
    "aiops.blocking": "The same [without asyncio](../how-to/without-asyncio.md).",
    "aiops.trainers": "The built-in trainers behind `aiops train`.",
    "aiops.testing": "For tests; the fixtures are in "
    "[test your own training](../how-to/test-your-training.md).",
    "aiops.testing.history": "What a run did, and "
    "[whether that was right](../how-to/verify-a-run.md).",
}
# What every subclass has is listed once, with the general class.
GENERAL = (
    aiops.optim.Optimizer,
    aiops.compression.Codec,
    aiops.init.Initializer,
    aiops.trainers.Model,
)
ATTRIBUTES = r"^Attributes\n-+\n(.*?)(?=^\w+\n-+$|\Z)"
ATTRIBUTE = r"^(\w+(?:, \w+)*)(?: : .*)?\n((?:    .*\n?)+)"
TWINS = {"aiops.blocking"}  # the methods are those of the twin and are not listed again


def api() -> str:
    """Return the page of the Python API."""
    lines = [
        "# Python",
        "",
        "Every public name. The docstrings say more: `help(aiops.Table.push)`. This page is",
        "written by `python docs/reference/generate.py`.",
    ]
    for name, what in MODULES.items():
        module = importlib.import_module(name)
        lines += ["", f"## {name}", "", what, ""]
        lines += list(_module(module, brief=name in TWINS))
    return "\n".join(lines) + "\n"


def public_names(module: ModuleType) -> list[str]:
    """Return what a module offers: its `__all__`, or the classes that it defines."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    return sorted(names, key=str.lower)


def _module(module: ModuleType, *, brief: bool) -> Iterator[str]:
    for name in public_names(module):
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield f"- `{value.__name__}`: see below"
        elif inspect.isclass(value):
            shown = name if name in HANDLES or _is_error(value) else name + _signature(value)
            yield f"- `{shown}`: {_first_line(value)}"
            if not brief and value.__module__.startswith("aiops.") and not _is_error(value):
                yield from (f"    - {line}" for line in _members(value))
        elif callable(value):
            yield f"- `{name}{_signature(value)}`: {_first_line(value)}"
        else:
            yield f"- `{name}`"


def _is_error(value: type) -> bool:
    return issubclass(value, BaseException)


def _members(value: type) -> Iterator[str]:
    yield from (line for _, line in sorted([*_attributes(value), *_named_members(value)]))


def _attributes(value: type) -> Iterator[tuple[str, str]]:
    """Yield what a docstring says of attributes, but for those that are parts of the making."""
    section = re.search(ATTRIBUTES, inspect.getdoc(value) or "", re.MULTILINE | re.DOTALL)
    for names, text in re.findall(ATTRIBUTE, section[1] if section else "", re.MULTILINE):
        shown = [name for name in names.split(", ") if not hasattr(value, name)]
        if shown and "for those who build on" not in text:
            yield shown[0], f"{', '.join(f'`{name}`' for name in shown)}: {_first_line(text)}"


def _named_members(value: type) -> Iterator[tuple[str, str]]:
    said = {name for base in GENERAL if issubclass(value, base) for name in vars(base)}
    for name, member in inspect.getmembers(value):
        if name.startswith(("_", "link_")) or (value not in GENERAL and name in said):
            continue
        if isinstance(member, property):
            yield name, f"`{name}`: {_first_line(member)}"
        elif inspect.isfunction(member) and member.__module__.startswith("aiops."):
            waits = "await " if inspect.iscoroutinefunction(member) else ""
            yield name, f"`{waits}{name}{_signature(member)}`: {_first_line(member)}"


def _first_line(value: object) -> str:
    documented = value if isinstance(value, str) else inspect.getdoc(value) or ""
    return re.sub(r"\s+", " ", documented.split("\n\n")[0]).strip().rstrip(".")


def _signature(value: Any) -> str:
    """Return the parameters without annotations, as a caller sees them."""
    signature = inspect.signature(value)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return re.sub(r"<factory>|<[\w.]+ object at 0x\w+>", "...", text)


def commands() -> str:
    """Return the page of the commands."""
    lines = [
        "# Commands",
        "",
        "Each has `--help`. Exit codes: 0 done, 1 failed, 2 wrong use, 130 and 143 ended by a",
        "signal. This page is written by `python docs/reference/generate.py`.",
    ]
    for name, entry in COMMANDS.items():
        command = getattr(importlib.import_module(entry.module), name)
        lines += list(_command(f"aiops {name}", command))
    return "\n".join(lines) + "\n"


def _command(name: str, command: click.Command) -> Iterator[str]:
    yield from ("", f"## {name}", "")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from (" ".join(paragraph.split()), "")
    if isinstance(command, click.Group):
        for inner_name, inner in command.commands.items():
            yield from _command(f"{name} {inner_name}", inner)
        return
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    yield from ("```text", f"{name} {usage}", "```")
    if command.epilog:
        yield from ("", " ".join(command.epilog.split()))
    yield from ("", "| flag | what | environment |", "| --- | --- | --- |")
    context = click.Context(command)
    for parameter in command.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            flag, help_text = record
            shown = re.sub(r"\s*\[env var: [^;\]]*;?\s*", " [", " ".join(help_text.split()))
            shown = shown.replace("[]", "").removesuffix("[").replace("|", "\\|").strip()
            twin = f"`{parameter.envvar}`" if parameter.envvar else ""
            yield f"| `{flag.replace('|', '/')}` | {shown} | {twin} |"


PAGES = {"api.md": api, "commands.md": commands}

if __name__ == "__main__":
    assert aiops.__doc__, "the reference is made of docstrings; run without -OO"
    for page, write in PAGES.items():
        (HERE / page).write_text(write(), encoding="utf-8")
