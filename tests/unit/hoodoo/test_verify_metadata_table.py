"""``verify`` names each difference between a table and its metadata table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from filegroups.metadata_table.encode import encode_log_file, encode_records
from filegroups.metadata_table.reading import open_metadata_table
from filegroups.metadata_table.records import RECORD_INDEX, SECONDARY_INDEX, RecordType
from tests.interop import golden_tables


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return golden_tables.unpack(getattr(request, "param", "v9_cow_files"), tmp_path)


def problems(path: Path) -> set[tuple[str, str]]:
    with hoodoo.open_table(path) as table:
        return {(one.kind, one.path) for one in table.verify().problems}


@pytest.mark.parametrize("path", golden_tables.metadata_names(), indirect=True)
def test_a_metadata_table_of_java_has_no_problem(path: Path) -> None:
    assert not {one for one in problems(path) if one[0].startswith("metadata")}


def test_the_metadata_table_after_writes_has_no_problem(path: Path) -> None:
    with hoodoo.open_table(path) as table:
        rows = table.to_arrow()
        table.upsert(rows.slice(0, 2))
        table.delete(filter="id = 'k001'")
        table.services.clean()
    assert not problems(path)


@pytest.mark.spec("MDT-13")
@pytest.mark.parametrize("path", ["v9_mor_ri", "v8_cow_all"], indirect=True)
def test_a_new_column_after_a_log_of_deletes_is_no_problem(path: Path) -> None:
    with hoodoo.open_table(path) as table:
        rows = table.to_arrow()
        table.delete(keys=rows.select(["id", "part"]).slice(0, 1))
        table.upsert(rows.slice(2, 1).append_column("added", pa.array([7])))
        assert table.to_arrow(filter="added is null").num_rows == rows.num_rows - 2
    assert not problems(path)


def newest(path: Path) -> str:
    return max((path / ".hoodie/timeline").glob("*_*.commit")).name.split("_")[0]


def test_a_commit_that_the_metadata_table_lacks_is_named_with_its_files(path: Path) -> None:
    time = newest(path)
    next((path / ".hoodie/metadata/.hoodie/timeline").glob(f"{time}_*")).unlink()
    files = {str(one.relative_to(path)) for one in path.glob(f"p*/*_{time}.parquet")}
    assert files
    expected = {("metadata_missing_file", file) for file in files}
    assert problems(path) == {("metadata_behind", time), *expected}


@pytest.mark.parametrize("path", ["v9_mor_ri"], indirect=True)
def test_instants_that_are_unknown_to_the_table_and_merged_are_named(path: Path) -> None:
    """Such is a table whose restore Java began, and refused for the sake of the metadata table."""
    with hoodoo.open_table(path) as table:
        rows = table.to_arrow()
        gone = table.upsert(rows.slice(0, 1)).requested_time
        pending = table.upsert(rows.slice(1, 1)).requested_time
        assert str(table.metadata.status().compacted) > pending
    shutil.rmtree(path / ".hoodie/.hoodoo")
    timeline = path / ".hoodie/timeline"
    for file in [*timeline.glob(f"{gone}*"), *timeline.glob(f"{pending}_*")]:
        file.unlink()
    assert ("metadata_unknown_instant", gone) in problems(path)


def test_a_file_that_is_listed_and_missing_is_named(path: Path) -> None:
    files = sorted(path.glob("p0/*.parquet"), key=lambda one: one.name.split("_")[2])
    files[0].unlink()  # an old slice, which no read of the newest rows needs
    assert problems(path) == {("metadata_stale_file", str(files[0].relative_to(path)))}


def test_a_damaged_metadata_table_is_named(path: Path) -> None:
    for file in (path / ".hoodie/metadata/files").glob(".*.log.*"):
        file.write_bytes(file.read_bytes().replace(b"DATABLK*", b"damaged!"))
    assert {kind for kind, _ in problems(path)} == {"bad_hfile"}


@pytest.mark.parametrize("path", ["v9_mor_ri"], indirect=True)
def test_each_damaged_partition_is_named_and_one_repair_mends_them(path: Path) -> None:
    damaged = ("column_stats", "record_index")
    for name in damaged:
        for file in (path / ".hoodie/metadata" / name).glob(".*.log.*"):
            file.write_bytes(file.read_bytes()[:-40])
    with hoodoo.open_table(path) as table:
        found = table.metadata.verify()
        assert {one.kind for one in found} == {"log_torn"}
        assert {Path(one.path).parent.name for one in found} == set(damaged)
        assert all("run 'hoodoo metadata repair TABLE'" in one.message for one in found)
        assert table.metadata.repair() == damaged
        assert table.metadata.verify() == ()


@pytest.mark.parametrize("path", ["v9_mor_ri"], indirect=True)
@pytest.mark.parametrize(
    ("partition", "kind"),
    [
        ("record_index", "metadata_missing_record"),
        ("column_stats", "metadata_missing_record"),
    ],
)
def test_records_that_an_index_lacks_are_named(path: Path, partition: str, kind: str) -> None:
    with hoodoo.open_table(path) as table:
        before = set((path / ".hoodie/metadata" / partition).iterdir())
        row = {**table.to_arrow().to_pylist()[0], "id": "new", "part": "p1"}
        time = table.upsert([row]).requested_time
    for file in set((path / ".hoodie/metadata" / partition).iterdir()) - before:
        file.write_bytes(encode_log_file(partition, time, table_version=9, created_ms=0))
    assert problems(path) == {(kind, f".hoodie/metadata/{partition}")}
    with hoodoo.open_table(path) as table:
        assert table.metadata.repair() == (partition,)
        assert table.metadata.verify() == ()


@pytest.mark.parametrize("path", ["v9_mor_ri"], indirect=True)
def test_records_of_keys_without_a_row_and_of_moved_keys_are_named(path: Path) -> None:
    one = first_record(path)
    moved = {**one, "file_id": "00000000-0000-0000-0000-000000000000-0"}
    add_records(path, [moved, {**moved, "key": "without a row"}])
    kinds = {kind for kind, _ in problems(path)}
    assert kinds == {"metadata_stale_record", "metadata_wrong_record"}
    with hoodoo.open_table(path) as table:
        assert table.metadata.repair() == ("record_index",)
    assert not problems(path)


@pytest.mark.parametrize("path", ["v9_mor_ri"], indirect=True)
def test_a_key_without_a_row_in_an_existing_file_group_is_not_named(path: Path) -> None:
    one = first_record(path)
    add_records(path, [{**one, "key": "hidden by an older delete"}])
    assert not problems(path)


@pytest.mark.parametrize(
    ("path", "found"),
    [("v8_cow_secondary", set()), ("v9_mor_secondary", {"metadata_stale_record"})],
    indirect=["path"],
)
def test_an_entry_of_a_null_counts_nothing_in_a_secondary_index_of_version_1(
    path: Path, found: set[str]
) -> None:
    entry = {"key": "\0$k001", "is_deleted": False}
    add_records(path, [entry], "secondary_index_idx_name", RecordType.SECONDARY_INDEX)
    assert {kind for kind, _ in problems(path)} == found


def first_record(path: Path) -> dict[str, object]:
    with hoodoo.open_table(path) as table:
        index = open_metadata_table(
            table.context.ports.storage, table.config, table.context.snapshot()
        )
        assert index is not None
        found: dict[str, object] = pa.concat_tables(index.read("record_index")).to_pylist()[0]
        return found


def add_records(
    path: Path,
    rows: list[dict[str, object]],
    partition: str = "record_index",
    kind: RecordType = RecordType.RECORD_INDEX,
) -> None:
    """Add records to each file group of an index, so that each key is in its own, too."""
    with hoodoo.open_table(path) as table:
        version, shape = table.config.table_version, _SHAPES[kind]
        entries = encode_records(
            pa.Table.from_pylist(rows, schema=shape), kind, table_version=version
        )
        time = table.context.active().newest_completed_write.requested_time  # type: ignore[union-attr]
        data = encode_log_file(
            partition, time, table_version=version, created_ms=0, entries=entries
        )
        folder = path / ".hoodie/metadata" / partition
        for number in range(3):
            name = f".{partition.replace('_', '-')}-000{number}-0_{time}.log.9_0-0-0"
            (folder / name).write_bytes(data)


_SHAPES = {RecordType.RECORD_INDEX: RECORD_INDEX, RecordType.SECONDARY_INDEX: SECONDARY_INDEX}
