"""Conflict strategies and dry runs through the front door."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from filegroups.writing.workload import LocalWorkload
from hoodoo.plugins import hookimpl
from lockproviders.registry import ProviderRegistry
from tests.unit.timeline.engine import Meddled
from timeline.commit.conflict_report import ConflictReport
from timeline.errors import InvalidInputError, SettingError
from timeline.model.commit_metadata import WriteOperation
from timeline.rules.conflicts import ConflictStrategy, find_strategy

KEY = "hoodie.write.lock.conflict.resolution.strategy"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
MANY = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "filesystem",
}


class NightLoads:
    """A plug-in as its author writes it."""

    @hookimpl
    def conflict_strategies(self) -> list[ConflictStrategy]:
        return [ConflictStrategy(name="night_loads", class_names=("com.acme.NightLoads",))]


def test_a_plug_in_provides_a_strategy_by_its_names() -> None:
    registry = ProviderRegistry()
    registry.register(NightLoads(), "acme")
    offered = registry.offers("conflict_strategies")
    assert find_strategy("com.acme.NightLoads", offered) == offered[0]
    assert find_strategy("night-loads", offered) == offered[0]


@pytest.mark.parametrize(
    ("options", "name", "cancels"),
    [
        ({}, "simple", False),
        ({KEY: "prefer_writer"}, "prefer_writer", True),
        ({"hoodie.clustering.rollback.pending.replacecommit.on.conflict": "true"}, "simple", True),
    ],
)
def test_properties_choose_the_strategy(
    tmp_path: Path, options: dict[str, str], name: str, cancels: bool
) -> None:
    with hoodoo.create_table(
        tmp_path, schema=SCHEMA, record_key=["id"], properties=options
    ) as table:
        limits = table.context.limits
        assert (limits.strategy.name, limits.cancels_conflicting_plans) == (name, cancels)


def test_an_unknown_strategy_is_refused_when_the_table_is_opened(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="conflict strategy is unknown"):
        hoodoo.create_table(tmp_path, schema=SCHEMA, properties={KEY: "night_loads"})


def test_a_dry_run_reports_nothing_without_other_writers(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path, schema=SCHEMA, record_key=["id"]) as table:
        table.upsert([{"id": 1, "v": 1}])
        assert table.check_conflicts([{"id": 1, "v": 2}, {"id": 2, "v": 2}]) == ()
        assert table.to_arrow(columns=["id", "v"]).to_pylist() == [{"id": 1, "v": 1}]


@pytest.mark.parametrize("rows", [[], [{"id": 1, "v": 2}]])
def test_a_dry_run_of_a_partition_delete_checks_the_partitions_that_the_write_would_delete(
    tmp_path: Path, rows: list[dict[str, int]]
) -> None:
    """The rows say nothing then, to the write either."""
    deletes = {
        "hoodie.datasource.write.operation": "delete_partition",
        "hoodie.datasource.write.partitions.to.delete": "2",
    }
    schema, keys = pa.schema([*SCHEMA, pa.field("p", pa.string())]), ["id"]
    with hoodoo.create_table(
        tmp_path, schema=schema, record_key=keys, partition_by=["p"], properties=MANY
    ) as table:
        table.upsert([{"id": 1, "v": 1, "p": "1"}, {"id": 2, "v": 1, "p": "2"}])
        reports: list[tuple[ConflictReport, ...]] = []
        with hoodoo.open_table(tmp_path, properties={**MANY, **deletes}) as other:
            for there in "12":
                changed = pa.Table.from_pylist([{"id": int(there), "v": 2, "p": there}])
                inner = LocalWorkload(table.context.ports, changed)
                look = Meddled(inner, lambda: reports.append(other.check_conflicts(rows)))
                table._run(WriteOperation.UPSERT, look)
        assert [[one.partitions for one in found] for found in reports] == [[], [("2",)]]


def test_a_dry_run_without_a_partition_to_delete_is_refused_like_the_write(
    tmp_path: Path,
) -> None:
    with hoodoo.create_table(tmp_path, schema=SCHEMA, record_key=["id"]) as table:
        for ask in (table.write, table.check_conflicts):
            with pytest.raises(InvalidInputError) as caught:
                ask([], "delete_partition")
            assert caught.value.kind == "no_partition"
