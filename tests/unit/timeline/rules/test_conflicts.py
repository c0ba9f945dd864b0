"""Every cell of the conflict matrix, claims on partitions, and the order of gravity (PUB-4, PUB-5)."""

from __future__ import annotations

import itertools

import pytest

from timeline.model.instant import Action
from timeline.model.write_set import WHOLE_TABLE, Claim, FileGroupId, Touch, TouchedFileGroup
from timeline.rules.conflicts import (
    MATRIX,
    Clean,
    Rebaseable,
    Refused,
    Rival,
    RuleId,
    judge,
)

MY_TIME, OLDER, NEWER = "20260102030405004", "20260102030405000", "20260102030405008"
A, B = FileGroupId("x", "a"), FileGroupId("x", "b")


def touched(group: FileGroupId, touch: Touch, source: str | None = None) -> TouchedFileGroup:
    return TouchedFileGroup(file_group=group, touch=touch, source_requested_time=source)


def claim(*touches: TouchedFileGroup, partitions: tuple[str, ...] = ()) -> Claim:
    return Claim.of(touches, partitions)


def rival(
    content: Claim, *, requested_time: str = OLDER, aborts: str | None = None, **more: object
) -> Rival:
    return Rival(
        action=Action.COMMIT,
        requested_time=requested_time,
        completion_time="20260102030405011",
        claim=content,
        aborts=aborts,
        **more,
    )


#: (mine, theirs) in one file group -> rule and whether a redo of the file group is enough.
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
def test_every_cell_with_an_older_rival(cell: str):
    mine, theirs = map(Touch, cell.split())
    verdict = judge(claim(touched(A, mine)), MY_TIME, [rival(claim(touched(A, theirs)))])
    rule, rebaseable = EXPECTED[cell]
    assert verdict.rule.value == rule
    assert isinstance(verdict, Rebaseable if rebaseable else Refused)
    assert verdict.file_groups == (A,)


@pytest.mark.parametrize("cell", EXPECTED)
def test_no_cell_is_rebaseable_under_a_newer_rival(cell: str):
    mine, theirs = map(Touch, cell.split())
    rivals = [rival(claim(touched(A, theirs)), requested_time=NEWER)]
    verdict = judge(claim(touched(A, mine)), MY_TIME, rivals)
    assert isinstance(verdict, Refused)
    assert verdict.rule.value == EXPECTED[cell][0]
    assert verdict.retry_can_succeed


def test_the_matrix_has_every_pair():
    assert set(MATRIX) == set(itertools.product(Touch, Touch))


def test_different_file_groups_do_not_meet():
    mine = claim(touched(A, Touch.BASE))
    assert judge(mine, MY_TIME, [rival(claim(touched(B, Touch.BASE)))]) == Clean()


def test_equal_file_ids_in_two_partitions_do_not_meet():
    other = touched(FileGroupId("y", "a"), Touch.BASE)
    assert judge(claim(touched(A, Touch.BASE)), MY_TIME, [rival(claim(other))]) == Clean()


def test_no_rivals_is_clean():
    assert judge(claim(touched(A, Touch.BASE), partitions=(WHOLE_TABLE,)), MY_TIME, []) == Clean()


@pytest.mark.parametrize(
    ("source", "met"), [(None, True), ("20260102030404000", True), (OLDER, False), (MY_TIME, False)]
)
def test_rows_merged_onto_the_rivals_file_do_not_meet_it(source: str | None, met: bool):
    mine = claim(touched(A, Touch.BASE, source))
    verdict = judge(mine, MY_TIME, [rival(claim(touched(A, Touch.BASE)))])
    assert isinstance(verdict, Rebaseable) is met


def test_rows_merged_onto_a_file_still_meet_its_replacement():
    mine = claim(touched(A, Touch.BASE, OLDER))
    verdict = judge(mine, MY_TIME, [rival(claim(touched(A, Touch.REPLACE)))])
    assert isinstance(verdict, Refused)


