"""Deletes, updates and merges by conditions, and writes made from reads, as a user calls them."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hoodoo
from hoodoo.inspect.explain import explain_instant, rejected_writes_of
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
def test_rows_that_match_a_filter_are_deleted(tmp_path: Path, kind: str):
    with new_table(tmp_path / "t", **{"hoodie.datasource.write.table.type": kind}) as table:
        committed = table.delete([("v", "==", 1)])
        assert (committed.rows_deleted, ids(table)) == (2, ["b", "d"])


def test_only_the_named_partitions_are_read(tmp_path: Path):
    with new_table(tmp_path / "t") as table:
        table.delete([("v", "==", 1)], ["y"])
        assert ids(table) == ["a", "b", "d"]


def test_a_filter_without_matches_deletes_no_rows(tmp_path: Path):
    with new_table(tmp_path / "t") as table:
        assert table.delete([("v", "==", 7)]).rows_deleted == 0
        assert ids(table) == ["a", "b", "c", "d"]


def test_a_delete_without_a_filter_is_refused(tmp_path: Path):
    with new_table(tmp_path / "t") as table:
        with pytest.raises(InvalidInputError) as refused:
            table.delete(None)
        assert refused.value.kind == "no_filter"


def test_a_repeated_batch_deletes_once(tmp_path: Path):
    with new_table(tmp_path / "t") as table:
        table.delete([("v", "==", 1)], batch_id="once")
        table.upsert([row("a", "x", 1, 2)])
        assert table.delete([("v", "==", 1)], batch_id="once").already_published
        assert ids(table) == ["a", "b", "d"]


@pytest.mark.parametrize("operation", ["upsert", "insert", "delete", "write"])
def test_rows_made_from_reads_that_changed_are_rejected_at_once(tmp_path: Path, operation: str):
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


def test_a_partition_delete_by_options_is_validated_by_its_reads(tmp_path: Path):
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
        assert table.delete([("v", "==", 1)]).rows_deleted == 1
        assert [row["inner"]["id"] for row in table.to_arrow().to_pylist()] == ["b"]


class ConcurrentWriter:
    """Hears when a write begins, and writes before it once."""

    def __init__(self, path: Path, *rows: dict[str, object]) -> None:
        self.path = path
        self.rows = list(rows)

    def emit(self, name: str, /, **_: object) -> None:
        if name == "begin.done" and self.rows:
            row = self.rows.pop()
            with hoodoo.open_table(self.path, properties=KEYS) as other:
                other.upsert([row])


def test_a_delete_that_was_retried_is_reported_as_committed_and_not_as_rejected(tmp_path: Path):
    path = tmp_path / "t"
    new_table(path).close()
    concurrent = ConcurrentWriter(path, row("b", "x", 1, ts=5))
    with hoodoo.open_table(path, properties=KEYS, events=concurrent) as table:
        committed = table.delete([("v", "==", 1)])
        assert (committed.attempts, ids(table)) == (2, ["d"])
        [first] = committed.refusals
        assert explain_instant(table.context, first.instant).remarks == (
            f"written again as {committed.requested_time}",
        )
        explanation = explain_instant(table.context, committed.requested_time)
        assert [one["instant"] for one in explanation.refusals] == [first.instant]
        assert rejected_writes_of(table.context) == []


def test_a_delete_that_lost_every_attempt_is_recorded_once(tmp_path: Path):
    path = tmp_path / "t"
    new_table(path).close()
    concurrent = ConcurrentWriter(path, *(row("b", "x", 1, ts=9 - n) for n in range(4)))
    once = {**KEYS, "hoodie.write.num.retries.on.conflict.failures": "1"}
    with hoodoo.open_table(path, properties=once, events=concurrent) as table:
        with pytest.raises(BudgetSpentError):
            table.delete([("v", "==", 1)])
        [explanation] = rejected_writes_of(table.context)
        assert explanation.attempts == 2


def test_bytes_of_rejected_deletes_count_as_wasted(tmp_path: Path):
    path = tmp_path / "t"
    new_table(path).close()
    concurrent = ConcurrentWriter(path, *(row(f"new{n}", f"other{n}", 1) for n in range(4)))
    dear = {
        **KEYS,
        LEVEL: "serializable",
        "hoodoo.retry.wasted.bytes.max": "1",
        "hoodie.write.concurrency.early.conflict.detection.enable": "false",
    }
    with hoodoo.open_table(path, properties=dear, events=concurrent) as table:
        with pytest.raises(BudgetSpentError) as spent:
            table.delete([("v", "==", 1)])
        assert spent.value.fields["bound"] == "hoodoo.retry.wasted.bytes.max"
        assert len(spent.value.fields["attempts"]) == 1


# ---- Update


TYPED = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int32())])
KINDS = ["COPY_ON_WRITE", "MERGE_ON_READ"]


def typed(*rows: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=TYPED)


def typed_table(path: Path, **properties: str) -> hoodoo.Table:
    table = hoodoo.create_table(str(path), schema=TYPED, properties=KEYS | properties)
    table.upsert(typed(*ROWS))
    return table


def held(table: hoodoo.Table, *columns: str) -> list[tuple[object, ...]]:
    rows = table.to_arrow([*(columns or ("id", "v"))]).to_pylist()
    return sorted(tuple(one.values()) for one in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_sets_columns_of_the_rows_that_match_a_filter(tmp_path: Path, kind: str):
    with typed_table(tmp_path / "t", **{"hoodie.datasource.write.table.type": kind}) as table:
        result = table.update("v = 1", {"V": "v * 10 + ts"})
        assert (result.rows_updated, result.rows_inserted, result.rows_deleted) == (2, 0, 0)
        assert held(table) == [("a", 11), ("b", 2), ("c", 11), ("d", None)]
        assert table.update([("id", "=", "d")], {"v": 4}, ["y"]).rows_updated == 1
        assert table.update("v = 4", {"v": None}, ["x"]).rows_updated == 0
        assert (
            table.update(pc.field("v") == 4, {"v": pc.field("target", "v") + 1}).rows_updated == 1
        )
        assert held(table)[3] == ("d", 5)


def test_an_update_keeps_the_ordering_value_and_wins(tmp_path: Path):
    with typed_table(tmp_path / "t") as table:
        table.update("true", {"v": 0})
        assert held(table, "v", "ts") == [(0, 1)] * 4


@pytest.mark.parametrize(
    ("found_by", "values", "kind"),
    [
        (None, {"v": 1}, "no_filter"),
        ("true", {}, "no_column"),
        ("true", {"w": 1}, "unknown_column"),
        ("true", ["v"], "expression"),
        ("true", {1: 1}, "expression"),
        ("true", {"_hoodie_record_key": "'x'"}, "unknown_column"),
        ("true", {"v": "w + 1"}, "unknown_column"),
        ("true", {"v": "'text'"}, "filter_value"),
        ("true", {"v": "id"}, "schema_mismatch"),
        ("true", {"v": "1", "V": "2"}, "expression"),
        ("true", {"v": dt.date(2026, 1, 1)}, "expression"),
        ("true", {"v": "ts * 9000000000"}, "expression_value"),
        ("true", {"v": "v / 2"}, "expression_value"),
        ("true", {"id": "'x'"}, "changed_key"),
        ("true", {"p": "'z'"}, "changed_key"),
        ("true", {"ts": 0}, "ordering_lowered"),
    ],
)
def test_an_invalid_update_changes_nothing(
    tmp_path: Path, found_by: str | None, values: dict[str, object], kind: str
):
    with typed_table(tmp_path / "t") as table:
        before = len(table.timeline)
        with pytest.raises(InvalidInputError) as refused:
            table.update(found_by, values)
        assert refused.value.kind == kind
        assert len(table.timeline) == before


def test_a_repeated_batch_updates_once(tmp_path: Path):
    with typed_table(tmp_path / "t") as table:
        table.update("v = 1", {"v": "v + 1"}, batch_id="once")
        assert table.update("v = 2", {"v": "v + 1"}, batch_id="once").already_published
        assert held(table) == [("a", 2), ("b", 2), ("c", 2), ("d", None)]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_table_without_key_fields_are_updated_merged_and_deleted(
    tmp_path: Path, kind: str
):
    rows = pa.table({"name": ["a", "b", "b"], "v": [1, 2, 3]})
    properties = {"hoodie.datasource.write.table.type": kind}
    with hoodoo.create_table(tmp_path / "t", schema=rows.schema, properties=properties) as table:
        table.insert(rows)
        table.update("name = 'b'", {"v": "v * 10"})
        assert held(table, "name", "v") == [("a", 1), ("b", 20), ("b", 30)]
        merge = table.merge([{"name": "b", "w": 5}], on="name")
        merge.when_matched_delete("v > 25").when_matched_update({"v": "v + w"}).execute()
        assert held(table, "name", "v") == [("a", 1), ("b", 25)]
        source = pa.table({"name": ["b", "n", "n"], "v": [5, 6, 6]})
        merge = table.merge(source, on="name").when_matched_update({"v": "source.v"})
        result = merge.when_not_matched_insert_all().execute()
        assert (result.rows_inserted, result.rows_updated) == (2, 1)
        assert held(table, "name", "v") == [("a", 1), ("b", 5), ("n", 6), ("n", 6)]
        table.merge(source, on="name").when_matched_delete("target.v = 5").execute()
        assert held(table, "name", "v") == [("a", 1), ("n", 6), ("n", 6)]
        assert table.verify(all_columns=True).problems == ()
        with pytest.raises(InvalidInputError) as refused:
            table.merge(rows).when_matched_delete().execute()
        assert refused.value.kind == "merge_on"


def test_an_update_of_a_table_without_keys_and_meta_columns_is_refused(tmp_path: Path):
    rows = pa.table({"v": [1, 2]})
    properties = {"hoodie.populate.meta.fields": "false"}
    with hoodoo.create_table(tmp_path / "t", schema=rows.schema, properties=properties) as table:
        table.insert(rows)
        with pytest.raises(InvalidInputError) as refused:
            table.update("v = 1", {"v": 3})
        assert (refused.value.kind, held(table, "v")) == ("no_key_fields", [(1,), (2,)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_keyless_row_that_another_writer_deletes_meanwhile_is_not_inserted_again(
    tmp_path: Path, kind: str
):
    path = tmp_path / "t"
    properties = {
        "hoodie.datasource.write.table.type": kind,
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    }
    rows = pa.table({"name": ["a", "b"], "v": [1, 2]})
    with hoodoo.create_table(path, schema=rows.schema, properties=properties) as table:
        table.insert(rows)

    class Deletes:
        left = 1

        def emit(self, name: str, /, **_: object) -> None:
            if name == "begin.done" and self.left:
                self.left = 0
                with hoodoo.open_table(path, properties=properties) as other:
                    other.delete("name = 'a'")

    with hoodoo.open_table(path, properties=properties, events=Deletes()) as table:
        assert table.update("v < 5", {"v": "v + 10"}).attempts == 2
        assert held(table, "name", "v") == [("b", 12)]


# ---- Arguments of a delete


def test_a_delete_accepts_a_filter_or_keys(tmp_path: Path):
    keys = tmp_path / "keys.csv"
    keys.write_text("id,p\nb,x\n")
    with typed_table(tmp_path / "t") as table:
        assert table.delete("id = 'a'").rows_deleted == 1
        assert table.delete(keys=str(keys)).rows_deleted == 1
        assert table.delete([{"id": "c", "p": "y"}]).rows_deleted == 1
        assert table.delete(keys=[]).rows_deleted == 0
        assert table.delete("true").rows_deleted == 1


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({}, "no_filter"),
        ({"filter": "keys.csv"}, "filter"),
        ({"filter": "id = 'a'", "keys": []}, "delete_arguments"),
        ({"keys": [], "partitions": ["x"]}, "delete_arguments"),
        ({"filter": [], "keys": []}, "delete_arguments"),
        ({"filter": "id = 'a'", "reads": "x"}, "delete_arguments"),
    ],
)
def test_contradicting_arguments_of_a_delete_are_refused(
    tmp_path: Path, arguments: dict[str, object], kind: str
):
    with typed_table(tmp_path / "t") as table:
        with pytest.raises(InvalidInputError) as refused:
            table.delete(**arguments)  # type: ignore[arg-type]
        assert refused.value.kind == kind
        assert len(held(table)) == 4


# ---- Merge


@pytest.mark.parametrize("meta_columns", ["true", "false"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET"])
def test_one_merge_updates_inserts_and_deletes_in_one_commit(
    tmp_path: Path, kind: str, index: str, meta_columns: str
):
    properties = {
        "hoodie.datasource.write.table.type": kind,
        "hoodie.index.type": index,
        "hoodie.bucket.index.num.buckets": "2",
        "hoodie.populate.meta.fields": meta_columns,
    }
    source = typed(row("a", "x", 10, 0), row("b", "x", None), row("z", "y", 9), row("c", "x", 8))
    with typed_table(tmp_path / "t", **properties) as table:
        before = len(table.timeline)
        (
            table.merge(source)
            .when_matched_delete("source.v IS NULL")
            .when_matched_update({"v": "target.v + source.v"})
            .when_not_matched_insert_all("v > 8")
            .when_not_matched_by_source_update({"v": -1}, "target.v IS NULL")
            .execute()
        )
        assert len(table.timeline) == before + 1
        assert held(table, "id", "p", "v", "ts") == [
            ("a", "x", 11, 1),
            ("c", "y", 1, 1),
            ("d", "y", -1, 1),
            ("z", "y", 9, 1),
        ]


def test_a_deleted_record_stays_deleted_after_a_compaction(tmp_path: Path):
    properties = {"hoodie.datasource.write.table.type": "MERGE_ON_READ"}
    with typed_table(tmp_path / "t", **properties) as table:
        late = typed(row("a", "x", 1, 0))
        table.merge(late).when_matched_delete().execute()
        assert [one[0] for one in held(table)] == ["b", "c", "d"]
        table.services.compact()
        assert [one[0] for one in held(table)] == ["b", "c", "d"]


def test_update_all_obeys_event_time_as_an_upsert_does(tmp_path: Path):
    source = typed(row("a", "x", 50, ts=9), row("b", "x", 60, ts=0))
    with typed_table(tmp_path / "t") as table:
        table.merge(source).when_matched_update_all().execute()
        assert held(table, "id", "v", "ts")[:2] == [("a", 50, 9), ("b", 2, 1)]


def test_rows_match_by_named_columns_or_a_condition(tmp_path: Path):
    with typed_table(tmp_path / "t") as table:
        users = pa.table({"user": ["a", "c", None], "add": [5, 6, 7]})
        on = "source.user = target.id AND target.v < 2 AND add > 5"
        table.merge(users, on).when_matched_update({"v": "v + add"}).execute()
        assert held(table)[2] == ("c", 7)
        table.merge([{"v": None}, {"v": 2}], on=["v"]).when_matched_delete().execute()
        assert held(table) == [("a", 1), ("c", 7), ("d", None)]
        everything = typed(row("d", "y", 3), row("e", "x", 3))
        table.merge(everything, on="id").when_not_matched_insert_all().execute()
        assert held(table)[2:] == [("d", None), ("e", 3)]


def test_inserted_rows_get_values_and_nulls(tmp_path: Path):
    with typed_table(tmp_path / "t") as table:
        merge = table.merge(
            [{"k": "n", "part": "z"}, {"k": "a", "part": "x"}], "id = k AND p = part"
        )
        merge.when_not_matched_insert({"id": "source.k", "P": "part", "ts": 7}).execute()
        assert held(table, "id", "p", "ts", "v")[-1] == ("n", "z", 7, None)
        assert len(held(table)) == 5


def test_a_source_row_twice_is_refused_where_both_would_change_a_row(tmp_path: Path):
    source = typed(row("a", "x", 5), row("a", "x", 6))
    with typed_table(tmp_path / "t") as table:
        before = len(table.timeline)
        with pytest.raises(InvalidInputError) as refused:
            table.merge(source).when_matched_update_all().execute()
        assert refused.value.kind == "merge_row_twice"
        assert len(table.timeline) == before
        table.merge(source).when_matched_update_all("source.v = 6").execute()
        assert held(table)[0] == ("a", 6)


def test_a_global_index_moves_a_row_whose_partition_a_merge_changes(tmp_path: Path):
    properties = {
        "hoodie.index.type": "GLOBAL_SIMPLE",
        "hoodie.simple.index.update.partition.path": "true",
    }
    with typed_table(tmp_path / "t", **properties) as table:
        table.merge(typed(row("a", "z", 5))).when_matched_update_all().execute()
        assert held(table, "id", "p", "v") == [
            ("a", "z", 5), ("b", "x", 2), ("c", "y", 1), ("d", "y", None),
        ]  # fmt: skip
        table.merge(typed(row("a", "q", 5))).when_matched_delete().execute()
        assert len(held(table)) == 3


def test_rows_match_by_their_folder_if_folders_are_made_of_times(tmp_path: Path):
    properties = KEYS | {
        "hoodie.datasource.write.partitionpath.field": "at",
        "hoodie.datasource.write.keygenerator.type": "TIMESTAMP",
        "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
        "hoodie.keygen.timebased.output.dateformat": "yyyy-MM-dd",
    }
    rows = pa.table({"id": ["a"], "ts": [1], "at": [0], "v": [1]})
    with hoodoo.create_table(tmp_path / "t", schema=rows.schema, properties=properties) as table:
        table.upsert(rows)
        later = rows.set_column(2, "at", pa.array([5_000])).set_column(3, "v", pa.array([9]))
        table.merge(later).when_not_matched_insert_all().execute()
        assert held(table, "id", "at", "v") == [("a", 0, 1)]
        table.merge(later).when_matched_update({"v": "source.v"}).execute()
        assert held(table, "id", "at", "v") == [("a", 0, 9)]


def test_nested_keys_and_values_are_merged(tmp_path: Path):
    def one(key: str, tags: list[str], cost: str) -> dict[str, object]:
        return {"k": {"Id": key}, "ts": 1, "tags": tags, "cost": Decimal(cost), "m": [("a", 1)]}

    schema = pa.schema(
        [
            ("k", pa.struct([("Id", pa.string())])),
            ("ts", pa.int64()),
            ("tags", pa.list_(pa.string())),
            ("cost", pa.decimal128(10, 2)),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    rows = pa.Table.from_pylist([one("a", ["x"], "1.00"), one("b", ["y"], "2.00")], schema=schema)
    keys = {"hoodie.datasource.write.recordkey.field": "k.Id"}
    with hoodoo.create_table(tmp_path / "t", schema=schema, properties=keys) as table:
        table.upsert(rows)
        source = pa.Table.from_pylist([one("b", ["z"], "3.15"), one("c", [], "9")], schema=schema)
        merge = table.merge(source).when_not_matched_insert_all()
        merge.when_matched_update(
            {"cost": "target.cost * source.cost", "tags": ["n", "n"]}
        ).execute()
        table.update("k.id = 'a'", {"cost": "cost * 1.005"})
        with pytest.raises(InvalidInputError) as refused:
            table.merge(source, on=["tags"]).when_matched_delete().execute()
        assert refused.value.kind == "merge_on"
        assert table.to_arrow(["k", "tags", "cost"]).sort_by("cost").to_pylist() == [
            {"k": {"Id": "a"}, "tags": ["x"], "cost": Decimal("1.01")},
            {"k": {"Id": "b"}, "tags": ["n", "n"], "cost": Decimal("6.30")},
            {"k": {"Id": "c"}, "tags": [], "cost": Decimal("9.00")},
        ]


SOURCE_ROWS = [row("a", "x", 5), row("n", "x", 5)]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda table: table.merge(SOURCE_ROWS), "merge_clauses"),
        (lambda table: table.merge(SOURCE_ROWS, "v > 1").when_matched_delete(), "filter"),
        (lambda table: table.merge(SOURCE_ROWS, "source.v > 1").when_matched_delete(), "merge_on"),
        (lambda table: table.merge(SOURCE_ROWS, ["w"]).when_matched_delete(), "unknown_column"),
        (lambda table: table.merge(SOURCE_ROWS, "v").when_not_matched_insert_all(), "merge_on"),
        (
            lambda table: table.merge(
                SOURCE_ROWS, "target.id = source.id AND target.v > 9"
            ).when_not_matched_insert_all(),
            "merge_on",
        ),
        (
            lambda table: table.merge(SOURCE_ROWS).when_not_matched_insert({"id": "'a'"}),
            "merge_insert_key",
        ),
        (
            lambda table: table.merge([{"id": "a", "p": "x"}]).when_matched_update_all(),
            "unknown_column",
        ),
        (lambda table: table.merge([{"id": "a"}]).when_matched_delete(), "unknown_column"),
        (
            lambda table: table.merge(SOURCE_ROWS).when_matched_update({"v": "v"}),
            "expression",
        ),
        (
            lambda table: table.merge(SOURCE_ROWS).when_not_matched_insert_all("target.v > 1"),
            "unknown_column",
        ),
        (
            lambda table: table.merge([row("a", "q", 5)], "id").when_matched_update_all(),
            "changed_key",
        ),
        (lambda table: table.merge(7), "data"),
        (lambda table: table.merge(SOURCE_ROWS, 7).when_matched_delete(), "merge_on"),
        (lambda table: table.merge(SOURCE_ROWS, []).when_matched_delete(), "merge_on"),
        (lambda table: table.merge(SOURCE_ROWS).when_matched_delete(7), "filter"),
        (
            lambda table: table.merge(
                pa.table([pa.array([1]), pa.array([1])], names=["id", "id"])
            ).when_matched_delete(),
            "data",
        ),
        (
            lambda table: table.merge([{"id": None, "p": "x"}]).when_matched_delete(),
            "null_key",
        ),
    ],
)
def test_an_invalid_merge_changes_nothing(tmp_path: Path, make: Any, kind: str):
    with typed_table(tmp_path / "t") as table:
        before = len(table.timeline)
        with pytest.raises(InvalidInputError) as refused:
            make(table).execute()
        assert refused.value.kind == kind
        assert len(table.timeline) == before


# ---- Concurrent changes


@pytest.mark.parametrize("level", ["snapshot", "write_serializable", "serializable"])
@pytest.mark.parametrize(("kind", "by_merge"), [("COPY_ON_WRITE", False), ("MERGE_ON_READ", True)])
def test_a_statement_whose_rows_changed_meanwhile_reads_them_again(
    tmp_path: Path, kind: str, level: str, by_merge: bool
):
    path = tmp_path / "t"
    typed_table(path, **{"hoodie.datasource.write.table.type": kind}).close()
    concurrent = ConcurrentWriter(path, row("b", "x", 100, ts=5))
    with hoodoo.open_table(path, properties={**KEYS, LEVEL: level}, events=concurrent) as table:
        if by_merge:
            merge = table.merge(typed(row("b", "x", 1), row("n", "x", 1)))
            merge.when_matched_update({"v": "target.v + source.v"})
            result = merge.when_not_matched_insert_all().execute()
        else:
            result = table.update("v > 1", {"v": "v + 1"})
        assert result.attempts == 2
        assert dict(held(table))["b"] == 101


def test_a_key_that_another_writer_inserts_meanwhile_is_updated_and_not_replaced(tmp_path: Path):
    path = tmp_path / "t"
    typed_table(path).close()
    concurrent = ConcurrentWriter(path, row("n", "w", 100))
    with hoodoo.open_table(path, properties=KEYS, events=concurrent) as table:
        merge = table.merge(typed(row("n", "w", 1))).when_not_matched_insert_all()
        merge.when_matched_update({"v": "target.v + source.v"}).execute()
        assert dict(held(table))["n"] == 101


@pytest.mark.parametrize(
    ("level", "kind"),
    [
        ("snapshot", "COPY_ON_WRITE"),
        ("snapshot", "MERGE_ON_READ"),
        ("write_serializable", "COPY_ON_WRITE"),
        ("serializable", "MERGE_ON_READ"),
        pytest.param("write_serializable", "MERGE_ON_READ", marks=pytest.mark.slow),
        pytest.param("serializable", "COPY_ON_WRITE", marks=pytest.mark.slow),
    ],
)
def test_no_update_of_concurrent_statements_is_lost(tmp_path: Path, kind: str, level: str):
    path = tmp_path / "t"
    typed_table(path, **{"hoodie.datasource.write.table.type": kind}).close()
    tried = {
        **KEYS,
        LEVEL: level,
        "hoodie.write.num.retries.on.conflict.failures": "100",
        "hoodie.write.commit.retry.base.ms": "1",
        "hoodie.write.commit.retry.cap.ms": "5",
    }

    def count(by_merge: bool) -> None:
        with hoodoo.open_table(path, properties=tried) as table:
            for _ in range(4):
                if by_merge:
                    merge = table.merge(typed(row("a", "x", 1), row("c", "y", 1)))
                    merge.when_matched_update({"v": "target.v + source.v"}).execute()
                else:
                    table.update("id IN ('a', 'b', 'c')", {"v": "v + 1"})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(count, [False, True]))
    with hoodoo.open_table(path, properties=KEYS) as table:
        assert held(table) == [("a", 9), ("b", 6), ("c", 9), ("d", None)]


# ---- Tables of other kinds


def test_an_empty_source_matches_no_row(tmp_path: Path):
    with typed_table(tmp_path / "t") as table:
        table.merge([]).when_matched_delete().when_not_matched_insert_all().execute()
        assert len(held(table)) == 4
        table.merge([]).when_not_matched_by_source_delete("v = 1").execute()
        assert [one[0] for one in held(table)] == ["b", "d"]


def test_a_value_that_the_tables_merge_ignores_is_refused(tmp_path: Path):
    partial = {"hoodie.table.partial.update.mode": "IGNORE_DEFAULTS"}
    with typed_table(tmp_path / "t", **partial) as table:
        with pytest.raises(InvalidInputError) as refused:
            table.update("v = 1", {"v": None})
        assert refused.value.kind == "ignored_value"
        table.update("v = 1", {"v": "v + 1"})
        table.update("id = 'd'", {"v": None})  # it is null
        assert held(table) == [("a", 2), ("b", 2), ("c", 2), ("d", None)]


@pytest.mark.parametrize("kind", KINDS)
def test_change_data_has_each_change_of_a_merge_once(tmp_path: Path, kind: str):
    logged = {"hoodie.table.cdc.enabled": "true", "hoodie.datasource.write.table.type": kind}
    with typed_table(tmp_path / "t", **logged) as table:
        since = table.history(1)[0].completion_time
        source = typed(row("a", "x", 5), row("b", "x", 0), row("n", "x", 7))
        merge = table.merge(source).when_matched_delete("source.v = 0")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        images = table.changes(since, images=True).read_all().to_pylist()
        found = {
            (one["op"], one["before"] and one["before"]["v"], one["after"] and one["after"]["v"])
            for one in images
        }
        assert found == {("u", 1, 5), ("d", 2, None), ("i", None, 7)}
        assert len(images) == 3


@pytest.mark.parametrize(
    "properties",
    [
        {"hoodie.datasource.write.drop.partition.columns": "true"},
        {"hoodie.datasource.write.hive_style_partitioning": "true"},
        {"hoodie.datasource.write.keygenerator.type": "COMPLEX"},
        {"hoodie.write.table.version": "8"},
        {"hoodie.datasource.write.partitionpath.field": ""},
        {"hoodie.datasource.write.recordkey.field": "id,ts"},
        {"hoodoo.group.commit.max.writes": "4"},
        {"hoodie.index.type": "GLOBAL_BLOOM"},
        {"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"},
        {
            "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
            "hoodie.datasource.write.table.type": "MERGE_ON_READ",
            "hoodie.index.type": "BUCKET",
            "hoodie.bucket.index.num.buckets": "2",
        },
    ],
    ids=lambda one: next(iter(one)).rpartition(".")[2],
)
def test_statements_work_for_each_way_to_store_keys_and_partitions(
    tmp_path: Path, properties: dict[str, str]
):
    with typed_table(tmp_path / "t", **properties) as table:
        assert table.update("p = 'y' AND v = 1", {"v": 7}).rows_updated == 1
        source = typed(row("a", "x", 5), row("b", "x", 0), row("n", "w", 7))
        merge = table.merge(source).when_matched_delete("source.v = 0")
        merge.when_matched_update({"v": "target.v + source.v"})
        merge.when_not_matched_insert_all().execute()
        table.delete("id = 'd'")
        assert held(table, "id", "p", "v") == [("a", "x", 6), ("c", "y", 7), ("n", "w", 7)]
        assert table.verify(all_columns=True).problems == ()
