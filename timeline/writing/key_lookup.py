"""
Where a write looks its record keys up: base files, or whole slices where logs count.

A key that a log deleted lies in the base file still, until a compaction drops it. Most writes
bring it back there, by a log. One that minds known keys inserts it elsewhere, so the two must
not pass each other unseen (PUB-4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from timeline.context import TableContext
from timeline.files.slice_reader import SliceRead
from timeline.index import IndexedFile, MergedSlice
from timeline.index.brought_back import may_bring_back
from timeline.index.log_inserts import hold_inserted
from timeline.model.claim import FileGroupId
from timeline.model.file_group import FileSlice
from timeline.model.schema import KEY_COLUMN
from timeline.model.times import InstantTime
from timeline.reading.read import plan_scan
from timeline.reading.snapshot import Snapshot
from timeline.reading.view import FileSystemView
from timeline.writing.workload import RowRules

__all__ = ["below_deletes", "lookup_files"]


def lookup_files(
    context: TableContext, view: FileSystemView, slices: Iterable[FileSlice], rules: RowRules
) -> dict[str, list[IndexedFile]]:
    """
    Where keys are looked for: base files, or whole slices where it matters what logs say.

    Our new keys of one partition lie in base files, and one that a log deleted comes back where
    it was, so that base files tell enough there, as to Java. Unless a compaction dropped it while
    a log brought it back, or a writer inserted it into a log: then it lies in that log alone
    (CMP-4, LOGIN-1). In the whole table a deleted key would be found where it no longer lives, an
    insert would be taken for known, and a partial update would bring the rest of a deleted row
    back.

    Outside: as ``may_bring_back`` and ``hold_inserted``.
    """
    minds_logs = rules.lookup.whole_table or rules.changes_known
    minds_logs |= rules.drop_found or rules.refuse_found
    # A plain insert after a delete leaves a key in two base files: the newer one holds the row.
    listed = sorted(slices, key=_base_time, reverse=True)
    logged = [one for one in listed if one.log_files and (minds_logs or one.base_file is None)]
    both: dict[FileGroupId, FileSlice] = {}
    if not minds_logs and any(one.log_files for one in listed):
        more = (*may_bring_back(context, view, listed), *hold_inserted(context, view, listed))
        both = {one.file_group: one for one in more}
    merged = [*both.values(), *logged]
    read = _read_of_keys(context, view.snapshot, merged, rules) if merged else None
    known = {one.file_group for one in merged}
    found: dict[str, list[IndexedFile]] = {}

    def look(one: FileSlice, read: SliceRead | None) -> None:
        group = one.file_group
        found.setdefault(group.partition_path, []).append(
            IndexedFile(
                file_id=group.file_id,
                path="" if one.base_file is None else one.base_file.path,
                virtual_keys=rules.keys.virtual,
                merged=None if read is None else MergedSlice(slice=one, read=read),
            )
        )

    # First where keys live for certain; last the base files whose logs are known to delete them.
    for one in both.values():
        look(one, read)
    for one in listed:
        if one.file_group not in both:
            look(one, read if one.file_group in known else None)
    for one in both.values():
        look(one, None)
    return found


def below_deletes(
    files: Mapping[str, Sequence[IndexedFile]],
) -> dict[str, list[IndexedFile]]:
    """The base files below logs that count: there others find keys that these logs delete."""
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
    """How keys are read of slices with logs, and the order of rows where it decides a move."""
    virtual = rules.keys.virtual
    fields = [name.partition(".")[0] for name in virtual.fields] if virtual else []
    ordering = [name.partition(".")[0] for name in rules.ordering_fields if rules.moves_rows]
    columns = tuple(dict.fromkeys((KEY_COLUMN, *fields, *ordering)))
    return plan_scan(context, snapshot, slices, columns=columns).read
