"""Upgrade from version 8 to 9: what the properties say then, and what stands in the way."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.assembly import Layers
from hoodoo.verify import verify_at
from tableservices.upgrade import plan_upgrade, upgrade
from tests.interop import golden_tables
from tests.unit.timeline.engine import Behind, begun, new_table, opened, rows_of, upsert
from timeline.context import TableContext
from timeline.errors import InvalidInputError, TableConfigConflictError, UnsupportedTableError
from timeline.model.operations import TableType, WriteOperation
from timeline.properties_file import load_config, update_properties
from timeline.table import Table

MOR = TableType.MERGE_ON_READ
ROWS = [{"id": "k", "p": "p", "ts": 5, "v": 1}]


def of_version_8(table_type: TableType = TableType.COPY_ON_WRITE, **options: object) -> Table:
    table = new_table(version=8, table_type=table_type, **options)  # type: ignore[arg-type]
    upsert(table, ROWS)
    return table


def said(table: Table) -> dict[str, str]:
    return dict(load_config(table.context.world.storage).raw)


def test_version_9_says_the_same_merging_in_its_own_words() -> None:
    table = of_version_8()
    before = said(table)
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
    assert said(table) == before
    assert upgrade(table.context) == planned
    after = said(table)
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
    with pytest.raises(TableConfigConflictError, match="open it again") as caught:
        upsert(stale, ROWS)
    assert caught.value.fields["report"]["rule"] == "C13"
    assert table.context.active().pending == ()


def test_whatever_is_pending_stands_in_the_way() -> None:
    table = of_version_8()
    begun(opened(table), WriteOperation.UPSERT, ROWS)
    with pytest.raises(InvalidInputError, match="pending") as caught:
        upgrade(table.context)
    assert caught.value.kind == "instants_pending"
    assert said(table)["hoodie.table.version"] == "8"


def test_a_writer_at_work_stands_in_the_way() -> None:
    table = of_version_8()
    other = opened(table)
    other.register({})
    with pytest.raises(InvalidInputError, match="at work"):
        upgrade(table.context)
    other.close()
    assert upgrade(table.context) is not None


def test_logs_that_are_not_compacted_stand_in_the_way() -> None:
    table = of_version_8(MOR)
    assert plan_upgrade(table.context) is not None  # a base file alone
    upsert(table, [{"id": "k", "p": "p", "ts": 6, "v": 2}])
    with pytest.raises(InvalidInputError, match="compact") as caught:
        upgrade(table.context)
    assert caught.value.kind == "logs_not_compacted"


def test_keys_that_version_9_writes_differently_are_refused() -> None:
    table = of_version_8()
    storage = table.context.world.storage
    update_properties(storage, {"hoodie.table.keygenerator.type": "COMPLEX"}, now="now")
    with pytest.raises(UnsupportedTableError, match="complex key"):
        upgrade(opened(table).context)


def test_a_metadata_table_is_refused() -> None:
    table = of_version_8()
    storage = table.context.world.storage
    update_properties(storage, {"hoodie.table.metadata.partitions": "files"}, now="now")
    with pytest.raises(TableConfigConflictError):
        upgrade(table.context)
    update_properties(storage, {"hoodie.table.metadata.partitions": None}, now="now")
    assert "hoodie.table.metadata.partitions" not in said(table)
    assert upgrade(table.context) is not None


# ---------------------------------------------------------------- version 6

WITHOUT_LOGS = ("v6_cow_nonpart", "v6_cow_clean_archive", "v6_overwrite", "v6_cow_clustering_done")


def shown(path: Path) -> tuple[list[tuple[Any, ...]], list[tuple[str, str]]]:
    """Rows with their meta columns, and every instant with its action, archived ones too."""
    with hoodoo.open_table(path) as table:
        rows = table.core.pin().to_arrow(with_hoodie_columns=True)
        texts = [[str(value) for value in column.to_pylist()] for column in rows.columns]
        instants = [(one.requested_time, one.action) for one in table.timeline]
    return sorted(zip(*texts, strict=True)), instants


@pytest.mark.parametrize("name", WITHOUT_LOGS)
def test_a_table_of_version_6_shows_the_same_in_version_9(name: str, tmp_path: Path) -> None:
    path = golden_tables.unpack(name, tmp_path)
    before = shown(path)
    with hoodoo.open_table(path) as table:
        planned = upgrade(table.core.context)
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
        for one in table.core.context.active().completed_writes:
            assert one.requested_time < (one.completion_time or "")
            assert not one.legacy
        row = table.to_arrow().slice(0, 1)
        table.upsert(row)
        assert len(table.to_arrow()) == len(before[0])
    found = verify_at(path, Layers(), history=True)
    assert found.ok, found.problems


def test_an_upgrade_of_version_6_that_is_cut_off_leaves_one_whole_table(tmp_path: Path) -> None:
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
            world = table.core.context.world
            context = TableContext.of(
                replace(world, storage=Cut(world.storage)), load_config(world.storage)
            )
            with suppress(KeyboardInterrupt):
                upgrade(context)
        assert shown(path) == before, calls
    with hoodoo.open_table(path) as table:
        assert table.config.table_version == 9


def test_logs_of_version_6_are_refused(tmp_path: Path) -> None:
    path = golden_tables.unpack("v6_mor_logs", tmp_path)
    with hoodoo.open_table(path) as table, pytest.raises(InvalidInputError, match="Java Hudi"):
        upgrade(table.core.context)
