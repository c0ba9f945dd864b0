"""Isolation with several concurrent commits: the named one, the requests, the ignored ones."""

from __future__ import annotations

import pytest

from timeline.model.commit_metadata import (
    WHOLE_TABLE,
    Access,
    AccessedFileGroup,
    FileGroupId,
    WriteSet,
)
from timeline.model.instant import Action
from timeline.rules.conflicts import ConcurrentCommit, Rejected, RuleId
from timeline.rules.isolation import Isolation, ReadScope, validate_reads

SNAPSHOT, SOME, STRICT = Isolation.SNAPSHOT, Isolation.WRITE_SERIALIZABLE, Isolation.SERIALIZABLE
READ = ReadScope(partitions=frozenset({"x"}), instants=frozenset())
NEW, BASE, REPLACE = Access.NEW, Access.BASE, Access.REPLACE


class RecordingReadWatch:
    """A read watch with given answers that records its calls."""

    def __init__(self, reading: str = "", missing: str = "") -> None:
        self.reading, self.missing = reading.split(), missing.split()
        self.asked: list[str] = []

    def only_inserted(self, rival: ConcurrentCommit, group: FileGroupId) -> bool:
        return False

    def has_reads(self, rival: ConcurrentCommit) -> bool:
        self.asked.append(rival.requested_time)
        return rival.requested_time in self.reading

    def wrote_no_match(self, rival: ConcurrentCommit, item: AccessedFileGroup) -> bool:
        return item.file_group.file_id in self.missing

    def had_no_match(self, group: FileGroupId) -> bool:
        return False


def claim(*items: tuple[str, str, Access], claims: tuple[str, ...] = ()) -> WriteSet:
    return WriteSet.of(
        [
            AccessedFileGroup(file_group=FileGroupId(partition, file_id), access=touch)
            for partition, file_id, touch in items
        ],
        claims,
    )


def rival(
    name: str, content: WriteSet, action: Action = Action.COMMIT, **facts: object
) -> ConcurrentCommit:
    return ConcurrentCommit(
        action=action, requested_time=name, completion_time=name, write_set=content, **facts
    )


def validated(
    level: Isolation,
    mine: WriteSet,
    rivals: list[ConcurrentCommit],
    looks: RecordingReadWatch | None = None,
) -> Rejected:
    found = validate_reads(level, mine, READ, rivals, looks or RecordingReadWatch())
    assert found is not None
    return found


MINE = claim(("y", "m", BASE))
MOVED = rival("r0", claim(("x", "g", REPLACE)), Action.CLUSTERING)


def test_names_of_levels_are_stable() -> None:
    assert [level.value for level in Isolation] == [
        "snapshot",
        "write_serializable",
        "serializable",
    ]


@pytest.mark.parametrize("level", [SOME, STRICT])
def test_commits_after_moved_rows_are_still_validated(level: Isolation) -> None:
    changed = rival("r1", claim(("x", "g", BASE)))
    found = validated(level, MINE, [MOVED, changed])
    assert (found.rule, found.concurrent_commits) == (RuleId.READ_WAS_CHANGED, (changed,))


def test_under_snapshot_commits_after_moved_rows_are_still_validated() -> None:
    mine = claim(("x", "g", BASE))
    changed = rival("r1", claim(("x", "g", BASE)))
    found = validated(SNAPSHOT, mine, [MOVED, changed])
    assert found.concurrent_commits == (changed,)


def test_a_rejection_names_file_groups_and_each_partition_once() -> None:
    changed = rival("r1", claim(("x", "g", BASE), ("x", "h", BASE), ("z", "i", BASE)))
    found = validated(STRICT, MINE, [changed])
    assert found.file_groups == (FileGroupId("x", "g"), FileGroupId("x", "h"))
    assert found.partitions == ("x",)
    assert not found.retry_can_succeed


def test_a_whole_restore_names_no_file_group() -> None:
    restored = rival("r1", WriteSet(), Action.RESTORE, restores=True)
    found = validated(STRICT, MINE, [restored])
    assert (found.concurrent_commits, found.file_groups, found.partitions) == ((restored,), (), ())


def test_only_inserted_rows_that_match_the_read_are_named() -> None:
    inserted = rival("r1", claim(("x", "n", NEW), ("x", "o", NEW)))
    found = validated(STRICT, MINE, [inserted], RecordingReadWatch(missing="n"))
    assert found.file_groups == (FileGroupId("x", "o"),)
    assert found.rule is RuleId.INSERTED_WHERE_I_MISSED


