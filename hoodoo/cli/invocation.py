"""The parts that all commands share: settings, output, progress, results, exit codes."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from hoodoo.cli.printing import Output, Printer
from timeline.errors import HoodooError, InvalidInputError, LockTimeoutError, Reaction
from timeline.ports.ports import EventSink, Value, close_storage
from timeline.rules.retry import RetryScope
from timeline.system import FanOut, LoggingEvents

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from filegroups.writing.write_request import CommitResult
    from hoodoo.configuration import Layers
    from hoodoo.table import Table
    from timeline.context import TableContext

# ---- Exit codes: a script may rely on them. They follow the reaction of an error.

DONE: Final = 0
ERROR: Final = 1
USAGE: Final = 2
REJECTED: Final = 3
LOCK_NOT_OBTAINED: Final = 4
PROBLEMS_FOUND: Final = 5
OUTCOME_UNKNOWN: Final = 6
INTERRUPTED: Final = 130  # as a shell reports SIGINT


def exit_code(error: HoodooError) -> int:
    """Return the exit code of an error."""
    if error.reaction in (Reaction.REDO, Reaction.REOPEN):  # each run opens the table
        return REJECTED
    if error.reaction is Reaction.ASK:
        return OUTCOME_UNKNOWN
    if isinstance(error, LockTimeoutError):
        return LOCK_NOT_OBTAINED
    return ERROR


# ---- The classes of commands and groups


class Command(click.Command):
    """A command that refuses a repeated option, because only the last value would count."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """
        Read the arguments.

        Raises:
            click.UsageError: An option with one value is given more than once.
        """
        given = Counter(self.make_parser(ctx).parse_args(list(args))[2])
        for one, times in given.items():
            if isinstance(one, click.Option) and times > 1 and not (one.multiple or one.is_flag):
                raise click.UsageError(f"{one.opts[0]} may be given once, not {times} times", ctx)
        return super().parse_args(ctx, args)


class CommandGroup(click.Group):
    """A group of such commands."""

    command_class = Command


# ---- One run of a command: the sources of its settings, and the form of its results


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
        sinks: Sequence[EventSink] = (),
    ) -> Table:
        """
        Open a table with the layers of this command. Errors: as ``hoodoo.open_table``.

        Args:
            address: Path or URI of the table.
            code: More properties, stronger than the layers.
            sinks: Receive the events of the table.
        """
        from hoodoo.catalog import open_table  # not for the help and the completion of options

        layers = self.layers.with_code(code) if code else self.layers
        return open_table(address, properties=layers, events=self._events(*sinks))

    @contextmanager
    def open_timeline(self, address: str) -> Iterator[TableContext]:
        """
        Open a table to show its timeline or its writers; no code for rows is imported.

        If the caller gives options, it opens the whole table, which checks the options of all its
        parts. Errors: as ``open_table``.

        Args:
            address: Path or URI of the table.
        """
        from filegroups.settings.known_keys import given_keys

        if any(given_keys(self.layers.load())):
            with self.open_table(address) as opened:
                yield opened.context
            return
        from hoodoo.factory import open_context

        context, *_ = open_context(address, self.layers, events=self._events())
        try:
            yield context
        finally:
            context.ports.lock.close()
            close_storage(context.ports.storage)

    def _events(self, *sinks: EventSink) -> EventSink:
        return FanOut([LoggingEvents(), _EventReporter(self.printer), *sinks])

    def confirm(self, question: str) -> None:
        """
        Ask before a change that cannot be undone.

        Raises:
            InvalidInputError: Standard input is no terminal, and ``--yes`` is missing.
            click.Abort: The answer was no.
        """
        if self.yes:
            return
        if not sys.stdin.isatty():
            raise InvalidInputError(
                f"this cannot be undone. Add --yes, or try --dry-run first: {question}",
                kind="not_confirmed",
            )
        click.confirm(question, abort=True, err=True)


@dataclass(frozen=True, slots=True)
class _EventReporter:
    """Warns once for each damaged file, and of a writer with another lock."""

    printer: Printer
    paths: set[Value] = field(default_factory=set)

    def emit(self, name: str, /, **fields: Value) -> None:
        """Take one event."""
        path = fields.get("path")
        if name == "log.corrupt" and path not in self.paths:
            self.paths.add(path)
            self.printer.remark(
                f"{path}: damaged from byte {fields['offset']} on. The result leaves that part "
                "out; 'hoodoo table verify' checks whether rows are lost"
            )
        if name == "writers.other_lock_noticed":
            self.printer.remark(
                f"writer {fields['writer']} ended without close() and used another lock than this "
                "command. If it may start again, pass its properties by --props FILE; else "
                f"remove it by 'hoodoo writers forget': {fields['settings']}"
            )


def reading(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass an ``Invocation`` to a command that changes nothing."""
    return _with_settings(_with_output(_wrapped(command)))


