"""The children's lines, whole and unchanged, on the launcher's own stdout and stderr.

`LineBuffer` cuts a stream of bytes into lines and is pure. `SharedOutput` is one of the launcher's
streams with several children behind it. A reader that does not read (a pager) blocks a thread here
and thereby the children that write, never the event loop: the scheduler of the job lives in it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

LINE_BYTES_MAX: Final = 1 << 20  # no log line is longer; a progress bar without newline may be
CALLS_MAX: Final = 8  # drawings of a progress bar that wait for a terminal
NOTES_MAX: Final = 1_000  # lines of the launcher itself that wait for a reader; then they are lost


class LineBuffer:
    """Collect bytes and give them back as whole lines.

    Parameters
    ----------
    limit
        The most bytes kept of a line that does not end; past it the line is given in pieces.
    """

    def __init__(self, limit: int = LINE_BYTES_MAX) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Take what came in and return the lines that are now whole, in one piece."""
        end = data.rfind(b"\n") + 1
        if end:
            lines = bytes(self._rest) + data[:end]
            self._rest = bytearray(data[end:])
        else:
            lines = b""
            self._rest += data
        return lines + self.finish() if len(self._rest) > self._limit else lines

    def finish(self) -> bytes:
        """Return what is left: a last line without its newline."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


class SharedOutput:
    """One stream of this process that several writers share without cutting each other's lines.

    Parameters
    ----------
    descriptor
        The file descriptor, 1 or 2.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # One thread, so writes keep their order and each writer waits for its own.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"output-{descriptor}")
        self._open_line_of: str | None = None
        self._reader_gone = False
        self._notes: deque[bytes] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._calls_lock = threading.Lock()
        self._failure: Exception | None = None
        self._sink: Callable[[bytes], None] = self._write_all

    async def write(self, writer: str, data: bytes) -> None:
        """Write lines of one child; returns when they have left this process.

        Cancelling waits for nothing: what was handed over is still written.
        """
        if data:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, self._write, writer, data
            )

    def note(self, line: str) -> None:
        """Write a line of the launcher itself, without waiting; lost if too many already wait."""
        if len(self._notes) < NOTES_MAX:
            self._notes.append(line.encode(errors="backslashreplace"))
            self._thread.submit(self._write_note)

    def call(self, draw: Callable[[], None]) -> None:
        """Let the thread of this stream call `draw`, a picture of which only the newest matters.

        Under pressure the newest replaces the one before it.
        """
        with self._calls_lock:
            if len(self._calls) == CALLS_MAX:
                self._calls[-1] = draw
                return
            self._calls.append(draw)
        self._thread.submit(self._draw)

    def redirect(self, sink: Callable[[bytes], None] | None) -> None:
        """Give all that is written to `sink`, called in the thread of this stream; undo by None."""
        self._thread.submit(setattr, self, "_sink", sink or self._write_all)

    async def drain(self) -> None:
        """Return when everything written so far has left this process.

        Raises what a call to draw raised, if any did.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: None)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Take nothing more; what waits is still written while the process lives."""
        self._thread.shutdown(wait=False)

    def _draw(self) -> None:
        with self._calls_lock:
            draw = self._calls.popleft()
        try:
            draw()
        except Exception as error:  # a picture is no reason to end a training: `drain` tells
            self._failure = self._failure or error

    def _write_note(self) -> None:
        self._write("", self._notes.popleft())

    def _write(self, writer: str, data: bytes) -> None:
        if self._open_line_of not in (None, writer):
            self._sink(b"\n")  # another child's unfinished line: do not continue it
        self._open_line_of = None if data.endswith(b"\n") else writer
        self._sink(data)

    def _write_all(self, data: bytes) -> None:
        # A reader that is gone (`| head`) ends no training run: the children are read all the same.
        view = memoryview(data)
        while view and not self._reader_gone:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                # Somebody made the terminal non-blocking; wait here, not in the loop.
                _wait_writable(self._descriptor)
            except OSError:
                self._reader_gone = True


class NoteStream:
    """A text stream for `sys.stderr` of the launcher whose writes never block the event loop."""

    def __init__(self, output: SharedOutput, *, is_terminal: bool) -> None:
        self._output = output
        self._is_terminal = is_terminal
        self._line = ""

    def write(self, text: str) -> int:
        """Take text and pass on the whole lines in it."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._output.note(line + "\n")
        return len(text)

    def flush(self) -> None:
        """Do nothing: whole lines are on their way already."""

    def isatty(self) -> bool:
        """Tell whether colours make sense."""
        return self._is_terminal


def _wait_writable(descriptor: int) -> None:
    import select

    select.select([], [descriptor], [])