def test_read_sets_are_not_requested_before_an_insert_was_passed() -> None:
    looks = RecordingReadWatch()
    elsewhere = rival("r1", claim(("z", "n", NEW)))
    assert validate_reads(SOME, MINE, READ, [elsewhere], looks) is None
    assert looks.asked == []


def test_every_read_set_is_requested_after_an_insert_was_passed() -> None:
    looks = RecordingReadWatch()
    rivals = [rival("r1", claim(("x", "n", NEW))), rival("r2", claim(("z", "o", NEW)))]
    assert validate_reads(SOME, MINE, READ, rivals, looks) is None
    assert looks.asked == ["r1", "r2"]


def test_a_commit_that_read_and_inserted_into_the_read_partition_is_named_with_its_file_group() -> (
    None
):
    rivals = [rival("r1", claim(("x", "n", NEW))), rival("r2", claim(("x", "o", NEW)))]
    found = validated(SOME, MINE, rivals, RecordingReadWatch(reading="r2"))
    assert found.concurrent_commits == (rivals[1],)
    assert found.file_groups == (FileGroupId("x", "o"),)


def test_a_commit_that_read_and_inserted_elsewhere_is_named_without_a_file_group() -> None:
    rivals = [rival("r1", claim(("x", "n", NEW))), rival("r2", claim(("z", "o", NEW)))]
    found = validated(SOME, MINE, rivals, RecordingReadWatch(reading="r2"))
    assert (found.concurrent_commits, found.file_groups) == ((rivals[1],), ())


def test_rows_moved_after_an_unseen_insert_conflict_as_well() -> None:
    rivals = [
        rival("r1", claim(("x", "n", NEW))),
        rival("r2", claim(("y", "m", REPLACE)), Action.CLUSTERING),
    ]
    assert validated(SOME, MINE, rivals).concurrent_commits == (rivals[1],)


@pytest.mark.parametrize(
    ("mine", "theirs", "groups"),
    [
        (claim(("y", "m", BASE)), claim(("y", "m", BASE), ("z", "o", BASE)), ["m"]),
        (claim(claims=("y",)), claim(("y", "k", BASE), ("z", "o", BASE)), ["k"]),
        (claim(claims=(WHOLE_TABLE,)), claim(("y", "k", BASE), ("z", "o", BASE)), ["k", "o"]),
        (claim(("z", "p", NEW)), claim(("y", "k", REPLACE), ("z", "o", REPLACE), claims=("z",)), ["o"]),
    ],
    ids=["the same group", "my partition", "my whole table", "their partition"],
)  # fmt: skip
def test_the_overwritten_file_groups_of_unseen_inserts_are_named(
    mine: WriteSet, theirs: WriteSet, groups: list[str]
) -> None:
    rivals = [rival("r1", claim(("x", "n", NEW))), rival("r2", theirs)]
    found = validated(SOME, mine, rivals)
    assert found.rule is RuleId.INSERTED_WHERE_I_MISSED
    # A write set with the whole table also contains earlier inserts.
    wanted = ["n"] if WHOLE_TABLE in mine.partitions else groups
    assert [group.file_id for group in found.file_groups] == wanted


@pytest.mark.parametrize(
    ("mine", "theirs", "met"),
    [
        (claim(("x", "g", BASE)), claim(("x", "g", BASE)), True),
        (claim(("x", "g", BASE)), claim(("x", "h", BASE)), False),
        (claim(claims=("x",)), claim(("x", "h", NEW)), True),
        (claim(claims=(WHOLE_TABLE,)), claim(("x", "h", NEW)), True),
        (claim(claims=("x",)), claim(("y", "h", NEW)), False),
        (claim(("x", "g", BASE)), claim(claims=("x",)), True),
        (claim(("x", "g", BASE)), claim(claims=("y",)), False),
        (claim(("x", "g", BASE)), claim(claims=(WHOLE_TABLE,)), True),
        (claim(("y", "g", BASE)), claim(claims=(WHOLE_TABLE,)), False),  # y was not read
        (claim(claims=("x",)), claim(claims=("x",)), True),
        (WriteSet(inserting=("x",)), claim(("x", "g", BASE)), True),
        (WriteSet(inserting=("x",)), claim(("x", "g", NEW)), False),
        (WriteSet(inserting=("y",)), claim(("x", "g", BASE)), False),
    ],
)
def test_the_first_committer_wins_among_writes_of_the_same_rows(
    mine: WriteSet, theirs: WriteSet, met: bool
) -> None:
    found = validate_reads(SNAPSHOT, mine, READ, [rival("r1", theirs)], RecordingReadWatch())
    assert (found is not None) is met
    if found is not None:
        assert found.rule is RuleId.READ_WAS_CHANGED
