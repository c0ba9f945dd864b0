"""A clean between the snapshot and the listing of files hides no row (RDL-2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningPolicy, CleaningSettings
from tableservices.restoring.restore import restore
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    StillClock,
    data_files,
    files_below,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from timeline.codecs.instant_avro import encode_clean, encode_clean_plan
from timeline.context import TableContext
from timeline.errors import SnapshotExpiredError, StorageUnavailableError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import READERS, TIMELINE
from timeline.model.plans import (
    ActionInstant,
    CleanerPlan,
    CleanFileInfo,
    CleanMetadata,
    CleanPartitionMetadata,
)
from timeline.properties.setting_enums import ForeignWriters
from timeline.rules.conflicts import RuleId

LEASE_MS = 60_000
LAST = CleaningSettings(policy=CleaningPolicy.VERSIONS, versions_retained=1)


class Hooked(Behind):
    """Lets another writer act before a partition is listed, up to n times."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.act: Callable[[], object] | None = None
        self.left = 0

    def _hook(self, folder: str) -> None:
        if folder == "x" and self.act is not None and self.left:
            self.left -= 1
            self.act()

    def list(self, folder: str) -> Any:
        self._hook(folder)
        return self.inner.list(folder)

    def names(self, folder: str) -> Any:
        self._hook(folder)
        return self.inner.names(folder)


class Story:
    """A row that is rewritten and cleaned whenever a reader is about to list its partition."""

    def __init__(self, foreign: ForeignWriters = ForeignWriters.NONE) -> None:
        self.clock = StillClock()
        self.base = MemoryStorage()
        self.writer = new_table(self.base, clock=self.clock)
        self.value = 0
        self.commit()
        self.limits = replace(BRISK, foreign_writers=foreign, reader_lease_ms=LEASE_MS)
        self.read_through(Hooked(self.base))

    def read_through(self, hooked: Hooked) -> None:
        self.hooked = hooked
        self.hooked.act = self.commit_and_clean
        self.reader = opened(self.writer, storage=hooked, clock=self.clock, limits=self.limits)

    def commit(self) -> None:
        self.value += 1
        upsert(self.writer, [{"id": "a", "p": "x", "v": self.value, "ts": self.value}])

    def commit_and_clean(self) -> None:
        self.commit()
        assert clean(self.writer.context, LAST) is not None


READS: dict[str, Callable[[Any], list[int]]] = {
    "collected": lambda table: table.to_arrow(columns=["v"])["v"].to_pylist(),
    "streamed": lambda table: table.scan(columns=["v"]).read_all()["v"].to_pylist(),
    "looked up": lambda table: table.get_rows(["a"], columns=["v"])["v"].to_pylist(),
}


@pytest.mark.spec("RDL-2")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("times", [1, 1_000], ids=["once", "always"])
def test_a_read_whose_files_are_cleaned_before_the_listing_returns_newer_rows(
    read: Callable[[Any], list[int]], times: int
) -> None:
    story = Story()
    story.hooked.left = times
    (value,) = read(story.reader)
    assert value >= 2
    assert files_below(story.base, READERS) == [], "the reader's lease is released"
    story.hooked.left = 0
    story.commit()
    clean(story.writer.context, LAST)
    assert len(data_files(story.writer)) == 1, "no file is retained for it any more"


class ReadOnly(Hooked):
    """A table that its reader may not write to."""

    def write(self, path: str, data: bytes) -> None:
        raise StorageUnavailableError(f"access was denied: {path}", path=path)


@pytest.mark.spec("RDL-2")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_reader_without_write_permission_reads_a_newer_snapshot_too(
    read: Callable[[Any], list[int]],
) -> None:
    story = Story()
    story.read_through(ReadOnly(story.base))
    story.hooked.left = 1
    assert read(story.reader) == [2]
    story.hooked.left = 1_000
    with pytest.raises(SnapshotExpiredError):
        read(story.reader)


@pytest.mark.spec("RDL-2")
def test_a_reader_without_write_permission_lists_the_files_of_a_newer_snapshot_too() -> None:
    story = Story()
    story.read_through(ReadOnly(story.base))
    story.hooked.left = 1
    [one] = story.reader.file_slices()
    assert one.base_file is not None
    story.hooked.left = 1_000
    with pytest.raises(SnapshotExpiredError):
        story.reader.file_slices()


@pytest.mark.spec("RDL-2")
def test_a_listing_of_files_contains_those_that_were_cleaned_meanwhile() -> None:
    story = Story()
    story.hooked.left = 1
    [one] = story.reader.file_slices()
    assert one.base_file is not None


