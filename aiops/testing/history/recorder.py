"""Recorder: writes down what one worker asks of the servers, and what it is answered.

The Customer tells it of every operation, the worker of ticks and barriers. An operation that
changes something is on its way to the disk before it is sent, so that a history of a worker that
was killed never lacks what may have taken effect.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from aiops.errors import AiopsError, ConfigError
from aiops.roles.requests import Operation, Part
from aiops.roles.rules import has_lead
from aiops.testing.history.format import (
    FORMAT,
    Closed,
    Ended,
    Event,
    Header,
    Invoked,
    Kind,
    Opened,
    Outcome,
    PartAsked,
    PartEnded,
    encode,
    file_name,
)
from aiops.wording import shown
from aiops_protocol.checksum import crc32c
from aiops_protocol.codecs import Sparse, decode_values
from aiops_protocol.control import TableOpened
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Flag, Reject, Reply, Value
from aiops_protocol.frames import Kind as FrameKind
from aiops_protocol.payload import Buffer, as_bytes, weight_of

__all__ = ["Recorder", "host_id"]

BUFFER_BYTES: Final = 64 * 1024
"""What may wait for the next write; pulls and answers need not be on disk at once."""

_KINDS: Final[dict[FrameKind, Kind]] = {
    FrameKind.PUSH: "push",
    FrameKind.PULL: "pull",
    FrameKind.PUSH_PULL: "push_pull",
    FrameKind.ASSIGN: "assign",
    FrameKind.SEAL: "seal",
    FrameKind.CALL: "assign",  # it sets all values, and which is not known here
}

_HALF_DONE: Final = frozenset({ErrorCode.OPTIMIZER_FAILED})
"""Refusals after which something may have been changed all the same."""


def host_id() -> str:
    """Return a name of this machine since its last start; equal names share one clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


class _Open(msgspec.Struct):
    """An operation under way: its number, and what is known of its parts."""

    op: int
    answers: dict[int, PartEnded]  # by place in the operation
    places: dict[int, int]  # id of the part: place
    values: bool


