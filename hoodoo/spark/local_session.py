"""A small Spark session on this machine, for examples: one core, a small heap, no web page."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from hoodoo.spark.session import install

__all__ = ["local_session"]


def local_session(application: str, *, cores: int = 1, heap_mb: int = 768) -> Any:
    """
    Start a session with hoodoo installed.

    Args:
        application: Its name.
        cores: Tasks at a time.
        heap_mb: Heap of its JVM, MiB.
    """
    settings = {
        "spark.driver.memory": f"{heap_mb}m",
        # A short job ends before the better compiler pays: measured, half the processor time.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "false",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(application)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return install(spark)
