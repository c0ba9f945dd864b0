"""Archived instants in a storage."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from tests.unit.timeline.engine import Heard
from tests.unit.timeline.memory import MemoryStorage
from timeline.archived import ArchivedTimeline
from timeline.codecs.instant_avro import encode_commit
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import HISTORY


def archived(
    storage: MemoryStorage, *files: tuple[str, list[tuple[str, str | None, str]]]
) -> ArchivedTimeline:
    """Return files by name, each with rows of requested time, completion time and action."""
    return with_metadata(
        storage, lambda one: encode_commit(CommitMetadata(operation_type=one)), *files
    )


def with_metadata(
    storage: MemoryStorage,
    metadata_of: Callable[[str], bytes],
    *files: tuple[str, list[tuple[str, str | None, str]]],
) -> ArchivedTimeline:
    for name, rows in files:
        table = pa.table(
            {
                "instantTime": [row[0] for row in rows],
                "completionTime": pa.array([row[1] for row in rows], pa.string()),
                "action": [row[2] for row in rows],
                "metadata": [metadata_of(row[0]) for row in rows],
                "plan": pa.array([None] * len(rows), pa.binary()),
            }
        )
        sink = io.BytesIO()
        pq.write_table(table, sink)
        storage.create(f"{HISTORY}/{name}", sink.getvalue())
    listed = [{"fileName": name, "fileLen": 1} for name, _ in files]
    storage.create(f"{HISTORY}/manifest_1", json.dumps({"files": listed}).encode())
    storage.create(f"{HISTORY}/_version_", b"1")
    return ArchivedTimeline(storage, Heard())
