"""The lookup indexes find the file group of each key, or none (architecture 4, tag)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from filegroups.files.bloom import BloomFilter, BloomSettings
from filegroups.files.parquet import Footer, write_base_file
from filegroups.index import IndexedFile
from filegroups.index.key_filters import may_contain_any
from filegroups.index.lookup import tag
from filegroups.schema.schema import META_COLUMNS, TableSchema, with_meta
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.errors import CorruptTableError, MissingFileError

SCHEMA = TableSchema.from_arrow(pa.schema([("v", pa.int32())]), "t")


class InOrder:
    """Runs tasks one after the other."""

    def map(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        return [work(task) for task in tasks]


def storage_with(
    *, bloom: bool = False, **files: list[str]
) -> tuple[MemoryStorage, dict[str, list[IndexedFile]]]:
    """Return a storage with files named ``partition__fileid``."""
    storage = MemoryStorage()
    listing: dict[str, list[IndexedFile]] = {}
    for name, keys in files.items():
        partition_path, _, file_id = name.partition("__")
        columns = {each: pa.array(keys, pa.string()) for each in META_COLUMNS}
        rows = pa.table(
            columns | {"v": pa.array([0] * len(keys), pa.int32())}, schema=with_meta(SCHEMA.arrow)
        )
        path = f"{partition_path}/{file_id}.parquet"
        entries = None
        if bloom:
            entries = BloomFilter(BloomSettings(entries=100))
            entries.add(rows.column("_hoodie_record_key"))
        write_base_file(storage, path, rows, avro_json=SCHEMA.avro_json, bloom=entries)
        entry = IndexedFile(file_id=file_id, path=path)
        listing.setdefault(partition_path, []).append(entry)
    return storage, listing


@pytest.fixture(params=[False, True], ids=["simple", "bloom"])
def filters(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def tagged(
    storage: Any, listing: Any, keys: list[str], paths: list[str], *, filters: bool
) -> list[str | None]:
    found = tag(storage, InOrder(), listing, pa.array(keys), pa.array(paths), filters=filters)
    return found.to_pylist()


def test_known_keys_get_their_file_group_and_new_ones_none(filters: bool) -> None:
    storage, listing = storage_with(p__f1=["a", "c"], p__f2=["b"], q__f3=["a"])
    keys, paths = ["a", "b", "x", "a", "a"], ["p", "p", "p", "q", "p"]
    assert tagged(storage, listing, keys, paths, filters=filters) == ["f1", "f2", None, "f3", "f1"]


def test_a_key_is_searched_in_its_partition_only(filters: bool) -> None:
    storage, listing = storage_with(p__f1=["a"])
    assert tagged(storage, listing, ["a", "a"], ["q", "r"], filters=filters) == [None, None]


def test_a_key_in_two_file_groups_belongs_to_the_first(filters: bool) -> None:
    storage, listing = storage_with(p__f1=["a"], p__f2=["a", "b"])
    assert tagged(storage, listing, ["a", "b"], ["p", "p"], filters=filters) == ["f1", "f2"]


def test_an_empty_table_or_batch_tags_nothing(filters: bool) -> None:
    storage, listing = storage_with(p__f1=[])
    assert tagged(storage, listing, ["a"], ["p"], filters=filters) == [None]
    assert tagged(storage, {}, ["a"], ["p"], filters=filters) == [None]
    nothing = pa.array([], pa.string())
    assert len(tag(storage, InOrder(), listing, nothing, nothing, filters=filters)) == 0


def test_chunked_columns_are_fine(filters: bool) -> None:
    storage, listing = storage_with(p__f1=["a", "b"])
    keys = pa.chunked_array([["b"], ["z", "a"]])
    paths = pa.chunked_array([["p", "p"], ["p"]])
    found = tag(storage, InOrder(), listing, keys, paths, filters=filters)
    assert found.to_pylist() == ["f1", None, "f1"]


def test_a_cleaned_candidate_requires_a_new_assignment(filters: bool) -> None:
    storage, listing = storage_with(p__f1=["a"])
    storage.delete("p/f1.parquet")
    with pytest.raises(MissingFileError):
        tagged(storage, listing, ["a"], ["p"], filters=filters)


def test_each_candidate_is_opened_once(filters: bool) -> None:
    storage, listing = storage_with(p__f1=["a", "c"], p__f2=["x"])
    observed = RecordingStorage(storage)
    tagged(observed, listing, ["a", "b"], ["p", "p"], filters=filters)
    assert observed.operations() == ["open_input p/f1.parquet", "open_input p/f2.parquet"]


# ---- files that are not read


def without_pages(storage: MemoryStorage, path: str) -> None:
    """Damage all bytes except the footer, so that a read of the keys fails."""
    data = bytearray(storage.read(path))
    footer = int.from_bytes(data[-8:-4], "little") + 8
    data[4 : len(data) - footer] = bytes(len(data) - footer - 4)
    storage.write(path, bytes(data))


@pytest.mark.parametrize(
    ("bloom", "keys", "spared"),
    [
        (False, ["b"], False),  # in the range, without a filter
        (True, ["b"], True),  # in the range, and not in the filter
        (True, ["b", "c"], False),
        (False, ["A", "f"], True),  # the ranges overlap, no key is in both
        (True, ["A", "f"], True),
    ],
)
def test_a_footer_that_rules_out_every_key_saves_the_read_of_the_keys(
    bloom: bool, keys: list[str], spared: bool
) -> None:
    storage, listing = storage_with(bloom=bloom, p__f1=["a", "c", "e"])
    without_pages(storage, "p/f1.parquet")
    if spared:
        assert tagged(storage, listing, keys, ["p"] * len(keys), filters=True) == [None] * len(keys)
        return
    with pytest.raises(CorruptTableError):
        tagged(storage, listing, keys, ["p"] * len(keys), filters=True)


def test_ranges_beyond_the_basic_plane_rule_nothing_out_by_byte_order() -> None:
    """U+E000 is above surrogates in Java's order and below them in UTF-8's."""
    entries = ["\U0001f600", "\ue000"]
    storage, listing = storage_with(bloom=True, p__f1=entries)
    assert tagged(storage, listing, entries, ["p", "p"], filters=True) == ["f1", "f1"]


def test_a_damaged_filter_costs_a_lookup_and_rules_out_no_key() -> None:
    footer = Footer(
        schema=pa.schema([]),
        rows=1,
        avro_json=None,
        key_min="a",
        key_max="z",
        bloom_base64="AAAA",
        bloom_kind="SIMPLE",
    )
    assert may_contain_any(pa.array(["b"]), footer)
    assert not may_contain_any(pa.array(["B"]), footer)
