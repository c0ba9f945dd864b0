"""
Indexes: find the file group of each record key.

The lookup indexes (``lookup``) read key columns of base files, in the row's partition or in the
whole table. SIMPLE reads all files, BLOOM those that footers do not exclude. The bucket index
(``buckets``) reads no file: the key's hash gives the file group. The record index (``lookup``) is a
partition of the metadata table: it has the file group of each key.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from filegroups.files.slice_reader import SliceRead
from filegroups.keys.keys import VirtualKeys
from filegroups.metadata_table.reading import MetadataTable
from timeline.model.file_slice import FileSlice
from timeline.ports.ports import EventSink

__all__ = ["IndexedFile", "LookupRules", "MetadataFilters", "SliceWithLogs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceWithLogs:
    """A slice whose logs count, and how its keys and their order are read."""

    slice: FileSlice
    read: SliceRead


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFilters:
    """The metadata table, to exclude base files of a look-up without opening them."""

    metadata: MetadataTable
    blooms: bool  # ask ``bloom_filters``
    ranges: bool  # ask ``column_stats`` for the range of the record keys
    events: EventSink


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedFile:
    """The newest base file of a file group that may contain keys, or its whole slice."""

    file_id: str
    path: str  # "" if there are log files only
    virtual_keys: VirtualKeys | None = None  # how to compute keys that the file does not store
    merged: SliceWithLogs | None = None  # instead of the base file alone
    filters: MetadataFilters | None = field(default=None, compare=False)  # None: the footer


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRules:
    """How keys are looked up; every way finds the same file groups."""

    filters: bool = False  # check key ranges and bloom filters first (BLOOM)
    filters_by_metadata: bool | None = None  # those of the metadata table; None: if it is far
    whole_table: bool = False  # a key is unique in the table, not in its partition (GLOBAL_*)
    moves_rows: bool = True  # a row found in another partition moves; False updates it there
    by_record_index: bool = False  # ask the record index; files only if it cannot be used
