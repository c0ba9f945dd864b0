"""
Instants of the metadata table to bytes, and the schema of its records.

The schema is Hudi's own text for each table version, which Java Hudi expects to the letter in each
block and deltacommit. A text never changes once it is released: the completed file of a slot
contains it (SLOT-5).
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Final

from timeline.codecs.instant_avro import encode_commit
from timeline.model.commit_metadata import SCHEMA_KEY, CommitMetadata, WriteStat
from timeline.model.metadata_table import MetadataUpdate

_OPERATION: Final = "UPSERT_PREPPED"  # of Java Hudi: records whose file group is known


@cache
def metadata_record_schema(table_version: int) -> str:
    """Return the Avro schema of the metadata table's records, without meta fields, as Java's text."""
    resource = files("timeline.codecs") / "metadata_schemas" / f"v{table_version}.json"
    return json.dumps(json.loads(resource.read_text("utf-8")), separators=(",", ":"))


def encode_metadata_inflight() -> bytes:
    """Return the inflight file of a deltacommit; readers need nothing of it."""
    return encode_commit(CommitMetadata(operation_type=_OPERATION))


def encode_metadata_deltacommit(update: MetadataUpdate) -> bytes:
    """Return the completed file of a slot's deltacommit in the metadata table (MDT-4)."""
    stats: dict[str, list[WriteStat]] = {}
    for one in update.files:
        stats.setdefault(one.partition, []).append(
            WriteStat(
                file_id=one.file_id,
                path=f"{one.partition}/{one.name}",
                prev_commit=one.base_time,
                num_writes=one.records,
                num_update_writes=one.records,
                total_write_bytes=one.size_bytes,
                file_size_in_bytes=one.size_bytes,
                partition_path=one.partition,
                log_version=1,
                log_offset=0,
                base_file="",
                log_files=(one.name,),
            )
        )
    return encode_commit(
        CommitMetadata(
            partition_to_write_stats={name: tuple(stats[name]) for name in sorted(stats)},
            operation_type=_OPERATION,
            extra_metadata={SCHEMA_KEY: metadata_record_schema(update.table_version)},
        )
    )
