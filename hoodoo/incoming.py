"""What a caller hands over: rows of any kind become Arrow, words become what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from hoodoo.untyped import typed_column, typed_floats, typed_rows
from timeline.errors import InvalidInputError
from timeline.model.operations import WriteOperation
from timeline.model.paths import listed
from timeline.reading.read_set import ReadSet

__all__ = ["Operation", "as_arrow", "as_operation", "named_partitions", "refuse_other_types"]

#: An operation, Hudi's word for it, or None for the configured one.
Operation: TypeAlias = WriteOperation | str | None


def as_arrow(data: object, table_schema: Callable[[], pa.Schema] | None = None) -> pa.Table:
    """
    Take over incoming rows.

    Values without a type of their own take the table's: all of dicts, of pandas those in
    columns of objects and floats, which may be floats only because a value was missing.

    Args:
        data: A pyarrow Table, RecordBatch or RecordBatchReader, anything with
            ``__arrow_c_stream__`` (polars, DuckDB), a pandas DataFrame (its row labels are
            left out), or a sequence of mappings.
        table_schema: Tells the table's own columns, where it has some; asked for such values.

    Raises:
        InvalidInputError: Anything else, values Arrow cannot hold in one column, or that do not
            fit the table's (``lossy_value``, ``schema_mismatch``).
    """
    try:
        return _taken(data, table_schema or _no_columns)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"the rows cannot be taken over into Arrow: {error}", kind="data"
        ) from error


def _no_columns() -> pa.Schema:
    return pa.schema([])


def _taken(data: Any, table_schema: Callable[[], pa.Schema]) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if any(
        (kind.__module__.partition(".")[0], kind.__name__) == ("pandas", "DataFrame")
        for kind in type(data).__mro__
    ):
        # Before the stream, which would hand over the row labels as one more column.
        return _of_pandas(data, table_schema)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if isinstance(data, Sequence) and all(isinstance(row, Mapping) for row in data):
        return typed_rows(data, table_schema())
    raise InvalidInputError(
        "rows are an Arrow table, anything with the Arrow C stream (polars, DuckDB), a pandas "
        f"DataFrame or a list of dicts, not {type(data).__name__}",
        kind="data",
    )


def _of_pandas(frame: Any, table_schema: Callable[[], pa.Schema]) -> pa.Table:
    untyped = [
        number
        for number, kind in enumerate(frame.dtypes)
        if str(kind) == "object" or getattr(kind, "kind", "") == "f"
    ]
    known = {each.name: each.type for each in table_schema()} if untyped else {}
    own = {n: str(frame.columns[n]) for n in untyped if str(frame.columns[n]) in known}
    objects = [n for n in own if str(frame.dtypes.iloc[n]) == "object"]
    kept = [n for n in range(len(frame.columns)) if n not in objects]
    # Objects that are moments become a column of moments, with their nanoseconds.
    rows = pa.Table.from_pandas(frame.iloc[:, kept].infer_objects(), preserve_index=False)
    rows = rows.replace_schema_metadata(None)
    columns = dict(zip(kept, rows.columns, strict=True))
    for number, name in own.items():
        if number in columns:
            columns[number] = typed_floats(columns[number], known[name], name)
        else:
            values = frame.iloc[:, number].tolist()
            columns[number] = pa.chunked_array([typed_column(values, known[name], name)])
    names = [str(name) for name in frame.columns]
    return pa.Table.from_arrays([columns[n] for n in range(len(names))], names=names)


def as_operation(operation: WriteOperation | str) -> WriteOperation:
    """
    An operation by itself or by Hudi's word for it.

    Raises:
        InvalidInputError: There is no such operation.
    """
    if isinstance(operation, WriteOperation):
        return operation
    try:
        return WriteOperation(str(operation).lower())
    except ValueError:
        known = ", ".join(one.value for one in WriteOperation)
        raise InvalidInputError(
            f"an operation is one of {known}, not {operation!r}", kind="operation"
        ) from None


def named_partitions(partitions: Sequence[str]) -> tuple[str, ...]:
    """
    The paths of partitions that are to be deleted.

    Raises:
        InvalidInputError: None, or no list of texts.
    """
    if not partitions:
        raise InvalidInputError("name at least one partition path", kind="no_partition")
    return listed(partitions, "partitions")


def refuse_other_types(batch_id: object, reads: object, address: str) -> None:
    """
    Pass what a write to the table at a canonical address may be told beside its rows.

    Raises:
        InvalidInputError: A batch id is no text or an empty one, which would be none at all; or
            what was read is no read set, or one of another table.
    """
    if batch_id is not None and not (isinstance(batch_id, str) and batch_id.strip()):
        raise InvalidInputError(
            f"a batch id is a text that names the batch, not {batch_id!r}", kind="batch_id"
        )
    if reads is None:
        return
    if not isinstance(reads, ReadSet):
        raise InvalidInputError(
            "what a write was made from is told as snapshot.reads(...) of the state that was "
            f"read, not as {type(reads).__name__}",
            kind="reads",
        )
    if reads.address != address:
        raise InvalidInputError(
            "what a write was made from can be judged in its own table alone, whose slots order "
            f"both; leave out reads= of {reads.address}: this is {address}",
            kind="reads_of_another_table",
        )
