"""Archiving with compaction, savepoints and other engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from tableservices.archiving.execute import archive
from tableservices.archiving.plan import ArchiveRules
from tableservices.compaction.execute import execute_compaction, schedule_compaction
from tableservices.compaction.plan import CompactionSettings
from tableservices.restoring.savepoints import savepoint
from tests.unit.timeline.engine import BRISK, SMALL, new_table, opened, put, rows_of, upsert
from timeline.context import TableContext
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import timeline_path
from timeline.model.instant import Action, Instant
from timeline.model.slot import SlotKind
from timeline.properties.setting_enums import ForeignWriters
from timeline.truncation import truncated_up_to

RULES = ArchiveRules.from_properties(
    {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.compact.inline.max.delta.commits": "1",
    }
)


def appended(count: int) -> TableReader:
    table = new_table(table_type=TableType.MERGE_ON_READ)
    for number in range(count):
        upsert(table, [{"id": "a", "p": "x", "ts": number}])
    return table


def planned(table: TableReader) -> Instant:
    found = schedule_compaction(table.context, CompactionSettings(), SMALL)
    assert found is not None
    return found


def test_a_completed_compaction_is_archived_with_its_plan():
    table = appended(2)
    plan = planned(table)
    stored_plan = table.context.ports.storage.read(
        timeline_path(f"{plan.requested_time}.compaction.requested")
    )
    execute_compaction(table.context, plan, SMALL)
    for number in range(10, 14):
        upsert(table, [{"id": "a", "p": "x", "ts": number}])
    before = rows_of(table)
    assert archive(table.context, RULES) is not None
    rows = {
        row.requested_time: row
        for row in table.context.archived_timeline.instants(times_only=False)
    }
    compaction = rows[plan.requested_time]
    assert (compaction.action, compaction.plan) == ("commit", stored_plan)
    assert [row.action for row in rows.values()].count("deltacommit") == 4
    reader = opened(table)
    assert rows_of(reader) == rows_of(table) == before
    kinds = [slot.kind for slot in reader.context.commit_log.newest_first()]
    assert SlotKind.PLAN not in kinds


def test_a_pending_compaction_keeps_all_instants_since_its_plan():
    table = appended(4)
    plan = planned(table)
    for number in range(10, 14):
        upsert(table, [{"id": "a", "p": "x", "ts": number}])
    assert archive(table.context, RULES) is not None
    assert truncated_up_to(table.context.ports.storage) == 2  # cleaning uses two slots before it
    assert table.context.active().find(plan.requested_time, Action.COMPACTION) is not None
    execute_compaction(table.context, plan, SMALL)
    assert rows_of(opened(table), "ts") == [(13,)]


class Watched:
    """
    A lock that records the purposes of its holders, and the changes of the archive while held.
    """

    def __init__(self, context: TableContext) -> None:
        self.inner: Any = context.ports.lock
        self.storage = context.ports.storage
        self.purposes: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @contextmanager
    def acquire(self, purpose: str) -> Iterator[Any]:
        self.purposes.append(purpose)
        with self.inner.acquire(purpose) as lease:
            yield lease


@pytest.mark.spec("FOR-6")
def test_in_mode_shared_everything_is_archived_under_the_lock():
    table = new_table()
    for number in range(6):
        upsert(table, [{"id": "a", "p": "x", "ts": number}])
    limits = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)
    shared = opened(table, limits=limits).context
    lock = Watched(shared)
    assert archive(replace(shared, ports=replace(shared.ports, lock=lock)), RULES) is not None  # type: ignore[arg-type]
    assert lock.purposes.count("archive") == 3  # the slot, the moved instants, the levels
    ours = opened(table).context
    upsert(table, [{"id": "a", "p": "x", "ts": 9}])
    upsert(table, [{"id": "a", "p": "x", "ts": 10}])
    alone = Watched(ours)
    assert archive(replace(ours, ports=replace(ours.ports, lock=alone)), RULES) is not None  # type: ignore[arg-type]
    assert alone.purposes == ["archive"]  # the slot only


def test_commits_archived_above_a_savepointed_commit_stay_visible():
    table = new_table()
    times = [
        put(table, WriteOperation.BULK_INSERT, [{"id": f"n{n}", "p": "x", "ts": n}]).requested_time
        for n in range(6)
    ]
    savepoint(table.context, times[0])
    before = rows_of(table)
    assert archive(table.context, RULES) is None
    beyond = replace(RULES, archiving=RULES.archiving.model_copy(update={"beyond_savepoint": True}))
    assert archive(table.context, beyond) is not None
    reader = opened(table)
    assert [one.archived for one in reader.timeline].count(True) == 3
    assert reader.context.active().find(times[0], Action.COMMIT) is not None
    assert rows_of(reader) == before
    assert len(before) == 6
