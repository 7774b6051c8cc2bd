"""Who may import whom, as far as one file shows it; chains of imports are import-linter's.

The cores decide and never wait: no loop, no socket, no thread, no clock, no logger, no chance.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CORES = (
    "protocol/aiops_protocol",
    "aiops/roles",
    "aiops/shards",
    "aiops/optim",
    "aiops/init.py",
    "aiops/collective/schedule.py",
    "aiops/collective/plan.py",
    "aiops/collective/operation.py",
    "aiops/compression",
)
WAITING = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "selectors",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
    "uvloop",
}
SPEAKING = {"logging", "structlog", "rich", "click"}
# A simulated run repeats bit for bit from its seed, so nothing in a core is drawn from thin air.
CHANCE = {"random", "secrets", "uuid"}
AMBIENT_CALLS = {"np.random.seed", "np.random.rand", "np.random.randn", "os.urandom", "os.getpid"}

NEVER_TOGETHER = (
    ("aiops/van", "aiops.roles"),
    ("aiops/roles", "aiops.van"),
    ("aiops/roles", "aiops.runtime"),
    ("aiops/van", "aiops.runtime"),
    ("aiops/optim", "aiops_protocol.frames"),
    ("protocol/aiops_protocol", "aiops"),
    ("protocol/aiops_protocol", "aiops_cli"),
    ("aiops", "aiops_cli"),
)


def files_of(*places: str) -> Iterator[Path]:
    for place in places:
        path = ROOT / place
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_inside(imported: str, package: str) -> bool:
    return imported == package or imported.startswith(package + ".")


@pytest.mark.parametrize("core", CORES)
def test_a_core_never_waits(core: str) -> None:
    banned = WAITING | SPEAKING | CHANCE
    found = [
        f"{path.relative_to(ROOT)} imports {imported}"
        for path in files_of(core)
        for imported in imports_of(path)
        if imported.split(".")[0] in banned
    ]
    assert not found


@pytest.mark.parametrize("core", CORES)
def test_a_core_draws_nothing_from_its_surroundings(core: str) -> None:
    """Its randomness has a seed, and its environment is what it was given."""
    found = []
    for path in files_of(core):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                unseeded = called.endswith("default_rng") and not node.args and not node.keywords
                if called in AMBIENT_CALLS or unseeded:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} calls {called}()")
    assert not found


@pytest.mark.parametrize(("place", "package"), NEVER_TOGETHER)
def test_rooms_that_do_not_know_each_other(place: str, package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {imported}"
        for path in files_of(place)
        if path != ROOT / "aiops" / "__main__.py"  # one line: calls the command line
        for imported in imports_of(path)
        if is_inside(imported, package)
    ]
    assert not found
