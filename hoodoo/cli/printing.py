"""
The one module that prints: documents, rows, tables for people, errors and progress.

Results go to standard output, everything else to standard error. Tables and colours are for
terminals, and rich honours NO_COLOR. Programs get JSON of a fixed shape.
"""

from __future__ import annotations

import itertools
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.filesize import decimal
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from hoodoo.cli.texts import compact_json, escape_text, json_text
from timeline.errors import HoodooError, counted

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_SHOWN_MAX = 200
_WIDTH_OF_FILES = 200
_GAP = 2  # between two columns
_TEXT_MIN = 30  # the least width of a wrapped text
_WORD_MAX = 60  # longer words fold in every layout
_SHORT_ID = 8


class Output(Enum):
    """The form of results."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"


def size_text(size_bytes: int) -> str:
    """Return a size for people: ``1.2 kB``."""
    return decimal(size_bytes)


def short_id(text: str) -> str:
    """Return the first digits of an id; commands that take an id accept them."""
    return text[:_SHORT_ID]


def count_text(count: int, noun: str) -> str:
    """Return ``1 row`` or ``2 rows``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def wall_text(at_ms: int) -> str:
    """Return a wall time in ms for people, in UTC: ``2026-11-21 10:09:56``."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


class Printer:
    """
    Writes to the process's standard streams.

    Args:
        output: The value of ``--output``; None chooses by whether standard output is a terminal.
        quiet: No remarks and no progress.
    """

    def __init__(self, output: Output | None = None, *, quiet: bool = False) -> None:
        self._output = output
        self._quiet = quiet

    @property
    def for_people(self) -> bool:
        """Whether results are tables and sentences."""
        return (self._output or self._default(Output.JSON)) is Output.TABLE

    @property
    def is_plain(self) -> bool:
        """Whether no machine-readable form was asked for."""
        return self._output in (None, Output.TABLE)

    def result(self, document: Any, *lines: str) -> None:
        """Print lines for a person, or the document with the same facts for a program."""
        if not self.for_people:
            self.document(document)
        for line in lines if self.for_people else ():
            self.line(line)

    def document(self, value: Any) -> None:
        """Print one JSON document; ``ndjson`` puts it on one line."""
        chosen = self._output or self._default(Output.JSON)
        text = compact_json(value) if chosen is Output.NDJSON else json_text(value, indent=2)
        sys.stdout.write(text + "\n")

    def rows(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Print the rows of each batch at once, and return their number."""
        chosen = self._output or self._default(Output.NDJSON)
        if chosen is Output.TABLE:
            return self._row_table(batches)
        return _row_lines(batches, as_array=chosen is Output.JSON)

    def changes(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Print changes with images for people: one line for each row, with both values."""
        from hoodoo.cli.rows import CHANGE_SIGNS, change_text, with_variants

        found = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
        shown = list(itertools.islice(found, ROWS_SHOWN_MAX + 1))
        self.grid(
            ("", "instant", "values"),
            [
                (CHANGE_SIGNS[one["op"]], one["ts_ms"], change_text(with_variants(one)))
                for one in shown[:ROWS_SHOWN_MAX]
            ],
            empty="no changes",
        )
        if len(shown) > ROWS_SHOWN_MAX:
            self._remark_more()

    def grid(
        self, headings: Sequence[str], lines: Iterable[Sequence[object]], *, empty: str = ""
    ) -> None:
        """
        Print a table for people.

        Columns without a value are left out. The last column wraps between words, or comes below
        its row. If the other columns do not fit the screen, each row becomes a block of lines.

        Args:
            headings: The names of the columns.
            lines: The cells of each row; None is empty.
            empty: The sentence for a table without rows.
        """
        rows = [list(line) for line in lines]
        if not rows:
            self.line(empty or "none")
            return
        texts = [["" if cell is None else escape_text(cell) for cell in row] for row in rows]
        kept = [at for at in range(len(headings)) if any(row[at] for row in texts)]
        console = _console(sys.stdout)
        widths = [_width([headings[at], *(row[at] for row in texts)]) for at in kept]
        words = _width(word for row in texts for word in row[kept[-1]].split())
        left = console.width - sum(widths[:-1]) - _GAP * (len(kept) - 1)
        if left < -_GAP:
            for number, row in enumerate(texts):
                if number:
                    self.line()
                self.facts({headings[at]: row[at] for at in kept})
            return
        below = left < min(words, _WORD_MAX) or left < min(widths[-1], _TEXT_MIN, widths[-1] // 2)
        made = Grid(box=None, header_style="bold", pad_edge=False)
        for at in kept[:-1] if below else kept:
            is_number = all(isinstance(row[at], int) for row in rows)
            made.add_column(
                headings[at],
                justify="right" if is_number else "left",
                overflow="fold",
                no_wrap=at != kept[-1],
            )
        if not below:
            for row in texts:
                made.add_row(*(Text(row[at]) for at in kept))
            console.print(made)
            return
        self._rows_with_text_below(made, texts, kept)

    def _rows_with_text_below(
        self, made: Grid, texts: Sequence[Sequence[str]], kept: Sequence[int]
    ) -> None:
        """Print rows whose last cell has lines of its own."""
        console = _console(sys.stdout)
        for row in texts:
            made.add_row(*(Text(row[at]) for at in kept[:-1]))
        with console.capture() as captured:
            console.print(made)
        heading, *lines = captured.get().splitlines()
        console.print(Text.from_ansi(heading))
        for line, row in zip(lines, texts, strict=True):
            console.print(Text.from_ansi(line))
            self.text_below(row[kept[-1]])

    def text_below(self, text: str) -> None:
        """Print a text that belongs to the line above it."""
        _console(sys.stdout).print(Padding(Text(escape_text(text)), (0, 0, 0, _GAP)))

    def facts(self, values: Mapping[str, object]) -> None:
        """Print names and values below each other; empty values are left out."""
        made = Grid.grid(padding=(0, _GAP, 0, 0))
        made.add_column(no_wrap=True, style="bold")
        made.add_column(overflow="fold")
        for name, value in values.items():
            if value not in (None, ""):
                made.add_row(Text(escape_text(name)), Text(escape_text(value)))
        _console(sys.stdout).print(made)

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print one line of a result for people; on a terminal it wraps between words."""
        _print_wrapped(sys.stdout, Text(escape_text(text), style=style))

    def remark(self, text: str) -> None:
        """Print a remark on standard error, apart from the result."""
        if not self._quiet:
            _print_wrapped(sys.stderr, Text(escape_text(text)))

    def progress(self, text: str) -> None:
        """Print the progress on standard error, on a terminal only."""
        if sys.stderr.isatty():
            self.remark(text)

    def error(self, error: HoodooError) -> None:
        """Print one error: a line for people, one JSON object for programs."""
        if self._output in (Output.JSON, Output.NDJSON):
            sys.stderr.write(compact_json(error.as_document()) + "\n")
            return
        self._error_line(str(error))

    def unexpected(self, error: BaseException, *, debug: bool) -> None:
        """Print a defect of hoodoo; the traceback only with ``--debug``."""
        what = f"{type(error).__name__}: {error}"
        if debug:
            sys.stderr.write("".join(traceback.format_exception(error)))
        if self._output in (Output.JSON, Output.NDJSON):
            document = {"kind": "unexpected", "reaction": "report", "message": what}
            sys.stderr.write(compact_json(document) + "\n")
            return
        hint = "" if debug else "; run it again with --debug and report the output"
        self._error_line(f"unexpected, please report it{hint}: {what}")

    def _error_line(self, message: str) -> None:
        text = Text.assemble(("error:", "bold red"), " ", escape_text(message))
        _print_wrapped(sys.stderr, text)

    def _default(self, for_scripts: Output) -> Output:
        return Output.TABLE if sys.stdout.isatty() else for_scripts

    def _row_table(self, batches: Iterable[pa.RecordBatch]) -> int:
        from hoodoo.cli.rows import with_variants

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
            self._remark_more()
        return len(shown)

    def _remark_more(self) -> None:
        self.remark(f"only the first {ROWS_SHOWN_MAX} rows are shown; --output ndjson prints all")

    def _row_grid(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        from hoodoo.cli.rows import fit_rows

        console = _console(sys.stdout)
        width = console.width if sys.stdout.isatty() else None
        fitted = fit_rows([escape_text(name) for name in names], rows, width)
        for number, line in enumerate(fitted.text_lines(width)):
            style = "" if number else "bold"
            console.print(Text(line, style=style), no_wrap=True, overflow="ignore", crop=False)
        if fitted.hidden:
            self.remark(
                f"no room for {counted(len(fitted.hidden), 'more column')}. Choose by --columns, or print all "
                f"with --output ndjson: {', '.join(fitted.hidden)}"
            )


def _width(cells: Iterable[str]) -> int:
    return max((int(cell_len(cell)) for cell in cells), default=0)


def _print_wrapped(stream: Any, text: Text) -> None:
    """Print a line, which wraps between words on a terminal and stays one line in a file."""
    _console(stream).print(text, soft_wrap=not stream.isatty())


def _console(stream: Any) -> Console:
    """Return a console of the current stream; a file gets wide lines."""
    width = None if stream.isatty() else _WIDTH_OF_FILES
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def _row_lines(batches: Iterable[pa.RecordBatch], *, as_array: bool) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    from hoodoo.cli.rows import json_lines

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
    """Split a batch so that its text fits one Arrow string."""
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))
