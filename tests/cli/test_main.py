"""The command line as a whole: help with examples, one-line errors, exit codes."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from aiops_cli import main
from aiops_cli.main import COMMANDS, run


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(main.aiops)
    for name in COMMANDS:
        command = main.aiops.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            for child in command.list_commands(context):
                below = command.get_command(context, child)
                assert below is not None
                yield f"{name} {child}", below


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_each_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Usage: aiops" in shown
    assert f"aiops {name}" in shown.split("Example", 1)[1]


def test_the_table_of_commands_says_what_each_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and entry.summary in shown for name, entry in COMMANDS.items())


@pytest.mark.parametrize("name", ["scheduler", "server", "launch", "train", "status"])
def test_flags_have_twins_in_the_environment(name: str) -> None:
    command = dict(commands())[name]
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name != "help":
            assert str(parameter.envvar).startswith("AIOPS_"), parameter.opts


@pytest.mark.parametrize("name", ["scheduler", "server", "worker", "launch", "train", "status"])
def test_every_command_can_log_for_machines_and_show_tracebacks(name: str) -> None:
    flags = {flag for parameter in dict(commands())[name].params for flag in parameter.opts}
    assert {"--log-format", "--log-level", "--debug"} <= flags


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-command"], "No such command"),
        (["server", "--no-such-flag"], "No such option"),
        (["server"], "where is the scheduler?"),
        (["server", "--scheduler", "nowhere"], "write host:port"),
        (["server", "--scheduler", "127.0.0.1:1", "--index", "0"], "give --cluster too"),
        (["server", "--scheduler", "127.0.0.1:1", "--import", "no_such_module"], "cannot import"),
        (["server", "--scheduler", "127.0.0.1:1", "--import", "../x.py"], "the name of a module"),
        (["status", "--scheduler", "127.0.0.1:1", "--timeout-s", "nan"], "a number above 0"),
        (["server", "--cluster", "no-such.toml"], "cannot read the cluster file no-such.toml"),
        (["scheduler", "--bind", "0.0.0.0:0"], "--insecure"),
        (["scheduler", "--bind", "9070"], "write host:port"),
        (["scheduler", "--workers", "2", "--min-workers", "3"], "more than the 2 workers"),
        (["scheduler", "--on-worker-loss", "fail", "--min-workers", "1"], "needs --on-worker-loss"),
        (["worker", "--scheduler", "127.0.0.1:1"], "nothing to run"),
        (["worker", "--scheduler", "127.0.0.1:1", "--", "no-such-program"], "does not exist"),
        (["launch"], "nothing to run"),
        (["launch", "--", "python", "no-such.py"], "the script no-such.py does not exist"),
        (["launch", "--servers", "-1", "--", "true"], "-1 is not in the range"),
        (["train", "mlp", "--servers", "0"], "only with --sync ring"),
        (["train", "tower"], "'tower' is not one of"),
        (["train", "mlp", "--data", "no-such.csv"], "no-such.csv"),
        (["train", "mlp", "--lr", "0"], "lr"),
        (["train", "mlp", "--hidden", "a,b"], "give sizes of layers"),
        (["train", "softmax", "--hidden", "3"], "--hidden: only for mlp"),
        (["train", "mlp", "--optimizer", "adam", "--momentum", "0.5"], "--momentum: only for"),
        (["train", "mlp", "--local-steps", "2", "--momentum", "0.5"], "--momentum: only for"),
        (["train", "mlp", "--name", "x"], "give --scheduler too"),
        (["train", "mlp", "--steps", "2", "--epochs", "2"], "give one"),
        (["train", "mlp", "--consistency", "quorum:3"], "start 3 workers or more"),
        (["train", "mlp", "--steps", "1", "--trace", "no/such/folder/t.json"], "cannot write"),
        (["status"], "where is the scheduler?"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    assert err.startswith("aiops")


def test_a_bare_aiops_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "Commands" in capsys.readouterr().err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["server", "--debug", "--scheduler", "nowhere"]) == 2
    assert "Traceback" in capsys.readouterr().err
