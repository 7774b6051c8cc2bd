"""One event, one line, whatever a peer put in it; and a library that stays quiet."""

from __future__ import annotations

import enum
import io
import itertools
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import Any

import numpy as np
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from aiops.observability import RateLimited, configure, get_logger, logs
from aiops.observability.fields import HEX_BYTES_MAX, ITEMS_MAX, TEXT_CHARACTERS_MAX, plain

hostile = st.text() | st.sampled_from(
    ["a\nlevel=error", "\x1b[2J", "\x7f", "\u202eevil", "\u2028", "\ud800", "x y=z", '"', "", "\r"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | hostile,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile, inner, max_size=3),
)


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """Put the process back as it was: `configure` is meant to be called once, by a command."""
    settings, handlers = logs._settings, logging.getLogger().handlers[:]
    logs._settings = None  # a command under test in this process may have called it
    yield
    logs._settings = settings
    logging.getLogger().handlers[:] = handlers


def written(format: logs.Format, event: str, level: logs.Level = "info", **fields: object) -> str:
    with redirect_stderr(io.StringIO()) as stderr:
        configure(format)
        getattr(get_logger(role="server", rank=0), level)(event, **fields)
    return stderr.getvalue()


@given(st.dictionaries(hostile, values, max_size=4))
def test_the_console_shows_one_printable_line(fields: dict[str, Any]) -> None:
    line = written("console", "peer_lost", peers=fields, **{"_" + k: v for k, v in fields.items()})
    assert line.endswith("\n")
    assert line[:-1].isprintable()


@given(hostile, values)
def test_a_json_line_is_one_object_of_printable_ascii(peer: str, value: object) -> None:
    line = written("json", "peer_lost", peer=peer, value=value)
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert line.isascii()
    event = json.loads(line, parse_constant=pytest.fail)
    assert (event["event"], event["level"], event["role"], event["rank"]) == (
        "peer_lost",
        "info",
        "server",
        0,
    )
    assert event["peer"] == peer
    assert "timestamp" in event


@given(hostile)
def test_a_peer_cannot_forge_a_field(name: str) -> None:
    """Its name ends where the quote ends; only our own `rank` is a field of the line."""
    line = written("console", "hello", peer=name, last=1)
    head, shown = line.rstrip("\n").split(" peer=", 1)
    text, end = (
        json.JSONDecoder().raw_decode(shown) if shown[0] == '"' else (shown.split(" ")[0], None)
    )
    assert text == name
    assert shown[len(text) if end is None else end :] == " last=1"
    assert head.endswith(" info    hello role=server rank=0")


def test_bound_context_is_on_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    log = get_logger(role="worker", rank=2, incarnation=1, job="5f0c")
    configure("json")
    log.bind(peer="127.0.0.1:9070").info("connected", attempts=1)
    captured = capsys.readouterr()
    assert captured.out == ""
    event = json.loads(captured.err)
    del event["timestamp"]
    assert event == {
        "level": "info",
        "event": "connected",
        "role": "worker",
        "rank": 2,
        "incarnation": 1,
        "job": "5f0c",
        "peer": "127.0.0.1:9070",
        "attempts": 1,
    }


@pytest.mark.parametrize(("level", "expected"), [("debug", 4), ("warning", 2), ("error", 1)])
def test_less_than_the_level_is_not_written(
    level: logs.Level, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("json", level)
    log = get_logger()
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert len(capsys.readouterr().err.splitlines()) == expected


def test_an_exception_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise OSError("disk\nfull")
    except OSError as error:
        configure("console")
        get_logger().error("checkpoint_failed", exc_info=error)
        configure("json")
        get_logger().error("checkpoint_failed", exc_info=True)
    console, as_json = capsys.readouterr().err.splitlines()
    assert console.endswith(r'checkpoint_failed error="OSError: disk\nfull"')
    assert json.loads(as_json)["error"] == "OSError: disk\nfull"
    assert "test_an_exception" in json.loads(as_json)["traceback"]


def test_without_configure_the_standard_logger_decides(caplog: pytest.LogCaptureFixture) -> None:
    """An embedding program sets our level as it sets any library's."""
    log = get_logger(role="worker", rank=1)
    log.info("hidden")
    log.warning("barrier_late", missing=[2, 3])
    with caplog.at_level(logging.INFO, logger="aiops"):
        log.info("shown")
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("aiops", "WARNING", "barrier_late role=worker rank=1 missing=[2,3]"),
        ("aiops", "INFO", "shown role=worker rank=1"),
    ]


QUIET_PROGRAM = """
import logging, structlog
import aiops
from aiops.observability import get_logger
log = get_logger(role="worker", rank=0)
log.info("quiet")
log.warning("loud", peer="a\\nb")
assert not structlog.is_configured()
assert not logging.getLogger().handlers and not logging.getLogger("aiops").handlers
"""


