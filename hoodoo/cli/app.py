"""
The command ``hoodoo``: the nouns together, and the one place where errors end.

No error of ours reaches a user as a traceback: one line that says what to do next, and an
exit code by what that is (``exits``). A noun's module is imported when the noun is called.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from timeline.errors import HoodooError

if TYPE_CHECKING:
    from hoodoo.cli.invocation import Invocation


#: A signal may come between the decision and its receipt.
_PERHAPS_DONE = (
    "; it happened as a whole or not at all: see 'hoodoo timeline show TABLE' before you do it "
    "again, a write with a --batch-id can simply be repeated"
)

#: Noun -> the module of its command, and the first sentence of its help.
_COMMANDS = {
    "committer": (
        "hoodoo.cli.committer",
        "Publish the small writes of many processes of this host together until SIGTERM or Ctrl-C.",
    ),
    "config": ("hoodoo.cli.config", "Show and check the settings a writer would have."),
    "demo": (
        "hoodoo.cli.demo",
        "Put 336,776 real flights into one table by two PySpark writers at once.",
    ),
    "explain": (
        "hoodoo.cli.explain",
        "Tell what the instant with this requested time did, who did it and what it met.",
    ),
    "files": ("hoodoo.cli.files", "Show the newest slice of every file group."),
    "locks": (
        "hoodoo.cli.locks",
        "Look into the lock that writers of a table share, and use it for other work.",
    ),
    "log": (
        "hoodoo.cli.log",
        "Show what happened to TABLE, newest first: who wrote, when, how many rows.",
    ),
    "read": ("hoodoo.cli.read", "Print the rows of TABLE, one JSON object a row."),
    "restore": (
        "hoodoo.cli.recovery",
        "Take TABLE back to its state as of the write INSTANT (a requested time) for good.",
    ),
    "rollback": (
        "hoodoo.cli.recovery",
        "Undo the write INSTANT (a requested time) of TABLE for good.",
    ),
    "savepoint": (
        "hoodoo.cli.recovery",
        "Savepoints: states of a table that cleaning leaves whole.",
    ),
    "services": (
        "hoodoo.cli.services",
        "Table services: cleaning, compaction; once, planned ahead, or by a worker.",
    ),
    "table": ("hoodoo.cli.table", "Create, show, verify, tidy, upgrade or drop a table."),
    "timeline": ("hoodoo.cli.timeline", "What happened on a table, and when."),
    "write": (
        "hoodoo.cli.write",
        "Write the rows of a file into TABLE; with --key it is created when it is not there.",
    ),
    "writers": (
        "hoodoo.cli.writers",
        "Writers and readers of a table: show them (hoodoo writers TABLE), forget a dead one.",
    ),
}


class _Application(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        found: click.Command = resolve_name(f"{_COMMANDS[cmd_name][0]}:{cmd_name}")
        return found

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the nouns without importing them."""
        room = formatter.width - 6 - max(map(len, _COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=_COMMANDS[name][1]).get_short_help_str(room))
                    for name in sorted(_COMMANDS)
                ]
            )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HoodooError as error:
            from hoodoo.cli.invocation import exit_code

            _invocation(ctx).printer.error(error)
            ctx.exit(exit_code(error))
        except BrokenPipeError:
            # The reader of the pipe has seen enough (`| head`); nothing is wrong.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
            ctx.exit(0)
        except KeyboardInterrupt:
            from hoodoo.cli.invocation import INTERRUPTED

            told = _invocation(ctx)
            told.printer.remark("interrupted" + (_PERHAPS_DONE if told.changes else ""))
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:  # noqa: BLE001 - the user gets a sentence, not a traceback
            from hoodoo.cli.invocation import ERROR

            told = _invocation(ctx)
            told.printer.unexpected(error, debug=told.debug)
            ctx.exit(ERROR)


def _invocation(ctx: click.Context) -> Invocation:
    """Return how the command was called; defaults if it failed before that was known."""
    from hoodoo.cli.invocation import Invocation
    from hoodoo.cli.printing import Output, Printer
    from hoodoo.configuration import Layers

    if isinstance(ctx.obj, Invocation):
        return ctx.obj
    return Invocation(layers=Layers(), printer=Printer(Output.TABLE))


def _version() -> str:
    try:
        return version("hoodoo")
    except PackageNotFoundError:
        return "not installed"


@click.group(
    cls=_Application,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(_version(), prog_name="hoodoo")
def main() -> None:
    """
    Read, write and look after Apache Hudi tables, with many writers at once.

    Exit codes: 0 done, 1 error, 2 usage, 3 refused by a conflict, 4 lock not obtained,
    5 verify or check found problems, 6 outcome unknown.
    """
