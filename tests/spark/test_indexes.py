"""Writes by bucket and global indexes on a cluster give the same table as the local executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.keys.bucketing import SimpleBucketAssigner, bucket_of
from timeline.errors import InvalidInputError

pytestmark = pytest.mark.spark

INDEX = "hoodie__index__type"
BUCKET = {INDEX: "BUCKET", "hoodie__bucket__index__num__buckets": "3"}
OPERATION = "hoodie__datasource__write__operation"


def batch(ids: range, day: str, at: int, amount: float) -> list[tuple[int, str, int, float]]:
    return [(number, day, at, amount) for number in ids]


def test_bucket_rows_go_to_their_file_groups(save: Any, rows: Any, path: str) -> None:
    save(batch(range(20), "mon", 1, 1.0), **BUCKET)
    save(batch(range(15, 30), "mon", 2, 2.0) + batch(range(3), "tue", 2, 2.0), **BUCKET)
    with hoodoo.open_table(path) as table:  # the table keeps how its buckets are made
        before = {s.file_group for s in table.file_slices()}
        assert sorted(bucket_of(group.file_id) for group in before) == [0, 0, 1, 1, 2, 2] or (
            len({(g.partition_path, bucket_of(g.file_id)) for g in before}) == len(before)
        )
        table.upsert(
            pa.table({"id": [1, 25], "day": ["mon"] * 2, "at": [3] * 2, "amount": [3.0] * 2})
        )
        assert {s.file_group for s in table.file_slices()} == before
    save(
        batch(range(10), "mon", 9, 0.0) + batch(range(90, 99), "mon", 9, 0.0),
        **BUCKET,
        **{OPERATION: "delete"},
    )
    found = {(row[1], row[0]): row[3] for row in rows()}
    expected = {("mon", n): 1.0 if n < 15 else 2.0 for n in range(10, 30)}
    expected |= {("mon", 25): 3.0, ("tue", 0): 2.0, ("tue", 1): 2.0, ("tue", 2): 2.0}
    assert found == expected
    assert len(rows()) == len(found)


def test_rows_of_buckets_that_the_job_does_not_own_are_refused(
    save: Any, rows: Any, path: str
) -> None:
    mine = {**BUCKET, "hoodoo__write__bucket__range": "0-1"}
    shares = SimpleBucketAssigner(hash_fields=("id",), buckets=3)
    homes = shares.numbers(pa.array([str(n) for n in range(20)]), pa.array(["mon"] * 20)).tolist()
    own = [row for row in batch(range(20), "mon", 1, 1.0) if homes[row[0]] < 2]
    assert 0 < len(own) < 20
    save(own, **mine)
    before = sorted(Path(path).rglob("*.parquet"))
    with pytest.raises(InvalidInputError) as caught:
        save(batch(range(20), "mon", 2, 2.0), **mine)
    assert caught.value.kind == "foreign_buckets"
    assert caught.value.fields["buckets"] == {"2": 20 - len(own)}
    assert sorted(Path(path).rglob("*.parquet")) == before
    assert [row[3] for row in rows()] == [1.0] * len(own)


def test_inserts_may_drop_known_keys_of_a_bucket(save: Any, rows: Any) -> None:
    save(batch(range(5), "mon", 1, 1.0), **BUCKET)
    dropping = {OPERATION: "insert", "hoodie__datasource__insert__dup__policy": "drop"}
    save(batch(range(8), "mon", 2, 2.0), **BUCKET, **dropping)
    assert [row[3] for row in rows()] == [1.0] * 5 + [2.0] * 3


@pytest.mark.parametrize(
    "kind", ["GLOBAL_SIMPLE", pytest.param("GLOBAL_BLOOM", marks=pytest.mark.slow)]
)
def test_rows_of_a_global_index_move(save: Any, rows: Any, kind: str) -> None:
    options = {INDEX: kind}
    save([(1, "mon", 10, 1.0), (2, "mon", 10, 1.0), (3, "tue", 10, 1.0)], **options)
    save(
        [(1, "tue", 20, 2.0), (2, "tue", 5, 9.0), (3, "tue", 20, 2.0), (4, "wed", 1, 4.0)],
        **options,
    )
    assert rows() == [
        (1, "tue", 20, 2.0),
        (2, "mon", 10, 1.0),  # arrived late, so it stays
        (3, "tue", 20, 2.0),
        (4, "wed", 1, 4.0),
    ]
    save([(1, "mon", 30, 3.0), (1, "wed", 31, 5.0), (1, "tue", 29, 6.0)], **options)
    assert rows()[0] == (1, "wed", 31, 5.0)
    save([(1, "mon", 0, 0.0), (4, "tue", 0, 0.0)], **options, **{OPERATION: "delete"})
    assert [row[0] for row in rows()] == [2, 3]


def test_rows_of_a_global_index_move_out_of_logs(save: Any, rows: Any) -> None:
    options = {INDEX: "GLOBAL_SIMPLE", "hoodie__datasource__write__table__type": "MERGE_ON_READ"}
    save([(1, "mon", 10, 1.0), (2, "mon", 10, 1.0)], **options)
    save([(1, "mon", 20, 2.0), (2, "tue", 20, 2.0)], **options)  # a log, and one row leaves by it
    save(
        [(1, "tue", 15, 9.0), (2, "wed", 30, 3.0)], **options
    )  # late by the log's ordering value; on
    assert rows() == [(1, "mon", 20, 2.0), (2, "wed", 30, 3.0)]


def test_rows_of_a_global_index_may_stay_where_their_key_is(
    save: Any, rows: Any, path: str
) -> None:
    options = {INDEX: "GLOBAL_SIMPLE", "hoodie__simple__index__update__partition__path": "false"}
    save([(1, "mon", 10, 1.0)], **options)
    save([(1, "tue", 20, 2.0), (2, "tue", 20, 2.0)], **options)
    with hoodoo.open_table(path) as table:
        found = table.current_state().to_arrow(with_hoodie_columns=True).to_pylist()
    assert sorted((r["id"], r["_hoodie_partition_path"], r["amount"]) for r in found) == [
        (1, "mon", 2.0),
        (2, "tue", 2.0),
    ]
    assert Path(path, "mon").exists()
