"""Commands and programs whose stdin, stdout or stderr are closed, as some daemons start them."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import aiops, aiops.blocking

async def main():
    async with aiops.LocalCluster() as cluster, cluster.connect() as worker:
        return worker.rank

assert {how} == 0
"""


def exit_code(streams: str, *arguments: str) -> int:
    command = ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, *arguments]
    return subprocess.run(command, timeout=60, capture_output=True, check=False).returncode


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_ends_as_it_does_with_its_streams(streams: str) -> None:
    status = ["-m", "aiops", "status", "--scheduler", "127.0.0.1:1", "--timeout-s", "0.1"]
    assert exit_code(streams, *status) == 2


@pytest.mark.parametrize(
    "how", ["aiops.run(main())", "aiops.blocking.LocalCluster().__enter__().connect().rank"]
)
def test_a_program_of_ones_own_runs_without_any_stream(how: str) -> None:
    assert exit_code("<&- >&- 2>&-", "-c", PROGRAM.format(how=how)) == 0
