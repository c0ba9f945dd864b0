"""
Java's HiveSyncTool and ours make the same entries, and either engine's Spark reads and writes by them.

Both sync the same tables into one real metastore. A session of Spark with Hudi's bundle and one of the
newest Spark with hoodoo have it as their session catalog. ``java_entries.json`` of the integration tests
has Java's entries; RECORD_CATALOG=1 writes it again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from tests.integration.sync.hive_entries import comparable, entries
from tests.integration.sync.synced_tables import SYNCS, TABLES, H, make_tables
from tests.interop.java import ORACLE, WORK, set_up
from tests.servers.hivemetastore import HiveMetastore

pytestmark = pytest.mark.jvm

GOLDEN = Path(__file__).parents[1] / "integration" / "sync" / "java_entries.json"
VERSION = "1.2.0"


class Sql:
    """A session of `catalog_oracle.py`."""

    def __init__(self, python: Path | str, folder: Path, job: dict[str, Any]) -> None:
        path = folder / f"{'java' if 'jar' in job else 'ours'}.json"
        path.write_text(json.dumps(job), "utf-8")
        ours = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "PYTHONPATH"}
        env = {name: value for name, value in os.environ.items() if name not in ours}
        if "jar" not in job:
            env |= {"PYTHONPATH": str(Path(hoodoo.__file__).parents[1])}
        self._log = path.with_suffix(".log").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [str(python), str(ORACLE.with_name("catalog_oracle.py")), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**env, "PYSPARK_PYTHON": str(python)},
        )

    def ask(self, *texts: str) -> list[list[list[str]]]:
        """The rows of each statement; the first error fails the test."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(texts) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            pytest.fail(self._log.read()[-3000:])
        answers = json.loads(line)
        for text, found in zip(texts, answers, strict=True):
            assert isinstance(found, list), f"{text}: {found}"
        return answers

    def close(self) -> None:
        """End the session."""
        self._process.communicate(timeout=60)
        self._log.close()


@pytest.fixture(scope="module")
def synced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HiveMetastore, Path]]:
    """A metastore with our entries of the tables in a folder."""
    folder = tmp_path_factory.mktemp("synced")
    make_tables(folder)
    with HiveMetastore(tmp_path_factory.mktemp("metastore") / "derby") as server:
        for database, (names, options) in SYNCS.items():
            for name in names:
                ours = {**options, f"{H}metastore.uris": server.uri, f"{H}database": database}
                with hoodoo.open_table(folder / name, properties=ours) as table:
                    table.sync()
        yield server, folder


@pytest.fixture(scope="module")
def java(synced: tuple[HiveMetastore, Path]) -> Iterator[Sql]:
    """Spark with Hudi's bundle, after Hudi's own sync of the tables."""
    server, folder = synced
    python = set_up(VERSION)
    syncs = []
    for database, (names, options) in SYNCS.items():
        for name in names:
            keys = TABLES.get(name, {}).get("partition_by", [])
            fields = keys if isinstance(keys, str) else ",".join(keys)
            own = {f"{H}database": f"java_{database}", f"{H}table": name}
            own |= {f"{H}metastore.uris": server.uri}
            if fields:
                own |= {f"{H}partition_fields": fields}
                own |= {"hoodie.datasource.write.partitionpath.field": fields}
            if name == "hive":
                own |= {"hoodie.datasource.write.hive_style_partitioning": "true"}
            syncs.append((str(folder / name), {**own, **options}))
    jar = WORK / "jars" / f"hudi-spark3.5-bundle_2.12-{VERSION}.jar"
    place = {"uri": server.uri, "folder": str(folder / "java")}
    running = Sql(python, folder, {"jar": str(jar), "syncs": syncs, **place})
    assert running.ask(f"create database sql location 'file:{folder}/sql'") == [[]]
    yield running
    running.close()


@pytest.fixture(scope="module")
def ours(synced: tuple[HiveMetastore, Path]) -> Iterator[Sql]:
    """The newest Spark with hoodoo."""
    server, folder = synced
    running = Sql(sys.executable, folder, {"uri": server.uri, "folder": str(folder / "ours")})
    yield running
    running.close()


@pytest.mark.usefixtures("java")
def test_java_makes_the_same_entries(synced: tuple[HiveMetastore, Path]) -> None:
    server, folder = synced
    java = {one: comparable(entries(server, f"java_{one}"), str(folder)) for one in SYNCS}
    if os.environ.get("RECORD_CATALOG"):
        GOLDEN.write_text(json.dumps(java, indent=1, sort_keys=True) + "\n", "utf-8")
    assert {one: comparable(entries(server, one), str(folder)) for one in SYNCS} == java
    assert json.loads(GOLDEN.read_text("utf-8")) == java


