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

    def only_inserted(self, concurrent: ConcurrentCommit, group: FileGroupId) -> bool:
        return False

    def has_reads(self, concurrent: ConcurrentCommit) -> bool:
        self.asked.append(concurrent.requested_time)
        return concurrent.requested_time in self.reading

    def wrote_no_match(self, concurrent: ConcurrentCommit, item: AccessedFileGroup) -> bool:
        return item.file_group.file_id in self.missing

    def had_no_match(self, group: FileGroupId) -> bool:
        return False


def write_set(*items: tuple[str, str, Access], partitions: tuple[str, ...] = ()) -> WriteSet:
    return WriteSet.of(
        [
            AccessedFileGroup(file_group=FileGroupId(partition, file_id), access=access)
            for partition, file_id, access in items
        ],
        partitions,
    )


def concurrent(
    name: str, content: WriteSet, action: Action = Action.COMMIT, **more: object
) -> ConcurrentCommit:
    return ConcurrentCommit(
        action=action, requested_time=name, completion_time=name, write_set=content, **more
    )


def validated(
    level: Isolation,
    mine: WriteSet,
    concurrent_commits: list[ConcurrentCommit],
    watch: RecordingReadWatch | None = None,
) -> Rejected:
    found = validate_reads(level, mine, READ, concurrent_commits, watch or RecordingReadWatch())
    assert found is not None
    return found


MINE = write_set(("y", "m", BASE))
MOVED = concurrent("r0", write_set(("x", "g", REPLACE)), Action.CLUSTERING)


def test_names_of_levels_are_stable() -> None:
    assert [level.value for level in Isolation] == [
        "snapshot",
        "write_serializable",
        "serializable",
    ]


@pytest.mark.parametrize("level", [SOME, STRICT])
def test_commits_after_moved_rows_are_still_validated(level: Isolation) -> None:
    changed = concurrent("r1", write_set(("x", "g", BASE)))
    found = validated(level, MINE, [MOVED, changed])
    assert (found.rule, found.concurrent_commits) == (RuleId.READ_WAS_CHANGED, (changed,))


def test_under_snapshot_commits_after_moved_rows_are_still_validated() -> None:
    mine = write_set(("x", "g", BASE))
    changed = concurrent("r1", write_set(("x", "g", BASE)))
    found = validated(SNAPSHOT, mine, [MOVED, changed])
    assert found.concurrent_commits == (changed,)


def test_a_rejection_names_file_groups_and_each_partition_once() -> None:
    changed = concurrent("r1", write_set(("x", "g", BASE), ("x", "h", BASE), ("z", "i", BASE)))
    found = validated(STRICT, MINE, [changed])
    assert found.file_groups == (FileGroupId("x", "g"), FileGroupId("x", "h"))
    assert found.partitions == ("x",)
    assert not found.retry_can_succeed


def test_a_whole_restore_names_no_file_group() -> None:
    restored = concurrent("r1", WriteSet(), Action.RESTORE, restores=True)
    found = validated(STRICT, MINE, [restored])
    assert (found.concurrent_commits, found.file_groups, found.partitions) == ((restored,), (), ())


def test_only_inserted_rows_that_match_the_read_are_named() -> None:
    inserted = concurrent("r1", write_set(("x", "n", NEW), ("x", "o", NEW)))
    found = validated(STRICT, MINE, [inserted], RecordingReadWatch(missing="n"))
    assert found.file_groups == (FileGroupId("x", "o"),)
    assert found.rule is RuleId.INSERTED_WHERE_I_MISSED


def test_read_sets_are_not_requested_before_an_insert_was_passed() -> None:
    watch = RecordingReadWatch()
    elsewhere = concurrent("r1", write_set(("z", "n", NEW)))
    assert validate_reads(SOME, MINE, READ, [elsewhere], watch) is None
    assert watch.asked == []


def test_every_read_set_is_requested_after_an_insert_was_passed() -> None:
    watch = RecordingReadWatch()
    concurrent_commits = [
        concurrent("r1", write_set(("x", "n", NEW))),
        concurrent("r2", write_set(("z", "o", NEW))),
    ]
    assert validate_reads(SOME, MINE, READ, concurrent_commits, watch) is None
    assert watch.asked == ["r1", "r2"]


