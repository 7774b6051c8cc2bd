"""Seeds of simulated clusters, swept by as many processes as there are processors."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from aiops.testing.simulation.scenarios import Outcome, run_scenario

BLOCK = 20
"""Seeds of one call."""

PROCESSES_MAX = 8

Block = tuple[str, int]
"""A scenario, and the first of so many seeds."""


def run_block(block: Block) -> list[Outcome]:
    """Run a scenario with every seed of a block."""
    name, first = block
    return [run_scenario(name, seed) for seed in range(first, first + BLOCK)]


@contextmanager
def swept(blocks: Iterable[Block]) -> Iterator[dict[Block, Future[list[Outcome]]]]:
    """Begin to run all blocks, in the order given; give what they will have led to."""
    pool = ProcessPoolExecutor(
        min(os.cpu_count() or 1, PROCESSES_MAX), get_context("spawn"), initializer=_begin
    )
    try:
        yield {block: pool.submit(run_block, block) for block in blocks}
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    logging.disable(logging.CRITICAL)  # what clusters under faults complain about
    gc.freeze()
