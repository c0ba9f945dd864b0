"""Files of moved rows are written once, under a name that follows from the plan."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from filegroups.files.parquet import read_base_file, read_footer
from filegroups.files.rewrite import FileGroupTask, write_clustered_file
from filegroups.schema.schema import TableSchema
from tests.unit.timeline.memory import MemoryStorage
from timeline.commit.markers import marker_files
from timeline.errors import StorageUnavailableError
from timeline.model.commit_metadata import WriteOperation

_TIME = "20260101000000001"
_SCHEMA = TableSchema.from_arrow(pa.schema([pa.field("id", pa.string())]), "t")
_TASK = FileGroupTask(
    requested_time=_TIME,
    operation=WriteOperation.BULK_INSERT,
    partition_path="p",
    file_id="f1",
    write_token="0-0-0",
    task_number=0,
    avro_json=_SCHEMA.avro_json,
)
_PATH = f"p/f1_0-0-0_{_TIME}.parquet"
_ROWS = pa.table(
    {
        "_hoodie_commit_time": ["20250101000000000"] * 2,
        "_hoodie_commit_seqno": ["x_0", "x_1"],
        "_hoodie_record_key": ["a", "b"],
        "id": ["a", "b"],
    }
)


def test_commit_times_are_kept_and_partition_and_file_name_are_those_of_the_new_file() -> None:
    storage = MemoryStorage()
    size = write_clustered_file(storage, _TASK, _ROWS)
    stat = storage.stat(_PATH)
    assert stat is not None
    assert stat.size_bytes == size
    rows = read_base_file(storage, _PATH)
    assert rows.column("_hoodie_commit_time").to_pylist() == ["20250101000000000"] * 2
    assert rows.column("_hoodie_partition_path").to_pylist() == ["p"] * 2
    assert rows.column("_hoodie_file_name").to_pylist() == [_PATH.removeprefix("p/")] * 2
    assert read_footer(storage, _PATH).bloom_base64 is not None
    assert [name for _, name, _ in marker_files(storage, _TIME)] == [_PATH.removeprefix("p/")]


@pytest.mark.spec("CMP-2")
def test_a_whole_file_is_adopted_and_not_written_again() -> None:
    storage = MemoryStorage()
    size = write_clustered_file(storage, _TASK, _ROWS)
    before = storage.read(_PATH)
    assert write_clustered_file(storage, _TASK, _ROWS) == size
    assert storage.read(_PATH) == before


def test_a_different_file_of_the_same_name_is_left_unchanged() -> None:
    storage = MemoryStorage()
    write_clustered_file(storage, _TASK, _ROWS.slice(1))
    with pytest.raises(StorageUnavailableError, match="other rows"):
        write_clustered_file(storage, _TASK, _ROWS)
    assert read_base_file(storage, _PATH).num_rows == 1


def test_no_filter_and_no_keys_where_the_table_stores_none() -> None:
    storage = MemoryStorage()
    write_clustered_file(storage, replace(_TASK, stores_keys=False), _ROWS)
    assert read_base_file(storage, _PATH).column("_hoodie_record_key").null_count == 2
    assert read_footer(storage, _PATH).bloom_base64 is None
