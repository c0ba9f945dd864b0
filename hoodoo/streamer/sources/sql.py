"""The rows of a query, by DuckDB."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from filegroups.table import TableReader
from hoodoo.streamer.sources.source import SourceBatch
from hoodoo.streamer.transform import run_query
from timeline.ports.ports import Clock


class SqlSource:
    """
    A source that runs its query once in a run. It has no position, so each run reads all rows.

    Args:
        query: In the SQL of DuckDB.
        tables: Hudi tables by their names in the query.
        clock: Gives the checkpoint, the time in ms.
    """

    def __init__(self, query: str, tables: Mapping[str, TableReader], clock: Clock) -> None:
        self._query = query
        self._tables = tables
        self._clock = clock
        self._is_done = False

    @property
    def address(self) -> str:
        return "sql"

    def check(self, checkpoint: str | None) -> None:
        """Any checkpoint is right: the query does not use it."""

    def read(self, checkpoint: str | None, schema: pa.Schema | None) -> SourceBatch:  # noqa: ARG002
        if self._is_done:
            return SourceBatch(rows=None, checkpoint=checkpoint)
        relations = {name: table.to_pyarrow_dataset() for name, table in self._tables.items()}
        rows = run_query(self._query, relations, "hoodie.streamer.source.sql.sql.query")
        self._is_done = True
        return SourceBatch(rows=rows, checkpoint=str(self._clock.now_ms()))

    def close(self) -> None:
        for table in self._tables.values():
            table.close()
