"""
Leave out base files by their statistics in the metadata table, while Spark plans a query.

Spark asks the file index of a relation for files, with the filters of the query. The index here is
a Python object that Py4J makes known to Spark, as Spark itself does with ``foreachBatch``. It turns
filters into a condition on columns and asks for the files that may have a matching row. What it
cannot turn, and each failure, leaves all files in, because Spark filters the rows again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, or_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.metadata_table.listing import metadata_listing
from filegroups.reading.data_skipping import skip_slices
from filegroups.reading.scan import ScanPlan
from hoodoo.spark.schema import spark_schema_of
from timeline.context import TableContext
from timeline.ports.ports import EventSink
from timeline.snapshot import Snapshot

_COMPARISONS: Final = {
    "EqualTo": (eq, eq),
    "EqualNullSafe": (eq, eq),
    "GreaterThan": (gt, lt),
    "GreaterThanOrEqual": (ge, le),
    "LessThan": (lt, gt),
    "LessThanOrEqual": (le, ge),
}
_VALUES_MAX: Final = 200  # of a list; each is fetched from Spark by calls
_PLAIN_CHARACTER_MAX: Final = 0xD7FF  # the next ones are no characters
_PLAIN: Final = ("boolean", "tinyint", "smallint", "int", "bigint")
_TIMES: Final = ("timestamp", "timestamp_ntz")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSkipping:
    """
    Leaves out files by statistics.

    Args:
        schema: The columns of the table.
        matching: Returns the names of files that may have a row for which a condition is true; it
            takes the names of some files.
    """

    schema: pa.Schema
    matching: Callable[[pc.Expression, Sequence[str]], Collection[str]]

    def columns_in(self, fields: Sequence[Any]) -> dict[str, tuple[pa.DataType, str]]:
        """Return the types of those of Spark's fields that have the table's own type."""
        known = {each.name: each.dataType for each in spark_schema_of(self.schema).fields}
        return {
            each.name: (self.schema.field(each.name).type, each.dataType.simpleString())
            for each in fields
            if known.get(each.name) == each.dataType
        }


def skipping_of(context: TableContext, snapshot: Snapshot, plan: ScanPlan) -> FileSkipping | None:
    """
    Return what leaves out base files by the statistics in the metadata table; None without any.

    Args:
        context: The table. ``hoodie.metadata.enable`` may forbid the use of the metadata table.
        snapshot: The snapshot of the plan.
        plan: All slices to read.
    """
    listing = metadata_listing(context, snapshot, of_partitions=False, is_cheaper=True)
    if listing is None or not listing.has_statistics:
        return None
    # Rows of logs are read apart, so the statistics of base files alone count.
    slices = {
        one.base_file.name: replace(one, log_files=())
        for one in plan.slices
        if one.base_file is not None
    }

    def matching(condition: pc.Expression, names: Sequence[str]) -> set[str]:
        asked = replace(
            plan,
            slices=tuple(slices[name] for name in names),
            read=replace(plan.read, filter=condition),
        )
        kept = skip_slices(context, snapshot, asked, listing).slices
        return {one.base_file.name for one in kept if one.base_file is not None}

    return FileSkipping(schema=plan.file_schema, matching=matching)


class SkippingFileIndex:
    """
    The file index of a relation in Spark's interface.

    Args:
        whole: Spark's own index of all files.
        columns: The types of the columns that filters may name, as Arrow and as Spark's text.
        part_of: Return Spark's own index of the files that may match a condition; None for all.
        events: Hears of a failure (``spark.files_not_skipped``).
    """

    def __init__(
        self,
        whole: Any,
        columns: Mapping[str, tuple[pa.DataType, str]],
        part_of: Callable[[pc.Expression], Any],
        events: EventSink,
    ) -> None:
        self._whole = whole
        self._columns = columns
        self._part_of = part_of
        self._events = events
        self._name = f"hoodoo-{uuid.uuid4()}"
        # Spark asks more than once for a query, and on several threads.
        self._newest: tuple[pc.Expression | None, Any] = (None, whole)

    def listFiles(self, partition_filters: Any, data_filters: Any) -> Any:  # noqa: N802
        """Return the files of the partitions and statistics that the filters leave."""
        return self._chosen(data_filters).listFiles(partition_filters, data_filters)

    def _chosen(self, data_filters: Any) -> Any:
        try:
            condition = condition_of(data_filters, self._columns)
            if condition is None:
                return self._whole
            known, chosen = self._newest
            if known is None or not known.equals(condition):
                part = self._part_of(condition)
                chosen = self._whole if part is None else part
                self._newest = (condition, chosen)
            return chosen
        except Exception as error:  # noqa: BLE001 - the query needs no statistics
            self._events.emit("spark.files_not_skipped", why=str(error)[:200])
            return self._whole

    def rootPaths(self) -> Any:  # noqa: N802
        """Return the paths of all files."""
        return self._whole.rootPaths()

    def inputFiles(self) -> Any:  # noqa: N802
        """Return the paths of all files, as texts."""
        return self._whole.inputFiles()

    def refresh(self) -> None:
        """Forget what Spark looked up."""
        self._whole.refresh()

    def sizeInBytes(self) -> int:  # noqa: N802
        """Return the size of all files."""
        return int(self._whole.sizeInBytes())

    def partitionSchema(self) -> Any:  # noqa: N802
        """Return Spark's schema of the partition columns."""
        return self._whole.partitionSchema()

    def metadataOpsTimeNs(self) -> Any:  # noqa: N802
        """Return the time of listing."""
        return self._whole.metadataOpsTimeNs()

    def toString(self) -> str:  # noqa: N802
        """Return a name that no other index has."""
        return self._name

    def hashCode(self) -> int:  # noqa: N802
        """Return a Java hash."""
        return hash(self._name) & 0x7FFFFFFF

    def equals(self, other: Any) -> bool:
        """Return whether the other is this index."""
        return other is self or (other is not None and str(other) == self._name)

    class Java:
        """For Py4J."""

        implements = ("org.apache.spark.sql.execution.datasources.FileIndex",)


