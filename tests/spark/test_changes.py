"""Every change of a range on Spark, with and without change logs."""

from __future__ import annotations

import json
from typing import Any

import pytest

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


def test_a_range_without_changes_is_empty(save: Any, spark: Any, path: str) -> None:
    receipt = save([(1, "mon", 10, 1.0)])
    later = {**OPTIONS, "hoodie.datasource.read.begin.instanttime": receipt.completion_time}
    assert spark.read.format("hudi").options(**later).load(path).count() == 0
