"""Where services work: chosen by properties, and only when a service runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.service_executor import service_context
from tableservices.plan_execution import on_file_groups
from timeline.context import TableContext
from timeline.errors import SettingError
from timeline.ports.ports import ClusterExecutor
from timeline.properties.options import TABLE_LAYER, PropertySet
from timeline.system import ThreadExecutor

SPARK = {"hoodoo.services.executor": "spark"}


class OverThere(ThreadExecutor):
    """A cluster."""

    local_bytes_max = 10

    def map_on_cluster(self, *_: object) -> list[Any]:
        return []


@pytest.fixture
def context(tmp_path: Path) -> TableContext:
    with hoodoo.create_table(tmp_path / "t", record_key="id") as table:
        return table.context


def test_this_process_executes_services_by_default(context: TableContext) -> None:
    assert service_context(context, {}) is context


def test_file_groups_at_a_time_are_limited(context: TableContext) -> None:
    working = service_context(context, {"hoodoo.services.file.groups.max": "3"})
    assert isinstance(working.ports.executor, ThreadExecutor)
    assert working.ports.executor.workers_max == 3
    assert working.ports.storage is context.ports.storage


def test_a_service_of_a_cluster_executor_stays_on_it(context: TableContext) -> None:
    ports = replace(context.ports, executor=OverThere())
    assert isinstance(ports.executor, ClusterExecutor)
    there = TableContext.of(ports, context.config, context.limits)
    assert service_context(there, SPARK) is there


def test_a_table_does_not_choose_its_executor(context: TableContext) -> None:
    told_by_table = PropertySet().with_layer(TABLE_LAYER, SPARK)
    assert service_context(context, told_by_table) is context


@pytest.mark.parametrize(
    "wrong", [{"hoodoo.services.executor": "flink"}, {"hoodoo.services.file.groups.max": "0"}]
)
def test_other_executors_and_limits_are_refused(
    context: TableContext, wrong: dict[str, str]
) -> None:
    with pytest.raises(SettingError):
        service_context(context, wrong)


@pytest.mark.parametrize(("size_bytes", "works_here"), [(10, True), (11, False), (None, False)])
def test_a_cluster_leaves_little_work_to_its_caller(
    context: TableContext, size_bytes: int | None, works_here: bool
) -> None:
    ports = replace(context.ports, executor=OverThere())
    found = on_file_groups(ports, lambda _, task: task + 1, [1, 2], size_bytes=size_bytes)
    assert found == ([2, 3] if works_here else [])
