"""Compare the metadata table with the timeline and the files of its table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.metadata_table.keys import IndexVersion, split_secondary_keys
from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from filegroups.metadata_table.records import BOUND
from filegroups.reading.scan import view_of
from filegroups.schema.arrow_columns import one_array
from tableservices.metadata_table.build import contents_of_snapshot
from timeline.context import TableContext
from timeline.errors import CorruptTableError, UnsupportedTableError, counted
from timeline.model.file_names import METADATA_TABLE, join, parent_folder
from timeline.model.file_slice import BaseFile, LogFile
from timeline.model.instant_time import EARLIEST
from timeline.model.metadata_table import PartitionKind, kind_of
from timeline.reader_lease import deferred_deletes
from timeline.snapshot import Snapshot

_FIRST_VERSION: Final = 8  # of tables whose metadata table is read

#: Problems that a clean after the snapshot may cause.
MAY_BE_CLEANED: Final = frozenset({"metadata_stale_file", "missing_file"})

#: Kind, path and message of a problem.
Problem = tuple[str, str, str]


def check_metadata_table(
    context: TableContext, snapshot: Snapshot, sizes: Mapping[str, int]
) -> Iterator[Problem]:
    """
    Yield what the metadata table has wrong; nothing without one.

    Args:
        context: The table.
        snapshot: The commits that count.
        sizes: Bytes of each file in the partitions, by path.

    Outside: as ``open_metadata_table``, and all of its files; the reads of
    ``contents_of_snapshot`` and of ``deferred_deletes``.
    """
    config = context.config
    if not config.metadata_table_on or config.table_version < _FIRST_VERSION:
        return
    try:
        table = open_metadata_table(context.ports.storage, config, snapshot)
        if table is None:
            return
        yield from _instants(table)
        listed = _listed(table)
        # Else each record of what it lacks is missing, or those of unknown instants are merged.
        if not (table.lag.behind or (table.lag.unknown and table.is_newer)):
            yield from _records(context, table, snapshot)
    except (CorruptTableError, UnsupportedTableError) as error:
        yield _problem(error)
        return
    for path, size in sorted(listed.items()):
        if path not in sizes:
            yield "metadata_stale_file", path, "the metadata table lists it, and it is missing"
        elif size != sizes[path]:
            yield (
                "metadata_file_size",
                path,
                f"{size} bytes in the metadata table instead of {sizes[path]}",
            )
    deferred = deferred_deletes(context.ports.storage)  # cleaned, and kept for readers
    for path in sorted(sizes.keys() - listed.keys() - deferred):
        folder, name = parent_folder(path), path.rpartition("/")[2]
        file = BaseFile.found(folder, name, 0) or LogFile.found(folder, name, 0)
        if file is not None and snapshot.shows(file):
            yield (
                "metadata_missing_file",
                path,
                "a commit wrote it, and the metadata table lacks it",
            )


def _instants(table: MetadataTable) -> Iterator[Problem]:
    for time in table.lag.behind:
        yield "metadata_behind", time, "the metadata table lacks this completed instant"
    for time in table.lag.unknown:
        yield "metadata_unknown_instant", time, "only the metadata table has this instant"


def _listed(table: MetadataTable) -> dict[str, int]:
    files = table.files_of(table.partition_paths())
    paths, names, sizes = (files.column(name).to_pylist() for name in files.column_names)
    return {join(path, name): size for path, name, size in zip(paths, names, sizes, strict=True)}


def _records(context: TableContext, table: MetadataTable, snapshot: Snapshot) -> Iterator[Problem]:
    """Compare the records of indexes and statistics with those of the table's files."""
    names = [name for name in table.partitions if kind_of(name) in _COMPARED]
    if not names:
        return
    expected = contents_of_snapshot(
        context, context.config, names, snapshot, requested_time=EARLIEST
    )
    groups = view_of(context, snapshot).latest_slices() if _RECORD_INDEX in names else []
    places = pa.table(
        {
            "partition_path": pa.array([one.file_group.partition_path for one in groups], _TEXT),
            "file_id": pa.array([one.file_group.file_id for one in groups], _TEXT),
        }
    )
    for name in names:
        try:
            yield from _compare(name, expected[name], _found(table, name), places)
        except (CorruptTableError, UnsupportedTableError) as error:
            yield _problem(error)  # the other partitions may have more


def _found(table: MetadataTable, name: str) -> pa.Table:
    found = pa.concat_tables([table.records_shape(name).empty_table(), *table.read(name)])
    if _may_have_nulls(table, name):
        values, _ = split_secondary_keys(found.column("key"), path=join(METADATA_TABLE, name))
        found = found.filter(pc.is_valid(values))
    return found


def _problem(error: CorruptTableError | UnsupportedTableError) -> Problem:
    return error.kind, str(error.fields.get("path", METADATA_TABLE)), error.message


def _may_have_nulls(table: MetadataTable, name: str) -> bool:
    """
    Return whether entries of nulls count nothing in a partition: in a secondary index of version V1.

    Java 1.0.2 writes none, and 1.2.0 does. No reader looks for a null.
    """
    if kind_of(name) is not PartitionKind.SECONDARY_INDEX:
        return False
    return table.definitions[name].version is IndexVersion.V1


