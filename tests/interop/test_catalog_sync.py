"""
Java's HiveSyncTool and ours make the same entries, and Spark with Hudi's bundle reads through them.

Both sync the same tables into one real metastore. ``java_entries.json`` of the integration tests
has Java's entries; RECORD_CATALOG=1 writes it again.
"""

from __future__ import annotations

import json
import os
import subprocess
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


@pytest.fixture(scope="module")
def synced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HiveMetastore, Path, Any]]:
    """A metastore with Java's entries and ours, and the answers of Spark about ours."""
    folder = tmp_path_factory.mktemp("synced")
    make_tables(folder)
    with HiveMetastore(tmp_path_factory.mktemp("metastore") / "derby") as server:
        for database, (names, options) in SYNCS.items():
            for name in names:
                ours = {**options, f"{H}metastore.uris": server.uri, f"{H}database": database}
                with hoodoo.open_table(folder / name, properties=ours) as table:
                    table.sync()
        yield server, folder, ask_java(server, folder)


def queries() -> list[str]:
    entries = [f"plain.{name}" for name in (*TABLES, "mor_ro", "mor_rt")]
    return [
        *(f"select id, region, hour from {entry} order by id" for entry in entries),
        "select id, hour from plain.cow where region = 'eu'",
        "select id, t, tl from chosen.cow where region = 'us'",
    ]


def ask_java(server: HiveMetastore, folder: Path) -> Any:
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
    job = folder / "job.json"
    document = {
        "jar": str(WORK / "jars" / f"hudi-spark3.5-bundle_2.12-{VERSION}.jar"),
        "uri": server.uri,
        "folder": str(folder / "warehouse"),
        "syncs": syncs,
        "queries": queries(),
    }
    job.write_text(json.dumps(document), "utf-8")
    ours = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "PYTHONPATH"}
    done = subprocess.run(
        [str(python), str(ORACLE.with_name("catalog_oracle.py")), str(job)],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name not in ours},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])["rows"]


def test_java_makes_the_same_entries(synced: tuple[HiveMetastore, Path, Any]) -> None:
    server, folder, _ = synced
    java = {one: comparable(entries(server, f"java_{one}"), str(folder)) for one in SYNCS}
    if os.environ.get("RECORD_CATALOG"):
        GOLDEN.write_text(json.dumps(java, indent=1, sort_keys=True) + "\n", "utf-8")
    assert {one: comparable(entries(server, one), str(folder)) for one in SYNCS} == java
    assert json.loads(GOLDEN.read_text("utf-8")) == java


def test_a_sync_of_javas_entries_changes_nothing(synced: tuple[HiveMetastore, Path, Any]) -> None:
    server, folder, _ = synced
    java = {f"{H}metastore.uris": server.uri, f"{H}database": "java_plain"}
    for name in TABLES:
        with hoodoo.open_table(folder / name, properties=java) as table:
            assert not any(one.is_any for one in table.sync(full=True).entries), name
    parameters = entries(server, "java_plain")["cow"]["table"]["parameters"]
    assert parameters["hudi_writer_version"] == VERSION


def test_spark_with_hudis_bundle_reads_through_the_entries(
    synced: tuple[HiveMetastore, Path, Any],
) -> None:
    answers = dict(zip(queries(), synced[2], strict=True))
    both = [["1", "eu", "1"], ["2", "us", "2"]]
    for query, found in answers.items():
        if query.startswith("select id, region, hour"):
            assert found == both, query
    assert answers["select id, hour from plain.cow where region = 'eu'"] == [["1", "1"]]
    noon = "2026-01-01 12:00:00"
    assert answers["select id, t, tl from chosen.cow where region = 'us'"] == [["2", noon, noon]]
