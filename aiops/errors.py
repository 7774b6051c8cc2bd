"""Every error that aiops raises at its users, in one tree.

    AiopsError                        base of all
      UsageError (ValueError)         the caller erred; nothing was changed
        TableMismatch                 a table exists with other settings
        CollectiveMismatch            the members of a ring have called different operations
      ConfigError (ValueError)        a setting is wrong; found before anything starts
        DataError                     a data file cannot be read; names file and line
      TransportError                  the world broke
        DialFailed                    no connection could be made
        ConnectionLost                a connection ended without a goodbye
      PeerMisbehaved                  the other side broke the protocol (chained to the wire error)
      DeadlineExceeded (TimeoutError) time ran out
        RequestTimeout                a push, pull or assign
        BarrierTimeout                a barrier; names all the missing
        JoinTimeout                   the cluster did not become complete
      RequestRejected                 a server or the scheduler said no; carries the code
        KeyRangeNotOwned  StaleIncarnation  NotInitialised  ShuttingDown  NameInUse  RemoteError
        TooManyRestarts
      CollectiveAborted               a collective operation ended without effect, for all members
        CollectiveTimeout             because it took longer than this member would wait
      NodeFailed                      a node is lost, and with it the job or the call
      TrainingDiverged                the loss of a built-in trainer is no number any more
      Closed                          used after close, or after the job ended

Facts are attributes; the message is made from them. Misuse is also a `ValueError` and a
passed deadline also a `TimeoutError`, so that code without knowledge of aiops can catch them.
"""

from __future__ import annotations

from typing import Any, Final

from aiops_protocol.errors import ErrorCode

__all__ = [
    "AiopsError",
    "BarrierTimeout",
    "Closed",
    "CollectiveAborted",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "ConfigError",
    "ConnectionLost",
    "DataError",
    "DeadlineExceeded",
    "DialFailed",
    "JoinTimeout",
    "KeyRangeNotOwned",
    "NameInUse",
    "NodeFailed",
    "NotInitialised",
    "PeerMisbehaved",
    "RemoteError",
    "RequestRejected",
    "RequestTimeout",
    "ShuttingDown",
    "StaleIncarnation",
    "TableMismatch",
    "TooManyRestarts",
    "TrainingDiverged",
    "TransportError",
    "UsageError",
    "rejection",
]


class AiopsError(Exception):
    """Base of all errors of aiops. They travel between processes (`pickle`) with all they say."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own way calls the class with the message alone, and most want more than that.
        return _again, (type(self), self.args), self.__dict__


class UsageError(AiopsError, ValueError):
    """The call was wrong; it had no effect."""


class TableMismatch(UsageError):
    """A table of this name exists with other settings; the message names the difference."""


class CollectiveMismatch(UsageError):
    """The members of a ring have called different operations, or with different arrays.

    Raised by all members; the message names both sides. Nobody's arrays were changed.
    """


class ConfigError(AiopsError, ValueError):
    """A setting is wrong; nothing was started."""


class DataError(ConfigError):
    """A data file cannot be read as asked; the message names file and line."""


class TransportError(AiopsError):
    """The network or a process broke. `peer` names the other end.

    `retryable` says whether the same call may succeed later.
    """

    def __init__(self, message: str, *, peer: str = "", retryable: bool = False) -> None:
        super().__init__(message)
        self.peer = peer
        self.retryable = retryable


class DialFailed(TransportError):
    """No connection could be made.

    `refused` says that a host answered that nobody listens there.
    """

    def __init__(
        self, message: str, *, peer: str = "", retryable: bool = False, refused: bool = False
    ) -> None:
        super().__init__(message, peer=peer, retryable=retryable)
        self.refused = refused


class ConnectionLost(TransportError):
    """A connection ended without a goodbye."""


class PeerMisbehaved(AiopsError):
    """The other side broke the protocol, or is no aiops node at all."""


class DeadlineExceeded(AiopsError, TimeoutError):
    """Time ran out. `operation` and `elapsed_s` say of what and after how long."""

    def __init__(self, message: str, *, operation: str = "", elapsed_s: float = 0.0) -> None:
        super().__init__(message)
        self.operation = operation
        self.elapsed_s = elapsed_s


class RequestTimeout(DeadlineExceeded):
    """A push, pull or assign had no answer in time. A pull is safe to repeat."""


class BarrierTimeout(DeadlineExceeded):
    """Not everybody came to a barrier in time; `missing` lists all who did not."""

    def __init__(
        self, message: str, *, operation: str = "", elapsed_s: float = 0.0, missing: list[str]
    ) -> None:
        super().__init__(message, operation=operation, elapsed_s=elapsed_s)
        self.missing = missing


class JoinTimeout(DeadlineExceeded):
    """The expected servers and workers did not register in time."""


class RequestRejected(AiopsError):
    """A server or the scheduler refused; `code` is the number it gave."""

    def __init__(self, message: str, code: ErrorCode, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class KeyRangeNotOwned(RequestRejected):
    """A server was asked for keys that it does not hold."""


class StaleIncarnation(RequestRejected):
    """A newer process has taken this worker's name; this one may change nothing any more."""


