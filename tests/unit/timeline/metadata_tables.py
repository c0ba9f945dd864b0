"""A small metadata table, added to a table of a test."""

from __future__ import annotations

from filegroups.metadata_table.encode import encode_log_file
from filegroups.metadata_table.keys import file_group_id
from timeline.codecs.metadata_instants import (
    encode_metadata_deltacommit,
    metadata_table_properties,
)
from timeline.model.file_names import METADATA_TABLE, PROPERTIES
from timeline.model.metadata_table import METADATA_TIMELINE, MetadataLogFile, MetadataUpdate
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
