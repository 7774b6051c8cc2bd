"""`aiops bench codecs` runs and says what it promises. No time is asserted anywhere."""

from __future__ import annotations

import json

from click.testing import CliRunner

from aiops.benchmarking.codecs import SPELLINGS, measure_codecs
from aiops_cli.bench import bench

ROW = {"op", "bytes", "peer", "median_s", "min_s", "max_s", "ratio_to_raw", "codec", "ratio"}


def test_json_is_one_object_with_the_documented_rows() -> None:
    arguments = ["codecs", "--json", "--quick", "--max-bytes", "65536"]
    done = CliRunner().invoke(bench, [*arguments, "--codec", "int8", "--codec", "top-k:0.01"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert all(row.keys() >= ROW for row in rows)
    assert [(row["op"], row["codec"]) for row in rows] == [
        (op, codec) for codec in ("int8", "top-k:0.01") for op in ("encode", "decode")
    ]
    for row in rows:
        assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"]
    assert [round(row["ratio"], 1) for row in rows[::2]] == [3.9, 49.8]


def test_every_codec_can_be_measured() -> None:
    rows = measure_codecs(quick=True, bytes_max=65536)
    assert [row.codec for row in rows[::2]] == list(SPELLINGS)
    assert all(row.ratio >= 1 for row in rows)


def test_the_table_has_a_line_for_each_codec() -> None:
    done = CliRunner().invoke(
        bench, ["codecs", "--quick", "--max-bytes", "65536", "--codec", "fp16"]
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.count("fp16") == 1
    assert "2.0" in done.stdout


def test_an_unknown_codec_is_said() -> None:
    done = CliRunner().invoke(bench, ["codecs", "--codec", "zip"])
    assert done.exit_code != 0
    assert "no codec" in str(done.exception)