@pytest.mark.spec("RDL-2")
def test_a_snapshot_whose_files_were_cleaned_before_the_listing_is_expired() -> None:
    """The read returned a table without that row."""
    story = Story()
    pinned = story.reader.current_state()
    story.commit_and_clean()
    with pytest.raises(SnapshotExpiredError):
        pinned.to_arrow()
    with pytest.raises(SnapshotExpiredError):
        list(pinned.scan())


@pytest.mark.spec("RDL-2")
@pytest.mark.spec("HB-3")
@pytest.mark.parametrize(("slept_ms", "whole"), [(100, True), (LEASE_MS, False)])
def test_a_pinned_snapshot_is_complete_while_its_lease_exists(slept_ms: int, whole: bool) -> None:
    """The reader paused before it listed the files."""
    story = Story()
    with story.reader.pin() as state:
        story.clock.sleep_ms(slept_ms)
        story.commit_and_clean()
        if whole:
            assert READS["collected"](state) == [1]
        else:
            with pytest.raises(SnapshotExpiredError):
                state.to_arrow()


def test_a_clean_of_older_files_does_not_expire_a_snapshot() -> None:
    story = Story()
    story.commit()
    pinned = story.reader.current_state()
    assert clean(story.writer.context, LAST) is not None
    assert READS["collected"](pinned) == [2]


def test_a_snapshot_after_a_restore_can_be_pinned() -> None:
    story = Story()
    then = story.writer.context.active().completed_writes[-1].requested_time
    story.commit()
    _restored(story.writer, then)
    with story.reader.pin() as state:
        assert READS["collected"](state) == [1]


def _restored(table: TableReader, time: str) -> None:
    from tableservices.restoring.restore import restore

    restore(table.context, time)


# ---------------------------------------------------------------- another engine's cleans


def foreign_clean(
    story: Story, *, line: str = "", pending: bool = False, takes: tuple[str, ...] = ()
) -> None:
    """Leave a clean as Java does: files on the timeline, and no slot."""
    time = f"{int(story.writer.context.active().newest_time or '0') + 1_000}"
    for name in takes:
        story.base.delete(f"x/{name}")
    if pending:
        kept = ActionInstant(requested_time=line, action="commit", state="COMPLETED")
        plan = CleanerPlan(
            earliest_instant_to_retain=kept if line else None,
            file_paths_to_be_deleted_per_partition={
                "x": tuple(CleanFileInfo(file_path=f"s3a://lake/t/x/{name}") for name in takes)
            },
        )
        story.base.create(f"{TIMELINE}/{time}.clean.requested", encode_clean_plan(plan))
        return
    cleaned = CleanPartitionMetadata(partition_path="x", success_delete_files=takes)
    done = CleanMetadata(
        start_clean_time=time, earliest_commit_to_retain=line, partition_metadata={"x": cleaned}
    )
    story.base.create(f"{TIMELINE}/{time}.clean.requested", encode_clean_plan(CleanerPlan()))
    story.base.create(f"{TIMELINE}/{time}.clean.inflight", b"")
    story.base.create(f"{TIMELINE}/{time}_{int(time) + 5}.clean", encode_clean(done))


@pytest.mark.spec("RDL-2")
@pytest.mark.spec("FOR-2")
@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize(
    ("keeps", "whole"), [("now", False), ("before", True), ("versions", False)]
)
def test_another_engines_clean_expires_only_snapshots_below_its_retention(
    keeps: str, whole: bool, pending: bool
) -> None:
    story = Story(ForeignWriters.EXPECTED)
    pinned = story.reader.current_state()
    first = pinned.snapshot.newest_completion or ""
    story.commit()
    newest = story.writer.context.active().completed_writes[-1].requested_time
    line = {"now": newest, "before": first, "versions": ""}[keeps]
    foreign_clean(story, line=line, pending=pending)
    if whole:
        assert READS["collected"](pinned) == [1]
    else:
        with pytest.raises(SnapshotExpiredError):
            pinned.to_arrow()


