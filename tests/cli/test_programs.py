"""A command that cannot run is refused in one line before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aiops.errors import ConfigError
from aiops_cli.programs import checked_command


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return path


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "train.py", "--epochs", "3"],
        [sys.executable, "-u", "-W", "error", "train.py"],
        [sys.executable, "-m", "some.module"],
        [sys.executable, "-c", "print(1)"],
        [sys.executable, "-Im", "some.module"],
        ["bash", "-c", "echo not/a/file"],
        ["bash", "-lc", "echo not/a/file"],
        ["sh", "-e", "-o", "pipefail", "train.py"],
        ["true", "not/a/file"],
        ["python", "-"],
    ],
)
def test_what_can_run_is_left_alone(script: Path, command: list[str]) -> None:
    assert checked_command(command)[1:] == command[1:]


def test_python_is_the_python_that_has_aiops(script: Path) -> None:
    assert checked_command(["python", "train.py"]) == [sys.executable, "train.py"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ([], "nothing to run"),
        (["no-such-program"], "does not exist"),
        ([sys.executable, "trian.py"], "trian.py does not exist"),
        ([sys.executable, "-u", "trian.py"], "trian.py does not exist"),
        (["bash", "trian.sh"], "trian.sh does not exist"),
        (["./train.py"], "run it as: python ./train.py"),
    ],
)
def test_what_cannot_run_is_named(script: Path, command: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        checked_command(command)
