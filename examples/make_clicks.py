"""Make a file of clicks, in the form of advertising logs.

    python examples/make_clicks.py clicks.libsvm

Each row has one value of each of eight fields; values are drawn by Zipf's law, so that a few are
everywhere and most are rare. Hidden weights of the values, and of pairs of the first two fields,
decide the chance of a click.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

FIELDS, VALUES = 8, 2_000


def write(path: Path, rows: int, seed: int = 0, *, hidden_seed: int = 1) -> None:
    """Write so many rows; files with the same hidden seed have the same hidden weights."""
    hidden = np.random.default_rng(hidden_seed)
    weights = hidden.normal(size=(FIELDS, VALUES)) * 0.7
    vectors = hidden.normal(size=(2, VALUES, 4)) * 0.7
    rng = np.random.default_rng(seed)
    chance = 1 / np.arange(1, VALUES + 1) ** 1.05
    drawn = rng.choice(VALUES, (rows, FIELDS), p=chance / chance.sum())
    scores = weights[np.arange(FIELDS), drawn].sum(axis=1) - 1
    scores += (vectors[0, drawn[:, 0]] * vectors[1, drawn[:, 1]]).sum(axis=1)
    clicks = rng.random(rows) < 1 / (1 + np.exp(-scores))
    with path.open("w", encoding="ascii") as file:
        for click, values in zip(clicks.tolist(), drawn.tolist(), strict=True):
            features = " ".join(f"{field * VALUES + v}:1" for field, v in enumerate(values))
            file.write(f"{int(click)} {features}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write(given.path, given.rows, given.seed)
    print(f"{given.rows:,} rows in {given.path}")
