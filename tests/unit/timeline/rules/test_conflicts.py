"""Every cell of the conflict matrix, whole partitions, and the order of severity (PUB-4, PUB-5)."""

from __future__ import annotations

import itertools

import pytest

from timeline.model.commit_metadata import (
    WHOLE_TABLE,
    Access,
    AccessedFileGroup,
    FileGroupId,
    WriteSet,
)
from timeline.model.instant import Action
from timeline.rules.conflicts import (
    MATRIX,
    ConcurrentCommit,
    NoConflict,
    Rebase,
    Rejected,
    RuleId,
    validate_write_set,
)

MY_TIME, OLDER, NEWER = "20260102030405004", "20260102030405000", "20260102030405008"
A, B = FileGroupId("x", "a"), FileGroupId("x", "b")


def touched(group: FileGroupId, access: Access, source: str | None = None) -> AccessedFileGroup:
    return AccessedFileGroup(file_group=group, access=access, source_requested_time=source)


def write_set(*touches: AccessedFileGroup, partitions: tuple[str, ...] = ()) -> WriteSet:
    return WriteSet.of(touches, partitions)


def concurrent(
    content: WriteSet, *, requested_time: str = OLDER, aborts: str | None = None, **more: object
) -> ConcurrentCommit:
    return ConcurrentCommit(
        action=Action.COMMIT,
        requested_time=requested_time,
        completion_time="20260102030405011",
        write_set=content,
        aborts=aborts,
        **more,
    )


#: (mine, theirs) in one file group -> rule and whether a rebase of the file group is enough.
EXPECTED = {
    "new new": ("C1", True),
    "new base": ("C1", True),
    "new log": ("C1", False),
    "new replace": ("C2", False),
    "base new": ("C1", True),
    "base base": ("C1", True),
    "base log": ("C1", False),
    "base replace": ("C2", False),
    "log new": ("C1", False),
    "log base": ("C1", False),
    "log log": ("C1", False),
    "log replace": ("C2", False),
    "replace new": ("C3", False),
    "replace base": ("C3", False),
    "replace log": ("C3", False),
    "replace replace": ("C15", False),
}


@pytest.mark.parametrize("cell", EXPECTED)
def test_each_cell_of_the_matrix_with_an_older_concurrent_commit(cell: str):
    mine, theirs = map(Access, cell.split())
    verdict = validate_write_set(
        write_set(touched(A, mine)), MY_TIME, [concurrent(write_set(touched(A, theirs)))]
    )
    rule, rebaseable = EXPECTED[cell]
    assert verdict.rule.value == rule
    assert isinstance(verdict, Rebase if rebaseable else Rejected)
    assert verdict.file_groups == (A,)


@pytest.mark.parametrize("cell", EXPECTED)
def test_no_cell_is_rebaseable_under_a_newer_concurrent_commit(cell: str):
    mine, theirs = map(Access, cell.split())
    concurrent_commits = [concurrent(write_set(touched(A, theirs)), requested_time=NEWER)]
    verdict = validate_write_set(write_set(touched(A, mine)), MY_TIME, concurrent_commits)
    assert isinstance(verdict, Rejected)
    assert verdict.rule.value == EXPECTED[cell][0]
    assert verdict.retry_can_succeed


def test_the_matrix_has_every_pair():
    assert set(MATRIX) == set(itertools.product(Access, Access))


def test_different_file_groups_do_not_conflict():
    mine = write_set(touched(A, Access.BASE))
    assert (
        validate_write_set(mine, MY_TIME, [concurrent(write_set(touched(B, Access.BASE)))])
        == NoConflict()
    )


def test_equal_file_ids_in_two_partitions_do_not_conflict():
    other = touched(FileGroupId("y", "a"), Access.BASE)
    assert (
        validate_write_set(
            write_set(touched(A, Access.BASE)), MY_TIME, [concurrent(write_set(other))]
        )
        == NoConflict()
    )


def test_no_concurrent_commits_give_no_conflict():
    assert (
        validate_write_set(
            write_set(touched(A, Access.BASE), partitions=(WHOLE_TABLE,)), MY_TIME, []
        )
        == NoConflict()
    )


@pytest.mark.parametrize(
    ("source", "is_rebase"),
    [(None, True), ("20260102030404000", True), (OLDER, False), (MY_TIME, False)],
)
def test_rows_merged_onto_the_file_of_a_concurrent_commit_do_not_conflict_with_it(
    source: str | None, is_rebase: bool
):
    mine = write_set(touched(A, Access.BASE, source))
    verdict = validate_write_set(mine, MY_TIME, [concurrent(write_set(touched(A, Access.BASE)))])
    assert isinstance(verdict, Rebase) is is_rebase


def test_rows_merged_onto_a_file_conflict_with_its_replacement():
    mine = write_set(touched(A, Access.BASE, OLDER))
    verdict = validate_write_set(mine, MY_TIME, [concurrent(write_set(touched(A, Access.REPLACE)))])
    assert isinstance(verdict, Rejected)


