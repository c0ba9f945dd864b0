"""
hoodoo on Spark: upserts by the DataFrame writer and native reads by the reader.

    import hoodoo.spark
    hoodoo.spark.install(spark)
    df.write.format("hoodoo").options(**hudi_options).mode("append").save(path)
    spark.read.format("hoodoo").load(path)

The package imports each name at its first use, so that a task's process imports the task's modules only.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from timeline.errors import MissingExtraError

if importlib.util.find_spec("pyspark") is None:
    raise MissingExtraError(
        "hoodoo.spark needs PySpark and a Java 17: pip install 'hoodoo[spark]'", extra="spark"
    )

if TYPE_CHECKING:
    from hoodoo.spark.formats import last_result
    from hoodoo.spark.read import reads
    from hoodoo.spark.session import install
    from hoodoo.spark.spark_table import SparkTable

__all__ = ["SparkTable", "install", "last_result", "reads", "table"]

_EXPORTS = {
    "SparkTable": "hoodoo.spark.spark_table:SparkTable",
    "install": "hoodoo.spark.session:install",
    "last_result": "hoodoo.spark.formats:last_result",
    "reads": "hoodoo.spark.read:reads",
}


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    found = globals()[name] = resolve_name(_EXPORTS[name])
    return found


def table(spark: Any, path: str, options: Mapping[str, object] | None = None) -> SparkTable:
    """
    Open a table whose writes run on the cluster.

    Args:
        spark: The session.
        path: The table's path, or its name in Spark's catalog.
        options: Values by Hudi's option keys.

    Raises:
        TableNotFoundError: There is no table at the path, or of the name.
        SettingError: An option is wrong or contradicts the table.
    """
    from hoodoo.spark.spark_table import SparkTable
    from hoodoo.spark.sql.names import find_table
    from hoodoo.spark.sql.statements import name_parts

    named = None if "/" in path else find_table(spark, name_parts(spark, path))
    if named is None:
        return SparkTable(spark, path, options)
    given = {**named.options, **(options or {})}
    return SparkTable(spark, named.path, given, declared=named.declared)
