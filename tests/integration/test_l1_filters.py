"""The KKT filter saves nearly all bytes of an L1 problem and ends at the same objective."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from local_jobs import guarded

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "l1_filters.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("l1_filters", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_filtered_training_reaches_the_objective_with_few_bytes(
    benchmark: ModuleType,
) -> None:
    """Most gradients are left out, pushes and pulls together with the cache of key lists."""
    data = benchmark.made()
    async with guarded():
        with benchmark.without_cache():
            plain = await benchmark.run(data, 120, filtering=False)
        filtered = await benchmark.run(data, 120, filtering=True)
    assert filtered.filtered >= 0.9
    assert plain.push / filtered.push >= 20
    assert plain.pull / filtered.pull >= 20
    assert filtered.objective == pytest.approx(plain.objective, rel=1e-3)
