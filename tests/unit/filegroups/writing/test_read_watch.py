"""The read set of a write and single concurrent commits: counts, rows and read slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import pytest

from filegroups.reading.read_set import ReadSet
from filegroups.writing.commit_checks import ReadValidation
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from tests.unit.timeline.engine import (
    BRISK,
    Rows,
    as_table,
    files_below,
    new_table,
    opened,
    planned,
    put,
    upsert,
)
from timeline.archived import ArchivedTimeline, ArchivedTimes
from timeline.commit.begin import begin
from timeline.commit.concurrent_commits import commit_of_slot
from timeline.model.commit_metadata import (
    Access,
    AccessedFileGroup,
    FileGroupId,
    WriteOperation,
    WriteSet,
)
from timeline.model.file_names import TIMELINE, slot_path
from timeline.model.instant import Action, Instant
from timeline.model.table_config import TableConfig
from timeline.rules.conflicts import ConcurrentCommit, Rejected, RuleId
from timeline.rules.isolation import Isolation

UPSERT, INSERT, DELETE = WriteOperation.UPSERT, WriteOperation.INSERT, WriteOperation.DELETE
LATER = "20991231235959999"


def row(key: str, v: int, ts: int = 1) -> dict[str, Any]:
    return {"id": key, "p": "x", "ts": ts, "v": v}


class Scene:
    """A table with one row, ``v`` = 1, that I read before other writers commit."""

    def __init__(
        self, level: Isolation = Isolation.SERIALIZABLE, *, v: int | None = 1, **how: Any
    ) -> None:
        limits = replace(BRISK, isolation=level)
        self.table = new_table(limits=limits, **how)
        upsert(self.table, [row("a", 1)])
        self.other = opened(self.table, limits=limits)
        self.context = self.table.context
        self.reads = ReadSet(
            snapshot=self.context.snapshot(),
            address=self.context.ports.storage.base_uri,
            partitions=("x",),
            filter=None if v is None else pc.field("v") == v,
        )
        self.group = self.newest().write_set.file_groups[0].file_group

    def newest(self) -> ConcurrentCommit:
        slot = self.context.commit_log.read(self.context.commit_log.head())
        assert slot is not None
        return commit_of_slot(slot)

    def theirs(self, operation: WriteOperation, rows: Rows) -> ConcurrentCommit:
        put(self.other, operation, rows)
        return self.newest()

    def watch(self) -> ReadValidation:
        started_write = begin(self.context, Action.COMMIT)
        started_write.heartbeat.stop()
        return ReadValidation(self.context, started_write, self.reads)

    def lose(self, ending: str, folder: str = "x") -> None:
        storage = self.context.ports.storage
        for path in files_below(storage, folder):
            if path.endswith(ending):
                storage.delete(path)


def without_metadata(concurrent: ConcurrentCommit) -> ConcurrentCommit:
    """Return the commit with times whose metadata does not exist."""
    return replace(concurrent, requested_time=LATER, completion_time=LATER)


@pytest.mark.parametrize(
    ("operation", "rows", "only"),
    [
        (INSERT, [row("n", 5)], True),
        (UPSERT, [row("n", 5), row("a", 5, 2)], False),
        (DELETE, [{"id": "a", "p": "x"}], False),
    ],
)
def test_a_rewritten_file_group_has_new_rows_only_by_its_counts(
    operation: WriteOperation, rows: Rows, only: bool
) -> None:
    scene = Scene()
    upsert(scene.table, [row("b", 2)])
    concurrent = scene.theirs(operation, rows)
    watch = scene.watch()
    assert watch.only_inserted(concurrent, scene.group) is only
    assert not watch.only_inserted(concurrent, FileGroupId("x", "another")), (
        "the commit did not change it"
    )
    assert not watch.only_inserted(without_metadata(concurrent), scene.group), (
        "its metadata is missing"
    )


def test_a_commit_from_reads_has_a_read_set_and_an_unknown_one_may_have_had() -> None:
    scene = Scene()
    concurrent = scene.theirs(INSERT, [row("n", 5)])
    plan = replace(planned(scene.other, INSERT), reads=scene.other.current_state().reads())
    write(
        scene.other.context, plan, LocalWorkload(scene.other.context.ports, as_table([row("m", 5)]))
    )
    watch = scene.watch()
    assert [
        watch.has_reads(one) for one in (concurrent, scene.newest(), without_metadata(concurrent))
    ] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("asked", "stores_keys", "misses"),
    [
        pytest.param(1, True, True, id="the existing row is not of the concurrent commit"),
        pytest.param(
            1, False, False, id="without commit times in rows all count as the concurrent commit's"
        ),
        pytest.param(5, True, False, id="the filter matches the new row"),
        pytest.param(7, False, True, id="no row is"),
        pytest.param(None, True, False, id="all rows are"),
    ],
)
def test_a_concurrent_commit_is_no_match_by_its_own_rows(
    asked: int | None, stores_keys: bool, misses: bool
) -> None:
    scene = Scene(v=asked, stores_keys=stores_keys)
    concurrent = scene.theirs(INSERT, [row("n", 5)])
    [item] = concurrent.write_set.file_groups
    watch = scene.watch()
    assert watch.wrote_no_match(concurrent, item) is misses
    scene.lose(".parquet")
    assert watch.wrote_no_match(concurrent, item) is misses, "its files are read once"


def test_each_file_group_of_a_concurrent_commit_is_checked_by_itself() -> None:
    scene = Scene(v=5)
    concurrent = scene.theirs(INSERT, [row("n", 5), {**row("m", 7), "p": "y"}])
    watch = scene.watch()
    found = {
        item.file_group.partition_path: watch.wrote_no_match(concurrent, item)
        for item in concurrent.write_set.file_groups
    }
    assert found == {"x": False, "y": True}


def test_unreadable_rows_of_a_concurrent_commit_may_match() -> None:
    scene = Scene(v=7)
    concurrent = scene.theirs(INSERT, [row("n", 5)])
    [item] = concurrent.write_set.file_groups
    log = f".{item.file_group.file_id}_{concurrent.requested_time}.log.1_0-1-0"
    assert not scene.watch().wrote_no_match(concurrent, replace(item, files=()))
    assert not scene.watch().wrote_no_match(concurrent, replace(item, files=(*item.files, log)))
    scene.lose(item.files[0])
    assert not scene.watch().wrote_no_match(concurrent, item), "its file was cleaned"


@pytest.mark.parametrize(("asked", "none"), [(1, False), (5, True), (None, False)])
def test_a_read_slice_contained_no_matching_rows(asked: int | None, none: bool) -> None:
    scene = Scene(v=asked)
    watch = scene.watch()
    assert watch.had_no_match(scene.group) is none
    scene.lose(".parquet")
    assert watch.had_no_match(scene.group) is none, "it is read once"
    assert not scene.watch().had_no_match(scene.group), (
        "the deleted file may have had matching rows"
    )
    assert not scene.watch().had_no_match(FileGroupId("x", "another")), "it did not exist"
    assert not scene.watch().had_no_match(FileGroupId("../x", "f")), "the path is not valid"


# ---- the verdict


def touching(
    scene: Scene, requested_time: str, group: FileGroupId | None = None
) -> ConcurrentCommit:
    touched = AccessedFileGroup(file_group=group or scene.group, access=Access.BASE)
    return ConcurrentCommit(
        action=Action.COMMIT,
        requested_time=requested_time,
        completion_time=LATER,
        write_set=WriteSet(file_groups=(touched,)),
    )


def test_concurrent_commits_with_one_completion_time_are_all_validated() -> None:
    scene = Scene(Isolation.SNAPSHOT)
    mine = WriteSet(file_groups=touching(scene, LATER).write_set.file_groups)
    concurrent_commits = [touching(scene, "1"), touching(scene, "2", FileGroupId("y", "elsewhere"))]
    assert scene.watch().validate_reads(mine, concurrent_commits) is not None
    assert scene.watch().validate_reads(mine, concurrent_commits[1:]) is None


def test_an_earlier_concurrent_commit_is_validated_again() -> None:
    scene = Scene(Isolation.SNAPSHOT)
    mine = WriteSet(file_groups=touching(scene, LATER).write_set.file_groups)
    watch = scene.watch()
    assert watch.validate_reads(WriteSet(), [touching(scene, "1")]) is None
    refused = watch.validate_reads(mine, [])
    assert refused is not None
    assert refused.concurrent_commits == (touching(scene, "1"),)


@pytest.mark.parametrize("conflicts", [False, True])
def test_reads_are_validated_before_other_checks(conflicts: bool) -> None:
    scene = Scene(Isolation.SNAPSHOT)
    mine = WriteSet(file_groups=touching(scene, LATER).write_set.file_groups)
    other = Rejected(RuleId.SCHEMA_CHANGED, "another reason", ())
    asked: list[int] = []

    def check(
        timeline: Any, concurrent_commits: list[ConcurrentCommit], config: Callable[[], TableConfig]
    ) -> Rejected:
        asked.append(len(concurrent_commits))
        return other

    both = scene.watch().reads_first(check, mine)
    concurrent_commits = [touching(scene, "1")] if conflicts else []
    refused = both(scene.context.active(), concurrent_commits, lambda: scene.context.config)
    assert refused is not None
    assert refused.rule is (RuleId.READ_WAS_CHANGED if conflicts else RuleId.SCHEMA_CHANGED)
    assert asked == ([] if conflicts else [0])


def my_claim(scene: Scene) -> WriteSet:
    return WriteSet(file_groups=touching(scene, LATER).write_set.file_groups)


@pytest.mark.parametrize("settled", [True, False])
def test_a_commit_between_the_reads_and_the_begin_is_validated_once_it_is_applied(
    settled: bool,
) -> None:
    scene = Scene(Isolation.SNAPSHOT)
    concurrent = scene.theirs(UPSERT, [row("a", 5, 2)])
    if not settled:
        scene.lose(f"{concurrent.requested_time}_{concurrent.completion_time}.commit", TIMELINE)
    assert bool(scene.watch().validate_before_begin(my_claim(scene))) is settled


def timeline_without_its_first_write(scene: Scene) -> Instant:
    """Write once more, and remove the read write from the active timeline."""
    upsert(scene.table, [row("b", 2)])
    [first, _] = scene.context.active().completed_writes
    for name in (f"_{first.completion_time}.commit", ".commit.requested", ".inflight"):
        scene.lose(f"{first.requested_time}{name}", TIMELINE)
    return first


@pytest.mark.parametrize("archived_later", [False, True])
def test_reads_hold_if_only_instants_before_them_were_archived(
    monkeypatch: pytest.MonkeyPatch, archived_later: bool
) -> None:
    """Archiving by another writer does not change the reads."""
    scene = Scene(Isolation.SNAPSHOT)
    first = timeline_without_its_first_write(scene)
    archived = {first.requested_time: first.completion_time or ""}
    if archived_later:
        archived[LATER] = LATER
    times = ArchivedTimes(archived)
    monkeypatch.setattr(ArchivedTimeline, "times", lambda _: times)
    refused = scene.watch().validate_before_begin(WriteSet())
    assert (refused is not None) is archived_later


def test_reads_are_rejected_when_the_timeline_begins_after_them_without_an_archive() -> None:
    scene = Scene(Isolation.SNAPSHOT)
    timeline_without_its_first_write(scene)
    refused = scene.watch().validate_before_begin(WriteSet())
    assert refused is not None
    assert (refused.rule, refused.retry_can_succeed) == (RuleId.READ_WAS_CHANGED, False)


def test_without_concurrent_commits_no_read_is_rejected() -> None:
    scene = Scene(Isolation.SNAPSHOT)
    assert scene.watch().validate_before_begin(my_claim(scene)) is None


def test_reads_are_rejected_when_slots_after_them_were_truncated() -> None:
    scene = Scene(Isolation.SNAPSHOT)
    upsert(scene.table, [row("b", 2)])
    scene.reads = replace(scene.reads, snapshot=replace(scene.reads.snapshot, head=0))
    scene.context = opened(scene.table, limits=scene.context.limits).context
    scene.context.ports.storage.delete(slot_path(1))
    refused = scene.watch().validate_before_begin(WriteSet())
    assert refused is not None
    assert (refused.rule, refused.retry_can_succeed) == (RuleId.READ_WAS_CHANGED, False)
