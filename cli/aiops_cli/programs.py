"""The user's own command, checked before anything starts.

`aiops launch -- python trian.py` should say so in one line, and not start a cluster first whose
workers then fail one by one.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from aiops.errors import ConfigError

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_SHELLS = {"sh", "bash", "dash", "zsh"}
_PYTHON_OPTIONS_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}


def checked_command(command: Sequence[str]) -> list[str]:
    """Return the command to run, or say why it cannot run.

    Plain `python` becomes the Python that runs aiops: the one that has it installed.

    Raises
    ------
    ConfigError
        The program or the script that it would run does not exist.
    """
    if not command:
        raise ConfigError(
            "nothing to run: put the command of a worker after --, as in -- python train.py"
        )
    program, *arguments = command
    if program in ("python", "python3"):
        program = sys.executable
    elif shutil.which(program) is None:
        raise ConfigError(_why_not(program))
    script = _script(Path(program).name, arguments)
    if script is not None and not Path(script).exists():
        raise ConfigError(f"the script {script} does not exist in {Path.cwd()}")
    return [program, *arguments]


def _why_not(program: str) -> str:
    path = Path(program)
    if not path.is_file():
        return f"the command {program} does not exist"
    hint = f"; run it as: python {program}" if path.suffix == ".py" else ""
    return f"the file {program} is not an executable program{hint}"


def _script(program: str, arguments: Sequence[str]) -> str | None:
    """Return the script that an interpreter would run, as far as its arguments tell."""
    if _PYTHON.fullmatch(program):
        takes_value = _PYTHON_OPTIONS_WITH_VALUE
    elif program in _SHELLS:
        takes_value = {"-o", "+o", "-O", "+O"}
    else:
        return None
    remaining = iter(arguments)
    for argument in remaining:
        if argument in takes_value:
            next(remaining, None)
        elif not argument.startswith(("-", "+")):
            return argument
        elif argument == "-" or _is_code(argument):
            return None  # from stdin, from a module, or from the command line itself
    return None


def _is_code(option: str) -> bool:
    # -c and -m end the options, also behind others in one word: bash -lc, python -Im
    return (not option.startswith("--") and option[-1:] in ("c", "m")) or option[:2] in ("-c", "-m")
