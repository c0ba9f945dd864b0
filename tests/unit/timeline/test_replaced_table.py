"""F27: a table is dropped and created again while another process has it open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from tests.unit.timeline.commit_slots import commit_slot
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    Far,
    StillClock,
    files_below,
    new_table,
    opened,
    rows_of,
    upsert,
    world_of,
)
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.publishing import commit_in_section
from tests.unit.timeline.recording import RecordingStorage
from timeline.codecs.commit_log import encode_slot
from timeline.commit.commit_lock import CommitSection
from timeline.commit_log import CommitLog
from timeline.context import TableIdentity, TableLimits
from timeline.errors import OutcomeUnknownError, StorageUnavailableError, TableReplacedError
from timeline.model.file_names import (
    PROPERTIES,
    SLOTS,
    TABLE_DESCRIPTOR,
    TIMELINE,
    slot_path,
    timeline_path,
)
from timeline.model.instant import Action
from timeline.model.instant_time import Residue
from timeline.model.slot import Batch, Slot, SlotKind
from timeline.ports.ports import AmbiguousWriteError
from timeline.properties.properties_file import TableDescriptor, encode_table_descriptor
from timeline.properties.setting_enums import CommitLockMode, ForeignWriters
from timeline.system import ThreadExecutor


def slot(number: int, table_id: str) -> Slot:
    batches = (Batch(batch_id="b/1"),)
    return commit_slot(number, table_id, batches=batches, body=b"{}", timeline_digest="seen")


def storage_with(*slots: tuple[int, str]) -> MemoryStorage:
    """Return a storage of a table named ``new`` with these slots."""
    storage = MemoryStorage()
    storage.create(
        TABLE_DESCRIPTOR, encode_table_descriptor(TableDescriptor(table_id="new", slots=""))
    )
    for number, table_id in slots:
        storage.create(slot_path(number), encode_slot(slot(number, table_id)))
    return storage


def log_over(storage: object, table_id: str | None = "new") -> CommitLog:
    return CommitLog(world_of(storage, clock=StillClock()), table_id)


@pytest.mark.spec("SLOT-8")
@pytest.mark.parametrize("table_id", ["new", None])
def test_a_slot_of_an_earlier_table_takes_its_number_and_decides_nothing(table_id: str | None):
    commit_log = log_over(storage_with((1, "new"), (2, "old"), (3, "new")), table_id)
    assert commit_log.head() == 3
    found = commit_log.read(2)
    assert found is not None
    assert found.kind is SlotKind.NOOP
    assert (found.file_name, found.batches, found.body, found.timeline_digest) == (
        None,
        (),
        b"",
        "",
    )
    assert found.newest_time == slot(2, "old").newest_time
    assert found.digest, "the next hash link uses its bytes"
    assert commit_log.body_of(found.requested_time, found.completion_time) is None


@pytest.mark.spec("SLOT-8")
def test_a_slot_in_a_table_without_an_identity_is_of_an_earlier_one():
    storage = MemoryStorage()
    storage.create(slot_path(1), encode_slot(slot(1, "old")))
    found = log_over(storage, None).read(1)
    assert found is not None
    assert found.kind is SlotKind.NOOP


class Dropped(Behind):
    """The properties disappear before the table id is read, or right after it is created."""

    def __init__(self, inner: MemoryStorage, at: str) -> None:
        super().__init__(inner)
        self.at = at

    def read(self, path: str) -> bytes:
        if (self.at, path) == ("look", TABLE_DESCRIPTOR):
            self.inner.delete(PROPERTIES)
        return self.inner.read(path)

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.inner.create(path, data, durable=durable)
        if (self.at, path) == ("made", TABLE_DESCRIPTOR):
            self.inner.delete(PROPERTIES)


@pytest.mark.spec("SLOT-9")
@pytest.mark.parametrize("at", ["look", "made"])
def test_a_table_that_is_dropped_gets_no_identity(at: str):
    """With a new table id, a write would report success in a table that does not exist."""
    storage = MemoryStorage()
    new_table(storage)
    storage.delete(TABLE_DESCRIPTOR)
    with pytest.raises(TableReplacedError):
        TableIdentity(None).ensure(world_of(Dropped(storage, at)))
    assert storage.stat(TABLE_DESCRIPTOR) is None


@pytest.mark.spec("SLOT-8")
def test_a_writer_of_the_earlier_table_stops_at_a_slot_of_the_new_one():
    with pytest.raises(TableReplacedError):
        log_over(storage_with((1, "new")), "old").read(1)


@pytest.mark.spec("SLOT-8")
@pytest.mark.parametrize(
    ("slots", "head"),
    [
        ([(1, "new"), (2, "new"), (7, "old")], 2),
        ([(1, "new"), (2, "new"), (7, "old"), (8, "old"), (11, "old")], 2),
        ([(7, "old"), (8, "old")], 0),
        ([(1, "new"), (2, "new"), (3, "old")], 3),
        ([(1, "old"), (2, "old")], 2),
        ([(5, "new"), (6, "new"), (9, "old")], 6),
        ([(5, "new"), (6, "old")], 6),
    ],
)
@pytest.mark.parametrize("seen", [lambda storage: storage, Far], ids=["near", "far"])
def test_slots_of_another_table_after_a_gap_do_not_count(
    slots: list[tuple[int, str]], head: int, seen: Callable[[Any], Any]
):
    assert log_over(seen(storage_with(*slots))).head() == head


@pytest.mark.spec("SLOT-8")
def test_a_damaged_slot_raises_when_it_is_read_and_not_when_the_head_is_counted():
    storage = storage_with((1, "new"))
    storage.create(slot_path(2), b"torn")
    assert log_over(storage).head() == 2


@pytest.mark.spec("SLOT-8")
def test_a_writer_that_opened_a_table_during_its_drop_takes_no_slot_of_the_new_one():
    storage = storage_with((1, "new"))
    commit_log = log_over(storage, None)  # no table id was known when it was opened
    assert commit_log.head() == 1
    with pytest.raises(TableReplacedError, match="open the table again"):
        commit_log.take(slot(2, "old"))
    assert storage.names(SLOTS) == [slot_path(1).rpartition("/")[2]]


@pytest.mark.spec("SLOT-9")
@pytest.mark.spec("SLOT-10")
def test_the_completed_file_of_a_helped_slot_identifies_no_table_and_is_dropped():
    storage = storage_with((1, "old"))
    commit_log = log_over(storage, "old")
    helped = slot(1, "old")
    assert helped.file_name is not None
    names = {helped.file_name}
    assert commit_log.shows_same_table(helped, names)
    storage.create(timeline_path(helped.file_name), b"{}")
    commit_log.will_create_file(helped)
    assert not commit_log.shows_same_table(helped, names)
    with pytest.raises(TableReplacedError):
        commit_log.assert_same_table()
    assert storage.names(TIMELINE) == []
    assert not commit_log.has_created_files


@pytest.mark.spec("SLOT-10")
def test_a_helped_file_identifies_the_table_again_after_a_check_of_the_table_id():
    commit_log = log_over(storage_with((1, "new")))
    helped = slot(1, "new")
    commit_log.will_create_file(helped)
    commit_log.assert_same_table()
    assert not commit_log.has_created_files
    assert helped.file_name is not None
    assert commit_log.shows_same_table(helped, {helped.file_name})


A, B, C = ({"id": key, "p": "x", "ts": 1} for key in "abc")
OLD_MS, NEW_MS = 1_790_000_000_000, 1_790_000_100_000
OLD = "202609211413"  # in every name from before the drop
SHARED = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)
FREE = replace(BRISK, publish_lock=CommitLockMode.NONE)  # the old writer may hold the lock


class Swapped(Behind):
    """Replaces the table right before a chosen call."""

    def __init__(self, inner: MemoryStorage, commits: int = 1) -> None:
        super().__init__(inner)
        self.at = ""
        self.commits = commits
        self.new: TableReader | None = None

    def swap(self) -> None:
        for name in (".hoodie", "x"):
            self.inner.delete_folder(name)
        self.new = new_table(self.inner, clock=StillClock(NEW_MS), limits=FREE)
        for number in range(self.commits):
            upsert(self.new, [{"id": f"n{number}", "p": "x", "ts": 1}])

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if self.new is None and self.at and path.startswith(self.at):
            self.swap()
        self.inner.create(path, data, durable=durable)

    @property
    def table(self) -> TableReader:
        assert self.new is not None
        return self.new


def handle_of_old_table(storage: Swapped, *, far: bool = False) -> TableReader:
    """Open a table of two commits, long before the replacement."""
    table = new_table(storage.inner, clock=StillClock(OLD_MS))
    upsert(table, [A])
    seen: Any = Far(storage) if far else storage
    handle = opened(table, storage=seen, clock=StillClock(OLD_MS))
    upsert(handle, [B])
    return handle


def assert_new_table_works(storage: Swapped) -> None:
    """Check that the new table keeps its rows, and that old and new handles of it can write."""
    for writer in (storage.table, again(storage), storage.table):
        for _ in range(3):
            upsert(writer, [C])
    given = [f"n{number}" for number in range(storage.commits)]
    assert [key for (key,) in rows_of(again(storage), "id")] == sorted([*given, "c"])
    late = [path for path in files_below(storage.inner) if OLD in path]
    assert late == [], "no file of the old writer remains"


def again(storage: Swapped) -> TableReader:
    return opened(storage.table, limits=FREE, clock=StillClock(NEW_MS))


@pytest.mark.spec("SLOT-9")
@pytest.mark.parametrize("commits", [0, 2, 3])
def test_a_handle_of_a_dropped_table_leaves_the_new_one_as_it_is(commits: int):
    storage = Swapped(MemoryStorage(), commits=commits)
    handle = handle_of_old_table(storage)
    storage.swap()
    before = files_below(storage.inner)
    for _ in range(2):
        with pytest.raises(TableReplacedError, match="open the table again"):
            upsert(handle, [C])
    assert files_below(storage.inner) == before
    assert_new_table_works(storage)


@pytest.mark.spec("SLOT-9")
def test_a_reader_of_a_dropped_table_gets_an_error():
    storage = Swapped(MemoryStorage())
    handle = handle_of_old_table(storage)
    storage.swap()
    with pytest.raises(TableReplacedError):
        rows_of(handle, "id")


@pytest.mark.spec("SLOT-9")
def test_a_writer_of_a_dropped_table_creates_no_files():
    storage = Swapped(MemoryStorage())
    handle = handle_of_old_table(storage)
    storage.inner.delete_folder(".hoodie")
    with pytest.raises(TableReplacedError, match="dropped"):
        upsert(handle, [C])
    assert files_below(storage.inner, ".hoodie") == []


@pytest.mark.spec("SLOT-9")
def test_a_table_identified_by_its_newest_files_costs_no_read_of_the_table_id():
    observed = RecordingStorage(MemoryStorage())
    table = new_table(observed, clock=StillClock())
    upsert(table, [A])
    observed.forget()
    table.context.refresh()
    assert f"read {TABLE_DESCRIPTOR}" not in observed.operations()


@pytest.mark.spec("SLOT-10")
@pytest.mark.parametrize("commits", [0, 2, 3])
@pytest.mark.parametrize("at", [TIMELINE, ".hoodie/.temp", SLOTS], ids=["begin", "files", "slot"])
@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
def test_a_write_under_which_the_table_is_replaced_leaves_nothing_in_the_new_one(
    commits: int, at: str, far: bool
):
    storage = Swapped(MemoryStorage(), commits=commits)
    handle = handle_of_old_table(storage, far=far)
    storage.at = at
    with pytest.raises(TableReplacedError):
        upsert(handle, [C])
    assert_new_table_works(storage)


class Reversed(ThreadExecutor):
    def concurrently(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return [call() for call in reversed(calls)][::-1]


class Mute(Behind):
    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.endswith(".commit") and path.startswith(TIMELINE):
            raise StorageUnavailableError("no answer")
        self.inner.create(path, data, durable=durable)


@pytest.mark.spec("SLOT-10")
@pytest.mark.spec("PUB-3")
@pytest.mark.parametrize("commits", [0, 3, 4, 6])
@pytest.mark.parametrize("executor", [ThreadExecutor, Reversed])
def test_a_commit_that_was_helped_along_with_a_slot_is_not_visible_in_the_new_table(
    commits: int, executor: type[ThreadExecutor]
):
    storage = Swapped(MemoryStorage(), commits=commits)
    handle = handle_of_old_table(storage, far=True)
    limits = replace(FREE, unknown_ms_max=0)
    silent = Far(Mute(storage))
    dead = opened(handle, storage=silent, clock=StillClock(OLD_MS), limits=limits)
    with pytest.raises(OutcomeUnknownError):
        upsert(dead, [C])
    helper = opened(handle, storage=Far(storage), clock=StillClock(OLD_MS), limits=FREE)
    ports = replace(helper.context.ports, executor=executor(1))
    object.__setattr__(helper.context, "ports", ports)
    object.__setattr__(helper.context.commit_log, "_world", ports)
    storage.at = SLOTS
    with pytest.raises(TableReplacedError):
        upsert(helper, [{"id": "d", "p": "z", "ts": 1}])
    assert_new_table_works(storage)


@pytest.mark.spec("SLOT-10")
@pytest.mark.parametrize(
    ("far", "limits"),
    [(False, BRISK), (True, BRISK), (False, SHARED)],
    ids=["near", "far", "beside other engines"],
)
def test_a_service_whose_slot_is_in_another_table_deletes_nothing(far: bool, limits: TableLimits):
    storage = Swapped(MemoryStorage())
    handle = opened(handle_of_old_table(storage, far=far), limits=limits, clock=StillClock(OLD_MS))
    storage.at = SLOTS
    data = "y/a-0_0-0-0_20260101000000000.parquet"
    storage.inner.create(data, b"of the other table")

    def decide(section: CommitSection) -> Slot:
        time = section.draw_time(handle.context, Residue.SLOT_REQUESTED)
        return section.next_slot(
            handle.context, SlotKind.CLEAN, Action.CLEAN, time, nonce="n", deletes=(data,)
        )

    with pytest.raises(TableReplacedError):
        commit_in_section(handle.context, "clean", decide)
    assert storage.inner.stat(data) is not None
    storage.inner.delete(data)
    assert_new_table_works(storage)


class Unheard(Behind):
    """The table is replaced before the completed file, and the create has no answer."""

    inner: Swapped
    answers = True

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        shows = path.startswith(TIMELINE) and path.endswith(".commit")
        if shows and self.inner.new is None:
            self.inner.swap()
        self.inner.create(path, data, durable=durable)
        if shows:
            raise AmbiguousWriteError(path)

    def read(self, path: str) -> bytes:
        if path == TABLE_DESCRIPTOR and self.inner.new is not None and not self.answers:
            raise StorageUnavailableError("no answer")
        return bytes(self.inner.read(path))


def unheard(storage: Swapped) -> tuple[Unheard, TableReader]:
    old = handle_of_old_table(storage)
    between = Unheard(storage)
    limits = replace(FREE, unknown_ms_max=-1)  # as after a pause
    return between, opened(old, storage=between, clock=StillClock(OLD_MS), limits=limits)


@pytest.mark.spec("SLOT-10")
@pytest.mark.parametrize("commits", [0, 2])
def test_a_writer_that_abandons_its_completed_file_checks_for_a_replaced_table(commits: int):
    """S16:696325: no other writer deletes the file, and in the new table it is a commit."""
    storage = Swapped(MemoryStorage(), commits=commits)
    _, handle = unheard(storage)
    with pytest.raises(TableReplacedError):
        upsert(handle, [C])
    assert_new_table_works(storage)


@pytest.mark.spec("SLOT-10")
def test_without_the_table_id_an_abandoned_completed_file_has_an_unknown_outcome():
    between, handle = unheard(Swapped(MemoryStorage()))
    between.answers = False
    with pytest.raises(OutcomeUnknownError, match="could not be written"):
        upsert(handle, [C])


class Silent(Behind):
    """Leaves the first reads of the table id after the next slot unanswered."""

    silent = 0
    behind = False

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.inner.create(path, data, durable=durable)
        self.behind = self.behind or path.startswith(SLOTS)

    def read(self, path: str) -> bytes:
        if path == TABLE_DESCRIPTOR and self.behind and self.silent:
            self.silent -= 1
            raise StorageUnavailableError("no answer")
        return self.inner.read(path)


@pytest.mark.spec("SLOT-10")
def test_an_unanswered_read_of_the_table_id_is_repeated():
    storage = Silent(MemoryStorage())
    storage.silent = 3
    table = new_table(storage, clock=StillClock())
    upsert(table, [A])
    assert storage.silent == 0
    assert rows_of(table, "id") == [("a",)]


@pytest.mark.spec("SLOT-10")
def test_a_write_without_the_table_id_has_an_unknown_outcome():
    storage = Silent(MemoryStorage())
    limits = replace(BRISK, unknown_ms_max=1_000)
    table = new_table(storage, clock=StillClock(), limits=limits)
    storage.silent = 1_000
    with pytest.raises(OutcomeUnknownError):
        upsert(table, [A])
    storage.silent = 0
    upsert(opened(table), [B])
    assert rows_of(table, "id") == [("a",), ("b",)], "applied by the next writer"
