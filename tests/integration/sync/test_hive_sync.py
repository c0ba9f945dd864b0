"""
Sync with a real Hive Metastore: entries and partitions as Java's own sync makes them.

``java_entries.json`` has the entries of Java's HiveSyncTool 1.2.0 for the same tables;
``tests/interop/test_catalog_sync.py`` compares it with Java again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import hoodoo
from hoodoo.sync.catalog import EntryChangedError
from hoodoo.sync.hive import HiveMetastore as HiveCatalog
from hoodoo.sync.settings import SyncSettings
from hoodoo.sync.table_entry import LAST_COMMIT, LAST_COMPLETION, SyncedUntil
from tests.acceptance.cli import run
from tests.integration.sync.hive_entries import client, comparable, entries, partitions
from tests.integration.sync.synced_tables import (
    SYNCS,
    H,
    make,
    make_tables,
    rows,
    write_at_once,
)
from tests.servers.hivemetastore import (
    HiveMetastore,
    lay_out_lock_tables,
    needs_mariadb_driver,
)
from tests.servers.mariadb import MariaDb, needs_mariadb
from timeline.errors import UnavailableError, UnsafeSetupError

pytestmark = pytest.mark.integration

JAVA = json.loads(Path(__file__).with_name("java_entries.json").read_text("utf-8"))
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    with HiveMetastore(tmp_path_factory.mktemp("metastore") / "derby") as server:
        yield server


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    make_tables(folder)
    return folder


@pytest.fixture
def database() -> str:
    return f"db{next(NUMBERS)}"


def options(server: HiveMetastore, database: str, **more: str) -> dict[str, str]:
    named = {f"{H}{key}": value for key, value in more.items()}
    return {
        f"{H}enable": "true",
        f"{H}metastore.uris": server.uri,
        f"{H}database": database,
        **named,
    }


@pytest.mark.parametrize("database", SYNCS)
def test_entries_are_those_of_javas_own_sync(
    metastore: HiveMetastore, tables: Path, database: str
) -> None:
    names, more = SYNCS[database]
    for name in names:
        with hoodoo.open_table(
            tables / name, properties={**options(metastore, database), **more}
        ) as table:
            table.sync()
            assert not any(one.is_any for one in table.sync().entries), (
                "a second one changes nothing"
            )
    assert comparable(entries(metastore, database), str(tables)) == JAVA[database]


def test_a_write_syncs_its_commit_and_its_partitions(
    metastore: HiveMetastore, tmp_path: Path, database: str
) -> None:
    with make(tmp_path, options(metastore, database)) as table:
        table.upsert(rows("eu"))
        assert set(partitions(metastore, database, "t")) == {("eu",)}
        result = table.upsert(rows("us", "jp"))
        found = entries(metastore, database)["t"]
        assert [one["values"] for one in found["partitions"]] == [["eu"], ["jp"], ["us"]]
        assert found["table"]["parameters"][LAST_COMMIT] == result.requested_time
        assert found["table"]["parameters"][LAST_COMPLETION] == result.completion_time


def test_dropped_partitions_leave_the_catalog_and_return(
    metastore: HiveMetastore, tmp_path: Path, database: str
) -> None:
    with make(tmp_path, options(metastore, database)) as table:
        table.upsert(rows("eu", "us"))
        table.delete_partitions(["eu"])
        assert set(partitions(metastore, database, "t")) == {("us",)}
        table.insert_overwrite_table(rows("jp"))
        assert set(partitions(metastore, database, "t")) == {("jp",)}
        table.upsert(rows("eu"))
        assert set(partitions(metastore, database, "t")) == {("eu",), ("jp",)}
        assert not any(one.is_any for one in table.sync(full=True).entries)


def test_a_new_column_reaches_the_entry_and_its_partitions(
    metastore: HiveMetastore, tmp_path: Path, database: str
) -> None:
    with make(tmp_path, options(metastore, database)) as table:
        table.upsert(rows("eu"))
        with client(metastore) as thrift:
            raw = thrift.get_table(database, "t")
            raw.parameters["owner_team"] = "data"
            raw.sd.cols[5].comment = "our key"
            thrift.alter_table(database, "t", raw)
        table.upsert([{"id": "us", "v": 1, "extra": "x", "region": "us"}])
    found = entries(metastore, database)["t"]
    names = [one["name"] for one in found["table"]["sd"]["cols"]]
    assert names[-3:] == ["id", "v", "extra"]
    for partition in found["partitions"]:
        assert [one["name"] for one in partition["sd"]["cols"]] == names
    assert '"extra"' in found["table"]["parameters"]["spark.sql.sources.schema.part.0"]
    assert found["table"]["parameters"]["owner_team"] == "data", "a user's property stays"
    assert found["table"]["sd"]["cols"][5]["comment"] == "our key"


def test_a_moved_table_moves_its_entry_and_partitions(
    metastore: HiveMetastore, tmp_path: Path, database: str
) -> None:
    properties = options(metastore, database)
    with make(tmp_path, properties) as table:
        table.upsert(rows("eu"))
    (tmp_path / "t").rename(tmp_path / "moved")
    with hoodoo.open_table(tmp_path / "moved", properties=properties) as table:
        [entry] = table.sync(full=True).entries
    assert (entry.properties_changed, entry.partitions_moved) == (True, 1)
    [place] = partitions(metastore, database, "t").values()
    assert place.removeprefix("file:") == f"{tmp_path}/moved/eu"


def test_all_partitions_are_compared_after_archiving(
    metastore: HiveMetastore, tmp_path: Path, database: str
) -> None:
    archiving = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    archiving |= {"hoodie.clean.commits.retained": "1"}
    with make(tmp_path, archiving) as table:
        table.upsert(rows("eu"))
        synced = {**archiving, **options(metastore, database)}
        with hoodoo.open_table(tmp_path / "t", properties=synced) as other:
            other.sync()
        for number in range(8):
            table.upsert(rows("us" if number == 0 else "jp", v=number))
        with hoodoo.open_table(tmp_path / "t", properties=synced) as other:
            assert len(other.history(archived=True)) > len(other.history()) + 4
            other.sync()
    assert set(partitions(metastore, database, "t")) == {("eu",), ("jp",), ("us",)}


def test_a_failed_sync_keeps_the_commit_and_names_the_next_step(
    metastore: HiveMetastore, tmp_path: Path, database: str
) -> None:
    away = options(metastore, database) | {f"{H}metastore.uris": "thrift://127.0.0.1:9"}
    with make(tmp_path, away) as table:
        with pytest.warns(UserWarning, match="the write is committed, but sync") as warned:
            result = table.upsert(rows("eu"))
        assert "hoodoo sync TABLE" in str(warned[0].message)
        assert result.rows_inserted == 1
        assert table.to_arrow().num_rows == 1
        with pytest.raises(UnavailableError, match="no metastore answers"):
            table.sync()
    with hoodoo.open_table(
        tmp_path / "t", properties=away | {f"{H}ignore_exceptions": "true"}
    ) as table:
        table.upsert(rows("us"))  # a warning would fail this test
    done = run("sync", tmp_path / "t", *conf(options(metastore, database)))
    assert done.exit_code == 0
    [entry] = done.document["entries"]
    assert (entry["created"], entry["partitions_added"]) == (True, 2)


def conf(properties: dict[str, str]) -> list[str]:
    return [
        word for key, value in properties.items() for word in ("--hoodie-conf", f"{key}={value}")
    ]


@pytest.fixture
def busy_metastore(tmp_path: Path) -> Iterator[HiveMetastore]:
    """A metastore over MariaDB: Derby has deadlocks if several clients drop partitions."""
    needs_mariadb()
    needs_mariadb_driver()
    with MariaDb(tmp_path / "mariadb") as server:
        lay_out_lock_tables(server)
        with HiveMetastore(tmp_path / "service", mariadb=server) as found:
            yield found


@pytest.mark.filterwarnings("ignore:the write is committed, but sync")  # a busy server is late
def test_many_writers_sync_at_once(
    busy_metastore: HiveMetastore, tmp_path: Path, database: str
) -> None:
    metastore = busy_metastore
    shared = options(metastore, database) | {
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        "hoodie.write.lock.provider": "filesystem",
    }
    left = write_at_once(tmp_path, shared)
    with hoodoo.open_table(tmp_path / "t", properties=shared) as table:
        table.sync()  # of the commits whose sync failed
    found = partitions(metastore, database, "t")
    assert set(found) == left
    with hoodoo.open_table(tmp_path / "t", properties=shared) as table:
        newest = max(one.requested_time for one in table.context.active().completed_writes)
        assert entries(metastore, database)["t"]["table"]["parameters"][LAST_COMMIT] == newest
        assert not any(one.is_any for one in table.sync(full=True).entries)


def test_a_sync_that_lost_a_race_does_not_move_the_last_commit_back(
    metastore: HiveMetastore, tmp_path: Path, database: str
) -> None:
    properties = options(metastore, database)
    with make(tmp_path, properties) as table:
        table.upsert(rows("eu"))
    catalog = HiveCatalog(SyncSettings.from_properties(properties), "me")
    seen = catalog.find(database, "t")
    assert seen is not None
    later = seen.entry.with_synced(SyncedUntil("29990101000000000", "29990101000000000"))
    catalog.replace(seen, later, cascade=False)
    with pytest.raises(EntryChangedError):
        catalog.replace(seen, seen.entry.with_synced(SyncedUntil("2998", "2998")), cascade=False)
    with hoodoo.open_table(tmp_path / "t", properties=properties) as table:
        table.upsert(rows("us"))
    found = catalog.find(database, "t")
    assert found is not None
    assert found.entry.synced == SyncedUntil("29990101000000000", "29990101000000000")
    assert set(partitions(metastore, database, "t")) == {("eu",), ("us",)}
    catalog.close()


def test_a_missing_database_is_refused_unless_it_may_be_created(
    metastore: HiveMetastore, tmp_path: Path, database: str
) -> None:
    properties = options(metastore, database, auto_create_database="false")
    with make(tmp_path, properties) as table:
        with pytest.warns(UserWarning, match="the database does not exist"):
            table.upsert(rows("eu"))
        with pytest.raises(UnsafeSetupError, match="auto_create_database"):
            table.sync()


def test_values_that_hive_escapes_are_found_again(
    metastore: HiveMetastore, tmp_path: Path, database: str
) -> None:
    odd = ["a b", "a:b", "50%", "x=y", "ä", "[1]"]
    properties = options(metastore, database) | {
        "hoodie.datasource.write.partitionpath.urlencode": "true"
    }
    with make(tmp_path, properties) as table:
        table.upsert(rows(*odd))
        assert set(partitions(metastore, database, "t")) == {(one,) for one in odd}
        table.upsert(rows(*odd, v=2))
        table.delete_partitions(["x%3Dy"])
        assert set(partitions(metastore, database, "t")) == {(one,) for one in odd if one != "x=y"}
