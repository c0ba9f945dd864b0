"""
The command ``hoodoo``: the nouns together, and the one place where errors end.

No error of ours reaches a user as a traceback: one line that says what to do next, and an
exit code by what that is (``exits``).
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from hoodoo.cli.committer import committer
from hoodoo.cli.config import config
from hoodoo.cli.demo import demo
from hoodoo.cli.explain import explain
from hoodoo.cli.input_files import files
from hoodoo.cli.invocation import ERROR, INTERRUPTED, Invocation, exit_code
from hoodoo.cli.locks import locks
from hoodoo.cli.printing import Output, Printer
from hoodoo.cli.read import read
from hoodoo.cli.recovery import restore, rollback, savepoint
from hoodoo.cli.services import services
from hoodoo.cli.table import table
from hoodoo.cli.timeline import timeline
from hoodoo.cli.write import write
from hoodoo.cli.writers import writers
from timeline.errors import HoodooError

__all__ = ["main"]


#: A signal may come between the decision and its receipt.
_PERHAPS_DONE = (
    "; it happened as a whole or not at all: see 'hoodoo timeline show TABLE' before you do it "
    "again, a write with a --batch-id can simply be repeated"
)


class _Application(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HoodooError as error:
            _printer(ctx).error(error)
            ctx.exit(exit_code(error))
        except BrokenPipeError:
            # The reader of the pipe has seen enough (`| head`); nothing is wrong.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
            ctx.exit(0)
        except KeyboardInterrupt:
            changes = isinstance(ctx.obj, Invocation) and ctx.obj.changes
            _printer(ctx).remark("interrupted" + (_PERHAPS_DONE if changes else ""))
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:  # noqa: BLE001 - the user gets a sentence, not a traceback
            debug = isinstance(ctx.obj, Invocation) and ctx.obj.debug
            _printer(ctx).unexpected(error, debug=debug)
            ctx.exit(ERROR)


def _printer(ctx: click.Context) -> Printer:
    if isinstance(ctx.obj, Invocation):
        return ctx.obj.printer
    return Printer(Output.TABLE)


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


for _command in (
    demo,
    table,
    write,
    read,
    timeline,
    files,
    services,
    committer,
    savepoint,
    rollback,
    restore,
    locks,
    writers,
    explain,
    config,
):
    main.add_command(_command)
