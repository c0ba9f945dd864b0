"""
Where a streamer computes: the rows of its batches, in this process or on a Spark session.

The loop, the checkpoints and the sources are the same for both. An engine reads files and queries,
transforms rows and writes them. The engine of this process has pyarrow tables as its rows; that of
Spark, ``hoodoo.spark.streamer``, has DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from filegroups.schema.schema import drop_meta
from filegroups.settings.settings import WriteSettings
from filegroups.writing.write_request import CommitResult
from hoodoo.catalog import create_table, delete_unwritten_table, new_table_config, open_table
from hoodoo.configuration import Layers
from hoodoo.input_files import CsvForm, join_rows, read_rows, read_stored_rows
from hoodoo.inputs import to_arrow_table
from hoodoo.streamer.bad_records import BadRecord, parse_json, read_good, without_keys
from hoodoo.streamer.queries import conform, flatten, run_query
from hoodoo.table import Table
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import WriteOperation
from timeline.ports.ports import Storage

#: The batch in a query of a transformer, as in Hudi.
PLACEHOLDER = "<SRC>"
_NAME = "hoodoo_batch"
#: A pyarrow table, or a DataFrame: the rows of one engine.
Rows: TypeAlias = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """
    How files are read.

    Args:
        ending: The format, as an ending of ``input_files.FORMATS``; names of files do not count.
        leaves_out_bad: Whether lines of JSON that cannot be read are left out.
        csv_form: The form of CSV files.
    """

    ending: str
    leaves_out_bad: bool = False
    csv_form: CsvForm = field(default_factory=CsvForm)

    def rows(
        self, storage: Storage, path: str, schema: pa.Schema | None
    ) -> tuple[pa.Table, list[BadRecord]]:
        """Return the rows of a file, and what cannot be read. Errors: as ``input_files.read_rows``."""
        root, where = storage.capabilities.local_root, storage.locate(path)
        if root is None:
            return read_stored_rows(storage.open_input(path), where, ending=self.ending), []
        if not self.leaves_out_bad:
            file = Path(root) / path
            return read_rows(file, schema, ending=self.ending, csv_form=self.csv_form), []
        lines = (Path(root) / path).read_bytes().splitlines()
        numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
        rows, bad = read_good([lines[one - 1] for one in numbers], schema, parse_json(where))
        return rows, [
            BadRecord(
                position=f"{where} line {numbers[one]}",
                record=lines[numbers[one] - 1].decode("utf-8", "replace"),
                reason=reason,
            )
            for one, reason in bad.items()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """
    A file that was read.

    Args:
        path: Its path in the source.
        schema: Its columns.
        rows: Its rows, in the engine's own form.
        bad: Its records that cannot be read.
    """

    path: str
    schema: pa.Schema
    rows: Any = field(repr=False)
    bad: Sequence[BadRecord] = ()


class Engine(Protocol):
    """An engine. Errors of a query, a transformer or a file are ``InvalidInputError``."""

    def layers(self, layers: Layers) -> Layers:
        """Return the streamer's options with those of the engine."""

    def read_files(
        self, form: FileFormat, storage: Storage, paths: Sequence[str], schema: pa.Schema | None
    ) -> Iterator[FileRows]:
        """Read files in their order; ``schema`` gives types to values without one."""

    def join(self, files: Sequence[FileRows], names: Sequence[str]) -> Rows:
        """Return the rows of files of the same columns; ``names`` are for messages."""

    def changes(self, table: Table, since: str, until: str) -> Rows | None:
        """Return the rows that a Hudi table changed between two times; None for none."""

    def query(self, text: str, tables: Mapping[str, Table], key: str) -> Rows:
        """Return the rows of a query over Hudi tables; ``key`` is the option that has it."""

    def query_batch(self, text: str, key: str, rows: Rows) -> Rows:
        """Return the rows of a query in which ``PLACEHOLDER`` is the batch."""

    def call(self, function: Callable[[Any], Any], rows: Rows) -> Rows:
        """Return what a transformer in Python returns; its own errors are raised as they are."""

    def flatten(self, rows: Rows) -> Rows:
        """Return each field of a struct as a column of its own, with ``_`` between the names."""

    def to_rows(self, rows: Rows | pa.Table, schema: pa.Schema | None) -> Rows:
        """Return the rows in this engine's form, with exactly the columns of a given schema."""

    def columns(self, rows: Rows) -> Sequence[str]:
        """Return the names of the columns."""

    def without_keys(
        self, rows: Rows, key_fields: Sequence[str], position: str
    ) -> tuple[Rows, list[BadRecord]]:
        """Return the rows with a key, and the others; as ``bad_records.without_keys``."""

    def open_table(self, path: str, layers: Layers) -> Table:
        """Open the table. Errors: as ``hoodoo.open_table``."""

    def write(
        self,
        table: Table | None,
        path: str,
        layers: Layers,
        rows: Rows,
        operation: WriteOperation,
        **how: Any,
    ) -> tuple[CommitResult, int, Table | None]:
        """
        Write rows, and create a missing table; bad rows leave no table.

        Args:
            table: The table; None if there is none yet.
            path: Its path.
            layers: The streamer's options.
            rows: The rows.
            operation: The operation.
            how: ``batch_id`` and ``metadata``, as of ``Table.write``.

        Returns:
            The result, the number of rows, and the table if it is open now.
        """

    def release(self) -> None:
        """Forget what was read for the last batch."""


