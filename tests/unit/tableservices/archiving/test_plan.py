"""The instants to move and the slots to delete, as a function of the timeline (GC-1)."""

from __future__ import annotations

import pytest

from tableservices.archiving.batch_ids import RememberedBatches
from tableservices.archiving.plan import (
    ArchivingSettings,
    choose_instants,
    compaction_limit,
    needed_since,
    next_truncation_point,
)
from timeline.codecs.commit_log import (
    NO_TRUNCATION,
    CommittedBatch,
    EarlierBatches,
    TruncationPoint,
)
from timeline.model.instant import Action
from timeline.model.slot import Batch, Slot, SlotKind, SlotOwner
from timeline.snapshot import ActiveTimeline

KEEP = ArchivingSettings(commits_kept_min=2, commits_kept_max=3)


def time(number: int) -> str:
    return f"202601020304{number:05d}"


def done(number: int, action: str = "commit", *, completed: int | None = None) -> str:
    return f"{time(number)}_{time(completed or number + 1)}.{action}"


COMMITS = [done(number) for number in (10, 20, 30, 40, 50, 60)]


def chosen(names: list[str], *lines: str, settings: ArchivingSettings = KEEP) -> list[int]:
    found = choose_instants(ActiveTimeline.of(names), settings, lines)
    return [int(one.requested_time[12:]) for one in found]


def slot(number: int, kind: SlotKind = SlotKind.COMMIT, **fields: object) -> Slot:
    given = {
        "number": number,
        "table_id": "t",
        "kind": kind,
        "action": Action.COMMIT,
        "requested_time": time(number * 10),
        "completion_time": time(number * 10 + 1),
        "base": 0,
        "nonce": "n",
        "owner": SlotOwner(host="h", pid=1, writer_id="w"),
    }
    return Slot(**{**given, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (COMMITS[:3], []),
        (COMMITS[:4], [10, 20]),
        (COMMITS, [10, 20, 30, 40]),
        ([*COMMITS, f"{time(25)}.commit.requested"], [10, 20]),
        ([*COMMITS, f"{time(25)}.compaction.requested"], [10, 20]),
        ([done(10, completed=26), *COMMITS[1:], f"{time(25)}.commit.requested"], []),
        ([*COMMITS, done(15, "rollback"), done(45, "rollback")], [10, 15, 20, 30, 40]),
        ([*COMMITS, done(15, "clean"), done(35, "clean")], [10, 15, 20, 30, 35, 40]),
        ([*COMMITS, done(15, "restore")], [10, 20, 30, 40]),
        ([*COMMITS, done(30, "savepoint", completed=55)], [10, 20]),
        ([*COMMITS, f"{time(30)}.savepoint.inflight"], [10, 20]),
    ],
)
def test_the_plan_chooses_these_instants(names: list[str], expected: list[int]):
    assert chosen(names) == expected


def test_no_instant_at_or_after_a_limit_is_archived():
    assert chosen(COMMITS, time(30)) == [10, 20]
    assert chosen(COMMITS, time(31), time(90)) == [10, 20, 30]
    assert chosen(COMMITS, time(5)) == []


def test_beyond_a_savepoint_only_its_commit_stays():
    beyond = KEEP.model_copy(update={"beyond_savepoint": True})
    names = [*COMMITS, done(20, "savepoint", completed=55)]
    assert chosen(names, settings=beyond) == [10, 30, 40]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], None),
        ([done(10, "deltacommit"), done(20, "deltacommit")], 10),
        ([done(n, "deltacommit") for n in (10, 20, 30, 40)], 20),
        ([done(10, "deltacommit"), done(20), done(30, "deltacommit")], 20),
        ([done(10), *(done(n, "deltacommit") for n in (20, 30, 40, 50))], 30),
    ],
)
def test_commits_that_trigger_the_next_compaction_stay(names: list[str], expected: int | None):
    line = compaction_limit(ActiveTimeline.of(names), 3)
    assert line == (None if expected is None else time(expected))


def truncation_point_of(slots: list[Slot], names: list[str], **options: object) -> int:
    timeline = ActiveTimeline.of(names)
    going = choose_instants(timeline, KEEP, ())
    given = {"ceiling": 99, "carried": RememberedBatches(), **options}
    return next_truncation_point(NO_TRUNCATION, timeline, going, slots, **given).number  # type: ignore[arg-type]


