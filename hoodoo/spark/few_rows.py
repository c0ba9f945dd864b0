"""
Few rows: one job brings a small DataFrame to the driver, which writes it by the local workload.

A write on the cluster takes several jobs, each of which costs more than writing few rows. The size
of the sources shows whether a DataFrame may be small. A limit of rows in each task then ends the
try early. Spark limits the bytes of all results (``spark.driver.maxResultSize``).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from filegroups.merge.merging import RELOCATED_COLUMN
from filegroups.writing.workload import LocalWorkload
from hoodoo.spark.error_transport import error_from_spark
from hoodoo.spark.java import java_class, java_type
from hoodoo.spark.schema import arrow_schema_of
from hoodoo.spark.sql.catalyst import dataframe_of
from timeline.ports.ports import Ports

#: A string with a collation differs from the plain type.
_PLAIN_TYPES = (
    *(BinaryType(), BooleanType(), StringType()),
    *(ByteType(), ShortType(), IntegerType(), LongType(), FloatType(), DoubleType()),
    *(DateType(), TimestampType(), TimestampNTZType()),
)
_INT_MAX = 2**31 - 1
_UNKNOWN_SHARE = 4  # sources of unknown size get this part of the rows
_RESULT_TOO_BIG = "spark.driver.maxResultSize"


def collect_few(df: Any, bytes_max: int) -> pa.Table | None:
    """
    Return the rows of a small DataFrame, in the order of its partitions, by at most one job.

    Args:
        df: The rows.
        bytes_max: Greatest size, estimated from the types of the columns; 0 for none.

    Returns:
        The rows; None if the sources, by Spark's statistics, or the rows are bigger.

    Raises:
        InvalidInputError: Arrow has no type for a column.
        HoodooError: A task raised it.
    """
    schema = arrow_schema_of(df.schema)
    known_bytes, is_known = source_bytes(df)
    if known_bytes > bytes_max or not bytes_max:
        return None
    row_bytes = max(1, df._jdf.schema().defaultSize())  # noqa: SLF001
    rows_max = bytes_max // row_bytes // (1 if is_known else _UNKNOWN_SHARE)
    batches = collect_batches(_limited_in_each_task(df, min(rows_max, _INT_MAX - 1) + 1))
    if batches is None or sum(batch.num_rows for batch in batches) > rows_max:
        return None
    rows = pa.Table.from_batches(batches) if batches else schema.empty_table()
    columns = [column.cast(each.type) for column, each in zip(rows.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def has_plain_types(schema: Any) -> bool:
    """Return whether rows of a Spark schema are the same after a way through Arrow and back."""
    return all(_is_plain(each.dataType) for each in schema.fields)


def _is_plain(kind: Any) -> bool:
    if isinstance(kind, StructType):
        return has_plain_types(kind)
    if isinstance(kind, ArrayType):
        return _is_plain(kind.elementType)
    if isinstance(kind, MapType):
        return _is_plain(kind.keyType) and _is_plain(kind.valueType)
    return isinstance(kind, DecimalType) or kind in _PLAIN_TYPES


def local_workload(ports: Ports, rows: pa.Table) -> LocalWorkload:
    """Return collected rows as a workload; a column of a statement's changes marks deletes."""
    if RELOCATED_COLUMN not in rows.schema.names:
        return LocalWorkload(ports, rows)
    deleted = rows.column(RELOCATED_COLUMN)
    return LocalWorkload(ports, rows.drop_columns([RELOCATED_COLUMN]), deleted)


def source_bytes(df: Any) -> tuple[int, bool]:
    """Return the bytes of the sources whose size Spark knows, and whether it knows all."""
    plan = df._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
    unknown = df._jdf.sparkSession().sessionState().conf().defaultSizeInBytes()  # noqa: SLF001
    leaves = plan.collectLeaves()
    sizes = [int(str(leaves.apply(n).stats().sizeInBytes())) for n in range(leaves.size())]
    known = [size for size in sizes if size < unknown]
    # The plan's size is less than that of its sources if it reads some of their columns, and more
    # after a join, for which Spark multiplies sizes.
    return min(int(str(plan.stats().sizeInBytes())), sum(known)), len(known) == len(sizes)


def _limited_in_each_task(df: Any, rows_max: int) -> Any:
    """
    Return the rows, without those after ``rows_max`` of a partition.

    Spark may apply the limit below other steps. As for SQL's ``LIMIT``, the result has all rows or
    at least ``rows_max``.
    """
    spark = df.sparkSession
    literal = java_class(spark, "org.apache.spark.sql.catalyst.expressions.Literal")
    limit = literal(rows_max, java_type(spark, IntegerType()))
    plan = df._jdf.queryExecution().analyzed()  # noqa: SLF001
    logical = java_class(spark, "org.apache.spark.sql.catalyst.plans.logical.LocalLimit")
    return dataframe_of(spark, logical(limit, plan))


def collect_batches(df: Any) -> list[pa.RecordBatch] | None:
    """Return the rows as Arrow, without Python workers; None if Spark's limit of bytes is met."""
    try:
        batches: list[pa.RecordBatch] = df._collect_as_arrow()  # noqa: SLF001
    except Exception as error:
        if _RESULT_TOO_BIG in str(error):
            return None
        carried = error_from_spark(error)
        if carried is None:
            raise
        raise carried from error
    return batches