@pytest.mark.parametrize(
    ("mine", "theirs", "rule", "partitions"),
    [
        (write_set(partitions=("x",)), write_set(touched(A, Access.NEW)), "C5", ("x",)),
        (write_set(touched(A, Access.NEW)), write_set(partitions=("x",)), "C4", ("x",)),
        (write_set(partitions=("x",)), write_set(partitions=("x", "y")), "C5", ("x",)),
        (write_set(partitions=(WHOLE_TABLE,)), write_set(touched(A, Access.NEW)), "C5", ("x",)),
        (write_set(touched(A, Access.BASE)), write_set(partitions=(WHOLE_TABLE,)), "C4", ("x",)),
        (write_set(partitions=(WHOLE_TABLE,)), write_set(partitions=("y",)), "C5", ("y",)),
    ],
)
@pytest.mark.parametrize("requested_time", [OLDER, NEWER])
def test_overlapping_partitions_are_rejected(
    mine: WriteSet, theirs: WriteSet, rule: str, partitions: tuple[str, ...], requested_time: str
):
    verdict = validate_write_set(mine, MY_TIME, [concurrent(theirs, requested_time=requested_time)])
    assert isinstance(verdict, Rejected)
    assert (verdict.rule.value, verdict.partitions) == (rule, partitions)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (write_set(partitions=("x",)), write_set(partitions=("y",))),
        (write_set(partitions=("y",)), write_set(touched(A, Access.BASE))),
        (write_set(partitions=(WHOLE_TABLE,)), write_set()),
        (write_set(), write_set(partitions=(WHOLE_TABLE,))),
    ],
)
def test_different_partitions_do_not_conflict(mine: WriteSet, theirs: WriteSet):
    assert validate_write_set(mine, MY_TIME, [concurrent(theirs)]) == NoConflict()


def test_two_overwrites_of_the_empty_whole_table_conflict():
    whole = write_set(partitions=(WHOLE_TABLE,))
    assert isinstance(validate_write_set(whole, MY_TIME, [concurrent(whole)]), Rejected)


def test_a_rollback_of_the_write_precedes_every_other_conflict():
    concurrent_commits = [
        concurrent(write_set(partitions=("x",))),
        concurrent(write_set(), requested_time=NEWER, aborts=MY_TIME),
    ]
    verdict = validate_write_set(write_set(touched(A, Access.BASE)), MY_TIME, concurrent_commits)
    assert verdict.rule is RuleId.TARGET_OF_ROLLBACK


def test_a_rollback_of_another_write_does_not_conflict():
    concurrent_commits = [concurrent(write_set(), requested_time=NEWER, aborts=OLDER)]
    assert (
        validate_write_set(write_set(touched(A, Access.BASE)), MY_TIME, concurrent_commits)
        == NoConflict()
    )


def test_rejected_is_graver_than_rebase():
    concurrent_commits = [
        concurrent(write_set(touched(A, Access.BASE))),
        concurrent(write_set(touched(B, Access.REPLACE))),
    ]
    verdict = validate_write_set(
        write_set(touched(A, Access.BASE), touched(B, Access.BASE)), MY_TIME, concurrent_commits
    )
    assert isinstance(verdict, Rejected)
    assert verdict.file_groups == (B,)


def test_a_rebase_names_all_file_groups_with_their_last_concurrent_commits():
    first = concurrent(write_set(touched(A, Access.BASE)), writer="first")
    last = concurrent(write_set(touched(A, Access.BASE), touched(B, Access.NEW)), writer="last")
    verdict = validate_write_set(
        write_set(touched(B, Access.BASE), touched(A, Access.BASE)), MY_TIME, [first, last]
    )
    assert isinstance(verdict, Rebase)
    assert verdict.file_groups == (A, B)
    assert last in verdict.concurrent_commits


def test_compaction_does_not_conflict_with_log_files():
    compaction = concurrent(write_set(touched(A, Access.BASE)), is_compaction=True)
    assert (
        validate_write_set(write_set(touched(A, Access.LOG)), MY_TIME, [compaction]) == NoConflict()
    )
    assert (
        validate_write_set(write_set(touched(A, Access.REPLACE)), MY_TIME, [compaction])
        == NoConflict()
    )
    assert isinstance(
        validate_write_set(write_set(touched(A, Access.BASE)), MY_TIME, [compaction]), Rebase
    )
    assert (
        validate_write_set(
            write_set(touched(A, Access.REPLACE), partitions=("x",)), MY_TIME, [compaction]
        )
        == NoConflict()
    )


def test_log_files_may_overlap_only_where_it_is_allowed():
    concurrent_commits = [concurrent(write_set(touched(A, Access.LOG)))]
    mine = write_set(touched(A, Access.LOG))
    assert isinstance(validate_write_set(mine, MY_TIME, concurrent_commits), Rejected)
    assert (
        validate_write_set(mine, MY_TIME, concurrent_commits, logs_may_conflict=True)
        == NoConflict()
    )


def test_a_write_set_is_in_canonical_order():
    one = WriteSet.of(
        [touched(B, Access.BASE), touched(A, Access.NEW)], ["y", "x", "y"], ["q", "p"]
    )
    assert [item.file_group for item in one.file_groups] == [A, B]
    assert (one.partitions, one.inserting) == (("x", "y"), ("p", "q"))
