"""What every command has in common: where settings come from, how results are written."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import click

from hoodoo.assembly import Layers
from hoodoo.cli.printing import Output, Printer
from hoodoo.table import Table
from timeline.errors import InvalidInputError
from timeline.machine import FanOut, LoggingEvents
from timeline.ports.events import EventSink, Value

__all__ = ["Invocation", "changing", "reading"]


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
        events = FanOut([LoggingEvents(), _DamageTold(self.printer), *told])
        return Table.open(address, layers, events=events)

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
class _DamageTold:
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
