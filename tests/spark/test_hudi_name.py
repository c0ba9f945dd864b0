"""Jobs written for Hudi keep their format name, options and class names; only a bundle goes first."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

import hoodoo
from hoodoo.spark.formats import leave_out_bundle, serves
from hoodoo.spark.session import _register
from tests.spark.conftest import COLUMNS, OPTIONS
from tests.spark.streams import run_to_its_end
from timeline.errors import SettingError

pytestmark = pytest.mark.spark

ROWS = [(1, "mon", 10, 1.0), (2, "mon", 10, 2.0)]
NAMES = ("hudi", "org.apache.hudi")
CATALOG = "spark.sql.catalog.spark_catalog"
# As jobs for Hudi say it, with old spellings and Java's class names among them.
FURTHER = {
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.datasource.write.table.type": "COPY_ON_WRITE",
    "hoodie.datasource.write.table.name": "orders",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.SimpleKeyGenerator",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.lock.provider": ("org.apache.hudi.client.transaction.lock.InProcessLockProvider"),
}


def save(spark: Any, path: str, name: str, rows: list[Any]) -> None:
    df = spark.createDataFrame(rows, COLUMNS)
    df.write.format(name).options(**OPTIONS).options(**FURTHER).mode("append").save(path)


def keys(df: Any) -> list[int]:
    return sorted(row[0] for row in df.select("id").collect())


def by_both(*, soon: str) -> list[Any]:
    """Both names; every run of the tests asks one of them only, since each answer takes long."""
    later = pytest.mark.slow
    return [name if name == soon else pytest.param(name, marks=later) for name in NAMES]


@pytest.mark.parametrize("name", by_both(soon="hudi"))
def test_a_hudi_job_writes_and_reads_unchanged(spark: Any, path: str, name: str) -> None:
    save(spark, path, name, ROWS)
    save(spark, path, name.upper(), [(2, "mon", 11, 22.0), (3, "tue", 11, 3.0)])
    assert keys(spark.read.format(name).load(path)) == [1, 2, 3]
    with hoodoo.open_table(path) as table:
        assert len(table.timeline) == 2
    view = f"CREATE OR REPLACE TEMPORARY VIEW seen USING {name} OPTIONS (path '{path}')"
    if hasattr(spark, "dataSource"):
        spark.sql(view)
        assert spark.sql("SELECT sum(amount) FROM seen").first()[0] == 26.0


@pytest.mark.parametrize("name", by_both(soon="org.apache.hudi"))
def test_streams_are_served_by_hudis_name_too(
    spark: Any, path: str, tmp_path: Path, name: str
) -> None:
    if not hasattr(spark, "dataSource"):
        pytest.skip("this Spark has no Python data sources")
    source, copy = str(tmp_path / "source"), str(tmp_path / "copy")
    save(spark, source, "hudi", ROWS)

    def follow() -> Any:
        return (
            spark.readStream.format(name)
            .load(source)
            .select("id", "day", "at", "amount")
            .writeStream.format(name)
            .options(**OPTIONS)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(copy)
        )

    run_to_its_end(follow)
    assert keys(spark.read.format(name).load(copy)) == [1, 2]


def test_streams_read_and_write_tables_by_name(spark: Any, sql: Any, tmp_path: Path) -> None:
    if not hasattr(spark, "dataSource"):
        pytest.skip("this Spark has no Python data sources")
    save(spark, str(tmp_path / "source"), "hudi", ROWS)
    sql(f"CREATE TABLE source USING hudi LOCATION '{tmp_path}/source'")

    def follow() -> Any:
        rows = spark.readStream.table("source").select("id", "day", "at", "amount")
        return (
            rows.writeStream.format("hudi")
            .options(**OPTIONS)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .toTable("copies")
        )

    run_to_its_end(follow)
    assert keys(spark.table("copies")) == [1, 2]
    assert sql("SHOW PARTITIONS copies")


def with_bundle(found: object, **conf: str) -> Any:
    """A session that only knows the classes on its class path, and properties."""
    known = {key.replace("__", "."): value for key, value in conf.items()}
    asked: list[str] = []

    def resource(name: str) -> object:
        asked.append(name)
        return found

    loader = SimpleNamespace(getResource=resource)
    utils = SimpleNamespace(getContextOrSparkClassLoader=lambda: loader)
    jvm = SimpleNamespace(**{"org.apache.spark.util.Utils": utils})
    return SimpleNamespace(_jvm=jvm, asked=asked, conf=SimpleNamespace(get=known.get))


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_on_the_class_path_keeps_its_names_and_is_reported_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = with_bundle("jar:file:hudi-bundle.jar!/org/apache/hudi/DefaultSource.class")
    with caplog.at_level(logging.INFO, logger="hoodoo"):
        assert not serves(session, name)
        assert not serves(session, name)
        assert serves(session, "hoodoo")
    assert session.asked == ["org/apache/hudi/DefaultSource.class"]
    [record] = caplog.records
    assert record.getMessage() == ('spark.hudi_left_to_bundle formats="hudi, org.apache.hudi"')


def test_an_option_gives_the_names_of_a_bundle_to_hoodoo() -> None:
    jar = "jar:file:hudi-bundle.jar!/org/apache/hudi/DefaultSource.class"
    session = with_bundle(jar, spark__hoodoo__spark__serves__hudi="true")
    assert all(serves(session, name) for name in NAMES)


def test_a_session_with_hudis_catalog_gets_sparks_own(spark: Any) -> None:
    session = spark.newSession()
    session.conf.set(CATALOG, "org.apache.spark.sql.hudi.catalog.HoodieCatalog")
    with pytest.raises(Py4JJavaError, match=r"(?i)catalog"):
        session.sql("SHOW DATABASES")
    hoodoo.spark.install(session)
    assert session.sql("SHOW DATABASES").count()
    session.conf.set(CATALOG, "org.elsewhere.Catalog")
    hoodoo.spark.install(session)
    assert session.conf.get(CATALOG) == "org.elsewhere.Catalog"


def test_a_registrator_of_a_missing_bundle_is_refused() -> None:
    session = with_bundle(None)
    setting = {"spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar"}
    session.sparkContext = SimpleNamespace(getConf=lambda: setting)
    with pytest.raises(SettingError, match=r"remove it .*HoodieSparkKryoRegistrar") as refused:
        leave_out_bundle(session)
    assert refused.value.kind == "bundle_setting"
    leave_out_bundle(with_bundle("jar:file:hudi-bundle.jar!/org/apache/hudi/DefaultSource.class"))


def test_without_a_bundle_hudis_names_are_served_without_a_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="hoodoo"):
        assert all(serves(with_bundle(None), name) for name in NAMES)
        assert not serves(with_bundle(None), "parquet")
    assert caplog.records == []


def test_a_jar_that_prevents_the_registration_is_reported_and_saves_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from pyspark.errors import AnalysisException

    def register(source: Any) -> None:
        raise AnalysisException("a bundle for another Spark")

    session = with_bundle("jar:file:hudi-bundle.jar!/org/apache/hudi/DefaultSource.class")
    session.dataSource = SimpleNamespace(register=register)
    with caplog.at_level(logging.WARNING, logger="hoodoo"):
        _register(session)
    [record] = caplog.records
    assert record.getMessage().startswith("spark.register_failed")
    assert "a bundle for another Spark" in record.getMessage()
