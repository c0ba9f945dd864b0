"""Metadata tables of new tables, and building and dropping them by hand."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.metadata_table.index_definitions import read_index_definitions
from timeline.errors import CorruptTableError, InvalidInputError, MissingFileError
from timeline.model.table_config import METADATA_COMPLETE, METADATA_INFLIGHT
from timeline.properties.properties_file import update_properties

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64())])
ROWS = [{"id": f"k{number}", "p": f"p{number % 2}", "v": number} for number in range(10)]
ON = {"hoodie.metadata.enable": "true"}
PARTITION_STATS = "hoodie.metadata.index.partition.stats.enable"
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


def table_of(path: Path) -> hoodoo.Table:
    return hoodoo.open_table(path / "t")


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
        ({PARTITION_STATS: "false"}, True, ("column_stats", "files")),
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
        ({PARTITION_STATS: "true"}, None),
        ({PARTITION_STATS: "false"}, "drop TABLE partition_stats"),
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


SPLIT = "hoodie.metadata.record.level.index.enable"
LISTED = "hoodie.metadata.index.column.stats.column.list"
DEFINITIONS = "t/.hoodie/.index_defs/index.json"


@pytest.mark.spec("MDT-11")
def test_a_rebuild_without_options_keeps_the_scope_and_the_columns(tmp_path: Path) -> None:
    with made(tmp_path, **{SPLIT: "true", LISTED: "v"}) as table:
        table.upsert([*ROWS, {"id": "k1", "p": "p0", "v": 5}])
        before = read_index_definitions(table.context.ports.storage)
    assert before["record_index"].is_per_partition
    assert before["column_stats"].source_fields[3:] == ("v",)
    with hoodoo.open_table(tmp_path / "t") as table:
        table.metadata.rebuild()
        assert read_index_definitions(table.context.ports.storage) == before
    with hoodoo.open_table(
        tmp_path / "t", properties={RECORD_INDEX: "true", LISTED: "id,v"}
    ) as table:
        table.metadata.rebuild("record_index", "column_stats")
        now = read_index_definitions(table.context.ports.storage)
    assert not now["record_index"].is_per_partition, "the option says so"
    assert now["column_stats"].source_fields[3:] == ("id", "v")


def test_a_rebuild_adds_no_statistics_of_partitions(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(ROWS)
        table.metadata.drop("partition_stats")
        table.metadata.rebuild()
        assert partitions(table_of(tmp_path)) == ("column_stats", "files")
        table.metadata.create()
        assert "partition_stats" in partitions(table_of(tmp_path))


def test_damaged_index_definitions_end_with_a_drop_of_the_metadata_table(tmp_path: Path) -> None:
    with made(tmp_path, **{RECORD_INDEX: "true"}) as table:
        table.upsert(ROWS)
        (tmp_path / DEFINITIONS).write_bytes(b"")
        for attempt in (table.metadata.rebuild, lambda: table.metadata.drop("record_index")):
            with pytest.raises(CorruptTableError, match="drop TABLE', then") as refused:
                attempt()
            assert refused.value.kind == "bad_index_definitions"
        assert "record_index" in table.metadata.drop()
        assert table.metadata.create() is not None
        table.upsert(ROWS[:1])
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.verify().ok


def test_an_index_without_a_definition_is_dropped_and_created_again(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(ROWS)
        table.metadata.create_index("by_v", "v")
        (tmp_path / DEFINITIONS).unlink()
        step = "drop TABLE secondary_index_by_v', then .* create-index TABLE by_v --column"
        with pytest.raises(CorruptTableError, match=step):
            table.metadata.repair()
        table.metadata.drop("secondary_index_by_v")
        assert table.metadata.create_index("by_v", "v") is not None
        assert table.metadata.verify() == ()


@pytest.mark.parametrize("lost", [".", "files"])
def test_a_lost_metadata_table_is_named_instead_of_nothing_to_build(
    tmp_path: Path, lost: str
) -> None:
    with made(tmp_path) as table:
        table.upsert(ROWS)
        shutil.rmtree(tmp_path / "t/.hoodie/metadata" / lost)
        for attempt in (table.metadata.create, table.metadata.to_create):
            with pytest.raises(MissingFileError, match="hoodoo metadata rebuild TABLE"):
                attempt()
        table.metadata.rebuild()
        assert table.verify().ok


@pytest.mark.parametrize("partition", ["files", "column_stats"])
@pytest.mark.parametrize("pattern", ["*.hfile", ".*.log.*"])
def test_status_names_a_file_that_cannot_be_opened_and_the_command_that_mends_it(
    tmp_path: Path, partition: str, pattern: str
) -> None:
    with made(tmp_path) as table:
        table.upsert(ROWS)
        table.metadata.rebuild()
        table.upsert(ROWS[:1])
        assert table.metadata.status().trusted
        files = (tmp_path / "t/.hoodie/metadata" / partition).glob(pattern)
        cut = max(files, key=lambda one: one.stat().st_mtime_ns)
        cut.write_bytes(cut.read_bytes()[:-20])
        status = table.metadata.status()
        assert not status.trusted
        [remark] = status.remarks
        assert cut.name in remark
        assert "'hoodoo metadata re" in remark
        table.metadata.repair()
        assert table.metadata.status().remarks == ()
        assert table.metadata.status().trusted


def test_status_names_damaged_index_definitions_once(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(ROWS)
        assert table.metadata.status().trusted
        definitions = tmp_path / "t/.hoodie/.index_defs/index.json"
        definitions.write_bytes(definitions.read_bytes()[:40])
        status = table.metadata.status()
        assert not status.trusted
        [remark] = status.remarks
        assert "index.json" in remark
        table.metadata.drop()
        table.metadata.create()
        assert table.metadata.status().remarks == ()
        assert table.metadata.status().trusted


@pytest.mark.parametrize("partition", ["partition_stats", "record_index"])
@pytest.mark.parametrize("pattern", ["*.hfile", ".*.log.*"])
def test_a_lost_file_of_an_index_hides_no_row_and_doubles_no_key(
    tmp_path: Path, partition: str, pattern: str
) -> None:
    """Bounds of a partition would be too narrow, and a known key would be a new one."""
    apart = {"hoodie.parquet.small.file.limit": "0", "hoodie.index.type": "RECORD_INDEX"}
    rows = [{"id": f"k{number}", "p": f"p{number}", "v": number} for number in range(9)]
    later = [{**one, "id": f"later {one['id']}", "v": 100 + one["v"]} for one in rows]
    folder = tmp_path / "t/.hoodie/metadata" / partition
    with made(tmp_path, **{RECORD_INDEX: "true"}) as table:
        table.upsert(rows)
        table.metadata.rebuild()
    with hoodoo.open_table(tmp_path / "t", properties={**ON, **apart}) as table:
        table.upsert(later[:1])
        table.upsert(later[1:])
        lost = max(folder.glob(pattern), key=lambda one: one.stat().st_mtime_ns)
        lost.unlink()
    with hoodoo.open_table(tmp_path / "t", properties={**ON, **apart}) as table:
        assert table.to_arrow(filter="v >= 101").num_rows == 8
        assert table.to_arrow(filter="v < 101").num_rows == 10
        table.upsert([*rows, *later])
        assert table.count() == 18
        assert lost.name in str(table.metadata.status().remarks)
        assert table.metadata.repair() == (partition,)
        assert table.metadata.status().trusted


def test_a_file_group_without_keys_after_a_second_build_is_not_lost(tmp_path: Path) -> None:
    rows = [{"id": f"k{number}", "p": "p", "v": number} for number in range(40)]
    with made(tmp_path, **{RECORD_INDEX: "true"}) as table:
        table.upsert(rows)
        table.metadata.rebuild("record_index")
        table.delete(keys=rows[1:])
        table.metadata.rebuild("record_index")
        status = table.metadata.status()
        assert status.remarks == ()
        assert status.trusted


@pytest.mark.parametrize("name", ["expr_index_day", "vector_index_v"])
def test_a_partition_that_cannot_be_built_is_to_be_dropped(tmp_path: Path, name: str) -> None:
    with made(tmp_path) as table:
        table.upsert(ROWS)
        update_properties(
            table.context.ports.storage,
            {METADATA_INFLIGHT: name},
            now=table.context.active().newest_time or "",
        )
        with pytest.raises(InvalidInputError, match=f"drop TABLE {name}'"):
            table.metadata.rebuild()
        [remark] = table.metadata.status().remarks
        assert f"'hoodoo metadata drop TABLE {name}'" in remark
        assert table.metadata.drop(name) == (name,)
        table.upsert(ROWS[:1])
        assert table.metadata.verify() == ()


def test_a_table_that_does_not_list_its_files_is_repaired(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(ROWS)
        update_properties(
            table.context.ports.storage,
            {METADATA_COMPLETE: "column_stats,partition_stats"},
            now=table.context.active().newest_time or "",
        )
        table.metadata.repair()
    with hoodoo.open_table(tmp_path / "t") as table:
        assert partitions(table) == ("column_stats", "files", "partition_stats")
        assert table.verify().ok
