"""One task appends to one file group: the log file, its blocks and its stat (fmt 5, 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from filegroups.files.append import block_format, current_rows
from filegroups.files.delete_block import decode_deletes
from filegroups.files.log_files import LogSettings, LogTarget
from filegroups.files.rewrite import FileGroupTask
from filegroups.merge.merging import DeleteKind, mark_relocated_keys
from filegroups.merge.rules import MergeRules
from filegroups.schema.schema import avro_with_meta
from filegroups.writing.workload import write_task
from tests.unit.filegroups.files.test_rewrite import (
    FIRST_FILE,
    SCHEMA,
    SECOND,
    SECOND_TASK,
    first,
    rows,
)
from tests.unit.timeline.memory import MemoryStorage
from timeline.codecs.log_blocks import (
    BlockType,
    BytesSource,
    HeaderKey,
    LogBlock,
    iter_blocks,
    read_content,
)
from timeline.commit.markers import marker_files
from timeline.errors import InvariantError
from timeline.model.commit_metadata import FileGroupId, MergeMode, WriteStat
from timeline.model.file_names import IOType, parse_log_file_name
from timeline.model.file_slice import LogFile
from timeline.model.merge_definition import MergeDefinition
from timeline.properties.setting_enums import LogFormat

THIRD = "20260102030405008"
LOG = f".fg-0_{SECOND}.log.1_0-0-2"
APPENDING = replace(SECOND_TASK, log=LogTarget())
FORMATS = pytest.mark.parametrize("form", LogFormat)


def blocks_of(storage: MemoryStorage, name: str = LOG) -> list[tuple[LogBlock, bytes]]:
    data = storage.read(f"p=1/{name}")
    source = BytesSource(data)
    return [(one, read_content(source, one)) for one in iter_blocks(source, len(data), path=name)]


def log_of(stat: WriteStat) -> LogFile:
    (name,) = stat.log_files or ()
    parsed = parse_log_file_name(name)
    assert parsed is not None
    return LogFile(
        file_group=FileGroupId("p=1", "fg-0"),
        name=name,
        instant_time=parsed.instant_time,
        log_version=parsed.log_version,
        write_token=parsed.write_token,
        size_bytes=stat.file_size_in_bytes,
    )


def on_top(*stats: WriteStat, **more: Any) -> FileGroupTask:
    """Write once more, on top of the logs of earlier writes."""
    target = LogTarget(logs=tuple(map(log_of, stats)))
    return replace(APPENDING, requested_time=THIRD, log=target, **more)


def merged(storage: MemoryStorage, task: FileGroupTask) -> dict[str, tuple[int, str]]:
    assert task.log is not None
    found = current_rows(storage, task, task.log, ("ts", "v")).to_pylist()
    return {one["_hoodie_record_key"]: (one["ts"], one["v"]) for one in found}


def deleting(schema: str = SCHEMA.avro_json, **more: Any) -> FileGroupTask:
    return replace(APPENDING, avro_json=schema, deletes=DeleteKind.EXPLICIT, **more)


@FORMATS
def test_updates_are_one_block_with_full_header_that_readers_merge(form: LogFormat) -> None:
    storage = first()
    task = replace(APPENDING, log=LogTarget(settings=LogSettings(format=form)))
    (stat,) = write_task(storage, task, rows(("a", 2, "A2"), ("b", 4, "late")))
    ((block, _),) = blocks_of(storage)
    kinds = {LogFormat.PARQUET: BlockType.PARQUET_DATA, LogFormat.AVRO: BlockType.AVRO_DATA}
    assert block.block_type is kinds[form]
    assert block.header == {
        HeaderKey.INSTANT_TIME: SECOND,
        HeaderKey.SCHEMA: avro_with_meta(SCHEMA.avro_json),
    }
    assert merged(storage, on_top(stat)) == {"a": (2, "A2"), "b": (5, "B"), "c": (1, "C")}


@pytest.mark.parametrize(
    ("fields", "mode", "form"),
    [
        (("ts",), MergeMode.EVENT_TIME_ORDERING, BlockType.PARQUET_DATA),
        (("v",), MergeMode.EVENT_TIME_ORDERING, BlockType.AVRO_DATA),
        (("ts", "v"), MergeMode.EVENT_TIME_ORDERING, BlockType.AVRO_DATA),
        (("v",), MergeMode.COMMIT_TIME_ORDERING, BlockType.PARQUET_DATA),
    ],
)
def test_blocks_are_avro_where_an_ordering_field_is_a_text(
    fields: tuple[str, ...], mode: MergeMode, form: BlockType
) -> None:
    """Queries of Java Hudi return older rows of Parquet blocks with such a field."""
    storage = first()
    definition = MergeDefinition(mode=mode, ordering_fields=fields)
    task = replace(APPENDING, merge=definition)
    assert FileGroupTask.from_json(task.to_json()) == task
    write_task(storage, task, rows(("a", 2, "Z2")))
    ((block, _),) = blocks_of(storage)
    assert block.block_type is form


def test_blocks_are_avro_where_an_ordering_field_inside_a_struct_is_a_text() -> None:
    schema = pa.schema([("s", pa.struct([("t", pa.string()), ("n", pa.int64())]))])
    for name, form in (("s.t", LogFormat.AVRO), ("s.n", LogFormat.PARQUET)):
        definition = MergeDefinition(mode=MergeMode.EVENT_TIME_ORDERING, ordering_fields=(name,))
        assert block_format(LogSettings(), MergeRules(definition=definition), schema) is form


def test_records_in_a_log_have_all_meta_columns() -> None:
    storage = first()
    write_task(storage, APPENDING, rows(("a", 2, "A2"), ("b", 4, "B2")))
    ((_, content),) = blocks_of(storage)
    found = pq.read_table(pa.BufferReader(content)).to_pylist()[1]
    assert found == {
        "_hoodie_commit_time": SECOND,
        "_hoodie_commit_seqno": f"{SECOND}_3_1",
        "_hoodie_record_key": "b",
        "_hoodie_partition_path": "p=1",
        "_hoodie_file_name": "fg-0",
        "id": "b",
        "ts": 4,
        "v": "B2",
    }


def test_the_stat_of_a_log_file_is_java_s() -> None:
    storage = first()
    (stat,) = write_task(storage, APPENDING, rows(("a", 2, "A2"), ("b", 4, "late")))
    size = len(storage.read(f"p=1/{LOG}"))
    assert stat == WriteStat(
        file_id="fg-0",
        path=f"p=1/{LOG}",
        prev_commit=SECOND,
        partition_path="p=1",
        num_writes=2,
        num_update_writes=2,
        total_write_bytes=size,
        file_size_in_bytes=size,
        log_version=1,
        log_offset=0,
        base_file="",
        log_files=(LOG,),
    )


def test_a_log_file_is_announced_as_a_creation() -> None:
    """An APPEND marker would make Java's rollback fail (fmt 1.4)."""
    storage = first()
    write_task(storage, APPENDING, rows(("a", 2, "A2")))
    assert marker_files(storage, SECOND) == (("p=1", LOG, IOType.CREATE),)


