"""
hoodoo on Spark: upserts by the DataFrame writer and native reads by the reader.

    import hoodoo.spark
    hoodoo.spark.install(spark)
    df.write.format("hoodoo").options(**hudi_options).mode("append").save(path)
    spark.read.format("hoodoo").load(path)
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from timeline.errors import MissingExtraError

if importlib.util.find_spec("pyspark") is None:
    raise MissingExtraError(
        "hoodoo.spark needs PySpark and a Java 17: pip install 'hoodoo[spark]'", extra="spark"
    )

from hoodoo.spark.read import reads
from hoodoo.spark.session import install, last_result
from hoodoo.spark.table import SparkTable

__all__ = ["SparkTable", "install", "last_result", "reads", "table"]


def table(spark: Any, path: str, options: Mapping[str, object] | None = None) -> SparkTable:
    """
    Open a table whose writes run on the cluster.

    Raises:
        TableNotFoundError: There is no table at the path.
        SettingError: An option is wrong or contradicts the table.
    """
    return SparkTable(spark, path, options)