def test_slots_are_truncated_as_far_as_their_instants_are_archived():
    slots = [slot(number) for number in range(1, 7)]
    assert truncation_point_of(slots, COMMITS) == 4
    assert truncation_point_of(slots, COMMITS, ceiling=3) == 3
    assert truncation_point_of(slots, [*COMMITS, f"{time(25)}.commit.requested"]) == 2


def test_a_plan_that_is_pending_keeps_its_slot_and_all_after_it():
    plan = slot(2, SlotKind.PLAN, action=Action.COMPACTION, requested_time=time(25))
    names = [*COMMITS, f"{time(25)}.compaction.requested"]
    slots = [slot(1), plan, *(slot(number) for number in range(3, 7))]
    assert truncation_point_of(slots, names) == 1


def test_an_abort_slot_is_truncated_with_its_rollback():
    abort = slot(2, SlotKind.ABORT, own_requested_time=time(15))
    slots = [slot(1), abort, *(slot(number) for number in range(3, 7))]
    assert truncation_point_of(slots, [*COMMITS, done(15, "rollback")]) == 4
    assert truncation_point_of(slots, [*COMMITS, done(45, "rollback", completed=46)]) == 4
    kept = slot(2, SlotKind.ABORT, own_requested_time=time(45))
    assert truncation_point_of([slot(1), kept, slot(3)], [*COMMITS, done(45, "rollback")]) == 1


def test_slots_without_files_of_their_own_are_truncated():
    kinds = (
        SlotKind.NOOP,
        SlotKind.CANCEL,
        SlotKind.TRUNCATE,
        SlotKind.UNSAVEPOINT,
        SlotKind.CLEAN,
    )
    others = [slot(number, kind) for number, kind in enumerate(kinds, start=2)]
    assert truncation_point_of([slot(1), *others, slot(7)], COMMITS) == 6


def test_instants_of_slots_above_the_ceiling_are_needed():
    slots = [slot(1), slot(2), slot(3, requested_time=time(5)), slot(4, SlotKind.TRUNCATE)]
    assert needed_since(slots, 1) == time(5)
    assert needed_since(slots, 3) is None


@pytest.mark.spec("BATCH-2")
def test_batch_ids_are_moved_into_the_truncation_point():
    batch = Batch(batch_id="load 1", rows_inserted=3)
    slots = [slot(1, batches=(batch,)), *(slot(number) for number in range(2, 7))]
    timeline = ActiveTimeline.of(COMMITS)
    going = choose_instants(timeline, KEEP, ())
    carried = RememberedBatches()
    kept = next_truncation_point(NO_TRUNCATION, timeline, going, slots, ceiling=99, carried=carried)
    known = CommittedBatch(
        batch=batch, action="commit", requested_time=time(10), completion_time=time(11)
    )
    assert kept.batches == (known,)


@pytest.mark.spec("BATCH-2")
def test_a_truncation_without_slots_keeps_the_batches_of_the_truncation_point():
    """Its file is that of the truncation before it, so batches in that file alone must stay."""
    timeline = ActiveTimeline.of(COMMITS)
    going = choose_instants(timeline, KEEP, ())
    earlier = EarlierBatches(number=1, count=1, newest=time(9), digest="d")
    known = CommittedBatch(
        batch=Batch(batch_id="load 1"),
        action="commit",
        requested_time=time(10),
        completion_time=time(11),
    )
    former = TruncationPoint(number=2, time=time(11), batches=(known,), earlier=(earlier,))
    stays = next_truncation_point(
        former, timeline, going, [], ceiling=99, carried=RememberedBatches()
    )
    assert (stays.number, stays.batches, stays.earlier) == (2, (known,), (earlier,))
    slots = [slot(number) for number in range(3, 7)]
    moved = next_truncation_point(
        former, timeline, going, slots, ceiling=99, carried=RememberedBatches()
    )
    assert (moved.batches, moved.earlier) == ((), ())
    assert moved.number > 2


def test_commits_after_a_savepointed_write_are_kept_for_its_restore():
    names = [done(10), done(20, completed=38), *COMMITS[2:]]
    assert chosen(names) == [10, 20, 30, 40]
    assert chosen([*names, done(30, "savepoint", completed=55)]) == [10]
    assert chosen([*names, done(40, "savepoint", completed=55)]) == [10, 20, 30]
