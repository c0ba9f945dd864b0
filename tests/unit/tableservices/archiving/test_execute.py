"""
The instants that one archive moves, their order, and the conditions that stop it (GC-1 to GC-5).
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest

from tableservices.archiving.execute import ArchiveBackoff, ArchiveResult, archive
from tableservices.archiving.plan import ArchiveRules
from tableservices.cleaning.execute import clean
from tableservices.restoring.restore import restore
from tableservices.restoring.savepoints import savepoint
from tests.unit.tableservices.plain_bench import Bench
from tests.unit.timeline.engine import Behind
from timeline.codecs.archive_manifest import parse_manifest
from timeline.context import TableContext
from timeline.errors import InstantNotFoundError, InvalidInputError, MissingFileError
from timeline.model.file_names import BOUNDARIES, HISTORY, SLOTS, TIMELINE, WRITERS
from timeline.model.instant import Action
from timeline.model.slot import SlotKind
from timeline.ports.ports import ProcessIdentity
from timeline.rollback.rollback import rollback
from timeline.truncation import truncated_up_to
from timeline.writer_registry import register_process

RULES = ArchiveRules.from_properties(
    {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "4",
        "hoodie.timeline.compaction.batch.size": "3",
    }
)


def archived(bench: Bench) -> list[str]:
    return [row.requested_time for row in bench.context.archived_timeline.instants()]


def left(bench: Bench) -> list[str]:
    return [one.requested_time for one in bench.context.active().instants]


def run(bench: Bench, context: TableContext | None = None) -> ArchiveResult | None:
    return archive(context or bench.context, RULES)


def test_no_instant_is_archived_below_the_retained_number_of_commits(bench: Bench):
    bench.commits(4)
    assert run(bench) is None
    assert archived(bench) == []


def test_the_oldest_commits_are_archived_and_the_retained_number_stays(bench: Bench):
    times = bench.commits(5)
    result = run(bench)
    assert result is not None
    assert result.instants == 3
    assert archived(bench) == times[:3]
    assert left(bench) == times[3:]
    assert [one for one in bench.storage.names(TIMELINE) if one[:17] in times[:3]] == []


def test_slots_are_truncated_up_to_the_truncation_point_and_the_commit_log_continues(bench: Bench):
    bench.commits(5)
    run(bench)
    assert truncated_up_to(bench.storage) == 3
    assert bench.storage.names(SLOTS) == [f"{n:020d}" for n in (4, 5, 6)]  # 6 is the cut
    bench.commits(3)
    assert run(bench) is not None
    assert bench.storage.names(BOUNDARIES) == [f"{7:020d}"]
    assert bench.context.commit_log.head() == 10
    fresh = bench.open(bench.storage)
    assert [slot.number for slot in fresh.commit_log.newest_first()] == [10, 9, 8]


def test_the_archive_contains_the_bytes_of_the_completed_files(bench: Bench):
    times = bench.commits(5)
    kept = {
        name[:17]: bench.storage.read(f"{TIMELINE}/{name}")
        for name in bench.timeline_names(".commit")
    }
    run(bench)
    rows = bench.context.archived_timeline.instants(times_only=False)
    assert [row.metadata for row in rows] == [kept[time] for time in times[:3]]
    assert [(row.action, row.plan) for row in rows] == [("commit", None)] * 3


@pytest.mark.spec("GC-5")
@pytest.mark.parametrize("damaged", [b"", b"Obj\x01 torn"])
def test_the_archive_has_the_bytes_of_a_slot_where_its_completed_file_is_damaged(
    bench: Bench, damaged: bytes
):
    """F24: the slot goes with its file, and was the last that had them."""
    bench.commits(5)
    whole = {}
    for name in bench.timeline_names(".commit"):
        path = f"{TIMELINE}/{name}"
        whole[name[:17]] = bench.storage.read(path)
        bench.storage.write(path, damaged)
    run(bench)
    rows = bench.context.archived_timeline.instants(times_only=False)
    assert [row.metadata for row in rows] == [whole[row.requested_time] for row in rows]
    assert len(rows) == 3


def test_cleans_and_rollbacks_are_archived_with_the_commits_around_them(bench: Bench):
    first = bench.commits(3)
    clean(bench.context, RULES.cleaning)
    second = bench.commits(3)
    clean(bench.context, RULES.cleaning)
    run(bench)
    rows = bench.context.archived_timeline.instants(times_only=False)
    assert [row.action for row in rows] == ["commit"] * 3 + ["clean", "commit"]
    assert rows[3].metadata
    assert rows[3].plan
    assert left(bench)[:2] == second[1:]
    assert len(bench.timeline_names(".clean")) == 1
    assert archived(bench)[:3] == first


def test_levels_are_merged_and_old_files_outside_every_manifest_are_deleted(bench: Bench):
    for _ in range(9):
        bench.commits(5)
        run(bench)
        bench.clock.time_ms += 10 * 60_000
    number = int(bench.storage.read(f"{HISTORY}/_version_"))
    files = parse_manifest(bench.storage.read(f"{HISTORY}/manifest_{number}"))
    assert [one.level for one in files] == [2]
    assert len(archived(bench)) == 43
    manifests = [name for name in bench.storage.names(HISTORY) if name.startswith("manifest")]
    assert len(manifests) == 5  # three, and one for each level merged in the last run
    named = {
        one.file_name
        for name in manifests
        for one in parse_manifest(bench.storage.read(f"{HISTORY}/{name}"))
    }
    assert {n for n in bench.storage.names(HISTORY) if n.endswith(".parquet")} == named


def test_a_missing_archive_file_is_reported_when_its_level_is_merged(bench: Bench):
    bench.commits(5)
    run(bench)
    (first,) = (f"{HISTORY}/{n}" for n in bench.storage.names(HISTORY) if n.endswith(".parquet"))
    bench.storage.delete(first)

    def until_merged() -> None:
        for _ in range(9):
            bench.commits(5)
            run(bench)

    with pytest.raises(MissingFileError, match="restore it from a backup") as caught:
        until_merged()
    assert caught.value.fields["path"] == first


def test_a_pending_instant_keeps_itself_and_commits_completed_after_it_began(bench: Bench):
    times = bench.commits(4)
    begun = bench.begin()
    bench.commits(4)
    run(bench)
    assert archived(bench) == times[:2]
    bench.finish(begun, ["f2"])


def test_commits_completed_during_an_older_write_are_kept(bench: Bench):
    older = bench.begin()
    pending = bench.begin()
    bench.finish(older, ["f2"])
    bench.commits(5)
    assert run(bench) is None
    bench.finish(pending, ["f3"])
    bench.clock.time_ms += 60_000
    assert run(bench) is not None


@pytest.mark.spec("GC-1")
def test_no_instant_is_archived_from_the_first_savepoint_on(bench: Bench):
    times = bench.commits(6)
    bench.savepoint(times[1])
    run(bench)
    assert archived(bench) == times[:1]


def test_beyond_a_savepoint_only_the_savepointed_commit_stays(bench: Bench):
    times = bench.commits(6)
    bench.savepoint(times[1])
    beyond = RULES.archiving.model_copy(update={"beyond_savepoint": True})
    archive(
        bench.context,
        ArchiveRules(archiving=beyond, cleaning=RULES.cleaning, compaction=RULES.compaction),
    )
    assert archived(bench) == [times[0], *times[2:4]]
    assert truncated_up_to(bench.storage) == 1


def test_a_replacecommit_stays_until_the_replaced_files_are_deleted(bench: Bench):
    bench.commit("f1")
    replacing = bench.finish(bench.begin(Action.REPLACECOMMIT), ["f2"], replaces=["f1"])
    bench.commits(5, "f3")
    run(bench)
    assert replacing not in archived(bench)
    for name in bench.storage.names("p"):
        if name.startswith("f1_"):
            bench.storage.delete(f"p/{name}")
    run(bench)
    assert replacing in archived(bench)


def test_an_ended_instant_delays_truncation_until_its_writer_must_have_noticed(bench: Bench):
    begun = bench.begin()
    begun.heartbeat.stop()
    target = bench.context.active().find(begun.requested_time)
    assert target is not None
    rollback(bench.context, target)
    bench.context.low_water_mark.release(begun.requested_time)
    bench.commits(6)
    assert run(bench) is None
    late = f"p/f9_0-0-0_{begun.requested_time}.parquet"
    bench.storage.create(late, b"written by a sleeper")
    bench.clock.time_ms += 11 * 60_000
    assert run(bench) is not None
    assert bench.storage.stat(late) is None
    assert begun.requested_time not in archived(bench)


def test_a_low_water_mark_of_another_process_keeps_slots_and_their_instants(bench: Bench):
    times = bench.commits(6)
    entry = {"writer_id": "other", "host": "h", "pid": 1, "application": "", "since_ms": 0}
    document = {**entry, "agreement": {}, "pin": 2, "grace_ms": 600_000}
    bench.storage.write(f"{WRITERS}/other.json", json.dumps(document).encode())
    run(bench)
    assert archived(bench) == times[:2]
    assert truncated_up_to(bench.storage) == 2
    bench.clock.time_ms += 600_001
    run(bench)
    assert archived(bench) == times[:2]  # no longer due: 4 are left
    bench.commit("f1")
    run(bench)
    assert truncated_up_to(bench.storage) == 5


@pytest.mark.spec("GC-3")
def test_a_low_water_mark_that_appears_after_the_truncation_point_stops_truncation(bench: Bench):
    times = bench.commits(6)
    entry = {"writer_id": "other", "host": "h", "pid": 1, "application": "", "since_ms": 0}
    document = {**entry, "agreement": {}, "pin": 2, "grace_ms": 600_000}

    class Entering(Behind):
        def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
            self.inner.create(path, data, durable=durable)
            if path.startswith(BOUNDARIES):
                self.inner.write(f"{WRITERS}/other.json", json.dumps(document).encode())

    run(bench, bench.open(Entering(bench.storage)))
    assert truncated_up_to(bench.storage) == 4
    assert archived(bench) == []
    assert left(bench)[0] == times[0]
    bench.storage.delete(f"{WRITERS}/other.json")
    run(bench)
    assert archived(bench) == times[:4]


def test_the_own_registration_does_not_delay_the_own_archive(bench: Bench):
    registration = register_process(bench.context, {})
    times = bench.commits(5)
    run(bench)
    assert archived(bench) == times[:3]
    registration.unregister()


def test_a_delayed_archive_is_not_tried_after_every_commit(bench: Bench):
    bench.begin()
    bench.commits(5)
    memory = ArchiveBackoff()
    assert archive(bench.context, RULES, memory=memory) is None
    reads: list[str] = []

    class Counting(Behind):
        def read(self, path: str) -> bytes:
            reads.append(path)
            return bytes(self.inner.read(path))

    assert archive(bench.open(Counting(bench.storage)), RULES, memory=memory) is None
    assert [path for path in reads if not path.endswith(("properties", "table.json"))] == []


def as_another(bench: Bench) -> TableContext:
    """The table in the hands of another process."""

    class Other:
        def __getattr__(self, name: str) -> Any:
            return getattr(bench.context.ports.ids, name)

        def identity(self) -> ProcessIdentity:
            return ProcessIdentity(host="there", pid=7, writer_id="w2", application="other")

    context = bench.open(bench.storage)
    return TableContext.of(replace(context.ports, ids=Other()), context.config, context.limits)


@pytest.mark.parametrize(
    ("moved", "rested_ms", "left"),
    [(False, 9_000, True), (False, 10_100, False), (True, 0, False)],
)
def test_writers_leave_the_archive_to_a_running_archiver_until_it_stops(
    bench: Bench, moved: bool, rested_ms: int, left: bool
) -> None:
    """All of them find the same work due after their commits."""
    bench.commits(5)
    began = bench.clock.time_ms
    with contextlib.suppress(Stop):  # after its slot and the boundary
        archive(bench.open(Dying(bench.storage, 10_000 if moved else 2)), RULES)
    bench.commits(3)
    bench.clock.time_ms = began + rested_ms
    before = archived(bench)
    result = archive(as_another(bench), RULES, memory=ArchiveBackoff(), has_other_writers=True)
    assert (result is None) == left
    assert (archived(bench) == before) == left
    if left:
        assert archive(bench.context, RULES, has_other_writers=True), (
            "the one that truncated continues"
        )


def test_an_explicit_archive_runs_although_another_archiver_is_running(bench: Bench) -> None:
    bench.commits(5)
    with contextlib.suppress(Stop):
        archive(bench.open(Dying(bench.storage, 2)), RULES)
    bench.commits(3)
    assert archive(as_another(bench), RULES, memory=ArchiveBackoff()) is not None


def test_an_archive_plan_that_another_one_overtook_is_dropped_without_the_lock(
    bench: Bench,
) -> None:
    bench.commits(5)
    asked: list[str] = []
    other = as_another(bench)

    class Overtaken(Behind):
        listed = False

        def list(self, folder: str) -> Any:
            if folder == WRITERS and not self.listed:
                self.listed = True
                assert archive(other, RULES) is not None
            return self.inner.list(folder)

    class Asked:
        def acquire(self, purpose: str) -> Any:
            asked.append(purpose)
            return bench.lock.acquire(purpose)

    context = bench.open(Overtaken(bench.storage))
    ports = replace(context.ports, lock=Asked())
    context = TableContext.of(ports, context.config, context.limits)
    assert archive(context, RULES, has_other_writers=True) is None
    assert asked == []


class Stop(Exception):  # noqa: N818 - the process is gone
    """The process died."""


class Dying(Behind):
    """Dies at its n-th change."""

    def __init__(self, inner: object, after: int) -> None:
        super().__init__(inner)
        self.left = after

    def _step(self) -> None:
        if self.left == 0:
            raise Stop
        self.left -= 1

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._step()
        self.inner.create(path, data, durable=durable)

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        self._step()
        self.inner.write(path, data, durable=durable)

    def delete(self, path: str) -> None:
        self._step()
        self.inner.delete(path)


@pytest.mark.spec("GC-5")
@pytest.mark.parametrize("after", range(30))
def test_an_archive_interrupted_anywhere_is_finished_by_the_next_one(after: int):
    bench = Bench()
    times = bench.commits(5)
    context = bench.open(Dying(bench.storage, 10_000))
    context.ports.storage.left = after  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        archive(context, RULES)
    active = bench.context.active()
    known = {*archived(bench), *(one.requested_time for one in active.completed_writes)}
    assert known == set(times)  # nothing is lost at any moment
    times += bench.commits(5)
    archive(bench.open(bench.storage), RULES)
    assert archived(bench) == times[:8]
    assert left(bench) == times[8:]
    assert truncated_up_to(bench.storage) >= 8
    first = int(bench.storage.names(SLOTS)[0])
    assert first == truncated_up_to(bench.storage) + 1


@pytest.mark.spec("GC-1")
@pytest.mark.parametrize("act", [savepoint, restore])
def test_instants_of_an_interrupted_archive_are_neither_savepointed_nor_restored_to(
    act: Any,
) -> None:
    """Otherwise its owner, or a helper, archives instants that were saved or removed."""
    for after in range(10):
        bench = Bench()
        times = bench.commits(5)
        context = bench.open(Dying(bench.storage, 10_000))
        context.ports.storage.left = after  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            archive(context, RULES)
        heir = bench.open(bench.storage)
        cut = [one for one in heir.commit_log.newest_first() if one.kind is SlotKind.TRUNCATE]
        if cut and heir.active().find(times[0]) is not None:
            break
    else:
        pytest.fail("no archive died between its slot and its moves")
    with pytest.raises(InvalidInputError) as caught:
        act(heir, times[0])
    assert caught.value.kind == "being_archived"
    archive(heir, RULES)
    with pytest.raises(InstantNotFoundError):
        act(heir, times[0])
    assert act(heir, left(bench)[0]) is not None
