"""Processes by the dozen: forked from one that has imported everything already.

To start a Python process and import the library costs half a second of a processor; a fork costs
some milliseconds. Run as a program, this is the process that is forked.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ORDER_BYTES = 65536

Line = dict[str, Any]


class Child:
    """A process that has been forked, and what it says: lines of JSON, each with an `event`.

    Attributes
    ----------
    pid
        0 until it has said so.
    code
        Its exit code; `None` for one that has not come to its end by itself.
    last
        The newest line of each event.
    counts
        How many lines of each event there have been.
    """

    def __init__(self, name: str, within_s: float, heard: Callable[[Child, Line], None]) -> None:
        self.name = name
        self.pid = 0
        self.code: int | None = None
        self.last: dict[str, Line] = {}
        self.counts: dict[str, int] = {}
        self.text: list[str] = []  # what is no line of JSON, such as a traceback
        self._within_s = within_s
        self._heard = heard
        self._news = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def adopt(self, end: socket.socket) -> None:
        """Read what comes from the process; returns when it runs."""
        reader, self._writer = await asyncio.open_connection(sock=end)
        self._reading = asyncio.ensure_future(self._read(reader))
        await self.until(lambda: self.pid)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while raw := await self._line(reader):
            try:
                line = json.loads(raw)
                event = line["event"]
            except (ValueError, TypeError, KeyError):
                self.text.append(raw.decode(errors="replace"))
                continue
            self.pid = line.get("pid", self.pid)
            self.code = line.get("code", self.code)
            self.last[event] = line
            self.counts[event] = self.counts.get(event, 0) + 1
            self._heard(self, line)
            self._news.set()
        self._news.set()
        assert self._writer is not None
        self._writer.close()

    async def _line(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readline()
        except ConnectionError:  # it was killed with something unread
            return b""

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._reading is None or self._reading.done()

    async def until(self, true: Callable[[], object]) -> None:
        """Wait until something holds that its lines decide."""
        try:
            async with asyncio.timeout(self._within_s):
                while not true():
                    assert not self.gone, f"{self} has ended"
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{self}: not within {self._within_s:g} s") from None

    def say(self, text: str) -> None:
        """Write to its stdin."""
        assert self._writer is not None
        self._writer.write(text.encode())

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        if not self.gone:
            os.kill(self.pid, number)

    async def end(self) -> None:
        """Wait for its end."""
        assert self._reading is not None
        async with asyncio.timeout(self._within_s):
            await asyncio.shield(self._reading)

    def __str__(self) -> str:
        return f"{self.name} (last lines: {self.last}; it also said: {''.join(self.text)[-2000:]})"


class Nursery:
    """Starts processes that all run one program.

    Parameters
    ----------
    program
        A file with a function ``main(*arguments)``, which returns when the process is to end.
    within_s
        How long anything may take.
    """

    def __init__(self, program: Path, within_s: float) -> None:
        self._program = program
        self._within_s = within_s
        self._orders, self._theirs = socket.socketpair()
        self._one_at_a_time = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self.children: list[Child] = []

    async def __aenter__(self) -> Nursery:
        """Start the process that will be forked."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, str(self._program)),
            stdin=self._theirs.fileno(),
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        self._theirs.close()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End everything that is still there."""
        assert self._process is not None
        self._orders.close()
        self._process.kill()
        for child in self.children:
            child.signal(signal.SIGKILL)
        await asyncio.gather(self._process.wait(), *(child.end() for child in self.children))

    async def start(
        self, name: str, *arguments: str, heard: Callable[[Child, Line], None] = lambda *_: None
    ) -> Child:
        """Fork a process; `heard` is called with each of its lines."""
        child = Child(name, self._within_s, heard)
        ours, theirs = socket.socketpair()
        async with self._one_at_a_time:
            with theirs:
                order = json.dumps({"arguments": arguments}).encode()
                socket.send_fds(self._orders, [order], [theirs.fileno()])
            await child.adopt(ours)
        self.children = [known for known in self.children if not known.gone] + [child]
        return child


def _serve(program: str) -> None:
    """Fork for each order that comes through stdin; the children write to what comes with it."""
    main = runpy.run_path(program)["main"]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for exit codes: the system may
    orders = socket.socket(fileno=os.dup(0))
    while True:
        order, fds, _, _ = socket.recv_fds(orders, ORDER_BYTES, 1)
        if not order:
            return
        if not os.fork():
            _run(main, json.loads(order)["arguments"], fds[0], orders)
        os.close(fds[0])


def _run(main: Callable[..., None], arguments: list[str], fd: int, orders: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    orders.close()
    for standard in range(3):
        os.dup2(fd, standard)
    os.close(fd)
    print(json.dumps({"event": "born", "pid": os.getpid()}), flush=True)
    code = 0
    try:
        main(*arguments)
    except BaseException:
        traceback.print_exc()
        code = 1
    print(json.dumps({"event": "exit", "code": code}), flush=True)
    os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
