"""Strategies have Hudi's names or ours, and reject at least all that the matrix rejects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from filegroups.settings.settings import WriteSettings
from hoodoo.configuration import conflict_strategy
from tests.unit.timeline.engine import (
    BRISK,
    begun,
    leftovers,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from timeline.errors import SettingError, WriteConflictError
from timeline.model.commit_metadata import (
    WHOLE_TABLE,
    Access,
    AccessedFileGroup,
    FileGroupId,
    WriteOperation,
    WriteSet,
)
from timeline.model.instant import Action
from timeline.properties.options import as_property_set
from timeline.rules.conflicts import (
    STRATEGIES,
    ConcurrentCommit,
    ConflictStrategy,
    Objection,
    RuleId,
    find_strategy,
    objection_to,
)

KEY = "hoodie.write.lock.conflict.resolution.strategy"
JAVA = "org.apache.hudi.client.transaction."
PARTITION = find_strategy("partition")


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("simple", "simple"),
        ("Prefer-Writer", "prefer_writer"),
        (f"{JAVA}SimpleConcurrentFileWritesConflictResolutionStrategy", "simple"),
        (f"{JAVA}BucketIndexConcurrentFileWritesConflictResolutionStrategy", "bucket"),
        (f"{JAVA}PreferWriterConflictResolutionStrategy", "prefer_writer"),
        ("PreferWriterConflictResolutionStrategy", "prefer_writer"),
        ("partition", "partition"),
    ],
)
def test_names_of_ours_and_of_java(option: str, name: str) -> None:
    found = find_strategy(option)
    assert found is not None
    assert found.name == name


def test_an_unknown_class_is_no_strategy() -> None:
    assert find_strategy("com.acme.MineStrategy") is None


def test_an_unknown_strategy_is_refused_with_a_list_of_the_known_ones() -> None:
    option = {KEY: "com.acme.MineStrategy"}
    settings = WriteSettings.from_properties(option)
    with pytest.raises(SettingError, match="simple, bucket, prefer_writer, partition") as caught:
        conflict_strategy(settings, as_property_set(option))
    assert caught.value.fields["key"] == KEY


def test_a_hoodoo_strategy_name_keeps_its_meaning() -> None:
    other = ConflictStrategy(name="simple", prefers_writers=True)
    found = find_strategy("simple", [other])
    assert found is not None
    assert not found.prefers_writers
    assert find_strategy("mine", [replace(other, name="mine")]) is not None


def write_set(partition_path: str, access: Access = Access.NEW, *claimed: str) -> WriteSet:
    group = FileGroupId(partition_path, f"f-{partition_path}")
    return WriteSet.of([AccessedFileGroup(file_group=group, access=access)], claimed)


def concurrent(
    content: WriteSet, action: Action = Action.COMMIT, *, moves: bool = False
) -> ConcurrentCommit:
    return ConcurrentCommit(
        action=action,
        requested_time="20260102030405000",
        completion_time="20260102030405011",
        write_set=content,
        is_compaction=moves,
    )


@pytest.mark.parametrize(
    ("theirs", "partitions_named"),
    [
        (concurrent(write_set("x")), ("x",)),
        (concurrent(write_set("y")), None),
        (concurrent(WriteSet.of([], ["x"])), ("x",)),
        (concurrent(WriteSet.of([], [WHOLE_TABLE])), ("*", "x")),
        (concurrent(write_set("x"), Action.CLUSTERING), None),
        (concurrent(write_set("x"), Action.COMPACTION, moves=True), None),
        (concurrent(WriteSet()), None),
    ],
)
def test_strategy_partition_permits_one_writer_in_a_partition(
    theirs: ConcurrentCommit, partitions_named: tuple[str, ...] | None
) -> None:
    assert PARTITION is not None
    refused = objection_to(write_set("x"), [theirs], PARTITION)
    assert (refused and refused.partitions) == partitions_named
    if refused is not None:
        assert refused.rule is RuleId.STRATEGY_REFUSED
        assert refused.retry_can_succeed


def test_two_concurrent_inserts_into_one_partition_run_one_after_the_other() -> None:
    limits = replace(BRISK, strategy=PARTITION)
    table = new_table(limits=limits)
    upsert(table, [{"id": "a", "p": "x", "ts": 1, "v": 1}])
    other = opened(table, limits=limits)
    into_x, into_y = {"id": "b", "p": "x", "ts": 1, "v": 2}, {"id": "c", "p": "y", "ts": 1, "v": 3}
    insert = WriteOperation.BULK_INSERT
    result = put(table, insert, [{**into_x, "id": "d"}], lambda: put(other, insert, [into_x]))
    assert (result.attempts, result.refusals[0].rule) == (2, "C18")
    assert (result.refusals[0].kind, result.refusals[0].partitions) == ("strategy", ("x",))
    assert put(table, insert, [{**into_y, "id": "e"}], lambda: put(other, insert, [into_x]))
    assert leftovers(table) == []
    assert [row[0] for row in rows_of(table, "id")] == ["a", "b", "b", "d", "e"]


NOTHING = ConflictStrategy(name="blind", objects=lambda mine, theirs: None)


@pytest.mark.parametrize("older", [True, False], ids=["older rival", "newer rival"])
@pytest.mark.parametrize("strategy", [*STRATEGIES, NOTHING], ids=lambda one: one.name)
def test_no_strategy_loses_an_update(strategy: ConflictStrategy, older: bool) -> None:
    limits = replace(BRISK, strategy=strategy, retry=replace(BRISK.retry, conflict_retries_max=0))
    table = new_table(limits=limits)
    upsert(table, [{"id": "a", "p": "x", "ts": 1, "v": 1}])
    other, theirs = opened(table), [{"id": "a", "p": "x", "ts": 2, "v": 2}]
    concurrent = (
        begun(other, WriteOperation.UPSERT, theirs) if older else lambda: upsert(other, theirs)
    )
    with pytest.raises(WriteConflictError):
        upsert(table, [{"id": "a", "p": "x", "ts": 3, "v": 3}], concurrent)
    assert rows_of(table, "id", "v") == [("a", 2)]


def test_a_plug_in_strategy_may_reject_for_its_own_reasons() -> None:
    mine = ConflictStrategy(
        name="night",
        objects=lambda mine, theirs: Objection(why="loads wait for each other at night"),
    )
    refused = objection_to(write_set("x"), [concurrent(write_set("y"))], mine)
    assert refused is not None
    assert (refused.why, refused.file_groups) == ("loads wait for each other at night", ())
