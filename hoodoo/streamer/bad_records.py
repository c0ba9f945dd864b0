"""
Bad records: messages and lines that cannot be read, and rows without a key.

They go to a side table, Hudi's error table, before the batch commits. The position of a record in
its source is the key there, so a repeated batch writes it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hoodoo.catalog import create_table, open_table
from hoodoo.configuration import Layers
from hoodoo.input_files import json_rows
from hoodoo.table import Table
from timeline.errors import InvalidInputError, TableNotFoundError

_SCHEMA = pa.schema(
    [
        pa.field("position", pa.string(), nullable=False),
        pa.field("record", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("batch", pa.string()),
    ]
)
#: Prefixes of the streamer's options that hold for the side table, too.
_SHARED = (
    "hoodie.write.lock.",
    "hoodie.write.concurrency.",
    "hoodie.clean.failed.writes.policy",
    "hoodie.cleaner.policy.failed.writes",
    "hoodoo.storage.",
    "hoodoo.lock",
    "fs.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that cannot be written: its position in the source, its text and the reason."""

    position: str
    record: str
    reason: str


#: Reads records; the schema is that of the rows, None if it is not known.
Parse = Callable[[Sequence[bytes], pa.Schema | None], pa.Table]


def read_good(
    records: Sequence[bytes], schema: pa.Schema | None, parse: Parse
) -> tuple[pa.Table, dict[int, str]]:
    """
    Read all records but the bad ones.

    The records are read together. After a failure each half is read, so a bad record costs some
    twice the logarithm of their number. Without a schema the types of the first good half count.

    Args:
        records: The records, in order.
        schema: The columns; None if they are not known.
        parse: Reads records into as many rows; raises ``InvalidInputError`` or ``ValueError``.

    Returns:
        The rows of the good records, and the reasons of the bad ones by number.
    """
    bad: dict[int, str] = {}
    parts: list[pa.Table] = []

    def read(begin: int, end: int, known: pa.Schema | None) -> pa.Schema | None:
        try:
            rows = parse(records[begin:end], known)
        except (InvalidInputError, ValueError) as error:
            if end - begin > 1:
                middle = (begin + end) // 2
                return read(middle, end, read(begin, middle, known))
            text = error.message if isinstance(error, InvalidInputError) else str(error)
            bad[begin] = text.partition("\n")[0][:500]
            return known
        parts.append(rows)
        if known is None:
            return rows.schema
        more = [field for field in rows.schema if field.name not in known.names]
        return pa.schema([*known, *more])

    if records:
        read(0, len(records), schema)
    rows = pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})
    return rows, bad


def parse_json(name: str) -> Parse:
    """Return the function that reads records of one JSON object each; ``name`` is for messages."""

    def parse(records: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
        # JSON texts hold no raw line break, so it is space between two tokens.
        lines = b"\n".join(one.replace(b"\n", b" ") for one in records)
        try:
            rows = json_rows(pa.py_buffer(lines), schema, name)
        except InvalidInputError:
            raise
        except (pa.ArrowException, ValueError, RecursionError) as error:
            raise _no_object(name, f": {error}"[:300]) from None
        if rows.num_rows != len(records):
            raise _no_object(name)
        return rows

    return parse


def _no_object(name: str, why: str = "") -> InvalidInputError:
    return InvalidInputError(
        "a record is not one JSON object; correct or remove it, or let "
        f"hoodie.errortable.enable=true write it into an error table: {name}{why}",
        kind="input_file",
        path=name,
    )


def without_keys(
    rows: pa.Table, key_fields: Sequence[str], position: str
) -> tuple[pa.Table, list[BadRecord]]:
    """
    Return the rows that have all key columns, and the others as bad records.

    Args:
        rows: The rows of a batch.
        key_fields: The record key; names of columns that are not there do not count.
        position: The begin of their positions, equal if the batch is repeated.

    Shapes: rows (n) -> (m rows), m <= n; order kept.
    """
    missing = pa.array([False] * rows.num_rows)
    for name in key_fields:
        if name in rows.column_names:
            missing = pc.or_(missing, pc.is_null(rows.column(name)))
    if not pc.any(missing).as_py():
        return rows, []
    numbers = pc.indices_nonzero(missing).to_pylist()
    texts = [str(row) for row in rows.filter(missing).to_pylist()]
    reason = no_key_reason(key_fields)
    bad = [
        BadRecord(position=f"{position}, row {number}", record=text, reason=reason)
        for number, text in zip(numbers, texts, strict=True)
    ]
    return rows.filter(pc.invert(missing)), bad


def no_key_reason(key_fields: Sequence[str]) -> str:
    """Return why a row without a key is bad."""
    return f"a column of the record key is null: {', '.join(key_fields)}"


class BadRecordTable:
    """
    The side table.

    Args:
        path: Its path or URI; it is created for its first record.
        layers: The streamer's options; those of locks and stores count.
    """

    def __init__(self, path: str, layers: Layers) -> None:
        self._path = path
        given = layers.load().items()
        self._properties = {key: text for key, text in given if key.startswith(_SHARED)}
        self._table: Table | None = None

    def write(self, bad: Sequence[BadRecord], batch_id: str) -> None:
        """Write the bad records of a batch. Errors: as ``Table.upsert``."""
        if self._table is None:
            try:
                self._table = open_table(self._path, properties=self._properties)
            except TableNotFoundError:
                self._table = create_table(
                    self._path, schema=_SCHEMA, record_key="position", properties=self._properties
                )
        columns = {
            "position": [one.position for one in bad],
            "record": [one.record for one in bad],
            "reason": [one.reason for one in bad],
            "batch": [batch_id] * len(bad),
        }
        self._table.upsert(pa.table(columns, schema=_SCHEMA))

    def close(self) -> None:
        """Close the table."""
        if self._table is not None:
            self._table.close()
            self._table = None
