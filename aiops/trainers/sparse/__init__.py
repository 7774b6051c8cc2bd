"""Sparse trainers: logistic regression and factorization machines over files of any length."""

from aiops.trainers.sparse.config import SparseConfig
from aiops.trainers.sparse.loop import SparseReport, train_sparse
from aiops.trainers.sparse.metrics import area_under_curve, log_loss
from aiops.trainers.sparse.models import FactorizationMachine, Logistic, SparseModel
from aiops.trainers.sparse.stream import Batch, batches

__all__ = [
    "Batch",
    "FactorizationMachine",
    "Logistic",
    "SparseConfig",
    "SparseModel",
    "SparseReport",
    "area_under_curve",
    "batches",
    "log_loss",
    "train_sparse",
]
