"""Commits: the cost of the commit section, the decision by a slot, and help by other processes."""

from __future__ import annotations

import pytest

from filegroups.table import TableReader
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    StillClock,
    begun,
    data_files,
    files_below,
    heard,
    leftovers,
    new_table,
    opened,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.publishing import commit_in_section
from tests.unit.timeline.recording import RecordingStorage
from timeline.commit.apply import apply, is_applied
from timeline.commit.commit_lock import BaseState
from timeline.commit.validate import commits_since
from timeline.context import TableLimits
from timeline.errors import BudgetSpentError, OutcomeUnknownError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import SLOTS, TIMELINE, slot_path, timeline_path
from timeline.model.slot import SlotKind
from timeline.ports.ports import AmbiguousWriteError
from timeline.properties.setting_enums import CommitLockMode
from timeline.rules.retry import RetryBudget
from timeline.storage.local import LocalStorage
from timeline.writer_registry import register_process

ROWS = [{"id": "a", "p": "x", "ts": 1, "v": 1}]
MORE = [{"id": "b", "p": "y", "ts": 1, "v": 1}]


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path) -> MemoryStorage | LocalStorage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path / "t")


def of_slots(table: TableReader) -> list[tuple[int, SlotKind]]:
    commit_log = table.context.commit_log
    return [(slot.number, slot.kind) for slot in commit_log.between(0, commit_log.head())]


@pytest.mark.spec("PUB-8")
def test_the_slot_is_created_before_the_completed_file(storage: MemoryStorage | LocalStorage):
    observed = RecordingStorage(storage)
    table = new_table(observed)
    result = upsert(table, ROWS)
    created = [call.path for call in observed.calls if call.operation == "create"]
    slot = created.index(slot_path(1))
    completed = f"{result.requested_time}_{result.completion_time}.commit"
    assert created.index(timeline_path(completed)) == slot + 1
    assert all(".parquet" not in path for path in created[slot:])


@pytest.mark.spec("LOC-2")
def test_names_of_data_files_are_durable_before_the_slot():
    observed = RecordingStorage(MemoryStorage())
    table = new_table(observed)
    upsert(table, [*ROWS, *MORE])
    operations = observed.operations()
    assert operations.index("sync_folders x y") < operations.index(f"create {slot_path(1)}")


def test_the_commit_section_costs_two_creates_and_no_data_request():
    observed = RecordingStorage(MemoryStorage())
    table = new_table(observed)
    register_process(table.context, {})  # a writer without a registry entry reads more slots (GC-4)
    upsert(table, ROWS)
    finish = begun(table, WriteOperation.UPSERT, MORE)
    entered: list[int] = []
    left: list[int] = []

    class Watched(Behind):
        def acquire(self, purpose: str):
            lease = self.inner.acquire(purpose)
            entered.append(len(observed.calls))

            class Lease(Behind):
                def __enter__(self):
                    return self

                def __exit__(self, *error: object) -> None:
                    left.append(len(observed.calls))
                    self.inner.release()

            return Lease(lease)

    object.__setattr__(table.context.ports, "lock", Watched(table.context.ports.lock))
    finish()
    [first], [last] = entered, left
    inside = observed.calls[first:last]
    assert sum(call.operation == "create" for call in inside) == 2
    assert {call.operation for call in inside} <= {"create", "names", "read", "list"}
    assert len(inside) <= 8
    assert not [call for call in inside if ".parquet" in call.path]


@pytest.mark.spec("SLOT-1")
def test_slots_are_numbered_without_gaps(storage: MemoryStorage | LocalStorage):
    table = new_table(storage)
    for number in range(3):
        upsert(table, [{**ROWS[0], "ts": number}])
    assert of_slots(table) == [(1, SlotKind.COMMIT), (2, SlotKind.COMMIT), (3, SlotKind.COMMIT)]


@pytest.mark.spec("TL-SUCC-1")
def test_times_ascend_over_all_commits():
    table = new_table(clock=StillClock())
    results = [upsert(table, [{**ROWS[0], "ts": number}]) for number in range(4)]
    times = [time for one in results for time in (one.requested_time, one.completion_time)]
    assert times == sorted(set(times))
    assert {int(one.completion_time) % 4 for one in results} == {3}


class Losing(Behind):
    """Raises for the completed files of some instants."""

    broken = False

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if self.broken and path.startswith(TIMELINE) and path.endswith(".commit"):
            raise AmbiguousWriteError(path)
        self.inner.create(path, data, durable=durable)


def unfinished() -> tuple[TableReader, TableReader, str]:
    """Create a table with a slot whose completed file is missing."""
    base = MemoryStorage()
    clock = StillClock()
    table = new_table(base, clock=clock)
    upsert(table, ROWS)
    losing = Losing(base)
    crashed = opened(table, storage=losing, clock=clock, limits=TableLimits(unknown_ms_max=1_000))
    losing.broken = True
    with pytest.raises(OutcomeUnknownError) as caught:
        upsert(crashed, MORE)
    assert caught.value.kind == "published_not_visible"
    return table, crashed, caught.value.fields["requested_time"]


