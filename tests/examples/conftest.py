"""What the programs of examples and pages find in their environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment without a cluster, in which the command `aiops` exists."""
    commands = tmp_path_factory.mktemp("bin")
    command = commands / "aiops"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m aiops "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    mine = {name: value for name, value in os.environ.items() if not name.startswith("AIOPS_")}
    return {**mine, "PATH": path}
