"""Rows into a new file: ``hoodoo read --to``."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from filegroups.schema.evolution import is_list
from hoodoo.cli.rows import json_values
from timeline.errors import InvalidInputError

_WRITERS: Final = {".parquet": pq.ParquetWriter, ".csv": pacsv.CSVWriter}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file with rows of a table."""

    path: Path
    rows: int
    size_bytes: int


def check_output_file(path: Path, *, force: bool) -> None:
    """
    Reject a file that ``write_rows`` could not write, before rows are read.

    Raises:
        InvalidInputError: The ending is unknown (``output_file``), or the file exists
            (``output_exists``).
    """
    if path.suffix.lower() not in _WRITERS:
        raise InvalidInputError(
            f"an output file ends in one of {', '.join(_WRITERS)}: {path}",
            kind="output_file",
            path=str(path),
        )
    if path.exists() and not force:
        raise _exists(path)


def write_rows(path: Path, rows: pa.RecordBatchReader, *, force: bool) -> WrittenFile:
    """
    Stream rows into a new file; it appears complete or not at all.

    CSV has lists, maps and structs as JSON, and binary values in base64.

    Args:
        path: The file; its ending gives the format.
        rows: The rows; one batch is in memory at a time.
        force: Replace an existing file.

    Raises:
        InvalidInputError: As ``check_output_file``, or the file cannot be written.
    """
    check_output_file(path, force=force)
    as_csv = path.suffix.lower() == ".csv"
    schema = _csv_schema(rows.schema) if as_csv else rows.schema
    count = 0
    with _new_file(path, force=force) as new:
        with _WRITERS[path.suffix.lower()](new, schema) as writer:
            for batch in rows:
                writer.write_batch(_csv_batch(batch, schema) if as_csv else batch)
                count += batch.num_rows
        size_bytes = new.stat().st_size
    return WrittenFile(path=path, rows=count, size_bytes=size_bytes)


@contextmanager
def _new_file(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a temporary file of the same folder, which gets the name at the end."""
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield new
        if force:
            new.replace(path)
        else:
            os.link(new, path)  # unlike a rename it fails if the name exists
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise InvalidInputError(
            f"cannot write the output file {path}: {error.strerror or error}; name a file in an "
            "existing, writable folder",
            kind="output_file",
            path=str(path),
        ) from error
    finally:
        new.unlink(missing_ok=True)


def _exists(path: Path) -> InvalidInputError:
    return InvalidInputError(
        f"the output file exists: {path}; choose another name, or replace it by --force",
        kind="output_exists",
        path=str(path),
    )


def _csv_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [pa.field(one.name, pa.string() if _needs_text(one.type) else one.type) for one in schema]
    )


def _csv_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Any] = []
    for column in batch.columns:
        text = json_values(column) if _needs_text(column.type) else column
        columns.append(pc.utf8_trim(text, '"') if _is_binary(column.type) else text)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _needs_text(kind: pa.DataType) -> bool:
    return _is_binary(kind) or is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind)


def _is_binary(kind: pa.DataType) -> bool:
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in checks)
