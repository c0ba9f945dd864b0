"""
Exclude base files of a look-up: key ranges and bloom filters, in footers or in the metadata table.

A footer has the range of a file's record keys and a bloom filter of them. The metadata table may
have both: ranges in ``column_stats``, filters in ``bloom_filters``. Then no footer is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.bloom import BloomFilter
from filegroups.files.parquet import Footer
from filegroups.index import LookupRules, MetadataFilters
from filegroups.metadata_table.keys import bloom_filter_keys, column_stats_keys
from filegroups.metadata_table.reading import open_metadata_table
from filegroups.schema.arrow_columns import one_array
from filegroups.schema.schema import KEY_COLUMN
from timeline.context import TableContext
from timeline.errors import (
    CorruptTableError,
    MissingFileError,
    SnapshotExpiredError,
    UnsupportedTableError,
)
from timeline.model.metadata_table import PartitionKind
from timeline.ports.ports import EventSink
from timeline.snapshot import Snapshot

FILTERS_AT_ONCE: Final = 128
"""Files whose filters are in memory at a time; Hudi's have up to 431 kB."""

FIRST_VERSION: Final = 8
"""Of tables whose metadata table is read."""

UNUSABLE: Final = (
    CorruptTableError,
    MissingFileError,
    SnapshotExpiredError,
    UnsupportedTableError,
)
"""Errors of an index that is damaged or gone; keys are then looked up in files."""

_BLOOMS: Final = PartitionKind.BLOOM_FILTERS.value
_STATISTICS: Final = PartitionKind.COLUMN_STATS.value
_SURROGATES: Final = 0xEE  # from this byte on, UTF-8 and Java's UTF-16 may order keys differently


def may_contain_any(keys: pa.Array, footer: Footer) -> bool:
    """Return whether a base file may hold one of the keys; False is certain. Shapes: keys (n,)."""
    inside = _within(keys, footer)
    if footer.bloom_base64 is None or len(inside) == 0:
        return len(inside) > 0
    try:
        held = BloomFilter.load(footer.bloom_base64, footer.bloom_kind)
    except CorruptTableError:
        return True  # an old format: read the keys instead
    return bool(held.may_contain(inside).any())


def _within(keys: pa.Array, footer: Footer) -> pa.Array:
    """Return the keys in the file's range; all keys if byte order may differ from Java's."""
    limits = (footer.key_min, footer.key_max)
    if footer.rows == 0:
        return keys.slice(0, 0)
    if limits[0] is None or limits[1] is None:
        return keys
    data = keys.buffers()[2]
    texts = (data or b"", *(limit.encode() for limit in limits if limit is not None))
    if any(np.frombuffer(text, np.uint8).max(initial=0) >= _SURROGATES for text in texts):
        return keys
    inside = pc.and_(pc.greater_equal(keys, limits[0]), pc.less_equal(keys, limits[1]))
    return keys.filter(inside)


def metadata_filters(
    context: TableContext, snapshot: Snapshot, rules: LookupRules
) -> MetadataFilters | None:
    """
    Return the filters in the metadata table of a table; None to open footers.

    ``filters_by_metadata`` decides. True asks ``bloom_filters``, and ``column_stats`` for the range
    of the keys. None asks ``bloom_filters`` on a high-latency store, where that takes fewer requests;
    on a local disk footers are faster, because files of the metadata table are compressed. Outside:
    as ``open_metadata_table``.
    """
    config = context.metadata_table.config or context.config
    built, wanted = config.complete_metadata_partitions, rules.filters_by_metadata
    is_far = context.ports.storage.capabilities.high_latency
    blooms = _BLOOMS in built and (is_far if wanted is None else wanted)
    ranges = _STATISTICS in built and bool(wanted)
    if not (rules.filters and (blooms or ranges)) or config.table_version < FIRST_VERSION:
        return None
    ports = context.ports
    try:
        metadata = open_metadata_table(ports.storage, config, snapshot, ports=ports)
    except UNUSABLE as error:
        _note(ports.events, error.kind)
        return None
    if metadata is None:
        return None
    return MetadataFilters(metadata=metadata, blooms=blooms, ranges=ranges, events=ports.events)


def footers_in_metadata(source: MetadataFilters, paths: Sequence[str]) -> list[Footer | None]:
    """
    Return what the metadata table has of the footers of base files; None for a file without it.

    A record of a base file never changes (MDT-22). If a record is damaged, none is used, and the
    event ``metadata_table.not_used`` says so. Outside: as ``MetadataTable.look_up``.
    """
    split = [path.rpartition("/") for path in paths]
    folders = pa.array([folder for folder, _, _ in split], pa.string())
    names = pa.array([name for _, _, name in split], pa.string())
    kinds = texts = least = most = pa.nulls(len(paths), pa.string())
    try:
        if source.blooms:
            rows = _records(source, _BLOOMS, bloom_filter_keys(folders, names))
            kinds = one_array(rows.column("type"))
            texts = pc.cast(one_array(rows.column("bloom_filter")), pa.string())
        if source.ranges:
            columns = pa.repeat(pa.scalar(KEY_COLUMN), len(paths))
            rows = _records(source, _STATISTICS, column_stats_keys(columns, folders, names))
            least, most = (
                pc.struct_field(one_array(rows.column(side)), "StringWrapper")
                for side in ("min", "max")
            )
    except UNUSABLE as error:
        _note(source.events, error.kind)
        return [None] * len(paths)
    except pa.ArrowInvalid:  # a filter that is no text
        _note(source.events, "bad_metadata_record")
        return [None] * len(paths)
    return [
        None
        if text is None and (low is None or high is None)
        else Footer(
            rows=1,  # not known, and not 0
            schema=pa.schema([]),
            avro_json=None,
            key_min=low,
            key_max=high,
            bloom_base64=text,
            bloom_kind=kind or "",
        )
        for kind, text, low, high in zip(
            *(one.to_pylist() for one in (kinds, texts, least, most)), strict=True
        )
    ]


def _records(source: MetadataFilters, partition: str, keys: pa.Array) -> pa.Table:
    """Return the record of each key, with nulls where there is none."""
    found = source.metadata.look_up(partition, keys)
    return found.take(pc.index_in(keys, value_set=one_array(found.column("key"))))


def _note(events: EventSink, reason: str) -> None:
    events.emit("metadata_table.not_used", reason=reason)
