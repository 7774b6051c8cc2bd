"""The stdout and stderr of this process while children or a progress bar share them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aiops_cli.lines import NoteStream, SharedOutput


@dataclass(slots=True)
class Console:
    """Stdout and stderr of this process, shared with the children."""

    stdout: SharedOutput = field(default_factory=lambda: SharedOutput(1))
    stderr: SharedOutput = field(default_factory=lambda: SharedOutput(2))


@asynccontextmanager
async def shared_console() -> AsyncIterator[Console]:
    """Share stdout and stderr with children; our own logs then never block the event loop."""
    console = Console()
    original = sys.stderr
    sys.stderr = NoteStream(console.stderr, is_terminal=original.isatty())
    try:
        yield console
        await console.stdout.drain()
        await console.stderr.drain()
    finally:
        sys.stderr = original
        console.stdout.close()
        console.stderr.close()


def print_json(document: Any) -> None:
    """Print a document as one line of JSON; what is not finite becomes null."""
    print(msgspec.json.encode(document).decode(), flush=True)