def test_a_write_without_its_completed_file_is_reported_as_committed_and_nothing_is_deleted():
    table, _, requested_time = unfinished()
    assert rows_of(table, "id") == [("a",)]
    assert [path for path in data_files(table) if requested_time in path] != []
    assert [i.requested_time for i in table.context.active().pending] == [requested_time]


@pytest.mark.spec("PUB-3")
def test_the_next_commit_creates_a_missing_completed_file():
    table, _, requested_time = unfinished()
    upsert(table, [{"id": "c", "p": "z", "ts": 1, "v": 1}])
    assert rows_of(table, "id") == [("a",), ("b",), ("c",)]
    assert len(heard(table, "publish.helped")) == 1
    [helped] = [
        i for i in table.context.active().completed_writes if i.requested_time == requested_time
    ]
    assert helped.completion_time == table.context.commit_log.read(2).completion_time


def test_applying_a_slot_twice_changes_nothing(storage: MemoryStorage | LocalStorage):
    table = new_table(storage)
    upsert(table, ROWS)
    before = {path: storage.read(path) for path in files_below(storage, TIMELINE)}
    slot = table.context.commit_log.read(1)
    apply(table.context, slot)
    apply(table.context, slot)
    assert {path: storage.read(path) for path in files_below(storage, TIMELINE)} == before
    assert is_applied(slot, table.context.active())


@pytest.mark.spec("HELP-2")
def test_an_archived_commit_is_applied():
    table = new_table()
    for number in range(2):
        upsert(table, [{**ROWS[0], "ts": number}])
    slot = table.context.commit_log.read(1)
    storage = table.context.ports.storage
    name = slot.file_name
    assert name is not None
    for path in files_below(storage, TIMELINE):
        if slot.requested_time in path.rpartition("/")[2][:17]:
            storage.delete(path)
    assert is_applied(slot, table.context.active())


@pytest.mark.spec("PUB-7")
def test_a_writer_that_lost_a_slot_refreshes_and_takes_the_next_one():
    base = MemoryStorage()
    other = new_table(base)

    class Overtaken(Behind):
        def __init__(self, inner: MemoryStorage) -> None:
            super().__init__(inner)
            self.acts: list = []

        def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
            if path.startswith(SLOTS) and self.acts:
                self.acts.pop()()
            self.inner.create(path, data, durable=durable)

    storage = Overtaken(base)
    limits = TableLimits(retry=BRISK.retry, publish_lock=CommitLockMode.NONE)
    table = opened(other, storage=storage, limits=limits)
    storage.acts = [lambda: upsert(other, MORE)]
    result = upsert(table, ROWS)
    assert result.attempts == 1
    assert len(heard(table, "publish.slot_lost")) == 1
    assert of_slots(table) == [(1, SlotKind.COMMIT), (2, SlotKind.COMMIT)]
    assert rows_of(table, "id") == [("a",), ("b",)]


def test_a_writer_that_loses_every_slot_exhausts_its_budget():
    base = MemoryStorage()
    table = new_table(base)
    other = opened(table)

    class Unlucky(Behind):
        def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
            if path.startswith(SLOTS):
                upsert(other, [{**MORE[0], "ts": int(path[-3:])}])
            self.inner.create(path, data, durable=durable)

    limits = TableLimits(
        retry=RetryBudget(pause_base_ms=0, pause_cap_ms=0, commit_attempts_max=3),
        publish_lock=CommitLockMode.NONE,
    )
    unlucky = opened(table, storage=Unlucky(base), limits=limits)
    with pytest.raises(BudgetSpentError) as caught:
        upsert(unlucky, ROWS)
    assert caught.value.fields["attempts"] == 3
    assert leftovers(table) == []
    assert rows_of(table, "id") == [("b",)]


def test_a_commit_section_may_end_without_a_slot():
    table = new_table()
    assert commit_in_section(table.context, "look", lambda section: None) == (None, 0)
    assert of_slots(table) == []


def test_a_commit_of_a_hoodoo_writer_during_a_refresh_is_not_another_engines():
    table = new_table()
    context = table.context
    base_state = BaseState.by(table.snapshot)
    head = context.commit_log.head()
    result = upsert(opened(table), ROWS)
    found_commits, base_state = commits_since(context, base_state, context.active(), head=head)
    assert found_commits == []
    found_commits, _ = commits_since(
        context, base_state, context.active(), head=context.commit_log.head()
    )
    assert [one.requested_time for one in found_commits] == [result.requested_time]
    assert "another engine" not in found_commits[0].writer
