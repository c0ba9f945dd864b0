"""A sync compares what commits changed, and starts again if another sync was faster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.sync.service import CatalogSyncService, SilentCatalogs
from hoodoo.sync.settings import SyncSettings
from hoodoo.sync.sync import SyncResult, changed_partitions, sync_table
from hoodoo.sync.table_entry import NEVER, SyncedUntil
from tests.unit.hoodoo.sync.memory_catalog import MemoryCatalog
from timeline.errors import MissingExtraError, UnavailableError, UnsupportedTableError

SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64()), ("region", pa.string())])
H = "hoodie.datasource.hive_sync."


@pytest.fixture
def table(tmp_path: Path) -> Iterator[hoodoo.Table]:
    with hoodoo.create_table(
        tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="region"
    ) as made:
        yield made


@pytest.fixture
def catalog() -> MemoryCatalog:
    return MemoryCatalog()


def rows(*regions: str, v: int = 1) -> list[dict[str, object]]:
    return [{"id": region, "v": v, "region": region} for region in regions]


def sync(
    table: hoodoo.Table, catalog: MemoryCatalog, *, full: bool = False, **options: str
) -> SyncResult:
    settings = SyncSettings.from_properties(
        {key.replace("__", "."): value for key, value in options.items()}
    )
    done = sync_table(table.context, settings, full=full, catalog_of=lambda *_: catalog)
    assert done is not None
    return done


def test_only_partitions_of_later_commits_are_compared(
    table: hoodoo.Table, catalog: MemoryCatalog
) -> None:
    table.upsert(rows("eu", "us"))
    sync(table, catalog)
    table.upsert(rows("jp"))
    table.delete_partitions(["eu"])
    sync(table, catalog)
    sync(table, catalog)
    assert catalog.asked == [None, [("eu",), ("jp",)]], "the third has nothing to compare"
    assert set(catalog.registered) == {("us",), ("jp",)}
    sync(table, catalog, full=True)
    sync(table, catalog, hoodie__meta__sync__incremental="false")
    assert catalog.asked[2:] == [None, None]


def test_a_faster_sync_of_another_process_loses_no_partition(
    table: hoodoo.Table, catalog: MemoryCatalog
) -> None:
    table.upsert(rows("eu"))
    sync(table, catalog)
    table.delete_partitions(["eu"])

    def other() -> None:
        table.upsert(rows("eu", "us"))
        sync(table, catalog)

    catalog.before_replace = other  # after this sync dropped the partition by its older snapshot
    sync(table, catalog)
    assert set(catalog.registered) == {("eu",), ("us",)}
    newest = table.context.active().completed_writes[-1]
    assert catalog.entries["t"].synced == SyncedUntil(
        newest.requested_time, newest.completion_time or ""
    )


def test_a_first_sync_beside_another_one_loses_no_partition(
    table: hoodoo.Table, catalog: MemoryCatalog
) -> None:
    table.upsert(rows("eu"))

    def other() -> None:
        table.upsert(rows("us"))
        sync(table, catalog)

    catalog.before_replace = other
    sync(table, catalog)
    assert set(catalog.registered) == {("eu",), ("us",)}


def test_endless_changes_by_others_are_reported(
    table: hoodoo.Table, catalog: MemoryCatalog
) -> None:
    table.upsert(rows("eu"))

    def other() -> None:
        held = catalog.entries["t"]
        catalog.entries["t"] = held.with_synced(SyncedUntil(f"9{next(numbers):016}", ""))
        catalog.before_replace = other

    numbers = iter(range(100))
    catalog.before_replace = other
    with pytest.raises(UnavailableError, match="during 10 attempts") as caught:
        sync(table, catalog)
    assert caught.value.kind == "sync_contended"


def test_an_entry_with_other_partition_columns_is_refused(
    table: hoodoo.Table, catalog: MemoryCatalog
) -> None:
    table.upsert(rows("eu"))
    none = "org.apache.hudi.hive.NonPartitionedExtractor"
    flat = {"hoodie__datasource__hive_sync__partition_extractor_class": none}
    [entry] = sync(table, catalog, **flat).entries
    assert entry.created
    with pytest.raises(UnsupportedTableError, match="has none; the table has region string"):
        sync(table, catalog)


def test_a_conditional_sync_moves_the_last_commit_with_a_change_only(
    table: hoodoo.Table, catalog: MemoryCatalog
) -> None:
    conditional = {"hoodie__datasource__meta_sync__condition__sync": "true"}
    first = table.upsert(rows("eu"))
    sync(table, catalog, **conditional)
    table.upsert(rows("eu", v=2))
    sync(table, catalog, **conditional)
    assert catalog.entries["t"].synced.requested_time == first.requested_time
    third = table.upsert(rows("us"))
    sync(table, catalog, **conditional)
    assert catalog.entries["t"].synced.requested_time == third.requested_time


def test_a_partition_without_rows_is_not_in_the_catalog(
    table: hoodoo.Table, catalog: MemoryCatalog
) -> None:
    table.upsert(rows("eu", "us"))
    table.insert_overwrite_table(rows("jp"))
    sync(table, catalog)
    assert set(catalog.registered) == {("jp",)}


def test_no_partition_metadata_registers_a_flat_entry(
    table: hoodoo.Table, catalog: MemoryCatalog
) -> None:
    table.upsert(rows("eu"))
    sync(table, catalog, hoodie__meta__sync__no_partition_metadata="true")
    assert catalog.registered == {}
    assert catalog.entries["t"].columns[-1].name == "region"


def test_changed_partitions_are_unknown_after_a_restore_and_without_a_last_commit(
    table: hoodoo.Table,
) -> None:
    first = table.upsert(rows("eu"))
    second = table.upsert(rows("us"))

    def since(done: hoodoo.CommitResult) -> SyncedUntil:
        return SyncedUntil(done.requested_time, done.completion_time)

    snapshot = table.context.snapshot()
    assert changed_partitions(snapshot, NEVER) is None
    assert changed_partitions(snapshot, SyncedUntil(first.requested_time)) is None
    assert changed_partitions(snapshot, since(first)) == {"us"}
    table.restore(first.requested_time)
    assert changed_partitions(table.context.snapshot(), since(second)) is None


def test_an_empty_table_is_not_synced(table: hoodoo.Table, catalog: MemoryCatalog) -> None:
    assert sync_table(table.context, SyncSettings(), catalog_of=lambda *_: catalog) is None


# ---- After a commit


def fail(*_: object, **__: object) -> SyncResult:
    raise UnavailableError("no answer")


def test_a_failure_is_a_warning_or_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hoodoo.sync.service.sync_table", fail)
    options = {f"{H}enable": "true", "hoodie.table.services.enabled": "false"}
    with (
        hoodoo.create_table(
            tmp_path / "t", schema=SCHEMA, record_key="id", properties=options
        ) as table,
        pytest.warns(UserWarning, match="hoodoo sync TABLE"),
    ):
        table.upsert(rows("eu"))
    caplog.clear()
    options[f"{H}ignore_exceptions"] = "true"
    with hoodoo.open_table(tmp_path / "t", properties=options) as table:
        table.upsert(rows("us"))
        assert table.to_arrow().num_rows == 2
    assert any("sync.failed" in one.message for one in caplog.records)


def test_commits_after_a_silent_catalog_do_not_wait_for_it_again(
    table: hoodoo.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def silent(*_: object, **__: object) -> SyncResult:
        asked.append(1)
        raise UnavailableError("no answer")

    answer = SyncResult(requested_time="", completion_time=None, entries=())
    monkeypatch.setattr("hoodoo.sync.service.sync_table", silent)
    monkeypatch.setattr("hoodoo.services.sync_table", lambda *_, **__: answer)
    options = {f"{H}enable": "true", f"{H}metastore.uris": "thrift://silent:1"}
    where = table.context.ports.storage.base_uri
    with hoodoo.open_table(where, properties=options) as mine:
        with pytest.warns(UserWarning, match="failed: no answer; the commit stays"):
            mine.upsert(rows("eu"))
        with pytest.warns(UserWarning, match=r"did not ask it; a commit asks again in [56]\d s"):
            mine.upsert(rows("us"))
        assert (len(asked), mine.to_arrow().num_rows) == (1, 2)
        other = {**options, f"{H}metastore.uris": "thrift://another:1"}
        with (
            hoodoo.open_table(where, properties=other) as theirs,
            pytest.warns(UserWarning, match="no answer"),
        ):
            theirs.upsert(rows("us"))
        assert len(asked) == 2, "another catalog is asked"
        mine.sync()  # it answers again
        with pytest.warns(UserWarning, match="failed: no answer"):
            mine.upsert(rows("jp"))
        assert len(asked) == 3


def test_the_pause_doubles_up_to_ten_minutes() -> None:
    silent, settings = SilentCatalogs(), SyncSettings(pause_ms=60_000)
    lengths = []
    for _ in range(6):
        silent.add(settings, 1_000)
        lengths.append(silent.left_ms(settings, 1_000))
    assert lengths == [60_000, 120_000, 240_000, 480_000, 600_000, 600_000]
    assert silent.left_ms(settings, 600_999) == 1
    assert silent.left_ms(settings, 601_000) == 0
    silent.forget(settings)
    assert silent.left_ms(settings, 1_000) == 0


@pytest.fixture(autouse=True)
def _no_silent_catalogs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoodoo.sync.service.SILENT._until_ms", {})


def test_a_write_whose_sync_lacks_its_packages_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise MissingExtraError("a Hive Metastore needs further packages")

    monkeypatch.setattr("hoodoo.sync.service.open_catalog", missing)
    options = {f"{H}enable": "true"}
    with hoodoo.create_table(
        tmp_path / "t", schema=SCHEMA, record_key="id", properties=options
    ) as table:
        with pytest.raises(MissingExtraError):
            table.upsert(rows("eu"))
        assert table.history() == []


def test_the_service_does_nothing_while_the_sync_is_off(table: hoodoo.Table) -> None:
    table.upsert(rows("eu"))
    assert CatalogSyncService(settings=SyncSettings()).run_once(table.context) is None


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="hoodoo")
