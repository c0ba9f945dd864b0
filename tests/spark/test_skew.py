"""Skewed file groups: several tasks append to one, and one that must be rewritten is reported."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hoodoo
from filegroups.index import LookupRules
from filegroups.keys.keys import KeySpec
from filegroups.merge.rules import MergeRules
from filegroups.schema.schema import IS_DELETED_COLUMN
from filegroups.writing.workload import combined
from filegroups.writing.write_request import RowRules
from hoodoo.spark import skew, tasks, workload
from hoodoo.spark.skew import skewed_groups
from hoodoo.spark.tasks import ERROR, KEY, KEY_HASH, PARTITION, ROWS, PrepareRows
from timeline.model.commit_metadata import FileGroupId, MergeMode, WriteOperation
from timeline.model.merge_definition import MergeDefinition

pytestmark = pytest.mark.spark

MERGE_ON_READ = {"hoodie__datasource__write__table__type": "MERGE_ON_READ"}
BUCKETS = {"hoodie__index__type": "BUCKET", "hoodie__bucket__index__num__buckets": "1"}
ONE, TWO = FileGroupId("p", "one"), FileGroupId("p", "two")
DAYS = 40


@pytest.fixture
def small_skew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skew, "_ROWS_MIN", 20)
    monkeypatch.setattr(skew, "_PART_ROWS_MIN", 10)
    monkeypatch.setattr(skew, "_FACTOR", 1.2)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records]
    return [text for text in texts if "spark.skew_" in text]


def logs_of(path: str, day: str) -> list[str]:
    return sorted(file.name for file in Path(path, day).glob(".*.log.*") if file.suffix != ".crc")


@pytest.mark.usefixtures("small_skew")
@pytest.mark.parametrize("skewed", [True, False])
def test_a_skewed_base_file_is_reported(
    save: Any, rows: Any, caplog: pytest.LogCaptureFixture, skewed: bool
) -> None:
    many = [(number, "mon", 1, 1.0) for number in range(DAYS)]
    many += [] if skewed else [(number, "tue", 1, 1.0) for number in range(DAYS)]
    save([*many, (100, "tue", 1, 1.0)])
    with caplog.at_level(logging.INFO, logger="hoodoo"):
        save([(key, day, 2, 2.0) for key, day, *_ in many])
    found = events(caplog)
    assert len(found) == skewed
    assert all("spark.skew_warning" in text and 'partition_path="mon"' in text for text in found)
    assert all(f"rows={DAYS}" in text for text in found)
    assert {row[3] for row in rows() if row[0] != 100} == {2.0}


@pytest.mark.usefixtures("small_skew")
@pytest.mark.parametrize("index", [{}, BUCKETS])
def test_several_tasks_append_to_a_skewed_file_group(
    spark: Any,
    save: Any,
    rows: Any,
    path: str,
    caplog: pytest.LogCaptureFixture,
    index: dict[str, str],
) -> None:
    options = {**MERGE_ON_READ, **index}
    save([*((n, "mon", 1, 1.0) for n in range(DAYS)), (100, "tue", 1, 1.0)], **options)
    # Each key twice: the later row wins, so both must reach one task. One row is late.
    changes = [(n, "mon", at, float(at)) for n in range(DAYS) for at in (3, 2)]
    late, new = (0, "tue", 2, 2.0), (200, "mon", 4, 4.0)
    caplog.clear()  # of the base file of a bucket
    with caplog.at_level(logging.INFO, logger="hoodoo"):
        save([*changes, late] + ([new] if index else []), **options)
    (event,) = events(caplog)
    assert "spark.skew_spread" in event
    assert 'partition_path="mon"' in event
    assert "tasks=2" in event
    assert len(logs_of(path, "mon")) == 2
    expected = [(n, "mon", 3, 3.0) for n in range(DAYS)] + [late, (100, "tue", 1, 1.0)]
    expected += [new] if index else []
    assert rows() == sorted(expected)
    with hoodoo.open_table(path) as table:
        assert table.verify().problems == ()
        numbers = table.to_arrow(with_hoodie_columns=True).column("_hoodie_commit_seqno")
        assert len(set(numbers.to_pylist())) == len(expected)
        table.services.compact()
    assert rows() == sorted(expected)


def test_new_rows_of_one_partition_are_spread_over_tasks_by_size(
    spark: Any, save: Any, rows: Any, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {
        "hoodie__parquet__max__file__size": "102400",  # with the estimate of 1,024 bytes: 100 rows
        "hoodie__parquet__small__file__limit": "0",
    }
    save([(1, "mon", 1, 1.0)], **sizes)
    changes = [(1, "mon", 2, 2.0), *((n, "mon", 2, 2.0) for n in range(1000, 1400))]
    with caplog.at_level(logging.INFO, logger="hoodoo"):
        save(changes, **sizes)
    files = [file.name for file in Path(path, "mon").glob("*.parquet")]
    tasks_of = {name.split("_")[1] for name in files}
    assert len({name.split("_")[0] for name in files}) == 5
    assert len(tasks_of) == len(files) == 6  # one more version of the first
    assert rows() == changes
    assert events(caplog) == []


@pytest.mark.parametrize("hits_max", [10, 3])
def test_many_rows_of_one_key_among_more_rows_than_an_executor_keeps(
    save: Any, rows: Any, monkeypatch: pytest.MonkeyPatch, hits_max: int
) -> None:
    monkeypatch.setattr(workload, "_BROADCAST_ROWS_MAX", hits_max)
    save([(n, "mon", 1, 1.0) for n in range(DAYS)])
    hot = [(0, "mon", at, float(at)) for at in range(DAYS, 1, -1)]
    changed = [(n, "mon", 2, 2.0) for n in (1, 2, 3, DAYS)]
    save([*hot[:20], *changed, *hot[20:]])
    kept = [(n, "mon", 1, 1.0) for n in range(4, DAYS)]
    assert rows() == [hot[0], *changed[:3], *kept, changed[3]]


def test_a_group_is_skewed_beyond_a_share_of_a_core() -> None:
    million = 1_000_000
    assert skewed_groups({ONE: million}, of=million, cores=4) == {ONE: 4}
    assert skewed_groups({ONE: million // 2, TWO: 10}, of=million, cores=4) == {ONE: 2}
    assert skewed_groups({ONE: 120_000}, of=120_000, cores=16) == {ONE: 2}
    assert skewed_groups({ONE: 99_999}, of=99_999, cores=16) == {}
    assert skewed_groups({ONE: million, TWO: million}, of=2 * million, cores=2) == {}
    assert skewed_groups({ONE: million}, of=million, cores=1) == {}


@pytest.mark.parametrize(
    "mode", [MergeMode.COMMIT_TIME_ORDERING, MergeMode.EVENT_TIME_ORDERING, None]
)
def test_many_rows_of_few_keys_take_little_memory(
    monkeypatch: pytest.MonkeyPatch, mode: MergeMode | None
) -> None:
    monkeypatch.setattr(tasks, "_COMBINED_BYTES_MIN", 10_000)
    rules = None
    if mode is not None:
        rules = MergeRules(definition=MergeDefinition(mode=mode, ordering_fields=("at",)))
    arrived = tasks._Arrived(rules)
    made = np.random.default_rng(7)
    keys, at = made.integers(0, 50, 20_000), made.integers(0, 1_000, 20_000)
    most, hashes = 0, made.integers(-(2**60), 2**60, 20_000)
    counts = made.integers(1, 4, 20_000)
    for start in range(0, 20_000, 100):
        part = slice(start, start + 100)
        columns = {
            KEY: pa.array(keys[part]).cast(pa.string()),
            "at": at[part],
            "number": np.arange(start, start + 100),
            KEY_HASH: hashes[part],
            ROWS: counts[part],
            ERROR: pa.nulls(100, pa.string()),
        }
        arrived.add(pa.RecordBatch.from_pydict(columns))
        most = max(most, sum(piece.nbytes for piece in arrived._pieces))
    assert arrived.count == counts.sum()
    assert arrived.checksum == np.bitwise_xor.reduce(hashes)
    found = arrived.rows()
    if rules is None:
        assert found.column("number").to_pylist() == list(range(20_000))
        return
    assert most < 30_000
    by_order = mode is MergeMode.EVENT_TIME_ORDERING
    winners: dict[int, int] = {}
    for number in range(20_000):
        key, value = int(keys[number]), int(at[number])
        if not by_order or key not in winners or value >= at[winners[key]]:
            winners[key] = number
    assert sorted(found.column("number").to_pylist()) == sorted(winners.values())


@pytest.mark.parametrize("mode", [MergeMode.COMMIT_TIME_ORDERING, MergeMode.EVENT_TIME_ORDERING])
@pytest.mark.parametrize("whole_table", [False, True])
def test_rows_of_few_keys_are_combined_before_they_travel(
    mode: MergeMode, whole_table: bool
) -> None:
    rules = RowRules(
        keys=KeySpec(record_key_fields=("id",), partition_fields=("day",)),
        operation=WriteOperation.UPSERT,
        merge=MergeDefinition(mode=mode, ordering_fields=("at",)),
        ordering_fields=("at",),
        combine=True,
        tags=True,
        lookup=LookupRules(whole_table=whole_table),
    )
    made = np.random.default_rng(7)
    few = pa.table(
        {
            "id": made.integers(0, 5, 400),
            "day": made.choice(["mon", "tue"], 400),
            "at": made.integers(0, 10, 400),  # with ties
            IS_DELETED_COLUMN: made.integers(0, 4, 400) == 0,
            "number": np.arange(400),
        }
    )
    distinct = few.set_column(0, "id", pa.array(np.arange(100, 500)))
    batches = few.to_batches(max_chunksize=100) + distinct.to_batches(max_chunksize=100)
    newest = rules.combining_parts("")
    plain = pa.Table.from_batches(PrepareRows(rules=rules, schema=few.schema)(batches))
    sent = pa.Table.from_batches(
        PrepareRows(rules=rules, schema=few.schema, newest=newest)(batches)
    )
    keys = 5 if whole_table else 10
    assert 4 * keys - 4 <= sent.num_rows - 400 <= 4 * keys
    assert sent.slice(sent.num_rows - 400) == plain.slice(400)
    one_row = combined(sent.drop_columns([ROWS]), rules, "")
    assert one_row == combined(plain.drop_columns([ROWS]), rules, "")
    by = [KEY] if whole_table else [KEY, PARTITION]
    order = [(name, "ascending") for name in by]
    counts, wanted = (
        rows.group_by(by).aggregate([(ROWS, "sum")]).sort_by(order) for rows in (sent, plain)
    )
    assert counts == wanted
