"""The command `aiops`: finds the subcommand, and turns errors into one line and an exit code.

    0    done
    1    failed: the job, a peer or the network
    2    wrong use: a flag, a file, an address; nothing was started
    130  ended by SIGINT;  143  ended by SIGTERM

Each command is a module of its own that is imported when it is called, so `aiops --help` is quick.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any, Final, NamedTuple, NoReturn

import click

from aiops.errors import AiopsError, DialFailed
from aiops.runtime.running import occupy_standard_streams

EXIT_FAILED: Final = 1
EXIT_WRONG_USE: Final = 2
EXIT_INTERRUPTED: Final = 130


class Entry(NamedTuple):
    """Where a command lives, and what it is for in a few words."""

    module: str
    summary: str


COMMANDS: Final = {
    "launch": Entry("aiops_cli.launch", "Run a whole cluster on this machine around your command."),
    "train": Entry("aiops_cli.train", "Train a built-in model on a local or running cluster."),
    "scheduler": Entry("aiops_cli.scheduler", "Run the scheduler of a job."),
    "server": Entry("aiops_cli.server", "Run a server."),
    "worker": Entry("aiops_cli.worker", "Run your command as a worker of a running cluster."),
    "status": Entry("aiops_cli.status", "Show a running job."),
    "chaos": Entry("aiops_cli.chaos", "Run your command like launch, with faults on the way."),
    "simulate": Entry("aiops_cli.simulate", "Try whole clusters under faults, on virtual time."),
    "verify": Entry("aiops_cli.verify", "Check the history of a run against what aiops promises."),
    "bench": Entry("aiops_cli.bench", "Measure this machine."),
}


class Commands(click.Group):
    """A group whose commands are imported by need."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table above."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example:  aiops launch --servers 2 --workers 4 -- python train.py",
)
@click.version_option(package_name="aiops-ps", prog_name="aiops")
def aiops() -> None:
    """Train on a parameter server over plain TCP."""


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; errors are one line on stderr."""
    occupy_standard_streams()
    flags: dict[str, bool] = {}
    try:
        code: Any = aiops.main(arguments, prog_name="aiops", standalone_mode=False, obj=flags)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return EXIT_WRONG_USE
    except click.ClickException as error:
        return _say(error, error.format_message(), flags, EXIT_WRONG_USE, _command_of(error))
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except AiopsError as error:
        # No connection can be made: the address is wrong, or what should be there is not.
        wrong_use = isinstance(error, ValueError | DialFailed)
        return _say(error, str(error), flags, EXIT_WRONG_USE if wrong_use else EXIT_FAILED)
    except BrokenPipeError:  # `aiops status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        return _say(error, str(error), flags, EXIT_FAILED)
    except Exception as error:
        hint = " (this is a fault of aiops; --debug shows where)"
        return _say(error, f"{type(error).__name__}: {error}{hint}", flags, EXIT_FAILED)


def main() -> NoReturn:
    """Run the command `aiops`."""
    sys.exit(run())


def _command_of(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "aiops"


def _say(
    error: BaseException, message: str, flags: dict[str, bool], code: int, who: str = "aiops"
) -> int:
    if flags.get("debug"):
        traceback.print_exception(error)
    line = " ".join(message.split())
    help_hint = f" (see: {who} --help)" if isinstance(error, click.UsageError) else ""
    print(f"{who}: error: {line}{help_hint}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