_COMPARED: Final = frozenset(PartitionKind) - {
    PartitionKind.FILES,
    PartitionKind.EXPRESSION_INDEX,
}
_RECORD_INDEX: Final = PartitionKind.RECORD_INDEX.value
_TEXT: Final = pa.string()
_SHOWN: Final = 3  # keys that a message names
#: Kinds that forget a record when its file or row goes. Java keeps statistics of deleted files.
_FORGETTING: Final = frozenset({PartitionKind.RECORD_INDEX, PartitionKind.SECONDARY_INDEX})
_PLACE: Final = ("partition_path", "file_id")
_COUNTS: Final = ("value_count", "null_count")


def _compare(name: str, expected: pa.Table, found: pa.Table, places: pa.Table) -> Iterator[Problem]:
    """
    Yield the differences of a partition, one for each kind.

    ``places`` are the visible file groups. A key without a row in one of them is no difference: its
    row may be hidden by an older delete (MDT-14), and it stays after a compaction. A look-up of it
    reads that file group, and finds no row.
    """
    kind, path = kind_of(name), join(METADATA_TABLE, name)
    keys = ["key"]
    if kind is PartitionKind.RECORD_INDEX and _repeats(found):
        keys = ["key", "partition_path"]  # an index of each partition
    if "is_deleted" in found.column_names:
        found = found.filter(pc.invert(found.column("is_deleted")))
    wanted = _numbered(expected, keys)
    there = _numbered(found, keys)
    missing = wanted.join(there, keys, join_type="left anti")
    if kind is PartitionKind.COLUMN_STATS:  # a reader keeps a file without a record
        counts = expected.column("value_count").take(missing.column("number"))
        missing = missing.filter(pc.greater(counts, 0))
    if missing.num_rows:
        yield "metadata_missing_record", path, _text("lacks", missing, expected)
    strange = there.join(wanted, keys, join_type="left anti")
    if kind is PartitionKind.RECORD_INDEX:
        of_strange = found.take(strange.column("number")).select(_PLACE)
        strange = strange.filter(_lacking(of_strange, places))
    if strange.num_rows and kind in _FORGETTING:
        yield "metadata_stale_record", path, _text("has without a row", strange, found)
    both = wanted.join(there, keys, join_type="inner", right_suffix="_found")
    pairs = (
        expected.take(both.column("number")),
        found.take(both.column("number_found")),
    )
    wrong = _differs(kind, *pairs)
    if wrong is not None and pc.any(wrong).as_py():
        # A key may be in several partitions, and an index of the whole table has one of the places.
        right = both.filter(pc.invert(wrong)).select(keys)
        rows = both.filter(wrong).join(right, keys, join_type="left anti")
        if rows.num_rows:
            yield "metadata_wrong_record", path, _text("has other values for", rows, expected)


def _lacking(rows: pa.Table, places: pa.Table) -> pa.Array:
    """Return which rows are at none of some places. Shapes: (n,), (m,) of `_PLACE` -> (n,)."""
    mine, theirs = (
        pc.binary_join_element_wise(*(one_array(each.column(one)) for one in _PLACE), "\0")
        for each in (rows, places)
    )
    return pc.invert(pc.is_in(mine, value_set=theirs))


def _repeats(found: pa.Table) -> bool:
    return bool(pc.count_distinct(found.column("key")).as_py() < found.num_rows)


def _numbered(rows: pa.Table, keys: list[str]) -> pa.Table:
    return rows.select(keys).append_column("number", pa.array(range(rows.num_rows), pa.int64()))


def _text(what: str, some: pa.Table, rows: pa.Table) -> str:
    """Name some keys; of statistics, file and column."""
    columns = [name for name in ("file_name", "column_name") if name in rows.column_names]
    first = rows.take(some.column("number").slice(0, _SHOWN)).select(columns or ["key"])
    named = [" ".join(str(value) for value in row.values()) for row in first.to_pylist()]
    more = ", ..." if some.num_rows > _SHOWN else ""
    return f"it {what} {counted(some.num_rows, 'record')}: {', '.join(named)}{more}"


def _differs(
    kind: PartitionKind | None, expected: pa.Table, found: pa.Table
) -> pa.ChunkedArray | None:
    """Return which records would mislead a reader; wider bounds would not."""
    if kind is PartitionKind.RECORD_INDEX:
        return _any(pc.not_equal(expected.column(one), found.column(one)) for one in _PLACE)
    if kind not in (PartitionKind.COLUMN_STATS, PartitionKind.PARTITION_STATS):
        return None
    tests = list(_narrower(expected, found))
    if kind is PartitionKind.COLUMN_STATS:
        tests += [pc.not_equal(expected.column(one), found.column(one)) for one in _COUNTS]
    return _any(tests)


def _any(tests: Iterable[pa.ChunkedArray]) -> pa.ChunkedArray | None:
    found = None
    for test in tests:
        known = pc.fill_null(test, False)
        found = known if found is None else pc.or_(found, known)
    return found


def _narrower(expected: pa.Table, found: pa.Table) -> Iterator[pa.ChunkedArray]:
    """Yield for each type of bounds which records exclude values that there are."""
    for side, excludes in (("min", pc.greater), ("max", pc.less)):
        true = pc.is_valid(expected.column(side))
        yield pc.and_(true, pc.is_null(found.column(side)))
        for wrapper in BOUND.names:
            if wrapper != "BytesWrapper":  # a decimal's bytes have another order
                mine, theirs = (
                    pc.struct_field(rows.column(side), wrapper) for rows in (expected, found)
                )
                yield excludes(theirs, mine)
