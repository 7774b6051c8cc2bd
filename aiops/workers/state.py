"""What a worker keeps between steps and nobody else has: to be saved with its checkpoint.

So far that is what the compression of its pushes holds back. A state is a flat mapping of names to
arrays, so that `numpy.savez(path, **state)` writes it and `numpy.load(path)` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from aiops.errors import ConfigError

if TYPE_CHECKING:
    from aiops.tables.table import Table

__all__ = ["WorkerState"]

_COMPRESSION: Final = "compression/"


class WorkerState:
    """Collects the state of open tables, and gives it to tables as they are opened."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, NDArray[Any]]] = {}

    def collect(self, tables: list[Table]) -> dict[str, NDArray[Any]]:
        """Return the state of these tables, and of those that have not been opened yet."""
        states = {table.name: table.compression_state() for table in tables}
        return {
            f"{_COMPRESSION}{table}/{name}": array
            for table, state in (self._pending | states).items()
            for name, array in state.items()
        }

    def take(self, state: Mapping[str, NDArray[Any]], tables: list[Table]) -> None:
        """Give a state to open tables, and keep the rest for those that are opened later."""
        pending: dict[str, dict[str, NDArray[Any]]] = {}
        for key, array in state.items():
            table, slash, name = key.removeprefix(_COMPRESSION).partition("/")
            if not key.startswith(_COMPRESSION) or not slash:
                raise ConfigError(f"load_state_dict: {key!r} is no name of a worker's state")
            pending.setdefault(table, {})[name] = np.asarray(array)
        self._pending = pending
        for opened in tables:
            self.give(opened)

    def give(self, table: Table) -> None:
        """Give a table its part, if there is one."""
        state = self._pending.get(table.name)
        if state is not None:
            table.load_compression_state(state)
            del self._pending[table.name]
