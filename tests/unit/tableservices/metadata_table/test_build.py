"""Partitions of the metadata table are built while writers write (MDT-11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from filegroups.metadata_table.decode import SHAPE_OF_KIND, decode_hfile
from filegroups.metadata_table.keys import parse_file_group_id
from filegroups.metadata_table.new_partitions import planned_partitions
from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from filegroups.settings.metadata_settings import MetadataTableSettings
from filegroups.table import TableReader
from tableservices.metadata_table.build import build_partitions
from tableservices.metadata_table.drop import drop_partitions
from tableservices.metadata_table.sorting import SortedRecords
from tests.unit.filegroups.writing.test_metadata_update import KEYS, check, rows
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    Far,
    StillClock,
    files_below,
    new_table,
    opened,
    put,
)
from timeline.codecs.log_blocks import BytesSource
from timeline.errors import InvalidInputError, OutcomeUnknownError, StorageUnavailableError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import METADATA_TABLE, PROPERTIES
from timeline.model.metadata_table import PartitionKind
from timeline.properties.setting_enums import CommitLockMode
from timeline.system import SystemClock

ALL = MetadataTableSettings(
    column_stats=True, record_index=True, record_index_file_groups_min=2, bloom_filters=True
)
PARTITIONS = ("bloom_filters", "column_stats", "files", "partition_stats", "record_index")


@pytest.mark.spec("MDT-11")
@pytest.mark.parametrize("table_type", list(TableType))
@pytest.mark.parametrize("version", [8, 9])
def test_a_built_metadata_table_has_exactly_what_the_table_has(
    table_type: TableType, version: int
) -> None:
    table = new_table(version=version, table_type=table_type)
    for value in range(3):
        put(table, WriteOperation.UPSERT, rows(KEYS[value : value + 4], value))
    put(table, WriteOperation.DELETE, rows(KEYS[1:2], 5))
    built = build_partitions(table.context, PARTITIONS, ALL)
    assert built is not None
    assert set(built.partitions) == set(PARTITIONS)
    check(table)
    put(opened(table), WriteOperation.UPSERT, rows(KEYS, 9))
    check(table)
    assert build_partitions(table.context, PARTITIONS, ALL) is None


def build(table: TableReader, *names: str) -> None:
    assert build_partitions(opened(table).context, names or PARTITIONS, ALL) is not None


def build_and(table: TableReader, act: Callable[[], object]) -> None:
    """Build all partitions; the act happens after the fence, before the base files."""
    context = opened(table).context
    done = []

    class Acting(Behind):
        def list(self, folder: str) -> Any:
            if not done and folder == "p0":  # the first partition that the build lists
                done.append(folder)
                act()
            return self.inner.list(folder)

    context = opened(table, storage=Acting(context.ports.storage)).context
    assert build_partitions(context, PARTITIONS, ALL) is not None
    assert done


def check_all(table: TableReader) -> None:
    check(table)
    assert opened(table).config.complete_metadata_partitions == PARTITIONS


@pytest.mark.spec("MDT-11")
@pytest.mark.parametrize("mode", list(CommitLockMode))
@pytest.mark.parametrize("far", [False, True])
def test_a_write_in_flight_brings_its_records_after_the_fence(
    mode: CommitLockMode, far: bool
) -> None:
    limits = replace(BRISK, publish_lock=mode)
    table = new_table(limits=limits)
    storage = table.context.ports.storage
    put(table, WriteOperation.UPSERT, rows(KEYS[:6], 0))
    if far:
        table = opened(table, storage=Far(storage), limits=limits)
    done = put(table, WriteOperation.UPSERT, rows(KEYS, 1), lambda: build(table))
    assert done.attempts == 2
    check_all(table)


@pytest.mark.spec("MDT-11")
def test_a_section_whose_properties_are_older_than_its_commit_log_reads_them_again() -> None:
    limits = replace(BRISK, publish_lock=CommitLockMode.NONE)
    table = new_table(limits=limits)
    storage, stale = table.context.ports.storage, list[bytes]()
    put(table, WriteOperation.UPSERT, rows(KEYS[:6], 0))

    class Late(Far):
        """A store on which a read of the properties, begun before the build, ends after it."""

        def read(self, path: str) -> bytes:
            return stale.pop() if stale and path == PROPERTIES else self.inner.read(path)

    def built_meanwhile() -> None:
        before = storage.read(PROPERTIES)
        build(table)
        stale.append(before)

    late = opened(table, storage=Late(storage), limits=limits)
    done = put(late, WriteOperation.UPSERT, rows(KEYS, 1), built_meanwhile)
    assert not stale
    assert done.attempts == 2
    check_all(table)


@pytest.mark.spec("MDT-11")
@pytest.mark.parametrize("operation", [WriteOperation.UPSERT, WriteOperation.DELETE])
def test_a_commit_after_the_fence_wins_over_the_base_files(operation: WriteOperation) -> None:
    table = new_table()
    put(table, WriteOperation.UPSERT, rows(KEYS[:8], 0))
    build_and(table, lambda: put(opened(table), operation, rows(KEYS[4:], 1)))
    check_all(table)


@pytest.mark.spec("MDT-11")
def test_a_write_before_a_drop_and_another_build_makes_its_records_again() -> None:
    table = new_table()
    put(table, WriteOperation.UPSERT, rows(KEYS[:6], 0))
    build(table)
    table = opened(table)

    def replaced() -> None:
        drop_partitions(opened(table).context)
        build(table)

    done = put(table, WriteOperation.UPSERT, rows(KEYS, 1), replaced)
    assert done.attempts == 2
    check_all(table)


@pytest.mark.spec("MDT-11")
@pytest.mark.parametrize("calls", range(1, 60, 4))
def test_a_build_that_dies_leaves_a_table_that_works_and_another_one_ends_it(calls: int) -> None:
    table = new_table()
    put(table, WriteOperation.UPSERT, rows(KEYS[:6], 0))
    storage = table.context.ports.storage
    left = [calls]

    class Dying(Behind):
        def __getattr__(self, name: str) -> Any:
            if name in ("create", "write", "open_output", "delete", "delete_folder"):
                left[0] -= 1
                if left[0] < 0:
                    raise StorageUnavailableError("the process died", path=name)
            return super().__getattr__(name)

    clock = StillClock(SystemClock().now_ms())
    context = opened(table, storage=Dying(storage), clock=clock).context
    with suppress(StorageUnavailableError, OutcomeUnknownError):
        build_partitions(context, PARTITIONS, ALL)
    table = opened(table)
    put(table, WriteOperation.UPSERT, rows(KEYS[3:], 1))
    put(table, WriteOperation.DELETE, rows(KEYS[:1], 2))
    build_partitions(opened(table).context, PARTITIONS, ALL)
    check_all(table)


@pytest.mark.spec("MDT-11")
def test_a_drop_takes_the_partitions_that_need_it_and_a_build_brings_them_back() -> None:
    table = new_table()
    put(table, WriteOperation.UPSERT, rows(KEYS[:6], 0))
    build(table)
    gone = drop_partitions(opened(table).context, ["column_stats"])
    assert gone == ("column_stats", "partition_stats")
    table = opened(table)
    assert table.config.metadata_partitions == ("bloom_filters", "files", "record_index")
    put(table, WriteOperation.UPSERT, rows(KEYS, 1))
    build(table, "column_stats")
    check_all(table)
    drop_partitions(opened(table).context)
    assert files_below(table.context.ports.storage, METADATA_TABLE) == []
    assert not opened(table).config.metadata_table_on
    assert drop_partitions(opened(table).context) == ()


def test_a_drop_of_a_partition_that_the_metadata_table_lacks_is_refused() -> None:
    table = new_table()
    with pytest.raises(InvalidInputError) as refused:
        drop_partitions(table.context, ["record_index"])
    assert refused.value.kind == "metadata_partition_unknown"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("expr_index_a", "metadata_partition_name"),
        ("other", "metadata_partition_name"),
        ("secondary_index_a", "secondary_index_column"),
    ],
)
def test_a_partition_that_cannot_be_built_is_refused(name: str, kind: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        build_partitions(new_table().context, [name], ALL)
    assert refused.value.kind == kind


@pytest.mark.parametrize("per_partition", [False, True])
def test_few_records_in_memory_make_the_same_files(
    monkeypatch: pytest.MonkeyPatch, per_partition: bool
) -> None:
    settings = replace_settings(record_index=not per_partition, per_partition=per_partition)
    table = new_table(table_type=TableType.MERGE_ON_READ)
    for value in range(4):
        put(table, WriteOperation.UPSERT, rows(KEYS[value : value + 4], value))
        put(
            table, WriteOperation.BULK_INSERT, rows([f"n{value}{each}" for each in range(6)], value)
        )
    assert build_partitions(table.context, PARTITIONS, settings) is not None
    before = hfiles(table)
    assert len(before) > 6
    monkeypatch.setattr(f"{BUILD}.SortedRecords", partial(SortedRecords, rows_max=2))
    monkeypatch.setattr("filegroups.metadata_table.contents._FILE_GROUPS_MAX", 1)
    names = sorted(before)
    again = opened(table).context
    assert build_partitions(again, PARTITIONS, settings, again=PARTITIONS) is not None
    after = hfiles(table)
    assert sorted(after) == names
    check(table)
    for name, records in before.items():
        assert after[name].equals(records), name


BUILD = "tableservices.metadata_table.build"


def replace_settings(*, record_index: bool, per_partition: bool) -> MetadataTableSettings:
    return MetadataTableSettings(
        column_stats=True,
        record_index=record_index,
        record_index_file_groups_min=2,
        partitioned_record_index=per_partition,
        partitioned_file_groups_min=2,
        bloom_filters=True,
    )


def hfiles(table: TableReader) -> dict[str, pa.Table]:
    """The records of each base file of the metadata table, by partition and file group."""
    storage, found = table.context.ports.storage, {}
    for partition in PARTITIONS:
        shape = SHAPE_OF_KIND[PartitionKind(partition)]
        for name in storage.names(f"{METADATA_TABLE}/{partition}"):
            if name.endswith(".hfile"):
                data = storage.read(f"{METADATA_TABLE}/{partition}/{name}")
                records = decode_hfile(BytesSource(data), len(data), shape, path=name)
                if "timestamp" in records.column_names:
                    records = records.drop_columns(["timestamp"])  # of the build
                found[f"{partition}/{name.partition('_')[0]}"] = records
    return found


COUNTS = [
    # Java: ceil(1,000,000 * 2.0) records, 22,369,621 records in a file group of 1 GiB.
    (1_000_000, {}, 10),
    (1_000_000, {"record_index_file_groups_min": 1}, 1),
    (111_848_104, {}, 10),
    (123_032_920, {}, 11),
    (123_032_916, {}, 10),  # a number of 32 bits is 123,032,912
    (123_000_000, {}, 10),  # 10.997 is rounded down
    (10**12, {}, 10_000),
    (1_000, {"record_index_file_group_bytes": 4_800, "record_index_file_groups_min": 2}, 20),
    (1_000, {"record_index_file_group_bytes": 4_800, "record_index_growth": 1.5}, 15),
    (1_000, {"record_index_file_group_bytes": 4_800, "record_index_file_groups_max": 12}, 12),
    (1_000, {"record_index_file_group_bytes": 1}, 2_000),
    (0, {"record_index_file_groups_min": 7, "record_index_file_groups_max": 7}, 7),
    (10**12, {"record_index_file_groups_min": 7, "record_index_file_groups_max": 7}, 7),
    (0, {"record_index_file_groups_min": 9, "record_index_file_groups_max": 4}, 9),
]


@pytest.mark.parametrize(("count", "options", "expected"), COUNTS)
def test_the_file_groups_of_a_record_index_are_counted_as_in_java(
    count: int, options: dict[str, Any], expected: int
) -> None:
    config = new_table().config
    (made,) = planned_partitions(
        ["record_index"],
        config,
        MetadataTableSettings(record_index=True, **options),
        avro_json=None,
        rows={"p0": count - count // 3, "p1": count // 3},
    )
    assert made.file_groups == expected
    assert len(made.file_ids) == expected


def test_each_partition_has_the_file_groups_for_its_own_rows() -> None:
    settings = MetadataTableSettings(
        partitioned_record_index=True,
        partitioned_file_groups_min=2,
        partitioned_file_groups_max=4,
        record_index_file_group_bytes=96,  # 2 records
        record_index_growth=1.0,
    )
    table = new_table()
    put(table, WriteOperation.UPSERT, rows([f"k{3 * number}" for number in range(20)], 1))
    put(table, WriteOperation.UPSERT, rows([f"k{3 * number + 1}" for number in range(6)], 1))
    put(table, WriteOperation.UPSERT, rows(["k2"], 1))
    assert build_partitions(table.context, ["record_index"], settings) is not None
    found = Counter(
        number.data_partition
        for name in table.context.ports.storage.names(f"{METADATA_TABLE}/record_index")
        if name.endswith(".hfile")
        if (number := parse_file_group_id("record_index", name.partition("_")[0])) is not None
    )
    slices = open_metadata(table).slices("record_index")
    assert Counter(place.data_partition for place in slices) == {"p0": 4, "p1": 3, "p2": 2}
    assert set(found) == {"p0", "p1", "p2"}
    index = open_metadata(table)
    keys = [row["id"] for row in rows_of_table(table)]
    assert sorted(
        index.look_up("record_index", pa.array(keys)).column("key").to_pylist()
    ) == sorted(keys)


def rows_of_table(table: TableReader) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = opened(table).to_arrow().to_pylist()
    return found


def open_metadata(table: TableReader) -> MetadataTable:
    context = opened(table).context
    found = open_metadata_table(context.ports.storage, context.config, context.snapshot())
    assert found is not None
    return found
