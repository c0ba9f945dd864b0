"""One small Spark session for all tests of this folder, and tables in a fresh place."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

OPTIONS = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "at",
}
WAIT_MS = 60_000
COLUMNS = "id long, day string, at long, amount double"
DRIVER_BYTES = "hoodoo.spark.driver.write.max.bytes"

Row = tuple[Any, ...]
Save = Callable[..., Any]
Sql = Callable[[str], list[Row]]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    import hoodoo.spark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # compilers took a third of the time
        "spark.sql.artifact.isolation.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "OFF",
        "spark.python.authenticate.socketTimeout": "120s",  # a busy machine needs more than 15
        f"spark.{DRIVER_BYTES}": "0",  # else the driver would write the rows of nearly all tests
    }
    session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    hoodoo.spark.install(session)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def releases_all_rows(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test leaves no rows cached in the session, also where it raises."""
    cached: Callable[[], Any] = dict
    if "spark" in request.fixturenames:
        cached = request.getfixturevalue("spark").sparkContext._jsc.getPersistentRDDs
    before = set(cached())
    yield
    assert set(cached()) <= before


@pytest.fixture
def driver_writes(spark: Any) -> Iterator[None]:
    """Let the driver write small DataFrames, as by default."""
    spark.conf.set(f"spark.{DRIVER_BYTES}", "67108864")
    yield
    spark.conf.set(f"spark.{DRIVER_BYTES}", "0")


@pytest.fixture(params=["driver", "cluster"])
def each_way(request: pytest.FixtureRequest) -> None:
    """Run a test twice: the driver writes its rows, or the tasks of the cluster do."""
    if request.param == "driver":
        request.getfixturevalue("driver_writes")


@pytest.fixture
def jobs(spark: Any) -> Callable[[], Any]:
    """Return Spark's information about its jobs, after it knows all that began and ended so far."""

    def heard() -> Any:
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(WAIT_MS)
        return spark.sparkContext.statusTracker()

    return heard


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "orders")


@pytest.fixture
def save(spark: Any, path: str) -> Save:
    """Save rows (id, day, at, amount) with the usual options; more by keyword."""

    def run(rows: list[Row], mode: str = "append", columns: str = COLUMNS, **more: str) -> Any:
        writer = spark.createDataFrame(rows, columns).write.format("hoodoo").options(**OPTIONS)
        for key, value in more.items():
            writer = writer.option(key.replace("__", "."), value)
        return writer.mode(mode).save(path)

    return run


@pytest.fixture
def rows(spark: Any, path: str) -> Callable[..., list[Row]]:
    """The table's rows as sorted tuples without meta columns, read by Spark."""

    def run(**options: str) -> list[Row]:
        reader = spark.read.format("hoodoo")
        for key, value in options.items():
            reader = reader.option(key.replace("__", "."), value)
        df = reader.load(path)
        own = [name for name in df.columns if not name.startswith("_hoodie_")]
        return sorted(tuple(row) for row in df.select(*own).collect())

    return run


@pytest.fixture
def sql(spark: Any, tmp_path: Any, driver_writes: None) -> Iterator[Sql]:
    """Run statements in a database of the test."""
    database = f"t{uuid.uuid4().hex[:8]}"
    spark.sql(f"CREATE DATABASE {database} LOCATION 'file:{tmp_path}/{database}'")
    spark.sql(f"USE {database}")
    yield lambda text: sorted(tuple(row) for row in spark.sql(text).collect())
    spark.sql("USE default")
    spark.sql(f"DROP DATABASE {database} CASCADE")
