"""A small metadata table, added to a table of a test."""

from __future__ import annotations

from filegroups.metadata_table.encode import encode_base_file, encode_log_file, encode_records
from filegroups.metadata_table.keys import file_group_id
from filegroups.metadata_table.merge import live_files
from filegroups.metadata_table.reading import open_metadata_table
from filegroups.metadata_table.records import RecordType
from tests.unit.timeline.engine import files_below
from timeline.codecs.instant_avro import encode_commit
from timeline.codecs.metadata_instants import (
    encode_metadata_deltacommit,
    metadata_table_properties,
)
from timeline.context import TableContext
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import METADATA_TABLE, PROPERTIES
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import (
    METADATA_TIMELINE,
    MetadataLogFile,
    MetadataUpdate,
    PartitionKind,
    kind_of,
)
from timeline.ports.ports import Storage
from timeline.properties.properties_file import format_properties, load_config, update_properties

FIRST = "0" * 17
PARTITIONS = "hoodie.table.metadata.partitions"


def add_metadata_table(storage: Storage, *partitions: str) -> None:
    """Add a metadata table with one empty file group for each partition; ``files`` by default."""
    names = sorted(partitions or ("files",))
    config = load_config(storage)
    version = config.table_version
    properties = metadata_table_properties(config.name, table_version=version)
    storage.create(f"{METADATA_TABLE}/{PROPERTIES}", format_properties(properties))
    files = []
    for partition in names:
        file_id = file_group_id(partition, 0)
        name = f".{file_id}_{FIRST}.log.1_0-0-0"
        data = encode_log_file(partition, FIRST, table_version=version, created_ms=0)
        storage.create(f"{METADATA_TABLE}/{partition}/{name}", data)
        files.append(
            MetadataLogFile(
                partition=partition,
                file_id=file_id,
                name=name,
                size_bytes=len(data),
                records=0,
                base_time=FIRST,
            )
        )
    made = MetadataUpdate(table_version=version, partitions=tuple(names), files=tuple(files))
    for ending in ("requested", "inflight"):
        storage.create(f"{METADATA_TIMELINE}/{FIRST}.deltacommit.{ending}", b"")
    storage.create(
        f"{METADATA_TIMELINE}/{FIRST}_{FIRST[:-1]}1.deltacommit", encode_metadata_deltacommit(made)
    )
    update_properties(storage, {PARTITIONS: ",".join(names)}, now="now")


def compact_metadata_table(
    context: TableContext, *, dies: bool = False, builds: bool = False
) -> InstantTime:
    """
    Merge every file group of the metadata table into a base file; return the time of these.

    Args:
        context: The table.
        dies: The compaction stays pending.
        builds: The metadata table is as if it had just been built: nothing else is in it.
    """
    storage, snapshot = context.ports.storage, context.snapshot()
    config = load_config(storage)
    found = open_metadata_table(storage, config, snapshot)
    assert found is not None
    newest = max(found.own.active.newest_time or "", snapshot.active.newest_time or "")
    requested, completed = FIRST if builds else f"{int(newest) + 1}", f"{int(newest) + 2}"
    pending, done = ("deltacommit", "deltacommit") if builds else ("compaction", "commit")
    merged_files = [path for path in files_below(storage, METADATA_TABLE) if ".log." in path]
    instants = [f"{METADATA_TIMELINE}/{name}" for name in storage.names(METADATA_TIMELINE)]
    for partition in found.partitions:
        kind = kind_of(partition)
        assert kind is not None
        merged = zip(found.slices(partition), found.read(partition), strict=True)
        for place, rows in merged:
            used = live_files(rows) if kind is PartitionKind.FILES else rows
            entries = encode_records(
                used, RecordType[kind.name], table_version=config.table_version
            )
            file_id = file_group_id(partition, place.number, data_partition=place.data_partition)
            storage.create(
                f"{METADATA_TABLE}/{partition}/{file_id}_0-0-0_{requested}.hfile",
                encode_base_file(entries, table_version=config.table_version, created_ms=0),
            )
    for path in (*instants, *merged_files) if builds else ():
        storage.delete(path)
    for ending in ("requested", "inflight"):
        storage.create(f"{METADATA_TIMELINE}/{requested}.{pending}.{ending}", b"")
    if not dies:
        storage.create(
            f"{METADATA_TIMELINE}/{requested}_{completed}.{done}",
            encode_commit(CommitMetadata(operation_type="COMPACT")),
        )
    return requested
