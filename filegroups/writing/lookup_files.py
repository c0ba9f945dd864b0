"""
The files in which a write looks up record keys: base files, or whole slices where logs count.

A base file still contains a key that a log deleted, until a compaction drops it. Most writes bring
the key back there, by a log. An insert that checks for known keys puts it elsewhere, so the two
writes must conflict (PUB-4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from filegroups.files.slice_reader import SliceRead
from filegroups.index import IndexedFile, SliceWithLogs
from filegroups.index.buckets import slices_with_log_inserts
from filegroups.index.key_filters import metadata_filters
from filegroups.index.lookup import may_resurrect
from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.scan import plan_scan
from filegroups.schema.schema import KEY_COLUMN
from filegroups.writing.write_request import RowRules
from timeline.context import TableContext
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_slice import FileSlice
from timeline.model.instant_time import InstantTime
from timeline.snapshot import Snapshot


def lookup_files(
    context: TableContext, view: FileSystemView, slices: Iterable[FileSlice], rules: RowRules
) -> dict[str, list[IndexedFile]]:
    """
    Return the files in which to look up keys: base files, or whole slices where logs count.

    With an index by partition, new keys of hoodoo are in base files, and a key that a log deleted
    comes back in its old file group. So base files are enough there, as for Java. In two cases the
    key is in a log alone. A compaction dropped it while a log brought it back (CMP-4), or a writer
    inserted it into a log (LOGIN-1).

    Elsewhere logs count too. Without them a global index would find a deleted key where it no longer
    exists. An insert would treat the key as known, and a partial update would restore the rest of a
    deleted row.

    Outside: as ``may_resurrect`` and ``slices_with_log_inserts``.
    """
    # A plain insert after a delete leaves a key in two base files: the newer one holds the row.
    listed = sorted(slices, key=_base_time, reverse=True)
    both = {} if rules.depends_on_lookup else _with_keys_in_logs(context, view, listed)
    logged = {
        one.file_group: one
        for one in listed
        if one.log_files and (rules.depends_on_lookup or one.base_file is None)
    }
    merged = [*both.values(), *logged.values()]
    read = _read_of_keys(context, view.snapshot, merged, rules) if merged else None
    # First the slices that surely contain keys, last base files whose logs may delete the keys.
    single = (one for one in listed if one.file_group not in both)
    ordered = [
        *((one, read) for one in both.values()),
        *((one, read if one.file_group in logged else None) for one in single),
        *((one, None) for one in both.values()),
    ]
    filters = metadata_filters(context, view.snapshot, rules.lookup) if ordered else None
    found: dict[str, list[IndexedFile]] = {}
    for one, how in ordered:
        made = replace(_indexed(one, how, rules), filters=filters)
        found.setdefault(one.file_group.partition_path, []).append(made)
    return found


def _with_keys_in_logs(
    context: TableContext, view: FileSystemView, listed: list[FileSlice]
) -> dict[FileGroupId, FileSlice]:
    """Return the slices whose logs may have keys that their base files lack."""
    if not any(one.log_files for one in listed):
        return {}
    more = (
        *may_resurrect(context, view, listed),
        *slices_with_log_inserts(context, view, listed),
    )
    return {one.file_group: one for one in more}


def _indexed(one: FileSlice, read: SliceRead | None, rules: RowRules) -> IndexedFile:
    return IndexedFile(
        file_id=one.file_group.file_id,
        path="" if one.base_file is None else one.base_file.path,
        virtual_keys=rules.keys.virtual,
        merged=None if read is None else SliceWithLogs(slice=one, read=read),
    )


def below_deletes(
    files: Mapping[str, Sequence[IndexedFile]],
) -> dict[str, list[IndexedFile]]:
    """Return the base files under logs that count: other writers look up deleted keys there."""
    below = {
        path: [replace(one, merged=None) for one in some if one.merged and one.path]
        for path, some in files.items()
    }
    return {path: some for path, some in below.items() if some}


def _base_time(one: FileSlice) -> InstantTime:
    return one.base_file.requested_time if one.base_file is not None else ""


def _read_of_keys(
    context: TableContext, snapshot: Snapshot, slices: list[FileSlice], rules: RowRules
) -> SliceRead:
    """Return how to read keys of slices with logs, with ordering fields if they decide a move."""
    virtual = rules.keys.virtual
    fields = [name.partition(".")[0] for name in virtual.fields] if virtual else []
    ordering = [name.partition(".")[0] for name in rules.ordering_fields if rules.moves_rows]
    columns = tuple(dict.fromkeys((KEY_COLUMN, *fields, *ordering)))
    return plan_scan(context, snapshot, slices, columns=columns).read
