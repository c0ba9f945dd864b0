"""Metadata tables of new tables, and building and dropping them by hand."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.metadata_table.index_definitions import read_index_definitions
from timeline.errors import InvalidInputError

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64())])
ROWS = [{"id": f"k{number}", "p": f"p{number % 2}", "v": number} for number in range(10)]
ON = {"hoodie.metadata.enable": "true"}
RECORD_INDEX = "hoodie.metadata.global.record.level.index.enable"


def made(path: Path, *, schema: Any = SCHEMA, split: bool = True, **options: str) -> hoodoo.Table:
    named = {key.replace("__", "."): value for key, value in options.items()}
    return hoodoo.create_table(
        path / "t",
        schema=schema,
        record_key="id",
        partition_by="p" if split else None,
        properties={**ON, **named},
    )


def partitions(table: hoodoo.Table) -> tuple[str, ...]:
    return table.config.complete_metadata_partitions


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ({}, ()),
        ({RECORD_INDEX: "true"}, ("column_stats", "files", "record_index")),
        ({"hoodie.metadata.index.column.stats.enable": "true"}, ("column_stats", "files")),
        ({RECORD_INDEX: "false"}, ()),
        ({RECORD_INDEX: "true", "hoodie.metadata.enable": "false"}, ()),
        ({"hoodie.metadata.index.secondary.enable": "true"}, ()),
        (
            {"hoodie.metadata.index.secondary.column": "v", "hoodie.index.name": "v"},
            ("column_stats", "files", "record_index", "secondary_index_v"),
        ),
    ],
)
def test_the_option_of_an_index_gives_a_new_table_its_metadata_table(
    tmp_path: Path, options: dict[str, str], made: tuple[str, ...]
) -> None:
    with hoodoo.create_table(
        tmp_path / "t", schema=SCHEMA, record_key="id", properties=options
    ) as table:
        assert partitions(table) == made


@pytest.mark.parametrize(
    ("options", "split", "expected"),
    [
        ({}, True, ("column_stats", "files", "partition_stats")),
        ({}, False, ("column_stats", "files")),
        ({"hoodie.metadata.index.column.stats.enable": "false"}, True, ("files",)),
        (
            {RECORD_INDEX: "true", "hoodie.metadata.index.bloom.filter.enable": "true"},
            False,
            ("bloom_filters", "column_stats", "files", "record_index"),
        ),
        (
            {
                "hoodie.metadata.record.level.index.enable": "true",
                "hoodie.metadata.index.column.stats.enable": "false",
            },
            True,
            ("files", "record_index"),
        ),
    ],
)
def test_a_new_table_gets_the_partitions_that_the_options_ask_for(
    tmp_path: Path, options: dict[str, str], split: bool, expected: tuple[str, ...]
) -> None:
    with made(tmp_path, split=split, **options) as table:
        assert partitions(table) == expected
        assert table.metadata.verify() == ()
        table.upsert(ROWS)
        table.delete(keys=[{"id": "k1", "p": "p1"}])
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.verify().ok
        assert table.to_arrow().num_rows == 9


def test_a_new_table_has_no_metadata_table_by_default(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path / "t", schema=SCHEMA, record_key="id") as table:
        assert partitions(table) == ()


def test_a_table_whose_columns_come_with_the_first_write_indexes_them(tmp_path: Path) -> None:
    with made(tmp_path, schema=None) as table:
        table.upsert(ROWS)
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.verify().ok
        [defined] = read_index_definitions(table.context.ports.storage).values()
        assert defined.source_fields[-3:] == ("id", "p", "v")


SECONDARY = "hoodie.metadata.index.secondary.column"


@pytest.mark.parametrize(
    ("options", "index"),
    [
        ({}, "secondary_index_v"),
        ({"hoodie.index.name": "by_v"}, "secondary_index_by_v"),
        ({"hoodie.index.name": "secondary_index_by_v"}, "secondary_index_by_v"),
        ({"hoodie.metadata.index.secondary.enable": "false"}, None),
    ],
)
def test_a_new_table_gets_the_secondary_index_that_the_options_name(
    tmp_path: Path, options: dict[str, str], index: str | None
) -> None:
    with made(tmp_path, **{SECONDARY: "v"}, **options) as table:
        added = {index, "record_index"} if index else set()
        assert set(partitions(table)) == {"column_stats", "files", "partition_stats"} | added
        table.upsert(ROWS)
        assert table.metadata.verify() == ()
        if index:
            known = read_index_definitions(table.context.ports.storage)[index]
            assert (known.source_fields, known.index_type) == (("v",), "secondary_index")
            assert table.metadata.to_create() == ()


def test_a_secondary_index_of_an_unknown_column_is_refused_before_the_table_exists(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        made(tmp_path, **{SECONDARY: "w"})
    assert refused.value.kind == "secondary_index_column"
    assert not (tmp_path / "t").exists()


def test_the_wanted_secondary_index_is_not_built_beside_one_of_the_same_column(
    tmp_path: Path,
) -> None:
    with made(tmp_path, **{RECORD_INDEX: "true"}) as table:
        table.upsert(ROWS)
        table.metadata.create_index("by_v", "v")
    with hoodoo.open_table(tmp_path / "t", properties={SECONDARY: "v"}) as table:
        assert table.metadata.create() is None
    with hoodoo.open_table(tmp_path / "t", properties={SECONDARY: "p"}) as table:
        built = table.metadata.create()
        assert built is not None
        assert built.records == {"secondary_index_p": 10}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, None),
        ({"hoodie.metadata.index.column.stats.enable": "true"}, None),
        ({"hoodie.metadata.index.column.stats.enable": "false"}, "drop TABLE column_stats"),
        ({"hoodie.metadata.index.bloom.filter.enable": "true"}, "create TABLE bloom_filters"),
        ({"hoodie.metadata.index.bloom.filter.enable": "false"}, None),
        ({"hoodie.metadata.record.index.enable": "true"}, "create TABLE record_index"),
        ({"hoodie.metadata.record.level.index.enable": "true"}, "create TABLE record_index"),
        ({"hoodie.metadata.record.level.index.enable": "false"}, None),
        ({SECONDARY: "v"}, "create-index TABLE v --column v"),
        ({"hoodie.metadata.index.secondary.enable": "false"}, None),
    ],
)
def test_a_writer_is_warned_once_of_partitions_that_the_table_lacks_or_has(
    tmp_path: Path, options: dict[str, str], said: str | None
) -> None:
    made(tmp_path).close()
    with (
        warnings.catch_warnings(record=True) as found,
        hoodoo.open_table(tmp_path / "t", properties=options) as table,
    ):
        warnings.simplefilter("always")
        table.upsert(ROWS)
        table.upsert(ROWS)
    texts = [str(one.message) for one in found]
    assert len(texts) == (said is not None)
    assert said is None or f"hoodoo metadata {said}'" in texts[0]


def test_a_writer_is_told_how_new_partitions_get_file_groups(tmp_path: Path) -> None:
    options = {
        "hoodie.metadata.record.level.index.enable": "true",
        "hoodie.metadata.record.level.index.min.filegroup.count": "3",
    }
    with made(tmp_path, **options) as table:
        with pytest.warns(UserWarning, match="gets one file group"):
            table.upsert(ROWS)
        built = table.metadata.rebuild("record_index")
        assert built is not None
        assert built.records == {"record_index": 10}
        found = {one.name: one.file_groups for one in table.metadata.status().partitions}
        assert found["record_index"] == 6
        assert table.metadata.verify() == ()


def test_a_writer_without_the_secondary_index_of_a_table_is_warned(tmp_path: Path) -> None:
    with made(tmp_path, **{SECONDARY: "v"}) as table:
        table.upsert(ROWS)
    off = {"hoodie.metadata.index.secondary.enable": "false"}
    with hoodoo.open_table(tmp_path / "t", properties=off) as table:
        with pytest.warns(UserWarning, match="drop TABLE secondary_index_v"):
            table.upsert(ROWS[:1])
        assert table.metadata.verify() == ()


def test_two_record_indexes_are_refused_before_the_table_exists(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as refused:
        made(
            tmp_path, **{RECORD_INDEX: "true", "hoodie.metadata.record.level.index.enable": "true"}
        )
    assert refused.value.kind == "metadata_partition_unfit"
    assert not (tmp_path / "t").exists()


def test_an_index_is_created_and_dropped_by_its_name(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(ROWS)
        built = table.metadata.create_index("by_v", "v")
        assert built is not None
        assert built.records == {"record_index": 10, "secondary_index_by_v": 10}
        table.upsert([{"id": "k3", "p": "p1", "v": 77}])
        assert table.metadata.rebuild("secondary_index_by_v") is not None
        assert table.metadata.drop_index("by_v") == ("secondary_index_by_v",)
        with pytest.raises(InvalidInputError) as refused:
            table.metadata.drop_index("by_v")
        assert refused.value.kind == "metadata_partition_unknown"
        with pytest.raises(InvalidInputError) as refused:
            table.metadata.create_index("by_w", "w")
        assert refused.value.kind == "secondary_index_column"
        with pytest.raises(InvalidInputError) as refused:
            table.metadata.create_index("by_w", "w", index_type="bitmap")
        assert refused.value.kind == "index_type"


@pytest.mark.spec("MDT-11")
def test_a_rebuild_replaces_what_is_wrong(tmp_path: Path) -> None:
    with made(tmp_path, **{RECORD_INDEX: "true"}) as table:
        table.upsert(ROWS)
        before = set((tmp_path / "t/.hoodie/metadata/record_index").iterdir())
        built = table.metadata.rebuild("record_index")
        assert built is not None
        assert built.records == {"record_index": 10}
        assert before.isdisjoint((tmp_path / "t/.hoodie/metadata/record_index").glob("*.hfile"))
        table.upsert([{"id": "k3", "p": "p1", "v": 77}])
        assert set(table.metadata.rebuild().partitions) == set(partitions(table))  # type: ignore[union-attr]
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.verify().ok
