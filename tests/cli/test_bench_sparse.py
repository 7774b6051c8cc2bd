"""`aiops bench sparse` runs and says what it promises. No time is asserted anywhere."""

from __future__ import annotations

import json

from click.testing import CliRunner

from aiops_cli.bench import bench

ARGUMENTS = ["sparse", "--quick", "--rows", "3000", "--keys", "500"]
ROW = {"op", "bytes", "peer", "median_s", "min_s", "max_s", "ratio_to_raw"}


def test_json_is_one_object_with_the_documented_rows() -> None:
    done = CliRunner().invoke(bench, [*ARGUMENTS, "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert all(row.keys() >= ROW for row in rows)
    assert [(row["op"], row["peer"]) for row in rows] == [
        (op, peer)
        for op in ("pull", "push", "pull, keys again", "push, keys again")
        for peer in ("aiops", "numpy")
    ]
    for row in rows:
        assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"]
        assert row["bytes"] == 64 * 500
        assert round(row["ratio_to_raw"] * row["rate_of_raw"], 9) == 1


def test_the_table_has_a_line_for_each_operation() -> None:
    done = CliRunner().invoke(bench, ARGUMENTS)
    assert done.exit_code == 0, done.output
    assert "of numpy" in done.stdout
    assert done.stdout.count("keys again") == 2
