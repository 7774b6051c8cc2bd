"""Structured logs: one event per line on stderr, with who it was bound to it.

Here live the logger that every shell uses and the one function that sends its lines somewhere. What
is logged, and when, belongs to the shells; the cores return facts and never log.

A program that imports aiops owns its logs. So until `configure` is called the events go to the
standard logger ``aiops``, where Python's own rules hold: warnings and errors reach stderr, the rest
is quiet, and ``logging.getLogger("aiops")`` decides otherwise. Where nobody has set its level,
``AIOPS_LOG_LEVEL``, which `aiops launch` gives to its programs, may ask for less. The commands call
`configure`. The
global set-up of structlog is never touched.

Peers choose some of what is logged (names, addresses, error texts). Nothing they send can start a
second line or reach the terminal as a control sequence: see `fields`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TextIO, TypeAlias, get_args

import structlog
from structlog.typing import EventDict

from aiops.observability.fields import ascii_json, console_value, plain

Format: TypeAlias = Literal["console", "json"]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]

TRACEBACK_CHARACTERS_MAX: Final = 20_000
"""A traceback may be longer; its end says most, so the start is cut."""

_NUMBERS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_COLOURS: Final = {"debug": "\x1b[2m", "warning": "\x1b[33m", "error": "\x1b[31m"}
_RESET: Final = "\x1b[0m"


class AiopsLogger(structlog.BoundLoggerBase):
    """Log named events with fields; `bind` returns a logger that carries more context."""

    def debug(self, event: str, /, **fields: object) -> None:
        """Log what only someone hunting a fault wants to see."""
        self._emit("debug", event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Log a fact of normal life."""
        self._emit("info", event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Log what the job survives but someone should know."""
        self._emit("warning", event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Log what ended something; pass ``exc_info=error`` for the exception behind it."""
        self._emit("error", event, fields)

    def _emit(self, level: Level, event: str, fields: dict[str, object]) -> None:
        if _enabled(level):
            self._proxy_to_logger(level, event, **fields)


def get_logger(**context: object) -> AiopsLogger:
    """Return a logger with context bound: role, rank, incarnation, job, peer.

    Parameters
    ----------
    **context
        Fields that every line of this logger carries.

    Returns
    -------
    logger : AiopsLogger
        May be made before `configure` is called; it follows the later set-up.
    """
    return AiopsLogger(_Sink(), [_plain_fields, _render], dict(context))


def configure(format: Format = "console", level: Level = "info") -> None:
    """Send the events of this process to stderr. For commands; a library never calls it.

    Warnings of other libraries that use the standard `logging` (asyncio, for one) are written in
    the same format, so that a stream of JSON lines holds nothing else.

    Parameters
    ----------
    format
        ``"console"`` for people, ``"json"`` for machines: one object per line.
    level
        The least level that is written.

    Raises
    ------
    ValueError
        There is no such format or level.
    """
    global _settings
    if format not in get_args(Format):
        raise ValueError(f"the log format is console or json, not {format!r}")
    if level not in _NUMBERS:
        raise ValueError(f"the log level is one of {', '.join(_NUMBERS)}, not {level!r}")
    _settings = _Settings(as_json=format == "json", threshold=_NUMBERS[level])
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _ForeignHandler):
            root.removeHandler(handler)
    root.addHandler(_ForeignHandler(logging.WARNING))


class RateLimited:
    """Let some of a flood of equal events through, and count the rest.

    Parameters
    ----------
    burst
        Events let through within each period.
    period_s
        Length of the period in seconds; it starts with the first event let through.

    Examples
    --------
    >>> refused = RateLimited(burst=2, period_s=60.0)
    >>> [refused.allows(now) for now in (0.0, 1.0, 2.0, 60.0)]
    [True, True, False, True]
    >>> refused.take_suppressed()
    1
    """

    __slots__ = ("_allowed", "_burst", "_period_s", "_started_at", "_suppressed")

    def __init__(self, burst: int = 10, period_s: float = 60.0) -> None:
        if burst < 1 or not period_s > 0:
            raise ValueError(f"burst {burst} and period {period_s} s must be positive")
        self._burst = burst
        self._period_s = period_s
        self._started_at: float | None = None
        self._allowed = 0
        self._suppressed = 0

    def allows(self, now: float) -> bool:
        """Tell whether an event that happens `now` may be logged; count it if not.

        Parameters
        ----------
        now
            Seconds of the caller's monotonic clock.
        """
        if self._started_at is None or now - self._started_at >= self._period_s:
            self._started_at = now
            self._allowed = 0
        if self._allowed < self._burst:
            self._allowed += 1
            return True
        self._suppressed += 1
        return False

    def take_suppressed(self) -> int:
        """Return how many events were held back since the last call, for the next line."""
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed


