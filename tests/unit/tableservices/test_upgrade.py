"""Upgrade from version 8 to 9: the new properties, and the obstacles."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from filegroups.metadata_table.index_definitions import (
    IndexDefinition,
    read_index_definitions,
    write_index_definitions,
)
from filegroups.metadata_table.keys import IndexVersion
from filegroups.table import TableReader
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tableservices.upgrade import plan_upgrade, upgrade
from tests.interop import golden_tables
from tests.unit.filegroups.writing.test_metadata_update import check
from tests.unit.filegroups.writing.test_metadata_update import rows as indexed_rows
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    begun,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from tests.unit.timeline.metadata_tables import add_metadata_table
from timeline.context import TableContext
from timeline.errors import InvalidInputError, TableConfigConflictError, UnsupportedTableError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import METADATA_TABLE
from timeline.model.instant import Action
from timeline.properties.properties_file import load_config, update_properties
from timeline.properties.setting_enums import CommitLockMode
from timeline.storage.subfolder import SubfolderStorage
from timeline.writer_registry import register_process

MOR = TableType.MERGE_ON_READ
PARTITIONS = "hoodie.table.metadata.partitions"
ROWS = [{"id": "k", "p": "p", "ts": 5, "v": 1}]


def of_version_8(table_type: TableType = TableType.COPY_ON_WRITE, **options: object) -> TableReader:
    table = new_table(version=8, table_type=table_type, **options)  # type: ignore[arg-type]
    upsert(table, ROWS)
    return table


def properties_of(table: TableReader) -> dict[str, str]:
    return dict(load_config(table.context.ports.storage).raw)


def test_version_9_stores_the_same_merge_definition_in_its_own_properties() -> None:
    table = of_version_8()
    before = properties_of(table)
    planned = plan_upgrade(table.context)
    assert planned is not None
    assert planned.changes == {
        "hoodie.compaction.payload.class": None,
        "hoodie.record.merge.strategy.id": None,
        "hoodie.table.legacy.payload.class": (
            "org.apache.hudi.common.model.DefaultHoodieRecordPayload"
        ),
        "hoodie.table.ordering.fields": "ts",
        "hoodie.table.precombine.field": None,
        "hoodie.table.version": "9",
    }
    assert properties_of(table) == before
    assert upgrade(table.context) == planned
    after = properties_of(table)
    assert after["hoodie.table.initial.version"] == "8"
    assert {key: before[key] for key in before if key not in planned.changes} == {
        key: after[key] for key in after if key not in planned.changes
    }
    assert upgrade(table.context) is None
    now = opened(table)
    assert now.config.table_version == 9
    assert now.config.merge_mode is table.config.merge_mode
    upsert(now, [{"id": "k", "p": "p", "ts": 1, "v": 9}])  # late: the older row stays
    assert rows_of(now, "v") == [(1,)]
    upsert(now, [{"id": "k", "p": "p", "ts": 6, "v": 2}])
    assert rows_of(now, "v") == [(2,)]


def test_a_writer_that_opened_the_table_before_is_refused() -> None:
    table = of_version_8()
    stale = opened(table)
    upgrade(table.context)
    with pytest.raises(TableConfigConflictError, match="open the table again") as caught:
        upsert(stale, ROWS)
    assert caught.value.fields["report"]["rule"] == "C13"
    assert table.context.active().pending == ()


def test_a_pending_instant_prevents_an_upgrade() -> None:
    table = of_version_8()
    begun(opened(table), WriteOperation.UPSERT, ROWS)
    with pytest.raises(InvalidInputError, match="pending") as caught:
        upgrade(table.context)
    assert caught.value.kind == "instants_pending"
    assert properties_of(table)["hoodie.table.version"] == "8"


def test_a_live_writer_prevents_an_upgrade() -> None:
    table = of_version_8()
    other = opened(table)
    registration = register_process(other.context, {})
    with pytest.raises(InvalidInputError, match="is live"):
        upgrade(table.context)
    registration.unregister()
    assert upgrade(table.context) is not None


def test_logs_of_version_8_are_compacted_first() -> None:
    table = of_version_8(MOR)
    upsert(table, [{"id": "k", "p": "p", "ts": 6, "v": 2}])
    planned = plan_upgrade(table.context)
    assert planned is not None
    assert planned.file_groups_merged == 1
    assert properties_of(table)["hoodie.table.version"] == "8"
    assert upgrade(table.context) is not None
    now = opened(table)
    assert now.config.table_version == 9
    assert rows_of(now, "v") == [(2,)]
    assert all(not one.log_files for one in now.file_slices())


def test_a_compaction_that_an_upgrade_began_is_continued() -> None:
    table = of_version_8(MOR)
    upsert(table, [{"id": "k", "p": "p", "ts": 6, "v": 2}])
    storage = table.context.ports.storage

    class Dies(Behind):
        def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
            if path.endswith("compaction.inflight"):
                raise KeyboardInterrupt
            self.inner.create(path, data, durable=durable)

    with pytest.raises(KeyboardInterrupt):
        upgrade(opened(table, storage=Dies(storage)).context)
    assert [one.action for one in table.context.active().pending] == [Action.COMPACTION]
    upsert(table, [{"id": "k", "p": "p", "ts": 7, "v": 3}])
    assert upgrade(opened(table).context) is not None
    assert rows_of(opened(table), "v") == [(3,)]


def test_logs_written_after_the_compaction_prevent_an_upgrade() -> None:
    table = of_version_8(MOR)
    upsert(table, [{"id": "k", "p": "p", "ts": 6, "v": 2}])
    storage = table.context.ports.storage
    late = opened(table, limits=replace(BRISK, publish_lock=CommitLockMode.NONE))

    class Overtaken(Behind):
        def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
            self.inner.create(path, data, durable=durable)
            if path.endswith(".commit"):
                upsert(late, [{"id": "k", "p": "p", "ts": 7, "v": 3}])

    with pytest.raises(InvalidInputError, match="compact") as caught:
        upgrade(opened(table, storage=Overtaken(storage)).context)
    assert caught.value.kind == "logs_not_compacted"
    assert properties_of(table)["hoodie.table.version"] == "8"
    assert upgrade(opened(table).context) is not None
    assert rows_of(opened(table), "v") == [(3,)]


def test_keys_that_version_9_writes_differently_are_refused() -> None:
    table = of_version_8()
    storage = table.context.ports.storage
    update_properties(storage, {"hoodie.table.keygenerator.type": "COMPLEX"}, now="now")
    with pytest.raises(UnsupportedTableError, match="bare values"):
        upgrade(opened(table).context)


INDEXES = ("column_stats", "files", "partition_stats", "record_index", "secondary_index_v")


@pytest.mark.spec("MDT-15")
@pytest.mark.parametrize("table_type", list(TableType))
def test_the_metadata_table_of_version_8_is_upgraded_and_maintained(table_type: TableType) -> None:
    table = new_table(version=8, table_type=table_type)
    storage = table.context.ports.storage
    secondary = IndexDefinition(
        name="secondary_index_v", index_type="secondary_index", source_fields=("v",)
    )
    write_index_definitions(storage, [replace(secondary, has_version=False)])
    add_metadata_table(storage, *INDEXES)
    table = opened(table)
    for value in range(3):
        put(table, WriteOperation.UPSERT, indexed_rows(["k1", f"k{value}"], value))
    planned = plan_upgrade(table.context)
    assert planned is not None
    assert not planned.drops_metadata_table
    assert upgrade(table.context) is not None
    below = SubfolderStorage(storage, METADATA_TABLE)
    assert load_config(below).table_version == load_config(storage).table_version == 9
    [defined] = read_index_definitions(storage).values()
    assert defined.has_version
    assert defined.version is IndexVersion.V1
    table = opened(table)
    check(table)
    put(table, WriteOperation.UPSERT, indexed_rows(["k1", "k7"], 7))
    put(table, WriteOperation.DELETE, indexed_rows(["k0"], 8))
    check(opened(table))


@pytest.mark.spec("MDT-15")
def test_an_interrupted_upgrade_of_the_metadata_table_is_repeated() -> None:
    table = new_table(version=8)
    storage = table.context.ports.storage
    add_metadata_table(storage, *INDEXES[:-1])
    table = opened(table)
    put(table, WriteOperation.UPSERT, indexed_rows(["k1", "k2"], 1))

    class Broken(Behind):
        def delete(self, path: str) -> None:
            if path == ".hoodie/hoodie.properties":
                raise KeyboardInterrupt
            self.inner.delete(path)

    with pytest.raises(KeyboardInterrupt):
        upgrade(opened(table, storage=Broken(storage)).context)
    assert load_config(SubfolderStorage(storage, METADATA_TABLE)).table_version == 9
    assert len(rows_of(opened(table), "v")) == 2  # from the folders
    assert upgrade(opened(table).context) is not None
    check(opened(table))


# ---------------------------------------------------------------- version 6


@pytest.mark.spec("MDT-15")
def test_the_metadata_table_of_version_6_is_dropped_by_the_upgrade(tmp_path: Path) -> None:
    path = golden_tables.unpack("v6_cow_nonpart", tmp_path)
    with hoodoo.open_table(path) as table:
        storage = table.context.ports.storage
        update_properties(storage, {PARTITIONS: "files"}, now="now")
    before = shown(path)
    with hoodoo.open_table(path) as table:
        planned, done = plan_upgrade(table.context), upgrade(table.context)
        assert planned is not None
        assert done is not None
        assert planned.drops_metadata_table
        assert done.drops_metadata_table
        assert not load_config(storage).metadata_table_on
    assert shown(path) == before


def test_the_metadata_table_stays_where_an_upgrade_is_refused_for_another_reason(
    tmp_path: Path,
) -> None:
    path = golden_tables.unpack("v6_cow_nonpart", tmp_path)
    with hoodoo.open_table(path) as table:
        storage = table.context.ports.storage
        changes = {PARTITIONS: "files", "hoodie.table.keygenerator.type": "COMPLEX"}
        update_properties(storage, changes, now="now")
    with hoodoo.open_table(path) as table:
        with pytest.raises(UnsupportedTableError, match="bare values"):
            upgrade(table.context)
        assert load_config(storage).metadata_table_on


WITHOUT_LOGS = ("v6_cow_nonpart", "v6_cow_clean_archive", "v6_overwrite", "v6_cow_clustering_done")


def shown(path: Path) -> tuple[list[tuple[Any, ...]], list[tuple[str, str]]]:
    """Rows with their meta columns, and every instant with its action, archived ones too."""
    with hoodoo.open_table(path) as table:
        rows = table.current_state().to_arrow(with_hoodie_columns=True)
        texts = [[str(value) for value in column.to_pylist()] for column in rows.columns]
        instants = [(one.requested_time, one.action) for one in table.timeline]
    return sorted(zip(*texts, strict=True)), instants


@pytest.mark.parametrize("name", WITHOUT_LOGS)
def test_a_table_of_version_6_has_the_same_rows_in_version_9(name: str, tmp_path: Path) -> None:
    path = golden_tables.unpack(name, tmp_path)
    before = shown(path)
    with hoodoo.open_table(path) as table:
        planned = upgrade(table.context)
    assert planned is not None
    assert planned.from_version == 6
    assert shown(path) == before
    assert [file.name for file in (path / ".hoodie").iterdir() if file.is_file()] == [
        "hoodie.properties"
    ]
    with hoodoo.open_table(path) as table:
        config = table.config
        assert (config.table_version, config.initial_version) == (9, 6)
        assert "hoodie.table.keygenerator.class" not in config.raw
        for one in table.context.active().completed_writes:
            assert one.requested_time < (one.completion_time or "")
            assert not one.legacy
        row = table.to_arrow().slice(0, 1)
        table.upsert(row)
        assert len(table.to_arrow()) == len(before[0])
    found = verify_at(path, Layers(), history=True)
    assert found.ok, found.problems


def test_an_interrupted_upgrade_of_version_6_leaves_one_complete_table(tmp_path: Path) -> None:
    path = golden_tables.unpack("v6_overwrite", tmp_path)
    before = shown(path)

    class Cut(Behind):
        left = 0

        def _count(self) -> None:
            Cut.left -= 1
            if Cut.left < 0:
                raise KeyboardInterrupt

        def write(self, *given: Any, **how: Any) -> None:
            self._count()
            self.inner.write(*given, **how)

        def create(self, *given: Any, **how: Any) -> None:
            self._count()
            self.inner.create(*given, **how)

        def delete(self, *given: Any, **how: Any) -> None:
            self._count()
            self.inner.delete(*given, **how)

    for calls in range(0, 60, 3):
        Cut.left = calls
        with hoodoo.open_table(path) as table:
            ports = table.context.ports
            context = TableContext.of(
                replace(ports, storage=Cut(ports.storage)), load_config(ports.storage)
            )
            with suppress(KeyboardInterrupt):
                upgrade(context)
        assert shown(path) == before, calls
    with hoodoo.open_table(path) as table:
        assert table.config.table_version == 9


# ---------------------------------------------------------------- version 6 with logs

WITH_LOGS = "v6_mor_logs"
FILE_NAME = 4  # of the meta columns: the file of a row, which merging changes


def contents(path: Path) -> list[tuple[Any, ...]]:
    """Rows with their meta columns, but not their file names."""
    return sorted((*row[:FILE_NAME], *row[FILE_NAME + 1 :]) for row in shown(path)[0])


def logs_of(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("region=*/.*.log.*"))


def pending_in(path: Path) -> list[str]:
    return sorted(file.name for file in (path / ".hoodie").glob("*.compaction.*"))


def begin_to_merge(path: Path) -> str:
    """The state of an upgrade that died when its plan was on the timeline; returns its time."""

    class Cut(Behind):
        def write(self, *given: Any, **how: Any) -> None:
            self.inner.write(*given, **how)
            raise KeyboardInterrupt

    with hoodoo.open_table(path) as table, suppress(KeyboardInterrupt):
        ports = table.context.ports
        upgrade(
            TableContext.of(replace(ports, storage=Cut(ports.storage)), load_config(ports.storage))
        )
    [plan] = pending_in(path)
    return plan.partition(".")[0]


def test_logs_of_version_6_are_merged_before_the_upgrade(tmp_path: Path) -> None:
    path = golden_tables.unpack(WITH_LOGS, tmp_path)
    before, instants, logs = contents(path), shown(path)[1], logs_of(path)
    with hoodoo.open_table(path) as table:
        planned = upgrade(table.context)
        assert planned is not None
        assert planned.file_groups_merged == 2
    assert contents(path) == before
    assert logs_of(path) == logs, "older slices keep theirs"
    with hoodoo.open_table(path) as table:
        assert table.config.table_version == 9
        pinned = table.current_state()
        assert [one.log_files for one in pinned.view.latest_slices()] == [(), ()]
        [*older, merged] = [(one.requested_time, one.action) for one in table.timeline]
        assert (older, merged[1]) == (instants, "commit")
        done = table.context.active().completed_writes[-1]
        metadata = pinned.snapshot.commits.read(done)
        assert (metadata.operation_type, metadata.compacted) == ("COMPACT", True)
        assert sum(one.total_log_files_compacted for one in metadata.write_stats()) == 4
        names = {file.name for file in (path / ".hoodie/timeline").iterdir()}
        assert {f"{merged[0]}.compaction.requested", f"{merged[0]}.compaction.inflight"} <= names
        table.upsert(table.to_arrow().slice(0, 1))
        assert len(table.to_arrow()) == len(before)
    found = verify_at(path, Layers(), history=True)
    assert found.ok, found.problems
    assert list((path / ".hoodie/.temp").iterdir()) == []


def test_earlier_snapshots_of_merged_logs_are_read_as_java_read_them(tmp_path: Path) -> None:
    path = golden_tables.unpack(WITH_LOGS, tmp_path)
    with hoodoo.open_table(path) as table:
        upgrade(table.context)
    with hoodoo.open_table(path) as table:
        for time, rows in golden_tables.account(WITH_LOGS)["as_of"].items():
            ours = table.as_of(time).to_arrow(columns=["id", "ts", "val"]).to_pylist()
            read_rows = [{name: row[name] for name in ("id", "ts", "val")} for row in rows]
            assert sorted(ours, key=str) == sorted(read_rows, key=str), time


def test_a_write_whose_logs_have_another_time_is_not_restored_away(tmp_path: Path) -> None:
    """Its logs would stay, and count again once the instants before them are archived."""
    path = golden_tables.unpack(WITH_LOGS, tmp_path)
    first, second, *_ = sorted(golden_tables.account(WITH_LOGS)["as_of"])
    with hoodoo.open_table(path) as table:
        upgrade(table.context)
    with hoodoo.open_table(path) as table:
        before = len(table.to_arrow())
        for time in (first, second):
            with pytest.raises(InvalidInputError, match="version 6"):
                table.restore(time)
        newest, merge = [one.requested_time for one in table.timeline][-2:]
        table.upsert(table.to_arrow().slice(0, 1))
        table.restore(merge)
        table.rollback(merge)
        assert len(table.to_arrow()) == before
        with pytest.raises(InvalidInputError, match="version 6"):
            table.rollback(newest)


def test_planning_an_upgrade_lists_the_merges_and_merges_nothing(tmp_path: Path) -> None:
    path = golden_tables.unpack(WITH_LOGS, tmp_path)
    with hoodoo.open_table(path) as table:
        planned = plan_upgrade(table.context)
        assert planned is not None
        assert planned.file_groups_merged == 2
    assert pending_in(path) == []


def test_a_compaction_that_another_engine_planned_prevents_an_upgrade(tmp_path: Path) -> None:
    path = golden_tables.unpack("v6_mor_compaction_done", tmp_path)
    with hoodoo.open_table(path) as table, pytest.raises(InvalidInputError) as caught:
        upgrade(table.context)
    assert caught.value.kind == "instants_pending"


def test_columns_with_ids_are_refused_before_any_plan_is_made(tmp_path: Path) -> None:
    path = golden_tables.unpack(WITH_LOGS, tmp_path)
    newest = max((path / ".hoodie").glob("*.deltacommit"))
    document = json.loads(newest.read_text())
    document["extraMetadata"]["latest_schema"] = '{"version_id": 1, "type": "record", "fields": []}'
    newest.write_text(json.dumps(document))
    with hoodoo.open_table(path) as table, pytest.raises(UnsupportedTableError):
        upgrade(table.context)
    assert pending_in(path) == []


def test_a_log_written_on_top_of_a_started_merge_is_merged_too(tmp_path: Path) -> None:
    """Between two attempts the engine of the table may write; its log has the plan's time."""
    path = golden_tables.unpack(WITH_LOGS, tmp_path)
    planned = begin_to_merge(path)
    (path / f".hoodie/{planned}.compaction.inflight").touch()
    written = f"{int(planned) + 1}"
    [old] = path.glob("region=us/.*.log.2_*")
    base = old.name.split("_")[1].partition(".")[0]
    [instant] = {name for name in ("20261121102315779",) if name.encode() in old.read_bytes()}
    name = old.name.replace(base, planned).replace(".log.2", ".log.1")
    changed = old.read_bytes().replace(instant.encode(), written.encode())
    old.with_name(name).write_bytes(changed)
    for suffix in ("deltacommit.requested", "deltacommit.inflight", "deltacommit"):
        folder = path / ".hoodie"
        shutil.copy(folder / f"{instant}.{suffix}", folder / f"{written}.{suffix}")
    before = contents(path)
    assert before != contents(golden_tables.unpack(WITH_LOGS, tmp_path / "first"))
    with hoodoo.open_table(path) as table:
        upgrade(table.context)
    assert contents(path) == before
    assert name in logs_of(path)
    with hoodoo.open_table(path) as table:
        assert [one.log_files for one in table.current_state().view.latest_slices()] == [(), ()]
        merges = [one.requested_time for one in table.timeline if one.action == "commit"]
        assert merges[0] == planned
        assert len(merges) == 2


