"""Deletes by predicate and writes made from reads, as a user calls them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.inspect.instants import explain_instant, rejected_writes_of
from timeline.errors import BudgetSpentError, InvalidInputError, SettingError, WriteConflictError

KEYS = {
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
}
LEVEL = "hoodoo.write.isolation.level"


def row(key: str, part: str, v: int | None, ts: int = 1) -> dict[str, object]:
    return {"id": key, "p": part, "ts": ts, "v": v}


ROWS = [row("a", "x", 1), row("b", "x", 2), row("c", "y", 1), row("d", "y", None)]


def new_table(path: Path, **properties: str) -> hoodoo.Table:
    rows = pa.Table.from_pylist(ROWS)
    table = hoodoo.create_table(str(path), schema=rows.schema, properties=KEYS | properties)
    table.upsert(rows)
    return table


def ids(table: hoodoo.Table) -> list[str]:
    return sorted(table.to_arrow(["id"]).column("id").to_pylist())


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_the_rows_that_a_filter_finds_are_deleted(tmp_path: Path, kind: str):
    with new_table(tmp_path / "t", **{"hoodie.datasource.write.table.type": kind}) as table:
        receipt = table.delete_where([("v", "==", 1)])
        assert (receipt.rows_deleted, ids(table)) == (2, ["b", "d"])


def test_only_the_partitions_that_were_named_are_looked_at(tmp_path: Path):
    with new_table(tmp_path / "t") as table:
        table.delete_where([("v", "==", 1)], ["y"])
        assert ids(table) == ["a", "b", "d"]


def test_a_filter_that_finds_nothing_deletes_nothing(tmp_path: Path):
    with new_table(tmp_path / "t") as table:
        assert table.delete_where([("v", "==", 7)]).rows_deleted == 0
        assert ids(table) == ["a", "b", "c", "d"]


def test_a_delete_without_a_filter_is_refused(tmp_path: Path):
    with new_table(tmp_path / "t") as table:
        with pytest.raises(InvalidInputError) as refused:
            table.delete_where(None)
        assert refused.value.kind == "no_filter"


def test_a_repeated_batch_deletes_once(tmp_path: Path):
    with new_table(tmp_path / "t") as table:
        table.delete_where([("v", "==", 1)], batch_id="once")
        table.upsert([row("a", "x", 1, 2)])
        assert table.delete_where([("v", "==", 1)], batch_id="once").already_published
        assert ids(table) == ["a", "b", "d"]


@pytest.mark.parametrize("operation", ["upsert", "insert", "delete", "write"])
def test_rows_made_from_reads_that_changed_are_refused_at_once(tmp_path: Path, operation: str):
    with (
        new_table(tmp_path / "t", **{LEVEL: "serializable"}) as table,
        hoodoo.open_table(str(tmp_path / "t"), properties=KEYS) as other,
        table.pin() as state,
    ):
        other.upsert([row("a", "x", 5, 2)])
        with pytest.raises(WriteConflictError) as refused:
            getattr(table, operation)([row("b", "x", 6, 3)], reads=state.reads(partitions=["x"]))
        assert refused.value.kind == "changed_under_read"
        getattr(table, operation)([row("c", "y", 6, 3)], reads=state.reads(partitions=["y"]))


def test_partitions_that_a_write_by_options_deletes_are_judged_by_its_reads(tmp_path: Path):
    named = {
        LEVEL: "serializable",
        "hoodie.datasource.write.operation": "delete_partition",
        "hoodie.datasource.write.partitions.to.delete": "y",
    }
    with (
        new_table(tmp_path / "t") as table,
        hoodoo.open_table(str(tmp_path / "t"), properties={**KEYS, **named}) as other,
        other.pin() as state,
    ):
        table.upsert([row("a", "x", 5, 2)])
        with pytest.raises(WriteConflictError) as refused:
            other.write([], reads=state.reads(partitions=["x"]))
        assert refused.value.kind == "changed_under_read"
        assert "d" in ids(table)
        other.write([], reads=state.reads(partitions=["y"]))
        assert "d" not in ids(table)


def test_an_unknown_level_is_refused(tmp_path: Path):
    with pytest.raises(SettingError):
        new_table(tmp_path / "t", **{LEVEL: "read_committed"})


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_rows_are_deleted_where_keys_and_partitions_are_fields_inside_structs(
    tmp_path: Path, kind: str
):
    where = {"inner": {"id": "a", "p": "x"}, "ts": 1, "v": 1}
    rows = pa.Table.from_pylist([where, {**where, "inner": {"id": "b", "p": "y"}, "v": 2}])
    keys = {
        **KEYS,
        "hoodie.datasource.write.recordkey.field": "inner.id",
        "hoodie.datasource.write.partitionpath.field": "inner.p",
        "hoodie.datasource.write.table.type": kind,
    }
    with hoodoo.create_table(tmp_path / "t", schema=rows.schema, properties=keys) as table:
        table.upsert(rows)
        assert table.delete_where([("v", "==", 1)]).rows_deleted == 1
        assert [row["inner"]["id"] for row in table.to_arrow().to_pylist()] == ["b"]


class Rival:
    """Hears when a write begins, and writes before it once."""

    def __init__(self, path: Path, *rows: dict[str, object]) -> None:
        self.path = path
        self.rows = list(rows)

    def emit(self, name: str, /, **_: object) -> None:
        if name == "begin.done" and self.rows:
            row = self.rows.pop()
            with hoodoo.open_table(self.path, properties=KEYS) as other:
                other.upsert([row])


def test_a_delete_that_read_again_is_told_as_published_and_not_as_given_up(tmp_path: Path):
    path = tmp_path / "t"
    new_table(path).close()
    rival = Rival(path, row("b", "x", 1, ts=5))
    with hoodoo.open_table(path, properties=KEYS, events=rival) as table:
        receipt = table.delete_where([("v", "==", 1)])
        assert (receipt.attempts, ids(table)) == (2, ["d"])
        [first] = receipt.refusals
        assert explain_instant(table, first.instant).remarks == (
            f"written again as {receipt.requested_time}",
        )
        told = explain_instant(table, receipt.requested_time)
        assert [one["instant"] for one in told.refusals] == [first.instant]
        assert rejected_writes_of(table.context) == []


def test_a_delete_that_was_overtaken_every_time_is_remembered_once(tmp_path: Path):
    path = tmp_path / "t"
    new_table(path).close()
    rival = Rival(path, *(row("b", "x", 1, ts=9 - n) for n in range(4)))
    once = {**KEYS, "hoodie.write.num.retries.on.conflict.failures": "1"}
    with hoodoo.open_table(path, properties=once, events=rival) as table:
        with pytest.raises(BudgetSpentError):
            table.delete_where([("v", "==", 1)])
        [told] = rejected_writes_of(table.context)
        assert told.attempts == 2


def test_what_overtaken_deletes_wrote_counts_as_wasted(tmp_path: Path):
    path = tmp_path / "t"
    new_table(path).close()
    rival = Rival(path, *(row(f"new{n}", f"other{n}", 1) for n in range(4)))
    dear = {
        **KEYS,
        LEVEL: "serializable",
        "hoodoo.retry.wasted.bytes.max": "1",
        "hoodie.write.concurrency.early.conflict.detection.enable": "false",
    }
    with hoodoo.open_table(path, properties=dear, events=rival) as table:
        with pytest.raises(BudgetSpentError) as spent:
            table.delete_where([("v", "==", 1)])
        assert spent.value.fields["bound"] == "hoodoo.retry.wasted.bytes.max"
        assert len(spent.value.fields["attempts"]) == 1