@dataclass(frozen=True, slots=True)
class _Settings:
    as_json: bool
    threshold: int


_settings: _Settings | None = None
"""The one piece of process-wide state here: where logs go is a property of the process."""

_stderr_lock = threading.RLock()  # the heartbeat thread logs too, and a signal may interrupt a line
_utc_time = structlog.processors.TimeStamper(fmt="iso", utc=True)
_local_time = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)


def _asked_by_launcher() -> int:
    """Return the least level that `aiops launch --log-level` wants of the programs it starts."""
    return _NUMBERS.get(os.environ.get("AIOPS_LOG_LEVEL", ""), 0)


def _enabled(level: str) -> bool:
    if _settings is None:
        standard = logging.getLogger("aiops")
        if standard.level == logging.NOTSET and _NUMBERS[level] < _asked_by_launcher():
            return False
        return standard.isEnabledFor(_NUMBERS[level])
    return _NUMBERS[level] >= _settings.threshold


class _Sink:
    """What structlog calls with the finished line, by the name of the level."""

    def __getattr__(self, level: str) -> Callable[[str], None]:
        if level not in _NUMBERS:
            raise AttributeError(level)
        return partial(_hand_to_logging if _settings is None else _write_line, level)


def _hand_to_logging(level: str, line: str) -> None:
    standard = logging.getLogger("aiops")
    # Without any handler Python prints the bare message: it should still say whose it is.
    prefix = "" if standard.hasHandlers() else "aiops: "
    standard.log(_NUMBERS[level], "%s", prefix + line)


def _write_line(level: str, line: str) -> None:
    stream = sys.stderr  # looked up for each line: tests and launchers replace it
    if stream is None:
        return
    # A reader that is gone, a closed stream or a full disk must not end a training run: a line that
    # cannot be written is given up.
    with _stderr_lock, suppress(OSError, ValueError):
        stream.write(_coloured(level, line, stream) + "\n")
        stream.flush()


def _coloured(level: str, line: str, stream: TextIO) -> str:
    colour = _COLOURS.get(level)
    if not colour or _settings is None or _settings.as_json or "NO_COLOR" in os.environ:
        return line
    return f"{colour}{line}{_RESET}" if stream.isatty() else line


class _ForeignHandler(logging.Handler):
    """Write other libraries' warnings in our format."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        log = get_logger(library=record.name)
        write = log.error if record.levelno >= logging.ERROR else log.warning
        try:
            write("library_message", message=record.getMessage(), exc_info=error)
        except Exception:  # a message whose arguments do not fit it; as every handler does
            self.handleError(record)


def _plain_fields(_: Any, level: str, event: EventDict) -> EventDict:
    """Put the level in, turn `exc_info` into fields, and every value into plain data."""
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    fields: EventDict = {"level": level, "event": plain(event.pop("event"))}
    fields.update((str(name), plain(value)) for name, value in event.items())
    if isinstance(error, BaseException):
        fields["error"] = plain(error)
        if _enabled("debug") or (_settings is not None and _settings.as_json):
            text = "".join(traceback.format_exception(error))
            fields["traceback"] = text[-TRACEBACK_CHARACTERS_MAX:]
    return fields


def _render(_: Any, level: str, event: EventDict) -> str:
    if _settings is None:
        return _logfmt(event)
    if _settings.as_json:
        # ASCII throughout, so no terminal that shows the file obeys what a peer sent.
        return ascii_json({**_utc_time(None, level, {}), **event})
    time = _local_time(None, level, {})["timestamp"]
    return f"{time} {level:<7} {_logfmt(event)}"


def _logfmt(event: EventDict) -> str:
    fields = (
        f"{console_value(name)}={console_value(value)}"
        for name, value in event.items()
        if name not in ("event", "level")
    )
    return " ".join((console_value(event["event"]), *fields))
