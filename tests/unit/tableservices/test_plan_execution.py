"""One executor for a plan at a time: others are refused, wait, or follow a dead one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from filegroups.table import TableReader
from tableservices.compaction.execute import CompactionService, execute_compaction
from tableservices.compaction.plan import CompactionSettings
from tableservices.plan_execution import ExecutorState, lease_plan, wait_for_executor
from tableservices.planned_service import Phase, run_plan, run_round
from tests.unit.timeline.engine import SMALL, StillClock, new_table, opened, upsert
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from timeline.commit.cancel_plan import cancel_pending_plan
from timeline.context import TableContext
from timeline.errors import ServiceConflictError
from timeline.model.commit_metadata import TableType
from timeline.model.instant import Instant

SERVICE = CompactionService(settings=CompactionSettings(), files=SMALL)


class Eventful(StillClock):
    """Runs an action during a wait."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None

    def sleep_ms(self, duration_ms: int) -> None:
        super().sleep_ms(duration_ms)
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()


@pytest.fixture
def clock() -> Eventful:
    return Eventful()


@pytest.fixture
def table(clock: Eventful) -> TableReader:
    storage = MemoryStorage(ports=MemoryWorld(clock))
    made = new_table(storage, table_type=TableType.MERGE_ON_READ, clock=clock)
    upsert(made, [{"id": "a", "p": "x", "ts": 1, "v": 1}])
    upsert(made, [{"id": "a", "p": "x", "ts": 2, "v": 2}])
    return made


@pytest.fixture
def planned(table: TableReader) -> Instant:
    result = run_round(table.context, SERVICE, Phase.SCHEDULE, now=True)
    (plan,) = table.context.active().pending
    assert result is not None
    return plan


def test_a_second_executor_is_refused_with_the_plan_s_name(
    table: TableReader, planned: Instant
) -> None:
    lease = lease_plan(table.context, planned)
    assert lease is not None
    with pytest.raises(ServiceConflictError, match=planned.requested_time) as refused:
        run_plan(opened(table).context, SERVICE, planned)
    assert refused.value.kind == "plan_claimed"


def test_a_waiting_executor_follows_one_that_stops(
    table: TableReader, planned: Instant, clock: Eventful
) -> None:
    lease = lease_plan(table.context, planned)
    assert lease is not None
    clock.meanwhile = lease.stop
    result = run_plan(opened(table, clock=clock).context, SERVICE, planned, wait_ms=5_000)
    assert result is not None
    assert clock.steady == 1_000


def test_a_waiting_executor_replaces_a_dead_one_after_its_heartbeat(
    table: TableReader, planned: Instant, clock: Eventful
) -> None:
    lease = lease_plan(table.context, planned)
    assert lease is not None  # and it never beats again
    survivor = opened(table, clock=clock)
    tolerated = survivor.context.limits.heartbeat.tolerated_ms
    with pytest.raises(ServiceConflictError):
        run_plan(survivor.context, SERVICE, planned, wait_ms=tolerated // 2)
    assert run_plan(survivor.context, SERVICE, planned, wait_ms=tolerated) is not None
    assert tolerated <= clock.steady <= tolerated + 2_000


def test_a_plan_that_ends_during_a_wait_is_not_executed_again(
    table: TableReader, planned: Instant, clock: Eventful
) -> None:
    lease = lease_plan(table.context, planned)
    assert lease is not None

    def complete() -> None:
        lease.stop()
        assert execute_compaction(table.context, planned, SMALL) is not None

    clock.meanwhile = complete
    other = opened(table, clock=clock)

    class Unwanted:
        def execute(self, *_: object) -> None:
            raise AssertionError("the plan has ended")

    service: Any = Unwanted()
    assert run_plan(other.context, service, planned, wait_ms=5_000) is None
    assert len(table.context.active().completed_writes) == 3
    assert wait_for_executor(other.context, planned, wait_ms=0) is ExecutorState.FREE


def test_a_round_leaves_a_leased_plan_or_waits_for_it(
    table: TableReader, planned: Instant, clock: Eventful
) -> None:
    lease = lease_plan(table.context, planned)
    assert lease is not None
    other = opened(table, clock=clock)
    assert run_round(other.context, SERVICE, Phase.EXECUTE) is None
    clock.meanwhile = lease.stop
    assert run_round(other.context, SERVICE, Phase.EXECUTE, wait_ms=5_000) is not None


def cancelled_when_read(table: TableReader) -> Any:
    """The service; another process cancels a plan just before its executor reads it."""

    class Overtaken(CompactionService):
        def execute(self, context: TableContext, planned: Instant) -> Any:
            assert cancel_pending_plan(table.context, planned) is not None
            return super().execute(context, planned)

    return Overtaken(settings=CompactionSettings(), files=SMALL)


def test_a_plan_cancelled_just_before_its_execution_has_ended(
    table: TableReader, planned: Instant, clock: Eventful
) -> None:
    other = opened(table, clock=clock)
    assert run_plan(other.context, cancelled_when_read(table), planned) is None


def test_a_plan_of_this_round_may_be_cancelled_before_its_execution(
    table: TableReader, clock: Eventful
) -> None:
    result = run_round(opened(table, clock=clock).context, cancelled_when_read(table), now=True)
    assert result is not None
    assert result.completion_time is None
    assert table.context.active().pending == ()
