"""The commit checks in addition to the conflict matrix, fact by fact (PUB-4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from filegroups.files.log_files import keys_of_log
from filegroups.schema.schema import TableSchema
from filegroups.table import TableReader
from filegroups.writing.commit_checks import CommitFacts, commit_checks, rejected_by
from tests.unit.timeline.engine import SMALL, new_table, put, upsert
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.codecs.instant_avro import encode_compaction_plan, encode_requested_replace
from timeline.commit.concurrent_commits import commit_of_slot
from timeline.model.commit_metadata import (
    Access,
    AccessedFileGroup,
    FileGroupId,
    TableType,
    WriteOperation,
    WriteSet,
)
from timeline.model.file_names import TIMELINE, join
from timeline.model.file_slice import LogFile
from timeline.model.instant import Action
from timeline.model.plans import (
    ClusteringGroup,
    ClusteringPlan,
    CompactionOperation,
    CompactionPlan,
    RequestedReplaceMetadata,
    SliceInfo,
)
from timeline.model.slot import Slot
from timeline.rules.conflicts import ConcurrentCommit, Rejected, RuleId

APART = replace(SMALL, sizes=replace(SMALL.sizes, small_file_bytes=0))
MY_TIME = "20260101000000500"
BEFORE_ME, AFTER_ME = "20260101000000100", "20260101000000900"
SCHEMA = '{"type": "record", "name": "t", "fields": []}'
BUCKET, TWIN = "00000003-aaaa", "00000003-bbbb"


def row(key: str, partition: str = "x") -> dict[str, object]:
    return {"id": key, "p": partition, "ts": 1, "v": 1}


def inserted(table: TableReader, *rows: dict[str, object]) -> Slot:
    """Commit rows in their own file groups, and return the slot."""
    context = table.context
    put(table, WriteOperation.INSERT, [*rows], files=APART)
    slot = context.commit_log.read(context.commit_log.head())
    assert slot is not None
    return slot


def touching(name: str, access: Access = Access.BASE, partition: str = "x") -> AccessedFileGroup:
    return AccessedFileGroup(file_group=FileGroupId(partition, name), access=access)


def mine(**facts: Any) -> CommitFacts:
    """Return the facts of a pending commit without changes, but for these."""
    whole = CommitFacts(
        requested_time=MY_TIME,
        keys_looked_up=True,
        batch_ids=(),
        schemas=(SCHEMA, SCHEMA),
        write_set=WriteSet(),
        partitions_without_match=(),
        inserted_into=(),
        appended=(),
        virtual_keys=None,
        read_only=(),
        whole_table=False,
        in_buckets=False,
    )
    return replace(whole, **facts)


def as_mine(slot: Slot, **facts: Any) -> CommitFacts:
    """Return the facts of a committed slot as those of a pending commit."""
    paths = tuple(
        join(item.file_group.partition_path, name)
        for item in slot.write_set.file_groups
        for name in item.files
    )
    from_slot = mine(
        requested_time=slot.requested_time,
        schemas=(slot.schema_after, slot.schema_before),
        write_set=slot.write_set,
        inserted_into=paths,
    )
    return replace(from_slot, **facts)


def concurrent(**facts: Any) -> ConcurrentCommit:
    other = ConcurrentCommit(
        action=Action.COMMIT,
        requested_time=AFTER_ME,
        completion_time=AFTER_ME,
        write_set=WriteSet(),
    )
    return replace(other, **facts)


def rule(refused: Rejected | None) -> RuleId | None:
    return None if refused is None else refused.rule


@pytest.mark.parametrize(
    ("batches", "expected"), [(("b",), RuleId.SAME_BATCH), (("c",), None), ((), None)]
)
def test_only_the_same_batch_conflicts(batches: tuple[str, ...], expected: RuleId | None) -> None:
    refused = rejected_by(
        new_table().context, mine(batch_ids=("a", "b")), [concurrent(batches=batches)]
    )
    assert rule(refused) is expected


@pytest.mark.parametrize("in_buckets", [False, True])
@pytest.mark.parametrize("whole_table", [False, True])
def test_a_delete_that_found_all_its_keys_does_not_conflict_with_inserts(
    whole_table: bool, in_buckets: bool
) -> None:
    other = concurrent(write_set=WriteSet(inserting=("x",)))
    context = new_table().context
    found = mine(whole_table=whole_table, in_buckets=in_buckets)
    assert rejected_by(context, found, [other]) is None
    missed = replace(found, partitions_without_match=("x",))
    assert rule(rejected_by(context, missed, [other])) is RuleId.INSERTED_WHERE_I_MISSED


def test_a_key_missed_in_one_partition_may_be_inserted_anywhere_only_if_unique_in_the_table() -> (
    None
):
    other, context = concurrent(write_set=WriteSet(inserting=("y", "z"))), new_table().context
    assert rejected_by(context, mine(partitions_without_match=("x",)), [other]) is None
    refused = rejected_by(context, mine(partitions_without_match=("x",), whole_table=True), [other])
    assert refused is not None
    assert refused.partitions == ("y", "z")


# ---- buckets


def test_another_file_group_for_a_bucket_of_the_write_conflicts() -> None:
    me = mine(in_buckets=True, write_set=WriteSet(file_groups=(touching(BUCKET, Access.NEW),)))
    other = concurrent(write_set=WriteSet(file_groups=(touching(TWIN, Access.NEW),)))
    refused = rejected_by(new_table().context, me, [other])
    assert refused is not None
    assert (refused.rule, refused.file_groups) == (
        RuleId.SAME_FILE_GROUP_WRITTEN,
        (FileGroupId("x", TWIN),),
    )


@pytest.mark.parametrize(
    ("in_buckets", "my_touch", "theirs"),
    [
        pytest.param(False, Access.NEW, touching(TWIN, Access.NEW), id="not in buckets"),
        pytest.param(True, Access.REPLACE, touching(TWIN, Access.NEW), id="mine is hidden"),
        pytest.param(True, Access.NEW, touching(TWIN, Access.REPLACE), id="theirs is hidden"),
        pytest.param(True, Access.NEW, touching(BUCKET, Access.BASE), id="the same file group"),
        pytest.param(True, Access.NEW, touching(TWIN, Access.NEW, "y"), id="another partition"),
        pytest.param(True, Access.NEW, touching("00000004-b", Access.NEW), id="another bucket"),
    ],
)
def test_one_bucket_with_two_file_groups_conflicts_in_these_cases(
    in_buckets: bool, my_touch: Access, theirs: AccessedFileGroup
) -> None:
    me = mine(in_buckets=in_buckets, write_set=WriteSet(file_groups=(touching(BUCKET, my_touch),)))
    other = concurrent(write_set=WriteSet(file_groups=(theirs,)))
    assert rejected_by(new_table().context, me, [other]) is None


# ---- keys that are new in both writes


def test_a_key_that_both_writes_inserted_into_a_partition_conflicts() -> None:
    table = new_table()
    other, me = inserted(table, row("n"), row("m")), inserted(table, row("n"), row("k"))
    refused = rejected_by(table.context, as_mine(me), [commit_of_slot(other)])
    assert refused is not None
    assert (refused.rule, refused.partitions) == (RuleId.SAME_NEW_KEY, ("x",))


def test_a_key_that_the_other_write_inserted_into_another_partition_is_another_row() -> None:
    table = new_table()
    other, me = inserted(table, row("m"), row("n", "y")), inserted(table, row("n"))
    assert rejected_by(table.context, as_mine(me), [commit_of_slot(other)]) is None
    everywhere = as_mine(me, whole_table=True)
    assert rule(rejected_by(table.context, everywhere, [commit_of_slot(other)])) is (
        RuleId.SAME_NEW_KEY
    )


def test_new_keys_of_one_file_group_are_left_to_the_rebase() -> None:
    table = new_table()
    other = inserted(table, row("n"))
    assert rejected_by(table.context, as_mine(other), [commit_of_slot(other)]) is None


@pytest.mark.parametrize("first", ["w", "x"])
def test_every_file_with_new_keys_is_compared(first: str) -> None:
    """The first file is in another partition, or in the file group that the other wrote."""
    table = new_table()
    other, me = inserted(table, row("a"), row("n", "y")), inserted(table, row("n", "y"))
    name = other.write_set.file_groups[0].files[0]
    paths = (join(first, name), *as_mine(me).inserted_into)
    write_set = replace(me.write_set, inserting=("w", "x", "y"))
    refused = rejected_by(
        table.context,
        as_mine(me, write_set=write_set, inserted_into=paths),
        [commit_of_slot(other)],
    )
    assert refused is not None
    assert refused.partitions == ("y",)


def test_only_partitions_that_got_new_keys_of_both_are_read() -> None:
    storage = RecordingStorage(MemoryStorage())
    table = new_table(storage)
    other, me = inserted(table, row("n")), inserted(table, row("n"))
    elsewhere = replace(other, write_set=replace(other.write_set, inserting=("y",)))
    storage.forget()
    assert rejected_by(table.context, as_mine(me), [commit_of_slot(elsewhere)]) is None
    assert storage.operations() == []


def test_every_log_is_compared_with_inserts_into_other_file_groups() -> None:
    """The file of the other write is in the file group of the first log, which is skipped."""
    table = new_table(table_type=TableType.MERGE_ON_READ)
    for key in ("a", "c"):
        inserted(table, row(key))
    upsert(table, [{**row("a"), "ts": 2}, {**row("c"), "ts": 2}])
    slot = table.context.commit_log.read(table.context.commit_log.head())
    assert slot is not None
    schema = TableSchema.from_avro(slot.schema_after).arrow
    found = {
        keys_of_log(table.context.ports.storage, log, schema, None)[0].as_py(): log
        for log in logs_of(slot)
    }
    other = inserted(table, row("a"))
    [touched] = other.write_set.file_groups
    moved = replace(touched, file_group=found["c"].file_group)
    theirs = commit_of_slot(
        replace(other, write_set=replace(other.write_set, file_groups=(moved,)))
    )
    me = as_mine(slot, inserted_into=(), appended=(found["c"], found["a"]))
    refused = rejected_by(table.context, me, [theirs])
    assert refused is not None
    assert (refused.rule, refused.file_groups) == (
        RuleId.SAME_NEW_KEY,
        (found["a"].file_group,),
    )


def logs_of(slot: Slot) -> list[LogFile]:
    found = [
        LogFile.found(item.file_group.partition_path, name, item.written_bytes)
        for item in slot.write_set.file_groups
        for name in item.files
    ]
    return [log for log in found if log is not None]


# ---- plans since the begin of this write


def compaction_of(group: FileGroupId) -> bytes:
    one = CompactionOperation(
        base_instant_time=BEFORE_ME, file_id=group.file_id, partition_path=group.partition_path
    )
    return encode_compaction_plan(CompactionPlan(operations=(one,)))


def planned(table: TableReader, name: str, content: bytes) -> None:
    table.context.ports.storage.create(f"{TIMELINE}/{name}.requested", content)


def checked(table: TableReader, me: CommitFacts) -> Rejected | None:
    context = table.context
    return commit_checks(context, me)(context.active(), [], lambda: context.config)


@pytest.mark.spec("PUB-5")
@pytest.mark.parametrize(
    ("when", "access", "expected"),
    [
        (AFTER_ME, Access.BASE, RuleId.PENDING_PLAN_OWNS_FILE_GROUP),
        (AFTER_ME, Access.NEW, RuleId.PENDING_PLAN_OWNS_FILE_GROUP),
        (AFTER_ME, Access.LOG, None),
        (BEFORE_ME, Access.BASE, None),
    ],
)
def test_a_newer_compaction_would_hide_a_base_file_of_the_write(
    when: str, access: Access, expected: RuleId | None
) -> None:
    table = new_table()
    planned(table, f"{when}.compaction", compaction_of(FileGroupId("x", "f")))
    touched = WriteSet(file_groups=(touching("f", access), touching("g", access)))
    refused = checked(table, mine(write_set=touched))
    assert rule(refused) is expected
    assert refused is None or refused.file_groups == (FileGroupId("x", "f"),)


def test_plans_of_compactions_are_read_only_where_one_is_newer_than_the_write() -> None:
    storage = RecordingStorage(MemoryStorage())
    table = new_table(storage)
    planned(table, f"{BEFORE_ME}.compaction", compaction_of(FileGroupId("x", "f")))
    planned(table, f"{AFTER_ME}.commit", b"")
    storage.forget()
    assert checked(table, mine(write_set=WriteSet(file_groups=(touching("f"),)))) is None
    assert not [one for one in storage.operations() if "compaction" in one]


@pytest.mark.spec("PUB-5")
def test_the_newest_of_two_compactions_hides_a_base_file_of_the_write() -> None:
    table = new_table()
    for when in (BEFORE_ME, AFTER_ME):
        planned(table, f"{when}.compaction", compaction_of(FileGroupId("x", "f")))
    refused = checked(table, mine(write_set=WriteSet(file_groups=(touching("f"),))))
    assert rule(refused) is RuleId.PENDING_PLAN_OWNS_FILE_GROUP


@pytest.mark.spec("CL-2")
@pytest.mark.parametrize(
    ("group", "expected"), [("f", RuleId.PENDING_PLAN_OWNS_FILE_GROUP), ("g", None)]
)
def test_another_engines_clustering_would_lose_the_write(
    group: str, expected: RuleId | None
) -> None:
    table = new_table()
    inputs = ClusteringGroup(slices=(SliceInfo(file_id="f", partition_path="x"),))
    plan = RequestedReplaceMetadata(clustering_plan=ClusteringPlan(input_groups=(inputs,)))
    planned(table, f"{AFTER_ME}.clustering", encode_requested_replace(plan))
    assert (
        rule(checked(table, mine(write_set=WriteSet(file_groups=(touching(group),))))) is expected
    )
