"""
Instants of the metadata table to bytes, its properties, and the schema of its records.

The schema is Hudi's own text for each table version, which Java Hudi expects to the letter in each
block and deltacommit. A text never changes once it is released: the completed file of a slot
contains it (SLOT-5).
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Final

from timeline.codecs.instant_avro import encode_commit
from timeline.model.commit_metadata import SCHEMA_KEY, CommitMetadata, WriteStat
from timeline.model.file_names import instant_file_name, pending_file_names
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import METADATA_TIMELINE, MetadataUpdate
from timeline.model.slot import Slot
from timeline.model.table_config import table_checksum

_OPERATION: Final = "UPSERT_PREPPED"  # of Java Hudi: records whose file group is known
_META_COLUMNS: Final = ("commit_time", "commit_seqno", "record_key", "partition_path", "file_name")


@cache
def metadata_record_schema(table_version: int, *, with_meta_columns: bool = False) -> str:
    """
    Return the Avro schema of the metadata table's records, as Java's text.

    Args:
        table_version: Version of the table.
        with_meta_columns: Whether the five ``_hoodie_*`` columns come first, as in data blocks and
            base files. A deltacommit has the schema without them.
    """
    resource = files("timeline.codecs") / "metadata_schemas" / f"v{table_version}.json"
    schema = json.loads(resource.read_text("utf-8"))
    if with_meta_columns:
        columns = [
            {"name": f"_hoodie_{name}", "type": ["null", "string"], "doc": "", "default": None}
            for name in _META_COLUMNS
        ]
        schema["fields"] = columns + schema["fields"]
    return json.dumps(schema, separators=(",", ":"))


def encode_metadata_inflight() -> bytes:
    """Return the inflight file of a deltacommit; readers need nothing of it."""
    return encode_commit(CommitMetadata(operation_type=_OPERATION))


def encode_metadata_deltacommit(update: MetadataUpdate) -> bytes:
    """Return the completed file of a slot's deltacommit in the metadata table (MDT-4)."""
    stats: dict[str, list[WriteStat]] = {}
    for one in update.files:
        stat = WriteStat(
            file_id=one.file_id,
            path=f"{one.partition}/{one.name}",
            num_writes=one.records,
            total_write_bytes=one.size_bytes,
            file_size_in_bytes=one.size_bytes,
            partition_path=one.partition,
        )
        if one.is_base_file:
            stat = replace(stat, num_inserts=one.records)
        else:
            stat = replace(
                stat,
                prev_commit=one.base_time,
                num_update_writes=one.records,
                log_version=1,
                log_offset=0,
                base_file="",
                log_files=(one.name,),
            )
        stats.setdefault(one.partition, []).append(stat)
    return encode_commit(
        CommitMetadata(
            partition_to_write_stats={name: tuple(stats[name]) for name in sorted(stats)},
            operation_type=_OPERATION,
            extra_metadata={SCHEMA_KEY: metadata_record_schema(update.table_version)},
        )
    )


def metadata_table_properties(name: str, *, table_version: int) -> dict[str, str]:
    """
    Return the properties of the metadata table, for its own ``hoodie.properties``.

    Args:
        name: Name of the table; its database is not part of them.
        table_version: Version of the table, which the metadata table shares; 8 or higher.
    """
    own_name = f"{name}_metadata"
    return {
        "hoodie.table.name": own_name,
        "hoodie.table.type": "MERGE_ON_READ",
        "hoodie.table.version": str(table_version),
        "hoodie.table.initial.version": str(table_version),
        "hoodie.timeline.layout.version": "2",
        "hoodie.timeline.path": "timeline",
        "hoodie.timeline.history.path": "history",
        "hoodie.archivelog.folder": "history",
        "hoodie.table.base.file.format": "HFILE",
        "hoodie.populate.meta.fields": "false",
        "hoodie.table.recordkey.fields": "key",
        "hoodie.table.keygenerator.type": "HOODIE_TABLE_METADATA",
        "hoodie.record.merge.mode": "CUSTOM",
        "hoodie.record.merge.strategy.id": "00000000-0000-0000-0000-000000000000",
        "hoodie.compaction.payload.class": "org.apache.hudi.metadata.HoodieMetadataPayload",
        "hoodie.datasource.write.drop.partition.columns": "false",
        "hoodie.table.checksum": table_checksum(own_name),
    }


def metadata_partition_body(requested_time: InstantTime) -> bytes:
    """
    Return ``.hoodie_partition_metadata`` of a partition of the metadata table.

    Args:
        requested_time: Requested time of the instant that creates the partition.
    """
    return f"#partition metadata\ncommitTime={requested_time}\npartitionDepth=1\n".encode()


def metadata_instant_files(slot: Slot) -> list[tuple[str, bytes]]:
    """
    Return path and content of each file of the slot's deltacommit in the metadata table (SLOT-5).

    The completed file is last. It has the completion time of the slot itself.
    """
    if slot.metadata_update is None:
        return []
    inflight, requested = pending_file_names(Action.DELTACOMMIT, slot.instant_time)
    completed = instant_file_name(
        Instant(
            action=Action.DELTACOMMIT,
            requested_time=slot.instant_time,
            state=State.COMPLETED,
            completion_time=slot.completion_time,
        )
    )
    return [
        (f"{METADATA_TIMELINE}/{requested}", b""),
        (f"{METADATA_TIMELINE}/{inflight}", encode_metadata_inflight()),
        (f"{METADATA_TIMELINE}/{completed}", encode_metadata_deltacommit(slot.metadata_update)),
    ]


def files_made_in_metadata_table(slot: Slot) -> list[str]:
    """
    Return the paths of files that apply creates in the metadata table, in the order of deletes.

    The completed file is first, because the others are invisible without it (MDT-7).
    """
    if slot.metadata_update is None:
        return []
    instant = [path for path, _ in reversed(metadata_instant_files(slot))]
    return instant + [one.path for one in slot.metadata_update.files if one.content]
