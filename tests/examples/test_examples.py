"""Each example runs as a reader would run it, and says what its first line promises."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
TIMEOUT_S = 180.0  # a few seconds each; the rest is for a busy machine


def run(*command: str | Path, folder: Path, environment: dict[str, str]) -> str:
    """Run a command away from the repository; return its output, which must be all there is."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


@pytest.mark.skipif(find_spec("sklearn") is None, reason="the data comes with scikit-learn")
def test_digits(tmp_path: Path, environment: dict[str, str]) -> None:
    output = run(EXAMPLES / "digits.py", folder=tmp_path, environment=environment)
    assert number(r"test accuracy (0\.\d+)", output) > 0.95


def test_the_digits_program_has_twenty_lines() -> None:
    """Twenty that do something: no blank ones, no docstring, no comments."""
    source = (EXAMPLES / "digits.py").read_text()
    lines = [line for line in source.splitlines() if line.strip() and not line.startswith('"""')]
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert len(lines) - len(imports) <= 20


def test_binary_classifier(tmp_path: Path, environment: dict[str, str]) -> None:
    output = run(EXAMPLES / "binary_classifier.py", folder=tmp_path, environment=environment)
    assert number(r"accuracy (\d\.\d+)", output) > 0.98


def test_embed_all_roles(tmp_path: Path, environment: dict[str, str]) -> None:
    output = run(EXAMPLES / "embed_all_roles.py", folder=tmp_path, environment=environment)
    assert number(r"saw (\d+) versions", output) <= 61
    assert number(r"the largest error is (0\.\d+)", output) < 0.001
    assert "the job ended because all workers have finished" in output


def test_naive_update_loss(tmp_path: Path, environment: dict[str, str]) -> None:
    """Half of the naive updates are lost, and none of the pushes."""
    output = run(EXAMPLES / "naive_update_loss.py", folder=tmp_path, environment=environment)
    assert output.splitlines() == ["expected 200", "by hand 100", "by pushing 200"]


def test_stragglers(tmp_path: Path, environment: dict[str, str]) -> None:
    """Waiting falls with the bound where slowness is random, and not where it is permanent."""
    output = run(EXAMPLES / "stragglers.py", "240", folder=tmp_path, environment=environment)
    random, permanent = (
        {mode: number(rf"(?m)^{re.escape(mode)} {column} (\d+\.\d) %", output) for mode in modes}
        for modes in [("BSP", "SSP(0)", "SSP(1)", "SSP(3)", "ASP")]
        for column in (r" +[\d.]+ s +", r" +[\d.]+ s +[\d.]+ % +[\d.]+ s +")
    )
    assert random["BSP"] / 2 > random["SSP(3)"] > random["ASP"]
    assert permanent["SSP(3)"] > 0.9 * permanent["BSP"] > 45


def test_make_clicks(tmp_path: Path, environment: dict[str, str]) -> None:
    """One row a line, the click first; the same seed makes the same file."""
    files = [tmp_path / "clicks.libsvm", tmp_path / "again.libsvm"]
    for path in files:
        run(
            EXAMPLES / "make_clicks.py",
            path,
            "--rows",
            "500",
            folder=tmp_path,
            environment=environment,
        )
    rows = files[0].read_text().splitlines()
    assert len(rows) == 500
    assert all(re.fullmatch(r"[01]( \d+:1){8}", row) for row in rows)
    assert 0.1 < sum(row[0] == "1" for row in rows) / len(rows) < 0.9
    assert files[1].read_bytes() == files[0].read_bytes()


def test_any_framework(tmp_path: Path, environment: dict[str, str]) -> None:
    output = run(EXAMPLES / "any_framework.py", folder=tmp_path, environment=environment)
    assert number(r"numpy: loss (0\.\d+)", output) < 0.02
    if find_spec("torch") is None:
        assert "torch: not installed" in output
    else:
        assert number(r"torch: loss (0\.\d+)", output) < 0.02


def test_blocking_script_under_launch(tmp_path: Path, environment: dict[str, str]) -> None:
    launch = ("-m", "aiops", "launch", "--servers", "1", "--workers", "2", "--")
    script = (sys.executable, EXAMPLES / "blocking_script.py")
    output = run(*launch, *script, folder=tmp_path, environment=environment)
    assert sorted(output.splitlines()) == [f"worker {rank}: [1. 2. 3.]" for rank in range(2)]


@pytest.mark.skipif(find_spec("sklearn") is None, reason="the data comes with scikit-learn")
def test_elastic_ring_under_launch(tmp_path: Path, environment: dict[str, str]) -> None:
    launch = ("-m", "aiops", "launch", "--servers", "0", "--workers", "4")
    script = ("--on-worker-loss", "continue", "--", sys.executable, EXAMPLES / "elastic_ring.py")
    lines = sorted(run(*launch, *script, folder=tmp_path, environment=environment).splitlines())
    assert [line.split(":")[0] for line in lines] == ["worker 0", "worker 1", "worker 3"]
    assert len({line.split(":")[1] for line in lines}) == 1
    assert number(r"ring of 3, accuracy (0\.\d+)", lines[0]) > 0.95


def test_linear_regression_at_fixed_ports(tmp_path: Path, environment: dict[str, str]) -> None:
    """The ports of the file are exchanged for free ones: the machine may use the former."""
    text = (EXAMPLES / "linear_regression" / "cluster.toml").read_text()
    with ExitStack() as held:
        for port in re.findall(r"127\.0\.0\.1:(\d+)", text):
            free = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            text = text.replace(f":{port}", f":{free}")
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(text)
    launch = ("-m", "aiops", "launch", "--cluster", cluster, "--")
    script = (sys.executable, EXAMPLES / "linear_regression" / "train.py")
    output = run(*launch, *script, folder=tmp_path, environment=environment)
    assert output == "theta 2.00 -3.00 0.50 4.00\n"


def test_a_test_of_ones_own(tmp_path: Path, environment: dict[str, str]) -> None:
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = ("-p", "pytest_asyncio.plugin", "-p", "aiops.testing.plugin")
    options = ("-o", "asyncio_default_fixture_loop_scope=function", "-p", "no:cacheprovider")
    test = EXAMPLES / "test_my_training.py"
    output = run("-m", "pytest", *plugins, *options, test, folder=tmp_path, environment=environment)
    assert "2 passed" in output


def test_each_example_is_run_here() -> None:
    here = Path(__file__).read_text()
    programs = [path.relative_to(EXAMPLES).parts[0] for path in EXAMPLES.rglob("*.py")]
    assert [name for name in programs if f'"{name}"' not in here] == []
