"""A cluster trains a sparse model as well as one process with plain numpy."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aiops
from aiops.trainers.sparse import (
    SparseConfig,
    SparseReport,
    area_under_curve,
    batches,
    time_spent,
    train_sparse,
)
from aiops.trainers.sparse.time_spent import Stopwatch, shares, verdict
from aiops_cli import train_sparse as train_sparse_command
from aiops_protocol.key_list import mix
from local_jobs import local_job

VALUES = 8 * 2_000
"""Features of the file, besides the intercept."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    example = Path(__file__).resolve().parents[2] / "examples" / "make_clicks.py"
    spec = importlib.util.spec_from_file_location("make_clicks", example)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("clicks")
    module.write(folder / "train.libsvm", 12_000, seed=0)
    module.write(folder / "test.libsvm", 6_000, seed=1)
    return folder / "train.libsvm", folder / "test.libsvm"


def reference(config: SparseConfig, data: Path, test: Path) -> float:
    """The area under the curve that one process reaches with arrays of all weights."""
    model, optimizer = config.make_model(), config.make_optimizer()
    keys = np.append(np.arange(VALUES, dtype=np.uint64), np.uint64(2**64 - 2))
    weights = model.init.fill_rows(mix(keys), model.width)
    state = {slot: np.zeros_like(weights) for slot in optimizer.slots}
    for _ in range(config.epochs):
        for batch in batches(data, config.batch_size):
            at = np.minimum(batch.keys, np.uint64(VALUES)).astype(np.int64)
            _, gradient = model.learn(weights[at], batch)
            values = weights[at].reshape(-1)
            slots = {slot: array[at].reshape(-1) for slot, array in state.items()}
            scratch = np.empty(values.size, np.float32)
            optimizer.update(values, gradient.reshape(-1), slots, 1, scratch)
            weights[at] = values.reshape(-1, model.width)
            for slot, array in slots.items():
                state[slot][at] = array.reshape(-1, model.width)
    labels, scores = [], []
    for batch in batches(test, 1000):
        at = np.minimum(batch.keys, np.uint64(VALUES)).astype(np.int64)
        labels.append(batch.labels)
        scores.append(model.scores(weights[at], batch))
    return area_under_curve(np.concatenate(labels), np.concatenate(scores))


@pytest.mark.parametrize(
    ("config", "workers"),
    [
        (SparseConfig("logistic", consistency="asp", l1=0.02), 1),
        (SparseConfig("logistic", consistency="asp", l1=0.02, epochs=2), 3),
        (SparseConfig("fm", consistency="asp", factors=4, epochs=4), 2),
        (SparseConfig("logistic", consistency="ssp:2", optimizer="adagrad", epochs=3), 2),
    ],
    ids=str,
)
async def test_as_good_as_a_single_process(
    files: tuple[Path, Path], config: SparseConfig, workers: int
) -> None:
    data, test = files

    async def train(worker: aiops.Worker) -> SparseReport:
        return await train_sparse(worker, config, data, test)

    async with local_job(servers=2) as cluster:
        first, *others = await cluster.run(train, workers=workers)
    expected = reference(config, data, test)
    assert expected > 0.6
    assert first.test_auc is not None
    assert first.features is not None
    assert first.nonzero is not None
    assert abs(first.test_auc - expected) <= (0.0 if workers == 1 else 0.002)
    assert all(other.test_auc is None for other in others)
    assert all(min(one.time_s.values()) > 0 for one in (first, *others))
    assert first.features > 5_000
    if config.optimizer == "ftrl":
        assert 0 < first.nonzero < 0.3 * first.features
    else:
        assert first.nonzero > 0.9 * first.features