@pytest.mark.spec("BEG-6")
def test_the_marker_is_created_before_the_log_file() -> None:
    class Full(MemoryStorage):
        def open_output(self, path: str) -> Any:
            raise OSError(path)

    storage = Full()
    with pytest.raises(OSError, match=LOG):
        write_task(storage, APPENDING, rows(("a", 2, "A2")))
    assert marker_files(storage, SECOND) == (("p=1", LOG, IOType.CREATE),)


def test_duplicates_are_combined_by_order_before_they_are_written() -> None:
    storage = first()
    (stat,) = write_task(storage, APPENDING, rows(("a", 2, "x"), ("a", 9, "y"), ("a", 4, "z")))
    assert stat.num_writes == 1
    assert merged(storage, on_top(stat))["a"] == (9, "y")


def test_a_delete_carries_the_ordering_of_the_merged_row() -> None:
    storage = first()
    (update,) = write_task(storage, APPENDING, rows(("b", 7, "B7")))
    task = on_top(update, deletes=DeleteKind.EXPLICIT)
    keys = pa.table({"_hoodie_record_key": ["b", "c", "nowhere"]})
    (stat,) = write_task(storage, task, keys)
    (name,) = stat.log_files or ()
    ((block, content),) = blocks_of(storage, name)
    assert block.block_type is BlockType.DELETE
    assert sorted(block.header) == [HeaderKey.INSTANT_TIME, HeaderKey.SCHEMA]
    assert decode_deletes(content, path=name).to_pylist() == [
        {
            "_hoodie_record_key": key,
            "_hoodie_partition_path": "p=1",
            "is_commit_time": False,
            "ordering_0": ordering,
        }
        for key, ordering in (("b", 7), ("c", 1))
    ]
    assert (stat.num_writes, stat.num_deletes) == (0, 2)
    assert merged(storage, on_top(update, stat)) == {"a": (1, "A")}


def test_deletes_of_missing_keys_write_no_file() -> None:
    storage = first()
    keys = pa.table({"_hoodie_record_key": ["b"]})
    (stat,) = write_task(storage, deleting(), keys)
    assert write_task(storage, on_top(stat, deletes=DeleteKind.EXPLICIT), keys) == ()
    assert marker_files(storage, THIRD) == ()
    assert write_task(storage, on_top(stat), rows(("a", 1, "A")).slice(0, 0)) == ()


