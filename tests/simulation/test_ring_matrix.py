"""Rings of two to eight members, and a fault at each step: the same bits, or an abort for all.

`make test` runs some cells, `make ring-matrix` all of them.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from ring_cells import FAULTS, Cell, check_cell, run_cell

SIZES = range(2, 9)
ALWAYS = 37
"""Every so many-eth cell is run always; a prime, so that all steps and faults have their turn."""


@lru_cache
def steps_of(size: int) -> int:
    """How many frames a member takes in a run without a fault."""
    tellings, taken = run_cell(Cell(size, "kill", 0))
    check_cell(Cell(size, "kill", 0), tellings)
    return taken


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_same_bits_or_an_abort_for_all(
    size: int, fault: str, request: pytest.FixtureRequest
) -> None:
    stride = 1 if request.config.getoption("--ring-matrix") else ALWAYS
    first = 1 + (size * len(FAULTS) + FAULTS.index(fault)) % stride
    for step in range(first, steps_of(size) + 1, stride):
        cell = Cell(size, fault, step)
        try:
            tellings, _ = run_cell(cell)
            check_cell(cell, tellings)
        except Exception as error:
            raise AssertionError(f"cell {cell.name}: {error}") from error
