"""What a worker keeps between steps and nobody else has: to be saved with its checkpoint.

So far that is what the compression of its pushes holds back. A state is a flat mapping of names to
arrays, so that `numpy.savez(path, **state)` writes it and `numpy.load(path)` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aiops.errors import ConfigError
from aiops.wording import shown

if TYPE_CHECKING:
    from aiops.tables.sparse_table import SparseTable
    from aiops.tables.table import Table
    from aiops.workers.tables import Tables

    AnyTable: TypeAlias = Table | SparseTable

__all__ = ["KeepsState", "WorkerState"]

_COMPRESSION: Final = "compression/"


class WorkerState:
    """Collects the state of open tables, and gives it to tables as they are opened."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, NDArray[Any]]] = {}

    def collect(self, tables: list[AnyTable]) -> dict[str, NDArray[Any]]:
        """Return the state of these tables, and of those that have not been opened yet."""
        states = {table.name: table.compression_state() for table in tables}
        return {
            f"{_COMPRESSION}{table}/{name}": array
            for table, state in (self._pending | states).items()
            for name, array in state.items()
        }

    def take(self, state: Mapping[str, NDArray[Any]], tables: list[AnyTable]) -> None:
        """Give a state to open tables, and keep the rest for those that are opened later."""
        pending: dict[str, dict[str, NDArray[Any]]] = {}
        if not isinstance(state, Mapping):  # numpy.load's is one
            raise ConfigError(
                f"load_state_dict: pass names and arrays, as state_dict and numpy.load return "
                f"them, not {type(state).__name__}"
            )
        for key, array in state.items():
            if not isinstance(key, str):
                raise ConfigError(f"load_state_dict: {shown(key)} is no name of a worker's state")
            table, slash, name = key.removeprefix(_COMPRESSION).partition("/")
            if not key.startswith(_COMPRESSION) or not slash:
                raise ConfigError(f"load_state_dict: {shown(key)} is no name of a worker's state")
            pending.setdefault(table, {})[name] = np.asarray(array)
        self._pending = pending
        for opened in tables:
            self.give(opened)

    def give(self, table: AnyTable) -> None:
        """Give a table its part, if there is one."""
        state = self._pending.get(table.name)
        if state is not None:
            table.load_compression_state(state)
            del self._pending[table.name]


class KeepsState:
    """What only this worker has; a part of `Worker`."""

    _tables: Tables

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what nobody else has of this worker's training: what compression holds back.

        Names and arrays, a copy of one's own. `numpy.savez(path, **worker.state_dict())` saves
        it; take it between two steps.
        """
        return self._tables.state.collect(self._tables.all)

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on with an earlier state: `worker.load_state_dict(numpy.load(path))`.

        Tables that are not open yet get their part when they are opened.

        Raises
        ------
        ConfigError
            A name that no state has; a table with another codec or of another size (raised by
            `table`, if it is opened later).
        """
        self._tables.state.take(state, self._tables.all)
