"""The repository checks its own taste: sizes, docstrings, words that must not appear.

Only what no linter says; format and lint rules are ruff's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = ("aiops", "protocol/aiops_protocol", "cli/aiops_cli")
PROGRAM_ROOTS = (*SOURCE_ROOTS, "examples", "benchmarks", "docs")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".json", ".yaml", ".cfg", ".txt", ""}
SKIPPED = {".git", ".venv", "__pycache__", "build", "dist"}

FUNCTION_LINES_MAX = 70  # one screen
FILE_LINES_MAX = 500  # about 300 is a full room, 500 is two rooms

# A stranger's bytes are never turned into code.
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_CALLS = {"eval", "exec"}
# Written so that this file does not contain the words that it looks for.
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|NotImplemented" r"Error)\b")
# A path of one person's machine: absolute, under a folder where people keep their work.
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|root|work|Users|farm)/\w")
CLIMBING_PATH = re.compile(r"(?<![\w./])(?:\.\./)+[\w.][\w./-]*")


def python_files(*roots: str) -> Iterator[Path]:
    for root in roots:
        for path in sorted((ROOT / root).rglob("*.py")):
            if not SKIPPED.intersection(path.parts):
                yield path


def text_files() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT)
        hidden = any(part.startswith(".") and part not in {".ci"} for part in inside.parts)
        ours = path.is_file() and not hidden and not SKIPPED.intersection(inside.parts)
        if ours and path.suffix in TEXT_SUFFIXES and path.stat().st_size < 1_000_000:
            yield path


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, the docstring not counted: it is what we want more of."""
    first = function.body[0]
    docstring = ast.get_docstring(function, clean=False) is not None
    documented = (first.end_lineno or first.lineno) - first.lineno + 1 if docstring else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - documented


def forbidden_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if alias.name.split(".")[0] in FORBIDDEN_IMPORTS:
                        yield f"line {node.lineno} imports {alias.name}"
            case ast.ImportFrom(module=str(module)):
                if module.split(".")[0] in FORBIDDEN_IMPORTS:
                    yield f"line {node.lineno} imports from {module}"
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                yield f"line {node.lineno} calls {name}()"
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=False)):
                continue
            case ast.keyword(arg="allow_pickle"):
                yield f"line {node.lineno} sets allow_pickle"


def test_no_room_is_crowded() -> None:
    crowded = [
        f"{name_of(path)}: {lines} lines"
        for path in python_files(*PROGRAM_ROOTS, "tests")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
    ]
    assert not crowded, f"over {FILE_LINES_MAX} lines, so two rooms: {crowded}"


def test_each_function_fits_a_screen() -> None:
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}: {lines} lines"
        for path in python_files(*PROGRAM_ROOTS, "tests")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := code_lines(node)) > FUNCTION_LINES_MAX
    ]
    assert not long, f"over {FUNCTION_LINES_MAX} lines: {long}"


def test_each_room_opens_with_a_docstring() -> None:
    silent = [
        name_of(path)
        for path in python_files(*PROGRAM_ROOTS)
        if not ast.get_docstring(parsed(path))
    ]
    assert not silent


def test_nothing_can_run_code_from_bytes() -> None:
    """Neither what comes over the wire nor what lies in a file may become code."""
    found = [
        f"{name_of(path)}: {what}"
        for path in python_files(*SOURCE_ROOTS, "examples")
        for what in forbidden_in(parsed(path))
    ]
    assert not found


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from marshal import loads", "eval('1')", "load(f, allow_pickle=True)"],
)
def test_the_check_for_code_from_bytes_can_fail(code: str) -> None:
    assert list(forbidden_in(ast.parse(code)))


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{name_of(path)}:{number} {line.strip()}"
        for path in python_files(*PROGRAM_ROOTS, "tests")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert not found


def test_the_repository_stands_alone() -> None:
    """No file names a path outside the repository, neither absolute nor by climbing out of it."""
    found = []
    for path in text_files():
        text = path.read_text(encoding="utf-8")
        found += [f"{name_of(path)}: {match[0]}" for match in MACHINE_PATH.finditer(text)]
        for match in CLIMBING_PATH.finditer(text):
            target = (path.parent / match[0]).resolve()
            if not target.is_relative_to(ROOT):
                found.append(f"{name_of(path)}: {match[0]}")
    assert not found


def test_links_between_pages_lead_somewhere() -> None:
    """A relative link in a page names a file that exists."""
    link = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(?:#[^)]*)?\)")
    broken = [
        f"{name_of(path)}: {match[1]}"
        for path in text_files()
        if path.suffix == ".md"
        for match in link.finditer(path.read_text(encoding="utf-8"))
        if not (path.parent / match[1]).exists()
    ]
    assert not broken
