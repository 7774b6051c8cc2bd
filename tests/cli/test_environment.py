"""Children find their cluster in the environment and do not fight over the cores."""

from __future__ import annotations

from aiops_cli.environment import BLAS_THREADS, child_environment


def test_one_blas_thread_each() -> None:
    child = child_environment({"AIOPS_NAME": "worker-0"}, {"HOME": "x"})
    assert child == {"HOME": "x", "AIOPS_NAME": "worker-0", **dict.fromkeys(BLAS_THREADS, "1")}


def test_whoever_has_an_opinion_about_threads_keeps_it() -> None:
    """OpenBLAS reads its own variable before OMP's: to set it would overrule the user."""
    assert child_environment({}, {"OMP_NUM_THREADS": "4"}) == {"OMP_NUM_THREADS": "4"}


def test_the_launchers_own_settings_are_not_the_childs() -> None:
    """AIOPS_BIND of the launcher would make all servers fight for one port."""
    inherited = {"AIOPS_BIND": "127.0.0.1:9070", "AIOPS_NAME": "x", "OMP_NUM_THREADS": "1"}
    assert child_environment({}, inherited) == {"OMP_NUM_THREADS": "1"}