def test_a_started_merge_ends_although_its_file_groups_were_replaced(tmp_path: Path) -> None:
    path = golden_tables.unpack(WITH_LOGS, tmp_path)
    planned = begin_to_merge(path)
    groups = {
        folder.name: [file.name.partition("_")[0] for file in folder.glob("*.parquet")]
        for folder in path.glob("region=*")
    }
    gone = {"partitionToReplaceFileIds": groups, "operationType": "DELETE_PARTITION"}
    for suffix, text in {".requested": "", ".inflight": "", "": json.dumps(gone)}.items():
        (path / f".hoodie/{int(planned) + 1}.replacecommit{suffix}").write_text(text)
    assert contents(path) == []
    with hoodoo.open_table(path) as table:
        upgrade(table.context)
    with hoodoo.open_table(path) as table:
        assert table.context.active().pending == ()
        assert len(table.to_arrow()) == 0


def test_files_of_an_interrupted_upgrade_in_the_new_layout_do_not_count(tmp_path: Path) -> None:
    """The engine of the table may have gone back before the next try."""
    path = golden_tables.unpack("v6_overwrite", tmp_path)
    stray = path / ".hoodie/timeline/20261121102530000_20261121102530001.commit"
    stray.parent.mkdir()
    stray.write_bytes(b"")
    with hoodoo.open_table(path) as table:
        upgrade(table.context)
    assert not stray.exists()


def test_a_table_that_was_upgraded_meanwhile_is_opened_again_first(tmp_path: Path) -> None:
    path = golden_tables.unpack("v6_overwrite", tmp_path)
    with hoodoo.open_table(path) as table:
        stale = table.context
        to_8 = {"hoodie.table.version": "8", "hoodie.timeline.layout.version": "2"}
        update_properties(stale.ports.storage, to_8, now="now")
        with pytest.raises(TableConfigConflictError, match="open the table again"):
            upgrade(stale)
