"""A slot makes its deltacommit of the metadata table visible right before its own commit (MDT-4)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from tests.unit.timeline.commit_slots import commit_slot
from tests.unit.timeline.engine import Behind, Far, files_below, new_table, opened
from tests.unit.timeline.memory import MemoryStorage
from timeline.codecs.commit_log import decode_slot, encode_slot
from timeline.codecs.instant_avro import decode_commit
from timeline.codecs.metadata_instants import files_made_in_metadata_table, metadata_record_schema
from timeline.commit.apply import (
    apply,
    delete_from_metadata_table,
    is_applied,
    revert_if_restored,
)
from timeline.commit.protocol import delete_from_wrong_table
from timeline.errors import CorruptTableError, OutcomeUnknownError, StorageUnavailableError
from timeline.model.file_names import METADATA_TABLE, timeline_path
from timeline.model.metadata_table import METADATA_TIMELINE, MetadataLogFile, MetadataUpdate
from timeline.model.slot import METADATA_VERSION, Slot, SlotKind

SLOT = commit_slot(1)
RT, CT = SLOT.requested_time, SLOT.completion_time
LOG = f".files-0000-0_{RT}.log.1_0-0-0"
UPDATE = MetadataUpdate(
    table_version=9,
    partitions=("files",),
    files=(
        MetadataLogFile(
            partition="files",
            file_id="files-0000-0",
            name=LOG,
            size_bytes=15_000,
            records=2,
            base_time="00000000000000000",
        ),
    ),
)
SHOWN = [
    f"{METADATA_TIMELINE}/{RT}.deltacommit.inflight",
    f"{METADATA_TIMELINE}/{RT}.deltacommit.requested",
    f"{METADATA_TIMELINE}/{RT}_{CT}.deltacommit",
]
COMPLETED = timeline_path(f"{RT}_{CT}.commit")


def update_slot(table: TableReader, **changes: Any) -> Slot:
    return replace(
        SLOT,
        table_id=table.context.table_id,
        body=b"body",
        metadata_update=UPDATE,
        **changes,
    )


def in_metadata_table(table: TableReader) -> list[str]:
    return files_below(table.context.ports.storage, METADATA_TABLE)


def with_logs(table: TableReader) -> TableReader:
    """Write the pending write and its log of the metadata table."""
    storage = table.context.ports.storage
    storage.create(timeline_path(f"{RT}.commit.requested"), b"")
    storage.create(timeline_path(f"{RT}.inflight"), b"")
    storage.create(f"{METADATA_TABLE}/files/{LOG}", b"records")
    return table


# ---- The slot


@pytest.mark.spec("MDT-3")
def test_a_slot_with_an_update_is_read_back_and_needs_the_version_of_the_metadata_table() -> None:
    one = replace(SLOT, metadata_update=UPDATE)
    data = encode_slot(one)
    assert json.loads(data.partition(b"\n")[0])["v"] == METADATA_VERSION
    read = decode_slot(data, path="with update", number=1)
    assert read == replace(one, least_engine_version=METADATA_VERSION)
    assert read.metadata_update == UPDATE
    assert encode_slot(read) == data


@pytest.mark.spec("MDT-3")
@pytest.mark.parametrize(
    "changes",
    [
        {"partition": "../files"},
        {"partition": ".hoodie"},
        {"name": f".files-0000-0_{CT}.log.1_0-0-0"},
        {"name": f"../.files-0000-0_{RT}.log.1_0-0-0"},
        {"name": f".files-0001-0_{RT}.log.1_0-0-0"},
        {"name": "hoodie.properties"},
    ],
)
def test_a_slot_whose_update_names_other_files_is_refused(changes: dict[str, Any]) -> None:
    [one] = UPDATE.files
    forged = replace(UPDATE, files=(replace(one, **changes),))
    data = encode_slot(replace(SLOT, metadata_update=forged))
    with pytest.raises(CorruptTableError) as refused:
        decode_slot(data, path=f"forged {changes}", number=1)
    assert refused.value.kind == "hostile_slot"


@pytest.mark.parametrize(("version", "length"), [(8, 7_568), (9, 8_509)])
def test_the_schema_of_the_records_is_the_text_of_java(version: int, length: int) -> None:
    assert len(metadata_record_schema(version)) == length


# ---- Apply


@pytest.mark.spec("MDT-4")
@pytest.mark.parametrize("far", [False, True])
def test_apply_creates_the_deltacommit_and_then_the_completed_file(far: bool) -> None:
    table = new_table()
    if far:
        table = opened(table, storage=Far(table.context.ports.storage))
    slot = update_slot(table)
    assert apply(table.context, slot)
    assert apply(table.context, slot)
    assert in_metadata_table(table) == SHOWN
    body = decode_commit(table.context.ports.storage.read(SHOWN[-1]))
    [stat] = body.partition_to_write_stats["files"]
    assert (stat.file_id, stat.path, stat.file_size_in_bytes) == (
        "files-0000-0",
        f"files/{LOG}",
        15_000,
    )
    assert (stat.prev_commit, stat.log_files, stat.num_writes) == ("0" * 17, (LOG,), 2)
    assert body.schema_json == metadata_record_schema(9)
    assert is_applied(slot, table.context.active())


class Broken(Behind):
    """Answers no request for one path."""

    path = ""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path == self.path:
            raise StorageUnavailableError("no answer")
        self.inner.create(path, data, durable=durable)


@pytest.mark.spec("MDT-4")
@pytest.mark.parametrize("path", SHOWN)
def test_the_commit_stays_invisible_while_its_deltacommit_cannot_be_created(path: str) -> None:
    storage = Broken(MemoryStorage())
    table = with_logs(new_table(storage))
    slot = update_slot(table)
    storage.path = path
    hurried = replace(table.context, limits=replace(table.context.limits, unknown_ms_max=0))
    with pytest.raises(OutcomeUnknownError):
        apply(hurried, slot)
    assert storage.stat(COMPLETED) is None
    storage.path = ""
    apply(table.context, slot)  # a helper completes it
    assert storage.stat(COMPLETED) is not None
    assert [one for one in in_metadata_table(table) if one in SHOWN] == SHOWN


@pytest.mark.spec("MDT-10")
def test_nothing_appears_in_the_metadata_table_if_the_slot_may_not_become_visible() -> None:
    table = with_logs(new_table())
    assert not apply(table.context, update_slot(table), may_show=lambda: False)
    assert in_metadata_table(table) == [f"{METADATA_TABLE}/files/{LOG}"]


@pytest.mark.spec("MDT-9")
def test_apply_creates_the_log_files_that_a_slot_of_a_service_contains() -> None:
    [one] = UPDATE.files
    update = replace(UPDATE, files=(replace(one, content=b"records"),))
    table = new_table()
    slot = replace(update_slot(table), metadata_update=update)
    assert decode_slot(encode_slot(slot), path="with content", number=1).metadata_update == update
    assert apply(table.context, slot)
    assert apply(table.context, slot)
    assert in_metadata_table(table) == [*SHOWN, f"{METADATA_TABLE}/files/{LOG}"]
    assert table.context.ports.storage.read(f"{METADATA_TABLE}/files/{LOG}") == b"records"


# ---- The end of a write


@pytest.mark.spec("MDT-2")
@pytest.mark.spec("MDT-7")
def test_an_ended_write_leaves_the_metadata_table_before_its_pending_files_go() -> None:
    table = with_logs(new_table())
    storage = table.context.ports.storage
    for path in SHOWN:
        storage.create(path, b"")
    other = f"{METADATA_TABLE}/files/.files-0000-0_{CT}.log.1_0-0-0"
    storage.create(other, b"of another commit")
    gone: list[str] = []

    class Noting(Behind):
        def delete(self, path: str) -> None:
            gone.append(path)
            self.inner.delete(path)

    noting = opened(table, storage=Noting(storage))
    abort = commit_slot(
        1,
        table.context.table_id,
        kind=SlotKind.ABORT,
        own_requested_time=CT[:-1] + "9",
        body=b"rollback",
    )
    apply(noting.context, abort)
    completed, inflight, requested = SHOWN[2], SHOWN[0], SHOWN[1]
    log = f"{METADATA_TABLE}/files/{LOG}"
    mine = [gone.index(path) for path in (completed, inflight, requested, log)]
    assert mine == sorted(mine)
    assert gone.index(timeline_path(f"{RT}.inflight")) > mine[-1]
    assert in_metadata_table(table) == [other]


def test_without_a_metadata_table_the_end_of_a_write_lists_nothing_more() -> None:
    storage = MemoryStorage()
    listed: list[str] = []

    class Noting(Behind):
        def list(self, folder: str) -> Any:
            listed.append(folder)
            return self.inner.list(folder)

        def names(self, folder: str) -> Any:
            raise AssertionError(folder)

    delete_from_metadata_table(Noting(storage), RT)
    assert listed == [METADATA_TABLE]


@pytest.mark.spec("RST-4")
def test_a_helper_that_applies_an_ended_slot_deletes_its_deltacommit_as_well() -> None:
    table = with_logs(new_table())
    slot = update_slot(table, timeline_digest="d")
    context = table.context
    assert context.commit_log.take(slot)
    void = replace(commit_slot(2, context.table_id, kind=SlotKind.VOID), requested_time=RT)
    assert context.commit_log.take(void)
    apply(context, slot)
    assert [one for one in in_metadata_table(table) if one in SHOWN] == SHOWN
    revert_if_restored(context, slot, None)
    assert in_metadata_table(table) == [f"{METADATA_TABLE}/files/{LOG}"]
    assert context.ports.storage.stat(COMPLETED) is None


@pytest.mark.spec("MDT-7")
def test_an_ended_slot_leaves_the_metadata_table_before_its_completed_file_goes() -> None:
    """A rollback may have deleted the pending files; then the deltacommit alone is visible."""
    table = with_logs(new_table())
    slot = update_slot(table, timeline_digest="d")
    gone: list[str] = []

    class Noting(Behind):
        def delete(self, path: str) -> None:
            gone.append(path)
            self.inner.delete(path)

    context = opened(table, storage=Noting(table.context.ports.storage)).context
    assert context.commit_log.take(slot)
    void = replace(commit_slot(2, context.table_id, kind=SlotKind.VOID), requested_time=RT)
    assert context.commit_log.take(void)
    apply(context, slot)
    revert_if_restored(context, slot, None)
    assert gone == [SHOWN[2], SHOWN[0], SHOWN[1], COMPLETED]


def service_slot(table: TableReader, **changes: Any) -> Slot:
    [one] = UPDATE.files
    update = replace(UPDATE, files=(replace(one, content=b"records"),))
    return replace(update_slot(table), metadata_update=update, **changes)


@pytest.mark.spec("MDT-10")
def test_files_that_apply_makes_in_the_metadata_table_are_those_that_a_void_deletes() -> None:
    table = new_table()
    slot = service_slot(table)
    apply(table.context, slot)
    made = files_made_in_metadata_table(slot)
    assert sorted(made) == in_metadata_table(table)
    assert made[0] == SHOWN[2]
    deletes = (*made, COMPLETED)
    void = replace(
        commit_slot(2, table.context.table_id, kind=SlotKind.VOID, deletes=deletes),
        requested_time=RT,
    )
    assert decode_slot(encode_slot(void), path="void", number=2).deletes == deletes
    apply(table.context, void)
    assert in_metadata_table(table) == []
    assert files_made_in_metadata_table(update_slot(table)) == [SHOWN[2], SHOWN[0], SHOWN[1]]


@pytest.mark.spec("MDT-10")
@pytest.mark.parametrize(
    "path",
    [
        f"{METADATA_TABLE}/files/.files-0000-0_{CT}.log.1_0-0-0",
        f"{METADATA_TABLE}/.hoodie/.files-0000-0_{RT}.log.1_0-0-0",
        f"{METADATA_TABLE}/../files/.files-0000-0_{RT}.log.1_0-0-0",
        f"a/.files-0000-0_{RT}.log.1_0-0-0",
        f"x{METADATA_TABLE}/files/.files-0000-0_{RT}.log.1_0-0-0",
    ],
)
def test_a_void_that_deletes_log_files_of_others_is_refused(path: str) -> None:
    void = replace(commit_slot(2, kind=SlotKind.VOID, deletes=(path,)), requested_time=RT)
    with pytest.raises(CorruptTableError) as refused:
        decode_slot(encode_slot(void), path=f"forged {path}", number=2)
    assert refused.value.kind == "hostile_slot"


@pytest.mark.spec("MDT-10")
def test_a_void_is_applied_although_pending_files_have_the_names_of_the_metadata_table() -> None:
    """In a merge-on-read table both timelines have the same names of pending files."""
    table = new_table()
    storage = table.context.ports.storage
    storage.create(timeline_path(f"{RT}.deltacommit.requested"), b"")
    storage.create(timeline_path(f"{RT}.deltacommit.inflight"), b"")
    void = replace(
        commit_slot(2, table.context.table_id, kind=SlotKind.VOID, deletes=tuple(SHOWN)),
        requested_time=RT,
    )
    assert is_applied(void, table.context.active())
    # But each process deletes in the metadata table again, which the timeline does not show.
    assert void.deletes_in_metadata_table
    assert not replace(void, deletes=(COMPLETED,)).deletes_in_metadata_table


@pytest.mark.spec("SLOT-10")
def test_a_replaced_table_keeps_no_instant_of_the_former_one_in_its_metadata_table() -> None:
    table = new_table()
    slot = service_slot(table)
    apply(table.context, slot)
    assert in_metadata_table(table) != []
    delete_from_wrong_table(table.context, slot)
    assert in_metadata_table(table) == []
    assert table.context.ports.storage.stat(COMPLETED) is None