@pytest.mark.parametrize(
    ("mine", "theirs", "rule", "partitions"),
    [
        (claim(partitions=("x",)), claim(touched(A, Touch.NEW)), "C5", ("x",)),
        (claim(touched(A, Touch.NEW)), claim(partitions=("x",)), "C4", ("x",)),
        (claim(partitions=("x",)), claim(partitions=("x", "y")), "C5", ("x",)),
        (claim(partitions=(WHOLE_TABLE,)), claim(touched(A, Touch.NEW)), "C5", ("x",)),
        (claim(touched(A, Touch.BASE)), claim(partitions=(WHOLE_TABLE,)), "C4", ("x",)),
        (claim(partitions=(WHOLE_TABLE,)), claim(partitions=("y",)), "C5", ("y",)),
    ],
)
@pytest.mark.parametrize("requested_time", [OLDER, NEWER])
def test_claims_on_partitions_are_refused(
    mine: Claim, theirs: Claim, rule: str, partitions: tuple[str, ...], requested_time: str
):
    verdict = judge(mine, MY_TIME, [rival(theirs, requested_time=requested_time)])
    assert isinstance(verdict, Refused)
    assert (verdict.rule.value, verdict.partitions) == (rule, partitions)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (claim(partitions=("x",)), claim(partitions=("y",))),
        (claim(partitions=("y",)), claim(touched(A, Touch.BASE))),
        (claim(partitions=(WHOLE_TABLE,)), claim()),
        (claim(), claim(partitions=(WHOLE_TABLE,))),
    ],
)
def test_claims_on_other_partitions_do_not_meet(mine: Claim, theirs: Claim):
    assert judge(mine, MY_TIME, [rival(theirs)]) == Clean()


def test_two_overwrites_of_the_empty_whole_table_meet():
    whole = claim(partitions=(WHOLE_TABLE,))
    assert isinstance(judge(whole, MY_TIME, [rival(whole)]), Refused)


def test_a_rollback_of_mine_comes_before_everything():
    rivals = [
        rival(claim(partitions=("x",))),
        rival(claim(), requested_time=NEWER, aborts=MY_TIME),
    ]
    verdict = judge(claim(touched(A, Touch.BASE)), MY_TIME, rivals)
    assert verdict.rule is RuleId.TARGET_OF_ROLLBACK


def test_a_rollback_of_another_does_not_disturb():
    rivals = [rival(claim(), requested_time=NEWER, aborts=OLDER)]
    assert judge(claim(touched(A, Touch.BASE)), MY_TIME, rivals) == Clean()


def test_refused_is_graver_than_rebaseable():
    rivals = [rival(claim(touched(A, Touch.BASE))), rival(claim(touched(B, Touch.REPLACE)))]
    verdict = judge(claim(touched(A, Touch.BASE), touched(B, Touch.BASE)), MY_TIME, rivals)
    assert isinstance(verdict, Refused)
    assert verdict.file_groups == (B,)


def test_all_file_groups_to_redo_are_told_with_their_last_rivals():
    first = rival(claim(touched(A, Touch.BASE)), writer="first")
    last = rival(claim(touched(A, Touch.BASE), touched(B, Touch.NEW)), writer="last")
    verdict = judge(claim(touched(B, Touch.BASE), touched(A, Touch.BASE)), MY_TIME, [first, last])
    assert isinstance(verdict, Rebaseable)
    assert verdict.file_groups == (A, B)
    assert last in verdict.rivals


def test_compaction_does_not_disturb_log_files():
    compaction = rival(claim(touched(A, Touch.BASE)), is_compaction=True)
    assert judge(claim(touched(A, Touch.LOG)), MY_TIME, [compaction]) == Clean()
    assert judge(claim(touched(A, Touch.REPLACE)), MY_TIME, [compaction]) == Clean()
    assert isinstance(judge(claim(touched(A, Touch.BASE)), MY_TIME, [compaction]), Rebaseable)
    assert (
        judge(claim(touched(A, Touch.REPLACE), partitions=("x",)), MY_TIME, [compaction]) == Clean()
    )


def test_log_files_may_meet_only_when_it_is_said():
    rivals = [rival(claim(touched(A, Touch.LOG)))]
    mine = claim(touched(A, Touch.LOG))
    assert isinstance(judge(mine, MY_TIME, rivals), Refused)
    assert judge(mine, MY_TIME, rivals, logs_may_meet=True) == Clean()


def test_a_claim_is_in_canonical_order():
    one = Claim.of([touched(B, Touch.BASE), touched(A, Touch.NEW)], ["y", "x", "y"], ["q", "p"])
    assert [item.file_group for item in one.file_groups] == [A, B]
    assert (one.partitions, one.inserting) == (("x", "y"), ("p", "q"))
