"""Partial updates of ours, in log blocks of single columns: Java Hudi merges and compacts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.interop.java import JavaOracle
from tests.interop.mor import (
    BUCKET,
    COMMIT_TIME,
    COMMON,
    EVENT_TIME,
    FORMAT,
    JAVA,
    SIMPLE,
    by_hudi_rs,
)
from tests.interop.values import comparable, encoded

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(900)]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("p", pa.string()),
        pa.field("ts", pa.int64()),
        pa.field("a", pa.string()),
        pa.field("b", pa.decimal128(10, 2)),
        pa.field("c", pa.list_(pa.int64())),
    ]
)
TABLES = [
    pytest.param("9", EVENT_TIME, SIMPLE, "parquet", id="v9-event-simple-parquet"),
    pytest.param("8", COMMIT_TIME, BUCKET, "avro", id="v8-commit-bucket-avro"),
]


def rows(*given: dict[str, Any]) -> pa.Table:
    """Rows of the columns that are given, in the table's types."""
    names = [name for name in SCHEMA.names if name in given[0]]
    return pa.Table.from_pylist(list(given), pa.schema([SCHEMA.field(name) for name in names]))


@pytest.mark.parametrize(("version", "order", "index", "log_format"), TABLES)
def test_java_reads_and_compacts_single_columns_of_ours(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    version: str,
    order: dict[str, str],
    index: dict[str, str],
    log_format: str,
) -> None:
    path, java = tmp_path / "t", java_oracle("1.2.0")
    options = {
        **COMMON,
        **order,
        **index,
        FORMAT: log_format,
        "hoodie.write.table.version": version,
    }
    by_event = order is EVENT_TIME

    def check(now: dict[str, tuple[Any, ...]]) -> None:
        with hoodoo.open_table(path, properties=options) as table:
            ours = table.current_state().to_arrow(with_hoodie_columns=True)
        assert {one["id"]: (one["a"], str(one["b"]), one["c"]) for one in ours.to_pylist()} == now
        assert comparable(java.read(path)) == comparable(encoded(ours))
        assert comparable(by_hudi_rs(path)) == comparable(encoded(ours))
        assert verify_at(path, Layers()).problems == ()

    place = {"p": "x"}
    with hoodoo.create_table(path, schema=SCHEMA, properties=options) as table:
        whole = [
            {"id": key, **place, "ts": 10, "a": "A", "b": "1.50", "c": [1, 2]} for key in "abcd"
        ]
        table.upsert(rows(*({**each, "b": pa_decimal(each["b"])} for each in whole)))
        table.upsert(
            rows(
                {"id": "a", **place, "ts": 20, "b": pa_decimal("2.50")},
                {"id": "b", **place, "ts": 5, "b": pa_decimal("9.99")},
            ),
            partial=True,
        )
        table.upsert(rows({"id": "a", **place, "ts": 21, "a": "AA"}), partial=True)
        table.upsert(rows({"id": "c", **place, "ts": 22, "a": None, "c": [3]}), partial=True)
        table.delete(rows({"id": "d", **place}))
    now = {
        "a": ("AA", "2.50", [1, 2]),
        "b": ("A", "1.50" if by_event else "9.99", [1, 2]),
        "c": (None, "1.50", [3]),
    }
    check(now)
    java.service(path, "compact", conf={**options, **JAVA})
    check(now)
    with hoodoo.open_table(path, properties=options) as table:
        table.upsert(rows({"id": "b", **place, "ts": 40, "c": []}), partial=True)
    check(now | {"b": (now["b"][0], now["b"][1], [])})


def pa_decimal(text: str) -> Any:
    """A value of the decimal column."""
    return pa.scalar(text).cast(pa.decimal128(10, 2)).as_py()