@pytest.mark.spec("CLN-3")
@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("rewritten", [True, False])
def test_a_write_whose_base_snapshot_another_engine_cleaned_is_retried(
    rewritten: bool, pending: bool
) -> None:
    """Java's cleaner ignores our write, so the row was inserted a second time."""
    story = Story(ForeignWriters.EXPECTED)
    if not rewritten:  # the deleted file is older than the base snapshot
        story.commit()

    def concurrent_clean() -> None:
        if rewritten:
            story.commit()
        oldest = min(story.base.names("x"), key=lambda name: name[-25:])
        foreign_clean(story, pending=pending, takes=(oldest,))

    story.hooked.act = concurrent_clean
    story.hooked.left = 1
    result = upsert(story.reader, [{"id": "a", "p": "x", "v": 9, "ts": 9}])
    assert rows_of(story.writer, "id", "v") == [("a", 9)]
    assert result.attempts == (2 if rewritten else 1)
    if rewritten:
        assert result.refusals[0].rule == RuleId.SOURCE_NOT_NEWEST.value


@pytest.mark.spec("RST-1")
def test_a_read_is_planned_again_when_a_restore_commits_during_planning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The read needs a restored-away instant, which is no damage."""
    table = new_table()
    kept = upsert(table, [{"id": "a", "p": "x", "ts": 1, "v": 1}])
    put(table, WriteOperation.INSERT_OVERWRITE, [{"id": "a", "p": "x", "ts": 2, "v": 2}])
    upsert(table, [{"id": "b", "p": "y", "ts": 2, "v": 2}])
    pin, restored = TableReader.current_state, []

    def pinned(self: TableReader) -> Any:
        state = pin(self)
        if not restored:
            restored.append(restore(opened(table).context, kept.requested_time))
        return state

    monkeypatch.setattr(TableReader, "current_state", pinned)
    assert opened(table).to_arrow(columns=["id", "v"]).to_pylist() == [{"id": "a", "v": 1}]
    assert restored


@pytest.mark.parametrize("images", [False, True], ids=["rows", "images"])
def test_changes_are_planned_again_when_a_restore_commits_during_planning(
    images: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instants of the range are restored away, and the table is complete."""
    table = new_table()
    kept = upsert(table, [{"id": "a", "p": "x", "ts": 1, "v": 1}])
    for number in (2, 3, 4):
        upsert(table, [{"id": "a", "p": "x", "ts": number, "v": number}])
    snapshot_of, restored = TableContext.snapshot, []

    def snapshot_and_restore(self: TableContext) -> Any:
        snapshot = snapshot_of(self)
        if not restored:
            restored.append(True)
            restore(opened(table).context, kept.requested_time)
        return snapshot

    reader = opened(table)
    monkeypatch.setattr(TableContext, "snapshot", snapshot_and_restore)
    with pytest.raises(SnapshotExpiredError):
        reader.changes("earliest", images=images)
    assert reader.changes("earliest", images=images).read_all().num_rows == 1


@pytest.mark.spec("RST-1")
def test_a_restore_whose_writer_died_before_its_completed_file_blocks_no_reader() -> None:
    """The restored-away instants left the timeline before the snapshot, so none is read."""
    table = new_table()
    kept = upsert(table, [{"id": "a", "p": "x", "ts": 1, "v": 1}])
    upsert(table, [{"id": "a", "p": "x", "ts": 2, "v": 2}])
    restore(opened(table).context, kept.requested_time)
    storage = table.context.ports.storage
    (end,) = (path for path in files_below(storage, TIMELINE) if path.endswith(".restore"))
    storage.delete(end)
    assert opened(table).to_arrow(columns=["id", "v"]).to_pylist() == [{"id": "a", "v": 1}]
    with opened(table).pin() as held:
        assert held.to_arrow(columns=["v"]).to_pylist() == [{"v": 1}]


@pytest.mark.spec("RST-1")
def test_a_restore_whose_writer_died_after_its_slot_blocks_no_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The restored-away instants are still there, and a reader applies no slot."""
    table = new_table()
    kept = upsert(table, [{"id": "a", "p": "x", "ts": 1, "v": 1}])
    for number in (2, 3):
        upsert(table, [{"id": "a", "p": "x", "ts": number, "v": number}])
    owner = opened(table)

    def die(self: MemoryStorage, path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MemoryStorage, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            restore(owner.context, kept.requested_time)
    listed = files_below(table.context.ports.storage, TIMELINE)
    assert sum(path.endswith(".commit") for path in listed) == 3
    assert opened(table).to_arrow(columns=["id", "v"]).to_pylist() == [{"id": "a", "v": 1}]
    with opened(table).pin() as held:
        assert held.to_arrow(columns=["v"]).to_pylist() == [{"v": 1}]
    upsert(opened(table), [{"id": "b", "p": "x", "ts": 1, "v": 4}])
    found = opened(table).to_arrow(columns=["id", "v"]).sort_by("id").to_pylist()
    assert found == [{"id": "a", "v": 1}, {"id": "b", "v": 4}]
