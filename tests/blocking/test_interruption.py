"""Ctrl-C, exceptions and forgotten workers: what the worker itself and the others see of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiops
import aiops.blocking
from aiops.errors import NodeFailed

SCRIPTS = {
    "waits": """
        with aiops.blocking.connect(name="script") as worker:
            table = worker.table("t", ())
            worker.tick()
            print("waiting", flush=True)
            table.pull()
    """,
    "forgets": """
        worker = aiops.blocking.connect(name="script")
    """,
    "finishes": """
        worker = aiops.blocking.connect(name="script")
        worker.finish()
    """,
    "exits": """
        with aiops.blocking.connect(name="script") as worker:
            raise SystemExit(0)
    """,
    "fails": """
        with aiops.blocking.connect(name="script") as worker:
            raise SystemExit(7)
    """,
}


def start(cluster: aiops.LocalCluster, script: str, folder: Path) -> subprocess.Popen[str]:
    lines = SCRIPTS[script].splitlines()
    program = folder / "script.py"
    body = "\n".join(line[8:] for line in lines)
    program.write_text(f"import aiops.blocking\n{body}\n")
    return subprocess.Popen(
        [sys.executable, "-W", "error", program],
        env={**os.environ, "AIOPS_SCHEDULER": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def script_in(status: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(m for m in status["workers"] if m["name"] == "script")
    return found


async def test_ctrl_c_ends_a_waiting_program_and_the_others_see_why(tmp_path: Path) -> None:
    """A blocked pull does not have to be waited out."""
    async with aiops.LocalCluster(on_worker_loss="continue") as cluster:
        async with cluster.connect(name="other") as other:
            await other.table("t", ())
            process = start(cluster, "waits", tmp_path)
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "waiting\n"
            process.send_signal(signal.SIGINT)
            _, errors = await asyncio.to_thread(process.communicate, None, 20)
        assert "KeyboardInterrupt" in errors
        assert process.returncode == -signal.SIGINT
        assert script_in(cluster.status())["state"] == "lost"


@pytest.mark.parametrize(
    ("script", "state", "code"),
    [("forgets", "lost", 0), ("finishes", "left", 0), ("exits", "left", 0), ("fails", "lost", 7)],
)
async def test_how_a_program_ends_is_how_its_worker_ends(
    script: str, state: str, code: int, tmp_path: Path
) -> None:
    async with aiops.LocalCluster() as cluster:
        process = start(cluster, script, tmp_path)
        _, errors = await asyncio.to_thread(process.communicate, None, 20)
        assert (process.returncode, errors) == (code, "")
        assert script_in(cluster.status())["state"] == state


def test_an_interrupted_push_may_change_its_array_at_once(
    cluster: aiops.blocking.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was borrowed is copied or dropped before `KeyboardInterrupt` comes out of the call."""
    main = threading.main_thread().ident
    assert main is not None
    with cluster.connect() as worker:
        table = worker.table("t", 4_000_000)
        push = table._table.push

        async def interrupted(*arguments: Any, **options: Any) -> Any:
            signal.pthread_kill(main, signal.SIGINT)
            return await push(*arguments, **options)

        monkeypatch.setattr(table._table, "push", interrupted)
        gradient = np.ones(4_000_000, np.float32)
        with pytest.raises(KeyboardInterrupt):
            table.push(gradient)
        gradient[:] = 1e9
        monkeypatch.undo()
        worker.tick()
        values = table.pull()
        assert np.unique(values).tolist() in ([0.0], [np.float32(-0.01)])


def test_leaving_by_an_exception_is_a_loss(cluster: aiops.blocking.LocalCluster) -> None:
    def fail() -> None:
        with cluster.connect(name="careless"):
            raise LookupError("where is it?")

    other = cluster.connect()
    with pytest.raises(LookupError, match="where is it"):
        fail()
    with pytest.raises(NodeFailed, match=r"careless.*LookupError: where is it\?"):
        other.barrier("b")
    with pytest.raises(NodeFailed, match="careless"):
        other.close()
