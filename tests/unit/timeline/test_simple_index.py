"""The simple index finds each key's file group, or none (architecture 4, tag)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from timeline.errors import MissingFileError
from timeline.files.parquet import write_base_file
from timeline.index import IndexedFile
from timeline.index.simple import SimpleIndex
from timeline.model.schema import META_COLUMNS, TableSchema, with_meta
from timeline.storage.memory import MemoryStorage
from timeline.storage.observed import ObservedStorage

SCHEMA = TableSchema.from_arrow(pa.schema([("v", pa.int32())]), "t")


class InOrder:
    """Runs tasks one after the other."""

    def map(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        return [work(task) for task in tasks]


def storage_with(**files: list[str]) -> tuple[MemoryStorage, dict[str, list[IndexedFile]]]:
    """Files named ``partition__fileid``."""
    storage = MemoryStorage()
    listing: dict[str, list[IndexedFile]] = {}
    for name, keys in files.items():
        partition_path, _, file_id = name.partition("__")
        columns = {each: pa.array(keys, pa.string()) for each in META_COLUMNS}
        rows = pa.table(
            columns | {"v": pa.array([0] * len(keys), pa.int32())}, schema=with_meta(SCHEMA.arrow)
        )
        path = f"{partition_path}/{file_id}.parquet"
        write_base_file(storage, path, rows, avro_json=SCHEMA.avro_json)
        entry = IndexedFile(file_id=file_id, path=path)
        listing.setdefault(partition_path, []).append(entry)
    return storage, listing


def tagged(storage, listing, keys: list[str], paths: list[str]) -> list[str | None]:
    found = SimpleIndex().tag(storage, InOrder(), listing, pa.array(keys), pa.array(paths))
    return found.to_pylist()


def test_known_keys_get_their_file_group_and_new_ones_none():
    storage, listing = storage_with(p__f1=["a", "c"], p__f2=["b"], q__f3=["a"])
    keys, paths = ["a", "b", "x", "a", "a"], ["p", "p", "p", "q", "p"]
    assert tagged(storage, listing, keys, paths) == ["f1", "f2", None, "f3", "f1"]


def test_a_key_is_looked_for_in_its_partition_only():
    storage, listing = storage_with(p__f1=["a"])
    assert tagged(storage, listing, ["a", "a"], ["q", "r"]) == [None, None]


def test_a_key_in_two_file_groups_goes_to_the_first():
    storage, listing = storage_with(p__f1=["a"], p__f2=["a", "b"])
    assert tagged(storage, listing, ["a", "b"], ["p", "p"]) == ["f1", "f2"]


def test_an_empty_table_or_batch_tags_nothing():
    storage, listing = storage_with(p__f1=[])
    assert tagged(storage, listing, ["a"], ["p"]) == [None]
    assert tagged(storage, {}, ["a"], ["p"]) == [None]
    nothing = pa.array([], pa.string())
    assert len(SimpleIndex().tag(storage, InOrder(), listing, nothing, nothing)) == 0


def test_chunked_columns_are_fine():
    storage, listing = storage_with(p__f1=["a", "b"])
    keys = pa.chunked_array([["b"], ["z", "a"]])
    paths = pa.chunked_array([["p", "p"], ["p"]])
    found = SimpleIndex().tag(storage, InOrder(), listing, keys, paths)
    assert found.to_pylist() == ["f1", None, "f1"]


def test_a_cleaned_candidate_asks_for_a_new_plan():
    storage, listing = storage_with(p__f1=["a"])
    storage.delete("p/f1.parquet")
    with pytest.raises(MissingFileError):
        tagged(storage, listing, ["a"], ["p"])


def test_each_candidate_is_opened_once():
    storage, listing = storage_with(p__f1=["a", "c"], p__f2=["x"])
    observed = ObservedStorage(storage)
    tagged(observed, listing, ["a", "b"], ["p", "p"])
    assert observed.operations() == ["open_input p/f1.parquet", "open_input p/f2.parquet"]