def test_a_commit_that_read_and_inserted_into_the_read_partition_is_named_with_its_file_group() -> (
    None
):
    concurrent_commits = [
        concurrent("r1", write_set(("x", "n", NEW))),
        concurrent("r2", write_set(("x", "o", NEW))),
    ]
    found = validated(SOME, MINE, concurrent_commits, RecordingReadWatch(reading="r2"))
    assert found.concurrent_commits == (concurrent_commits[1],)
    assert found.file_groups == (FileGroupId("x", "o"),)


def test_a_commit_that_read_and_inserted_elsewhere_is_named_without_a_file_group() -> None:
    concurrent_commits = [
        concurrent("r1", write_set(("x", "n", NEW))),
        concurrent("r2", write_set(("z", "o", NEW))),
    ]
    found = validated(SOME, MINE, concurrent_commits, RecordingReadWatch(reading="r2"))
    assert (found.concurrent_commits, found.file_groups) == ((concurrent_commits[1],), ())


def test_rows_moved_after_an_unseen_insert_conflict_as_well() -> None:
    concurrent_commits = [
        concurrent("r1", write_set(("x", "n", NEW))),
        concurrent("r2", write_set(("y", "m", REPLACE)), Action.CLUSTERING),
    ]
    assert validated(SOME, MINE, concurrent_commits).concurrent_commits == (concurrent_commits[1],)


@pytest.mark.parametrize(
    ("mine", "theirs", "groups"),
    [
        (write_set(("y", "m", BASE)), write_set(("y", "m", BASE), ("z", "o", BASE)), ["m"]),
        (write_set(partitions=("y",)), write_set(("y", "k", BASE), ("z", "o", BASE)), ["k"]),
        (write_set(partitions=(WHOLE_TABLE,)), write_set(("y", "k", BASE), ("z", "o", BASE)), ["k", "o"]),
        (write_set(("z", "p", NEW)), write_set(("y", "k", REPLACE), ("z", "o", REPLACE), partitions=("z",)), ["o"]),
    ],
    ids=["the same group", "my partition", "my whole table", "their partition"],
)  # fmt: skip
def test_the_overwritten_file_groups_of_unseen_inserts_are_named(
    mine: WriteSet, theirs: WriteSet, groups: list[str]
) -> None:
    concurrent_commits = [concurrent("r1", write_set(("x", "n", NEW))), concurrent("r2", theirs)]
    found = validated(SOME, mine, concurrent_commits)
    assert found.rule is RuleId.INSERTED_WHERE_I_MISSED
    # A write set with the whole table also contains earlier inserts.
    wanted = ["n"] if WHOLE_TABLE in mine.partitions else groups
    assert [group.file_id for group in found.file_groups] == wanted


@pytest.mark.parametrize(
    ("mine", "theirs", "conflicts"),
    [
        (write_set(("x", "g", BASE)), write_set(("x", "g", BASE)), True),
        (write_set(("x", "g", BASE)), write_set(("x", "h", BASE)), False),
        (write_set(partitions=("x",)), write_set(("x", "h", NEW)), True),
        (write_set(partitions=(WHOLE_TABLE,)), write_set(("x", "h", NEW)), True),
        (write_set(partitions=("x",)), write_set(("y", "h", NEW)), False),
        (write_set(("x", "g", BASE)), write_set(partitions=("x",)), True),
        (write_set(("x", "g", BASE)), write_set(partitions=("y",)), False),
        (write_set(("x", "g", BASE)), write_set(partitions=(WHOLE_TABLE,)), True),
        (
            write_set(("y", "g", BASE)),
            write_set(partitions=(WHOLE_TABLE,)),
            False,
        ),  # y was not read
        (write_set(partitions=("x",)), write_set(partitions=("x",)), True),
        (WriteSet(inserting=("x",)), write_set(("x", "g", BASE)), True),
        (WriteSet(inserting=("x",)), write_set(("x", "g", NEW)), False),
        (WriteSet(inserting=("y",)), write_set(("x", "g", BASE)), False),
    ],
)
def test_the_first_committer_wins_among_writes_of_the_same_rows(
    mine: WriteSet, theirs: WriteSet, conflicts: bool
) -> None:
    found = validate_reads(SNAPSHOT, mine, READ, [concurrent("r1", theirs)], RecordingReadWatch())
    assert (found is not None) is conflicts
    if found is not None:
        assert found.rule is RuleId.READ_WAS_CHANGED
