"""
Partition TTL: the partitions that expire, by last write or by creation, and those a writer saves.
"""

from __future__ import annotations

import pytest

from filegroups.table import TableReader
from tableservices.ttl.execute import (
    REST_MS,
    TtlService,
    TtlSettings,
    expire,
    expired_partitions,
    expired_paths,
)
from tests.unit.timeline.engine import StillClock, new_table, opened, rows_of, upsert
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from timeline.errors import MalformedNameError, SettingError, TableConfigConflictError
from timeline.model.commit_metadata import TableType
from timeline.model.instant_time import WallMs, wall_ms
from timeline.properties.properties_file import update_properties

DAY_MS = 24 * 3_600_000
TWO_DAYS = TtlSettings(days_retained=2)


def row(partition: str, value: int) -> list[dict[str, object]]:
    return [{"id": f"k{partition}", "p": partition, "ts": value, "v": value}]


def aged(table_type: TableType = TableType.COPY_ON_WRITE) -> tuple[TableReader, StillClock]:
    """Partition a of five days ago, b of three, c of now."""
    clock = StillClock()
    table = new_table(MemoryStorage(ports=MemoryWorld(clock)), clock=clock, table_type=table_type)
    for partition, days in (("a", 2), ("b", 3), ("c", 0)):
        upsert(table, row(partition, 1))
        clock.sleep_ms(days * DAY_MS)
    return table, clock


def partitions(table: TableReader) -> list[str]:
    return [found[0] for found in rows_of(table, "p")]


def test_days_are_over_to_the_millisecond_and_the_oldest_partitions_are_first() -> None:
    now = WallMs(wall_ms("20260110120000000"))
    since = {
        "late": "20260108115959999",
        "stays": "20260108120000000",
        "older": "20260101000000000",
        "seconds": "20260108115959",
        "young": "20260110115959",
    }
    assert expired_paths(since, now=now, days_retained=2, partitions_max=9) == (
        "older",
        "late",
        "seconds",
    )
    assert expired_paths(since, now=now, days_retained=2, partitions_max=1) == ("older",)
    assert expired_paths(since, now=now, days_retained=0, partitions_max=9) == ()


@pytest.mark.parametrize("table_type", list(TableType))
def test_partitions_not_written_for_days_are_deleted(table_type: TableType) -> None:
    table, _ = aged(table_type)
    done = expire(table.context, TWO_DAYS)
    assert done is not None
    assert done.partitions == ("a", "b")
    assert partitions(table) == ["c"]
    instant = table.context.active().find(done.requested_time)
    assert instant is not None
    metadata = table.context.commits.read(instant)
    assert metadata.operation_type == "DELETE_PARTITION"
    assert sorted(metadata.partition_to_replace_file_ids or ()) == ["a", "b"]
    assert expire(table.context, TWO_DAYS) is None


def test_an_update_keeps_a_partition_unless_its_creation_counts() -> None:
    for table_type in TableType:
        table, _ = aged(table_type)
        upsert(table, row("a", 2))
        assert expired_partitions(table.context, TWO_DAYS) == ("b",)
        by_creation = TtlSettings.from_properties(
            {
                "hoodie.partition.ttl.strategy.days.retain": "2",
                "hoodie.partition.ttl.management.strategy.type": "KEEP_BY_CREATION_TIME",
            }
        )
        assert expired_partitions(table.context, by_creation) == ("a", "b")


def test_javas_class_names_choose_the_strategy_and_others_are_refused() -> None:
    key = "hoodie.partition.ttl.strategy.class"
    package = "org.apache.hudi.table.action.ttl.strategy."
    named = TtlSettings.from_properties({key: f"{package}KeepByCreationTimeStrategy"})
    assert named.from_creation
    assert not TtlSettings.from_properties({key: f"{package}KeepByTimeStrategy"}).from_creation
    with pytest.raises(SettingError):
        TtlSettings.from_properties({key: "com.example.MyStrategy"})
    with pytest.raises(SettingError):
        TtlSettings.from_properties({"hoodie.partition.ttl.strategy.days.retain": "-2"})


def test_only_selected_partitions_expire_and_no_more_than_the_bound() -> None:
    table, _ = aged()
    selected = TtlSettings(days_retained=2, partitions_selected=("b", "c", "not-there"))
    assert expired_partitions(table.context, selected) == ("b",)
    assert expired_partitions(table.context, TtlSettings(days_retained=2, partitions_max=1)) == (
        "a",
    )
    with pytest.raises(MalformedNameError):
        expired_partitions(table.context, TtlSettings(days_retained=2, partitions_selected=("..",)))


def test_nothing_expires_without_days_or_partitions_and_not_behind_a_metadata_table() -> None:
    table, clock = aged()
    assert expire(table.context, TtlSettings()) is None
    flat = new_table(clock=clock, partitions=())
    upsert(flat, row("a", 1))
    clock.sleep_ms(9 * DAY_MS)
    assert expire(flat.context, TWO_DAYS) is None
    update_properties(
        table.context.ports.storage, {"hoodie.table.metadata.partitions": "expr_index_x"}, now="now"
    )
    with pytest.raises(TableConfigConflictError):
        expire(table.context, TWO_DAYS)


def test_a_partition_written_between_the_check_and_the_begin_stays() -> None:
    table, clock = aged()
    other = opened(table, clock=clock)
    storage = table.context.ports.storage
    looks: list[str] = []

    class WritesAfterLook:
        def __getattr__(self, name: str) -> object:
            return getattr(storage, name)

        def create(self, path: str, data: bytes, **how: bool) -> None:
            if path.endswith(".replacecommit.requested") and not looks:
                looks.append(path)
                upsert(other, row("a", 5))
                upsert(other, row("b", 5))
            storage.create(path, data, **how)

    late = opened(table, storage=WritesAfterLook(), clock=clock)
    assert expire(late.context, TWO_DAYS) is None
    assert looks
    assert partitions(table) == ["a", "b", "c"]
    assert table.context.active().pending == ()


def test_a_process_pauses_between_two_checks() -> None:
    table, clock = aged()
    service = TtlService(settings=TWO_DAYS)
    assert service.run_once(table.context) is not None
    upsert(table, row("a", 9))
    clock.sleep_ms(3 * DAY_MS)
    assert service.run_once(table.context) is not None
    clock.sleep_ms(REST_MS - 1)
    assert service.run_once(table.context) is None
