"""Tables with every kind of key, Java's and ours: written, looked up and read."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodoo
from filegroups.writing.workload import LocalWorkload
from tests.interop import golden_tables
from tests.unit.timeline.engine import Meddled
from timeline.errors import InvalidInputError, SettingError, UnsupportedTableError
from timeline.model.commit_metadata import WriteOperation

TIME = "hoodie.keygen.timebased."
MONTHS = {
    TIME + "timestamp.type": "EPOCHMILLISECONDS",
    TIME + "output.dateformat": "yyyyMM",
    TIME + "timezone": "UTC",
}
NOVEMBER, MARCH = 1_700_000_000_000, 1_710_000_000_000
KEYGEN = "hoodie.datasource.write.keygenerator.type"
META = ("_hoodie_record_key", "_hoodie_partition_path")


def row(key: str, ts: int, val: float = 9.0, **more: Any) -> dict[str, Any]:
    return {"id": key, "name": f"n-{key}", "region": "us", "ts": ts, "val": val, **more}


def placed(table: hoodoo.Table, *columns: str) -> list[tuple[Any, ...]]:
    """Return record key, partition path and the named columns of every row."""
    found = table.current_state().to_arrow(with_hoodie_columns=True)
    return sorted(tuple(one[name] for name in (*META, *columns)) for one in found.to_pylist())


# tables made by Java


def test_a_java_table_with_folders_of_times_is_upserted(tmp_path: Path) -> None:
    with hoodoo.open_table(golden_tables.unpack("v8_timestamp_key", tmp_path)) as table:
        result = table.upsert([row("a", NOVEMBER + 500), row("b", MARCH - 1), row("c", MARCH)])
        assert (result.rows_updated, result.rows_inserted) == (1, 1)
        assert placed(table, "val") == [
            ("a", "2023/11/14", 9.0),
            ("b", "2024/03/09", 2.0),  # late: the table orders by this very column
            ("c", "2024/03/09", 9.0),
        ]


def test_a_java_table_with_custom_keys_is_upserted(tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_custom_key", tmp_path)
    with hoodoo.open_table(path, properties=MONTHS) as table:
        result = table.upsert([row("a", NOVEMBER + 500), row("c", MARCH, region=None)])
        assert (result.rows_updated, result.rows_inserted) == (1, 1)
        assert placed(table, "val") == [
            ("a", "region=us/ts=202311", 9.0),
            ("b", "region=eu/ts=202403", 2.0),
            ("c", "region=__HIVE_DEFAULT_PARTITION__/ts=202403", 9.0),
        ]


def test_without_the_time_format_nothing_is_written(tmp_path: Path) -> None:
    # Java does not keep the format of a custom generator with the table.
    with hoodoo.open_table(golden_tables.unpack("v9_custom_key", tmp_path)) as table:
        before = table.timeline
        with pytest.raises(InvalidInputError) as refused:
            table.upsert([row("a", NOVEMBER)])
        assert refused.value.kind == "no_time_format"
        assert table.timeline == before


def test_a_java_table_without_meta_columns_is_written(tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_no_meta_fields", tmp_path)
    with hoodoo.open_table(path) as table:
        result = table.upsert([row("a00", 11), row("b01", 9), row("c", 1)])
        assert (result.rows_updated, result.rows_inserted) == (1, 1), "b01 is late"
        table.insert([row("d", 1)])
        assert table.delete([{"id": "a01", "region": "us"}]).rows_deleted == 1
        found = {one["id"]: one["val"] for one in table.to_arrow().to_pylist()}
        assert found == {"a00": 9.0, "a02": 2.0, "b00": 0.0, "b01": 1.0, "c": 9.0, "d": 9.0}
        assert table.current_state().to_arrow(with_hoodie_columns=True).num_rows == 6
    newest = max(path.glob("region=us/*.parquet"), key=lambda file: file.name.rpartition("_")[2])
    with pq.ParquetFile(newest) as file:
        stored = file.read(columns=["_hoodie_record_key", "_hoodie_commit_time"])
        assert stored.column(0).null_count == stored.num_rows
        assert stored.column(1).null_count == stored.num_rows
        texts = file.metadata.metadata or {}
        assert b"org.apache.hudi.bloomfilter" not in texts
        assert b"hoodie_min_record_key" not in texts


def test_a_java_table_without_keys_is_appended_to(tmp_path: Path) -> None:
    with hoodoo.open_table(golden_tables.unpack("v8_keyless", tmp_path)) as table:
        result = table.insert([row("z", 1), row("z", 1)])
        time = result.requested_time
        assert [one for one in placed(table, "id") if one[2] == "z"] == [
            (f"{time}_0_0", "", "z"),
            (f"{time}_0_1", "", "z"),
        ]
        assert len(placed(table)) == 7
        assert table.write([row("y", 1)]).operation == "insert", "no operation was given"
        assert table.upsert([row("x", 1)]).operation == "insert", "no record key was given"
        with pytest.raises(InvalidInputError) as refused:
            table.delete([row("z", 1)])
        assert refused.value.kind == "no_key_fields"


@pytest.mark.parametrize("populates", ["true", "false"])
@pytest.mark.parametrize("empty", [[], pa.table({}), pa.table({"id": pa.array([], pa.string())})])
def test_a_batch_without_rows_needs_no_key(tmp_path: Path, empty: Any, populates: str) -> None:
    options = {"hoodie.populate.meta.fields": populates}
    schema = pa.schema([("id", pa.string()), ("v", pa.int64())])
    with hoodoo.create_table(tmp_path / "t", schema=schema, properties=options) as table:
        table.insert([{"id": "a", "v": 1}])
        for write in (table.delete, partial(table.upsert, partial=True), table.upsert):
            result = write(empty)
            assert result.requested_time
            assert result.rows_deleted == result.rows_updated == result.rows_inserted == 0
            assert table.check_conflicts(empty, "delete") == ()
        assert table.to_arrow().to_pylist() == [{"id": "a", "v": 1}]


# our own tables


def test_a_table_remembers_its_folders_of_times(tmp_path: Path) -> None:
    properties = {KEYGEN: "TIMESTAMP", **MONTHS, TIME + "output.dateformat": "yyyy/MM"}
    made = {"record_key": "id", "partition_by": "ts", "properties": properties}
    with hoodoo.create_table(tmp_path / "t", **made) as table:
        table.upsert([row("a", NOVEMBER)])
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.upsert([row("a", NOVEMBER + 1, 1.0)]).rows_updated == 1
        assert placed(table, "val") == [("a", "2023/11", 1.0)]
    other = {**MONTHS, TIME + "output.dateformat": "yyyy/MM/dd"}
    with pytest.raises(SettingError) as refused:
        hoodoo.open_table(tmp_path / "t", properties=other)
    assert refused.value.kind == "setting_against_table"


def test_a_table_remembers_its_custom_generator(tmp_path: Path) -> None:
    made = {"record_key": "id", "partition_by": "region:SIMPLE,ts:TIMESTAMP"}
    with hoodoo.create_table(tmp_path / "t", **made, properties=MONTHS) as table:
        assert table.config.key_generator_type == "CUSTOM"
        table.upsert([row("a", NOVEMBER)])
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.upsert([row("a", NOVEMBER + 1, 1.0)]).rows_updated == 1
        assert placed(table, "val") == [("a", "us/202311", 1.0)]


def test_a_version_8_table_remembers_the_encoding_of_its_keys(tmp_path: Path) -> None:
    properties = {
        KEYGEN: "COMPLEX",
        "hoodie.write.table.version": "8",
        "hoodie.write.complex.keygen.new.encoding": "false",
    }
    made = {"record_key": "id", "partition_by": "region", "properties": properties}
    with hoodoo.create_table(tmp_path / "t", **made) as table:
        table.upsert([row("a", 1)])
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.upsert([row("a", 2)]).rows_updated == 1
        assert placed(table) == [("id:a", "us")]


def test_a_table_without_stored_keys_merges_by_computed_ones(tmp_path: Path) -> None:
    made = {"record_key": "id,name", "partition_by": "region", "ordering": "ts"}
    off = {"hoodie.populate.meta.fields": "false"}
    with hoodoo.create_table(tmp_path / "t", **made, properties=off) as table:
        table.upsert([row("a", 1), row("b", 1)])
        result = table.upsert([row("a", 2, 1.0), row("b", 0, 1.0), row("c", 1)])
        assert (result.rows_updated, result.rows_inserted) == (1, 1)
        assert placed(table, "id", "val") == [
            (None, None, "a", 1.0),
            (None, None, "b", 9.0),
            (None, None, "c", 9.0),
        ]
        with pytest.raises(UnsupportedTableError) as refused:
            table.changes("earliest")
        assert refused.value.kind == "no_meta_columns"


def test_a_global_index_needs_stored_keys(tmp_path: Path) -> None:
    off = {"hoodie.populate.meta.fields": "false", "hoodie.index.type": "GLOBAL_SIMPLE"}
    made = {"record_key": "id", "partition_by": "region"}
    with hoodoo.create_table(tmp_path / "t", **made, properties=off) as table:
        with pytest.raises(SettingError) as refused:
            table.upsert([row("a", 1)])
        assert refused.value.kind == "setting_against_table"


def test_a_key_that_two_writers_insert_exists_once_although_no_file_stores_it(
    tmp_path: Path,
) -> None:
    made = {"record_key": "id", "partition_by": "region"}
    both = {
        "hoodie.populate.meta.fields": "false",
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        "hoodie.parquet.small.file.limit": "0",
    }
    with (
        hoodoo.create_table(tmp_path / "t", **made, properties=both) as mine,
        hoodoo.open_table(tmp_path / "t", properties=both) as other,
    ):
        mine.upsert([row("a", 1)])
        rows = pa.Table.from_pylist([row("b", 2, 2.0), row("c", 2)])
        workload = Meddled(
            LocalWorkload(mine.context.ports, rows), lambda: other.upsert([row("b", 1, 1.0)])
        )
        result = mine._run(WriteOperation.UPSERT, workload)
        assert result.attempts == 2
        found = mine.to_arrow(columns=["id", "val"]).to_pylist()
        assert sorted(tuple(one.values()) for one in found) == [("a", 9.0), ("b", 2.0), ("c", 9.0)]


def test_a_table_without_keys_only_grows(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path / "t", partition_by="region") as table:
        for _ in range(2):
            table.write([row("a", 1), row("a", 1, region="eu")])
        keys = [key for key, _ in placed(table)]
        assert len(set(keys)) == len(keys) == 4
        table.insert_overwrite([row("b", 1)])
        assert [one[2] for one in placed(table, "id")] == ["a", "a", "b"]


def test_a_column_may_mark_deletes(tmp_path: Path) -> None:
    marker = {"hoodie.payload.delete.field": "op", "hoodie.payload.delete.marker": "D"}
    with hoodoo.create_table(
        tmp_path / "t", record_key="id", ordering="ts", properties=marker
    ) as table:
        table.upsert([row(key, 5, op="I") for key in "abc"])
    with hoodoo.open_table(tmp_path / "t") as table:
        result = table.upsert([row("a", 6, op="D"), row("b", 4, op="D"), row("d", 1, op="D")])
        assert result.rows_deleted == 1, "b's is late, and d never existed"
        assert [one[2] for one in placed(table, "id")] == ["b", "c"]


def test_a_payload_of_hudi_updates_partially(tmp_path: Path) -> None:
    payload = {
        "hoodie.datasource.write.payload.class": (
            "org.apache.hudi.common.model.PartialUpdateAvroPayload"
        )
    }
    with hoodoo.create_table(
        tmp_path / "t", record_key="id", ordering="ts", properties=payload
    ) as table:
        table.upsert([row("a", 1, 1.0)])
        table.upsert([row("a", 2, 2.0) | {"name": None}])
        assert placed(table, "name", "val", "ts") == [("a", "", "n-a", 2.0, 2)]


# partition columns that files leave out


@pytest.mark.parametrize("hive_style", ["true", "false"])
def test_columns_that_the_files_lack_are_read_from_the_folder(
    tmp_path: Path, hive_style: str
) -> None:
    properties = {
        "hoodie.datasource.write.drop.partition.columns": "true",
        "hoodie.datasource.write.hive_style_partitioning": hive_style,
        "hoodie.datasource.write.partitionpath.urlencode": "true",
    }
    made = {"record_key": "id", "partition_by": "region,year", "properties": properties}
    with hoodoo.create_table(tmp_path / "t", **made) as table:
        table.upsert([row("a", 1, year=2024), row("b", 1, year=2025, region="e/u")])
        table.upsert([row("a", 2, 1.0, year=2024), row("c", 1, year=2025, region=None)])
        assert table.schema.names == ["id", "name", "ts", "val", "region", "year"]
        rows = table.to_arrow(columns=["year", "id", "region", "val"]).to_pylist()
        assert sorted(tuple(one.values()) for one in rows) == [
            ("2024", "a", "us", 1.0),
            ("2025", "b", "e/u", 9.0),
            ("2025", "c", None, 9.0),
        ]
        found = table.to_arrow(columns=["id"], filter=[("year", "==", "2025"), ("ts", "<", 2)])
        assert sorted(found.column("id").to_pylist()) == ["b", "c"]
        assert table.to_arrow(columns=["year"]).num_rows == 3
        assert table.delete([{"id": "a", "region": "us", "year": 2024}]).rows_deleted == 1
        assert len(placed(table)) == 2
    (file, *_) = sorted((tmp_path / "t").glob("**/*.parquet"))
    assert not {"region", "year"} & set(pq.read_schema(file).names)


def test_a_folder_of_a_time_is_one_column(tmp_path: Path) -> None:
    properties = {
        KEYGEN: "TIMESTAMP",
        **MONTHS,
        TIME + "output.dateformat": "yyyy/MM",
        "hoodie.datasource.write.drop.partition.columns": "true",
    }
    made = {"record_key": "id", "partition_by": "ts", "properties": properties}
    with hoodoo.create_table(tmp_path / "t", **made) as table:
        table.upsert([row("a", NOVEMBER)])
        assert table.to_arrow(columns=["id", "ts"]).to_pylist() == [{"id": "a", "ts": "2023/11"}]