# ---- Filters of Spark as a condition on columns


def condition_of(
    filters: Any, columns: Mapping[str, tuple[pa.DataType, str]]
) -> pc.Expression | None:
    """
    Return a condition that is true for all rows that the filters leave; None if any row may be.

    Args:
        filters: A Scala sequence of Spark's expressions, all of which must hold.
        columns: As for ``SkippingFileIndex``.
    """
    found = [_condition(each, columns) for each in _items(filters)]
    known = [one for one in found if one is not None]
    return reduce(and_, known) if known else None


def _condition(one: Any, columns: Mapping[str, tuple[pa.DataType, str]]) -> pc.Expression | None:
    kind = one.getClass().getSimpleName()
    if kind in ("And", "Or"):
        sides = [_condition(side, columns) for side in (one.left(), one.right())]
        known = [side for side in sides if side is not None]
        if kind == "And":
            return reduce(and_, known) if known else None
        return reduce(or_, known) if len(known) == len(sides) else None
    if kind in _COMPARISONS:
        return _comparison(one, columns, *_COMPARISONS[kind])
    if kind == "In":
        return _among(one.value(), _items(one.list()), columns, _value)
    if kind == "InSet":  # of more than ten values
        return _among(one.child(), _items(one.hset().toSeq()), columns, _arrow_value)
    if kind == "StartsWith":
        return _prefix(one, columns)
    return None


def _comparison(
    one: Any,
    columns: Mapping[str, tuple[pa.DataType, str]],
    compare: Callable[[Any, Any], Any],
    exchanged: Callable[[Any, Any], Any],
) -> pc.Expression | None:
    left, right = one.left(), one.right()
    for column, value, function in ((left, right, compare), (right, left, exchanged)):
        name, scalar = _column(column, columns), None
        if name is not None:
            scalar = _value(value, *columns[name])
        if name is not None and scalar is not None:
            found: pc.Expression = function(pc.field(name), scalar)
            return found
    return None


def _among(
    column: Any,
    values: Sequence[Any],
    columns: Mapping[str, tuple[pa.DataType, str]],
    read: Callable[[Any, pa.DataType, str], pa.Scalar | None],
) -> pc.Expression | None:
    name = _column(column, columns)
    if name is None or not values:
        return None
    scalars = [read(each, *columns[name]) for each in values]
    known = [each for each in scalars if each is not None]
    if len(known) < len(scalars):
        return None
    return reduce(or_, [pc.field(name) == each for each in known])


def _prefix(one: Any, columns: Mapping[str, tuple[pa.DataType, str]]) -> pc.Expression | None:
    name = _column(one.left(), columns)
    found = None if name is None else _value(one.right(), *columns[name])
    if name is None or found is None or not found.as_py():
        return None
    text = found.as_py()
    last = ord(text[-1])
    is_least = pc.field(name) >= found
    if not last < _PLAIN_CHARACTER_MAX:
        return is_least
    return is_least & (pc.field(name) < pa.scalar(text[:-1] + chr(last + 1), found.type))


def _column(one: Any, columns: Mapping[str, tuple[pa.DataType, str]]) -> str | None:
    """Return the name of an expression that is a column of its type in the table."""
    if one.getClass().getSimpleName() != "AttributeReference":
        return None
    name = str(one.name())
    return name if columns.get(name, (None, ""))[1] == _type_of(one) else None


def _value(one: Any, arrow: pa.DataType, kind: str) -> pa.Scalar | None:
    """Return a literal of the column's type, as Arrow; None if it is another expression."""
    if one.getClass().getSimpleName() != "Literal" or _type_of(one) != kind:
        return None
    return _arrow_value(one.value(), arrow, kind)


def _arrow_value(value: Any, arrow: pa.DataType, kind: str) -> pa.Scalar | None:
    """Return a value as Spark stores it, as Arrow."""
    if value is None:
        return None
    if kind in _PLAIN:
        return pa.scalar(value, arrow)
    if kind == "string":
        return pa.scalar(value.toString(), arrow)
    if kind == "date":
        return pa.scalar(value, pa.int32()).cast(arrow)
    if kind in _TIMES:
        return pa.scalar(value, pa.timestamp("us", arrow.tz)).cast(arrow)
    if kind.startswith("decimal"):
        return pa.scalar(Decimal(value.toString()), arrow)
    return None


def _type_of(one: Any) -> str:
    return str(one.dataType().simpleString())


def _items(sequence: Any) -> list[Any]:
    """Return the items of a Scala sequence; none if it is too long to fetch them."""
    size = sequence.size()
    return [sequence.apply(number) for number in range(size)] if size <= _VALUES_MAX else []
