"""
Point lookups: read the rows of a few record keys, from the file groups that may contain them.

The most exact index decides. That is the record index if the table has one, else the bucket hash if
the table stores its bucket settings, else key ranges and bloom filters of footers. An index only excludes
file groups. The remaining ones are merged and filtered as in any scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.parquet import read_footer
from filegroups.index.buckets import bucket_rules_in, find_buckets
from filegroups.index.key_filters import may_contain_any
from filegroups.index.lookup import has_record_index, open_record_index
from filegroups.keys.bucketing import BucketRules
from filegroups.reading.scan import ScanPlan, plan_scan
from filegroups.schema.schema import KEY_COLUMN
from timeline.context import TableContext
from timeline.errors import (
    CorruptTableError,
    InvalidInputError,
    MissingFileError,
    UnsupportedTableError,
)
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import listed
from timeline.model.file_slice import FileSlice
from timeline.ports.ports import Storage
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import BucketEngine
from timeline.snapshot import Snapshot


def plan_get_rows(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    keys: Iterable[str],
    *,
    columns: Sequence[str] | None = None,
    with_hoodie_columns: bool = False,
) -> ScanPlan:
    """
    Plan the read of some record keys.

    Args:
        context: The table.
        snapshot: The visible instants.
        slices: The slices of the partitions in question.
        keys: Record keys as stored: the value, or ``field:value,field:value``.
        columns: Names to return; None for all.
        with_hoodie_columns: Whether to return the meta columns too.

    Raises:
        InvalidInputError: A column is unknown, ``keys`` is a text and not a list, or rows have no
            keys.
        MissingFileError: A file was cleaned since the snapshot was taken.
    """
    config = context.config
    if not config.populate_meta_fields and not config.record_key_fields:
        raise InvalidInputError(
            "the rows of this table have no keys: read them by a filter",
            kind="keyless",
        )
    wanted = pa.array(sorted(set(listed(keys, "record keys"))), pa.string())
    plan = plan_scan(
        context,
        snapshot,
        slices_that_may_contain(context, snapshot, slices, wanted),
        columns=columns,
        filter=pc.field(KEY_COLUMN).isin(wanted),
        with_hoodie_columns=with_hoodie_columns,
    )
    return replace(plan, read=replace(plan.read, finds_keys=True))


def slices_that_may_contain(
    context: TableContext, snapshot: Snapshot, slices: Sequence[FileSlice], keys: pa.Array
) -> list[FileSlice]:
    """
    Return the slices that may contain one of the keys.

    Outside: the files of the record index and 1 get; or nothing, with buckets; or 1 open_input for
    each slice without logs.
    """
    config, storage = context.config, context.ports.storage
    if not len(keys) or not config.populate_meta_fields:
        return list(slices) if len(keys) else []
    places = _from_record_index(context, snapshot, keys)
    if places is not None:
        return [one for one in slices if one.file_group in places]
    rules = bucket_rules_in(config)
    if rules is not None and rules.engine is BucketEngine.SIMPLE:
        return _in_buckets(context, snapshot, slices, keys, rules)
    may_contain = partial(_may_contain, storage, keys)
    kept = context.ports.executor.map(may_contain, slices)
    return [one for one, held in zip(slices, kept, strict=True) if held]


def _from_record_index(
    context: TableContext, snapshot: Snapshot, keys: pa.Array
) -> set[FileGroupId] | None:
    """
    Return the file groups that the record index gives for keys; None if there is no index.

    The context may be old and the metadata table switched off since. A leftover index has outdated
    positions or none, so the properties are read after it.
    """
    storage = context.ports.storage
    if snapshot.as_of is not None:
        return None
    try:
        index = open_record_index(storage, context.config, snapshot, ports=context.ports)
        found = None if index is None else index.locate(keys)
    except MissingFileError:
        return None  # a service of the metadata table deleted the file, or the table was deleted
    except (CorruptTableError, UnsupportedTableError):
        if has_record_index(load_config(storage)):
            raise
        return None
    if found is None or not has_record_index(load_config(storage)):
        return None
    # One row per file group, however many keys were asked for.
    places = found.group_by(["partition_path", "file_id"]).aggregate([])
    paths, file_ids = (places.column(name).to_pylist() for name in ("partition_path", "file_id"))
    return set(map(FileGroupId, paths, file_ids))


def _in_buckets(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    keys: pa.Array,
    rules: BucketRules,
) -> list[FileSlice]:
    paths = sorted({one.file_group.partition_path for one in slices})
    groups = [one.file_group for one in slices]
    where = find_buckets(context.ports.storage, snapshot, rules, paths, groups)
    numbers = set(where.assigner.numbers(keys, pa.nulls(len(keys), pa.string())).tolist())
    wanted = {group for (_, number), group in where.known.items() if number in numbers}
    return [one for one in slices if one.file_group in wanted]


def _may_contain(storage: Storage, keys: pa.Array, one: FileSlice) -> bool:
    if one.log_files or one.base_file is None:
        return True
    return may_contain_any(keys, read_footer(storage, one.base_file.path))
