"""
Find timestamps that an earlier release of hoodoo divided by 1,000 when it copied rows.

Files of writers before Hudi 1.1 hold milliseconds with the label of microseconds. If all values
of a file were whole seconds, earlier releases divided them by 1,000 when they copied its rows
into a new base file. A timestamp of early 1970 may also be right, and nothing proves the copy.
So the search uses the origin of a row, and a rewrite happens only on the user's command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.parquet import read_footer
from filegroups.files.slice_reader import read_slice
from filegroups.reading.scan import plan_scan
from filegroups.schema.avro_schema import avro_to_arrow
from filegroups.schema.schema import COMMIT_TIME_COLUMN
from timeline.context import TableContext
from timeline.model.file_slice import FileSlice
from timeline.snapshot import Snapshot

MILLIS: Final = pa.timestamp("ms", "UTC")
_RIGHT_LABELS: Final = 9  # since this table version each release writes the right label
#: Milliseconds. A timestamp up to the year 2243, divided by 1,000, is below this.
_EARLY: Final = 100 * 86_400_000  # ``pa.scalar`` would import pandas


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulTimestamps:
    """Rows of a slice with doubtful timestamps, their meta columns included."""

    slice: FileSlice
    rows: pa.Table
    columns: Mapping[str, pa.ChunkedArray]  # masks by column name; each row is doubtful in one

    def multiplied(self) -> pa.Table:
        """Return the rows with their doubtful timestamps multiplied by 1,000."""
        rows = self.rows
        for name, doubtful in self.columns.items():
            column = rows.column(name)
            right = pc.cast(pc.multiply(pc.cast(column, pa.int64()), 1_000), MILLIS)
            made = pc.if_else(doubtful, right, column)
            rows = rows.set_column(rows.schema.get_field_index(name), name, made)
        return rows


def doubtful_timestamps(
    context: TableContext, snapshot: Snapshot, slices: Sequence[FileSlice]
) -> Iterator[DoubtfulTimestamps]:
    """
    Find the rows of slices with timestamps that may be a thousandth of the right ones.

    Such a row has a timestamp before April 1970, and hoodoo copied it from the file of another
    commit. The schema of that commit said microseconds, or the commit is archived.

    Yields:
        The doubtful rows of a batch, at least one.

    Outside: 1 footer for each base file, and the rows of each slice whose base file hoodoo made.
    """
    config = context.config
    if config.initial_version >= _RIGHT_LABELS or not config.populate_meta_fields:
        return
    wrote_micros = _commits_of_micros(context, snapshot)
    for one in slices:
        base = one.base_file
        if base is None:
            continue
        footer = read_footer(context.ports.storage, base.path)
        names = [each.name for each in footer.schema if each.type == MILLIS]
        if not names or not footer.created_by.startswith("parquet-cpp"):
            continue
        read = plan_scan(context, snapshot, [one], with_hoodie_columns=True).read
        for batch in read_slice(context.ports.storage, context.ports.events, one, read):
            rows = pa.Table.from_batches([batch])
            times = pc.cast(rows.column(COMMIT_TIME_COLUMN), pa.string())
            copied = pc.less(times, base.requested_time)
            columns = {}
            for name in set(names).intersection(rows.column_names):
                if rows.schema.field(name).type == MILLIS:
                    sources = [
                        time
                        for time in pc.unique(times.filter(copied)).to_pylist()
                        if wrote_micros(time, name)
                    ]
                    known = pc.is_in(times, value_set=pa.array(sources, pa.string()))
                    early = _early(rows.column(name))
                    columns[name] = pc.and_(pc.and_(copied, known), early)
            if not columns:
                continue
            any_of = reduce(pc.or_, columns.values())
            found = {name: doubtful.filter(any_of) for name, doubtful in columns.items()}
            if pc.any(any_of, min_count=0).as_py():
                yield DoubtfulTimestamps(slice=one, rows=rows.filter(any_of), columns=found)


def _early(column: pa.ChunkedArray) -> pa.ChunkedArray:
    numbers = pc.cast(column, pa.int64())
    early = pc.and_(pc.greater(numbers, 0), pc.less(numbers, _EARLY))
    return pc.fill_null(early, fill_value=False)


def _commits_of_micros(context: TableContext, snapshot: Snapshot) -> Callable[[str, str], bool]:
    """Return a test: did an instant's schema say microseconds? True for an archived instant."""
    writes = {one.requested_time: one for one in snapshot.active.completed_writes}

    @cache
    def schema_of(time: str) -> pa.Schema | None:
        write = writes.get(time)
        text = context.commits.read(write).schema_json if write is not None else None
        return avro_to_arrow(text) if text else None

    def wrote_micros(time: str, name: str) -> bool:
        schema = schema_of(time)
        if schema is None:
            return True
        place = schema.get_field_index(name)
        return place >= 0 and bool(schema.field(place).type == pa.timestamp("us", "UTC"))

    return wrote_micros
