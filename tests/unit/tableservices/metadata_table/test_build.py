"""Partitions of the metadata table are built while writers write (MDT-11)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from filegroups.settings.metadata_settings import MetadataTableSettings
from filegroups.table import TableReader
from tableservices.metadata_table.build import build_partitions
from tableservices.metadata_table.drop import drop_partitions
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
from timeline.errors import InvalidInputError, OutcomeUnknownError, StorageUnavailableError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import METADATA_TABLE, PROPERTIES
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
