"""
The log files that one instant adds to the metadata table: records spread over its file groups.

Each touched file group gets one log file. The bytes depend on the arguments alone, so a task may
write them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.metadata_table.contents import PartitionContents
from filegroups.metadata_table.encode import encode_in_order, encode_log_file, in_order
from filegroups.metadata_table.index_definitions import IndexDefinition
from filegroups.metadata_table.keys import IndexVersion, file_group_id, parse_file_group_id, shards
from filegroups.metadata_table.records import RecordType
from filegroups.schema.arrow_columns import codes_of, rows_by_number
from timeline.errors import InvariantError
from timeline.model.file_names import LogFileName
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import MetadataLogFile, PartitionKind, kind_of

RECORD_TYPES: Final = {
    PartitionKind.FILES: RecordType.FILES,
    PartitionKind.COLUMN_STATS: RecordType.COLUMN_STATS,
    PartitionKind.PARTITION_STATS: RecordType.PARTITION_STATS,
    PartitionKind.BLOOM_FILTERS: RecordType.BLOOM_FILTERS,
    PartitionKind.RECORD_INDEX: RecordType.RECORD_INDEX,
    PartitionKind.SECONDARY_INDEX: RecordType.SECONDARY_INDEX,
}
_LOG_VERSION: Final = 1
_KEPT_ROWS_MAX: Final = 10_000  # of an instant, to be kept for the next compaction


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataWrite:
    """
    How an instant writes into the metadata table.

    Args:
        requested_time: Of the instant.
        write_token: Part of the names of its files; another attempt has another one.
        table_version: Decides the form of the records: 8 or 9.
        created_ms: Creation time inside the files, milliseconds since 1970.
        new_file_groups: File groups of a partition of the table that is new to a record index per
            partition (``hoodie.metadata.record.level.index.min.filegroup.count``).
    """

    requested_time: InstantTime
    write_token: str
    table_version: int
    created_ms: int
    new_file_groups: int = 1


def metadata_log_files(
    contents: Mapping[str, PartitionContents],
    file_groups: Mapping[str, Sequence[str]],
    definitions: Mapping[str, IndexDefinition],
    write: MetadataWrite,
) -> Iterator[tuple[MetadataLogFile, bytes]]:
    """
    Yield the log files of an instant with their bytes, one at a time.

    Args:
        contents: What each partition of the metadata table gets.
        file_groups: The file ids of each partition, in any order: all that exist, since their number
            decides the file group of a key.
        definitions: From ``index.json``, by the name of the partition.
        write: Names and form of the files.

    Raises:
        InvariantError: A partition has no file groups or is of an unknown kind; a key repeats.
        InvalidInputError: A key is longer than HFiles store (``long_key``), or a block has more
            bytes than Java reads (``log_block_size``).
    """
    for partition, content in sorted(contents.items()):
        groups, defined = file_groups.get(partition, ()), definitions.get(partition)
        if defined is not None and defined.is_per_partition:
            yield from _per_partition(partition, content, groups, write)
        elif not content.is_empty:
            version = IndexVersion.V1 if defined is None else defined.version
            yield from _spread(partition, content, sorted(groups), write, version=version)


def _per_partition(
    partition: str, content: PartitionContents, groups: Sequence[str], write: MetadataWrite
) -> Iterator[tuple[MetadataLogFile, bytes]]:
    """Yield the files of a record index in which each partition of the table has its own groups."""
    by_path: dict[str, list[str]] = {}
    for file_id in groups:
        place = parse_file_group_id(partition, file_id)
        if place is not None and place.data_partition is not None:
            by_path.setdefault(place.data_partition, []).append(file_id)
    paths = {*_distinct(content.records), *_distinct(content.deletes)}
    for path in sorted(paths):
        records, deletes = (
            rows.filter(pc.equal(rows.column("partition_path"), path))
            for rows in (content.records, content.deletes)
        )
        one = PartitionContents(records=records, deletes=deletes)
        if path in by_path:
            yield from _spread(partition, one, sorted(by_path[path]), write)
            continue
        made = [
            file_group_id(partition, number, data_partition=path)
            for number in range(write.new_file_groups)
        ]
        # All new file groups come into being, also those without a record.
        yield from _spread(partition, one, made, write, are_new=True)


def _distinct(rows: pa.Table) -> list[str]:
    _, paths = codes_of(rows.column("partition_path"))
    return paths


def _spread(
    partition: str,
    content: PartitionContents,
    groups: Sequence[str],
    write: MetadataWrite,
    *,
    version: IndexVersion = IndexVersion.V1,
    are_new: bool = False,
) -> Iterator[tuple[MetadataLogFile, bytes]]:
    """Yield the files of file groups that share keys by hash; new ones also without a record."""
    kind = kind_of(partition)
    if kind not in RECORD_TYPES or not groups:
        raise InvariantError(
            "a partition of the metadata table cannot be written; report it: "
            f"{partition} with {len(groups)} file groups",
            path=partition,
        )
    records = in_order(content.records, RECORD_TYPES[kind])
    all_entries = encode_in_order(records, RECORD_TYPES[kind], table_version=write.table_version)
    shares, deleted = (
        _shares(rows, len(groups), kind, version=version, path=partition)
        for rows in (all_entries, content.deletes)
    )
    # A record of files has several rows, and its partition has one file group.
    is_kept = records.num_rows <= _KEPT_ROWS_MAX and (
        shares is None or records.num_rows == all_entries.num_rows
    )
    for number, file_id in enumerate(groups):
        entries = _share(all_entries, shares, number)
        deletes = _share(content.deletes, deleted, number)
        if not (are_new or entries.num_rows or deletes.num_rows):
            continue
        data = encode_log_file(
            partition,
            write.requested_time,
            table_version=write.table_version,
            created_ms=write.created_ms,
            entries=entries,
            kept=(records, shares and shares.get(number)) if is_kept else None,
            deleted_keys=deletes.column("key"),
        )
        yield (
            _named(partition, file_id, len(data), entries.num_rows + deletes.num_rows, write),
            data,
        )


def _shares(
    rows: pa.Table, groups: int, kind: PartitionKind, *, version: IndexVersion, path: str
) -> dict[int, pa.Array] | None:
    """Return the places of the rows of each file group that has some; None for a single one."""
    if groups == 1:
        return None  # the steps below take as long as the encoding of a few rows
    keys = rows.column("key").cast(pa.string())
    places = rows_by_number(shards(keys, groups, kind, index_version=version, path=path))
    return {number: pa.array(each) for number, each in places.items()}


def _share(rows: pa.Table, shares: Mapping[int, pa.Array] | None, number: int) -> pa.Table:
    """Return the rows of a file group."""
    if shares is None:
        return rows
    places = shares.get(number)
    return rows.slice(0, 0) if places is None else rows.take(places)


def _named(
    partition: str, file_id: str, size_bytes: int, records: int, write: MetadataWrite
) -> MetadataLogFile:
    name = LogFileName(file_id, write.requested_time, _LOG_VERSION, write.write_token)
    return MetadataLogFile(
        partition=partition,
        file_id=file_id,
        name=name.text,
        size_bytes=size_bytes,
        records=records,
        base_time=write.requested_time,  # of a log file, Java repeats its own instant
    )
