"""Readers of data files, one per format; each returns checked `Rows`."""

from aiops.trainers.readers.csv_file import read_csv
from aiops.trainers.readers.libsvm_file import read_libsvm
from aiops.trainers.readers.npz_file import array_rows, read_npz
from aiops.trainers.readers.rows import Rows

__all__ = ["Rows", "array_rows", "read_csv", "read_libsvm", "read_npz"]
