"""The launcher passes lines on whole and unchanged, whatever the pieces they came in."""

from __future__ import annotations

import asyncio
import os

from hypothesis import given
from hypothesis import strategies as st

from aiops_cli.lines import LineBuffer, NoteStream, SharedOutput


@given(st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"x", b"\n"))))
def test_nothing_is_lost_and_lines_come_whole(pieces: list[bytes]) -> None:
    buffer = LineBuffer()
    passed = [buffer.feed(piece) for piece in pieces]
    assert all(not lines or lines.endswith(b"\n") for lines in passed)
    assert b"".join(passed) + buffer.finish() == b"".join(pieces)


@given(st.lists(st.binary(max_size=40)), st.integers(min_value=1, max_value=50))
def test_a_line_without_end_is_given_in_pieces(pieces: list[bytes], limit: int) -> None:
    """A progress bar that never writes a newline takes no more memory than the limit."""
    buffer = LineBuffer(limit)
    passed = []
    for piece in pieces:
        passed.append(buffer.feed(piece))
        assert len(buffer._rest) <= limit
    assert b"".join(passed) + buffer.finish() == b"".join(pieces)


async def test_an_unfinished_line_is_not_continued_by_another_writer() -> None:
    reader, writer = os.pipe()
    output = SharedOutput(writer)
    await output.write("worker-0", b"half a li")
    await output.write("worker-0", b"ne\n")
    await output.write("worker-0", b"no newline at the end")
    await output.write("worker-1", b"whole line\n")
    output.close()
    os.close(writer)
    with os.fdopen(reader, "rb") as lines:
        assert lines.read() == b"half a line\nno newline at the end\nwhole line\n"


async def test_a_reader_that_does_not_read_blocks_its_writer_and_not_the_loop() -> None:
    """`aiops launch ... | less`: the scheduler in this loop must go on beating."""
    reader, writer = os.pipe()
    output = SharedOutput(writer)
    blocked = asyncio.ensure_future(output.write("worker-0", b"x" * (1 << 20)))
    turns = 0
    while turns < 1000:
        await asyncio.sleep(0)
        turns += 1
    assert not blocked.done()
    received = 0
    while received < 1 << 20:
        received += len(await asyncio.to_thread(os.read, reader, 1 << 20))
    await blocked
    output.close()
    os.close(writer)
    os.close(reader)


async def test_a_reader_that_is_gone_stops_nobody() -> None:
    """`aiops launch ... | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    output = SharedOutput(writer)
    await output.write("worker-0", b"one\n")
    await output.write("worker-0", b"two\n")
    output.close()
    os.close(writer)


async def test_the_launchers_own_lines_never_wait() -> None:
    reader, writer = os.pipe()
    output = SharedOutput(writer)
    stream = NoteStream(output, is_terminal=False)
    stream.write("two li")
    stream.write("nes\nof a log\nand a rest")
    await output.drain()
    assert os.read(reader, 100) == b"two lines\nof a log\n"
    for _ in range(5000):
        stream.write("flood " * 20 + "\n")  # far more than the pipe and the limit take
    received = asyncio.ensure_future(asyncio.to_thread(_read_to_end, reader))
    await output.drain()
    output.close()
    os.close(writer)
    assert 1000 <= (await received).count(b"\n") < 5000
    os.close(reader)


def _read_to_end(descriptor: int) -> bytes:
    pieces = []
    while piece := os.read(descriptor, 1 << 16):
        pieces.append(piece)
    return b"".join(pieces)
