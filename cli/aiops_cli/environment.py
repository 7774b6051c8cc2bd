"""The environment of child processes: where their cluster is, and how many threads they take."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Each process of a job takes all cores for its matrix products unless told otherwise, and several
# processes on few cores then wait for each other.
BLAS_THREADS = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
# Meant for the launcher itself; a child that found them would take them for its own.
NOT_INHERITED = (
    "AIOPS_ADVERTISE",
    "AIOPS_BIND",
    "AIOPS_CLUSTER",
    "AIOPS_INDEX",
    "AIOPS_NAME",
    "AIOPS_SCHEDULER",
)


def child_environment(
    settings: Mapping[str, str], inherited: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of a child: ours, one BLAS thread, and `settings`.

    Whoever sets any of the BLAS variables has an opinion about threads, so none is touched then.
    """
    ours = os.environ if inherited is None else inherited
    child = {name: value for name, value in ours.items() if name not in NOT_INHERITED}
    if not any(name in child for name in BLAS_THREADS):
        child.update(dict.fromkeys(BLAS_THREADS, "1"))
    child.update(settings)
    return child
