"""
The one file that prints: documents, rows, tables for people, errors and progress.

Results go to standard output, everything else to standard error. Tables and colour are for
terminals, and NO_COLOR is honoured (by rich); scripts get JSON whose shapes are promised.
"""

from __future__ import annotations

import itertools
import sys
import traceback
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from hoodoo.cli.rows import (
    compact_json,
    escape_text,
    fit_rows,
    json_lines,
    json_text,
    with_variants,
)
from timeline.errors import HoodooError

ROWS_SHOWN_MAX = 200
_WIDTH_OF_FILES = 200
_WHOLE_MAX = 24


class Output(Enum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"


class Printer:
    """
    Writes to the process's standard streams.

    Args:
        output: What ``--output`` says; None chooses by whether a person is watching.
        quiet: No remarks and no progress.
    """

    def __init__(self, output: Output | None = None, *, quiet: bool = False) -> None:
        self._output = output
        self._quiet = quiet

    @property
    def for_people(self) -> bool:
        """Whether tables are wanted."""
        return (self._output or self._default(Output.JSON)) is Output.TABLE

    @property
    def tells(self) -> bool:
        """Whether a story may be told: no machine-readable form was asked for."""
        return self._output in (None, Output.TABLE)

    def document(self, value: Any) -> None:
        """Print one JSON document; ``ndjson`` puts it on one line."""
        chosen = self._output or self._default(Output.JSON)
        text = compact_json(value) if chosen is Output.NDJSON else json_text(value, indent=2)
        sys.stdout.write(text + "\n")

    def rows(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Print rows as they come, and return how many."""
        chosen = self._output or self._default(Output.NDJSON)
        if chosen is Output.TABLE:
            return self._row_table(batches)
        return _row_lines(batches, as_array=chosen is Output.JSON)

    def grid(self, headings: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
        """Print a table for people."""
        made = Grid(box=None, header_style="bold", pad_edge=False)
        cells = [[escape_text("" if cell is None else cell) for cell in line] for line in lines]
        for number, heading in enumerate(headings):
            longest = max((len(line[number]) for line in cells), default=0)
            # Times and names stay on one line of a narrow terminal, long texts are folded.
            short = longest <= _WHOLE_MAX
            made.add_column(heading, overflow="ellipsis" if short else "fold", no_wrap=short)
        for line in cells:
            made.add_row(*(Text(cell) for cell in line))
        _console(sys.stdout).print(made)

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print one line of a result for people."""
        _console(sys.stdout).print(Text(escape_text(text), style=style), soft_wrap=True)

    def remark(self, text: str) -> None:
        """Say something beside the result, on standard error."""
        if not self._quiet:
            _console(sys.stderr).print(Text(escape_text(text)), soft_wrap=True)

    def progress(self, text: str) -> None:
        """Tell where the work is, on standard error and only to a person."""
        if sys.stderr.isatty():
            self.remark(text)

    def error(self, error: HoodooError) -> None:
        """Print one error: a line for people, one object for scripts that asked for JSON."""
        if self._output in (Output.JSON, Output.NDJSON):
            sys.stderr.write(compact_json(error.as_document()) + "\n")
            return
        self._error_line(error.message)

    def unexpected(self, error: BaseException, *, debug: bool) -> None:
        """Print a defect of ours: no traceback unless asked for."""
        what = f"{type(error).__name__}: {error}"
        if debug:
            sys.stderr.write("".join(traceback.format_exception(error)))
        if self._output in (Output.JSON, Output.NDJSON):
            document = {"kind": "unexpected", "reaction": "report", "message": what}
            sys.stderr.write(compact_json(document) + "\n")
            return
        hint = "" if debug else "; run it again with --debug and report what it prints"
        self._error_line(f"unexpected, please report it{hint}: {what}")

    def _error_line(self, message: str) -> None:
        text = Text.assemble(("error:", "bold red"), " ", escape_text(message))
        _console(sys.stderr).print(text, soft_wrap=True)

    def _default(self, for_scripts: Output) -> Output:
        return Output.TABLE if sys.stdout.isatty() else for_scripts

    def _row_table(self, batches: Iterable[pa.RecordBatch]) -> int:
        shown: list[list[object]] = []
        names: list[str] = []
        more = False
        for batch in batches:
            names = list(batch.schema.names)
            wanted = ROWS_SHOWN_MAX - len(shown)
            if batch.num_rows > wanted or wanted == 0:
                more = True
            head = batch.slice(0, wanted)
            shown.extend(list(map(with_variants, row.values())) for row in head.to_pylist())
            if more:
                break
        self._row_grid(
            names, [["" if cell is None else escape_text(cell) for cell in row] for row in shown]
        )
        if more:
            self.remark(
                f"only the first {ROWS_SHOWN_MAX} rows are shown; all of them with --output ndjson"
            )
        return len(shown)

    def _row_grid(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        console = _console(sys.stdout)
        width = console.width if sys.stdout.isatty() else None
        fitted = fit_rows([escape_text(name) for name in names], rows, width)
        for number, line in enumerate(fitted.text_lines(width)):
            style = "" if number else "bold"
            console.print(Text(line, style=style), no_wrap=True, overflow="ignore", crop=False)
        if fitted.hidden:
            self.remark(
                f"no room for {len(fitted.hidden)} more columns; choose by --columns, or see all "
                f"with --output ndjson: {', '.join(fitted.hidden)}"
            )


def _console(stream: Any) -> Console:
    """A console of the moment: a test may have replaced the stream since."""
    # A file has no edge to fold lines at.
    width = None if stream.isatty() else _WIDTH_OF_FILES
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def _row_lines(batches: Iterable[pa.RecordBatch], *, as_array: bool) -> int:
    rows = 0
    separator = ",\n" if as_array else "\n"
    if as_array:
        sys.stdout.write("[")
    for batch in itertools.chain.from_iterable(_small(batch) for batch in batches):
        lines = json_lines(batch)
        whole = pa.ListArray.from_arrays([0, len(lines)], lines)
        text = pc.binary_join(whole, separator)[0].as_py()
        if as_array:
            sys.stdout.write((",\n" if rows else "\n") + text)
        else:
            sys.stdout.write(text + "\n")
        rows += batch.num_rows
    if as_array:
        sys.stdout.write("\n]\n" if rows else "]\n")
    return rows


def _small(batch: pa.RecordBatch, rows: int = 16_384) -> Iterable[pa.RecordBatch]:
    """Pieces whose text stays far below what one Arrow string may hold."""
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))
