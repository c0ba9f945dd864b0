"""Savepoints in mode shared: Java Hudi deletes and creates them without a slot (FOR-9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from filegroups.table import TableReader
from hoodoo.verify.verify import verify
from tableservices.restoring.savepoints import delete_savepoint, savepoint
from tests.unit.timeline.engine import BRISK, heard, new_table, opened, upsert
from timeline.model.file_names import TIMELINE, timeline_path
from timeline.model.slot import SlotKind
from timeline.ports.ports import Storage
from timeline.properties.setting_enums import ForeignWriters

SHARED = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)


def row(version: int) -> list[dict[str, object]]:
    return [{"id": "a", "p": "x", "ts": version, "v": version}]


def saved_by(table: TableReader) -> list[str]:
    """The savepoints' files."""
    names = table.context.ports.storage.names(TIMELINE)
    return sorted(name for name in names if ".savepoint" in name)


def java_deletes(storage: Storage, names: list[str]) -> None:
    for name in names:
        storage.delete(timeline_path(name))


def java_makes(table: TableReader, time: str) -> list[str]:
    newest = opened(table).context.commit_log.head()
    above = int(table.context.commit_log.between(newest - 1, newest)[0].completion_time) + 1
    for name in (f"{time}.savepoint.inflight", f"{time}_{above}.savepoint"):
        table.context.ports.storage.create(timeline_path(name), b"")
    return saved_by(table)


def kept() -> tuple[TableReader, str]:
    """A table whose newest slot is that of a savepoint, and the write that is kept."""
    table = new_table()
    time = upsert(table, row(1)).requested_time
    savepoint(opened(table, limits=SHARED).context, time)
    assert len(saved_by(table)) == 2
    return table, time


def kinds(table: TableReader) -> list[SlotKind]:
    commit_log = opened(table).context.commit_log
    return [slot.kind for slot in commit_log.newest_first()][::-1]


@pytest.mark.spec("FOR-9")
@pytest.mark.parametrize("count", [1, 2], ids=["and died half-way", "whole"])
def test_a_savepoint_that_java_deleted_stays_deleted(count: int) -> None:
    """The completed file goes first."""
    table, _ = kept()
    names = sorted(saved_by(table), key=lambda name: name.endswith("inflight"))
    java_deletes(table.context.ports.storage, names[:count])
    later = opened(table, limits=SHARED)
    upsert(later, row(2))
    assert saved_by(table) == []
    assert kinds(table)[1:] == [SlotKind.SAVEPOINT, SlotKind.UNSAVEPOINT, SlotKind.COMMIT]
    assert [one["number"] for one in heard(later, "publish.unsavepoint")] == [2]


def test_verify_reports_an_undecided_savepoint_and_not_one_that_java_deleted_later() -> None:
    table, _ = kept()
    java_deletes(table.context.ports.storage, saved_by(table))
    found = verify(opened(table, limits=SHARED).context)
    assert [(one.kind, "not decided" in one.message) for one in found.notes] == [
        ("slot_unsettled", True)
    ]
    table, _ = kept()
    upsert(opened(table, limits=SHARED), row(2))
    java_deletes(table.context.ports.storage, saved_by(table))
    assert verify(opened(table, limits=SHARED).context).notes == ()


def test_a_savepoint_that_java_created_again_stays() -> None:
    """The newest slot is that of ours, which it deleted."""
    table, time = kept()
    storage = table.context.ports.storage
    java_deletes(storage, saved_by(table))
    made = java_makes(table, time)
    upsert(opened(table, limits=SHARED), row(2))
    assert saved_by(table) == made
    assert kinds(table)[1:] == [SlotKind.SAVEPOINT, SlotKind.COMMIT]


def test_a_savepoint_that_java_created_after_ours_was_deleted_stays() -> None:
    """The newest slot is that of the deletion."""
    table, time = kept()
    delete_savepoint(opened(table, limits=SHARED).context, time)
    made = java_makes(table, time)
    upsert(opened(table, limits=SHARED), row(2))
    assert saved_by(table) == made


def test_a_missing_savepoint_file_is_created_again_where_no_other_engine_is_expected() -> None:
    table = new_table()
    time = upsert(table, row(1)).requested_time
    savepoint(opened(table).context, time)
    made = saved_by(table)
    java_deletes(table.context.ports.storage, made)
    upsert(opened(table), row(2))
    assert saved_by(table) == made
