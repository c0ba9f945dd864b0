"""What every command has in common: settings, output, progress, results, exit codes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import Progress, TaskID

from filegroups.writing.write_request import CommitResult
from hoodoo.catalog import open_table
from hoodoo.cli.printing import Output, Printer
from hoodoo.configuration import Layers
from hoodoo.table import Table
from timeline.errors import HoodooError, InvalidInputError, LockTimeoutError, Reaction
from timeline.ports.ports import EventSink, Value
from timeline.rules.retry import RetryScope
from timeline.system import FanOut, LoggingEvents

# ---- Exit codes: what a script may rely on, in one place
# Sorted by what the caller does next, like the errors they come from.

DONE: Final = 0
ERROR: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
LOCK_NOT_OBTAINED: Final = 4
PROBLEMS_FOUND: Final = 5
OUTCOME_UNKNOWN: Final = 6
INTERRUPTED: Final = 130  # as a shell reports SIGINT


def exit_code(error: HoodooError) -> int:
    """The exit code of an error."""
    if error.reaction is Reaction.REDO:
        return REFUSED
    if error.reaction is Reaction.ASK:
        return OUTCOME_UNKNOWN
    if isinstance(error, LockTimeoutError):
        return LOCK_NOT_OBTAINED
    return ERROR


# ---- What every command has in common: where settings come from, how results are written


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One run of a command."""

    layers: Layers
    printer: Printer
    debug: bool = False
    yes: bool = False
    dry_run: bool = False
    changes: bool = False

    def open_table(
        self,
        address: str,
        code: Mapping[str, object] | None = None,
        *,
        told: Sequence[EventSink] = (),
    ) -> Table:
        """Open a table under the given layers; ``told`` hear its events. Errors: as there."""
        layers = self.layers.with_code(code) if code else self.layers
        events = FanOut([LoggingEvents(), _DamageReporter(self.printer), *told])
        return open_table(address, properties=layers, events=events)

    def confirm(self, question: str) -> None:
        """
        Ask before something that cannot be taken back.

        Raises:
            InvalidInputError: Nobody is there to ask and ``--yes`` was not given.
            click.Abort: The answer was no.
        """
        if self.yes:
            return
        if not sys.stdin.isatty():
            raise InvalidInputError(
                f"this cannot be taken back; say --yes, or look with --dry-run first: {question}",
                kind="not_confirmed",
            )
        click.confirm(question, abort=True, err=True)


@dataclass(frozen=True, slots=True)
class _DamageReporter:
    """Says once a file what reading left out: rows may be missing from an answer that looks whole."""

    printer: Printer
    paths: set[Value] = field(default_factory=set)

    def emit(self, name: str, /, **fields: Value) -> None:
        """Take one event."""
        path = fields.get("path")
        if name == "log.corrupt" and path not in self.paths:
            self.paths.add(path)
            self.printer.remark(
                f"{path}: damaged from byte {fields['offset']} on, and that part was left out; "
                "'hoodoo table verify' tells whether rows are lost"
            )


def reading(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that changes nothing its ``Invocation`` as first argument."""
    return _with_settings(_with_output(_wrapped(command)))


def changing(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a command that changes a table: also ``--dry-run`` and ``--yes``."""
    made = _with_settings(_with_output(_wrapped(command)))
    made = click.option("--yes", is_flag=True, help="Do not ask before what is final.")(made)
    return click.option("--dry-run", is_flag=True, help="Say what would happen, change nothing.")(
        made
    )


def _wrapped(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def run(**values: Any) -> Any:
        output = values.pop("output")
        invocation = Invocation(
            layers=Layers(
                props=tuple(values.pop("props")), hoodie_conf=tuple(values.pop("hoodie_conf"))
            ),
            printer=Printer(Output(output) if output else None, quiet=values.pop("quiet")),
            debug=values.pop("debug"),
            yes=values.pop("yes", False),
            changes=not values.get("dry_run", True),  # who only reads has no such option
            dry_run=values.pop("dry_run", False),
        )
        # The outermost group reports errors and must know how.
        click.get_current_context().find_root().obj = invocation
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *_, **__: invocation.printer.remark(str(message))
            return command(invocation, **values)

    return run


def _with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--hoodie-conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="One property; may be repeated. Stronger than --props.",
    )(command)
    return click.option(
        "--props",
        multiple=True,
        metavar="FILE",
        help="A properties file; may be repeated, later ones win.",
    )(command)


def _with_output(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--debug", is_flag=True, help="Show the traceback of an unexpected error."
    )(command)
    command = click.option("--quiet", "-q", is_flag=True, help="No remarks and no progress.")(
        command
    )
    return click.option(
        "--output",
        "-o",
        type=click.Choice([each.value for each in Output]),
        default=None,
        help="Default: table on a terminal, else ndjson for rows and json for the rest.",
    )(command)


# ---- The progress of long work as a bar, for a person who watches standard error


class _Bar:
    """An event sink that moves the bar; the work is one round of one service at a time."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._task: TaskID = shown.add_task("file groups", total=None, visible=False)

    def emit(self, name: str, /, **fields: Value) -> None:
        if name != "service.progress":
            return
        done, total = fields["done"], fields["of"]
        if isinstance(done, int) and isinstance(total, int):
            self._shown.update(self._task, total=total, completed=done, visible=done < total)


@contextmanager
def progress_events(invocation: Invocation) -> Iterator[Sequence[EventSink]]:
    """Who else hears the events of a table while it is worked on; nobody without a watcher."""
    if not (invocation.printer.tells and sys.stderr.isatty()):
        yield ()
        return
    with Progress(console=Console(stderr=True), transient=True) as shown:
        yield (_Bar(shown),)


# ---- Receipts as documents: what a command that changed something says it did


def commit_result_document(receipt: CommitResult) -> dict[str, Any]:
    """The promised shape; what had to be done again and why is added when there was anything."""
    document: dict[str, Any] = {
        "action": receipt.action,
        "operation": receipt.operation,
        "requested_time": receipt.requested_time,
        "completion_time": receipt.completion_time,
        "attempts": receipt.attempts,
        "rows_inserted": receipt.rows_inserted,
        "rows_updated": receipt.rows_updated,
        "rows_deleted": receipt.rows_deleted,
        "files_written": receipt.files_written,
        "bytes_written": receipt.bytes_written,
    }
    if receipt.redone != RetryScope.NOTHING.value:
        document["redone"] = receipt.redone
        document["lost_slots"] = receipt.lost_slots
    if receipt.refusals:
        document["refusals"] = [report.as_document() for report in receipt.refusals]
    if receipt.schema_changes:
        document["schema_changes"] = [
            {"column": one.column, "before": one.before, "after": one.after}
            for one in receipt.schema_changes
        ]
    if receipt.group > 1:
        document["group"] = receipt.group
    if receipt.already_published:
        document["already_published"] = True
    return document


def nothing_to_do(action: str, operation: str) -> dict[str, Any]:
    """The same shape when there was nothing to do, or only a look was wanted."""
    return {
        "action": action,
        "operation": operation,
        "requested_time": None,
        "completion_time": None,
        "attempts": 0,
        "rows_inserted": 0,
        "rows_updated": 0,
        "rows_deleted": 0,
        "files_written": 0,
        "bytes_written": 0,
    }
