"""Values of the cleaner's decision: one test per policy, one per reason to keep something."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tableservices.cleaning.plan import (
    CleaningPolicy,
    CleaningSettings,
    CleanInput,
    earliest_commit_to_retain,
    plan_clean,
)
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_slice import BaseFile, FileSlice, LogFile
from timeline.model.instant import Action, Instant, State

GROUP = FileGroupId("p", "f1")
COMMITS = CleaningSettings(commits_retained=2)
VERSIONS = CleaningSettings(policy=CleaningPolicy.VERSIONS, versions_retained=2)


def t(number: int) -> str:
    return f"{number:017d}"


def commit(requested: int, completed: int) -> Instant:
    return Instant(
        action=Action.COMMIT,
        requested_time=t(requested),
        state=State.COMPLETED,
        completion_time=t(completed),
    )


def path(number: int, group: FileGroupId = GROUP) -> str:
    return f"{group.partition_path}/{group.file_id}_0-0-0_{t(number)}.parquet"


def slice_at(number: int, group: FileGroupId = GROUP) -> FileSlice:
    base = BaseFile(
        file_group=group,
        name=path(number, group).rpartition("/")[2],
        requested_time=t(number),
        size_bytes=1,
    )
    return FileSlice(file_group=group, base_instant_time=t(number), base_file=base)


def facts(line: Instant | None, *numbers: int, oldest_pending: int | None = None) -> CleanInput:
    return CleanInput(
        line=line,
        oldest_pending=None if oldest_pending is None else t(oldest_pending),
        completions={t(number): t(number + 5) for number in numbers},
        groups={GROUP: [slice_at(number) for number in numbers]},
    )


# ---- the line


def test_the_earliest_commit_to_retain_is_the_nth_from_the_end() -> None:
    completed = [commit(n, n + 5) for n in (10, 20, 30, 40, 50)]
    assert earliest_commit_to_retain(completed, None, COMMITS, t(0)) == completed[3]


@pytest.mark.parametrize(
    ("cleaned_at", "line"),
    [
        ("20261121101001472", "20261121100958301"),
        ("20261121101004178", "20261121101000216"),
        ("20261121101006021", "20261121101002693"),
    ],
)
def test_the_earliest_commit_to_retain_is_the_one_java_recorded(cleaned_at: str, line: str) -> None:
    """Commits and cleans of the golden table v9_cow_clean_archive, 2 commits retained."""
    written = (
        "20261121100958301",
        "20261121101000216",
        "20261121101002693",
        "20261121101004675",
    )
    completed = [
        replace(commit(0, 0), requested_time=time, completion_time=time)
        for time in written
        if time < cleaned_at
    ]
    if len(completed) <= 2:  # java saw one more, archived since
        completed.insert(0, commit(10, 15))
    found = earliest_commit_to_retain(completed, None, COMMITS, t(0))
    assert found is not None
    assert found.requested_time == line


def test_there_is_no_earliest_commit_to_retain_while_all_commits_are_retained() -> None:
    completed = [commit(10, 15), commit(20, 25)]
    assert earliest_commit_to_retain(completed, None, COMMITS, t(0)) is None


def test_the_earliest_commit_to_retain_is_never_later_than_the_oldest_pending_instant() -> None:
    completed = [commit(n, n + 5) for n in (10, 20, 30, 40, 50)]
    assert earliest_commit_to_retain(completed, t(32), COMMITS, t(0)) == completed[2]
    assert earliest_commit_to_retain(completed, t(40), COMMITS, t(0)) == completed[3]
    assert earliest_commit_to_retain(completed, t(5), COMMITS, t(0)) is None


def test_the_earliest_commit_to_retain_by_hours_is_the_first_one_not_older() -> None:
    hours = CleaningSettings(policy=CleaningPolicy.HOURS)
    completed = [commit(n, n + 5) for n in (10, 20, 30)]
    assert earliest_commit_to_retain(completed, None, hours, t(15)) == completed[1]
    assert earliest_commit_to_retain(completed, None, hours, t(20)) == completed[1]
    assert earliest_commit_to_retain(completed, None, hours, t(31)) is None
    assert earliest_commit_to_retain(completed, t(12), hours, t(15)) == completed[0]


def test_retention_by_versions_has_no_earliest_commit_to_retain() -> None:
    assert (
        earliest_commit_to_retain([commit(n, n + 5) for n in (1, 2, 3, 4)], None, VERSIONS, t(0))
        is None
    )


# ---- the policies


def test_the_last_slice_before_the_earliest_commit_to_retain_stays() -> None:
    plan = plan_clean(facts(commit(40, 45), 10, 20, 30, 40, 50), COMMITS)
    assert plan.files == {"p": (path(10), path(20))}


def test_the_floor_is_where_the_last_planned_slice_was_superseded() -> None:
    """RDL-1: a read as of 35, when the slice of 30 had completed, sees neither of the two."""
    given = facts(commit(40, 45), 10, 20, 30, 40, 50)
    assert plan_clean(given, COMMITS).floor == t(35)
    assert plan_clean(replace(given, line=None), COMMITS).floor == ""


def test_the_floor_of_a_replaced_group_is_its_replacement() -> None:
    given = replace(facts(commit(40, 45), 10, 20, 30), replaced={GROUP: t(30)})
    plan = plan_clean(given, COMMITS)
    assert (plan.paths, plan.floor) == ((path(10), path(20), path(30)), t(35))


def test_the_floor_is_not_below_the_completion_of_the_earliest_active_commit() -> None:
    given = facts(commit(40, 45), 10, 20, 30, 40, 50)
    kept = {t(40): t(45), t(50): t(55)}
    assert plan_clean(replace(given, completions=kept), COMMITS).floor == t(45)


def test_a_group_without_a_slice_after_the_limit_keeps_its_latest_only() -> None:
    assert plan_clean(facts(commit(40, 45), 10, 20), COMMITS).paths == (path(10),)


def test_without_an_earliest_commit_to_retain_no_file_is_deleted() -> None:
    assert plan_clean(facts(None, 10, 20, 30), COMMITS).paths == ()


def test_versions_keep_the_newest_slices() -> None:
    assert plan_clean(facts(None, 10, 20, 30, 40), VERSIONS).paths == (path(10), path(20))


def test_log_files_are_deleted_with_their_slice() -> None:
    name = f".f1_{t(12)}.log.1_0-0-0"
    log = LogFile(
        file_group=GROUP,
        name=name,
        instant_time=t(12),
        log_version=1,
        write_token="0-0-0",
        size_bytes=1,
    )
    given = facts(None, 10, 20, 30)
    slices = [replace(slice_at(10), log_files=(log,)), slice_at(20), slice_at(30)]
    plan = plan_clean(replace(given, groups={GROUP: slices}), VERSIONS)
    assert plan.paths == (f"p/{name}", path(10))


# ---- the reasons to keep


@pytest.mark.spec("CLN-2")
def test_the_latest_slice_is_never_planned() -> None:
    """With every reason but this one out of the way, one slice is still left."""
    phantom = FileSlice(file_group=GROUP, base_instant_time=t(30), base_file=None)
    given = replace(facts(None, 10, 20), groups={GROUP: [slice_at(10), slice_at(20), phantom]})
    assert plan_clean(given, replace_versions(1)).paths == (path(10),)


def replace_versions(count: int) -> CleaningSettings:
    return CleaningSettings(policy=CleaningPolicy.VERSIONS, versions_retained=count)


def test_before_the_limit_means_completed_before_it() -> None:
    """t30 was requested before the line t40, but a query begun at t41 saw t20 only."""
    given = facts(commit(40, 45), 10, 20, 30, 40)
    late = {**given.completions, t(30): t(42)}
    assert plan_clean(replace(given, completions=late), COMMITS).paths == (path(10),)


def test_retention_by_versions_keeps_slices_that_the_oldest_pending_instant_may_have_read() -> None:
    numbers = (10, 20, 30, 40)
    assert plan_clean(facts(None, *numbers, oldest_pending=27), VERSIONS).paths == (path(10),)
    assert plan_clean(facts(None, *numbers, oldest_pending=24), VERSIONS).paths == ()
    assert plan_clean(facts(None, *numbers), VERSIONS).paths == (path(10), path(20))


def test_retention_by_commits_keeps_slices_that_the_oldest_pending_instant_may_have_read() -> None:
    """The line alone (t30, completed at t35) would let t20 stay and t10 go; t21 needs t10."""
    given = facts(commit(30, 35), 10, 20, 30, 40, oldest_pending=21)
    assert plan_clean(given, COMMITS).paths == ()


def test_files_of_a_savepoint_stay() -> None:
    given = facts(commit(40, 45), 10, 20, 30, 40, 50)
    pinned = replace(given, savepointed_files=frozenset({path(10)}))
    assert plan_clean(pinned, COMMITS).paths == (path(20),)


def test_deferred_deletes_of_an_earlier_clean_are_not_planned_again() -> None:
    given = facts(commit(40, 45), 10, 20, 30, 40, 50)
    assert plan_clean(replace(given, deferred_deletes=frozenset({path(10)})), COMMITS).paths == (
        path(20),
    )
    owed = replace(given, deferred_deletes=frozenset({path(10), path(20)}))
    assert (plan_clean(owed, COMMITS).paths, plan_clean(owed, COMMITS).floor) == ((), "")


def test_the_input_of_a_pending_compaction_stays() -> None:
    given = facts(commit(40, 45), 10, 20, 30, 40, 50)
    assert plan_clean(replace(given, compactions={GROUP: [t(25)]}), COMMITS).paths == (path(10),)


def test_the_input_of_a_pending_clustering_stays() -> None:
    given = facts(commit(40, 45), 10, 20, 30, 40, 50)
    assert plan_clean(replace(given, clusterings={GROUP: t(26)}), COMMITS).paths == (path(10),)


def test_archived_instants_count_as_completed_long_ago() -> None:
    given = replace(facts(commit(40, 45), 10, 20, 30), completions={t(40): t(45)})
    assert plan_clean(given, COMMITS).paths == (path(10), path(20))


# ---- replaced file groups


def replaced(at: int, line: Instant | None, *, oldest_pending: int | None = None) -> CleanInput:
    given = facts(line, 10, 20, oldest_pending=oldest_pending)
    completions = {**given.completions, t(at): t(at + 5)}
    return replace(given, replaced={GROUP: t(at)}, completions=completions)


def test_a_group_replaced_before_the_limit_is_deleted_as_a_whole() -> None:
    assert plan_clean(replaced(30, commit(40, 45)), COMMITS).paths == (path(10), path(20))


def test_a_group_replaced_after_the_limit_stays_as_a_whole() -> None:
    assert plan_clean(replaced(40, commit(40, 45)), COMMITS).paths == ()
    assert plan_clean(replaced(36, commit(40, 45)), COMMITS).paths == ()  # completed at t41


def test_retention_by_versions_deletes_a_replaced_group_at_once() -> None:
    assert plan_clean(replaced(30, None), VERSIONS).paths == (path(10), path(20))


def test_a_replaced_group_stays_while_a_pending_instant_may_have_read_it() -> None:
    assert plan_clean(replaced(30, None, oldest_pending=33), VERSIONS).paths == ()
    assert plan_clean(replaced(30, commit(40, 45), oldest_pending=33), COMMITS).paths == ()


def test_a_savepoint_keeps_a_file_of_a_replaced_group() -> None:
    given = replace(replaced(30, None), savepointed_files=frozenset({path(20)}))
    assert plan_clean(given, VERSIONS).paths == (path(10),)


def test_a_replaced_group_of_a_pending_clustering_stays() -> None:
    given = replace(replaced(30, None), clusterings={GROUP: t(50)})
    assert plan_clean(given, VERSIONS).paths == ()


def test_change_logs_are_deleted_with_their_base_file() -> None:
    logs = {(GROUP, t(number)): [f"p/.f1_{t(number)}.log.1_0-0-0.cdc"] for number in (20, 30)}
    table_facts = replace(facts(commit(40, 45), 10, 20, 30, 40), change_logs=logs)
    assert plan_clean(table_facts, COMMITS).paths == (
        f"p/.f1_{t(20)}.log.1_0-0-0.cdc",
        path(10),
        path(20),
    )


# ---- logs


def with_logs(one: FileSlice, *numbers: int, base: bool = True) -> FileSlice:
    logs = tuple(
        LogFile(
            file_group=one.file_group,
            name=f".{one.file_group.file_id}_{t(number)}.log.1_0-0-0",
            instant_time=t(number),
            log_version=1,
            write_token="0-0-0",
            size_bytes=1,
        )
        for number in numbers
    )
    return replace(one, log_files=logs, base_file=one.base_file if base else None)


def test_logs_are_deleted_and_kept_with_their_slice() -> None:
    slices = [with_logs(slice_at(10), 12, 14), with_logs(slice_at(20), 22), slice_at(30)]
    table_facts = replace(facts(commit(30, 35), 10, 20, 30), groups={GROUP: slices})
    assert plan_clean(table_facts, COMMITS).paths == (
        f"p/.f1_{t(12)}.log.1_0-0-0",
        f"p/.f1_{t(14)}.log.1_0-0-0",
        path(10),
    )


def test_a_savepoint_of_one_log_keeps_its_slice() -> None:
    slices = [with_logs(slice_at(10), 12, 14), slice_at(20), slice_at(30)]
    pinned = frozenset({f"p/.f1_{t(12)}.log.1_0-0-0"})
    table_facts = replace(
        facts(commit(30, 35), 10, 20, 30), groups={GROUP: slices}, savepointed_files=pinned
    )
    assert plan_clean(table_facts, COMMITS).paths == ()


def test_slices_below_a_slice_of_logs_only_stay() -> None:
    """Readers merge logs without a base file with those below them (fmt 6.2)."""
    slices = [
        slice_at(10),
        with_logs(slice_at(20), 22, base=False),
        with_logs(slice_at(30), 32, base=False),
    ]
    table_facts = replace(facts(commit(40, 45), 10, 20, 30), groups={GROUP: slices})
    assert plan_clean(table_facts, replace_settings(VERSIONS)).paths == ()


def replace_settings(settings: CleaningSettings) -> CleaningSettings:
    """The same, one version kept."""
    return settings.model_copy(update={"versions_retained": 1})
