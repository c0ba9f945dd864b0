"""
The shipped local workload, without the work that it did in another schedule.

A simulated write is three quarters work on rows: a dozen of them, the same ones in thousands of
schedules. ``LocalWorkload`` does once all work that only the rows, the rules and the tasks decide.
Reads and writes of files ask the storage each time (``conversations``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from filegroups.files.rewrite import FileGroupTask
from filegroups.index import IndexedFile
from filegroups.keys.bucketing import InsertBucket
from filegroups.schema.schema import PARTITION_COLUMN, TableSchema
from filegroups.writing.workload import LocalWorkload, WorkloadProfile, write_task
from filegroups.writing.write_request import RowRules
from tests.simulation.conversations import Conversations
from timeline.model.commit_metadata import FileGroupId, WriteStat
from timeline.ports.ports import Ports

_WRITES_KEPT = 65_536  # about twelve kilobytes each; a run of 20,000 schedules has a fifth
_NUMBERS = count()
_PREPARED: Conversations[tuple[int, pa.Table, tuple[str, ...]]] = Conversations(4_096)
_TAGGED: Conversations[tuple[WorkloadProfile, pa.Array]] = Conversations(4_096)
_ROUTED: Conversations[dict[FileGroupId, Any]] = Conversations(4_096)
_WRITTEN: Conversations[tuple[WriteStat, ...]] = Conversations(_WRITES_KEPT)


class RememberedWorkload(LocalWorkload):
    """As ``LocalWorkload``, to the last byte and to the last call of a port."""

    def __init__(self, world: Ports, rows: pa.Table) -> None:
        super().__init__(world, rows)
        self._number = -1  # of the prepared rows: equal ones have one number
        self._places: tuple[str, ...] = ()  # their partition paths

    def prepare(self, rules: RowRules, schema: TableSchema) -> None:
        def prepared(_: Ports) -> tuple[int, pa.Table, tuple[str, ...]]:
            super(RememberedWorkload, self).prepare(rules, schema)
            paths = super(RememberedWorkload, self).partition_paths()
            return next(_NUMBERS), self._rows, paths

        columns = (tuple(column.to_pylist()) for column in self._rows.columns)
        key = (rules, schema.avro_json, self._rows.schema, *columns)
        known = _PREPARED.result(key, self._world, prepared)
        self._number, self._rows, self._places = known
        self._rules = rules

    def partition_paths(self) -> tuple[str, ...]:
        return self._places

    def tag(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        if not self._by_partition or any(
            one.merged is not None for files in candidates.values() for one in files
        ):
            return super().tag(candidates)

        def tagged(world: Ports) -> tuple[WorkloadProfile, pa.Array]:
            own, self._world = self._world, world
            try:
                return super(RememberedWorkload, self).tag(candidates), self._found
            finally:
                self._world = own

        places = tuple((path, tuple(files)) for path, files in candidates.items())
        profile, self._found = _TAGGED.result((self._number, places), self._world, tagged)
        self._paths, self._leaving, self._shares = self._rows.column(PARTITION_COLUMN), {}, None
        self._attempted = set()
        return profile

    def assign(self, buckets: Sequence[InsertBucket], file_ids: Mapping[int, str]) -> None:
        if not self._by_partition:
            super().assign(buckets, file_ids)
            return

        def routed(_: Ports) -> dict[FileGroupId, Any]:
            super(RememberedWorkload, self).assign(buckets, file_ids)
            return self._routed

        shares = None if self._shares is None else self._shares.tobytes()
        found = tuple(self._found.to_pylist())
        key = (self._number, tuple(buckets), tuple(file_ids.items()), found, shares)
        self._routed = _ROUTED.result(key, self._world, routed)

    def write(self, task: FileGroupTask) -> tuple[WriteStat, ...]:
        def written(world: Ports) -> tuple[WriteStat, ...]:
            return write_task(world.storage, task, self.rows_of(task))

        group = FileGroupId(task.partition_path, task.file_id)
        positions, leaving = self._routed.get(group), self._leaving.get(group)
        key = (self._number, _bytes(positions), _bytes(leaving), task)
        return _WRITTEN.result(key, self._world, written)

    @property
    def _by_partition(self) -> bool:
        """Whether the prepared rows say where they belong, which other files might change."""
        return not self._required_rules().lookup.whole_table


def _bytes(positions: Any) -> bytes | None:
    return None if positions is None else positions.tobytes()
