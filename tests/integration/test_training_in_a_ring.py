"""Training without servers: the bits of BSP, members that are lost, and some that come later."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiops
from aiops.errors import ConfigError
from aiops.trainers import TrainConfig, load, train
from aiops.trainers.config import OPTIMIZERS
from aiops.trainers.loop import _Run
from aiops.trainers.report import final_report, render
from local_jobs import local_job


async def weights_after(workers: int, config: TrainConfig) -> list[Any]:
    """Train in a job of its own; returns the weights that each worker ends with."""
    dataset = load("digits", task=config.task)
    model = config.make_model(dataset)

    async def work(worker: aiops.Worker) -> Any:
        run = await _Run.begin(worker, dataset, model, config)
        await run.take_steps(lambda progress: None)
        return (await run.exchange.newest()).copy()

    async with local_job(servers=2) as cluster:
        return await cluster.run(work, workers=workers)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
async def test_in_rank_order_the_weights_are_those_of_servers_bit_for_bit(optimizer: str) -> None:
    def config(**how: Any) -> TrainConfig:
        return TrainConfig(model="mlp", steps=12, optimizer=optimizer, hidden=(32,), **how)

    served = await weights_after(3, config())
    ringed = await weights_after(3, config(sync="ring", ring_order="rank"))
    any_order = await weights_after(3, config(sync="ring"))
    assert len({weights.tobytes() for weights in [*served, *ringed]}) == 1
    assert len({weights.tobytes() for weights in any_order}) == 1
    np.testing.assert_allclose(any_order[0], served[0], rtol=0.05, atol=1e-3)


@pytest.mark.parametrize(
    "how",
    [
        *({"optimizer": optimizer} for optimizer in sorted(OPTIMIZERS)),
        {"model": "linear"},
        {"lr_schedule": "warmup:2,cosine:4:0.1"},
        {"optimizer": "adam", "lr_schedule": "step:2:0.5", "weight_decay": 0.1},
        {"optimizer": "ftrl", "l1": 0.01, "l2": 0.1},
        {"clip_norm": 0.1},
    ],
    ids=str,
)
async def test_every_optimizer_and_schedule_does_as_on_servers(how: dict[str, Any]) -> None:
    def config(**more: Any) -> TrainConfig:
        return TrainConfig(**{"model": "softmax", "steps": 6, **how, **more})

    served = await weights_after(2, config())
    ringed = await weights_after(2, config(sync="ring", ring_order="rank"))
    assert len({weights.tobytes() for weights in [*served, *ringed]}) == 1


@pytest.mark.parametrize("codec", ["one-bit", "top-k:0.05", "int8+lz4"])
async def test_compressed_the_weights_are_those_of_servers_too(codec: str) -> None:
    """The same spelling, the same codec, the same order: the same weights on every rank."""

    def config(**how: Any) -> TrainConfig:
        return TrainConfig(model="mlp", steps=8, hidden=(32,), compression=codec, **how)

    served = await weights_after(3, config())
    ringed = await weights_after(3, config(sync="ring"))
    assert len({weights.tobytes() for weights in [*served, *ringed]}) == 1


@pytest.mark.parametrize("codec", ["qsgd", "dgc:0.01", "power-sgd:1:shapes=64x10,10"])
async def test_compressed_by_any_codec_all_ranks_have_the_same_bits(codec: str) -> None:
    config = TrainConfig(model="softmax", steps=8, sync="ring", compression=codec)
    dataset = load("digits", task=config.task)

    async def work(worker: aiops.Worker) -> Any:
        model = config.make_model(dataset)
        run = await _Run.begin(worker, dataset, model, config)
        await run.take_steps(lambda progress: None)
        return run.exchange.weights.tobytes(), await run.conclude()

    async with local_job() as cluster:
        results = await cluster.run(work, workers=3)
    assert len({weights for weights, _ in results}) == 1
    reports = [report for _, report in results]
    report = final_report(reports, servers=1)
    push = report["compression"]["gradients"]["push"]
    assert push["codec"].startswith(codec.partition(":")[0])
    assert push["bytes_before"] == 3 * 8 * 4 * 650
    assert push["ratio"] == pytest.approx(push["bytes_before"] / push["bytes_after"])
    assert push["ratio"] > 3
    assert f"{push['ratio']:.1f} times shorter" in "\n".join(render(report))


async def test_the_report_has_everything_that_it_has_with_servers() -> None:
    config = TrainConfig(model="softmax", steps=5, sync="ring")
    dataset = load("digits", task=config.task)

    async def work(worker: aiops.Worker) -> Any:
        return await train(worker, dataset, config.make_model(dataset), config)

    async with local_job(servers=0) as cluster:
        reports = await cluster.run(work, workers=2)
    assert [report.steps for report in reports] == [5, 5]
    assert reports[0].evaluation is not None
    assert reports[0].bytes["pushed"] == reports[0].bytes["pulled"] == 5 * 4 * 650
    assert {"push", "pull", "local gradient"} <= set(reports[0].phases)
    assert [report.latency["push"]["count"] for report in reports] == [5, 5]


@pytest.mark.parametrize("codec", [None, "power-sgd:1:shapes=64x10,10"])
async def test_a_lost_worker_is_replaced_and_the_newcomer_gets_the_model(
    codec: str | None,
) -> None:
    config = TrainConfig(model="softmax", steps=60, sync="ring", compression=codec)
    dataset = load("digits", task=config.task)
    model = config.make_model(dataset)
    ended: dict[str, Any] = {}
    lost = asyncio.Event()

    async with local_job(on_worker_loss="continue") as cluster:
        cluster.scheduler.expect_workers(3)

        async def work(name: str, dies_at: int = -1) -> None:
            async with cluster.connect(name=name) as worker:
                run = await _Run.begin(worker, dataset, model, config)

                def progress(at: Any) -> None:
                    if at.step == dies_at:
                        lost.set()
                        raise RuntimeError("gone")

                await run.take_steps(progress)
                ended[name] = (await run.exchange.newest()).copy()
                await run.conclude()

        async def replacement() -> None:
            await lost.wait()
            await work("worker-3")

        first = [work("worker-0"), work("worker-1"), work("worker-2", dies_at=5), replacement()]
        outcomes = await asyncio.gather(*first, return_exceptions=True)
    assert isinstance(outcomes.pop(2), RuntimeError)
    assert outcomes == [None, None, None]
    assert ended["worker-0"].tobytes() == ended["worker-1"].tobytes()
    # The newcomer takes its own sixty steps: the last ones alone, from what all had.
    assert np.isfinite(ended["worker-3"]).all()
    assert not np.array_equal(ended["worker-3"], model.initial(config.seed))


def test_settings_that_do_not_go_together_are_refused() -> None:
    for wrong in (
        {"sync": "tree"},
        {"sync": "ring", "consistency": "asp"},
        {"ring_order": "rank"},
        {"sync": "ring", "ring_order": "first"},
    ):
        with pytest.raises(ConfigError):
            TrainConfig(**wrong)  # type: ignore[arg-type]
