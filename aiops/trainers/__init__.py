"""The built-in trainers: data readers, models and the loop behind `aiops train`.

Everything here is plain numpy and works without a cluster; only `train` wants a worker.
"""

from aiops.trainers.batches import Batches
from aiops.trainers.config import TrainConfig
from aiops.trainers.data import Dataset, from_arrays, load
from aiops.trainers.local_steps import LocalSteps
from aiops.trainers.loop import Progress, train
from aiops.trainers.models import Linear, Mlp, Model, Softmax
from aiops.trainers.report import Evaluation, WorkerReport, final_report, render

__all__ = [
    "Batches",
    "Dataset",
    "Evaluation",
    "Linear",
    "LocalSteps",
    "Mlp",
    "Model",
    "Progress",
    "Softmax",
    "TrainConfig",
    "WorkerReport",
    "final_report",
    "from_arrays",
    "load",
    "render",
    "train",
]
