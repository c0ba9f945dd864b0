"""
Java Hudi's change data query over our tables gives our own answer, whichever engine wrote last.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from tests.interop.java import JavaOracle

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

COPY, MERGE = "COPY_ON_WRITE", "MERGE_ON_READ"
ROWS = [{"id": key, "part": "p", "ts": 10, "v": n, "x": n / 2} for n, key in enumerate("abcd")]
QUIET = {"hoodie.metadata.enable": "false", "hoodie.clean.automatic": "false"}


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        (COPY, "DATA_BEFORE_AFTER"),
        (COPY, "OP_KEY_ONLY"),
        pytest.param(COPY, "DATA_BEFORE", marks=pytest.mark.slow),
        pytest.param(MERGE, "OP_KEY_ONLY", marks=pytest.mark.slow),
    ],
)
def test_java_returns_the_changes_that_hoodoo_returns(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, kind: str, mode: str
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "table"
    with hoodoo.create_table(
        path,
        record_key="id",
        partition_by="part",
        ordering="ts",
        table_type=kind,
        properties={
            **QUIET,
            "hoodie.table.cdc.enabled": "true",
            "hoodie.table.cdc.supplemental.logging.mode": mode,
        },
    ) as table:
        table.insert(ROWS)
        newer, same, late = {**ROWS[0], "ts": 11, "v": 7}, ROWS[1], {**ROWS[2], "ts": 9}
        elsewhere = {"id": "f", "part": "q", "ts": 1, "v": 9, "x": None}
        table.upsert([newer, same, late, {**ROWS[0], "id": "e"}, elsewhere])
        table.delete([{"id": "d", "part": "p"}])
        table.insert_overwrite([{**elsewhere, "id": "h"}])

    java.write(path, [{**newer, "ts": 12, "v": 8}, {**ROWS[0], "id": "j"}], conf=QUIET)
    with hoodoo.open_table(path, properties=QUIET) as table:
        table.upsert([{**ROWS[0], "id": "j", "ts": 99}])
        mine = comparable_images(table.changes("0", images=True).read_all().to_pylist())
        assert [row["op"] for row in mine].count("u") == 4
        assert [row["op"] for row in mine].count("d") == 2
        assert mine[-1]["before"]["ts"] == 10
        assert in_order(mine) == in_order(comparable_images(java.read(path, query_type="cdc")))


def comparable_images(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "before": image(row["before"]), "after": image(row["after"])} for row in rows]


def image(value: Any) -> Any:
    """An image without meta columns and nulls: Java has both in some of its texts only."""
    found = json.loads(value) if isinstance(value, str) else value
    if found is None:
        return None
    return {k: v for k, v in found.items() if v is not None and not k.startswith("_hoodie_")}


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)
