"""The training loop over a cluster of fakes: results, stops, reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiops.errors import ConfigError, TrainingDiverged
from aiops.trainers import (
    Batches,
    Dataset,
    Progress,
    TrainConfig,
    WorkerReport,
    from_arrays,
    load,
    train,
)
from aiops.trainers.config import OPTIMIZERS
from aiops_protocol.payload import Float32Array
from fake_training import FakeCluster, FakeWorker

Train = Callable[[FakeWorker], Any]


@pytest.fixture(scope="module")
def blobs() -> Dataset:
    """Three clouds of points, easy to tell apart."""
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    return from_arrays(rng.standard_normal((300, 4)) + 3.0 * np.eye(3, 4)[labels], labels)


def job(dataset: Dataset, config: TrainConfig, seen: list[Progress] | None = None) -> Train:
    async def run(worker: FakeWorker) -> WorkerReport:
        on_progress = None if seen is None else seen.append
        return await train(worker, dataset, config.make_model(dataset), config, on_progress)

    return run


def in_one_process(dataset: Dataset, config: TrainConfig, parts: int, steps: int) -> Float32Array:
    """What BSP must give: the float32 mean in rank order, one optimizer step per round."""
    model, optimizer = config.make_model(dataset), config.make_optimizer()
    w = model.initial(config.seed)
    state = {slot: np.zeros_like(w) for slot in type(optimizer).slots}
    shards = [
        Batches(len(dataset.x_train), config.batch_size, part, parts, config.seed)
        for part in range(parts)
    ]
    for step in range(steps):
        gradients = []
        for shard in shards:
            rows = shard.at(step)
            _, gradient = model.loss_and_gradient(w, dataset.x_train[rows], dataset.y_train[rows])
            gradients.append(gradient)
        total = gradients[0].copy()
        for gradient in gradients[1:]:
            total += gradient
        total /= np.float32(parts)
        optimizer.update(w, total, state, step + 1, np.empty_like(w))
    return w


@pytest.mark.parametrize("ranks", [(0,), (0, 1, 2, 3), (1, 4, 5)])
@pytest.mark.parametrize("model", ["softmax", "mlp"])
async def test_bsp_has_the_bits_of_a_single_process(
    blobs: Dataset, ranks: tuple[int, ...], model: str
) -> None:
    config = TrainConfig(model=model, steps=25, batch_size=8, hidden=(6,), seed=3)
    cluster = FakeCluster(ranks)
    await cluster.run(job(blobs, config))
    wanted = in_one_process(blobs, config, len(ranks), 25)
    assert cluster.tables["model"].values.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
async def test_training_learns_and_one_worker_evaluates(blobs: Dataset, consistency: str) -> None:
    config = TrainConfig(epochs=5, batch_size=10, consistency=consistency)
    cluster = FakeCluster((2, 5))
    first, second = await cluster.run(job(blobs, config))
    assert (first.rank, second.rank) == (2, 5)
    assert first.steps == second.steps == 5 * 12
    assert first.stopped_because == "all 60 steps are done"
    assert second.evaluation is None
    assert first.evaluation is not None
    model = config.make_model(blobs)
    values = cluster.tables["model"].values
    assert first.evaluation.test == model.metrics(values, blobs.x_test, blobs.y_test)
    assert first.evaluation.train == model.metrics(values, blobs.x_train, blobs.y_train)
    assert first.evaluation.test["accuracy"] > 0.9


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
async def test_every_optimizer_learns_with_its_own_rate(blobs: Dataset, optimizer: str) -> None:
    config = TrainConfig(epochs=20, batch_size=10, optimizer=optimizer)
    report, _ = await FakeCluster((0, 1)).run(job(blobs, config))
    assert report.evaluation is not None
    assert report.evaluation.test["accuracy"] > 0.9


async def test_a_schedule_and_a_limit_of_the_norm_reach_the_training(blobs: Dataset) -> None:
    """A step of at most the norm times the rate; after 5 steps the rate is nearly 0."""
    config = TrainConfig(
        steps=9, optimizer="sgd", lr=1.0, lr_schedule="step:5:1e-9", clip_norm=1e-3
    )
    cluster = FakeCluster((0,))
    await cluster.run(job(blobs, config))
    moved = float(np.linalg.norm(cluster.tables["model"].values))
    assert 1e-3 < moved <= 5.001e-3


async def test_linear_regression_finds_the_line() -> None:
    x = np.random.default_rng(0).standard_normal((400, 2))
    data = from_arrays(x, x @ [300.0, -200.0] + 5000.0, task="regression")
    config = TrainConfig(model="linear", epochs=30)
    report, _ = await FakeCluster((0, 1)).run(job(data, config))
    assert report.evaluation is not None
    assert report.evaluation.test["rmse"] < 1.0
    assert report.evaluation.test["loss"] < 1e-4


async def test_the_published_set_up_reaches_its_accuracy() -> None:
    """Four workers of batch 32, 40 epochs, momentum: 97.7 % on the digits, within the noise."""
    pytest.importorskip("sklearn")
    digits = load("digits")
    reports = await FakeCluster((0, 1, 2, 3)).run(job(digits, TrainConfig(model="mlp")))
    assert reports[0].steps == 440
    assert reports[0].evaluation is not None
    assert reports[0].evaluation.test["accuracy"] >= 0.965
    assert reports[0].evaluation.train["loss"] < 0.01


async def test_every_step_has_its_phases_in_order(blobs: Dataset) -> None:
    cluster = FakeCluster((0,))
    (report,) = await cluster.run(job(blobs, TrainConfig(steps=3, target_loss=1e-9, check_every=2)))
    traced = ["pull", "local gradient", "push"]  # `steps` itself records "start" and "repeat"
    wanted = []
    for number in range(3):
        wanted += [(phase, number) for phase in traced]
        wanted += [("check", number)] if number == 1 else []
    assert cluster.workers[0].spans == wanted
    assert set(report.phases) == {"start", *traced, "check", "repeat"}
    assert 0.0 < sum(report.phases.values()) <= report.seconds


async def test_progress_is_told_after_each_step(blobs: Dataset) -> None:
    seen: list[Progress] = []
    (report,) = await FakeCluster((3,)).run(job(blobs, TrainConfig(steps=4), seen))
    assert [(p.rank, p.step, p.planned) for p in seen] == [(3, n, 4) for n in (1, 2, 3, 4)]
    assert seen[0].loss == pytest.approx(np.log(3))
    assert seen[-1].loss == report.loss
    assert [p.elapsed_s for p in seen] == sorted(p.elapsed_s for p in seen)


async def test_metrics_and_counters_reach_the_report(blobs: Dataset) -> None:
    cluster = FakeCluster((0,))
    (report,) = await cluster.run(job(blobs, TrainConfig(steps=4)))
    assert cluster.workers[0].metrics == {"loss": report.loss}
    assert report.bytes["pushed"] == 4 * report.parameters * 4
    assert report.servers == {"0": {"sent": report.bytes["pushed"], "received": 7}}
    assert report.latency["push"]["count"] == 4
    assert WorkerReport.from_dict(report.to_dict()) == report


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
async def test_all_stop_when_the_target_is_reached(blobs: Dataset, consistency: str) -> None:
    config = TrainConfig(
        epochs=50, target_loss=0.1, check_every=7, batch_size=10, consistency=consistency
    )
    cluster = FakeCluster((0, 1, 2))
    reports = await cluster.run(job(blobs, config))
    assert len(cluster.stops) == 1, "one worker looks, and asks once"
    assert cluster.stop_at is not None
    assert cluster.stop_at < 400
    for report in reports:
        assert report.steps == cluster.stop_at
        assert "reached the target 0.1" in report.stopped_because
    if consistency == "bsp":
        assert cluster.stop_at % 7 == 0, "the step after which the check was made is the last"


async def test_all_stop_when_patience_is_at_an_end(blobs: Dataset) -> None:
    """A learning rate that moves nothing: the first check finds the best loss there will be."""
    config = TrainConfig(steps=300, patience=3, check_every=5, lr=1e-30)
    cluster = FakeCluster((0, 1))
    reports = await cluster.run(job(blobs, config))
    assert [r.steps for r in reports] == [20, 20]
    assert reports[1].stopped_because == "no train loss below 1.099 in 3 checks"


async def test_all_stop_when_time_is_up(blobs: Dataset) -> None:
    cluster = FakeCluster((0, 1))
    reports = await cluster.run(job(blobs, TrainConfig(steps=300, max_seconds=1e-9)))
    assert [r.steps for r in reports] == [1, 1]
    assert reports[0].stopped_because == "1e-09 s have passed"


async def test_nobody_asks_to_stop_at_the_end_of_the_plan(blobs: Dataset) -> None:
    cluster = FakeCluster((0,))
    (report,) = await cluster.run(
        job(blobs, TrainConfig(steps=4, target_loss=1e9, check_every=4, max_seconds=1e6))
    )
    assert cluster.stops == []
    assert report.stopped_because == "all 4 steps are done"


async def test_a_worker_goes_on_where_it_was(blobs: Dataset) -> None:
    """Restarted at clock 120 of 125, it takes the last five batches and no others."""
    seen: list[Progress] = []
    cluster = FakeCluster((0,), clock=120)
    (report,) = await cluster.run(job(blobs, TrainConfig(steps=125), seen))
    assert report.steps == 5
    assert [p.step for p in seen] == [121, 122, 123, 124, 125]


@pytest.mark.parametrize("model", ["mlp", "linear"])
async def test_divergence_is_an_error_that_says_what_to_do(blobs: Dataset, model: str) -> None:
    data = blobs
    if model == "linear":
        data = from_arrays(blobs.x_train, blobs.x_train.sum(axis=1), task="regression")
    config = TrainConfig(model=model, steps=2000, optimizer="sgd", lr=1e38)
    with pytest.raises(TrainingDiverged, match=r"lower learning rate than 1e\+38"):
        await FakeCluster((0,)).run(job(data, config))


async def test_more_workers_than_rows(blobs: Dataset) -> None:
    tiny = from_arrays(blobs.x_train[:4], blobs.y_train[:4] > 0)
    with pytest.raises(ConfigError, match="use fewer workers"):
        await FakeCluster(tuple(range(4))).run(job(tiny, TrainConfig()))
