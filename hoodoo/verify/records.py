"""Verify data files: footers, row counts, record keys, partition paths, merged slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.log_files import VisibleInstants
from filegroups.files.parquet import read_footer
from filegroups.files.slice_reader import SliceRead, assert_base_fits, assert_logs_fit, read_slice
from filegroups.index.buckets import bucket_rules_in
from filegroups.keys.bucketing import bucket_of, java_hashes, xx_hashes
from filegroups.keys.generators import KeyGenerator
from filegroups.keys.keys import KeySpec, addresses, refuse_untyped
from filegroups.reading.scan import plan_scan, read_schema, view_of
from filegroups.schema.schema import KEY_COLUMN
from filegroups.settings.key_settings import key_spec_of
from filegroups.settings.settings import WriteSettings
from filegroups.writing.stored_forms import (
    folders_as_stored,
    key_moments_as_stored,
    stored_forms,
)
from hoodoo.verify.timestamps import doubtful_timestamps
from hoodoo.write_requests import may_misplace_rows
from timeline.context import TableContext
from timeline.errors import HoodooError, SettingError, UnsupportedTableError, counted
from timeline.model.commit_metadata import WriteStat
from timeline.model.file_names import PROPERTIES
from timeline.model.file_slice import BaseFile, FileSlice
from timeline.model.table_config import TableConfig
from timeline.properties.options import TABLE_LAYER, PropertySet
from timeline.properties.properties_file import load_config, may_have_misplaced_rows
from timeline.properties.setting_enums import BucketEngine
from timeline.snapshot import Snapshot

# ---- Compare stored record keys and partition paths with those that the key generator makes
# Earlier releases made both from the incoming types. Releases of Hudi differ in complex keys of one
# field. A writer does not find such a row by its key, so the table may have its record twice.


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Keys and partition paths made from the columns of rows, and the rows that differ."""

    keys: pa.Array
    paths: pa.Array
    other_key: pa.Array  # the stored key differs
    other_path: pa.Array  # the folder differs

    @property
    def differ(self) -> pa.Array:
        """Return a mask of the rows with another key or folder."""
        return pc.or_(self.other_key, self.other_path)


def keys_of_table(
    context: TableContext, snapshot: Snapshot, settings: WriteSettings | None = None
) -> KeySpec:
    """
    Return the rules by which a writer makes the table's keys.

    The result has no partition fields if the table may have misplaced rows. If files hold both
    forms of a complex key, the result has the form to rewrite to:
    ``hoodie.write.complex.keygen.new.encoding`` names it. The default is the longer form, which
    version 9 has.

    Raises:
        UnsupportedTableError: The keys cannot be made again, because rows have no key columns or a
            class of the table's owner makes the keys (``keys_of_others``); and the errors of
            ``folders_as_stored``.
    """
    config = context.config
    keys = key_spec_of(settings or _from_table(config), config)
    try:
        refuse_untyped(keys)
    except SettingError as error:
        raise UnsupportedTableError(error.message, kind="keys_of_others", feature="keys") from error
    if not (keys.record_key_fields or keys.partition_fields) or _by_strange_class(config):
        raise UnsupportedTableError(
            "the keys and folders of this table come from a key generator that this release does "
            "not know, so they cannot be checked",
            kind="keys_of_others",
            feature="keys made again",
        )
    elsewhere = may_have_misplaced_rows(context.ports.storage, load_config(context.ports.storage))
    elsewhere |= settings is not None and may_misplace_rows(settings, config)
    # Rows have no partition columns, or may be in another folder than these name.
    if config.drop_partition_columns or elsewhere:
        keys = replace(keys, partition_fields=(), partition_types=())
    keys = folders_as_stored(context, snapshot, keys)
    if keys.has_two_forms:
        forms, asked = stored_forms(context, snapshot, keys), keys.prefixes_single_key
        newest = config.table_version >= 9
        prefix = True if asked is None or newest else asked
        if len(forms) == 1 and asked is None:
            prefix = next(iter(forms))
        keys = replace(keys, stored_prefix=prefix)
    return key_moments_as_stored(context, snapshot, keys)


