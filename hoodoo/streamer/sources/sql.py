"""The rows of a query, in the SQL of the engine."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from hoodoo.streamer.engine import Engine
from hoodoo.streamer.sources.source import SourceBatch
from hoodoo.table import Table
from timeline.ports.ports import Clock


class SqlSource:
    """
    A source that runs its query once in a run. It has no position, so each run reads all rows.

    Args:
        query: In the SQL of the engine.
        tables: Hudi tables by their names in the query.
        clock: Gives the checkpoint, the time in ms.
        engine: Runs the query.
    """

    def __init__(
        self, query: str, tables: Mapping[str, Table], clock: Clock, engine: Engine
    ) -> None:
        self._engine = engine
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
        key = "hoodie.streamer.source.sql.sql.query"
        rows = self._engine.query(self._query, self._tables, key)
        self._is_done = True
        return SourceBatch(rows=rows, checkpoint=str(self._clock.now_ms()))

    def close(self) -> None:
        for table in self._tables.values():
            table.close()
