"""
Every change of a range as a DataFrame: Hudi's change data query, in Hudi's columns.

Each task reads what one instant did to one file group. As Hudi gives them, ``before`` and
``after`` are JSON texts; fields without a value are in them as null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from filegroups.files.cdc_reader import CdcRead, CdcUnit, read_cdc
from filegroups.merge.change_images import AFTER, BEFORE, CHANGE_TIME, OPERATION
from filegroups.reading.cdc import plan_cdc
from filegroups.reading.scan import assert_not_cleaned
from filegroups.settings.read_settings import ReadSettings
from hoodoo.spark.error_transport import TaskFailedError
from hoodoo.spark.options import storage_properties
from hoodoo.spark.schema import spark_schema_of
from hoodoo.spark.tasks import StorageAddress
from hoodoo.table import Table
from timeline.errors import HoodooError, InvalidInputError
from timeline.reader_lease import ReaderLease
from timeline.system import LoggingEvents

__all__ = ["ReadCdcUnits", "load_cdc", "refuse_cdc"]

_JSON = {"ignoreNullFields": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCdcUnits:
    """Read the units whose numbers arrive."""

    address: StorageAddress
    units: tuple[CdcUnit, ...]
    read: CdcRead
    shape: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run in a worker."""
        storage, events = self.address.open(), LoggingEvents()
        try:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    unit = self.units[number]
                    for changes in read_cdc(storage, events, unit, self.read):
                        yield changes.cast(self.shape)
        except HoodooError as error:
            raise TaskFailedError(error) from error


def load_cdc(
    spark: Any, table: Table, settings: ReadSettings, arrow_shape: Any
) -> tuple[Any, ReaderLease | None]:
    """
    The changes of a range: ``op``, ``ts_ms``, ``before``, ``after``, all texts.

    Args:
        spark: The session.
        table: Opened; not needed once this returns.
        settings: The range.
        arrow_shape: Gives the Arrow form of a Spark schema.

    Returns:
        The DataFrame, and what keeps its files from cleaning once somebody lets it beat; None
        where it needs none.

    Raises:
        InstantNotFoundError: A file of the range was cleaned (``changes_cleaned``).
        SnapshotExpiredError: A clean or a restore came while it was planned.
    """
    context = table.context
    start, end = settings.range_in(context.zone)
    plan = plan_cdc(context, start, end)
    lease = ReaderLease(context, plan.snapshot, since=start, until=end)
    assert_not_cleaned(context, plan.snapshot, lease)
    shape = spark_schema_of(plan.output_schema)
    storage = table.context.world.storage
    found = spark.createDataFrame([], shape)
    if plan.units:
        work = ReadCdcUnits(
            address=StorageAddress(
                base_uri=storage.base_uri,
                options=tuple(storage_properties(table.properties).items()),
            ),
            units=plan.units,
            read=plan.read,
            shape=arrow_shape(found.schema),
        )
        count = len(plan.units)
        found = spark.range(0, count, 1, count).mapInArrow(work, found.schema)
    images = [F.to_json(F.col(name), _JSON).alias(name) for name in (BEFORE, AFTER)]
    changes = found.select(OPERATION, CHANGE_TIME, *images)
    return changes, lease if plan.units else None


def refuse_cdc(settings: ReadSettings) -> None:
    """
    Refuse a change data query where only rows are read.

    Raises:
        InvalidInputError: It is one.
    """
    if settings.every_change:
        raise InvalidInputError(
            "this source reads rows; every change is read by spark.read.format('hudi') behind "
            "hoodoo.spark.install(spark), by table.changes(.., images=True) or hoodoo read "
            "--query-type cdc",
            kind="unsupported_query",
            query_type="cdc",
        )
