"""
The command ``hoodoo``: the list of its commands, and the handler of all errors.

An error of hoodoo prints one line with the next step, never a traceback. The exit code says what
kind of next step that is. The module of a command is imported when the command is called.
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
    from click.shell_completion import CompletionItem

    from hoodoo.cli.invocation import Invocation


#: A signal may arrive between the commit and its result.
_PERHAPS_DONE = (
    "; the change is complete or absent. Check 'hoodoo log TABLE' before you repeat it. A write "
    "with a --batch-id can be repeated at once"
)

#: Command -> the module of the command, and the first sentence of its help.
_COMMANDS = {
    "committer": (
        "hoodoo.cli.committer",
        "Commit small writes of this host together.",
    ),
    "completion": ("hoodoo.cli.completion", "Print the completion script of a shell."),
    "config": ("hoodoo.cli.config", "Show and check the settings of a writer."),
    "demo": (
        "hoodoo.cli.demo",
        "Run two PySpark writers on real flight data.",
    ),
    "diff": ("hoodoo.cli.diff", "Show which rows differ between two snapshots."),
    "explain": (
        "hoodoo.cli.explain",
        "Explain an instant, or the conflict rules.",
    ),
    "files": ("hoodoo.cli.files", "Show the newest slice of each file group."),
    "locks": (
        "hoodoo.cli.locks",
        "Test, show, break and use the table lock.",
    ),
    "log": (
        "hoodoo.cli.log",
        "List the instants of a table, newest first.",
    ),
    "metadata": (
        "hoodoo.cli.metadata",
        "Build, check and drop the metadata table.",
    ),
    "read": ("hoodoo.cli.read", "Print rows, or save them to a file."),
    "restore": (
        "hoodoo.cli.recovery",
        "Restore a table to an earlier state.",
    ),
    "rollback": (
        "hoodoo.cli.recovery",
        "Roll back one write.",
    ),
    "savepoint": (
        "hoodoo.cli.recovery",
        "Keep a state of a table from cleaning.",
    ),
    "services": (
        "hoodoo.cli.services",
        "Run cleaning, compaction and other services.",
    ),
    "streamer": (
        "hoodoo.cli.streamer",
        "Write what is new in a source into a table.",
    ),
    "sync": (
        "hoodoo.cli.sync",
        "Sync a table with a Hive Metastore or Glue.",
    ),
    "table": ("hoodoo.cli.table", "Create, show, verify, repair or drop a table."),
    "timeline": ("hoodoo.cli.timeline", "Show the timeline of a table."),
    "write": (
        "hoodoo.cli.write",
        "Write the rows of files into a table.",
    ),
    "writers": (
        "hoodoo.cli.writers",
        "Show writers and readers, or forget one.",
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
        """Write the commands without importing their modules."""
        room = formatter.width - 6 - max(map(len, _COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=_COMMANDS[name][1]).get_short_help_str(room))
                    for name in sorted(_COMMANDS)
                ]
            )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command without importing the modules of all."""
        from click.shell_completion import CompletionItem

        options = click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=_COMMANDS[name][1])
            for name in sorted(_COMMANDS)
            if name.startswith(incomplete)
        ] + options

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HoodooError as error:
            from hoodoo.cli.invocation import exit_code

            _invocation(ctx).printer.error(error)
            ctx.exit(exit_code(error))
        except BrokenPipeError:
            # The reader of the pipe ended, as `| head` does.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
            ctx.exit(0)
        except KeyboardInterrupt:
            from hoodoo.cli.invocation import INTERRUPTED

            called = _invocation(ctx)
            called.printer.remark("interrupted" + (_PERHAPS_DONE if called.changes else ""))
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:  # noqa: BLE001 - the user gets a sentence, not a traceback
            from hoodoo.cli.invocation import ERROR

            called = _invocation(ctx)
            called.printer.unexpected(error, debug=called.debug)
            ctx.exit(ERROR)


def _invocation(ctx: click.Context) -> Invocation:
    """Return the settings of the command; the defaults if it failed before they were read."""
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
    Read, write and maintain Apache Hudi tables with many concurrent writers.

    TABLE is a path or URI. An INSTANT or a TIME has one of these forms:

    \b
      20260131120000123   an instant of 'hoodoo log TABLE', or its first digits
      @-1                 the newest write
      2026-01-31T12:00    a date, or a date and time, in the zone of the table
      2h                  2 hours ago, or "2h ago"; units: s, min, h, d, w
      today, yesterday    the start of that day

    \b
    Exit codes:
      0  done                       4  lock not obtained
      1  error                      5  a check found problems
      2  wrong usage                6  outcome unknown
      3  rejected by a conflict     130  interrupted
    """  # noqa: D301 - click needs the control character
