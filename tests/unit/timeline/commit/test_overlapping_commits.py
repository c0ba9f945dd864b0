"""On a high-latency store a completed file and the next slot are created at once (PUB-3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from tableservices.cleaning import plan as facts
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    Far,
    StillClock,
    begun,
    data_files,
    new_table,
    opened,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.publishing import commit_in_section, write_at
from timeline.commit.apply import newest_slots, not_applied
from timeline.commit.begin import begin
from timeline.commit.commit_lock import CommitSection
from timeline.commit.object_store import ObjectStoreCommit
from timeline.commit.protocol import CommitProtocol, LocalCommit
from timeline.commit.section import open_commit
from timeline.commit.shared_with_java import SharedWithJava
from timeline.errors import OutcomeUnknownError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import SLOTS, TIMELINE, slot_path, timeline_path
from timeline.model.instant import Action, State
from timeline.model.instant_time import Residue
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import AmbiguousWriteError
from timeline.properties.setting_enums import CommitLockMode, ForeignWriters
from timeline.rules.conflicts import RuleId
from timeline.system import ThreadExecutor

FREE = replace(BRISK, publish_lock=CommitLockMode.NONE, unknown_ms_max=1_000)
MINE = "20260102030405000"
CLEANING = CleaningSettings(commits_retained=1)


class Mute(Behind):
    """Does not create completed files with this text in the name, and does not answer."""

    def __init__(self, inner: Any, part: str = "", *, ends: str = ".commit") -> None:
        super().__init__(inner)
        self.part, self.ends = part, ends

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.startswith(TIMELINE) and path.endswith(self.ends) and self.part in path:
            raise AmbiguousWriteError(path)
        self.inner.create(path, data, durable=durable)


class Rounds(ThreadExecutor):
    """Runs concurrent calls one after the other, and numbers the rounds."""

    def __init__(self) -> None:
        super().__init__(1)
        self.number = 0
        self.inside = 0

    def concurrently(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        self.number += not self.inside
        self.inside += 1
        try:
            return [call() for call in calls]
        finally:
            self.inside -= 1
            self.number += not self.inside


class Noted(Behind):
    """The created files with their round."""

    def __init__(self, inner: Any, rounds: Rounds) -> None:
        super().__init__(inner)
        self.rounds = rounds
        self.made: dict[str, int] = {}
        self.shown: dict[str, int] = {}

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.rounds.number += not self.rounds.inside  # a single create is its own round
        self.inner.create(path, data, durable=durable)
        self.shown[path] = self.rounds.number
        if path.startswith(SLOTS) or path.endswith(".commit"):
            self.made[path] = self.rounds.number


class Story:
    """A table with one commit, and writers that die after they take their slots."""

    def __init__(self) -> None:
        self.base = MemoryStorage()
        self.clock = StillClock()
        self.table = self.open(Far(self.base), made=True)
        upsert(self.table, [{"id": name, "p": "x", "ts": 1, "v": 1} for name in "ae"])

    def open(self, storage: Any, *, made: bool = False, executor: Any = None) -> TableReader:
        if made:
            return new_table(storage, limits=FREE, clock=self.clock)
        table = opened(self.table, storage=storage, limits=FREE, clock=self.clock)
        if executor is None:
            return table
        ports = replace(table.context.ports, executor=executor)
        object.__setattr__(table.context, "ports", ports)
        object.__setattr__(table.context.commit_log, "_world", ports)
        return table

    def dies(self, row: dict[str, Any], **options: Any) -> Slot:
        """Commit a write whose process dies before the completed file."""
        dead = self.open(Far(Mute(self.base)))
        with pytest.raises(OutcomeUnknownError):
            upsert(dead, [row], **options)
        slot = self.newest()
        assert slot.kind is SlotKind.COMMIT
        return slot

    def newest(self) -> Slot:
        commit_log = opened(self.table, clock=self.clock).context.commit_log
        slot = commit_log.read(commit_log.head())
        assert slot is not None
        return slot

    def is_there(self, slot: Slot) -> bool:
        assert slot.file_name is not None
        return slot.file_name in self.base.names(TIMELINE)


def file_of(slot: Slot) -> str:
    assert slot.file_name is not None
    return timeline_path(slot.file_name)


@pytest.mark.spec("PUB-3")
@pytest.mark.parametrize("far", [True, False])
def test_on_a_high_latency_store_the_previous_completed_file_is_created_along_with_the_next_slot(
    far: bool,
) -> None:
    story = Story()
    dead = story.dies({"id": "b", "p": "y", "ts": 1, "v": 1})
    rounds = Rounds()
    noted = Noted(story.base, rounds)
    upsert(
        story.open(Far(noted) if far else noted, executor=rounds),
        [{"id": "c", "p": "z", "ts": 1, "v": 1}],
    )
    made = list(noted.made)
    mine = story.newest()
    assert sorted(made[:2]) == sorted([file_of(dead), slot_path(3)])
    assert made[2:] == [file_of(mine)], "its own completed file follows both"
    if far:
        assert noted.made[file_of(dead)] == noted.made[slot_path(3)] < noted.made[file_of(mine)]
    else:
        assert made[0] == file_of(dead), "all slots are applied before the next slot"
    assert rows_of(story.table, "id") == [("a",), ("b",), ("c",), ("e",)]


def two_dead() -> tuple[Story, Slot, Slot]:
    story = Story()
    first = story.dies({"id": "b", "p": "y", "ts": 1, "v": 1})
    second = story.dies({"id": "c", "p": "z", "ts": 1, "v": 1})
    assert (first.number, second.number) == (2, 3)
    assert not story.is_there(first)
    assert not story.is_there(second)
    return story, first, second


@pytest.mark.spec("PUB-3")
@pytest.mark.spec("HELP-1")
@pytest.mark.parametrize("far", [True, False])
def test_two_commits_without_completed_files_are_applied_in_slot_order(far: bool) -> None:
    story, first, second = two_dead()
    noted = Noted(story.base, Rounds())
    upsert(
        story.open(Far(noted) if far else noted, executor=noted.rounds),
        [{"id": "d", "p": "z", "ts": 1, "v": 1}],
    )
    made = [path for path in noted.made if path.startswith(TIMELINE)]
    assert made == [file_of(first), file_of(second), file_of(story.newest())]
    assert list(noted.made).index(file_of(first)) < list(noted.made).index(slot_path(4))
    assert rows_of(story.table, "id") == [("a",), ("b",), ("c",), ("d",), ("e",)]


@pytest.mark.spec("PUB-3")
def test_a_third_slot_is_not_taken_while_the_first_of_two_commits_has_no_completed_file() -> None:
    story, first, _ = two_dead()
    mute = story.open(Far(Mute(story.base, first.requested_time)))
    with pytest.raises(Exception, match="the storage failed while this process applied"):
        upsert(mute, [{"id": "d", "p": "z", "ts": 1, "v": 1}])
    assert story.newest().number == 3
    assert not story.is_there(first)


@pytest.mark.spec("PUB-3")
@pytest.mark.spec("UNK-5")
def test_a_completed_file_is_not_created_before_that_of_the_previous_commit() -> None:
    story = Story()
    dead = story.dies({"id": "b", "p": "y", "ts": 1, "v": 1})
    mute = story.open(Far(Mute(story.base, dead.requested_time)))
    with pytest.raises(OutcomeUnknownError):
        upsert(mute, [{"id": "c", "p": "z", "ts": 1, "v": 1}])
    mine = story.newest()
    assert mine.number == 3
    assert not story.is_there(mine)
    assert rows_of(story.table, "id") == [("a",), ("e",)]
    upsert(story.table, [{"id": "d", "p": "z", "ts": 1, "v": 1}])
    assert rows_of(story.table, "id") == [("a",), ("b",), ("c",), ("d",), ("e",)]


@pytest.mark.spec("PUB-3")
def test_a_table_service_takes_no_slot_before_both_commits_are_applied() -> None:
    story, first, second = two_dead()
    context = story.open(Far(story.base)).context

    def decide(section: CommitSection) -> Slot:
        assert story.is_there(first)
        assert story.is_there(second)
        assert {first.file_name, second.file_name} <= section.timeline.file_names
        time = section.draw_time(context, Residue.SLOT_REQUESTED)
        return section.next_slot(context, SlotKind.NOOP, Action.COMMIT, time, nonce="n" * 32)

    slot, lost = commit_in_section(context, "test", decide)
    assert slot is not None
    assert (slot.number, lost) == (4, 0)


@pytest.mark.spec("PUB-3")
def test_a_table_service_slot_is_applied_before_the_next_slot_is_taken() -> None:
    """A table service deletes files, so no write is validated before the deletes are done."""
    story = Story()
    for number in range(3):
        upsert(story.table, [{"id": "a", "p": "x", "ts": 2 + number, "v": number}])
    with pytest.raises(OutcomeUnknownError):
        clean(story.open(Far(Mute(story.base, ends=".clean"))).context, CLEANING)
    dead = story.newest()
    assert dead.kind is SlotKind.CLEAN
    assert not story.is_there(dead)
    noted = Noted(story.base, Rounds())
    upsert(story.open(Far(noted), executor=noted.rounds), [{"id": "b", "p": "y", "ts": 1, "v": 1}])
    slot, *others = noted.made
    assert slot == slot_path(dead.number + 1)
    assert noted.made[slot] > noted.shown[file_of(dead)]
    assert others == [file_of(story.newest())]


@pytest.mark.spec("PUB-3")
@pytest.mark.spec("PUB-4")
@pytest.mark.parametrize(
    ("dead", "mine", "remaining"),
    [
        (("a", "x", 2), ("b", "x", 1), [("a", 2), ("b", 1), ("e", 1)]),
        (("n", "q", 1), ("n", "q", 2), [("a", 1), ("e", 1), ("n", 2)]),
    ],
    ids=["file groups done again", "begun anew"],
)
def test_a_write_rejected_by_an_unapplied_commit_applies_it_and_retries(
    dead: tuple[str, str, int], mine: tuple[str, str, int], remaining: list[tuple[str, int]]
) -> None:
    """Without that completed file each retry would be rejected for the same reason."""
    story = Story()
    first, second = ({"id": key, "p": part, "ts": v, "v": v} for key, part, v in (dead, mine))
    story.dies(first)
    assert upsert(story.open(Far(story.base)), [second]).attempts == 2
    assert rows_of(story.table, "id", "v") == remaining


@pytest.mark.spec("BATCH-1")
@pytest.mark.parametrize("place", [0, 1])
def test_a_batch_of_two_unapplied_commits_is_not_committed_again(place: int) -> None:
    story = Story()
    for number in range(2):
        row = {"id": f"n{number}", "p": f"q{number}", "ts": 1, "v": 1}
        story.dies(row, batch_id="mine" if number == place else None)
    end = begun(
        story.open(Far(story.base)),
        WriteOperation.UPSERT,
        [{"id": "b", "p": "z", "ts": 1, "v": 1}],
        batch_id="mine",
    )
    with pytest.raises(AssertionError):
        end()
    assert [row for row in rows_of(story.table, "id") if row == ("b",)] == []


@pytest.mark.spec("PUB-4")
@pytest.mark.parametrize("place", [0, 1])
def test_a_snapshot_without_the_completed_files_of_two_commits_conflicts_with_both(
    place: int,
) -> None:
    """Their slots precede the base snapshot, and their completed files follow it."""
    story = Story()
    rows = [{"id": "a", "p": "x", "ts": 2, "v": 2}, {"id": "c", "p": "z", "ts": 1, "v": 1}]
    for row in (rows[place], rows[1 - place]):
        story.dies(row)
    end = begun(
        story.open(Far(story.base)),
        WriteOperation.UPSERT,
        [{"id": "e", "p": "x", "ts": 5, "v": 5}],
    )
    upsert(story.open(Far(story.base)), [{"id": "d", "p": "w", "ts": 1, "v": 1}])
    end()
    assert rows_of(story.table, "id", "v") == [("a", 2), ("c", 1), ("d", 1), ("e", 5)]


@pytest.mark.spec("PUB-3")
def test_a_commit_is_applied_before_a_service_or_a_slot_with_a_timeline_digest() -> None:
    story, first, second = two_dead()
    context = opened(story.table, clock=story.clock).context
    timeline = context.active()
    assert newest_slots(context, 3) == not_applied(context, 3, timeline) == (first, second)
    assert [one.number for one in newest_slots(context, 1)] == [1]
    assert newest_slots(context, 0) == ()
    for odd in (replace(first, kind=SlotKind.ABORT), replace(first, timeline_digest="seen")):
        context.commit_log._known[2] = odd
        assert newest_slots(context, 3) == (second,)
        context.commit_log._known[2] = first
        context.commit_log._known[3] = replace(odd, number=3)
        assert newest_slots(context, 3) == (replace(odd, number=3),)
        context.commit_log._known[3] = second


class Meanwhile(Behind):
    """A storage on which another writer acts once, after a listing of the timeline."""

    act: Callable[[], object] | None = None
    listings = 0

    def names(self, folder: str) -> list[str]:
        found = list(self.inner.names(folder))
        if folder == TIMELINE:
            self.listings += 1
            act, self.act = self.act, None
            if act is not None:
                act()
        return found


class ListsFirst(ThreadExecutor):
    def concurrently(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return [call() for call in reversed(calls)][::-1]


def reading(story: Story) -> tuple[ObjectStoreCommit, Meanwhile]:
    storage = Meanwhile(story.base)
    table = story.open(Far(storage), executor=ListsFirst(1))
    table.context.refresh()
    storage.listings = 0
    return ObjectStoreCommit(table.context, "test", write_at(MINE)), storage


@pytest.mark.spec("PAR-1")
def test_a_refresh_with_an_older_listing_adds_the_commits_that_are_applied_by_now() -> None:
    story = Story()
    line, storage = reading(story)
    others = story.open(Far(story.base))

    ends = [
        begun(others, WriteOperation.UPSERT, [{"id": f"n{number}", "p": f"y{number}", "ts": 1}])
        for number in range(3)
    ]
    storage.act = lambda: [end() for end in ends]
    head, timeline, _ = line._refresh_at_once()
    assert (head, storage.listings) == (4, 1)
    names = [line.context.commit_log.read(number).file_name for number in (2, 3, 4)]
    assert [name in timeline.file_names for name in names] == [True, False, False]
    assert [slot.number for slot in not_applied(line.context, head, timeline)] == [3, 4]


@pytest.mark.spec("PAR-1")
@pytest.mark.spec("PUB-3")
def test_a_refresh_adds_both_commits_that_were_known_and_unapplied_at_its_listing() -> None:
    story, first, second = two_dead()
    line, storage = reading(story)
    others = story.open(Far(story.base))
    ends = [
        begun(others, WriteOperation.UPSERT, [{"id": f"n{number}", "p": f"y{number}", "ts": 1}])
        for number in range(2)
    ]
    storage.act = lambda: [end() for end in ends]
    head, timeline, _ = line._refresh_at_once()
    assert head == 5
    assert {first.file_name, second.file_name} <= timeline.file_names


@pytest.mark.spec("PAR-1")
@pytest.mark.spec("PUB-3")
def test_a_listing_older_than_the_begin_of_a_commit_is_repeated() -> None:
    """The older listing lacks that commit, so it would pass as applied."""
    story = Story()
    line, storage = reading(story)
    storage.act = lambda: story.dies({"id": "n", "p": "y", "ts": 1, "v": 1})
    head, timeline, _ = line._refresh_at_once()
    assert (head, storage.listings) == (2, 2)
    assert [slot.number for slot in not_applied(line.context, head, timeline)] == [2]


@pytest.mark.spec("PAR-1")
@pytest.mark.parametrize("follows", [False, True])
def test_a_listing_older_than_a_table_service_is_repeated(follows: bool) -> None:
    """The service may have deleted files of this write (PUB-6)."""
    story = Story()
    line, storage = reading(story)
    context = story.open(Far(story.base)).context

    def act() -> None:
        def decide(section: CommitSection) -> Slot:
            time = section.draw_time(context, Residue.SLOT_REQUESTED)
            return section.next_slot(context, SlotKind.NOOP, Action.COMMIT, time, nonce="n" * 32)

        commit_in_section(context, "test", decide)
        if follows:
            upsert(story.open(Far(story.base)), [{"id": "n", "p": "y", "ts": 1, "v": 1}])

    storage.act = act
    head, timeline, _ = line._refresh_at_once()
    assert (head, storage.listings) == (2 + follows, 2)
    assert timeline.file_names == frozenset(context.active().file_names)


@pytest.mark.spec("PAR-1")
@pytest.mark.spec("PUB-6")
def test_a_listing_with_files_that_a_slot_deleted_meanwhile_is_repeated() -> None:
    story = Story()
    context = story.open(Far(story.base)).context
    pending = begin(context, Action.COMMIT)
    line, storage = reading(story)

    def act() -> None:
        def decide(section: CommitSection) -> Slot:
            time = pending.requested_time
            return section.next_slot(context, SlotKind.CANCEL, Action.COMMIT, time, nonce="n" * 32)

        commit_in_section(context, "test", decide)

    storage.act = act
    head, timeline, _ = line._refresh_at_once()
    pending.heartbeat.stop()
    assert (head, storage.listings) == (2, 2)
    assert pending.file_name(State.REQUESTED) not in timeline.file_names


@pytest.mark.spec("PAR-1")
def test_a_listing_is_repeated_when_the_last_known_slot_is_a_table_service() -> None:
    """No later slot proves that it was applied before the listing."""
    story = Story()
    context = story.open(Far(story.base)).context

    def decide(section: CommitSection) -> Slot:
        time = section.draw_time(context, Residue.SLOT_REQUESTED)
        return section.next_slot(context, SlotKind.NOOP, Action.COMMIT, time, nonce="n" * 32)

    commit_in_section(context, "test", decide)
    line, storage = reading(story)
    storage.act = lambda: upsert(story.open(Far(story.base)), [{"id": "n", "p": "y", "ts": 1}])
    assert line._refresh_at_once()[0] == 3
    assert storage.listings == 2


@pytest.mark.parametrize(
    ("far", "foreign", "kind"),
    [
        (False, ForeignWriters.NONE, LocalCommit),
        (True, ForeignWriters.NONE, ObjectStoreCommit),
        (False, ForeignWriters.EXPECTED, SharedWithJava),
        (True, ForeignWriters.EXPECTED, SharedWithJava),
    ],
)
def test_settings_and_storage_choose_the_commit_protocol(
    far: bool, foreign: ForeignWriters, kind: type[CommitProtocol]
) -> None:
    base = MemoryStorage()
    context = new_table(Far(base) if far else base, limits=BRISK).context
    context = replace(context, limits=replace(BRISK, foreign_writers=foreign))
    assert type(open_commit(context, "test")) is kind


class Hooked(Behind):
    """Lets another writer act once, before a partition is listed."""

    act: Callable[[], object] | None = None

    def list(self, folder: str) -> Any:
        act, self.act = self.act, None
        if folder == "x" and act is not None:
            act()
        else:
            self.act = act
        return self.inner.list(folder)


def cleaned_meanwhile(story: Story) -> tuple[Any, list[str]]:
    """
    Write row a from a base snapshot that a clean removes before the partition is listed.

    Return the commit result and the remaining files of the file group.
    """
    story.dies({"id": "a", "p": "x", "ts": 2, "v": 2})
    hooked = Hooked(story.base)
    mine, other = story.open(Far(hooked)), story.open(Far(story.base))
    remaining: list[str] = []

    def concurrent_clean() -> None:
        upsert(other, [{"id": "c", "p": "z", "ts": 1, "v": 1}])
        clean(other.context, CLEANING)
        remaining.extend(path for path in data_files(other) if path.startswith("x/"))

    hooked.act = concurrent_clean
    result = upsert(mine, [{"id": "a", "p": "x", "ts": 3, "v": 3}])
    assert rows_of(story.table, "id", "v") == [("a", 3), ("c", 1), ("e", 1)]
    return result, remaining


@pytest.mark.spec("CLN-2")
def test_a_clean_keeps_the_slices_of_a_write_that_lacks_the_newest_commits() -> None:
    result, remaining = cleaned_meanwhile(Story())
    assert len(remaining) == 2, "the clean keeps the slice that the write needs"
    assert result.attempts == 1, "its file group was rebased once"


@pytest.mark.spec("CLN-3")
def test_a_write_whose_base_snapshot_was_cleaned_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without its file group in the listing, the row was inserted a second time."""
    monkeypatch.setattr(
        facts, "_oldest_needed", lambda *_, **__: None
    )  # a cleaner that deletes too much
    result, remaining = cleaned_meanwhile(Story())
    assert len(remaining) == 1
    assert result.attempts == 2
    assert result.refusals[0].rule == RuleId.SOURCE_NOT_NEWEST.value
