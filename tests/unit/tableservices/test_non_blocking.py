"""Plans with a writer that began before them and completes after them (NBCC-3, LC-1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from filegroups.keys.bucketing import BucketRules
from filegroups.table import TableReader
from tableservices.compaction.execute import CompactionService
from tableservices.compaction.plan import CompactionSettings
from tableservices.logcompaction.execute import LogCompactionService, LogCompactionSettings
from tableservices.planned_service import Phase, run_round
from tableservices.service import pending_plans
from tests.unit.timeline.engine import BRISK, SMALL, begun, new_table, opened, rows_of, upsert
from timeline.commit.cancel_plan import cancel_pending_plan
from timeline.model.commit_metadata import ConcurrencyMode, TableType, WriteOperation

ONE = BucketRules(buckets=1, hash_fields=("id",))
COMPACTION = CompactionService(settings=CompactionSettings(), files=SMALL)
OF_LOGS = LogCompactionService(settings=LogCompactionSettings(blocks_min=2), files=SMALL)

Late = Callable[[], object]


@pytest.fixture
def table() -> TableReader:
    limits = replace(BRISK, mode=ConcurrencyMode.NON_BLOCKING_CONCURRENCY_CONTROL)
    return new_table(limits=limits, table_type=TableType.MERGE_ON_READ, ordering=())


def put(table: TableReader, v: int, *keys: str) -> None:
    upsert(table, [{"id": key, "p": "x", "v": v} for key in keys], buckets=ONE)


def late(table: TableReader, v: int, *keys: str) -> Late:
    """A write that has begun; calling it ends it."""
    rows = [{"id": key, "p": "x", "v": v} for key in keys]
    other = opened(table, limits=table.context.limits)
    return begun(other, WriteOperation.UPSERT, rows, buckets=ONE)


@pytest.mark.spec("NBCC-3")
def test_a_late_log_is_on_top_of_a_plan_from_the_plan_on(table: TableReader) -> None:
    finish = late(table, 1, "a", "b")
    put(table, 2, "a", "c")
    run_round(table.context, COMPACTION, Phase.SCHEDULE, now=True)
    assert rows_of(table, "id", "v") == [("a", 2), ("c", 2)]
    finish()
    expected = [("a", 1), ("b", 1), ("c", 2)]
    assert rows_of(table, "id", "v") == expected
    run_round(table.context, COMPACTION, Phase.EXECUTE, now=True)
    assert rows_of(table, "id", "v") == expected
    run_round(table.context, COMPACTION, now=True)
    assert rows_of(table, "id", "v") == expected


def test_after_a_cancelled_plan_the_order_of_requested_times_holds_again(
    table: TableReader,
) -> None:
    finish = late(table, 1, "a", "b")
    put(table, 2, "a", "c")
    run_round(table.context, COMPACTION, Phase.SCHEDULE, now=True)
    finish()
    (plan,) = pending_plans(table.context.active())
    cancel_pending_plan(table.context, plan)
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 1), ("c", 2)]


@pytest.mark.spec("NBCC-5")
def test_a_log_compaction_leaves_out_logs_around_a_pending_one(table: TableReader) -> None:
    put(table, 1, "a", "b")
    finish = late(table, 2, "a")
    put(table, 3, "b")
    put(table, 4, "c")
    # Only the first log is older than the late one, and one alone is not worth it.
    assert run_round(table.context, OF_LOGS, now=True) is None
    finish()
    expected = [("a", 2), ("b", 3), ("c", 4)]
    assert rows_of(table, "id", "v") == expected
    assert run_round(table.context, OF_LOGS, now=True) is not None
    assert rows_of(table, "id", "v") == expected