class NotInitialised(RequestRejected):
    """The table has no values yet."""


class ShuttingDown(RequestRejected):
    """The node is ending."""


class NameInUse(RequestRejected):
    """A live worker has this name."""


class TooManyRestarts(RequestRejected):
    """A worker of this name was lost too often in a short time; the message says when to return."""


class RemoteError(RequestRejected):
    """Code on the server (an optimizer, a memory limit) failed; its state is unchanged."""


class NodeFailed(AiopsError):
    """A node of the job is lost; `node` names it, for example `worker 2 (worker-2)`."""

    def __init__(self, message: str, *, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class CollectiveAborted(AiopsError):
    """A collective operation has ended without effect on any member; the arrays are unchanged.

    `lost` has the ranks of workers that are lost, `cause` is one word: lost, left, mismatch,
    timeout, cancelled or connection. The ring is broken then, until all members that are left have
    called `reform`.
    """

    def __init__(
        self,
        message: str,
        *,
        ring: str,
        operation: str,
        cause: str,
        lost: tuple[int, ...] = (),
        elapsed_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.ring = ring
        self.operation = operation
        self.cause = cause
        self.lost = lost
        self.elapsed_s = elapsed_s


class CollectiveTimeout(CollectiveAborted, TimeoutError):
    """A member did not want to wait longer; the others get `CollectiveAborted`."""


class TrainingDiverged(AiopsError):
    """A built-in trainer's loss became infinite or NaN: its learning rate is too high."""


class Closed(AiopsError):
    """Used after it was closed, or after the job had ended."""


def _again(kind: type[AiopsError], args: tuple[Any, ...]) -> AiopsError:
    """Make an error anew in another process; its attributes are set afterwards."""
    error = kind.__new__(kind)
    error.args = args
    return error


_REJECTIONS: Final[dict[ErrorCode, type[RequestRejected]]] = {
    ErrorCode.KEY_RANGE_NOT_OWNED: KeyRangeNotOwned,
    ErrorCode.STALE_INCARNATION: StaleIncarnation,
    ErrorCode.NOT_INITIALISED: NotInitialised,
    ErrorCode.SHUTTING_DOWN: ShuttingDown,
    ErrorCode.NAME_IN_USE: NameInUse,
    ErrorCode.TOO_MANY_RESTARTS: TooManyRestarts,
    ErrorCode.OPTIMIZER_FAILED: RemoteError,
    ErrorCode.FUNCTION_FAILED: RemoteError,
    ErrorCode.OUT_OF_MEMORY: RemoteError,
    ErrorCode.INTERNAL: RemoteError,
}
_MISUSES: Final[dict[ErrorCode, type[UsageError]]] = {
    ErrorCode.UNKNOWN_TABLE: UsageError,
    ErrorCode.TABLE_MISMATCH: TableMismatch,
    ErrorCode.NOT_FINITE: UsageError,
    ErrorCode.INVALID_SETTING: UsageError,
    ErrorCode.ALREADY_SEALED: UsageError,
}


def rejection(code: int, message: str) -> AiopsError:
    """Return the error that stands for a refusal code on the wire."""
    known = ErrorCode(code) if code in set(ErrorCode) else ErrorCode.INTERNAL
    misuse = _MISUSES.get(known)
    if misuse is not None:
        return misuse(message)
    retryable = known is ErrorCode.TOO_MANY_RESTARTS
    return _REJECTIONS.get(known, RequestRejected)(message, known, retryable=retryable)
