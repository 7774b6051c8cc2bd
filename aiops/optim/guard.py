"""Calling optimizers that are not ours, so that a mistake in one is an error with a name.

What lives here: one call of `update` with what it may touch lent, and the checks afterwards. What
does not: undoing what it has changed (the shard has the arrays), and who is told.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from aiops.errors import ConfigError
from aiops.optim.base import Optimizer, Steps
from aiops_protocol.payload import Float32Array, all_finite

__all__ = ["OptimizerMistake", "is_ours", "update_guarded"]


class OptimizerMistake(ConfigError):
    """An optimizer has done what none may do; the message says what, and what it should do."""


def is_ours(optimizer: Optimizer) -> bool:
    """Whether an optimizer is one of this package: those only compute, and cannot fail half-way."""
    return type(optimizer).__module__.startswith("aiops.optim.")


def update_guarded(
    optimizer: Optimizer,
    values: Float32Array,
    gradient: Float32Array,
    state: Mapping[str, Float32Array],
    step: Steps,
    scratch: Float32Array,
    *,
    finite: bool,
) -> None:
    """Let an optimizer step once; arguments as for `Optimizer.update`.

    Parameters
    ----------
    finite
        The values must be finite afterwards.

    Raises
    ------
    OptimizerMistake
        It has returned something, given an array another shape, put other arrays into the
        state, left values that are not finite, or asked the process to exit. The arrays are
        then in any state.
    Exception
        What it has raised itself.
    """
    # Views: a shape that it sets is that of the view alone, and ours keep theirs.
    lent, lent_state = values[:], {slot: array[:] for slot, array in state.items()}
    given = dict(lent_state)
    try:
        returned: object = optimizer.update(lent, gradient[:], lent_state, step, scratch)
    except SystemExit as error:
        raise OptimizerMistake(f"it asked the server to exit ({error})") from error
    if returned is not None:
        raise OptimizerMistake(
            f"update returned a {type(returned).__name__}; it must change `values` in place and "
            "return nothing"
        )
    for what, array in (("values", lent), *given.items()):
        if array.shape != values.shape:
            raise OptimizerMistake(
                f"update gave {what} the shape {array.shape}; it must stay {values.shape}"
            )
    if lent_state.keys() != given.keys() or any(
        lent_state[slot] is not array for slot, array in given.items()
    ):
        raise OptimizerMistake(
            "update put other arrays into the state; it must change those of its slots in place"
        )
    if finite and not all_finite(values):
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise OptimizerMistake(
            f"update left {values[at]} in the values (open the table with allow_nonfinite=True "
            "to let NaN and infinity pass)"
        )
