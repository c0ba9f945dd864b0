"""
The part of a verification that opens data files: footers, row counts, keys, merged slices.

Apart from ``verify`` because it is what costs time and memory. Rows are what a reader sees: of
a slice with logs those of the merged slice, of which only the key is decoded and what decides
between versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from timeline.context import TableContext
from timeline.errors import CorruptTableError, HoodooError, UnsupportedTableError
from timeline.files.parquet import read_footer, read_keys
from timeline.files.slice_reader import SliceRead, read_slice
from timeline.index.adoption import rules_kept_in
from timeline.model.commit_metadata import WriteStat
from timeline.model.file_group import FileSlice
from timeline.read import plan_scan, read_schema, view_of
from timeline.rules.bucketing import BucketEngine, bucket_of
from timeline.snapshot import Snapshot

__all__ = ["Report", "check_records"]

_KEY = "_hoodie_record_key"
_SHOWN_MAX = 5


class Report(Protocol):
    """Where findings go."""

    def problem(self, kind: str, path: str, message: str) -> None:
        """Something that makes the table not ok."""

    def note(self, kind: str, path: str, message: str) -> None:
        """Something worth knowing."""


def check_records(
    context: TableContext,
    snapshot: Snapshot,
    recorded: Mapping[str | None, WriteStat],
    report: Report,
) -> tuple[int, int]:
    """
    Check what lies in the newest slices.

    Args:
        context: The table.
        snapshot: Whose slices.
        recorded: What metadata says of base files, by path.
        report: Told of what is found.

    Returns:
        The numbers of file slices and of rows.

    Outside: 1 list a partition; of each newest slice the footer and the keys of its base file,
    and its logs.
    """
    view = view_of(context, snapshot)
    has_keys = context.config.populate_meta_fields
    buckets = rules_kept_in(context.config)
    file_slices = rows = 0
    for partition_path in view.partition_paths():
        slices = view.latest_slices([partition_path])
        file_slices += len(slices)
        if buckets is not None and buckets.engine is BucketEngine.SIMPLE:
            _all_in_buckets(slices, partition_path, report)
        bases = [one.base_file.path for one in slices if one.base_file is not None]
        counted = _footers(context, bases, recorded, report, has_keys=has_keys)
        keys = [] if not has_keys else _keys_of_bases(context, slices)
        merged = _merged(context, snapshot, slices, report, has_keys=has_keys)
        for one in slices:
            of_merged = merged.get(one.file_group.file_id)
            if of_merged is not None:
                rows += len(of_merged)
                keys.append(of_merged)
            elif one.base_file is not None:
                rows += counted.get(one.base_file.path, 0)
        if has_keys:
            _unique(keys, partition_path, report)
    return file_slices, rows


def _all_in_buckets(slices: Sequence[FileSlice], partition_path: str, report: Report) -> None:
    """Java Hudi that is not told of the index looks keys up in files, and makes other groups."""
    ids = [one.file_group.file_id for one in slices]
    strange = [file_id for file_id in ids if bucket_of(file_id) is None]
    if strange:
        report.problem(
            "no_bucket",
            partition_path,
            "file groups of no bucket: a writer was not given the options of the table's bucket "
            "index (hoodie.index.type=BUCKET); look-ups by bucket miss their keys: "
            f"{strange[:_SHOWN_MAX]}",
        )


def _footers(
    context: TableContext,
    paths: Sequence[str],
    recorded: Mapping[str | None, WriteStat],
    report: Report,
    *,
    has_keys: bool,
) -> dict[str, int]:
    """The number of rows in each base file; a file that cannot be read is told and left out."""
    counted = {}
    for path in paths:
        try:
            footer = read_footer(context.world.storage, path)
        except HoodooError as error:
            report.problem(error.kind, path, error.message)
            continue
        counted[path] = footer.rows
        stat = recorded.get(path)
        if stat is not None and stat.num_writes != footer.rows:
            report.problem("row_count", path, f"{footer.rows} rows, recorded {stat.num_writes}")
        if not has_keys or footer.rows == 0:
            continue
        if footer.key_min is None or footer.key_max is None:
            tell = report.note if footer.bloom_base64 is None else report.problem
            tell("footer", path, "no key range; Java's bloom index cannot use this file")
    return counted


def _keys_of_bases(context: TableContext, slices: Sequence[FileSlice]) -> list[pa.ChunkedArray]:
    """Keys of the slices that are a base file alone."""

    def keys_of(path: str) -> pa.ChunkedArray:
        try:
            return read_keys(context.world.storage, path)
        except CorruptTableError:
            return pa.chunked_array([], pa.string())  # the footer check told it

    alone = [one.base_file.path for one in slices if one.base_file and not one.log_files]
    return list(context.world.executor.map(keys_of, alone))


def _merged(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    report: Report,
    *,
    has_keys: bool,
) -> dict[str, pa.ChunkedArray]:
    """File id -> the keys (else some column) of the rows of each slice with logs."""
    with_logs = [one for one in slices if one.log_files]
    if not with_logs:
        return {}
    try:
        column = _KEY if has_keys else read_schema(context, snapshot).arrow.names[0]
        read = plan_scan(context, snapshot, with_logs, columns=[column]).read
    except UnsupportedTableError as error:
        report.note(error.kind, with_logs[0].file_group.partition_path, error.message)
        return {}

    def rows_of(one: FileSlice) -> pa.ChunkedArray | None:
        try:
            return _column(context, one, read)
        except HoodooError as error:
            path = str(error.fields.get("path", one.file_group.partition_path))
            report.problem(error.kind, path, error.message)
            return None

    found = zip(with_logs, map(rows_of, with_logs), strict=True)
    return {one.file_group.file_id: rows for one, rows in found if rows is not None}


def _column(context: TableContext, one: FileSlice, read: SliceRead) -> pa.ChunkedArray:
    batches = list(read_slice(context.world.storage, context.world.events, one, read))
    return pa.Table.from_batches(batches, schema=read.output_schema).column(0)


def _unique(found: Sequence[pa.ChunkedArray], partition_path: str, report: Report) -> None:
    chunks = [chunk.cast(pa.string()) for keys in found for chunk in keys.chunks]
    keys = pa.chunked_array(chunks, pa.string())
    if keys.null_count:
        report.problem("null_key", partition_path, f"{keys.null_count} rows have no record key")
    if pc.count_distinct(keys, mode="all").as_py() == len(keys):
        return
    counts = pc.value_counts(keys)
    twice = counts.filter(pc.greater(pc.struct_field(counts, "counts"), 1))
    shown = pc.struct_field(twice, "values").slice(0, _SHOWN_MAX).to_pylist()
    report.problem(
        "duplicate_key",
        partition_path,
        f"{len(twice)} keys more than once (inserts without a look-up allow it): {shown}",
    )
