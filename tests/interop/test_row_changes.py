"""Java Hudi reads the commits of our updates and merges as we do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from tests.interop.java import JavaOracle
from tests.interop.mor import COMMON, EVENT_TIME, SIMPLE
from tests.interop.values import comparable, encoded, same

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

SCHEMA = pa.schema(
    [("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("val", pa.int64())]
)


def rows(*values: tuple[str, int, int | None]) -> pa.Table:
    made = [{"id": key, "p": "x", "ts": ts, "val": val} for key, ts, val in values]
    return pa.Table.from_pylist(made, SCHEMA)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_java_reads_the_updates_inserts_and_deletes_of_one_merge(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, kind: str
) -> None:
    options = {**COMMON, **EVENT_TIME, **SIMPLE, "hoodie.datasource.write.table.type": kind}
    with hoodoo.create_table(tmp_path / "t", schema=SCHEMA, properties=options) as table:
        table.upsert(rows(("a", 5, 1), ("b", 5, 2), ("c", 5, 3), ("d", 5, 4)))
        source = rows(("a", 1, 10), ("b", 1, None), ("n", 1, 9))
        merge = table.merge(source).when_matched_delete("source.val IS NULL")
        merge.when_matched_update({"val": "target.val + source.val"})
        merge.when_not_matched_insert_all().execute()
        table.update("id = 'c'", {"val": "val * 100"})
        mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
    assert {one["id"]: one["val"] for one in mine} == {"a": 11, "c": 300, "d": 4, "n": 9}
    assert same(comparable(java_oracle("1.2.0").read(tmp_path / "t")), mine)