@pytest.mark.usefixtures("java")
def test_a_sync_of_javas_entries_changes_nothing(synced: tuple[HiveMetastore, Path]) -> None:
    server, folder = synced
    java = {f"{H}metastore.uris": server.uri, f"{H}database": "java_plain"}
    for name in TABLES:
        with hoodoo.open_table(folder / name, properties=java) as table:
            assert not any(one.is_any for one in table.sync(full=True).entries), name
    parameters = entries(server, "java_plain")["cow"]["table"]["parameters"]
    assert parameters["hudi_writer_version"] == VERSION


def test_spark_with_hudis_bundle_reads_through_the_entries(java: Sql) -> None:
    names = (*TABLES, "mor_ro", "mor_rt")
    both = [["1", "eu", "1"], ["2", "us", "2"]]
    queries = [f"select id, region, hour from plain.{name} order by id" for name in names]
    assert java.ask(*queries) == [both] * len(names)
    noon = "2026-01-01 12:00:00"
    assert java.ask(
        "select id, hour from plain.cow where region = 'eu'",
        "select id, t, tl from chosen.cow where region = 'us'",
    ) == [[["1", "1"]], [["2", noon, noon]]]


@pytest.mark.slow  # the other way round is not
def test_hoodoo_finds_and_writes_a_table_that_java_made_by_sql(java: Sql, ours: Sql) -> None:
    java.ask(
        "create table sql.java (id bigint, name string, at bigint, day string) using hudi "
        "tblproperties (primaryKey = 'id', preCombineField = 'at', type = 'mor') partitioned by (day)",
        "insert into sql.java values (1, 'a', 1, 'mo'), (2, 'b', 1, 'tu'), (3, 'c', 1, 'tu')",
    )
    found = ours.ask(
        "select id, name, day from sql.java order by id",
        "insert into sql.java values (4, 'd', 1, 'we')",
        "merge into sql.java t using (select 1 as id, 'A' as name, 2 as at, 'mo' as day union all "
        "select 2, 'b', 2, 'tu') s on t.id = s.id when matched and s.id = 2 then delete "
        "when matched then update set name = s.name, at = s.at",
        "alter table sql.java add columns (extra int)",
        "update sql.java set extra = 7 where id = 3",
        "select id, name, extra, day from spark_catalog.sql.java order by id",
        "describe sql.java",
    )
    assert found[0] == [["1", "a", "mo"], ["2", "b", "tu"], ["3", "c", "tu"]]
    after = [["1", "A", "None", "mo"], ["3", "c", "7", "tu"], ["4", "d", "None", "we"]]
    assert found[5] == after
    assert ["extra", "int", "None"] in found[6]
    assert (
        java.ask("refresh table sql.java", "select id, name, extra, day from sql.java order by id")[
            1
        ]
        == after
    )


def test_java_finds_and_writes_a_table_that_hoodoo_made_by_sql(java: Sql, ours: Sql) -> None:
    ours.ask(
        "create table sql.ours (id bigint, name string, at bigint, day string) using hudi "
        "tblproperties (primaryKey = 'id', preCombineField = 'at') partitioned by (day)",
        "insert into sql.ours values (1, 'a', 1, 'mo'), (2, 'b', 1, 'tu')",
    )
    found = java.ask(
        "select id, name, day from sql.ours order by id",
        "update sql.ours set name = 'B', at = 2 where id = 2",
        "insert into sql.ours values (3, 'c', 1, 'we')",
    )
    assert found[0] == [["1", "a", "mo"], ["2", "b", "tu"]]
    assert ours.ask(
        "select id, name, day from sql.ours where day <> 'mo' order by id",
        "alter table sql.ours rename to sql.renamed",
        "select count(*) from sql.renamed",
        "drop table sql.renamed",
        "show tables in sql like 'ours|renamed'",
    ) == [[["2", "B", "tu"], ["3", "c", "we"]], [], [["3"]], [], []]


def test_hoodoo_writes_by_the_entries_of_hudis_sync(java: Sql, ours: Sql) -> None:
    entry = "java_plain.mor"
    ours.ask(f"update {entry}_rt set i = 9 where id = '2'")
    texts = [f"select id, i from {entry}{end} order by id" for end in ("", "_rt", "_ro")]
    newest, optimized = [["1", "1"], ["2", "9"]], [["1", "1"], ["2", "2"]]
    assert ours.ask(*texts) == [newest, newest, optimized]
    assert java.ask(*(f"refresh table {entry}{end}" for end in ("", "_rt", "_ro")), *texts)[3:] == [
        newest,
        newest,
        optimized,
    ]
