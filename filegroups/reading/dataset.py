"""A table as a pyarrow dataset, so that dataframe tools push columns and filters into its scans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Never, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset as ds

from timeline.errors import InvalidInputError


class Readable(Protocol):
    """A table or a snapshot of it; the methods are those of ``TableSnapshot``."""

    @property
    def schema(self) -> pa.Schema: ...

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002
    ) -> pa.RecordBatchReader: ...

    def count(self, filter: pc.Expression | None = None) -> int: ...  # noqa: A002


class SnapshotDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """
    The rows of a table or of a snapshot of it, as DuckDB, polars and DataFusion scan them.

    Each scan merges the log files that the snapshot has, so the rows are those of ``scan``. A scan
    of a ``Table`` reads the newest snapshot; pin it for scans that must agree.
    """

    def __init__(self, rows: Readable) -> None:
        self._rows = rows

    @property
    def schema(self) -> pa.Schema:
        """The table's columns without the meta columns."""
        return self._rows.schema

    def scanner(
        self,
        columns: list[str] | dict[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - the name of pyarrow
        **_: Any,
    ) -> ds.Scanner:
        """Return a scanner of some columns of the rows that match. Errors: as ``scan``."""
        if isinstance(columns, dict):
            return ds.Scanner.from_batches(self._rows.scan(filter=filter), columns=columns)
        if columns is not None and not columns:  # rows are counted without any column
            rows = self._rows.scan(self.schema.names[:1], filter)
            return ds.Scanner.from_batches(rows, columns=[])
        return ds.Scanner.from_batches(self._rows.scan(columns, filter))

    def to_batches(self, **options: Any) -> Iterator[pa.RecordBatch]:
        """Stream the rows; arguments as ``scanner``."""
        batches: Iterator[pa.RecordBatch] = self.scanner(**options).to_batches()
        return batches

    def to_table(self, **options: Any) -> pa.Table:
        """Return the rows as one table; arguments as ``scanner``."""
        return self.scanner(**options).to_table()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """Return the first rows; arguments as ``scanner``."""
        return self.scanner(**options).head(num_rows)

    def count_rows(self, filter: pc.Expression | None = None, **_: Any) -> int:  # noqa: A002
        """Return the number of rows that match."""
        return self._rows.count(filter)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[_AllRows]:  # noqa: A002
        """Return all rows as one fragment."""
        return iter([_AllRows(self, filter)])

    def _refused(self, *_: Any, **__: Any) -> Never:
        raise InvalidInputError(
            "the dataset of a table has no such method: use to_table() or scanner()",
            kind="dataset_method",
        )

    filter = replace_schema = join = join_asof = sort_by = take = _refused


class _AllRows:
    """All rows of a dataset, as DataFusion reads a fragment."""

    def __init__(self, dataset: SnapshotDataset, filter: pc.Expression | None) -> None:  # noqa: A002
        self._dataset = dataset
        self._filter = filter

    @property
    def physical_schema(self) -> pa.Schema:
        return self._dataset.schema

    def scanner(self, schema: pa.Schema | None = None, **options: Any) -> ds.Scanner:  # noqa: ARG002
        return self._dataset.scanner(**{"filter": self._filter, **options})