def addresses_of(rows: pa.Table, partition_path: str | pa.ChunkedArray, keys: KeySpec) -> Addresses:
    """
    Make the keys and partition paths of stored rows again, and compare them with the stored ones.

    Args:
        rows: The rows as read, with the meta columns if files have them.
        partition_path: The folder of all rows, or of each row.
        keys: The result of ``keys_of_table``.

    Shapes: rows (n rows) -> arrays (n,).

    Errors: those of ``filegroups.keys.keys.addresses``.
    """
    made, paths = addresses(rows, keys, rows.schema)
    if not keys.partition_fields:
        is_text = isinstance(partition_path, str)
        paths = pa.repeat(pa.scalar(partition_path), rows.num_rows) if is_text else partition_path
    other_path = pc.not_equal(paths, partition_path)
    other_key = pa.repeat(pa.scalar(False), rows.num_rows)
    if keys.stores_keys and not keys.automatic:
        stored = pc.cast(rows.column(KEY_COLUMN), pa.string())
        other_key = pc.fill_null(pc.not_equal(made, stored), True)
    return Addresses(keys=made, paths=paths, other_key=other_key, other_path=other_path)


def _from_table(config: TableConfig) -> WriteSettings:
    try:
        return WriteSettings.from_properties(PropertySet().with_layer(TABLE_LAYER, config.raw))
    except SettingError:
        return WriteSettings()


def _by_strange_class(config: TableConfig) -> bool:
    kind = (config.key_generator_type or "").removesuffix("_AVRO")
    if kind:
        return kind not in KeyGenerator.__members__
    return bool(config.raw.get("hoodie.table.keygenerator.class"))


# ---- The checks that open data files: footers, row counts, keys, merged slices
# They are apart from ``verify`` because they cost time and memory. They check the rows that a
# reader sees: the merged rows of a slice with logs. They decode the key and the columns that decide
# between versions, or every column on request. Memory holds a hash of 8 bytes for each key of a
# partition. It holds the keys themselves for one file group per worker, and where hashes are equal.

_SHOWN_MAX = 5


class Report(Protocol):
    """Receives the findings."""

    def problem(self, kind: str, path: str, message: str) -> None:
        """Record a problem: the table is not ok."""

    def note(self, kind: str, path: str, message: str) -> None:
        """Record a note: the table is ok."""


def check_records(
    context: TableContext,
    snapshot: Snapshot,
    recorded: Mapping[str | None, WriteStat],
    report: Report,
    *,
    all_columns: bool = False,
) -> tuple[int, int]:
    """
    Check the files and rows of the latest file slices.

    Args:
        context: The table.
        snapshot: The snapshot that has the slices.
        recorded: The write statistics of base files, by path.
        report: Receives the findings.
        all_columns: Decode all columns, to find damage in any of them.

    Returns:
        The number of file slices and the number of rows.

    Outside: 1 list per partition; of each latest slice the footer and the keys of the base file,
    and the logs. It reads keys a second time if some may be duplicates.
    """
    view = view_of(context, snapshot)
    whole = _whole_rows(context, snapshot, report)
    if whole is not None:
        _key_columns(context, whole, report)
    has_keys = context.config.populate_meta_fields
    buckets = bucket_rules_in(context.config)
    keys = _keys_to_make(context, snapshot, report) if all_columns else None
    file_slices = rows = 0
    for partition_path in view.partition_paths():
        slices = view.latest_slices([partition_path])
        file_slices += len(slices)
        if buckets is not None and buckets.engine is BucketEngine.SIMPLE:
            _all_in_buckets(slices, partition_path, report, buckets.buckets)
        bases = [one.base_file for one in slices if one.base_file is not None]
        counted = _footers(context, bases, recorded, report, read=whole, has_keys=has_keys)
        alone = _worth_reading(context, slices, counted, all_columns=all_columns)
        with_logs = [one for one in slices if one.log_files]
        found = [
            *_summaries_of(context, snapshot, alone, report, keys, all_columns=all_columns),
            *_summaries_of(context, snapshot, with_logs, report, keys, all_columns=all_columns),
        ]
        if whole is not None:
            _logs_fit(context, [one.slice for one in found], whole, report)
        read = {one.slice.file_group for one in found}
        rows += sum(one.rows for one in found)
        rows += sum(
            counted.get(one.base_file.path, 0)
            for one in slices
            if one.base_file is not None and one.file_group not in read
        )
        _unique(context, snapshot, found, partition_path, report)
        _report_misplaced([one.misplaced for one in found], partition_path, report)
        if all_columns:
            _report_doubtful(context, snapshot, slices, partition_path, report)
    return file_slices, rows


