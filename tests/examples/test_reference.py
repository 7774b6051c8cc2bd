"""The reference pages are complete, and say what the code says: they are written from it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

REFERENCE = Path(__file__).resolve().parent.parent.parent / "docs" / "reference"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load(REFERENCE / "generate.py")


@pytest.mark.parametrize("page", generate.PAGES)
def test_the_page_is_what_the_code_says(page: str) -> None:
    written = (REFERENCE / page).read_text(encoding="utf-8")
    assert written == generate.PAGES[page](), "run: make docs"


def test_every_public_name_is_there() -> None:
    text = (REFERENCE / "api.md").read_text(encoding="utf-8")
    missing = [
        f"{module}.{name}"
        for module in generate.MODULES
        for name in generate.public_names(importlib.import_module(module))
        if f"`{name}" not in text and f"`{module}.{name}`" not in text
    ]
    assert missing == []


@pytest.mark.parametrize(
    "line",
    [
        "- `rank`, `world_size`: This member's place in the ring",
        "- `name`, `shape`: As",
        "- `proxies`: One",
    ],
)
def test_what_is_set_by_the_constructor_is_there(line: str) -> None:
    text = (REFERENCE / "api.md").read_text(encoding="utf-8")
    assert line in text