def test_a_delete_without_ordering_values_is_a_commit_time_delete() -> None:
    storage = first()
    task = deleting(merge=MergeDefinition(mode=MergeMode.COMMIT_TIME_ORDERING))
    write_task(storage, task, pa.table({"_hoodie_record_key": ["b"]}))
    ((_, content),) = blocks_of(storage)
    assert decode_deletes(content, path=LOG).to_pylist() == [
        {
            "_hoodie_record_key": "b",
            "_hoodie_partition_path": "p=1",
            "is_commit_time": True,
        }
    ]


def test_a_delete_of_a_row_without_ordering_value_is_a_commit_time_delete() -> None:
    """It is never null, because Java's readers fail on null (fmt 5.5)."""
    storage = first()
    kept = rows(("d", 3, "D")).set_column(2, "ts", pa.array([None], pa.int64()))
    (stat,) = write_task(storage, APPENDING, kept)
    keys = pa.table({"_hoodie_record_key": ["a", "d"]})
    (made,) = write_task(storage, on_top(stat, deletes=DeleteKind.EXPLICIT), keys)
    ((_, content),) = blocks_of(storage, (made.log_files or ("",))[0])
    found = decode_deletes(content, path="")
    assert found["is_commit_time"].to_pylist() == [False, True]
    assert found["ordering_0"].to_pylist() == [1, None]


def test_several_ordering_fields_go_into_a_delete_in_their_order() -> None:
    storage = first()
    task = deleting(merge=replace(APPENDING.merge, ordering_fields=("ts", "v")))
    write_task(storage, task, pa.table({"_hoodie_record_key": ["b"]}))
    ((_, content),) = blocks_of(storage)
    found = decode_deletes(content, path=LOG)
    assert (found["ordering_0"].to_pylist(), found["ordering_1"].to_pylist()) == ([5], ["B"])


def test_rows_marked_deleted_go_into_a_delete_block_with_their_own_ordering() -> None:
    storage = first()
    schema = SCHEMA.with_new_columns([pa.field("_hoodie_is_deleted", pa.bool_())])
    task = replace(APPENDING, avro_json=schema.avro_json, deletes=DeleteKind.COLUMN)
    incoming = rows(("a", 2, "A2"), ("b", 4, "late"), ("c", 3, "gone")).append_column(
        "_hoodie_is_deleted", pa.array([False, True, True])
    )
    (stat,) = write_task(storage, task, incoming)
    (data, _), (block, content) = blocks_of(storage)
    assert (data.block_type, block.block_type) == (BlockType.PARQUET_DATA, BlockType.DELETE)
    found = decode_deletes(content, path=LOG)
    assert found["_hoodie_record_key"].to_pylist() == ["b", "c"]
    assert found["ordering_0"].to_pylist() == [4, 3]
    assert (stat.num_writes, stat.num_deletes) == (1, 2)
    assert merged(storage, on_top(stat)) == {"a": (2, "A2"), "b": (5, "B")}


def test_moved_rows_are_deleted_and_the_others_written() -> None:
    storage = first()
    incoming = mark_relocated_keys(rows(("a", 9, "A9")), rows(("c", 9, "moved")))
    (stat,) = write_task(storage, APPENDING, incoming)
    assert (stat.num_writes, stat.num_deletes) == (1, 1)
    assert merged(storage, on_top(stat)) == {"a": (9, "A9"), "b": (5, "B")}


def test_a_log_file_that_grows_too_big_gets_successors() -> None:
    storage = first()
    settings = LogSettings(block_bytes_max=1, file_bytes_max=7_000)
    task = replace(APPENDING, log=LogTarget(settings=settings))
    stats = write_task(storage, task, rows(*((f"k{n}", n, "v") for n in range(5))))
    names = [stat.log_files for stat in stats]
    assert names[:2] == [(LOG,), (f".fg-0_{SECOND}.log.2_0-0-2",)]
    assert [stat.log_version for stat in stats] == list(range(1, len(stats) + 1))
    assert [len(blocks_of(storage, name)) for (name,) in names] == [
        stat.num_writes for stat in stats
    ]
    assert sum(stat.num_writes for stat in stats) == 5
    assert all(stat.file_size_in_bytes <= 7_000 for stat in stats)
    assert max(stat.num_writes for stat in stats) > 1
    assert len(merged(storage, on_top(*stats))) == 8


def test_two_attempts_with_one_write_token_are_detected() -> None:
    storage = first()
    write_task(storage, APPENDING, rows(("a", 2, "A2")))
    with pytest.raises(InvariantError):
        write_task(storage, APPENDING, rows(("a", 2, "A2")))


def test_a_task_is_serialized_as_text() -> None:
    (stat,) = write_task(first(), APPENDING, rows(("a", 2, "A2")))
    task = on_top(stat)
    assert FileGroupTask.from_json(task.to_json()) == task
    assert task.file_name == f".fg-0_{THIRD}.log.1_0-0-2"


def test_without_a_target_a_base_file_is_written() -> None:
    storage = first()
    (stat,) = write_task(storage, SECOND_TASK, rows(("a", 2, "A2")))
    assert stat.prev_base_file == FIRST_FILE
