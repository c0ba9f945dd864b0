"""The record index of Java is read: each key has the location in it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from filegroups.files.delete_block import encode_deletes
from filegroups.index.lookup import RecordIndex, open_record_index
from tests.interop import golden_tables
from timeline.codecs.log_blocks import BlockType, HeaderKey, encode_block
from timeline.errors import CorruptTableError

NAMES = ("v8_cow_mdt_record_index", "v9_cow_mdt_record_index")
METADATA = ".hoodie/metadata"
LATER, COMPLETED = "29991231235959000", "29991231235959999"


@pytest.fixture(params=NAMES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return golden_tables.unpack(request.param, tmp_path)


def index_of(path: Path) -> RecordIndex | None:
    with hoodoo.open_table(path) as table:
        context = table.context
        return open_record_index(context.ports.storage, table.config, context.snapshot())


def found(table: pa.Table) -> set[tuple[str, str, str]]:
    return {(r["record_key"], r["partition_path"], r["file_id"]) for r in table.to_pylist()}


def expected(path: Path) -> set[tuple[str, str, str]]:
    return {
        (
            row["_hoodie_record_key"],
            row["_hoodie_partition_path"],
            row["_hoodie_file_name"].split("_")[0],
        )
        for row in golden_tables.account(path.name)["snapshot"]
    }


def located(index: RecordIndex, path: Path) -> set[tuple[str, str, str]]:
    """Return the index entry of every key of the table."""
    return found(index.locate(pa.array([key for key, _, _ in expected(path)])))


def test_every_key_is_in_the_file_group_that_the_index_names(path: Path) -> None:
    index = index_of(path)
    assert index is not None
    assert len(expected(path)) == 5
    assert located(index, path) == expected(path)


def test_keys_are_located_and_unknown_ones_are_missing(path: Path) -> None:
    index = index_of(path)
    assert index is not None
    wanted = [one for one in expected(path) if one[0] in ("a01", "e00")]
    keys = pa.chunked_array([["nobody", "a01"], ["e00", ""]])
    assert found(index.locate(keys)) == set(wanted)
    assert index.locate(pa.array([], pa.string())).num_rows == 0


def log_with_delete(path: Path, key: str) -> None:
    """Append the block that Java writes when a record is deleted."""
    content = encode_deletes(pa.array([key]), "")
    block = encode_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: LATER}, content)
    file = path / METADATA / f"record_index/.record-index-0000-0_{LATER}.log.1_0-0-0"
    file.write_bytes(block)


def test_a_deleted_key_is_missing_once_its_instant_completed_in_both_tables(path: Path) -> None:
    log_with_delete(path, "a01")
    timelines = path / METADATA / ".hoodie/timeline", path / ".hoodie/timeline"

    def there() -> bool:
        index = index_of(path)
        assert index is not None
        return located(index, path) == expected(path)

    assert there(), "its instant is unknown to the metadata table"
    (timelines[0] / f"{LATER}_{COMPLETED}.deltacommit").touch()
    (timelines[1] / f"{LATER}.commit.requested").touch()
    assert there(), "the table itself has not completed it"
    (timelines[1] / f"{LATER}.commit.requested").unlink()
    assert index_of(path) is None, "the metadata table has an instant that its table lacks"
    (timelines[1] / f"{LATER}_{COMPLETED}.commit").touch()
    index = index_of(path)
    assert index is not None
    assert located(index, path) == {one for one in expected(path) if one[0] != "a01"}
    assert found(index.locate(pa.array(["a01", "a02"]))) == {
        one for one in expected(path) if one[0] == "a02"
    }


def test_a_table_without_the_index_has_none(tmp_path: Path) -> None:
    assert index_of(golden_tables.unpack("v9_cow_part", tmp_path)) is None


@pytest.mark.parametrize("name", ["v9_cow_partitioned_ri", "v9a_cow_partitioned_ri"])
def test_an_index_of_each_partition_finds_a_key_in_its_partition(name: str, tmp_path: Path) -> None:
    table = golden_tables.unpack(name, tmp_path)
    index = index_of(table)
    assert index is not None
    assert located(index, table) == expected(table)


def test_an_index_without_one_of_its_file_groups_is_refused(path: Path) -> None:
    folder = path / METADATA / "record_index"
    for file in folder.glob("*record-index-0000-0_*"):
        file.rename(folder / file.name.replace("-0000-0_", "-0001-0_"))
    index = index_of(path)
    assert index is not None
    with pytest.raises(CorruptTableError) as caught:
        located(index, path)
    assert caught.value.kind == "metadata_file_groups"


@pytest.mark.parametrize("path", ["v9_cow_mdt_record_index"], indirect=True)
def test_an_index_that_lacks_a_commit_is_not_used(path: Path) -> None:
    timelines = path / METADATA / ".hoodie/timeline", path / ".hoodie/timeline"
    newest = max(timelines[1].glob("*_*.commit")).name.split("_")[0]
    for file in timelines[0].glob(f"{newest}_*"):
        file.unlink()
    assert index_of(path) is None
    with hoodoo.open_table(path) as table:
        keys = sorted(key for key, _, _ in expected(path))
        assert table.get_rows(keys).num_rows == len(keys)


def test_a_damaged_index_is_named(path: Path) -> None:
    for file in (path / METADATA / "record_index").glob(".*.log.1_*"):
        file.write_bytes(file.read_bytes().replace(b"DATABLK*", b"damaged!"))
    index = index_of(path)
    assert index is not None
    with pytest.raises(CorruptTableError) as caught:
        located(index, path)
    assert caught.value.kind == "bad_hfile"
