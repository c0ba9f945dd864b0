"""One task writes one version of a file group and returns its statistics (fmt 3, 4.1, 4.2)."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from filegroups.files.bloom import BloomFilter, BloomSettings
from filegroups.files.parquet import read_base_file, read_footer
from filegroups.files.parquet_layout import ParquetSettings
from filegroups.files.rewrite import (
    FileGroupTask,
    create_partition_metadata,
    stats_from_json,
    stats_to_json,
    write_file_group,
)
from filegroups.merge.merging import DeleteKind
from filegroups.schema.schema import META_COLUMNS, TableSchema, with_meta
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.commit.markers import marker_files
from timeline.errors import InvariantError, MalformedNameError, MissingFileError
from timeline.model.commit_metadata import MergeMode, WriteOperation
from timeline.model.file_names import IOType
from timeline.model.merge_definition import MergeDefinition

GOLDEN = Path(__file__).parents[3] / "interop" / "golden"
FIRST, SECOND = "20260102030405006", "20260102030405007"
SCHEMA = TableSchema.from_arrow(
    pa.schema([("id", pa.string()), ("ts", pa.int64()), ("v", pa.string())]), "t"
)
FIRST_TASK = FileGroupTask(
    requested_time=FIRST,
    operation=WriteOperation.UPSERT,
    partition_path="p=1",
    file_id="fg-0",
    write_token="0-0-1",
    task_number=3,
    avro_json=SCHEMA.avro_json,
    merge=MergeDefinition(mode=MergeMode.EVENT_TIME_ORDERING, ordering_fields=("ts",)),
    bloom=BloomSettings(entries=100),
)
FIRST_FILE = f"fg-0_0-0-1_{FIRST}.parquet"
SECOND_TASK = replace(
    FIRST_TASK,
    requested_time=SECOND,
    write_token="0-0-2",
    base_path=f"p=1/{FIRST_FILE}",
    base_requested_time=FIRST,
)
SECOND_FILE = f"fg-0_0-0-2_{SECOND}.parquet"


def rows(*items: tuple[str, int, str]) -> pa.Table:
    keys, orders, values = zip(*items, strict=True)
    return pa.table({"_hoodie_record_key": keys, "id": keys, "ts": orders, "v": values})


def first() -> MemoryStorage:
    storage = MemoryStorage()
    write_file_group(storage, FIRST_TASK, rows(("a", 1, "A"), ("b", 5, "B"), ("c", 1, "C")))
    return storage


def records(storage: MemoryStorage, path: str) -> list[tuple[str, str, str]]:
    table = read_base_file(storage, path)
    names = ("_hoodie_record_key", "v", "_hoodie_commit_seqno")
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def test_a_new_file_group_has_all_meta_columns():
    table = read_base_file(first(), f"p=1/{FIRST_FILE}")
    assert table.slice(1, 1).to_pylist() == [
        {
            "_hoodie_commit_time": FIRST,
            "_hoodie_commit_seqno": f"{FIRST}_3_1",
            "_hoodie_record_key": "b",
            "_hoodie_partition_path": "p=1",
            "_hoodie_file_name": FIRST_FILE,
            "id": "b",
            "ts": 5,
            "v": "B",
        }
    ]
    assert table.schema.types[:5] == [pa.string()] * 5


def test_a_new_file_group_is_announced_and_its_partition_named():
    storage = first()
    assert marker_files(storage, FIRST) == (("p=1", FIRST_FILE, IOType.CREATE),)
    lines = storage.read("p=1/.hoodie_partition_metadata").decode().splitlines()
    assert lines == [
        "#partition metadata",
        "#Fri Jan 02 03:04:05 UTC 2026",
        f"commitTime={FIRST}",
        "partitionDepth=1",
    ]


@pytest.mark.parametrize(("path", "depth"), [("", 0), ("a", 1), ("a/b", 2)])
def test_partition_depth_counts_levels_and_the_file_is_never_rewritten(path, depth):
    storage = MemoryStorage()
    create_partition_metadata(storage, path, FIRST)
    create_partition_metadata(storage, path, SECOND)
    name = f"{path}/.hoodie_partition_metadata".lstrip("/")
    text = storage.read(name).decode()
    assert f"commitTime={FIRST}\npartitionDepth={depth}\n" in text


def test_the_stat_of_a_new_file_group():
    storage = MemoryStorage()
    (stat,) = write_file_group(storage, FIRST_TASK, rows(("a", 1, "A")))
    size = len(storage.read(f"p=1/{FIRST_FILE}"))
    assert (stat.file_id, stat.path, stat.partition_path) == ("fg-0", f"p=1/{FIRST_FILE}", "p=1")
    assert (stat.prev_commit, stat.prev_base_file) == ("null", None)
    assert (stat.num_writes, stat.num_inserts, stat.num_update_writes) == (1, 1, 0)
    assert (stat.total_write_bytes, stat.file_size_in_bytes) == (size, size)


def test_a_new_version_merges_rows_and_keeps_the_unchanged_ones():
    storage = first()
    incoming = rows(("d", 1, "D"), ("b", 4, "late"), ("a", 1, "A2"))
    (stat,) = write_file_group(storage, SECOND_TASK, incoming)
    assert records(storage, f"p=1/{SECOND_FILE}") == [
        ("a", "A2", f"{SECOND}_3_2"),
        ("b", "B", f"{FIRST}_3_1"),
        ("c", "C", f"{FIRST}_3_2"),
        ("d", "D", f"{SECOND}_3_0"),
    ]
    table = read_base_file(storage, f"p=1/{SECOND_FILE}")
    assert table["_hoodie_commit_time"].to_pylist() == [SECOND, FIRST, FIRST, SECOND]
    assert set(table["_hoodie_file_name"].to_pylist()) == {SECOND_FILE}
    assert (stat.num_writes, stat.num_inserts, stat.num_update_writes) == (4, 1, 1)
    assert (stat.prev_commit, stat.prev_base_file) == (FIRST, FIRST_FILE)
    assert marker_files(storage, SECOND) == (("p=1", SECOND_FILE, IOType.MERGE),)


def test_the_filter_and_key_range_cover_old_and_new_keys():
    storage = first()
    write_file_group(storage, SECOND_TASK, rows(("z", 1, "Z")))
    footer = read_footer(storage, f"p=1/{SECOND_FILE}")
    expected = BloomFilter(BloomSettings(entries=100).fitted(3))
    expected.add(pa.array(["a", "b", "c", "z"]))
    assert footer.bloom_base64 == expected.to_base64()
    assert (footer.key_min, footer.key_max) == ("a", "z")


def test_an_explicit_delete_needs_keys_only():
    storage = first()
    task = replace(SECOND_TASK, operation=WriteOperation.DELETE, deletes=DeleteKind.EXPLICIT)
    (stat,) = write_file_group(storage, task, pa.table({"_hoodie_record_key": ["b", "x"]}))
    assert [each[0] for each in records(storage, f"p=1/{SECOND_FILE}")] == ["a", "c"]
    assert (stat.num_deletes, stat.num_writes) == (1, 2)


def test_deleting_everything_leaves_an_empty_file():
    storage = first()
    task = replace(SECOND_TASK, deletes=DeleteKind.EXPLICIT)
    keys = pa.table({"_hoodie_record_key": ["a", "b", "c"]})
    (stat,) = write_file_group(storage, task, keys)
    assert (stat.num_deletes, stat.num_writes) == (3, 0)
    footer = read_footer(storage, f"p=1/{SECOND_FILE}")
    assert (footer.rows, footer.key_min) == (0, None)


def test_nothing_is_written_when_nothing_changes():
    storage = first()
    assert write_file_group(storage, SECOND_TASK, rows(("b", 1, "late"))) == ()
    assert marker_files(storage, SECOND) == ()
    assert storage.stat(f"p=1/{SECOND_FILE}") is None
    assert write_file_group(storage, FIRST_TASK, rows(("a", 1, "A")).slice(0, 0)) == ()


def test_an_insert_appends_without_a_key_lookup():
    storage = first()
    task = replace(SECOND_TASK, operation=WriteOperation.INSERT)
    (stat,) = write_file_group(storage, task, rows(("a", 0, "again")))
    assert [each[:2] for each in records(storage, f"p=1/{SECOND_FILE}")][-1] == ("a", "again")
    assert (stat.num_inserts, stat.num_writes) == (1, 4)


def test_rows_marked_deleted_are_not_written_to_a_new_file_group():
    schema = SCHEMA.with_new_columns([pa.field("_hoodie_is_deleted", pa.bool_())])
    task = replace(FIRST_TASK, avro_json=schema.avro_json, deletes=DeleteKind.COLUMN)
    incoming = rows(("a", 1, "A"), ("b", 1, "B")).append_column(
        "_hoodie_is_deleted", pa.array([True, False])
    )
    (stat,) = write_file_group(MemoryStorage(), task, incoming)
    assert stat.num_writes == 1


def test_a_column_added_meanwhile_is_null_in_old_rows():
    storage = first()
    schema = SCHEMA.with_new_columns([pa.field("extra", pa.int32())])
    incoming = rows(("d", 1, "D")).append_column("extra", pa.array([7], pa.int8()))
    write_file_group(storage, replace(SECOND_TASK, avro_json=schema.avro_json), incoming)
    table = read_base_file(storage, f"p=1/{SECOND_FILE}")
    assert table["extra"].to_pylist() == [None, None, None, 7]


@pytest.mark.parametrize("table", ["v9_all_types", "v6_all_types"])
def test_a_file_written_by_java_is_rewritten_without_loss(table):
    with zipfile.ZipFile(GOLDEN / f"{table}.zip") as archive:
        name = next(each for each in archive.namelist() if each.endswith(".parquet"))
        data = archive.read(name)
    storage = MemoryStorage()
    storage.create("old.parquet", data)
    avro_json = TableSchema.from_avro(read_footer(storage, "old.parquet").avro_json or "").avro_json
    before = read_base_file(
        storage, "old.parquet", schema=with_meta(TableSchema.from_avro(avro_json).arrow)
    )
    task = replace(SECOND_TASK, partition_path="", base_path="old.parquet", avro_json=avro_json)
    (stat,) = write_file_group(storage, task, before.slice(0, 1))
    after = read_base_file(storage, stat.path or "", schema=before.schema)
    assert stat.num_update_writes == 1
    assert after.drop(list(META_COLUMNS)) == before.drop(list(META_COLUMNS))


def test_a_missing_base_file_requires_a_new_assignment():
    with pytest.raises(MissingFileError):
        write_file_group(MemoryStorage(), SECOND_TASK, rows(("a", 1, "A")))


def test_a_write_token_used_twice_is_an_internal_error():
    storage = first()
    with pytest.raises(InvariantError):
        write_file_group(storage, FIRST_TASK, rows(("a", 1, "A")))


def test_a_partition_path_out_of_the_table_is_refused():
    with pytest.raises(MalformedNameError):
        write_file_group(MemoryStorage(), replace(FIRST_TASK, partition_path="../x"), rows(("a", 1, "A")))  # fmt: skip


def test_the_marker_is_created_before_the_file_and_no_other_request_is_made():
    observed = RecordingStorage(first())
    write_file_group(observed, SECOND_TASK, rows(("a", 2, "A2")))
    assert observed.operations() == [
        f"open_input p=1/{FIRST_FILE}",
        f"open_input p=1/{FIRST_FILE}",
        f"create .hoodie/.temp/{SECOND}/p=1/{SECOND_FILE}.marker.MERGE",
        f"open_output p=1/{SECOND_FILE}",
    ]


def test_tasks_and_stats_are_serialized_as_text():
    task = replace(SECOND_TASK, parquet=ParquetSettings(compression="zstd"), bloom=None)
    assert FileGroupTask.from_json(task.to_json()) == task
    assert FileGroupTask.from_json(SECOND_TASK.to_json()) == SECOND_TASK
    stats = write_file_group(MemoryStorage(), FIRST_TASK, rows(("a", 1, "A")))
    assert stats_from_json(stats_to_json(stats)) == stats


def test_a_filter_that_is_too_small_is_rebuilt_for_all_keys():
    storage = MemoryStorage()
    task = replace(FIRST_TASK, bloom=BloomSettings())
    write_file_group(storage, task, rows(("a", 1, "x")))
    many = [(f"key{number:05d}", 1, "x") for number in range(1_500)]
    second = replace(SECOND_TASK, bloom=BloomSettings())
    write_file_group(storage, second, rows(*many))
    footer = read_footer(storage, f"p=1/{SECOND_FILE}")
    made = BloomFilter.load(footer.bloom_base64, footer.bloom_kind)
    assert made.entries == 2_048
    assert made.may_contain(pa.array(["a", *(key for key, _, _ in many)])).all()
