"""Where writers go first, a clustering that would refuse one is cancelled, and only such a one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from tableservices.clustering.execute import ClusteringResult, execute_clustering
from tableservices.clustering.plan import schedule_clustering
from tableservices.clustering.settings import ClusteringSettings
from tests.unit.timeline.engine import (
    BRISK,
    SMALL,
    Behind,
    begun,
    data_files,
    heard,
    leftovers,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from timeline.commit.cancel_plan import cancel_pending_plan
from timeline.context import TableLimits
from timeline.errors import ServiceConflictError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.instant import Instant
from timeline.model.slot import SlotKind
from timeline.properties.setting_enums import ClusteringUpdates
from timeline.rules.conflicts import find_strategy

SETTINGS = ClusteringSettings(sort_columns=("v",))
APART = replace(SMALL, sizes=replace(SMALL.sizes, small_file_bytes=0))
REFUSING = replace(BRISK, clustering_updates=ClusteringUpdates.REJECT)
PREFERRED = find_strategy("prefer_writer")
FIRST = replace(REFUSING, strategy=PREFERRED, cancels_conflicting_plans=True)
NEW = [{"id": "a", "p": "x", "ts": 2, "v": 7}]
AFTER = [("a", 7), ("b", 1), ("c", 1)]


def small_files(limits: TableLimits = FIRST) -> TableReader:
    """Three file groups in one partition."""
    table = new_table(limits=limits)
    for key in "abc":
        row = {"id": key, "p": "x", "ts": 1, "v": 1}
        put(table, WriteOperation.INSERT, [row], files=APART)
    return table


def plan(table: TableReader) -> Instant:
    planned = schedule_clustering(table.context, SETTINGS)
    assert planned is not None
    return planned


def execute(table: TableReader, planned: Instant) -> ClusteringResult | None:
    return execute_clustering(table.context, planned, SETTINGS, SMALL)


def kinds(table: TableReader, count: int = 2) -> list[SlotKind]:
    return [slot.kind for slot in table.context.commit_log.newest_first()][:count]


def test_an_existing_plan_is_cancelled() -> None:
    table = small_files()
    planned = plan(table)
    result = upsert(table, NEW)
    assert result.attempts == 1
    assert rows_of(table, "id", "v") == AFTER
    assert kinds(table) == [SlotKind.COMMIT, SlotKind.CANCEL]
    assert heard(table, "write.made_way") == [{"plan": planned.requested_time, "cancelled": True}]
    assert leftovers(table) == []


def test_a_plan_made_during_a_write_is_cancelled_and_no_file_is_written_again() -> None:
    table = small_files()
    result = upsert(table, NEW, lambda: plan(opened(table)))
    assert (result.attempts, result.files_written) == (1, 1)
    assert kinds(table) == [SlotKind.COMMIT, SlotKind.CANCEL]
    assert rows_of(table, "id", "v") == AFTER


def test_a_writer_without_the_strategy_is_refused_by_kind() -> None:
    table = small_files(REFUSING)
    plan(table)
    with pytest.raises(ServiceConflictError) as caught:
        upsert(table, NEW)
    assert (caught.value.kind, caught.value.fields["report"]["rule"]) == ("service_conflict", "C8")
    assert kinds(table, 1) == [SlotKind.PLAN]


def test_a_plan_without_files_of_the_write_is_not_cancelled() -> None:
    table = small_files()
    planned = plan(table)
    upsert(table, [{"id": "z", "p": "y", "ts": 1, "v": 1}])
    assert execute(opened(table), planned) is not None


def test_a_plan_that_validates_again_by_itself_is_not_cancelled() -> None:
    table = small_files(replace(FIRST, clustering_updates=None))
    plan(table)
    upsert(table, NEW)
    assert kinds(table) == [SlotKind.COMMIT, SlotKind.PLAN]


class Meddled(Behind):
    """Acts once, just before one call on a path with this ending."""

    def __init__(
        self, table: TableReader, call: str, ending: str, act: Callable[[], object]
    ) -> None:
        super().__init__(table.context.ports.storage)
        self.call, self.ending, self.acts = call, ending, [act]

    def __getattr__(self, name: str) -> Any:
        inner = super().__getattr__(name)
        if name != self.call:
            return inner

        def called(path: str, *more: Any, **how: Any) -> Any:
            if path.endswith(self.ending) and self.acts:
                self.acts.pop()()
            return inner(path, *more, **how)

        return called


def test_a_plan_that_completed_first_conflicts_like_any_other_commit() -> None:
    """The writer saw the plan pending, and finds it completed when it wants to cancel it."""
    table = small_files()
    planned = plan(table)
    act = lambda: execute(opened(table), planned)  # noqa: E731
    seen = Meddled(table, "list", "x", act)
    result = upsert(opened(table, storage=seen, limits=FIRST), NEW)
    assert seen.acts == []
    assert (result.attempts, result.refusals[0].kind) == (2, "deleted_under_reader")
    assert rows_of(table, "id", "v") == AFTER
    assert SlotKind.CANCEL not in kinds(table, 9)


def test_an_executor_whose_plan_a_writer_cancelled_deletes_its_files() -> None:
    table = small_files()
    planned = plan(table)
    seen = Meddled(table, "create", ".parquet", lambda: upsert(table, NEW))
    assert execute(opened(table, storage=seen), planned) is None
    assert rows_of(table, "id", "v") == AFTER
    assert not [path for path in data_files(table) if planned.requested_time in path]
    assert leftovers(table) == []
    assert cancel_pending_plan(table.context, planned) is None


def test_a_clustering_leaves_out_groups_that_a_live_writer_announced() -> None:
    table = small_files(replace(FIRST, clustering_updates=None))
    planned = plan(table)
    ended: list[ClusteringResult | None] = []
    result = upsert(table, NEW, lambda: ended.append(execute(table, planned)))
    assert result.attempts == 1
    assert rows_of(table, "id", "v") == AFTER
    assert ended == [None]


def test_a_conflict_found_along_with_the_plan_is_found_again_after_its_cancel() -> None:
    """A rebase could solve the conflict, but the rejection would lose its other findings."""
    table = small_files()
    other = opened(table)
    finish = begun(other, WriteOperation.UPSERT, [{"id": "a", "p": "x", "ts": 9, "v": 9}])

    def meanwhile() -> None:
        finish()
        plan(other)

    result = upsert(table, [*NEW, {"id": "b", "p": "x", "ts": 2, "v": 7}], meanwhile)
    assert [(one.rule, one.redo) for one in result.refusals] == [("C1", "file groups")]
    assert rows_of(table, "id", "v") == [("a", 9), ("b", 7), ("c", 1)]