class LocalEngine:
    """The engine of this process: rows are pyarrow tables, and queries are those of DuckDB."""

    def layers(self, layers: Layers) -> Layers:
        return layers

    def read_files(
        self, form: FileFormat, storage: Storage, paths: Sequence[str], schema: pa.Schema | None
    ) -> Iterator[FileRows]:
        for path in paths:
            rows, bad = form.rows(storage, path, schema)
            yield FileRows(path=path, schema=rows.schema, rows=rows, bad=bad)

    def join(self, files: Sequence[FileRows], names: Sequence[str]) -> pa.Table:
        return join_rows([one.rows for one in files], names)

    def changes(self, table: Table, since: str, until: str) -> pa.Table | None:
        rows = table.changes(since, until).read_all()
        return rows if rows.num_rows else None

    def query(self, text: str, tables: Mapping[str, Table], key: str) -> pa.Table:
        found = {name: table.to_pyarrow_dataset() for name, table in tables.items()}
        return run_query(text, found, key)

    def query_batch(self, text: str, key: str, rows: pa.Table) -> pa.Table:
        return run_query(text.replace(PLACEHOLDER, _NAME), {_NAME: rows}, key)

    def call(self, function: Callable[[Any], Any], rows: pa.Table) -> pa.Table:
        return to_arrow_table(function(rows))

    def flatten(self, rows: pa.Table) -> pa.Table:
        return flatten(rows)

    def to_rows(self, rows: pa.Table, schema: pa.Schema | None) -> pa.Table:
        return conform(rows, schema)

    def columns(self, rows: pa.Table) -> Sequence[str]:
        names: list[str] = rows.column_names
        return names

    def without_keys(
        self, rows: pa.Table, key_fields: Sequence[str], position: str
    ) -> tuple[pa.Table, list[BadRecord]]:
        return without_keys(rows, key_fields, position)

    def open_table(self, path: str, layers: Layers) -> Table:
        return open_table(path, properties=layers)

    def write(
        self,
        table: Table | None,
        path: str,
        layers: Layers,
        rows: pa.Table,
        operation: WriteOperation,
        **how: Any,
    ) -> tuple[CommitResult, int, Table | None]:
        creates = table is None
        if table is None:
            schema = drop_meta(rows.schema)
            settings = WriteSettings.from_properties(layers.load())
            new_table_config(path, settings, schema)  # raises before a file
            table = create_table(path, schema=schema, properties=layers)
        try:
            return table.write(rows, operation, **how), rows.num_rows, table
        except InvalidInputError:
            if creates:
                table.close()
                delete_unwritten_table(path, layers)
            raise

    def release(self) -> None:
        """Nothing is kept."""
