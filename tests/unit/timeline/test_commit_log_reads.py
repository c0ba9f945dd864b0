"""Requests of the commit log to a local and to a high-latency store."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.timeline.commit_slots import commit_slot
from tests.unit.timeline.engine import Behind, Far, Heard, StillClock, world_of
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.codecs.commit_log import encode_slot
from timeline.commit_log import CommitLog
from timeline.errors import TableReplacedError, UnsupportedTableError
from timeline.model.file_names import SLOTS, TABLE_DESCRIPTOR, slot_path
from timeline.model.slot import ENGINE_VERSION, Slot, SlotKind
from timeline.properties.properties_file import TableDescriptor, encode_table_descriptor
from timeline.system import ThreadExecutor


def slot(number: int, table_id: str = "t", kind: SlotKind = SlotKind.COMMIT) -> Slot:
    body = f"body {number}".encode() if kind is SlotKind.COMMIT else b""
    return commit_slot(number, table_id, kind=kind, body=body)


def add(storage: MemoryStorage, *numbers: int, table_id: str = "t") -> None:
    for number in numbers:
        storage.create(slot_path(number), encode_slot(slot(number, table_id)))


def filled(*numbers: int) -> MemoryStorage:
    """Return a storage with these slots of a table named ``t``."""
    storage = MemoryStorage()
    storage.create(
        TABLE_DESCRIPTOR, encode_table_descriptor(TableDescriptor(table_id="t", slots=""))
    )
    add(storage, *numbers)
    return storage


class Rounds(ThreadExecutor):
    """Runs the calls of a round one after the other, and records their number."""

    def __init__(self) -> None:
        super().__init__(1)
        self.sizes: list[int] = []

    def concurrently(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        self.sizes.append(len(calls))
        return [call() for call in calls]


class RecordedLog:
    """A commit log and its requests: numbers of the slots that it reads, 0 for a listing."""

    def __init__(self, inner: Any, table_id: str | None = "t") -> None:
        self.storage = RecordingStorage(inner)
        self.executor = Rounds()
        ports = world_of(self.storage, clock=StillClock())
        self.ports = replace(ports, executor=self.executor)
        self.commit_log = CommitLog(self.ports, table_id)

    def asked(self) -> list[int]:
        """Return the requests for slots since the last call, in order."""
        paths = [call.path for call in self.storage.calls if call.path.startswith(SLOTS)]
        self.forget()
        return [0 if path == SLOTS else int(path.rpartition("/")[2]) for path in paths]

    def forget(self) -> None:
        self.storage.forget()
        self.executor.sizes.clear()


def near(storage: Any) -> RecordedLog:
    return RecordedLog(storage)


def far(storage: Any) -> RecordedLog:
    return RecordedLog(Far(storage))


def behind(log_of: Callable[[Any], RecordedLog], last: int, *, cached: bool = False) -> RecordedLog:
    """Return a log that knows only the first slot, while the storage has more."""
    storage = filled(1)
    mine = log_of(storage)
    mine.commit_log.head()
    add(storage, *range(2, last + 1))
    if cached:
        mine.commit_log.cached_head()
    mine.forget()
    return mine


BOTH = pytest.mark.parametrize("log_of", [near, far])


# ---------------------------------------------------------------- the first read


@BOTH
def test_the_first_read_of_the_head_lists_once(log_of: Callable[[Any], RecordedLog]) -> None:
    mine = log_of(filled(1, 2, 3))
    assert mine.commit_log.head() == 3
    assert sorted(mine.asked()) == [0, 3, 4], (
        "the last listed slot is read, and the first absent one"
    )


@BOTH
def test_an_empty_commit_log_costs_one_listing_and_one_read(
    log_of: Callable[[Any], RecordedLog],
) -> None:
    mine = log_of(filled())
    for _ in range(2):
        assert mine.commit_log.head() == 0
        assert mine.asked() == [0, 1]


@pytest.mark.parametrize("last", [1, 3])
def test_on_a_high_latency_store_the_last_listed_slot_is_read_along_with_the_first_probe(
    last: int,
) -> None:
    mine = far(filled(*range(1, last + 1)))
    assert mine.commit_log.head() == last
    assert mine.executor.sizes == [2]
    assert sorted(mine.asked()) == [0, last, last + 1]


@BOTH
def test_a_further_read_of_the_head_requests_the_next_slot_only(
    log_of: Callable[[Any], RecordedLog],
) -> None:
    mine = log_of(filled(1))
    mine.commit_log.head()
    mine.forget()
    assert mine.commit_log.head() == 1
    assert mine.asked() == [2]


# ---------------------------------------------------------------- the reach of a refresh


def test_on_a_local_store_only_the_first_missing_slot_is_requested() -> None:
    mine = behind(near, 11)
    assert mine.commit_log.head() == 11
    assert mine.asked() == list(range(2, 13))
    assert mine.commit_log.head() == 11
    assert mine.asked() == [12], "however many slots are new"


def test_on_a_high_latency_store_each_round_requests_twice_as_many_slots_up_to_eight() -> None:
    mine = behind(far, 31)
    assert mine.commit_log.head() == 31
    assert mine.executor.sizes == [2, 4, 8, 8, 8], "twice as many as in the round before"
    assert mine.asked() == list(range(2, 33))


@BOTH
def test_on_a_high_latency_store_a_single_new_slot_means_contention(
    log_of: Callable[[Any], RecordedLog],
) -> None:
    mine = behind(log_of, 2)
    assert not mine.commit_log.is_contended
    mine.commit_log.head()
    assert mine.commit_log.is_contended is (log_of is far)


# ---------------------------------------------------------------- slots of a listing


@BOTH
def test_the_greatest_of_two_listed_ends_is_the_head(log_of: Callable[[Any], RecordedLog]) -> None:
    """Truncation deleted the slots in the gap; the remaining ones before it are not the head."""
    assert log_of(filled(1, 2, 5, 6)).commit_log.head() == 6


@BOTH
def test_an_end_before_a_gap_counts_where_the_slots_above_it_are_another_tables(
    log_of: Callable[[Any], RecordedLog],
) -> None:
    storage = filled(5)
    add(storage, 7, table_id="earlier")
    assert log_of(storage).commit_log.head() == 5


@BOTH
def test_slots_that_were_truncated_after_the_listing_lead_to_the_head(
    log_of: Callable[[Any], RecordedLog],
) -> None:
    class Stale(Behind):
        def names(self, folder: str) -> list[str]:
            return [slot_path(number).rpartition("/")[2] for number in range(1, 6)]

    assert log_of(Stale(filled(6, 7))).commit_log.head() == 7


def test_each_listed_end_and_each_slot_before_it_is_requested_once() -> None:
    storage = filled(1, 2)
    add(storage, 7, 8, table_id="earlier")
    mine = near(storage)
    assert mine.commit_log.head() == 2
    assert mine.asked() == [0, 9, 8, 7, 6, 3, 2]


def test_a_commit_log_of_an_earlier_table_is_read_down_to_its_first_slot_once() -> None:
    storage = filled()
    add(storage, 1, 2, table_id="earlier")
    mine = near(storage)
    assert mine.commit_log.head() == 2
    assert mine.asked() == [0, 3, 2, 1]


@BOTH
@pytest.mark.spec("SLOT-8")
def test_the_first_read_of_the_head_detects_a_replaced_table(
    log_of: Callable[[Any], RecordedLog],
) -> None:
    storage = MemoryStorage()
    storage.create(
        TABLE_DESCRIPTOR, encode_table_descriptor(TableDescriptor(table_id="new", slots=""))
    )
    add(storage, 1, table_id="new")
    with pytest.raises(TableReplacedError):
        log_of(storage).commit_log.head()


@BOTH
@pytest.mark.spec("SLOT-3")
@pytest.mark.parametrize(
    ("known", "newer"),
    [(b'"v":1', f'"v":{ENGINE_VERSION + 1}'.encode()), (b'"kind":"commit"', b'"kind":"merge"')],
    ids=["version", "kind"],
)
def test_a_slot_for_a_newer_engine_at_the_head_is_refused_on_the_first_and_on_each_later_read(
    log_of: Callable[[Any], RecordedLog], known: bytes, newer: bytes
) -> None:
    storage = filled(1)
    early = log_of(storage)
    assert early.commit_log.head() == 1
    line = encode_slot(slot(2)).split(b"\n")[0].replace(known, newer)
    storage.create(slot_path(2), line + f"\n{zlib.crc32(line):08x} {len(line)}\n".encode())
    for mine in (early, early, log_of(storage)):
        with pytest.raises(UnsupportedTableError) as refused:
            mine.commit_log.head()
        assert refused.value.fields["least_engine_version"] == ENGINE_VERSION + 1


def test_a_cached_head_counts_a_single_new_slot_once() -> None:
    storage = filled(3, 4)
    mine = near(storage)
    mine.commit_log.head()
    add(storage, 5)
    mine.forget()
    mine.commit_log.cached_head()
    assert mine.commit_log.known_head == 5
    assert mine.asked() == [0]


def test_on_a_high_latency_store_a_refresh_reads_the_last_eight_slots_of_the_cached_head() -> None:
    """A writer that validates would otherwise read them one by one, perhaps under the lock."""
    mine = behind(far, 31, cached=True)
    assert mine.commit_log.head() == 31
    assert sorted(mine.asked()) == [*range(23, 33)], "and the first absent slot"
    assert mine.commit_log.is_contended
    assert len(mine.commit_log.between(1, 31)) == 30
    assert mine.executor.sizes == [8, 8, 8]
    assert sorted(mine.asked()) == [*range(2, 23)]
    assert mine.commit_log.head() == 31
    assert mine.asked()[0] == 32, "cached slots are not read again"


def test_on_a_high_latency_store_no_slot_outside_the_range_is_read() -> None:
    mine = far(filled(*range(1, 13)))
    assert len(mine.commit_log.between(1, 11)) == 10
    assert mine.executor.sizes == [8, 2]
    assert sorted(mine.asked()) == [*range(2, 12)]


def test_a_cached_head_before_the_first_read_does_not_mean_contention() -> None:
    mine = far(filled(*range(1, 13)))
    mine.commit_log.cached_head()
    mine.forget()
    assert mine.commit_log.head() == 12
    assert sorted(mine.asked()) == [12, 13]
    assert not mine.commit_log.is_contended


@pytest.mark.parametrize("new_slots", [1, 2, 8])
def test_on_a_high_latency_store_a_cached_head_does_not_hide_contention(new_slots: int) -> None:
    with_cached, without_cached = (behind(far, 1 + new_slots, cached=it) for it in (True, False))
    assert with_cached.commit_log.head() == without_cached.commit_log.head() == 1 + new_slots
    assert with_cached.commit_log.is_contended
    assert without_cached.commit_log.is_contended


def test_on_a_local_store_a_read_after_a_cached_head_requests_the_next_slot_only() -> None:
    mine = behind(near, 5, cached=True)
    assert mine.commit_log.head() == 5
    assert mine.asked() == [6]


@BOTH
def test_the_cached_head_counts_although_its_slots_were_truncated_meanwhile(
    log_of: Callable[[Any], RecordedLog],
) -> None:
    mine = behind(log_of, 5, cached=True)
    for number in range(1, 5):
        mine.storage.delete(slot_path(number))
    assert mine.commit_log.head() == 5


def test_an_own_slot_is_not_requested_again() -> None:
    mine = far(filled(1))
    mine.commit_log.head()
    mine.commit_log.take(slot(2))
    mine.forget()
    assert mine.commit_log.head() == 2
    assert mine.asked() == [3]
    assert not mine.commit_log.is_contended, "no other writer committed"


@BOTH
def test_cached_slots_of_a_range_are_returned_without_requests(
    log_of: Callable[[Any], RecordedLog],
) -> None:
    mine = log_of(filled(*range(1, 7)))
    for number in (2, 3, 5):
        mine.commit_log.read(number)
    mine.forget()
    assert [one.number for one in mine.commit_log.known_between(1, 5)] == [2, 3, 5]
    assert [one.number for one in mine.commit_log.known_between(2, 4)] == [3]
    assert mine.asked() == []


@BOTH
def test_a_taken_slot_or_a_cached_head_loads_the_commit_log(
    log_of: Callable[[Any], RecordedLog],
) -> None:
    taking, with_cached = log_of(filled()).commit_log, log_of(filled(1)).commit_log
    assert [commit_log.is_loaded for commit_log in (taking, with_cached)] == [False, False]
    taking.take(slot(1))
    with_cached.cached_head()
    assert [commit_log.is_loaded for commit_log in (taking, with_cached)] == [True, True]


# ---------------------------------------------------------------- from the newest down


def test_on_a_local_store_no_slot_is_read_before_it_is_needed() -> None:
    mine = near(filled(*range(1, 13)))
    newest = mine.commit_log.newest_first(12)
    for number in (12, 11):
        assert next(newest).number == number
        assert mine.asked() == [number]


def test_on_a_high_latency_store_eight_slots_are_read_along_with_the_first_unknown_one() -> None:
    mine = far(filled(*range(1, 13)))
    assert [one.number for one in mine.commit_log.newest_first(12)] == list(range(12, 0, -1))
    assert mine.executor.sizes == [8, 4]
    assert sorted(mine.asked()) == list(range(1, 13))


def test_the_newest_known_slots_are_the_last_eight_up_to_a_number() -> None:
    mine = near(filled(*range(1, 13)))
    mine.commit_log.between(0, 12)
    for head, least in ((12, 5), (9, 2), (8, 1), (3, 1)):
        known = [one.number for one in mine.commit_log.newest_known(head)]
        assert known == list(range(head, least - 1, -1))


def test_a_slot_that_was_not_read_is_not_among_the_newest_known() -> None:
    mine = near(filled(1, 2, 3))
    mine.commit_log.read(2)
    mine.forget()
    assert [one.number for one in mine.commit_log.newest_known(3)] == [2]
    assert mine.asked() == []


# ---------------------------------------------------------------- cached commits


def body(mine: RecordedLog, requested: int, completed: int) -> bytes | None:
    return mine.commit_log.body_of(slot(requested).requested_time, slot(completed).completion_time)


@pytest.mark.spec("SLOT-5")
def test_a_cached_commit_returns_its_body_by_both_of_its_times() -> None:
    mine = near(filled(1, 2))
    mine.commit_log.between(0, 2)
    mine.forget()
    assert [body(mine, number, number) for number in (1, 2)] == [b"body 1", b"body 2"]
    assert body(mine, 1, 2) is None, "this instant has another completion time"
    assert body(mine, 3, 1) is None, "no slot has this instant"
    assert mine.asked() == []


@pytest.mark.spec("SLOT-5")
def test_only_a_cached_commit_returns_a_body() -> None:
    storage = filled(1)
    storage.create(slot_path(2), encode_slot(slot(2, kind=SlotKind.NOOP)))
    mine = near(storage)
    assert body(mine, 1, 1) is None, "the slot is not in the cache yet"
    mine.commit_log.between(0, 2)
    assert body(mine, 1, 1) == b"body 1"
    assert body(mine, 2, 2) is None
    mine.commit_log.forget(1)
    assert body(mine, 1, 1) is None
    mine.commit_log.read(1)
    assert body(mine, 1, 1) == b"body 1"


def test_twice_as_many_slots_as_the_cache_limit_are_all_kept() -> None:
    mine = near(filled(*range(1, 6)))
    mine.commit_log.cached_head()
    mine.commit_log.between(0, 4)
    mine.commit_log.keep_newest(2)
    mine.forget()
    assert len(mine.commit_log.between(0, 4)) == 4
    assert mine.asked() == []


def test_one_more_slot_drops_all_but_the_newest_from_the_cache() -> None:
    mine = near(filled(*range(1, 6)))
    mine.commit_log.head()
    mine.commit_log.between(0, 5)
    mine.commit_log.keep_newest(2)
    mine.forget()
    assert len(mine.commit_log.between(0, 5)) == 5
    assert mine.asked() == [1, 2, 3]


@pytest.mark.spec("GC-2")
def test_a_slot_of_another_table_is_requested_again() -> None:
    storage = filled()
    mine = near(storage)
    mine.commit_log.take(slot(1))
    mine.commit_log.mark_void(slot(1))
    mine.forget()
    assert mine.commit_log.read(1) is not None
    assert mine.asked() == [1]
    mine.commit_log.mark_void(slot(1))
    storage.delete(slot_path(1))
    assert mine.commit_log.read(1) is None


# ---------------------------------------------------------------- which table it is


@pytest.mark.spec("SLOT-8")
def test_a_slot_of_another_table_is_reported_with_its_number_and_table() -> None:
    storage = filled(1)
    add(storage, 2, table_id="earlier")
    mine = near(storage)
    mine.commit_log.between(0, 2)
    mine.commit_log.between(0, 2)
    events = mine.ports.events
    assert isinstance(events, Heard)
    assert events.events == [("slot.of_another_table", {"number": 2, "table": "earlier"})]


def test_a_commit_log_without_a_table_id_makes_no_check() -> None:
    mine = RecordedLog(filled(), table_id=None)
    mine.commit_log.assert_same_table()
    assert mine.storage.calls == []


def test_a_commit_log_learns_its_table_id_from_the_first_slot_it_takes() -> None:
    mine = RecordedLog(filled(), table_id=None)
    mine.commit_log.take(slot(1))
    mine.commit_log.assert_same_table()
    mine.storage.write(
        TABLE_DESCRIPTOR, encode_table_descriptor(TableDescriptor(table_id="new", slots=""))
    )
    with pytest.raises(TableReplacedError):
        mine.commit_log.assert_same_table()


def test_a_commit_log_keeps_its_table_id_after_a_failed_take() -> None:
    storage = MemoryStorage()
    storage.create(
        TABLE_DESCRIPTOR, encode_table_descriptor(TableDescriptor(table_id="new", slots=""))
    )
    mine = near(storage)
    with pytest.raises(TableReplacedError):
        mine.commit_log.take(slot(1, "new"))
    assert storage.names(SLOTS) == []
    with pytest.raises(TableReplacedError):
        mine.commit_log.assert_same_table()
