"""Conflict strategies and dry runs through the front door."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from lockproviders.registry import ProviderRegistry
from timeline.errors import SettingError
from timeline.hookspecs import hookimpl
from timeline.rules.strategies import ConflictStrategy, find_strategy

KEY = "hoodie.write.lock.conflict.resolution.strategy"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


class NightLoads:
    """A plug-in as its author writes it."""

    @hookimpl
    def conflict_strategies(self) -> list[ConflictStrategy]:
        return [ConflictStrategy(name="night_loads", class_names=("com.acme.NightLoads",))]


def test_a_plug_in_offers_a_strategy_by_its_names() -> None:
    registry = ProviderRegistry()
    registry.register(NightLoads(), "acme")
    offered = registry.offers("conflict_strategies")
    assert find_strategy("com.acme.NightLoads", offered) == offered[0]
    assert find_strategy("night-loads", offered) == offered[0]


@pytest.mark.parametrize(
    ("said", "name", "cancels"),
    [
        ({}, "simple", False),
        ({KEY: "prefer_writer"}, "prefer_writer", True),
        ({"hoodie.clustering.rollback.pending.replacecommit.on.conflict": "true"}, "simple", True),
    ],
)
def test_properties_choose_the_strategy(
    tmp_path: Path, said: dict[str, str], name: str, cancels: bool
) -> None:
    with hoodoo.create_table(tmp_path, schema=SCHEMA, record_key=["id"], properties=said) as table:
        limits = table.core.context.limits
        assert (limits.strategy.name, limits.cancels_met_plans) == (name, cancels)


def test_a_strategy_nobody_has_is_refused_when_the_table_is_opened(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no such conflict strategy"):
        hoodoo.create_table(tmp_path, schema=SCHEMA, properties={KEY: "night_loads"})


def test_a_dry_run_tells_nothing_where_nobody_else_is(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path, schema=SCHEMA, record_key=["id"]) as table:
        table.upsert([{"id": 1, "v": 1}])
        assert table.would_conflict([{"id": 1, "v": 2}, {"id": 2, "v": 2}]) == ()
        assert table.to_arrow(columns=["id", "v"]).to_pylist() == [{"id": 1, "v": 1}]
