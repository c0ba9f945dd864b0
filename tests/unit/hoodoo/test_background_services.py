"""Background services of a writer's process: started by Hudi's keys or by hand, and ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.settings.settings import WriteSettings
from hoodoo.services import services_of_writer
from timeline.errors import InvalidInputError, SettingError
from timeline.writer_registry import registered_writers

PROPERTIES = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.compact.inline.max.delta.commits": "2",
    "hoodie.clean.automatic": "false",
    "hoodoo.services.interval.ms": "100",
}
ASYNC = "hoodie.datasource.compaction.async.enable"
LONG_S = 60


class Heard:
    """An event sink that a test can wait at; knows the threads on which services ran."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.names: list[str] = []
        self.serving: set[threading.Thread] = set()

    def emit(self, name: str, /, **_: Any) -> None:
        with self.changed:
            self.names.append(name)
            if name == "worker.began":
                self.serving.add(threading.current_thread())
            self.changed.notify_all()

    def wait_for(self, name: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: name in self.names, LONG_S), self.names


Make = Callable[..., tuple[Any, Heard]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """
    Makes a table and closes it at the end, also after a failure, so that no other test is
    disturbed.
    """
    tables: list[Any] = []

    def made(**more: str) -> tuple[Any, Heard]:
        heard = Heard()
        table = hoodoo.create_table(tmp_path / "t", properties={**PROPERTIES, **more}, events=heard)
        tables.append(table)
        return table, heard

    yield made
    for table in tables:
        table.close()


def rows(number: int) -> pa.Table:
    return pa.table({"id": ["a"], "ts": [number], "v": [number]})


def actions(table: Any) -> list[str]:
    return [one.action for one in table.timeline]


def test_services_are_started_and_stopped_by_hand(make: Make) -> None:
    table, heard = make()
    table.upsert(rows(1))
    running = table.services.start("compact")
    table.upsert(rows(2))
    heard.wait_for("service.done")
    running.stop()
    assert actions(table) == ["deltacommit", "deltacommit", "commit"]
    assert table.to_arrow(columns=["v"]).to_pylist() == [{"v": 2}]
    table.close()


def test_an_opened_writer_starts_the_services_of_hudis_keys(make: Make, tmp_path: Path) -> None:
    table, heard = make(**{ASYNC: "true"})
    # the process that starts services has an entry
    registry = tmp_path / "t" / ".hoodie" / ".hoodoo" / "writers"
    assert not registry.exists(), "a reader needs none"
    table.upsert(rows(1))
    table.upsert(rows(2))
    heard.wait_for("service.done")
    table.close()
    [thread] = heard.serving
    assert not thread.is_alive()
    assert actions(table) == ["deltacommit", "deltacommit", "commit"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {ASYNC: "true", "hoodoo.services.beside.writers": "false"},
        {ASYNC: "true", "hoodie.compact.inline": "true"},
    ],
)
def test_without_these_keys_no_service_is_started(make: Make, more: dict[str, str]) -> None:
    table, heard = make(**more)
    table.upsert(rows(1))
    table.close()
    assert "worker.began" not in heard.names


def test_cleaning_and_archiving_run_on_a_thread_instead_of_in_the_writer(make: Make) -> None:
    keys = {
        "hoodie.clean.automatic": "true",
        "hoodie.clean.async.enabled": "true",
        "hoodie.archive.async": "true",
        "hoodie.clean.commits.retained": "1",
    }
    table, heard = make(**keys)
    for number in range(4):
        table.insert_overwrite_table(rows(number))
    heard.wait_for("cleaning.done")
    table.close()
    assert "clean" in actions(table)


def test_a_failed_background_service_warns_the_writer(make: Make) -> None:
    table, heard = make(**{ASYNC: "true", "hoodie.compaction.strategy": "com.acme.Missing"})
    table.upsert(rows(1))

    def go_on() -> None:
        table.upsert(rows(2))  # an earlier failure has set this already
        heard.wait_for("service.failed")
        table.close()

    with pytest.warns(UserWarning, match=r"during the writes, compact of .* failed: .*acme"):
        go_on()
    assert actions(table) == ["deltacommit", "deltacommit"]


def test_an_unknown_service_is_refused(make: Make) -> None:
    with pytest.raises(InvalidInputError, match="vacuum"):
        make()[0].services.start("vacuum")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({}, ["metadata", "archive"]),
        ({"hoodie.clean.automatic": "true"}, ["clean", "metadata", "archive"]),
        ({"hoodie.compact.inline": "true"}, ["metadata", "archive", "compact"]),
        ({"hoodie.log.compaction.inline": "true"}, ["metadata", "archive", "logcompact"]),
        ({"hoodie.clustering.schedule.inline": "true"}, ["metadata", "archive", "cluster"]),
        ({"hoodie.datasource.hive_sync.enable": "true"}, ["metadata", "archive", "sync"]),
        ({"hoodie.datasource.meta.sync.enable": "true"}, ["metadata", "archive", "sync"]),
        (
            {"hoodie.partition.ttl.inline": "true", "hoodie.archive.automatic": "false"},
            ["metadata", "ttl"],
        ),
    ],
)
def test_a_writer_makes_only_the_services_that_are_on(more: dict[str, str], named: list[str]):
    properties = {**PROPERTIES, **more}
    settings = WriteSettings.from_properties(properties)
    for after_commits in (True, False):
        made = services_of_writer(properties, settings, after_commits=after_commits)
        assert [one.name for one in made] == named


@pytest.mark.parametrize(
    "more",
    [
        {"hoodie.clean.commits.retained": "0"},
        {"hoodie.keep.min.commits": "40"},
        {"hoodie.compact.inline.max.delta.commits": "none"},
        {"hoodie.log.compaction.blocks.threshold": "1"},
        {"hoodie.clustering.plan.strategy.class": "com.acme.Mine"},
        {"hoodie.clustering.execution.strategy.class": "com.acme.Mine"},
        {"hoodie.partition.ttl.strategy.days.retain": "soon"},
    ],
)
def test_a_wrong_option_of_a_service_that_is_off_is_refused_at_open(
    make: Make, tmp_path: Path, more: dict[str, str]
) -> None:
    off = {**PROPERTIES, "hoodie.archive.automatic": "false"}
    make(**off)
    with pytest.raises(SettingError) as refused:
        hoodoo.open_table(tmp_path / "t", properties={**off, **more})
    assert refused.value.fields["key"] in {*more, "hoodie.keep.max.commits"}


def test_a_write_after_the_close_registers_again(make: Make, tmp_path: Path) -> None:
    table, _ = make(**{"hoodie.archive.automatic": "false"})
    table.upsert(rows(1))
    registered = registered_writers(table.context)
    table.close()
    assert registered_writers(table.context) == []
    table.upsert(rows(2))
    assert len(registered_writers(table.context)) == len(registered) == 1
