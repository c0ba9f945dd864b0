"""Rows of single keys are read from the file groups that may contain them, by any index."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodoo
from filegroups.reading.point_lookup import slices_that_may_contain
from tests.interop import golden_tables
from timeline.errors import CorruptTableError, InvalidInputError

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64())])
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "8"}
NO_FILLING = {"hoodie.parquet.small.file.limit": "0"}


def filled(path: Path, properties: dict[str, str]) -> hoodoo.Table:
    """Write three times, each time new keys into two partitions."""
    table = hoodoo.create_table(
        path / "t", schema=SCHEMA, record_key="id", partition_by="p", properties=properties
    )
    for start in (0, 10, 20):
        rows = [{"id": f"k{n:02d}", "p": "pq"[n % 2], "v": n} for n in range(start, start + 10)]
        table.upsert(pa.Table.from_pylist(rows, schema=SCHEMA))
    return table


def considered(table: hoodoo.Table, *keys: str) -> int:
    pinned = table.current_state()
    slices = pinned.file_slices()
    context = table.context
    return len(
        slices_that_may_contain(context, pinned.snapshot, slices, pa.array(keys, pa.string()))
    )


@pytest.mark.parametrize(
    ("properties", "files", "of_one_key"),
    [
        (BUCKETS, 16, 2),  # its bucket in both partitions
        (NO_FILLING, 6, 1),  # by ranges and filters
        ({**NO_FILLING, "hoodie.parquet.bloom.filter.enabled": "false"}, 6, 2),  # by ranges only
    ],
    ids=["buckets", "filters", "ranges"],
)
def test_a_key_is_read_from_few_files(
    tmp_path: Path, properties: dict[str, str], files: int, of_one_key: int
) -> None:
    with filled(tmp_path, properties) as table:
        assert 6 <= len(table.file_slices()) <= files
        assert considered(table, "k13") == of_one_key
        assert table.get_rows(["k13"]).to_pylist() == [{"id": "k13", "p": "q", "v": 13}]
        found = table.get_rows(["k13", "k02", "k29", "nobody"], columns=["v"])
        assert sorted(found.column("v").to_pylist()) == [2, 13, 29]
        assert table.get_rows(["k13"], partitions=["p"]).num_rows == 0
        assert table.get_rows([]).num_rows == 0
        assert considered(table) == 0


@pytest.mark.parametrize("name", ["v8_cow_mdt_record_index", "v9_cow_mdt_record_index"])
def test_the_record_index_names_the_one_file_group(tmp_path: Path, name: str) -> None:
    with hoodoo.open_table(golden_tables.unpack(name, tmp_path)) as table:
        assert len(table.file_slices()) == 2
        assert considered(table, "e01") == 1
        assert considered(table, "nobody") == 0
        assert table.get_rows(["e01", "a00"], columns=["id"]).num_rows == 2


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("left_out", ["false", "true"], ids=["", "partition left out"])
def test_keys_that_files_do_not_store_are_found(tmp_path: Path, kind: str, left_out: str) -> None:
    properties = {
        "hoodie.populate.meta.fields": "false",
        "hoodie.datasource.write.drop.partition.columns": left_out,
    }
    with hoodoo.create_table(
        tmp_path / "t",
        record_key=["id", "v"],
        partition_by="p",
        table_type=kind,
        properties=properties,
    ) as table:
        table.upsert([{"id": f"k{n}", "v": n, "p": "pq"[n % 2], "w": n} for n in range(4)])
        table.upsert([{"id": "k1", "v": 1, "p": "q", "w": 7}])  # in a log of a merge-on-read table
        found = table.get_rows(["id:k1,v:1", "id:k2,v:2", "id:k3,v:4"], columns=["w"])
        assert sorted(found.column("w").to_pylist()) == [2, 7]
        assert table.get_rows(["id:k1,v:1"], columns=["_hoodie_record_key", "p"]).to_pylist() == [
            {"_hoodie_record_key": None, "p": "q"}
        ]
        none = [("_hoodie_record_key", "=", "id:k1,v:1")]
        assert table.to_arrow(columns=["p"], filter=none).num_rows == 0, "as in its output"
        assert table.get_rows(["id:k1,v:1"]).num_rows == 1


@pytest.mark.parametrize("given", [[None], [1], ["a", None], "a"])
def test_keys_that_are_no_texts_are_refused(tmp_path: Path, given: Any) -> None:
    with filled(tmp_path, {}) as table, pytest.raises(InvalidInputError):
        table.get_rows(given)


def test_a_lookup_in_a_table_without_keys_is_refused(tmp_path: Path) -> None:
    properties = {"hoodie.populate.meta.fields": "false"}
    with hoodoo.create_table(tmp_path / "t", schema=SCHEMA, properties=properties) as table:
        table.insert([{"id": "a", "p": "p", "v": 1}])
        with pytest.raises(InvalidInputError) as caught:
            table.get_rows(["a"])
        assert caught.value.kind == "keyless"


PARTITIONS = b"hoodie.table.metadata.partitions="


@pytest.mark.parametrize("left", [False, True])
def test_a_dropped_record_index_is_not_read(tmp_path: Path, left: bool) -> None:
    path = golden_tables.unpack("v9_cow_mdt_record_index", tmp_path)
    index, kept = path / ".hoodie/metadata", tmp_path / "kept"
    shutil.copytree(index, kept)
    with hoodoo.open_table(path) as opened_before, hoodoo.open_table(path) as table:
        row = {"id": "new", "ts": 1_000, "val": 1.0, "name": "by us", "region": "xx"}
        table.metadata.drop()
        table.upsert([row])
        if left:  # the process that dropped it died before it deleted the folder
            shutil.copytree(kept, index)
        found = opened_before.get_rows(["e01", "a00", "new"], columns=["id"])
        assert sorted(found.column("id").to_pylist()) == ["a00", "e01", "new"]


def test_a_damaged_record_index_is_named_unless_it_was_dropped(tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_cow_mdt_record_index", tmp_path)
    for file in (path / ".hoodie/metadata/record_index").glob(".*.log.1_*"):
        file.write_bytes(file.read_bytes().replace(b"DATABLK*", b"damaged!"))
    with hoodoo.open_table(path) as table:
        with pytest.raises(CorruptTableError) as caught:
            table.get_rows(["e01"])
        assert caught.value.kind == "bad_hfile"
        properties = path / ".hoodie/hoodie.properties"
        properties.write_bytes(without_index(properties.read_bytes()))
        assert table.get_rows(["e01"]).num_rows == 1


def without_index(properties: bytes) -> bytes:
    lines = properties.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(PARTITIONS))


def test_the_record_index_of_a_table_of_version_6_is_not_read(tmp_path: Path) -> None:
    path = golden_tables.unpack("v6_cow_nonpart", tmp_path)
    properties = path / ".hoodie/hoodie.properties"
    properties.write_bytes(properties.read_bytes() + PARTITIONS + b"files,record_index\n")
    timeline = path / ".hoodie/metadata/.hoodie"
    timeline.mkdir(parents=True)
    (timeline / "00000000000000010.deltacommit").touch()
    (path / ".hoodie/metadata/record_index").mkdir()
    name = "record-index-0000-0_0-0-0_00000000000000010.hfile"
    (path / ".hoodie/metadata/record_index" / name).touch()
    with hoodoo.open_table(path) as table:
        rows = table.current_state().to_arrow(with_hoodie_columns=True)
        keys = rows.column("_hoodie_record_key").to_pylist()
        assert table.get_rows(keys).num_rows == len(keys) > 0


def test_slices_with_logs_are_merged(tmp_path: Path) -> None:
    with hoodoo.open_table(golden_tables.unpack("v9_simple_bucket", tmp_path)) as table:
        assert table.get_rows(["a01"]).column("ts").to_pylist() == [20]


@pytest.mark.parametrize("wanted", [True, False])
def test_other_engines_find_a_filter_of_each_key_column(tmp_path: Path, wanted: bool) -> None:
    """They leave out row groups by Parquet's own filter; Hudi's in the footer is unknown to them."""
    table = hoodoo.create_table(
        tmp_path / "t",
        record_key=["id", "n"],
        table_type="MERGE_ON_READ",
        properties={
            "hoodie.parquet.bloom.filter.enabled": str(wanted).lower(),
            "hoodie.compact.inline.max.delta.commits": "1",
            "hoodie.clustering.plan.strategy.sort.columns": "v",
        },
    )
    numbers = range(5_000)
    rows = pa.table({"id": [str(one) for one in numbers], "n": numbers, "v": numbers})

    def filtered() -> set[str]:
        (one,) = table.file_slices()
        assert one.base_file is not None
        assert not one.log_files
        group = pq.read_metadata(tmp_path / "t" / one.base_file.path).row_group(0)
        chunks = [group.column(number) for number in range(group.num_columns)]
        return {one.path_in_schema for one in chunks if one.bloom_filter_offset is not None}

    expected = {"id", "n"} if wanted else set()
    with table:
        table.bulk_insert(rows)
        assert filtered() == expected
        table.upsert(rows.slice(0, 10))
        assert table.services.compact() is not None
        assert filtered() == expected
        assert table.services.cluster() is not None
        assert filtered() == expected
