"""Every program in README and docs runs, and every link inside the repository leads somewhere.

Blocks in a page's order, marked by the word after the three backquotes:

    python     runs. `await` is allowed at the top. The blocks of a page share their names, and find
               `aiops`, `np`, a running `cluster` of two servers and, if asked for, a `worker`.
               A block whose first line is `# name.py` is saved under that name instead, for
               a later block; `# test_name.py` is run by pytest.
    sh         runs in the folder of the saved files, with the command `aiops`.
    console    is only shown: it needs several machines, a network, or your patience.

What a page needs and a reader does not stands in a comment that begins with `<!-- python`.
"""

from __future__ import annotations

import ast
import asyncio
import dis
import inspect
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import pytest

import aiops
import aiops.blocking

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "sh", "console", "toml", "text"}
TIMEOUT_S = 180.0

BLOCK = re.compile(
    r"^```(?P<language>\w*)[^\n]*\n(?P<shown>.*?)^```$|^<!-- python\n(?P<hidden>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
FILE_NAME = re.compile(r"# (\w+\.py)\n")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)#([^)\s]+)\)")


class Block(NamedTuple):
    """One fenced block of a page."""

    language: str
    text: str
    line: int

    @property
    def file_name(self) -> str | None:
        found = FILE_NAME.match(self.text)
        return found[1] if found and self.language == "python" else None


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        if match["hidden"] is not None:
            yield Block("python", match["hidden"], line)
        else:
            yield Block(match["language"], match["shown"], line)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def slugs_of(page: Path) -> set[str]:
    """Return the anchors that a page's headings get."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def takes_for_granted(name: str, code: CodeType) -> bool:
    """Whether a block uses a name at its top that it has not made there."""
    uses = [found.opname for found in dis.get_instructions(code) if found.argval == name]
    return "LOAD_NAME" in uses and "STORE_NAME" not in uses


class Reader:
    """Somebody who types in what a page shows, in its order."""

    def __init__(
        self, page: Path, folder: Path, environment: dict[str, str], cluster: aiops.LocalCluster
    ) -> None:
        self._page = page
        self._folder = folder
        self._environment = environment
        self._cluster = cluster
        self._names: dict[str, Any] = {
            "aiops": aiops,
            "np": np,
            "cluster": cluster,
            "__name__": name_of(page),
        }
        self.open = AsyncExitStack()

    async def read(self, block: Block) -> None:
        """Do what one block says."""
        if block.file_name is not None:
            (self._folder / block.file_name).write_text(block.text)
            if block.file_name.startswith("test_"):
                await self._run_tests(block.file_name)
        elif block.language == "python":
            await self._execute(block)
        elif block.language == "sh":
            await self._run("bash", "-euo", "pipefail", "-c", block.text)

    async def _execute(self, block: Block) -> None:
        where = f"{self._page}:{block.line}"
        if "aiops.run(" in block.text:  # a whole program, with a loop of its own
            await self._run(sys.executable, "-W", "error", "-c", block.text)
            return
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile("\n" * (block.line - 1) + block.text, where, "exec", flags)
        if "worker" not in self._names and takes_for_granted("worker", code):
            connecting = self._cluster.connect(name="reader")
            self._names["worker"] = await self.open.enter_async_context(connecting)
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, self._names)
        else:  # it may block, and the cluster is on this loop
            await asyncio.to_thread(exec, code, self._names)

    async def _run_tests(self, name: str) -> None:
        plugins = ("-p", "pytest_asyncio.plugin", "-p", "aiops.testing.plugin")
        options = ("-o", "asyncio_default_fixture_loop_scope=function", "-o", "asyncio_mode=auto")
        await self._run(sys.executable, "-m", "pytest", "-q", *plugins, *options, name)

    async def _run(self, *command: str) -> None:
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture
async def reader(
    page: Path, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Reader]:
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    monkeypatch.syspath_prepend(tmp_path)  # what a page saves, a later block may import
    monkeypatch.chdir(tmp_path)
    async with aiops.LocalCluster(servers=2) as cluster:
        monkeypatch.setenv("AIOPS_SCHEDULER", cluster.address)
        reader = Reader(page, tmp_path, environment, cluster)
        async with reader.open:
            yield reader


PAGES_WITH_PROGRAMS = [
    page for page in PAGES if any(block.language in {"python", "sh"} for block in blocks_of(page))
]


@pytest.mark.parametrize("page", PAGES_WITH_PROGRAMS, ids=name_of)
async def test_what_a_page_shows_works(page: Path, reader: Reader) -> None:
    for block in blocks_of(page):
        await reader.read(block)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_block_says_what_it_is(page: Path) -> None:
    unknown = [
        f"line {block.line}: {block.language or 'nothing'}"
        for block in blocks_of(page)
        if block.language not in LANGUAGES
    ]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_saved_file_is_used(page: Path) -> None:
    """A program that is shown and never run could say anything."""
    blocks = list(blocks_of(page))
    idle = [
        block.file_name
        for number, block in enumerate(blocks)
        if block.file_name is not None
        and not block.file_name.startswith("test_")
        and not any(
            re.search(rf"\b{Path(block.file_name).stem}\b", later.text)
            for later in blocks[number + 1 :]
            if later.language in {"python", "sh"}
        )
    ]
    assert idle == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_headings_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    broken = []
    for target, anchor in LINK.findall(text):
        aim = (page.parent / target).resolve() if target else page
        if aim.suffix == ".md" and (not aim.exists() or anchor not in slugs_of(aim)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def test_each_page_can_be_found() -> None:
    """From README or docs/index.md, by links."""
    found: set[Path] = set()
    ahead = [ROOT / "README.md", ROOT / "docs" / "index.md"]
    while ahead:
        page = ahead.pop()
        if page in found or not page.exists():
            continue
        found.add(page)
        links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
        ahead += [(page.parent / link).resolve() for link in links if link.endswith(".md")]
    assert [name_of(page) for page in PAGES if page not in found] == []


def test_the_program_of_the_readme_is_the_example() -> None:
    example = (ROOT / "examples" / "digits.py").read_text()
    assert example in (ROOT / "README.md").read_text()
