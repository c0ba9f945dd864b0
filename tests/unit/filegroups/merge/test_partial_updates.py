"""A partial update changes only its columns, and only of existing records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from filegroups.files.log_files import LogSettings
from filegroups.index import LookupRules
from filegroups.keys.bucketing import BucketRules
from filegroups.schema.avro_schema import avro_to_arrow
from filegroups.schema.schema import META_COLUMNS
from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from filegroups.writing.write_request import CommitResult
from tests.unit.timeline.engine import (
    SMALL,
    Rows,
    as_table,
    begun,
    new_table,
    opened,
    planned,
    rows_of,
    upsert,
)
from timeline.codecs.log_blocks import BytesSource, iter_blocks
from timeline.errors import InvalidInputError, UnsupportedTableError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.properties.setting_enums import BucketEngine, LogFormat

COW, MOR = TableType.COPY_ON_WRITE, TableType.MERGE_ON_READ
BUCKETS = BucketRules(engine=BucketEngine.SIMPLE, buckets=2, hash_fields=("id",))


def row(key: str, ts: int, a: str | None, b: int | None, p: str = "x") -> dict[str, Any]:
    return {"id": key, "p": p, "ts": ts, "a": a, "b": b}


def part(key: str, ts: int, p: str = "x", **changed: object) -> dict[str, Any]:
    return {"id": key, "p": p, "ts": ts, **changed}


def update(
    table: TableReader,
    rows: Rows | pa.Table,
    columns: tuple[str, ...] = (),
    *,
    act: Any = None,
    **options: Any,
) -> CommitResult:
    plan = planned(table, WriteOperation.UPSERT, **options)
    plan = replace(
        plan,
        rules=replace(plan.rules, partial_columns=columns),
        schema=replace(plan.schema, required=frozenset({"id", "p", "ts"})),
    )

    class Interrupted(LocalWorkload):
        acts = [act] if act else []

        def rewrite(self, tasks):
            if self.acts:
                self.acts.pop()()
            return super().rewrite(tasks)

    return write(table.context, plan, Interrupted(table.context.ports, as_table(rows)))


def started(table_type: TableType, **options: Any) -> TableReader:
    table = new_table(table_type=table_type)
    upsert(table, [row("a", 10, "A", 1), row("b", 10, "B", 2), row("c", 10, "C", 3)], **options)
    return table


@pytest.mark.parametrize("table_type", [COW, MOR])
@pytest.mark.parametrize("options", [{}, {"buckets": BUCKETS}])
def test_records_keep_the_columns_that_rows_lack(table_type, options) -> None:
    table = started(table_type, **options)
    first = update(table, [part("a", 20, a="AA"), part("b", 5, a="late")], **options)
    update(table, [part("a", 21, b=11), part("c", 10, b=None)], **options)
    assert rows_of(table, "id", "ts", "a", "b") == [
        ("a", 21, "AA", 11),
        ("b", 10, "B", 2),
        ("c", 10, "C", None),
    ]
    assert first.action == ("commit" if table_type is COW else "deltacommit")
    upsert(table, [row("a", 30, None, 5)], **options)
    assert rows_of(table, "id", "a", "b")[0] == ("a", None, 5)


@pytest.mark.parametrize("table_type", [COW, MOR])
def test_rows_of_one_key_are_combined_first(table_type) -> None:
    table = started(table_type)
    update(table, [part("a", 30, a="newest"), part("a", 20, a="older")])
    assert rows_of(table, "id", "ts", "a", "b")[0] == ("a", 30, "newest", 1)


@pytest.mark.parametrize("table_type", [COW, MOR])
def test_commit_time_tables_need_no_ordering_field(table_type) -> None:
    table = new_table(table_type=table_type, ordering=())
    upsert(table, [row("a", 10, "A", 1)])
    update(table, [{"id": "a", "p": "x", "b": 7}])
    assert rows_of(table, "id", "ts", "a", "b") == [("a", 10, "A", 7)]


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_a_log_block_has_the_changed_columns_alone(log_format) -> None:
    table = started(MOR)
    files = replace(SMALL, logs=LogSettings(format=log_format))
    update(table, [part("a", 20, b=5)], files=files)
    (log,) = [log for one in table.file_slices() for log in one.log_files]
    content = table.context.ports.storage.read(log.path)
    (block,) = iter_blocks(BytesSource(content), len(content), path=log.path)
    assert block.is_partial
    names = [*META_COLUMNS, "id", "p", "ts", "b"]
    assert avro_to_arrow(block.schema_json).names == names
    assert rows_of(table, "id", "ts", "a", "b")[0] == ("a", 20, "A", 5)


@pytest.mark.parametrize("table_type", [COW, MOR])
@pytest.mark.parametrize(
    "options", [{}, {"buckets": BUCKETS}, {"lookup": LookupRules(whole_table=True)}]
)
def test_keys_that_are_not_there_are_refused(table_type, options) -> None:
    table = started(table_type, **options)
    remove(table, "b", **options)
    before = rows_of(table)
    for strange in (part("new", 20, a="N"), part("b", 20, a="N"), part("a", 20, "y", a="moved")):
        with pytest.raises(InvalidInputError) as refused:
            update(table, [part("c", 20, a="CC"), strange], **options)
        assert refused.value.kind == "partial_new_key"
        assert refused.value.fields["rows"] == 1
    assert rows_of(table) == before


def remove(table: TableReader, key: str, **options: Any) -> None:
    plan = planned(table, WriteOperation.DELETE, **options)
    keys = pa.table({"id": [key], "p": ["x"]})
    write(table.context, plan, LocalWorkload(table.context.ports, keys))


@pytest.mark.parametrize("table_type", [COW, MOR])
def test_a_record_deleted_meanwhile_is_not_partly_restored(table_type) -> None:
    table = started(table_type)
    other = opened(table)
    with pytest.raises(InvalidInputError) as refused:
        update(table, [part("b", 20, a="BB")], act=lambda: remove(other, "b"))
    assert refused.value.kind == "partial_new_key"
    assert rows_of(table, "id") == [("a",), ("c",)]


def test_a_rebase_does_not_insert_a_record_deleted_meanwhile() -> None:
    """The concurrent commit began first, so a rebase would be enough for whole rows."""
    table = started(COW)
    finish = begun(opened(table), WriteOperation.DELETE, [{"id": "b", "p": "x"}])
    with pytest.raises(InvalidInputError) as refused:
        update(table, [part("b", 20, a="BB")], act=finish)
    assert refused.value.kind == "partial_new_key"
    assert rows_of(table, "id") == [("a",), ("c",)]


@pytest.mark.parametrize("table_type", [COW, MOR])
def test_columns_of_a_concurrent_update_are_kept(table_type) -> None:
    table = started(table_type)
    other = opened(table)
    concurrent_write = lambda: update(other, [part("a", 20, b=99)])  # noqa: E731
    update(table, [part("a", 21, a="AA")], act=concurrent_write)
    assert rows_of(table, "id", "ts", "a", "b")[0] == ("a", 21, "AA", 99)


@pytest.mark.parametrize("table_type", [COW, MOR])
def test_chosen_columns_are_changed_and_no_others(table_type) -> None:
    table = started(table_type)
    update(table, [row("a", 20, "not this", 7)], ("b",))
    assert rows_of(table, "id", "ts", "a", "b")[0] == ("a", 20, "A", 7)


@pytest.mark.parametrize("table_type", [COW, MOR])
def test_a_row_may_mark_its_record_as_deleted(table_type) -> None:
    table = new_table(table_type=table_type)
    upsert(table, [{**row(key, 10, "A", 1), "_hoodie_is_deleted": False} for key in "ab"])
    update(table, [part("a", 20, _hoodie_is_deleted=True)])
    assert rows_of(table, "id") == [("b",)]


def test_invalid_partial_updates_are_refused_before_the_write_begins() -> None:
    table = started(COW)
    for rows, columns, kind in (
        ([part("a", 20, strange=1)], (), "unknown_column"),
        ([part("a", 20, a="A")], ("strange",), "unknown_column"),
        ([{"id": "a", "p": "x", "a": "A"}], (), "missing_ordering_column"),
    ):
        with pytest.raises(InvalidInputError) as refused:
            update(table, rows, columns)
        assert refused.value.kind == kind
    assert len(table.timeline) == 1
    with pytest.raises(UnsupportedTableError) as nothing:
        update(new_table(), [part("a", 20)])
    assert nothing.value.kind == "no_schema"