def _report_doubtful(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    partition_path: str,
    report: Report,
) -> None:
    """Report timestamps that an earlier release may have divided by 1,000; some may be right."""
    try:
        found = sum(one.rows.num_rows for one in doubtful_timestamps(context, snapshot, slices))
    except HoodooError:
        return  # the read of all columns has reported it
    if found:
        report.note(
            "doubtful_moments",
            partition_path,
            "an earlier release of hoodoo copied times before April 1970 from a file with another "
            "unit: they may be a thousandth of the true ones; 'hoodoo table repair-moments' "
            f"rewrites them: {counted(found, 'row')}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowSummary:
    """The summary of a slice's rows: their number, and a hash of each key."""

    slice: FileSlice
    rows: int
    without_key: int
    hashes: npt.NDArray[np.uint64]
    misplaced: _MisplacedRows


@dataclass(slots=True)
class _MisplacedRows:
    """Counts of rows with another key or folder than their columns make."""

    keys: int = 0
    paths: int = 0
    example: str = ""
    why_not: str = ""  # why the columns make no key

    def see(self, rows: pa.Table, partition_path: str, keys: KeySpec) -> None:
        """Add the counts of some rows."""
        try:
            found = addresses_of(rows, partition_path, keys)
        except HoodooError as error:
            self.why_not = error.message
            return
        self.keys += pc.sum(found.other_key, min_count=0).as_py()
        self.paths += pc.sum(found.other_path, min_count=0).as_py()
        differ = found.differ
        if not self.example and pc.any(differ, min_count=0).as_py():
            place = pc.index(differ, True).as_py()
            key = rows.column(KEY_COLUMN)[place] if KEY_COLUMN in rows.schema.names else ""
            self.example = (
                f"{key} in {partition_path or 'the table'}, computed again: {found.keys[place]} "
                f"in {found.paths[place] or 'the table'}"
            )


def _all_in_buckets(
    slices: Sequence[FileSlice], partition_path: str, report: Report, count: int
) -> None:
    """
    Check that each file group belongs to one of the buckets 0 to ``count`` - 1.

    Java Hudi without the options of the bucket index creates file groups of no bucket. One in 43 of
    their random file ids begins with eight digits, as those of buckets do.
    """
    ids = [one.file_group.file_id for one in slices]
    strange = [file_id for file_id in ids if bucket_of(file_id) not in range(count)]
    if strange:
        report.problem(
            "no_bucket",
            partition_path,
            "file groups without a bucket: a writer lacked the options of the table's bucket "
            "index (hoodie.index.type=BUCKET), so lookups by bucket miss their keys: "
            f"{strange[:_SHOWN_MAX]}",
        )


def _whole_rows(context: TableContext, snapshot: Snapshot, report: Report) -> SliceRead | None:
    """Plan a read of every column; None if the table is unreadable or never had a write."""
    try:
        return plan_scan(
            context,
            snapshot,
            (),
            with_hoodie_columns=True,
            visible=VisibleInstants.of(snapshot),
        ).read
    except UnsupportedTableError as error:
        if error.kind != "no_schema":
            report.problem(error.kind, "", f"the table cannot be read: {error.message}")
        return None


def _key_columns(context: TableContext, read: SliceRead, report: Report) -> None:
    """Report key fields that are no columns: a writer could not make any key."""
    names = set(read.file_schema.names)
    fields = context.config.record_key_fields
    missing = [field for field in fields if field.partition(".")[0] not in names]
    if missing:
        report.problem(
            "missing_key_column",
            PROPERTIES,
            f"hoodie.table.recordkey.fields names columns that the table lacks: {missing}. No "
            "writer can find its rows. End the writers, then restore hoodie.properties from a "
            "backup, or correct the property",
        )


def _logs_fit(
    context: TableContext, slices: Sequence[FileSlice], read: SliceRead, report: Report
) -> None:
    """Report logs that a read of all columns rejects; their keys may still be readable."""
    for one in slices:
        if not one.log_files:
            continue
        try:
            assert_logs_fit(context.ports.storage, one, read)
        except HoodooError as error:
            report.problem(error.kind, str(error.fields.get("path", "")), error.message)


def _footers(
    context: TableContext,
    bases: Sequence[BaseFile],
    recorded: Mapping[str | None, WriteStat],
    report: Report,
    *,
    read: SliceRead | None,
    has_keys: bool,
) -> dict[str, int]:
    """Return the row count of each base file; report and omit files that cannot be read."""
    row_counts = {}
    for base in bases:
        path = base.path
        try:
            footer = read_footer(context.ports.storage, path)
            row_counts[path] = footer.rows
            if read is not None:
                assert_base_fits(footer.schema, base, read)
        except HoodooError as error:
            report.problem(error.kind, path, error.message)
            continue
        stat = recorded.get(path)
        if stat is not None and stat.num_writes != footer.rows:
            report.problem(
                "row_count", path, f"{counted(footer.rows, 'row')}, recorded {stat.num_writes}"
            )
        if not has_keys or footer.rows == 0:
            continue
        if footer.key_min is None or footer.key_max is None:
            tell = report.note if footer.bloom_base64 is None else report.problem
            tell("footer", path, "no key range; Java's bloom index cannot use this file")
    return row_counts


def _worth_reading(
    context: TableContext,
    slices: Sequence[FileSlice],
    counted: Mapping[str, int],
    *,
    all_columns: bool,
) -> list[FileSlice]:
    """Return the slices without logs to read; none if their footers suffice."""
    if not (all_columns or context.config.populate_meta_fields):
        return []
    return [
        one
        for one in slices
        if one.base_file is not None and not one.log_files and one.base_file.path in counted
    ]


def _summaries_of(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    report: Report,
    keys: KeySpec | None,
    *,
    all_columns: bool,
) -> list[_RowSummary]:
    """Read slices, all with logs or all without; report and omit slices that cannot be read."""
    if not slices:
        return []
    try:
        read = _plan(context, snapshot, slices, all_columns=all_columns)
    except UnsupportedTableError as error:
        report.note(error.kind, slices[0].file_group.partition_path, error.message)
        return []
    seen = []
    read_one = partial(_seen, context, read, keys)
    # A whole slice with logs is in memory, so read one at a time.
    answers = (
        map(read_one, slices)
        if slices[0].log_files
        else context.ports.executor.map(read_one, slices)
    )
    for one, answer in zip(slices, answers, strict=True):
        if isinstance(answer, _RowSummary):
            seen.append(answer)
        else:
            path = str(answer.fields.get("path", one.file_group.partition_path))
            report.problem(answer.kind, path, answer.message)
    return seen


def _plan(
    context: TableContext, snapshot: Snapshot, slices: Sequence[FileSlice], *, all_columns: bool
) -> SliceRead:
    has_keys = context.config.populate_meta_fields
    columns = None
    if not all_columns:
        columns = [KEY_COLUMN if has_keys else read_schema(context, snapshot).arrow.names[0]]
    return plan_scan(context, snapshot, slices, columns=columns, with_hoodie_columns=has_keys).read


def _seen(
    context: TableContext, read: SliceRead, keys: KeySpec | None, one: FileSlice
) -> _RowSummary | HoodooError:
    rows = without_key = 0
    elsewhere = _MisplacedRows()
    hashes = [np.zeros(0, np.uint64)]
    try:
        for batch in read_slice(context.ports.storage, context.ports.events, one, read):
            rows += batch.num_rows
            if keys is not None and batch.num_rows:
                whole = pa.Table.from_batches([batch])
                elsewhere.see(whole, one.file_group.partition_path, keys)
            if KEY_COLUMN in read.columns:
                held = _keys(batch)
                without_key += batch.num_rows - len(held)
                hashes.append(_hashes(held))
    except HoodooError as error:
        return error
    return _RowSummary(
        slice=one,
        rows=rows,
        without_key=without_key,
        hashes=np.concatenate(hashes),
        misplaced=elsewhere,
    )


def _keys(batch: pa.RecordBatch) -> pa.Array:
    return batch.column(KEY_COLUMN).cast(pa.string()).drop_null()


def _hashes(keys: pa.Array) -> npt.NDArray[np.uint64]:
    return (java_hashes(keys).astype(np.uint64) << np.uint64(32)) | xx_hashes(keys)


def _keys_to_make(context: TableContext, snapshot: Snapshot, report: Report) -> KeySpec | None:
    try:
        return keys_of_table(context, snapshot)
    except HoodooError as error:
        if error.kind != "keys_of_others":
            report.note(error.kind, "", error.message)
        return None


def _report_misplaced(found: Sequence[_MisplacedRows], partition_path: str, report: Report) -> None:
    keys, paths = sum(one.keys for one in found), sum(one.paths for one in found)
    example = next((one.example for one in found if one.example), "")
    advice = (
        "updates miss them and may have created a second row; 'hoodoo table repair-keys' "
        "rewrites them"
    )
    if keys:
        report.problem(
            "other_key",
            partition_path,
            f"the columns give another record key than the stored one: {advice}: "
            f"{counted(keys, 'row')}: {example}",
        )
    if paths:
        report.problem(
            "other_partition",
            partition_path,
            f"the columns name another folder than the rows are in: {advice}: "
            f"{counted(paths, 'row')}: {example}",
        )
    why_not = next((one.why_not for one in found if one.why_not), "")
    if why_not:
        report.note(
            "keys_not_made", partition_path, f"keys and folders were not checked: {why_not}"
        )


def _unique(
    context: TableContext,
    snapshot: Snapshot,
    found: Sequence[_RowSummary],
    partition_path: str,
    report: Report,
) -> None:
    without_key = sum(one.without_key for one in found)
    if without_key:
        report.problem(
            "null_key", partition_path, f"{counted(without_key, 'row')} without a record key"
        )
    hashes, times = np.unique(
        np.concatenate([np.zeros(0, np.uint64), *(one.hashes for one in found)]),
        return_counts=True,
    )
    repeated = hashes[times > 1]
    if not len(repeated):
        return
    doubtful = [one.slice for one in found if np.isin(one.hashes, repeated).any()]
    keys = pa.chunked_array(_keys_of(context, snapshot, doubtful, repeated), pa.string())
    counts = pc.value_counts(keys)
    twice = counts.filter(pc.greater(pc.struct_field(counts, "counts"), 1))
    if not len(twice):
        return
    shown = pc.struct_field(twice, "values").slice(0, _SHOWN_MAX).to_pylist()
    report.problem(
        "duplicate_key",
        partition_path,
        f"{counted(len(twice), 'key')} more than once (inserts without a lookup allow it): {shown}",
    )


def _keys_of(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    wanted: npt.NDArray[np.uint64],
) -> Iterator[pa.Array]:
    """Yield the keys whose hash is wanted."""
    read = _plan(context, snapshot, slices, all_columns=False)
    for one in slices:
        for batch in read_slice(context.ports.storage, context.ports.events, one, read):
            keys = _keys(batch)
            yield keys.filter(pa.array(np.isin(_hashes(keys), wanted)))
