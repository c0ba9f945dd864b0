"""
Loading a table as a DataFrame: the files are chosen here and read by Spark itself.

A copy-on-write slice is one Parquet file, so Spark's own reader gets exactly the visible
files by path: column pruning, filter push-down and vectorised decoding come with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from hoodoo.spark.options import layers_for
from hoodoo.spark.schemas import spark_schema_of
from hoodoo.table import Table
from timeline.incremental import changed_since, start_of_range
from timeline.model.schema import META_COLUMNS
from timeline.model.times import parse_time_travel
from timeline.options import PropertySet
from timeline.read import ScanPlan, plan_scan
from timeline.settings import QueryType, ReadSettings

__all__ = ["FileList", "load_dataframe", "plan_load"]

_COMMIT_TIME = META_COLUMNS[0]
_PATTERN = re.compile(r"[\[\]{}*?\\]")


class FileList:
    """What a load reads: absolute files, their schema, and which commit times count."""

    def __init__(
        self, paths: Sequence[str], schema: pa.Schema, times: Sequence[str] | None
    ) -> None:
        self.paths = tuple(paths)
        self.schema = schema
        self.times = None if times is None else tuple(times)


def load_dataframe(
    spark: Any, path: str, options: Mapping[str, object], *, schema: Any = None
) -> Any:
    """
    Load a table: newest state, a time of the past, or the changes of a range.

    Args:
        spark: The session.
        path: The table's address.
        options: ``as.of.instant``, ``hoodie.datasource.query.type`` and its range.
        schema: A Spark schema (or its text) to read instead of the table's, for fewer columns.

    Returns:
        A DataFrame with the five meta columns first, as Hudi gives it.

    Raises:
        TableNotFoundError, SettingError, InstantNotFoundError, UnsupportedTableError: See
            ``hoodoo.open_table``, ``as_of`` and ``changes``.
    """
    layers = layers_for(spark, options)
    with Table.open(path, layers) as table:
        found = plan_load(table, table.properties)
    shape = schema if schema is not None else spark_schema_of(found.schema)
    if not found.paths:
        return spark.createDataFrame([], shape)
    files = [_no_pattern(_as_spelled(p, path)) for p in found.paths]
    df = spark.read.format("parquet").schema(shape).load(files)
    if found.times is not None:
        df = df.where(F.col(_COMMIT_TIME).isin(list(found.times)))
    return df


def _as_spelled(file: str, table: str) -> str:
    """A file by the table's own scheme: which of S3's names a cluster knows, its users know."""
    scheme, _, rest = file.partition("://")
    said = table.partition("://")[0].lower()
    return f"{said}://{rest}" if scheme == "s3" and said in ("s3a", "s3n") else file


def _no_pattern(path: str) -> str:
    """Spark takes these characters of a path for a pattern unless they are escaped."""
    return _PATTERN.sub(r"\\\g<0>", path)


def plan_load(table: Table, properties: PropertySet) -> FileList:
    """Choose the files of a load by the read options. Errors: as ``load_dataframe``."""
    settings = ReadSettings.from_properties(properties)
    core = table.core
    if settings.query_type is QueryType.INCREMENTAL:
        return _changed(table, settings)
    snapshot = core.as_of(settings.as_of) if settings.as_of is not None else core.pin()
    return _listed(table, snapshot.plan(with_hoodie_columns=True), None)


def _changed(table: Table, settings: ReadSettings) -> FileList:
    core = table.core
    begin = start_of_range(settings.begin_time or "earliest")
    start = begin if begin.strip("0") == "" else parse_time_travel(begin)
    end = parse_time_travel(settings.end_time) if settings.end_time is not None else None
    changed = changed_since(core.context, start, end)
    plan = plan_scan(
        core.context,
        changed.snapshot,
        changed.slices,
        filter=changed.condition,
        with_hoodie_columns=True,
        base_filter=changed.base_condition,
        visible=changed.visible,
    )
    return _listed(table, plan, sorted(changed.instants))


def _listed(table: Table, plan: ScanPlan, times: Sequence[str] | None) -> FileList:
    locate = table.core.context.world.storage.locate
    return FileList([locate(base.path) for base in plan.files], plan.file_schema, times)