def changing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Do the same for a command that changes a table, with ``--dry-run`` and ``--yes``."""
    made = _with_settings(_with_output(_wrapped(command)))
    made = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(made)
    return click.option("--dry-run", is_flag=True, help="Show the changes without making them.")(
        made
    )


def _wrapped(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def run(**values: Any) -> Any:
        from hoodoo.configuration import Layers

        output = values.pop("output")
        invocation = Invocation(
            layers=Layers(
                props=tuple(values.pop("props")), hoodie_conf=tuple(values.pop("hoodie_conf"))
            ),
            printer=Printer(Output(output) if output else None, quiet=values.pop("quiet")),
            debug=values.pop("debug"),
            yes=values.pop("yes", False),
            changes=not values.get("dry_run", True),  # reading commands lack this option
            dry_run=values.pop("dry_run", False),
        )
        # The outermost group prints errors in the form that --output asks for.
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
        help="One property; overrides --props. May be repeated.",
    )(command)
    return click.option(
        "--props",
        multiple=True,
        metavar="FILE",
        help="A properties file. May be repeated; later files win.",
    )(command)


def _with_output(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--debug", is_flag=True, help="Print the traceback of an unexpected error."
    )(command)
    command = click.option("--quiet", "-q", is_flag=True, help="Print no remarks and no progress.")(
        command
    )
    return click.option(
        "--output",
        "-o",
        type=click.Choice([each.value for each in Output]),
        default=None,
        help="Default: table on a terminal, else ndjson for rows and json for other results.",
    )(command)


# ---- The progress of long work, as a bar on a terminal


class _Bar:
    """An event sink that moves the bar of one round of one service."""

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
    """Yield the sinks that show progress; none without a terminal."""
    if not (invocation.printer.is_plain and sys.stderr.isatty()):
        yield ()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        yield (_Bar(shown),)


# ---- Results of changing commands as documents


def commit_result_document(result: CommitResult) -> dict[str, Any]:
    """Return the result as a document; retries and their reasons only if there were any."""
    document: dict[str, Any] = {
        "action": result.action,
        "operation": result.operation,
        "requested_time": result.requested_time,
        "completion_time": result.completion_time,
        "attempts": result.attempts,
        "rows_inserted": result.rows_inserted,
        "rows_updated": result.rows_updated,
        "rows_deleted": result.rows_deleted,
        "files_written": result.files_written,
        "bytes_written": result.bytes_written,
    }
    if result.redone != RetryScope.NOTHING.value:
        document["redone"] = result.redone
        document["lost_slots"] = result.lost_slots
    if result.refusals:
        document["refusals"] = [report.as_document() for report in result.refusals]
    if result.schema_changes:
        document["schema_changes"] = [
            {"column": one.column, "before": one.before, "after": one.after}
            for one in result.schema_changes
        ]
    if result.group > 1:
        document["group"] = result.group
    if result.already_published:
        document["already_published"] = True
    return document


def nothing_to_do(action: str, operation: str) -> dict[str, Any]:
    """Return the same document for a command with nothing to do, or with ``--dry-run``."""
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
