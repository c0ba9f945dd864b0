"""Every change of a range on Spark, with and without change logs."""

from __future__ import annotations

import json
from typing import Any

import pytest

import hoodoo
from hoodoo.spark import read as loading
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings

pytestmark = pytest.mark.spark

OPTIONS = {
    "hoodie.datasource.query.type": "incremental",
    "hoodie.datasource.query.incremental.format": "cdc",
    "hoodie.datasource.read.begin.instanttime": "earliest",
}


@pytest.mark.parametrize("logs", ["true", "false"])
def test_changes_have_hudi_s_columns(save: Any, spark: Any, path: str, logs: str) -> None:
    save([(1, "mon", 10, 1.0), (2, "tue", 10, None)], hoodie__table__cdc__enabled=logs)
    second = save([(2, "tue", 11, 2.5)])
    changes = spark.read.format("hudi").options(**OPTIONS).load(path)
    assert [(each.name, each.dataType.simpleString()) for each in changes.schema] == [
        (name, "string") for name in ("op", "ts_ms", "before", "after")
    ]
    (update,) = changes.where("op = 'u'").collect()
    assert update["ts_ms"] == second.requested_time
    old, new = json.loads(update["before"]), json.loads(update["after"])
    assert old == {"id": 2, "day": "tue", "at": 10, "amount": None}
    assert new == {"id": 2, "day": "tue", "at": 11, "amount": 2.5}
    assert changes.where("op = 'i' and before is null").count() == 2


@pytest.mark.parametrize("driver_bytes", ["0", "1000000"])
def test_the_driver_reads_few_changes_from_change_logs(
    save: Any, spark: Any, path: str, jobs: Any, driver_bytes: str
) -> None:
    first = save([(1, "mon", 10, 1.0), (2, "tue", 10, 2.0)], hoodie__table__cdc__enabled="true")
    save([(2, "tue", 11, 2.5)])
    options = {
        **OPTIONS,
        "hoodie.datasource.read.begin.instanttime": first.completion_time,
        "hoodoo.spark.driver.read.max.bytes": driver_bytes,
    }
    before = set(jobs().getJobIdsForGroup())
    (update,) = spark.read.format("hudi").options(**options).load(path).collect()
    assert json.loads(update["before"]) == {"id": 2, "day": "tue", "at": 10, "amount": 2.0}
    assert json.loads(update["after"]) == {"id": 2, "day": "tue", "at": 11, "amount": 2.5}
    assert (set(jobs().getJobIdsForGroup()) == before) is (driver_bytes != "0")


def test_a_range_without_changes_is_empty(save: Any, spark: Any, path: str) -> None:
    result = save([(1, "mon", 10, 1.0)])
    later = {**OPTIONS, "hoodie.datasource.read.begin.instanttime": result.completion_time}
    assert spark.read.format("hudi").options(**later).load(path).count() == 0


@pytest.mark.spec("RDL-1")
def test_changes_are_read_although_their_files_were_cleaned_meanwhile(
    save: Any, spark: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(loading, "pin_while_read", lambda *found: kept.append(found[2]))
    for at in range(3):
        save([(1, "mon", at, 1.0)], hoodie__clean__automatic="false")
    changes = spark.read.format("hudi").options(**OPTIONS).load(path)
    [lease] = kept
    assert lease.acquire()
    with hoodoo.open_table(path) as table:
        for at in range(3, 6):
            save([(1, "mon", at, 1.0)], hoodie__clean__automatic="false")
        clean(table.context, CleaningSettings(commits_retained=1))
    assert changes.count() == 3
    lease.end()
    with hoodoo.open_table(path) as table:
        save([(1, "mon", 9, 1.0)], hoodie__clean__automatic="false")
        clean(table.context, CleaningSettings(commits_retained=1))
    with pytest.raises(Exception, match="a base file is missing"):
        changes.collect()
