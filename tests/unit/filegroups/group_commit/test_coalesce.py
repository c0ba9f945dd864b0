"""Writes of the same rows in one group: one file for all, and a result for each (GRP-7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filegroups.group_commit import coalesce as joint
from filegroups.group_commit.coalesce import coalesce
from filegroups.group_commit.commit_group import NotCommitted, commit_group
from filegroups.index import LookupRules
from filegroups.keys.bucketing import BucketRules
from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import PreparedWrite, prepare_write, write_prepared
from filegroups.writing.write_request import CommitResult
from tests.unit.timeline.engine import (
    Rows,
    as_table,
    data_files,
    leftovers,
    new_table,
    planned,
    rows_of,
    upsert,
)
from timeline.model.commit_metadata import SINK_CHECKPOINT_KEY, MergeMode, TableType, WriteOperation
from timeline.model.merge_definition import MergeDefinition, PartialUpdateMode

UPSERT = WriteOperation.UPSERT


def row(key: str, v: int, *, p: str = "x", gone: bool = False) -> dict[str, Any]:
    return {"id": key, "p": p, "ts": v, "v": v, "_hoodie_is_deleted": gone}


def offered(table: TableReader, rows: Rows, **options: Any) -> PreparedWrite:
    plan = planned(table, options.pop("operation", UPSERT), **options)
    workload = LocalWorkload(table.context.ports, as_table(rows))
    return prepare_write(table.context, plan, workload, table.context.cached_snapshot())


def together(table: TableReader, *works: PreparedWrite) -> list[CommitResult]:
    answers = commit_group(table.context, works)
    assert all(isinstance(one, CommitResult) for one in answers)
    return [one for one in answers if isinstance(one, CommitResult)]


def numbers(table: TableReader, *works: PreparedWrite) -> list[tuple[int, ...]]:
    return [one.numbers for one in coalesce(table.context, dict(enumerate(works)))]


def counts(result: CommitResult) -> tuple[int, int, int]:
    return result.rows_inserted, result.rows_updated, result.rows_deleted


@pytest.mark.spec("GRP-7")
def test_writes_of_the_same_rows_make_one_file_and_have_results_of_their_own() -> None:
    table = new_table()
    upsert(table, [row("a", 1)])
    before = data_files(table)
    one, two, three, other = together(
        table,
        offered(table, [row("a", 2), row("b", 2)], batch_id="s/1"),
        offered(table, [row("a", 3)], batch_id="s/2"),
        offered(table, [row("b", 4), row("c", 4)]),
        offered(table, [row("d", 4, p="y")], batch_id="s/4"),
    )
    assert {each.group for each in (one, two, three, other)} == {4}
    assert [counts(each) for each in (one, two, three, other)] == [
        (1, 1, 0),
        (0, 1, 0),
        (1, 1, 0),
        (1, 0, 0),
    ]
    assert [each.files_written for each in (one, two, three, other)] == [1, 1, 1, 1]
    assert one.bytes_written == two.bytes_written == three.bytes_written > 0
    assert len(data_files(table)) == len(before) + 2
    assert rows_of(table, "id", "v") == [("a", 3), ("b", 4), ("c", 4), ("d", 4)]
    assert leftovers(table) == []
    slot = table.context.commit_log.read(table.context.commit_log.head())
    assert slot is not None
    results = [(one.batch_id, one.rows_inserted, one.rows_updated) for one in slot.batches]
    assert sorted(results) == [("s/1", 1, 1), ("s/2", 0, 1), ("s/4", 1, 0)]


def test_a_commit_has_the_entry_of_each_stream_in_it() -> None:
    table = new_table()
    works = [offered(table, [row(key, 1, p=p)]) for key, p in (("a", "x"), ("b", "x"), ("c", "y"))]
    for work, entry in zip(works, ('{"one":"4"}', '{"two":"0"}', None), strict=True):
        if entry is not None:
            work.plan.extra_metadata[SINK_CHECKPOINT_KEY] = entry
    together(table, *works)
    [metadata] = table.snapshot.commits_newest_first()
    assert metadata.extra_metadata[SINK_CHECKPOINT_KEY] == '{"one":"4","two":"0"}'


@pytest.mark.spec("GRP-7")
def test_the_greater_ordering_value_stays_in_any_order_of_members() -> None:
    table = new_table()
    upsert(table, [row("a", 5)])
    late, first, second = together(
        table,
        offered(table, [row("a", 4)]),
        offered(table, [row("b", 9)]),
        offered(table, [row("b", 8)]),
    )
    assert rows_of(table, "id", "v") == [("a", 5), ("b", 9)]
    assert [counts(each) for each in (late, first, second)] == [(0, 1, 0), (1, 0, 0), (0, 1, 0)]


@pytest.mark.spec("GRP-7")
def test_writes_are_coalesced_over_a_member_with_partitions_of_both() -> None:
    table = new_table()
    apart = offered(table, [row("a", 1, p="x")])
    away = offered(table, [row("b", 1, p="z")])
    other = offered(table, [row("c", 1, p="y")])
    both = offered(table, [row("d", 1, p="x"), row("e", 1, p="y")])
    assert numbers(table, apart, away, other, both) == [(0, 2, 3), (1,)]
    assert numbers(table, apart, away, other) == [(0,), (1,), (2,)]


def _definition(**fields: Any) -> MergeDefinition:
    return MergeDefinition(mode=MergeMode.EVENT_TIME_ORDERING, ordering_fields=("ts",), **fields)


def _merged_by(definition: MergeDefinition) -> dict[str, Any]:
    return {"merge": definition}


#: Rules under which one merge of all rows may differ from successive merges.
APART: dict[str, dict[str, Any]] = {
    "inserts look up no keys": {"operation": WriteOperation.INSERT},
    "all copies of a key are written": {"combine": False},
    "keys move between partitions": {"lookup": LookupRules(whole_table=True)},
    "a bucket shows new keys only when it is read": {
        "buckets": BucketRules(buckets=1, hash_fields=("id",))
    },
    "values of both rows remain": _merged_by(
        _definition(partial_update_mode=PartialUpdateMode.IGNORE_DEFAULTS)
    ),
    "logs fold in another way than base files": _merged_by(_definition(precombines=True)),
    "deletes are ordered, records are not": _merged_by(_definition(deletes_by_order=True)),
    "a late row signs": _merged_by(_definition(late_rows_sign=True)),
    "rows have some columns": {"partial_columns": ("v",)},
}


@pytest.mark.spec("GRP-7")
@pytest.mark.parametrize("why", APART)
def test_writes_that_one_merge_might_change_are_not_coalesced(why: str) -> None:
    table = new_table()
    works = [offered(table, [row("a", value)]) for value in (1, 2)]
    assert numbers(table, *works) == [(0, 1)]
    changed = [
        replace(work, plan=replace(work.plan, rules=replace(work.plan.rules, **APART[why])))
        for work in works
    ]
    assert numbers(table, *changed) == [(0,), (1,)]


@pytest.mark.spec("GRP-7")
def test_deletes_in_event_time_are_not_coalesced() -> None:
    """A base file does not keep a delete, so the late row after it counts."""
    table = new_table()
    upsert(table, [row("a", 1)])
    delete, late = offered(table, [row("a", 5, gone=True)]), offered(table, [row("a", 3)])
    assert numbers(table, delete, late) == [(0,), (1,)]
    first, second = commit_group(table.context, [delete, late])
    assert isinstance(first, CommitResult)
    assert second is NotCommitted.CONFLICTS
    write_prepared(late)
    assert rows_of(table, "id", "v") == [("a", 3)]


@pytest.mark.spec("GRP-7")
@pytest.mark.spec("BATCH-1")
def test_two_writes_of_one_batch_are_not_coalesced_and_a_committed_batch_is_reported() -> None:
    table = new_table()
    twins = [offered(table, [row("a", 1)], batch_id="s/1") for _ in range(2)]
    assert numbers(table, *twins) == [(0,), (1,)]
    first, second = commit_group(table.context, twins)
    assert isinstance(first, CommitResult)
    assert second is NotCommitted.CONFLICTS
    again = [offered(table, [row("a", v)], batch_id=f"s/{v}") for v in (1, 2, 3)]
    left, *others = commit_group(table.context, again)
    assert left is NotCommitted.ALONE
    assert [one.group for one in others if isinstance(one, CommitResult)] == [2, 2]
    assert write_prepared(again[0]).already_published
    again = [offered(table, [row("a", 4)], batch_id=f"s/{v}") for v in (1, 2)]
    assert commit_group(table.context, again) == [NotCommitted.ALONE, NotCommitted.ALONE]
    assert rows_of(table, "id", "v") == [("a", 3)]
    assert leftovers(table) == []


def test_rows_of_another_schema_are_not_coalesced() -> None:
    table = new_table()
    wider = [{**row("a", 2), "more": 1}]
    assert numbers(table, offered(table, [row("a", 1)]), offered(table, wider)) == [(0,), (1,)]


def test_coalesced_rows_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table()
    works = [offered(table, [row(key, 1)]) for key in "abc"]
    one = works[0].workload
    assert isinstance(one, LocalWorkload)
    monkeypatch.setattr(joint, "COALESCED_BYTES_MAX", 2 * one.rows.nbytes)
    assert numbers(table, *works) == [(0, 1), (2,)]


KEYS = st.sampled_from("abcd")
WRITES = st.lists(
    st.lists(st.tuples(KEYS, st.sampled_from("xy"), st.booleans()), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
)
SEEDED = [row("a", 0), row("b", 0, p="y")]
KINDS = pytest.mark.parametrize("kind", list(TableType))
Part = list[tuple[str, str, bool]]


def _rows(part: Part, v: int, *, ts: int, deletes: bool) -> Rows:
    return [row(key, v, p=p, gone=deletes and gone) | {"ts": ts} for key, p, gone in part]


def _in_group_and_alone(
    tables: tuple[TableReader, TableReader], parts: Sequence[Rows]
) -> tuple[list[CommitResult], list[CommitResult]]:
    """Return the results of some writes in one group, and of the same writes in succession."""
    one, other = tables
    for table in tables:
        upsert(table, SEEDED)
    in_group = together(one, *(offered(one, rows) for rows in parts))
    alone = [write_prepared(offered(other, rows)) for rows in parts]
    assert rows_of(one, "id", "p", "v") == rows_of(other, "id", "p", "v")
    return in_group, alone


@pytest.mark.spec("GRP-7")
@KINDS
@given(parts=WRITES)
def test_concurrent_and_successive_writes_leave_the_same_rows(
    kind: TableType, parts: list[Part]
) -> None:
    tables = new_table(ordering=(), table_type=kind), new_table(ordering=(), table_type=kind)
    rows = [_rows(part, v, ts=v, deletes=True) for v, part in enumerate(parts, start=1)]
    in_group, alone = _in_group_and_alone(tables, rows)
    if kind is TableType.COPY_ON_WRITE:  # a writer of logs does not look up keys
        assert list(map(counts, in_group)) == list(map(counts, alone))


@pytest.mark.spec("GRP-7")
@KINDS
@given(parts=WRITES, order=st.lists(st.integers(0, 2), min_size=4, max_size=4))
def test_concurrent_and_successive_writes_leave_the_same_rows_in_event_time(
    kind: TableType, parts: list[Part], order: list[int]
) -> None:
    """Rows with equal ordering values are included; the later one counts."""
    tables = new_table(table_type=kind), new_table(table_type=kind)
    rows = [
        _rows(part, v, ts=ts, deletes=False)
        for v, (ts, part) in enumerate(zip(order, parts, strict=False), start=1)
    ]
    in_group, alone = _in_group_and_alone(tables, rows)
    assert [each.rows_inserted for each in in_group] == [each.rows_inserted for each in alone]