def test_a_program_that_imports_aiops_sees_only_warnings() -> None:
    done = subprocess.run(
        [sys.executable, "-c", QUIET_PROGRAM], capture_output=True, text=True, timeout=180
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == 'aiops: loud role=worker rank=0 peer="a\\nb"\n'


def test_the_launcher_may_ask_the_programs_for_less(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`aiops launch --log-level error`: unless the program has a level of its own."""
    monkeypatch.setattr("aiops.observability.logs._settings", None)
    standard = logging.getLogger("aiops")
    log = get_logger()
    for asked, own, heard in (
        ("", logging.NOTSET, ["warning", "error"]),
        ("error", logging.NOTSET, ["error"]),
        ("debug", logging.NOTSET, ["warning", "error"]),
        ("error", logging.WARNING, ["warning", "error"]),
        ("nonsense", logging.NOTSET, ["warning", "error"]),
    ):
        monkeypatch.setenv("AIOPS_LOG_LEVEL", asked)
        standard.setLevel(own)
        try:
            caplog.clear()
            for level in ("info", "warning", "error"):
                getattr(log, level)("happened")
            assert [record.levelname.lower() for record in caplog.records] == heard
        finally:
            standard.setLevel(logging.NOTSET)


def test_configure_leaves_structlog_alone() -> None:
    configure("json")
    assert not structlog.is_configured()


def test_other_libraries_warn_in_the_same_format(capsys: pytest.CaptureFixture[str]) -> None:
    """The event loop says through `logging` that it ran out of sockets."""
    configure("json")
    configure("json")  # twice must not write twice
    logging.getLogger("asyncio").warning("socket.accept() out of %s", "resource")
    logging.getLogger("asyncio").info("not this")
    event = json.loads(capsys.readouterr().err)
    assert (event["level"], event["event"]) == ("warning", "library_message")
    assert (event["library"], event["message"]) == ("asyncio", "socket.accept() out of resource")


def test_a_closed_stderr_stops_nobody() -> None:
    gone = io.StringIO()
    gone.close()
    configure("console")
    with redirect_stderr(gone):
        get_logger().warning("unheard")


def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    configure("console")
    with redirect_stderr(Terminal()) as stderr:
        get_logger().error("red")
    assert stderr.getvalue().startswith("\x1b[31m")
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stderr(Terminal()) as stderr:
        get_logger().error("plain")
    assert "\x1b" not in stderr.getvalue()
    assert "\x1b" not in written("console", "plain", "error")


@pytest.mark.parametrize(("format", "level"), [("xml", "info"), ("json", "loud")])
def test_unknown_settings_are_refused(format: Any, level: Any) -> None:
    with pytest.raises(ValueError, match=r"the log (format|level) is"):
        configure(format, level)


class Colour(enum.Enum):
    RED = 1


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.zeros((1000, 1000), np.float32), "float32[1000, 1000]"),
        (np.float32(0.5), 0.5),
        (float("nan"), "nan"),
        (np.float64("inf"), "inf"),
        (10**5000, hex(10**5000)[: TEXT_CHARACTERS_MAX - 3] + "..."),
        (b"GET / HTTP/1.1", b"GET / HTTP/1.1".hex()),
        (memoryview(bytes(100)), "00" * HEX_BYTES_MAX + "..."),
        ("x" * 5000, "x" * (TEXT_CHARACTERS_MAX - 3) + "..."),
        (Colour.RED, "RED"),
        (ValueError("a", 1), "ValueError: ('a', 1)"),
        ((1, {2}), [1, [2]]),
        (Unshowable(), "<Unshowable that cannot be shown>"),
        ([[[[[[1]]]]]], [[[["[[1]]"]]]]),
    ],
    ids=itertools.count(),
)
def test_values_become_bounded_plain_data(value: object, shown: object) -> None:
    assert plain(value) == shown


def test_long_collections_say_how_much_is_missing() -> None:
    shown = plain({"ranks": range(1000)})["ranks"]
    assert len(shown) == ITEMS_MAX + 1
    assert shown[-1] == f"... {1000 - ITEMS_MAX} more"
    assert plain({i: i for i in range(100)})["..."] == f"{100 - ITEMS_MAX} more"


@given(st.lists(st.floats(0, 1e4), max_size=50), st.integers(1, 5), st.floats(0.1, 100))
def test_a_flood_is_limited_and_counted(times: list[float], burst: int, period_s: float) -> None:
    limited = RateLimited(burst=burst, period_s=period_s)
    allowed = [now for now in sorted(times) if limited.allows(now)]
    assert len(allowed) + limited.take_suppressed() == len(times)
    assert limited.take_suppressed() == 0
    for start in allowed:
        inside = [now for now in allowed if 0 <= now - start < period_s]
        assert len(inside) <= 2 * burst  # at worst the end of one period and the start of the next
    assert allowed[:1] == sorted(times)[:1]


def test_a_hundred_thousand_bad_frames_make_few_lines() -> None:
    limited = RateLimited(burst=10, period_s=60.0)
    assert sum(limited.allows(i * 0.001) for i in range(100_000)) == 20


@pytest.mark.parametrize(("burst", "period_s"), [(0, 1.0), (1, 0.0), (1, float("nan"))])
def test_a_limit_that_allows_nothing_is_refused(burst: int, period_s: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        RateLimited(burst=burst, period_s=period_s)