class Recorder:
    """Writes the history of one worker into a file of its own.

    Parameters
    ----------
    folder
        Where to; made if it is not there.
    values
        Names of the tables whose whole values are written down, besides checksums: small tables
        of a test, for which `aiops verify` can then tell which pushes a pull shows.
    now_ns
        The clock.

    Raises
    ------
    ConfigError
        The file cannot be written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        values: Collection[str] = (),
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        given: object = folder
        if not isinstance(given, str | os.PathLike):
            raise ConfigError(f"Recorder: folder is {shown(folder)}; pass the path of a folder")
        self._folder = Path(folder)
        names: object = values
        if not isinstance(names, list | tuple | set | frozenset):
            raise ConfigError(f"Recorder: values is {shown(values)}; pass a list of tables' names")
        self._values_of = frozenset(map(str, values))
        self._now_ns = now_ns
        self._file = -1
        self._buffer = bytearray()
        self._next = 1
        self._open: dict[int, _Open] = {}  # by id of the operation
        self._values: set[int] = set()  # tables

    def start(
        self,
        *,
        job: str,
        worker: int,
        incarnation: int,
        name: str,
        workers: list[int],
        clock: int,
    ) -> None:
        """Open the file, once it is known who this worker is."""
        header = Header(
            at=self._now_ns(),
            format=FORMAT,
            job=job,
            worker=worker,
            incarnation=incarnation,
            name=name,
            host=host_id(),
            workers=workers,
            clock=clock,
        )
        path = self._folder / file_name(header)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as error:
            raise ConfigError(f"cannot write the history {path}: {error.strerror}") from error
        self._write(header, now=True)

    def _write(self, event: Event, *, now: bool) -> None:
        self._buffer += encode(event)
        if now or len(self._buffer) >= BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._file >= 0:
            view = memoryview(self._buffer)
            while view:
                view = view[os.write(self._file, view) :]
            view.release()
        self._buffer = bytearray()

    # --- what the worker tells ---

    def opened(self, opened: TableOpened, *, takes_part: bool) -> None:
        """Note a table that was opened."""
        spec = opened.spec
        # Of a replica no more can be said than that it is the same for everybody; rows of sparse
        # tables have no places that values could be compared at.
        plain = spec.layout == "dense" and not spec.pull_compression
        if spec.name in self._values_of and plain:
            self._values.add(opened.table)
        init = spec.init.get("value") if spec.init_kind == "constant" else None
        settings = spec.consistency_settings
        self._write(
            Opened(
                at=self._now_ns(),
                table=opened.table,
                name=spec.name,
                mode="quorum" if has_lead(spec) else spec.consistency,
                reduce=str(settings.get("reduce") or ""),
                trim=int(settings.get("trim") or 0),
                staleness=int(settings.get("staleness") or 0),
                keeps_late=settings.get("late") == "next",
                optimizer=spec.optimizer,
                first=opened.from_version,
                takes_part=takes_part,
                shards=[(part.server, part.begin, part.end) for part in opened.parts],
                init=float(init) if isinstance(init, int | float) else None,
                values=opened.table in self._values,
            ),
            now=False,
        )

    def begin(self, kind: Kind, *, clock: int = 0, name: str = "") -> int:
        """Note that a call without values begins, a tick or a barrier; return its number."""
        op = self._number()
        event = Invoked(at=self._now_ns(), op=op, kind=kind, clock=clock, name=name)
        self._write(event, now=kind == "barrier")
        return op

    def end(self, op: int, error: BaseException | None = None, *, generation: int = 0) -> None:
        """Note how a call that `begin` has numbered has ended."""
        outcome: Outcome = "ok" if error is None else "unknown"
        self._write(
            Ended(
                at=self._now_ns(),
                op=op,
                outcome=outcome,
                error=_text(error),
                generation=generation,
            ),
            now=False,
        )

    def close(self, *, clean: bool, reason: str) -> None:
        """Note that the worker has left, and close the file. Idempotent."""
        if self._file < 0:
            return
        self._write(Closed(at=self._now_ns(), clean=clean, reason=reason), now=True)
        os.close(self._file)
        self._file = -1

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    # --- what the Customer tells ---

    def started(self, operation: Operation) -> None:
        """Note an operation before anything of it is sent."""
        if not operation.parts or _only_calls(operation.parts[0]):
            return
        first = operation.parts[0]
        values = first.table in self._values
        kind = _KINDS[first.kind.kind]
        if first.flags & Flag.INITIAL:
            kind = "initialise"
        op = self._number()
        places = {id(part): place for place, part in enumerate(operation.parts)}
        self._open[id(operation)] = _Open(op, {}, places, values)
        self._write(
            Invoked(
                at=self._now_ns(),
                op=op,
                kind=kind,
                verb="" if operation.verb == kind else operation.verb,
                table=first.table,
                parts=[_asked(part, values) for part in operation.parts],
                contributed=kind == "seal" and bool(first.flags & Flag.CONTRIBUTED),
                final=kind == "seal" and bool(first.flags & Flag.FINAL),
                weight=weight_of(first.payload) if first.flags & Flag.WEIGHT else 1.0,
            ),
            now=kind != "pull",
        )

    def answered(self, part: Part, reply: Reply) -> None:
        """Note the answer to one part."""
        entry = self._open.get(id(part.operation))
        if entry is None:
            return
        ended = _sent(part)
        ended.version = reply.version
        if isinstance(reply, Reject):
            ended.outcome = "unknown" if reply.status in _HALF_DONE else "fail"
        elif isinstance(reply, Value):
            ended.outcome = "ok"
            payload = part.received or reply.payload
            ended.checksum = crc32c(payload)
            ended.values = _numbers(payload) if entry.values else None
        else:
            ended.outcome = "ok"
        entry.answers[entry.places[id(part)]] = ended

    def ended(self, operation: Operation, error: AiopsError | None) -> None:
        """Note that an operation has ended, or was given up; what is unanswered is unknown."""
        entry = self._open.pop(id(operation), None)
        if entry is None:
            return
        parts = [
            entry.answers.get(place) or _sent(part) for place, part in enumerate(operation.parts)
        ]
        outcomes = {part.outcome for part in parts}
        outcome: Outcome = (
            "ok" if outcomes == {"ok"} else "unknown" if "unknown" in outcomes else "fail"
        )
        self._write(
            Ended(at=self._now_ns(), op=entry.op, outcome=outcome, parts=parts, error=_text(error)),
            now=False,
        )


def _only_calls(part: Part) -> bool:
    """Whether it runs a function that changes nothing; its result can be anything."""
    return part.kind.kind is FrameKind.CALL and part.outbox is None


def _asked(part: Part, values: bool) -> PartAsked:
    named = part.ranges or part.keys
    several = len(named) > 0
    return PartAsked(
        shard=part.shard,
        begin=part.begin,
        end=part.end,
        clock=part.clock,
        keys=crc32c(named) if several else 0,
        checksum=crc32c(part.payload) if len(part.payload) else 0,
        values=_numbers(_plain(part)) if values and len(part.payload) else None,
        ranges=_pairs(part.ranges) if values and part.ranges else None,
    )


def _sent(part: Part) -> PartEnded:
    """Say of a part without an answer what is known: without an id it has never left."""
    mutation = part.outbox is not None
    return PartEnded(
        outcome="unknown" if part.request_id and mutation else "fail",
        seq=part.seq,
        request=part.request_id,
        resent=part.resent,
    )


def _plain(part: Part) -> Buffer:
    """Return the float32 values of a part."""
    if not part.codec:
        return part.payload
    count, parameter = part.codec_parameters & 0xFFFFFFFF, part.codec_parameters >> 32
    decoded = decode_values(part.codec, part.payload, count, parameter)
    return as_bytes(decoded.dense() if isinstance(decoded, Sparse) else decoded)


def _numbers(payload: Buffer) -> list[float] | None:
    values = np.frombuffer(payload, np.float32)
    if not np.isfinite(values).all():  # JSON has no word for them
        return None
    return [int(number) if number.is_integer() else number for number in values.tolist()]


def _pairs(ranges: Buffer) -> list[tuple[int, int]]:
    pairs = np.frombuffer(ranges, "<u8").reshape(-1, 2).tolist()
    return [(begin, end) for begin, end in pairs]


def _text(error: BaseException | None) -> str:
    if error is None:
        return ""
    return f"{type(error).__name__}: {error}"[:300]
