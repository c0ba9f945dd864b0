"""
Refuse a write by its rows, before a file is written.

The rows may belong to buckets of other writers (OWN-1), to partitions that no reader would find, or
to keys that must or must not exist. A refused write changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import chain, compress

from filegroups.keys.bucketing import bucket_of
from filegroups.reading.file_system_view import FileSystemView
from filegroups.settings.settings import WriteSettings
from filegroups.writing.workload import WorkloadProfile
from filegroups.writing.write_request import RowRules
from timeline.context import TableContext
from timeline.errors import InvalidInputError, SettingError, UnsupportedTableError, counted
from timeline.model.file_names import PARTITION_METADATA
from timeline.partitions import (
    inner_partitions,
    is_partition,
    partition_created_by,
    with_committed_files,
)
from timeline.properties.setting_enums import BucketEngine, IndexType
from timeline.rules.bucket_ranges import EVERY_BUCKET, BucketRanges

# ---- Bucket ownership: a writer's own buckets against its settings and its rows (OWN-1)
#
# Rows are counted by bucket before a file is written, locally and on a cluster, so the check is
# free. A write with rows of other writers' buckets is refused as a whole.

_SHOWN_MAX = 10
_FIELD = "own_buckets"


def refuse_unfit_buckets(settings: WriteSettings, own: BucketRanges) -> None:
    """
    Refuse buckets of a writer's own that its table does not have.

    Raises:
        SettingError: The table's index has no such buckets.
    """
    if settings.index_type is not IndexType.BUCKET:
        raise _unfit(
            settings, "only the keys of a bucket index say by themselves where rows go", "BUCKET"
        )
    if settings.bucket_engine is not BucketEngine.SIMPLE:
        raise _unfit(
            settings,
            "buckets of consistent hashing are split and merged, each partition has its own",
            "a table with hoodie.index.bucket.engine=SIMPLE",
        )
    if own.last >= settings.bucket_count:
        raise _unfit(
            settings,
            f"the table has {settings.bucket_count} buckets, numbered from 0",
            f"at most {settings.bucket_count - 1}",
        )


def _unfit(settings: WriteSettings, why: str, suggestion: str) -> SettingError:
    key, layer = settings.options[_FIELD].key, settings.origin(_FIELD)
    return SettingError(
        f"a writer cannot own buckets here, because {why}: {key}={settings.own_buckets} (from "
        f"{layer}); use {suggestion}, or omit it",
        kind="setting_contradiction",
        key=key,
        value=str(settings.own_buckets),
        layer=layer,
        suggestion=suggestion,
    )


def bucket_range_text(settings: WriteSettings) -> str:
    """Return the bucket range for the writer registry: its own, or that of all buckets."""
    own = settings.own_buckets
    return EVERY_BUCKET if own is None else str(own)


def refuse_foreign_buckets(rules: RowRules, rows: Mapping[tuple[str, int], int]) -> None:
    """
    Refuse a write with rows of other writers' buckets.

    Args:
        rules: The write's rules.
        rows: Row counts by partition path and bucket.

    Raises:
        InvalidInputError: There are such rows (``foreign_buckets``).
    """
    own = rules.own_buckets
    if own is None:
        return
    strange: Counter[int] = Counter()
    for (_, number), count in rows.items():
        if number not in own:
            strange[number] += count
    if not strange:
        return
    shown = ", ".join(f"{number} ({strange[number]})" for number in sorted(strange)[:_SHOWN_MAX])
    if len(strange) > _SHOWN_MAX:
        shown += f" and {len(strange) - _SHOWN_MAX} more"
    raise InvalidInputError(
        "the rows belong to buckets that this writer does not own: send them to the writer of "
        "their bucket, or change hoodoo.write.bucket.range on all writers: this writer "
        f"has {own}, and {counted(strange.total(), 'row')} in {shown}",
        kind="foreign_buckets",
        own=str(own),
        rows=strange.total(),
        buckets={str(number): strange[number] for number in sorted(strange)},
    )


def refuse_updates_in_foreign_buckets(rules: RowRules, found: WorkloadProfile) -> None:
    """Like ``refuse_foreign_buckets`` for tagged rows: the file ids contain the buckets."""
    if rules.own_buckets is not None:
        numbered = (
            ((group.partition_path, bucket_of(group.file_id)), count)
            for group, count in found.updates.items()
        )
        rows = {(path, n): count for (path, n), count in numbered if n is not None}
        refuse_foreign_buckets(rules, rows)


# ---- Replacing whole partitions


def refuse_replacing(rules: RowRules, named: tuple[str, ...], touched: tuple[str, ...]) -> None:
    """
    Refuse to replace partitions that this write must not replace.

    Args:
        rules: The write's rules; its operation replaces file groups.
        named: The partitions to replace, by name; empty for those of the rows.
        touched: The partitions of the rows.

    Raises:
        InvalidInputError: The writer owns only some buckets (``foreign_buckets``), or there are rows
            of partitions that are not named (``outside_partitions``).
        UnsupportedTableError: The file ids are fixed: a replaced id stays hidden (fmt 6.4).
    """
    if rules.buckets is not None and rules.buckets.engine is not BucketEngine.SIMPLE:
        raise UnsupportedTableError(
            "partitions with consistent hashing cannot be overwritten or deleted as a whole, "
            "because their file groups keep their ids: delete the rows instead: operation "
            f"{rules.operation.value}",
            kind="not_writable",
            feature="overwriting consistent hashing buckets",
        )
    if rules.own_buckets is not None:
        raise InvalidInputError(
            "this operation replaces all buckets of a partition, and this writer owns only "
            f"{rules.own_buckets}: stop the other writers and write without "
            f"hoodoo.write.bucket.range: {rules.operation.value}",
            kind="foreign_buckets",
            own=str(rules.own_buckets),
        )
    outside = sorted(set(touched).difference(named or touched))
    if outside:
        raise InvalidInputError(
            "some rows belong to partitions that are not named for the overwrite: name these, "
            f"too, or remove the rows: {outside[:5]}, named: {list(named[:5])}",
            kind="outside_partitions",
            partitions=outside[:5],
        )


# ---- Keys that must exist, or must not


def rows_to_write(found: WorkloadProfile, rules: RowRules) -> WorkloadProfile:
    """
    Return the counts of the tagged rows to write.

    Raises:
        InvalidInputError: The rules forbid known keys (``key_exists``) or new keys
            (``partial_new_key``, ``unknown_record_key``), and there are some.
    """
    if rules.refuse_found and found.updates:
        raise InvalidInputError(
            "the insert has keys that the table has already; upsert the rows, or set "
            "hoodie.datasource.insert.dup.policy to drop, or leave out the option that refuses "
            "them (this one, or hoodie.sql.insert.mode=strict): "
            f"{counted(sum(found.updates.values()), 'row')}",
            kind="key_exists",
            rows=sum(found.updates.values()),
        )
    if rules.changes_known and found.inserts and not rules.adds_rows:
        raise _new_keys(found.inserts, rules)
    return WorkloadProfile(inserts=found.inserts) if rules.drop_found else found


def _new_keys(inserts: Mapping[str, int], rules: RowRules) -> InvalidInputError:
    rows, partitions = sum(inserts.values()), sorted(inserts)[:5]
    if rules.partial:  # no reader could read a partial log block of a record that does not exist
        kind = "partial_new_key"
        why = (
            "a partial update changes records that are there, and some keys are not, or are in "
            "another partition; upsert whole rows of them first"
        )
    else:
        kind = "unknown_record_key"
        why = (
            "rows are updated by the record keys and partition paths in their meta columns, and "
            "the table has no such rows: they were deleted meanwhile, or come from another table; "
            "read them again, or insert them without meta columns"
        )
    return InvalidInputError(
        f"{why}: {counted(rows, 'row')} in {partitions}",
        kind=kind,
        rows=rows,
        partitions=partitions,
    )


# ---- Partitions inside each other


def refuse_nesting(
    context: TableContext, view: FileSystemView, touched: tuple[str, ...], rules: RowRules
) -> tuple[str, ...]:
    """
    Refuse a partition inside another one: no engine lists partitions below a partition.

    Validation checks partitions that concurrent writes open (C21).

    Outside: 1 get for each partition that was not listed yet, and 1 list unless a committed write
    opened it; these overlap. 1 get for each such write whose metadata is not in memory; these
    overlap, too. The times of the archived timeline, if that write may be archived.
    For new or empty partitions with slashes in their values at most 2 stats of each parent folder,
    and a walk below those that have folders. Before the first write of a table only the stats.

    Returns:
        The parent folders of new or empty partitions whose values have slashes.

    Raises:
        InvalidInputError: ``nested_partition``.
    """
    fields = rules.keys.partition_fields
    if not fields or rules.keys.url_encode:
        return ()
    committed = _list_partitions(context, view, touched)
    # A failed write may have left an empty partition, inside another partition or around one.
    opened = [
        path for path in touched if path not in committed and not view.has_visible_files(path)
    ]
    above = {path: [path[:at] for at, c in enumerate(path) if c == "/"] for path in opened}
    deep = (folders for path, folders in above.items() if path.count("/") >= len(fields))
    inside = sorted(set(chain.from_iterable(deep)))
    ending = context.config.partition_metafile_ending
    check = partial(is_partition, context.ports.storage, ending=ending)
    around = {*touched, *compress(inside, context.ports.for_each(check, inside))}
    for path in opened:
        outer = around.intersection(above[path])
        if outer:
            empty = outer.difference(touched, with_committed_files(context, view.snapshot, outer))
            raise _nested(path, outer, empty)
        inner = inner_partitions(context, view.snapshot, path) if path in view.parents else ()
        if inner:
            raise _nested(path, inner)
    return tuple(inside)


def _list_partitions(
    context: TableContext, view: FileSystemView, touched: tuple[str, ...]
) -> set[str]:
    """List the partitions that are not listed yet; return those that a committed write opened."""
    if view.snapshot.newest_write is None and view.snapshot.archived_write is None:
        return set()
    unseen = view.not_listed(touched)
    times = context.ports.for_each(partial(partition_created_by, context.ports.storage), unseen)
    # An instant that never completed may also be older than the first write, where each
    # instant seems committed.
    snapshot = view.snapshot
    writes = {one.requested_time: one for one in snapshot.active.completed_writes}

    created = [
        (path, time, writes.get(time or "")) for path, time in zip(unseen, times, strict=True)
    ]
    named = sorted({write for _, _, write in created if write}, key=lambda one: one.requested_time)
    metadata = dict(zip(named, context.ports.for_each(snapshot.commits.read, named), strict=True))
    # A discarded attempt leaves no instant, so another writer may draw the same requested time
    # within its millisecond. The write must have written to this partition, too.
    committed = {
        path
        for path, time, write in created
        if (write is None and time is not None and time in snapshot.archived.completions)
        or (write is not None and path in metadata[write].partition_to_write_stats)
    }
    view.note_metadata_files(committed)
    view.latest_slices([path for path in unseen if path not in committed])
    return committed


def _nested(
    path: str, others: Iterable[str], empty: Collection[str] = frozenset()
) -> InvalidInputError:
    advice = "write values with the same number of slashes as the table's folders have"
    if empty:
        advice = (
            f"{advice}. If a failed write left the {PARTITION_METADATA} file of a folder without "
            f"rows, delete that file while no writer runs, then write again: {sorted(empty)[:5]}"
        )
    return InvalidInputError(
        "the rows' partition would be inside or around another one, and readers find only the "
        f"outer one; {advice}: {path!r}, {sorted(others)[:5]}",
        kind="nested_partition",
        partition=path,
    )
