"""
Small Parquet files, decoded once.

A base file is read by the look for keys, by the merge and by every scan, a log's block by every
scan; of few rows, opening and decoding takes many times as long as telling equal bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["SmallFile", "open_parquet"]

_FILE_BYTES_MAX: Final = 16_384
_ROWS_MAX: Final = 1_000
_DECODED_BYTES_MAX: Final = 65_536  # well packed bytes may hold very much
_FILES_KEPT: Final = 512  # at most 40 MiB


@dataclass(frozen=True, slots=True)
class SmallFile:
    """What is asked of a ``pq.ParquetFile``, with all rows at hand; any thread may ask."""

    schema_arrow: pa.Schema
    metadata: pq.FileMetaData
    rows: pa.Table

    def read(self, columns: Sequence[str] | None = None, **_: Any) -> pa.Table:
        """As of ``pq.ParquetFile``; no thread is needed."""
        return self.rows if columns is None else self.rows.select(list(columns))

    def iter_batches(
        self, batch_size: int, columns: Sequence[str] | None = None, **_: Any
    ) -> list[pa.RecordBatch]:
        """As of ``pq.ParquetFile``."""
        return list(self.read(columns).to_batches(batch_size))


def open_parquet(source: IO[bytes]) -> pq.ParquetFile | SmallFile:
    """
    Open a Parquet file; a small one is decoded at once, or was when its bytes were met before.

    Raises:
        pa.ArrowException, OSError: The footer is damaged. Whoever asks for damaged rows is told.
    """
    if source.seek(0, os.SEEK_END) > _FILE_BYTES_MAX:
        return pq.ParquetFile(source)
    source.seek(0)
    return _decoded(source.read()) or pq.ParquetFile(source)


@lru_cache(maxsize=_FILES_KEPT)
def _decoded(data: bytes) -> SmallFile | None:
    """None where the rows would take much memory, or are damaged."""
    with suppress(pa.ArrowException, OSError):
        file = pq.ParquetFile(pa.BufferReader(data))
        if file.metadata.num_rows > _ROWS_MAX:
            return None
        rows = file.read(use_threads=False)
        if rows.get_total_buffer_size() <= _DECODED_BYTES_MAX:
            return SmallFile(file.schema_arrow, file.metadata, rows)
    return None
