"""Two writers of one table: which one wins, the rebase or rejection, and the final state."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from tests.unit.timeline.engine import (
    Behind,
    Rows,
    StillClock,
    as_table,
    begun,
    data_files,
    files_below,
    heard,
    leftovers,
    limited,
    new_table,
    opened,
    planned,
    put,
    put_watched,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.metadata_tables import FIRST, PARTITIONS, add_metadata_table
from timeline.codecs.instant_avro import encode_commit
from timeline.errors import (
    BudgetSpentError,
    ClaimConflictError,
    MetadataTableOnError,
    MissingFileError,
    RolledBackError,
    SchemaConflictError,
    StorageUnavailableError,
    TableConfigConflictError,
    WriteConflictError,
)
from timeline.model.commit_metadata import CommitMetadata, WriteOperation, WriteStat
from timeline.model.file_names import METADATA_TABLE, timeline_path
from timeline.model.instant import State
from timeline.model.instant_time import WallMs, instant_time
from timeline.properties.properties_file import update_properties
from timeline.rollback.rollback import rollback

UPSERT, INSERT = WriteOperation.UPSERT, WriteOperation.INSERT
OVERWRITE = WriteOperation.INSERT_OVERWRITE


def row(key: str, part: str, ts: int, v: int) -> dict[str, object]:
    return {"id": key, "p": part, "ts": ts, "v": v}


START: Rows = [row("a", "x", 1, 1), row("b", "y", 1, 1)]


def two_writers(**how: object) -> tuple[TableReader, TableReader]:
    table = new_table(**how)
    upsert(table, START)
    return table, opened(table)


def test_a_concurrent_commit_to_other_file_groups_does_not_conflict():
    mine, other = two_writers()
    result = upsert(mine, [row("a", "x", 2, 2)], lambda: upsert(other, [row("b", "y", 2, 3)]))
    assert result.attempts == 1
    assert rows_of(mine, "id", "v") == [("a", 2), ("b", 3)]


@pytest.mark.spec("PUB-4")
def test_an_older_concurrent_commit_costs_only_its_file_group():
    mine, other = two_writers()
    rival = begun(other, UPSERT, [row("a", "x", 2, 7)])
    result, rewritten = put_watched(mine, UPSERT, [row("a", "x", 3, 8), row("b", "y", 3, 8)], rival)
    assert result.attempts == 2
    assert [len(groups) for groups in rewritten] == [2, 1]
    assert rewritten[1][0] in rewritten[0]
    assert rows_of(mine, "id", "ts", "v") == [("a", 3, 8), ("b", 3, 8)]
    [refusal] = result.refusals
    assert (refusal.rule, refusal.redo) == ("C1", "file groups")
    assert "by other (pid" in refusal.winners[0]
    assert leftovers(mine) == []


def test_a_rebased_file_group_keeps_the_rows_of_the_concurrent_commit():
    mine, other = two_writers()
    rival = begun(other, UPSERT, [row("a", "x", 9, 7), row("c", "x", 2, 7)])
    upsert(mine, [row("a", "x", 3, 8)], rival)
    assert rows_of(mine, "id", "ts", "v") == [("a", 9, 7), ("b", 1, 1), ("c", 2, 7)]


@pytest.mark.spec("PUB-1")
def test_superseded_files_of_a_rebase_are_deleted_before_the_commit():
    mine, other = two_writers()
    rival = begun(other, UPSERT, [row("a", "x", 2, 7)])
    result = upsert(mine, [row("a", "x", 3, 8)], rival)
    own = [path for path in data_files(mine) if result.requested_time in path]
    assert len(own) == 1
    assert "_0-1-0_" in own[0]


@pytest.mark.spec("PUB-5")
def test_a_concurrent_commit_with_a_greater_requested_time_costs_a_new_instant():
    mine, other = two_writers()
    seen: list[str] = []

    def rival() -> None:
        seen.append(mine.context.active().pending[0].requested_time)
        upsert(other, [row("a", "x", 2, 7)])

    result = upsert(mine, [row("a", "x", 3, 8)], rival)
    assert result.attempts == 2
    assert result.requested_time > seen[0]
    assert result.refusals[0].redo == "everything"
    assert not [path for path in data_files(mine) if seen[0] in path]
    assert rows_of(mine, "id", "ts", "v") == [("a", 3, 8), ("b", 1, 1)]


def test_a_rejected_write_without_retries_raises_the_conflict():
    table = new_table(limits=limited(conflict_retries_max=0))
    upsert(table, START)
    other = opened(table)
    with pytest.raises(WriteConflictError) as caught:
        upsert(table, [row("a", "x", 3, 8)], lambda: upsert(other, [row("a", "x", 2, 7)]))
    assert caught.value.fields["report"]["rule"] == "C1"
    assert rows_of(table, "id", "v") == [("a", 7), ("b", 1)]
    assert leftovers(table) == []


def test_an_exhausted_budget_reports_the_conflicts_of_every_attempt():
    table = new_table(limits=limited(conflict_retries_max=2))
    upsert(table, START)
    other = opened(table)
    rivals = [lambda ts=ts: upsert(other, [row("a", "x", ts, ts)]) for ts in (2, 3, 4)]
    with pytest.raises(BudgetSpentError) as caught:
        upsert(table, [row("a", "x", 9, 9)], *rivals)
    assert len(caught.value.fields["attempts"]) == 3
    assert len({report["instant"] for report in caught.value.fields["attempts"]}) == 3
    assert rows_of(table, "id", "v") == [("a", 4), ("b", 1)]
    assert leftovers(table) == []


@pytest.mark.spec("BEG-7")
def test_an_overwrite_conflicts_with_an_insert_into_its_partition():
    table = new_table(limits=limited(conflict_retries_max=0))
    upsert(table, START)
    other = opened(table)
    with pytest.raises(ClaimConflictError) as caught:
        put(
            table,
            OVERWRITE,
            [row("n", "x", 1, 1)],
            lambda: put(other, INSERT, [row("m", "x", 1, 1)]),
        )
    assert caught.value.fields["report"]["rule"] == "C5"
    assert caught.value.fields["report"]["partitions"] == ("x",)
    assert rows_of(table, "id") == [("a",), ("b",), ("m",)]


def test_a_retried_overwrite_hides_the_concurrent_commit_too():
    mine, other = two_writers()
    result = put(
        mine, OVERWRITE, [row("n", "x", 1, 1)], lambda: put(other, INSERT, [row("m", "x", 1, 1)])
    )
    assert result.attempts == 2
    assert rows_of(mine, "id") == [("b",), ("n",)]


def test_an_insert_into_an_overwritten_partition_is_retried():
    mine, other = two_writers()
    result = put(
        mine, INSERT, [row("n", "x", 1, 1)], lambda: put(other, OVERWRITE, [row("m", "x", 1, 1)])
    )
    assert (result.attempts, result.refusals[0].rule) == (2, "C4")
    assert rows_of(mine, "id") == [("b",), ("m",), ("n",)]


def test_an_overwrite_of_the_table_conflicts_with_inserts_into_new_partitions():
    mine, other = two_writers()
    result = put(
        mine,
        WriteOperation.INSERT_OVERWRITE_TABLE,
        [row("n", "x", 1, 1)],
        lambda: put(other, INSERT, [row("m", "new", 1, 1)]),
    )
    assert result.attempts == 2
    assert rows_of(mine, "id") == [("n",)]


def test_the_same_new_key_in_two_upserts_gives_one_row():
    mine, other = two_writers()
    no_filling = replace(planned(mine, UPSERT).files.sizes, small_file_bytes=0)
    files = replace(planned(mine, UPSERT).files, sizes=no_filling)
    result = upsert(
        mine,
        [row("n", "x", 5, 5)],
        lambda: upsert(other, [row("n", "x", 4, 4)], files=files),
        files=files,
    )
    assert (result.attempts, result.refusals[0].rule) == (2, "C9")
    assert rows_of(mine, "id", "v") == [("a", 1), ("b", 1), ("n", 5)]


def test_the_same_new_key_is_detected_along_with_a_file_group_to_rebase():
    mine, other = two_writers()
    files = planned(mine, UPSERT).files
    apart = replace(files, sizes=replace(files.sizes, small_file_bytes=0))
    rival = begun(other, UPSERT, [row("a", "x", 2, 2), row("n", "x", 4, 4)], files=apart)
    result = upsert(mine, [row("a", "x", 3, 3), row("n", "x", 5, 5)], rival, files=apart)
    assert result.attempts == 2
    assert rows_of(mine, "id", "v") == [("a", 3), ("b", 1), ("n", 5)]


def test_inserts_that_drop_known_keys_see_the_same_new_key_too():
    mine, other = two_writers()
    files = planned(mine, UPSERT).files
    apart = replace(files, sizes=replace(files.sizes, small_file_bytes=0))
    put(
        mine,
        INSERT,
        [row("n", "x", 5, 5)],
        lambda: upsert(other, [row("n", "x", 4, 4)], files=apart),
        files=apart,
        drop_found=True,
    )
    assert rows_of(mine, "id", "v") == [("a", 1), ("b", 1), ("n", 4)]


def test_a_column_added_by_a_concurrent_commit_is_kept():
    mine, other = two_writers()
    grown = {**row("b", "y", 2, 2), "w": 1}
    result = upsert(mine, [row("a", "x", 2, 2)], lambda: upsert(other, [grown]))
    assert (result.attempts, result.refusals[0].rule) == (2, "C10")
    assert rows_of(mine, "id", "w") == [("a", None), ("b", 1)]


def test_a_column_added_along_with_a_file_group_to_rebase_is_kept():
    mine, other = two_writers()
    rival = begun(other, UPSERT, [{**row("a", "x", 2, 2), "w": 1}, {**row("c", "x", 2, 2), "w": 2}])
    upsert(mine, [row("a", "x", 3, 3)], rival)
    assert rows_of(mine, "id", "v", "w") == [("a", 3, None), ("b", 1, None), ("c", 2, 2)]


def test_a_schema_conflict_without_retries_is_raised():
    table = new_table(limits=limited(conflict_retries_max=0))
    upsert(table, START)
    other = opened(table)
    with pytest.raises(SchemaConflictError):
        upsert(
            table, [row("a", "x", 2, 2)], lambda: upsert(other, [{**row("b", "y", 2, 2), "w": 1}])
        )


def test_late_rows_of_a_concurrent_commit_do_not_conflict():
    mine, other = two_writers()
    result = upsert(mine, [row("a", "x", 2, 2)], lambda: upsert(other, [row("a", "x", 0, 0)]))
    assert result.attempts == 1
    assert rows_of(mine, "id", "v") == [("a", 2), ("b", 1)]


def test_late_rows_of_an_older_concurrent_commit_do_not_conflict():
    mine, other = two_writers()
    rival = begun(other, UPSERT, [row("a", "x", 0, 0), row("b", "y", 9, 9)])
    upsert(mine, [row("a", "x", 2, 2)], rival)
    assert rows_of(mine, "id", "v") == [("a", 2), ("b", 9)]


def test_late_rows_are_merged_again_when_their_file_group_was_written():
    mine, other = two_writers()
    rival = put  # the partition is overwritten: the late row is new then
    upsert(
        mine,
        [row("a", "x", 0, 5)],
        lambda: rival(other, OVERWRITE, [row("z", "x", 1, 1)]),
    )
    assert rows_of(mine, "id", "v") == [("a", 5), ("b", 1), ("z", 1)]


def test_a_base_file_cleaned_during_the_merge_costs_a_new_attempt():
    mine, _ = two_writers()
    [old] = [path for path in data_files(mine) if path.startswith("x/")]
    storage = mine.context.ports.storage
    content = storage.read(old)

    class Again(LocalWorkload):
        def rewrite(self, tasks):
            gone = not storage.stat(new_place)
            if gone:
                storage.delete(old)
                storage.create(new_place, b"")
            try:
                return super().rewrite(tasks)
            finally:
                if gone:
                    storage.create(old, content)

    new_place = "happened"
    workload = Again(mine.context.ports, pa.Table.from_pylist([row("n", "x", 2, 2)]))
    result = write(mine.context, planned(mine, INSERT), workload)
    assert result.attempts == 2
    assert rows_of(mine, "id") == [("a",), ("b",), ("n",)]
    assert leftovers(mine) == []


def test_a_base_file_that_stays_missing_is_reported_in_the_end():
    table = new_table(limits=limited(conflict_retries_max=1))
    upsert(table, START)
    [old] = [path for path in data_files(table) if path.startswith("x/")]
    table.context.ports.storage.delete(old)
    table.context.ports.storage.create(old, b"")
    table.context.ports.storage.delete(old)

    class Gone(Behind):
        def list(self, folder):
            found = self.inner.list(folder)
            return [*found, *kept] if folder == "x" else found

    kept = [e for e in opened(table).context.ports.storage.list("y") if e.name.endswith("parquet")]
    kept = [replace(kept[0], name=old.partition("/")[2])]
    seen = opened(table, storage=Gone(table.context.ports.storage), limits=table.context.limits)
    with pytest.raises(MissingFileError):
        put(seen, INSERT, [row("n", "x", 2, 2)])
    assert leftovers(table) == []


@pytest.mark.spec("MDT-5")
def test_a_metadata_table_made_meanwhile_gets_the_commit_in_a_second_attempt():
    mine, _ = two_writers()
    storage = mine.context.ports.storage
    result = upsert(mine, [row("a", "x", 2, 2)], lambda: add_metadata_table(storage))
    assert [one.rule for one in result.refusals] == ["C12"]
    assert rows_of(mine, "id", "v") == [("a", 2), ("b", 1)]
    logs = [name for name in storage.names(f"{METADATA_TABLE}/files") if FIRST not in name]
    assert logs == [f".files-0000-0_{result.requested_time}.log.1_0-0-0"]
    assert leftovers(mine) == []


@pytest.mark.spec("MDT-5")
def test_a_metadata_table_switched_off_meanwhile_gets_nothing():
    mine, _ = two_writers()
    storage = mine.context.ports.storage
    add_metadata_table(storage)
    before = files_below(storage, METADATA_TABLE)
    off = partial(update_properties, storage, {PARTITIONS: ""}, now="now")
    result = upsert(opened(mine), [row("a", "x", 2, 2)], off)
    assert [one.rule for one in result.refusals] == ["C12"]
    assert files_below(storage, METADATA_TABLE) == before
    assert rows_of(mine, "id", "v") == [("a", 2), ("b", 1)]


@pytest.mark.spec("MDT-6")
def test_an_index_that_cannot_be_maintained_stops_the_second_attempt():
    mine, _ = two_writers()
    storage = mine.context.ports.storage
    on = partial(update_properties, storage, {PARTITIONS: "files,expr_index_x"}, now="now")
    with pytest.raises(MetadataTableOnError, match="expr_index_x"):
        upsert(mine, [row("a", "x", 2, 2)], on)
    assert rows_of(mine, "id", "v") == [("a", 1), ("b", 1)]
    assert leftovers(mine) == []


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("hoodie.datasource.write.hive_style_partitioning", "true", "hive_style_partitioning"),
        ("hoodie.table.recordkey.fields", "id,v", "record_key_fields"),
        ("hoodie.table.ordering.fields", "v", "merge"),
    ],
)
def test_properties_changed_meanwhile_reject_the_commit(key: str, value: str, field: str):
    mine, _ = two_writers()
    storage = mine.context.ports.storage
    with pytest.raises(TableConfigConflictError, match=field) as caught:
        upsert(
            mine,
            [row("a", "x", 2, 2)],
            lambda: update_properties(storage, {key: value}, now="now"),
        )
    assert caught.value.kind == "properties_changed"
    assert rows_of(mine, "id", "v") == [("a", 1), ("b", 1)]
    assert leftovers(mine) == []


def test_a_property_without_effect_on_rows_may_change():
    mine, _ = two_writers()
    storage = mine.context.ports.storage
    act = lambda: update_properties(storage, {"hoodoo.note": "moved"}, now="now")  # noqa: E731
    assert upsert(mine, [row("a", "x", 2, 2)], act).attempts == 1


def test_properties_in_the_middle_of_a_change_are_read_from_the_backup():
    mine, _ = two_writers()
    storage = mine.context.ports.storage

    def interrupted() -> None:
        storage.create(
            ".hoodie/hoodie.properties.backup", storage.read(".hoodie/hoodie.properties")
        )
        storage.delete(".hoodie/hoodie.properties")

    assert upsert(mine, [row("a", "x", 2, 2)], interrupted).attempts == 1


def test_a_failing_workload_leaves_nothing():
    mine, _ = two_writers()
    before = data_files(mine)

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        upsert(mine, [row("a", "x", 2, 2)], fail)
    assert data_files(mine) == before
    assert leftovers(mine) == []


def test_a_workload_that_fails_after_some_files_leaves_nothing():
    mine, _ = two_writers()
    before = data_files(mine)

    class Half(LocalWorkload):
        def rewrite(self, tasks):
            super().rewrite(tasks)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(
            mine.context,
            planned(mine, UPSERT),
            Half(mine.context.ports, pa.Table.from_pylist([row("a", "x", 2, 2)])),
        )
    assert data_files(mine) == before
    assert leftovers(mine) == []


@pytest.mark.spec("PUB-9")
def test_a_failure_after_the_commit_is_no_failed_write():
    class KeepsMarkers(Behind):
        def delete_folder(self, path: str) -> None:
            raise StorageUnavailableError("the markers cannot be removed")

    table = new_table()
    upsert(table, START)
    mine = opened(table, storage=KeepsMarkers(table.context.ports.storage))
    result = upsert(mine, [row("a", "x", 2, 2)])
    assert result.rows_updated == 1
    assert heard(mine, "write.cleanup_failed")[0]["rt"] == result.requested_time


class InterruptedAfter(Behind):
    """Raises once after it created an object whose path contains a text."""

    def __init__(self, inner: object, part: str) -> None:
        super().__init__(inner)
        self.part = part

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.inner.create(path, data, durable=durable)
        if self.part and self.part in path:
            self.part = ""
            raise KeyboardInterrupt


def test_files_of_a_write_interrupted_after_its_slot_are_kept():
    base = MemoryStorage()
    table = new_table(base)
    upsert(table, START)
    storage = InterruptedAfter(base, "")
    mine = opened(table, storage=storage)

    def arm() -> None:
        storage.part = ".hoodoo/slots/"

    with pytest.raises(KeyboardInterrupt):
        upsert(mine, [row("a", "x", 2, 2)], arm)
    upsert(table, [row("b", "y", 2, 2)])  # applies the interrupted write first
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 2)]


@pytest.mark.spec("PUB-6")
def test_a_write_that_another_writer_rolled_back_is_written_again():
    mine, other = two_writers()

    def take_for_dead() -> None:
        [pending] = other.context.active().pending
        rollback(other.context, pending)

    result = upsert(mine, [row("a", "x", 2, 2)], take_for_dead)
    assert result.attempts == 2
    assert rows_of(mine, "id", "v") == [("a", 2), ("b", 1)]
    assert leftovers(mine) == []


def test_a_write_rolled_back_in_every_attempt_raises_an_error():
    table = new_table(limits=limited(conflict_retries_max=0))
    upsert(table, START)
    other = opened(table)

    def take_for_dead() -> None:
        rollback(other.context, other.context.active().pending[0])

    with pytest.raises(RolledBackError):
        upsert(table, [row("a", "x", 2, 2)], take_for_dead)


@pytest.mark.spec("PUB-6")
def test_pending_files_removed_by_another_engine_reject_the_commit():
    mine, _ = two_writers()
    storage = mine.context.ports.storage

    def remove() -> None:
        [pending] = mine.context.active().pending
        assert pending.state is State.INFLIGHT
        storage.delete(timeline_path(f"{pending.requested_time}.commit.requested"))

    result = upsert(mine, [row("a", "x", 2, 2)], remove)
    assert result.attempts == 2
    assert rows_of(mine, "id", "v") == [("a", 2), ("b", 1)]


def test_rejections_are_recorded_in_the_final_commit():
    mine, other = two_writers()
    result = upsert(mine, [row("a", "x", 3, 8)], lambda: upsert(other, [row("a", "x", 2, 7)]))
    instant = mine.context.active().find(result.requested_time)
    extra = mine.context.commits.read(instant).extra_metadata
    assert extra["hoodoo.attempts"] == "2"
    assert '"rule": "C1"' in extra["hoodoo.refusals"]
    assert len(heard(mine, "write.refused")) == 1


def test_the_same_batch_written_by_two_gives_the_first_result():
    mine, other = two_writers()
    batch = [row("n", "z", 1, 1)]
    firsts = []
    second = upsert(
        mine, batch, lambda: firsts.append(upsert(other, batch, batch_id="b1")), batch_id="b1"
    )
    assert second.already_published
    assert second.requested_time == firsts[0].requested_time
    assert rows_of(mine, "id") == [("a",), ("b",), ("n",)]
    assert leftovers(mine) == []


def test_an_older_concurrent_commit_found_early_costs_no_second_merge():
    mine, other = two_writers()
    rival = begun(other, UPSERT, [row("a", "x", 2, 7), row("c", "x", 2, 7)])
    result, rewritten = put_watched(mine, UPSERT, [row("a", "x", 3, 8)], early=rival)
    assert (result.attempts, len(rewritten)) == (1, 1)
    assert rows_of(mine, "id", "v") == [("a", 8), ("b", 1), ("c", 7)]


def test_a_newer_concurrent_commit_found_early_costs_no_merge_at_all():
    mine, other = two_writers()
    result, rewritten = put_watched(
        mine, UPSERT, [row("a", "x", 3, 8)], early=lambda: upsert(other, [row("a", "x", 2, 7)])
    )
    assert (result.attempts, len(rewritten)) == (2, 1)
    assert rows_of(mine, "id", "v") == [("a", 8), ("b", 1)]


def test_without_early_detection_the_conflict_is_found_at_the_commit():
    mine, other = two_writers()
    result, rewritten = put_watched(
        mine,
        UPSERT,
        [row("a", "x", 3, 8)],
        early=lambda: upsert(other, [row("a", "x", 2, 7)]),
        detect_early=False,
    )
    assert (result.attempts, len(rewritten)) == (2, 2)


def test_the_same_new_key_committed_before_writing_gives_one_row():
    mine, other = two_writers()
    files = planned(mine, UPSERT).files
    apart = replace(files, sizes=replace(files.sizes, small_file_bytes=0))
    upsert(
        mine,
        [row("n", "x", 5, 5)],
        early=lambda: upsert(other, [row("n", "x", 4, 4)], files=apart),
        files=apart,
    )
    assert rows_of(mine, "id", "v") == [("a", 1), ("b", 1), ("n", 5)]


def test_the_same_new_key_committed_early_along_with_a_rebase_gives_one_row():
    mine, other = two_writers()
    files = planned(mine, UPSERT).files
    apart = replace(files, sizes=replace(files.sizes, small_file_bytes=0))
    rival = begun(other, UPSERT, [row("a", "x", 2, 2), row("n", "x", 4, 4)], files=apart)
    upsert(mine, [row("a", "x", 3, 3), row("n", "x", 5, 5)], early=rival, files=apart)
    assert rows_of(mine, "id", "v") == [("a", 3), ("b", 1), ("n", 5)]


def test_a_column_added_before_writing_is_kept():
    mine, other = two_writers()
    grown = {**row("b", "y", 2, 2), "w": 1}
    upsert(mine, [row("a", "x", 2, 2)], early=lambda: upsert(other, [grown]))
    assert rows_of(mine, "id", "w") == [("a", None), ("b", 1)]


def test_the_same_batch_committed_before_writing_gives_the_first_result():
    mine, other = two_writers()
    batch = [row("n", "z", 1, 1)]
    second = put(
        mine,
        INSERT,
        batch,
        early=lambda: put(other, INSERT, batch, batch_id="b1"),
        batch_id="b1",
    )
    assert second.already_published
    assert rows_of(mine, "id") == [("a",), ("b",), ("n",)]


@pytest.mark.spec("FOR-2")
def test_a_commit_of_another_engine_is_a_concurrent_commit_without_a_slot():
    mine, _ = two_writers()
    storage = mine.context.ports.storage
    [slice_] = mine.file_slices(["x"])
    group = slice_.file_group

    def another_engine() -> None:
        now = instant_time(WallMs(mine.context.ports.clock.now_ms() + 50))
        end = instant_time(WallMs(mine.context.ports.clock.now_ms() + 60))
        name = f"{group.file_id}_0-9-9_{now}.parquet"
        storage.create(f"x/{name}", storage.read(slice_.base_file.path))
        stat = WriteStat(
            file_id=group.file_id,
            path=f"x/{name}",
            prev_commit=slice_.base_instant_time,
            partition_path="x",
            num_writes=1,
        )
        content = CommitMetadata(
            partition_to_write_stats={"x": (stat,)}, operation_type=UPSERT.hudi_name
        )
        storage.create(timeline_path(f"{now}_{end}.commit"), encode_commit(content))

    result = upsert(mine, [row("a", "x", 2, 2)], another_engine)
    assert result.attempts == 2
    assert result.refusals[0].winners[0].endswith("commit by another engine")
    assert len(heard(mine, "publish.foreign")) == 1
    assert rows_of(mine, "id", "v") == [("a", 2), ("b", 1)]


def test_a_long_preparation_is_no_part_of_the_retries_budget():
    clock = StillClock()
    table = new_table(limits=limited(total_ms_max=1_000), clock=clock)
    upsert(table, START)
    other = opened(table, clock=clock)

    class Slow(LocalWorkload):
        rivals = 1

        def prepare(self, rules, schema):
            super().prepare(rules, schema)
            clock.sleep_ms(5_000)

        def rewrite(self, tasks):
            if self.rivals:
                self.rivals -= 1
                upsert(other, [row("a", "x", 2, 7)])
            return super().rewrite(tasks)

    workload = Slow(table.context.ports, as_table([row("a", "x", 3, 8)]))
    result = write(table.context, planned(table, UPSERT), workload)
    assert result.attempts == 2
    assert rows_of(table, "id", "v") == [("a", 8), ("b", 1)]
