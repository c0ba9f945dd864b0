"""Sync with Glue's Data Catalog, as moto serves it; the version check of updates is as in AWS."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

import hoodoo
from hoodoo.sync.catalog import EntryChangedError
from hoodoo.sync.glue import GlueCatalog
from hoodoo.sync.settings import SyncSettings, SyncTool
from hoodoo.sync.table_entry import LAST_COMMIT, SyncedUntil
from tests.integration.sync.synced_tables import H, make, rows, write_at_once
from tests.servers.moto_server import ACCESS_KEY, REGION, SECRET_KEY, MotoServer
from timeline.errors import UnavailableError, UnsafeSetupError

pytestmark = pytest.mark.integration

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with MotoServer(tmp_path_factory.mktemp("glue")) as server:
        yield server


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@pytest.fixture
def database() -> str:
    return f"db{next(NUMBERS)}"


def options(server: MotoServer, database: str, **more: str) -> dict[str, str]:
    return {
        "hoodie.datasource.meta.sync.enable": "true",
        "hoodie.meta.sync.client.tool.class": SyncTool.GLUE.value,
        "hoodie.aws.glue.region": REGION,
        "hoodie.aws.glue.endpoint": server.url,
        f"{H}database": database,
        **{f"{H}{key}": value for key, value in more.items()},
    }


def client(server: MotoServer) -> Any:
    return boto3.client("glue", region_name=REGION, endpoint_url=server.url)


def entry(server: MotoServer, database: str, name: str = "t") -> dict[str, Any]:
    return client(server).get_table(DatabaseName=database, Name=name)["Table"]


def partitions(server: MotoServer, database: str) -> dict[tuple[str, ...], dict[str, Any]]:
    found = client(server).get_partitions(DatabaseName=database, TableName="t")["Partitions"]
    return {tuple(one["Values"]): one["StorageDescriptor"] for one in found}


def test_an_entry_has_the_properties_of_hudis_own_sync(
    glue: MotoServer, tmp_path: Path, database: str
) -> None:
    with make(tmp_path, options(glue, database)) as table:
        result = table.upsert(rows("eu"))
    found = entry(glue, database)
    meta = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key"]
    meta += ["_hoodie_partition_path", "_hoodie_file_name"]
    columns = [(name, "string") for name in meta] + [("id", "string"), ("v", "bigint")]
    described = found["StorageDescriptor"]
    assert [(one["Name"], one["Type"]) for one in described.pop("Columns")] == columns
    assert described == {
        "Location": str(tmp_path / "t"),
        "InputFormat": "org.apache.hudi.hadoop.HoodieParquetInputFormat",
        "OutputFormat": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
        "SerdeInfo": {
            "SerializationLibrary": "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
            "Parameters": {
                "serialization.format": "1",
                "path": str(tmp_path / "t"),
                "hoodie.query.as.ro.table": "false",
            },
        },
    }
    assert [(one["Name"], one["Type"]) for one in found["PartitionKeys"]] == [("region", "string")]
    assert found["TableType"] == "EXTERNAL_TABLE"
    parameters = found["Parameters"]
    schema = parameters.pop("spark.sql.sources.schema.part.0")
    assert schema.startswith('{"type":"struct","fields":[{"name":"_hoodie_commit_time","type":"st')
    assert parameters == {
        "EXTERNAL": "TRUE",
        "hudi.metadata-listing-enabled": "FALSE",
        "spark.sql.sources.provider": "hudi",
        "spark.sql.sources.schema.numParts": "1",
        "spark.sql.sources.schema.numPartCols": "1",
        "spark.sql.sources.schema.partCol.0": "region",
        LAST_COMMIT: result.requested_time,
        "last_commit_completion_time_sync": result.completion_time,
    }


def test_the_region_comes_from_the_variable_that_java_reads(
    glue: MotoServer, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = options(glue, database)
    del properties["hoodie.aws.glue.region"]
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    with make(tmp_path, properties) as table:
        with pytest.raises(UnsafeSetupError, match="AWS_REGION"):
            table.upsert(rows("eu"))
        assert table.history() == [], "refused before it began"
        monkeypatch.setenv("AWS_REGION", REGION)
        table.upsert(rows("eu"))
    assert set(partitions(glue, database)) == {("eu",)}


def test_partitions_and_columns_follow_the_table(
    glue: MotoServer, tmp_path: Path, database: str
) -> None:
    with make(tmp_path, options(glue, database)) as table:
        table.upsert(rows(*(f"r{number:03}" for number in range(230))))
        assert len(partitions(glue, database)) == 230
        table.delete_partitions([f"r{number:03}" for number in range(60)])
        assert len(partitions(glue, database)) == 170
        table.upsert([{"id": "eu", "v": 1, "extra": "x", "region": "eu"}])
        found = partitions(glue, database)
        assert found["eu",]["Location"] == str(tmp_path / "t" / "eu")
        assert {one["Columns"][-1]["Name"] for one in found.values()} == {"extra"}
        assert entry(glue, database)["StorageDescriptor"]["Columns"][-1]["Name"] == "extra"
        assert not any(one.is_any for one in table.sync(full=True).entries)


def test_a_merge_on_read_table_has_three_entries_and_a_name_of_its_own(
    glue: MotoServer, tmp_path: Path, database: str
) -> None:
    own = {"hoodie.datasource.meta.sync.glue.table_name": "orders"}
    with make(tmp_path, options(glue, database) | own, table_type="MERGE_ON_READ") as table:
        table.upsert(rows("eu"))
    found = client(glue).get_tables(DatabaseName=database)["TableList"]
    kinds = {
        one["Name"]: one["StorageDescriptor"]["InputFormat"].rpartition(".")[2] for one in found
    }
    realtime = "HoodieParquetRealtimeInputFormat"
    expected = {"orders_ro": "HoodieParquetInputFormat", "orders_rt": realtime, "orders": realtime}
    assert kinds == expected


def test_a_failed_sync_keeps_the_commit(glue: MotoServer, tmp_path: Path, database: str) -> None:
    away = options(glue, database) | {"hoodie.aws.glue.endpoint": "http://127.0.0.1:9"}
    with make(tmp_path, away) as table:
        with pytest.warns(UserWarning, match="committed, but sync after it failed: Glue did not"):
            assert table.upsert(rows("eu")).rows_inserted == 1
        with pytest.raises(UnavailableError, match="Glue did not answer"):
            table.sync()
    with hoodoo.open_table(tmp_path / "t", properties=options(glue, database)) as table:
        [done] = table.sync().entries
    assert (done.created, done.partitions_added) == (True, 1)


def test_a_missing_database_is_refused_unless_it_may_be_created(
    glue: MotoServer, tmp_path: Path, database: str
) -> None:
    make(tmp_path, options(glue, database, auto_create_database="false", enable="false")).close()
    properties = options(glue, database, auto_create_database="false")
    properties |= {"hoodie.datasource.meta.sync.enable": "false"}
    with hoodoo.open_table(tmp_path / "t", properties=properties) as table:
        table.upsert(rows("eu"))
        with pytest.raises(UnsafeSetupError, match="auto_create_database"):
            table.sync()


def test_an_older_version_of_an_entry_is_not_written(
    glue: MotoServer, tmp_path: Path, database: str
) -> None:
    properties = options(glue, database)
    with make(tmp_path, properties) as table:
        table.upsert(rows("eu"))
    catalog = GlueCatalog(SyncSettings.from_properties(properties))
    seen = catalog.find(database, "t")
    assert seen is not None
    later = seen.entry.with_synced(SyncedUntil("29990101000000000", "29990101000000000"))
    catalog.replace(seen, later, cascade=False)
    with pytest.raises(EntryChangedError):
        catalog.replace(seen, seen.entry, cascade=False)
    catalog.close()
    with hoodoo.open_table(tmp_path / "t", properties=properties) as table:
        table.upsert(rows("us"))
    assert entry(glue, database)["Parameters"][LAST_COMMIT] == "29990101000000000"
    assert set(partitions(glue, database)) == {("eu",), ("us",)}


def test_many_writers_sync_at_once(glue: MotoServer, tmp_path: Path, database: str) -> None:
    shared = options(glue, database) | {
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        "hoodie.write.lock.provider": "filesystem",
    }
    left = write_at_once(tmp_path, shared)
    assert set(partitions(glue, database)) == left
    with hoodoo.open_table(tmp_path / "t", properties=shared) as table:
        newest = max(one.requested_time for one in table.context.active().completed_writes)
        assert entry(glue, database)["Parameters"][LAST_COMMIT] == newest
        assert not any(one.is_any for one in table.sync(full=True).entries)
