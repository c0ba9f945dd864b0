"""When a slot counts as applied, and how long its files are polled (SLOT-5, UNK-5, RST-4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from tableservices.archiving.archived_timeline import append_to_archive
from tests.unit.timeline.commit_slots import commit_slot
from tests.unit.timeline.engine import Behind, StillClock, new_table, opened
from tests.unit.timeline.memory import MemoryStorage
from timeline.archived import ArchivedTimeline
from timeline.codecs.archive_manifest import ArchivedInstant
from timeline.codecs.commit_log import encode_slot
from timeline.commit.apply import apply, has_instant_file, is_applied, revert_if_restored, try_apply
from timeline.errors import OutcomeUnknownError, StorageUnavailableError
from timeline.model.file_names import slot_path, timeline_path
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import AmbiguousWriteError
from timeline.snapshot import ActiveTimeline
from timeline.system import NullEvents

T = commit_slot(1).requested_time
COMPLETED = commit_slot(1).completion_time
EARLIER, LATER = "20260102000000000", "20260103000000000"


def plan(**fields: Any) -> Slot:
    return replace(
        commit_slot(1, kind=SlotKind.PLAN, body=b"plan"), action=Action.CLUSTERING, **fields
    )


@pytest.mark.spec("RST-3")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param([f"{T}.clustering.requested"], True, id="it is there"),
        pytest.param(
            [f"{T}.clustering.inflight"], False, id="missing, although the plan is executed"
        ),
        pytest.param([], False, id="it is not yet"),
        pytest.param([f"{LATER}_{LATER}.commit"], True, id="it was archived"),
        pytest.param([f"{EARLIER}_{EARLIER}.commit"], False, id="an earlier write is not archived"),
        pytest.param([f"{T}_{LATER}.restore"], True, id="a later restore removed it"),
        pytest.param([f"{EARLIER}_{EARLIER}.restore"], False, id="an earlier restore"),
        pytest.param([f"{LATER}.restore.inflight"], False, id="a pending restore"),
        pytest.param([f"{T}_{LATER}.rollback"], False, id="a rollback did not remove it"),
    ],
)
def test_a_plan_without_its_file_is_applied_only_if_the_file_existed(
    names: list[str], expected: bool
) -> None:
    assert is_applied(plan(), ActiveTimeline.of(names)) is expected


@pytest.mark.parametrize(
    ("saved", "archived", "expected"),
    [(LATER, False, True), (EARLIER, True, True), (EARLIER, False, False)],
)
def test_the_archived_timeline_decides_whether_a_slot_is_applied_under_savepoints(
    saved: str, archived: bool, expected: bool
) -> None:
    timeline = ActiveTimeline.of([f"{saved}_{saved}.commit", f"{saved}_{LATER}.savepoint"])
    storage = MemoryStorage()
    if archived:
        row = ArchivedInstant(requested_time=T, completion_time=LATER, action="replacecommit")
        append_to_archive(storage, [row])
    assert is_applied(plan(), timeline, ArchivedTimeline(storage, NullEvents())) is expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], False),
        ([f"{LATER}_{LATER}.commit"], False),
        ([f"{T}.commit.requested", f"{LATER}_{LATER}.commit"], True),
        ([f"{T}.inflight", f"{LATER}_{LATER}.commit"], True),
        ([f"{T}_{COMPLETED}.commit"], True),
    ],
)
def test_any_file_of_an_instant_shows_that_a_listing_is_not_older(
    names: list[str], expected: bool
) -> None:
    assert has_instant_file(commit_slot(1), ActiveTimeline.of(names)) is expected


# ---- a storage that does not answer


class Deaf(Behind):
    """Leaves the first creates in the timeline unanswered."""

    times = 0

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if self.times:
            self.times -= 1
            if self.times % 2:
                raise AmbiguousWriteError("no answer")
            raise StorageUnavailableError("no answer", path=path)
        self.inner.create(path, data, durable=durable)


class Pauses(StillClock):
    def __init__(self) -> None:
        super().__init__()
        self.slept: list[int] = []

    def sleep_ms(self, duration_ms: int) -> None:
        super().sleep_ms(duration_ms)
        self.slept.append(duration_ms)


def deaf_table() -> tuple[TableReader, Deaf, Pauses]:
    base, clock = MemoryStorage(), Pauses()
    storage = Deaf(base)
    return opened(new_table(base), storage=storage, clock=clock), storage, clock


@pytest.mark.spec("UNK-5")
def test_the_completed_file_is_polled_at_growing_intervals_up_to_a_second() -> None:
    table, storage, clock = deaf_table()
    storage.times = 9
    assert apply(table.context, commit_slot(1, body=b"body"))
    assert clock.slept == [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]
    assert storage.read(timeline_path(f"{T}_{COMPLETED}.commit")) == b"body"


@pytest.mark.spec("UNK-5")
@pytest.mark.parametrize(
    ("act", "error"), [(apply, OutcomeUnknownError), (try_apply, StorageUnavailableError)]
)
def test_a_decision_remains_after_the_time_limit_and_any_process_applies_it(
    act: Any, error: type
) -> None:
    table, storage, clock = deaf_table()
    storage.times = 10_000
    with pytest.raises(error) as caught:
        act(table.context, commit_slot(1))
    assert caught.value.fields["slot_number"] == 1
    limit_ms = table.context.limits.unknown_ms_max
    assert limit_ms < clock.steady <= limit_ms + 1_000


@pytest.mark.spec("FOR-4")
def test_a_writer_that_lost_its_right_creates_no_completed_file() -> None:
    table, storage, clock = deaf_table()
    storage.times = 2
    answers = iter((True, True, False))
    assert not apply(table.context, commit_slot(1), may_show=lambda: next(answers))
    assert clock.slept == [10, 20]
    assert storage.stat(timeline_path(f"{T}_{COMPLETED}.commit")) is None


# ---- a completed file that is created late


class Lease:
    """A lease that reports whether another writer may have held the lock."""

    def __init__(self, remaining_ms: int | None, *, is_shared: bool = False) -> None:
        self.remaining, self.is_shared = remaining_ms, is_shared

    def remaining_ms(self) -> int | None:
        return self.remaining


@pytest.mark.spec("RST-4")
@pytest.mark.parametrize(
    ("lease", "taken"),
    [
        pytest.param(None, True, id="without a lock"),
        pytest.param(Lease(0), True, id="the lock was lost"),
        pytest.param(Lease(1), False, id="no other writer can have held the lock"),
        pytest.param(Lease(None), False, id="a lock that is never lost"),
        pytest.param(Lease(1, is_shared=True), True, id="a shared lock"),
    ],
)
def test_the_file_of_a_plan_that_was_cancelled_meanwhile_is_deleted(
    lease: Any, taken: bool
) -> None:
    table = new_table()
    storage, table_id = table.context.ports.storage, table.context.table_id
    mine = replace(plan(), table_id=table_id)
    cancel = replace(plan(), number=2, table_id=table_id, kind=SlotKind.CANCEL)
    path = timeline_path(f"{T}.clustering.requested")
    storage.create(path, b"plan")
    for slot in (mine, cancel):
        storage.create(slot_path(slot.number), encode_slot(slot))
    revert_if_restored(table.context, mine, lease)
    assert (storage.stat(path) is None) is taken


@pytest.mark.spec("RST-4")
@pytest.mark.parametrize("kind", [SlotKind.PLAN, SlotKind.NOOP])
def test_a_file_that_no_later_slot_ended_is_not_reverted(kind: SlotKind) -> None:
    table = new_table()
    storage, table_id = table.context.ports.storage, table.context.table_id
    mine = replace(plan(), table_id=table_id)
    path = timeline_path(f"{T}.clustering.requested")
    storage.create(path, b"plan")
    other = replace(commit_slot(2, table_id), kind=kind)
    for slot in (mine, other):
        storage.create(slot_path(slot.number), encode_slot(slot))
    revert_if_restored(table.context, mine, None)
    assert storage.stat(path) is not None