def test_the_command_trains_and_reports(files: tuple[Path, Path]) -> None:
    data, test = files
    command = [sys.executable, "-m", "aiops", "train", "logistic", "--data", str(data)]
    command += ["--test", str(test), "--workers", "2", "--l1", "0.02", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["test_auc"] > 0.6
    assert 0 < report["nonzero"] < report["features"]
    assert report["workers"] == 2
    assert report["bytes"]["pushed"] > 0
    assert {"test_loss", "train_loss", "steps", "seconds", "servers"} <= report.keys()
    assert report["time_s"].keys() == {"read", "compute", "pull", "push", "tick"}
    assert min(report["time_s"].values()) > 0
    assert report["seconds"] <= sum(report["time_s"].values()) <= 2 * report["seconds"]
    assert 0 < report["processor_s"] < report["time_s"]["read"] + report["time_s"]["compute"] + 0.1
    assert report["time_spent"] == shares(report["time_s"], "the workers'")
    assert f"this run took {report['seconds']:.1f} s" in report["one_process"]


def test_every_second_is_somebodys_and_waiting_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = {"perf_counter": 100.0, "thread_time": 7.0}
    for name in passed:
        monkeypatch.setattr(time_spent, name, lambda name=name: passed[name])
    watch = Stopwatch()
    laps = [("read", 2, 1), ("pull", 5, 0.5), ("compute", 4, 3), ("push", 6, 1), ("tick", 1, 0)]
    for phase, wall_s, worked_s in [*laps, ("read", 2, 2)]:
        passed["perf_counter"] += wall_s
        passed["thread_time"] += worked_s
        watch.lap(phase)
    assert watch.time_s == {"read": 4, "compute": 4, "pull": 5, "push": 6, "tick": 1}
    assert watch.processor_s == 6
    told = shares(watch.time_s, "the workers'")
    assert "60% of the workers' time was pull (25%), push (30%) and tick (5%)" in told
    assert "20% reading, 20% computing" in told


def test_only_what_was_measured_decides_which_was_faster() -> None:
    """One process is surely slower where what it must do at least takes longer than the run."""
    time_s = {"read": 2.0, "compute": 4.0, "pull": 5.0, "push": 6.0, "tick": 1.0}
    told = verdict(time_s, 6.0, 9.0)
    assert "has 6.0 s of reading and computing" in told
    assert "this run took 9.0 s. The workers together spent 18.0 s, 3.0 times that" in told
    assert "it was the faster one" not in told
    assert verdict(time_s, 6.0, 4.5).endswith("this run took 4.5 s: it was the faster one")


def test_the_text_ends_with_what_the_time_went_to(capsys: pytest.CaptureFixture[str]) -> None:
    """A worker that was started alone knows nothing of the others', nor of the whole run."""
    time_s = {"read": 1.0, "compute": 1.0, "pull": 1.0, "push": 1.0, "tick": 0.0}
    report = SparseReport(0.5, 7, 4.0, time_s, 1.5)
    train_sparse_command._print(report._asdict(), as_json=False)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "7 steps in 4.0 s"
    assert second.startswith("50% of this worker's time was pull (25%)")
    whole = report._replace(test_auc=0.7, test_log_loss=0.6, features=4, nonzero=1)._asdict()
    whole |= {"time_spent": "all of it", "one_process": "was slower"}
    train_sparse_command._print(whole, as_json=False)
    assert capsys.readouterr().out.splitlines()[-3:] == [first, "all of it", "was slower"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fm", "--data", "DATA", "--hidden", "3"], "--hidden: not for fm"),
        (["logistic", "--data", "DATA", "--steps", "3"], "--steps: not for logistic"),
        (["softmax", "--factors", "3"], "only for logistic and fm"),
        (["logistic", "--data", "none.libsvm"], "cannot be read"),
        (["fm", "--data", "DATA", "--l1", "1"], "only for ftrl"),
    ],
)
def test_flags_that_mean_nothing_are_refused(
    files: tuple[Path, Path], arguments: list[str], words: str
) -> None:
    given = [str(files[0]) if argument == "DATA" else argument for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "aiops", "train", *given],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
