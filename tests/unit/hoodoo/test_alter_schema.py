"""Columns that a table renames, drops, adds and moves without rewriting rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import hoodoo
from filegroups.writing import write as write_module
from filegroups.writing import write_schema
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import prepare_write, write_prepared
from hoodoo.cli import main
from hoodoo.write_requests import write_request_of
from tableservices.compaction import execute as compaction
from tableservices.planned_service import ScheduledPlan
from timeline.errors import (
    InvalidInputError,
    MetadataTableOnError,
    SchemaConflictError,
    SettingError,
    UnsupportedTableError,
)
from timeline.model.commit_metadata import WriteOperation

SCHEMA = pa.schema([("id", pa.string()), ("a", pa.int32()), ("b", pa.string())])
ON_READ = {"hoodie.schema.on.read.enable": "true"}
TYPES = ["COPY_ON_WRITE", "MERGE_ON_READ"]
TYPE = "hoodie.datasource.write.table.type"


def table_of(folder: Path, kind: str = "COPY_ON_WRITE", **more: str) -> hoodoo.Table:
    properties = {**ON_READ, TYPE: kind, **{key.replace("__", "."): more[key] for key in more}}
    table = hoodoo.create_table(folder / "t", schema=SCHEMA, record_key="id", properties=properties)
    table.upsert([{"id": "x", "a": 1, "b": "one"}, {"id": "y", "a": 2, "b": "two"}])
    return table


def rows_of(table: hoodoo.Table) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])


@contextmanager
def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Iterator[list[int]]:
    """Act once, when a write has its files and has not asked to commit; count its attempts."""
    attempts: list[int] = []
    original = write_module.reconcile_files

    def hooked(*args: Any) -> None:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            monkeypatch.setattr(write_module, "reconcile_files", original)
            act()
            monkeypatch.setattr(write_module, "reconcile_files", hooked)
        original(*args)

    monkeypatch.setattr(write_module, "reconcile_files", hooked)
    yield attempts
    monkeypatch.setattr(write_module, "reconcile_files", original)


@pytest.mark.parametrize("kind", TYPES)
def test_rows_keep_their_values_under_the_new_columns(tmp_path: Path, kind: str) -> None:
    with table_of(tmp_path, kind) as table:
        first = table.current_state()
        done = table.alter_schema(
            rename={"a": "n"}, types={"a": pa.int64()}, add={"c": pa.float64()}, move={"c": "id"}
        )
        assert (done.operation, done.files_written) == ("alter_schema", 0)
        assert [change.column for change in done.schema_changes] == ["a", "c", "n"]
        assert list(rows_of(table)[0]) == ["id", "c", "n", "b"]
        table.upsert([{"id": "x", "c": 0.5, "n": 5_000_000_000, "b": "more"}])
        table.alter_schema(drop=["b"])
        table.alter_schema(add={"b": pa.int32()})
        table.upsert([{"id": "z", "c": None, "n": 3, "b": 3}])
        expected = [
            {"id": "x", "c": 0.5, "n": 5_000_000_000, "b": None},
            {"id": "y", "c": None, "n": 2, "b": None},
            {"id": "z", "c": None, "n": 3, "b": 3},
        ]
        assert rows_of(table) == expected
        if kind == "MERGE_ON_READ":
            assert table.services.compact() is not None
            assert rows_of(table) == expected
            assert table.services.cluster() is not None
        assert rows_of(table) == expected
        assert rows_of_snapshot(table, done.requested_time)[0]["n"] == 1
        assert first.to_arrow().column_names == ["id", "a", "b"]
    with hoodoo.open_table(tmp_path / "t") as table:  # the option is needed once
        table.alter_schema(rename={"n": "a"})
        assert [row["a"] for row in rows_of(table)] == [5_000_000_000, 2, 3]


def rows_of_snapshot(table: hoodoo.Table, time: str) -> list[dict[str, Any]]:
    return sorted(table.as_of(time).to_arrow().to_pylist(), key=lambda row: row["id"])


def test_the_commit_has_the_ids_and_their_history_as_java(tmp_path: Path) -> None:
    with table_of(tmp_path) as table:
        done = table.alter_schema(rename={"a": "n"})
        summary = table.current_state().snapshot.commits.read(
            table.context.active().completed_writes[-1]
        )
        assert (summary.operation_type, summary.partition_to_write_stats) == ("ALTER_SCHEMA", {})
        newest = json.loads(summary.extra_metadata["latest_schema"])
        assert newest["version_id"] == int(done.requested_time)
        assert newest["fields"][6] == {"id": 6, "name": "n", "optional": True, "type": "int"}
        [file] = (tmp_path / "t/.hoodie/.schema").glob(f"{done.requested_time}_*.schemacommit")
        versions = json.loads(file.read_text(encoding="utf-8"))["schemas"]
        assert versions[0] == newest
        assert [each["version_id"] for each in versions] == [int(done.requested_time), 0]
        assert versions[1]["fields"][6]["name"] == "a"


def test_a_reconciling_write_gives_ids_to_the_columns(tmp_path: Path) -> None:
    more = {"hoodie__datasource__write__reconcile__schema": "true"}
    with table_of(tmp_path, **more) as table:
        assert json.loads(table.current_state().snapshot.newest_internal_schema_json or "")
    with hoodoo.open_table(tmp_path / "t") as table:
        table.alter_schema(rename={"a": "n"})
        assert [row["n"] for row in rows_of(table)] == [1, 2]


def test_without_the_option_the_first_change_is_refused(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path / "t", schema=SCHEMA, record_key="id") as table:
        with pytest.raises(SettingError, match=r"hoodie\.schema\.on\.read\.enable") as caught:
            table.alter_schema(rename={"a": "n"})
        assert caught.value.kind == "setting_missing"
        assert table.timeline == []


def test_new_columns_at_the_end_need_neither_the_option_nor_ids(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path / "t", schema=SCHEMA, record_key="id") as table:
        table.upsert([{"id": "x", "a": 1, "b": "one"}])
        table.alter_schema(add={"c": pa.int64()})
        assert table.current_state().snapshot.newest_internal_schema_json is None
        table.upsert([{"id": "z", "a": 3, "b": "three", "c": 9}])
        assert [row["c"] for row in rows_of(table)] == [None, 9]
        with pytest.raises(SettingError):
            table.alter_schema(add={"d": pa.int64()}, move={"d": "id"})


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "no_change"),
        ({"rename": {"nope": "n"}}, "unknown_column"),
        ({"drop": ["id"]}, "fixed_column"),
        ({"rename": {"a": "b"}}, "bad_column_name"),
    ],
)
def test_an_impossible_change_leaves_no_instant(
    tmp_path: Path, changes: dict[str, Any], kind: str
) -> None:
    with table_of(tmp_path) as table:
        before = table.timeline
        with pytest.raises(InvalidInputError) as caught:
            table.alter_schema(**changes)
        assert caught.value.kind == kind
        assert table.timeline == before


def test_a_metadata_table_with_column_stats_is_refused(tmp_path: Path) -> None:
    more = {
        "hoodie__metadata__enable": "true",
        "hoodie__metadata__index__column__stats__enable": "true",
    }
    with table_of(tmp_path, **more) as table:
        with pytest.raises(MetadataTableOnError, match="column_stats"):
            table.alter_schema(rename={"a": "n"})
        assert rows_of(table)[0]["a"] == 1


def test_a_metadata_table_of_files_is_maintained(tmp_path: Path) -> None:
    more = {
        "hoodie__metadata__enable": "true",
        "hoodie__metadata__index__column__stats__enable": "false",
        "hoodie__metadata__index__partition__stats__enable": "false",
    }
    with table_of(tmp_path, **more) as table:
        table.alter_schema(rename={"a": "n"})
        table.upsert([{"id": "x", "n": 7, "b": "x"}])
        assert [row["n"] for row in rows_of(table)] == [7, 2]
        assert table.metadata.verify() == ()


def test_the_command_changes_columns_and_shows_them_before(tmp_path: Path) -> None:
    table_of(tmp_path).close()
    words = [
        "table",
        "alter",
        str(tmp_path / "t"),
        "--hoodie-conf",
        *map("=".join, ON_READ.items()),
    ]
    words += ["--rename", "a=n", "--type", "a=long", "--drop", "b", "--add", "c=double"]

    def run(*more: str) -> dict[str, Any]:
        ran = CliRunner().invoke(main, [*words, *more], catch_exceptions=False)
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)

    shown = run("--dry-run")
    assert (shown["columns"], shown["instant"]) == (["id", "a", "b"], None)
    assert "new column n: int64" in shown["schema_changes"]
    done = run("--yes")
    assert done["columns"] == ["id", "n", "c"]
    assert done["schema_changes"] == shown["schema_changes"]
    with hoodoo.open_table(tmp_path / "t") as table:
        assert rows_of(table)[0] == {"id": "x", "n": 1, "c": None}
        assert table.context.active().completed_writes[-1].requested_time == done["instant"]
    ran = CliRunner().invoke(main, ["table", "alter", str(tmp_path / "t"), "--rename", "n"])
    assert ran.exit_code == 1
    assert "price=amount" in ran.output + ran.stderr


# ---- Concurrent writers


def test_rows_prepared_before_a_rename_are_refused(tmp_path: Path) -> None:
    with table_of(tmp_path) as table:
        plan = write_request_of(table._settings, table.config, WriteOperation.UPSERT)
        incoming = pa.Table.from_pylist([{"id": "x", "a": 9, "b": "nine"}], SCHEMA)
        workload = LocalWorkload(table.context.ports, incoming)
        work = prepare_write(table.context, plan, workload, table.context.snapshot())
        table.alter_schema(rename={"a": "b", "b": "a"})
        with pytest.raises(SchemaConflictError):
            write_prepared(work)
        assert rows_of(table) == [{"id": "x", "b": 1, "a": "one"}, {"id": "y", "b": 2, "a": "two"}]


@pytest.mark.parametrize("kind", TYPES)
def test_a_write_in_flight_during_a_rename_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with (
        table_of(tmp_path, kind) as table,
        hoodoo.open_table(tmp_path / "t", properties=ON_READ) as other,
    ):
        with (
            meanwhile(monkeypatch, lambda: other.alter_schema(rename={"a": "n"}, drop=["b"])),
            pytest.raises((SchemaConflictError, InvalidInputError)) as caught,
        ):
            table.upsert([{"id": "x", "a": 9, "b": "nine"}])
        assert caught.value.kind in ("schema_conflict", "missing_column")
        assert rows_of(table) == [{"id": "x", "n": 1}, {"id": "y", "n": 2}]


def first_ids(other: hoodoo.Table) -> None:
    other.alter_schema(add={"c": pa.int32()})


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("has_ids", [True, False])
def test_a_write_in_flight_during_an_added_column_adopts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, has_ids: bool
) -> None:
    fills = "hoodie.write.set.null.for.missing.columns"
    options = {**ON_READ, fills: "true"}
    with table_of(tmp_path, kind, **{fills.replace(".", "__"): "true"}) as table:
        if has_ids:
            table.alter_schema(rename={"a": "n"})
            table.alter_schema(rename={"n": "a"})
        with (
            hoodoo.open_table(tmp_path / "t", properties=options) as other,
            meanwhile(monkeypatch, lambda: first_ids(other)) as attempts,
        ):
            done = table.upsert([{"id": "x", "a": 9, "b": "nine"}])
        assert (len(attempts), done.attempts) == (2, 2)
        table.alter_schema(rename={"a": "n"})  # the retried file has its own, newer time
        assert rows_of(table) == [
            {"id": "x", "n": 9, "b": "nine", "c": None},
            {"id": "y", "n": 2, "b": "two", "c": None},
        ]


@pytest.mark.parametrize("kind", TYPES)
def test_a_change_runs_again_if_files_of_the_old_names_would_count_as_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with table_of(tmp_path, kind) as table, hoodoo.open_table(tmp_path / "t") as other:
        row = {"id": "x", "a": 9, "b": "nine"}
        with meanwhile(monkeypatch, lambda: other.upsert([row])) as attempts:
            done = table.alter_schema(rename={"a": "b", "b": "a"})
        assert (len(attempts), done.attempts) == (2, 2)
        assert rows_of(table) == [{"id": "x", "b": 9, "a": "nine"}, {"id": "y", "b": 2, "a": "two"}]


def test_two_changes_at_once_both_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with table_of(tmp_path) as table:
        with (
            hoodoo.open_table(tmp_path / "t", properties=ON_READ) as other,
            meanwhile(monkeypatch, lambda: other.alter_schema(rename={"b": "text"})),
        ):
            table.alter_schema(rename={"a": "n"})
        assert rows_of(table)[0] == {"id": "x", "n": 1, "text": "one"}


def test_two_writers_that_add_one_column_give_it_one_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table_of(tmp_path) as table, hoodoo.open_table(tmp_path / "t") as other:
        table.alter_schema(rename={"a": "n"})
        more = pa.Table.from_pylist([{"id": "p", "n": 3, "b": "p", "c": 1.5}])
        with meanwhile(monkeypatch, lambda: other.insert(more)):
            table.insert(more.set_column(0, "id", pa.array(["q"])))
        assert [row["c"] for row in rows_of(table)] == [1.5, 1.5, None, None]
        table.alter_schema(rename={"c": "d"})
        assert [row["d"] for row in rows_of(table)] == [1.5, 1.5, None, None]


# ---- Services


def test_archiving_deletes_old_histories_and_readers_need_none_of_them(tmp_path: Path) -> None:
    more = {
        "hoodie__clean__automatic": "false",
        "hoodie__archive__automatic": "false",
        "hoodie__keep__min__commits": "3",
        "hoodie__keep__max__commits": "4",
        "hoodie__clean__commits__retained": "2",
    }
    with table_of(tmp_path, **more) as table:
        renamed = table.alter_schema(rename={"a": "n"}).requested_time
        table.alter_schema(rename={"n": "m"})
        for number in range(6):
            table.upsert([{"id": "z", "m": number, "b": "z"}])
        files = tmp_path / "t/.hoodie/.schema"
        assert len(list(files.glob("*.schemacommit"))) == 8
        assert table.services.archive() is not None
        assert len(list(files.glob("*.schemacommit"))) == 3
        assert [row["m"] for row in rows_of(table)] == [1, 2, 5]
        assert rows_of_snapshot(table, renamed)[0] == {"id": "x", "n": 1, "b": "one"}
        table.alter_schema(rename={"m": "a"})
        assert [row["a"] for row in rows_of(table)] == [1, 2, 5]


def test_a_change_waits_for_planned_services(tmp_path: Path) -> None:
    with table_of(tmp_path, "MERGE_ON_READ") as table:
        table.upsert([{"id": "x", "a": 9, "b": "nine"}])
        planned = table.services.schedule("compact")
        assert planned is not None
        with pytest.raises(InvalidInputError) as caught:
            table.alter_schema(rename={"a": "n"})
        assert caught.value.kind == "instants_pending"
        table.services.execute(planned.requested_time)
        table.alter_schema(rename={"a": "n"})
        assert rows_of(table)[0]["n"] == 9


def test_a_plan_made_during_a_change_is_executed_with_the_new_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table_of(tmp_path, "MERGE_ON_READ") as table, hoodoo.open_table(tmp_path / "t") as other:
        other.upsert([{"id": "x", "a": 9, "b": "nine"}])
        plans: list[Any] = []
        with meanwhile(monkeypatch, lambda: plans.append(other.services.schedule("compact"))):
            table.alter_schema(rename={"a": "b", "b": "a"})
        [plan] = plans
        assert other.services.execute(plan.requested_time) is not None
        assert rows_of(table) == [{"id": "x", "b": 9, "a": "nine"}, {"id": "y", "b": 2, "a": "two"}]


def test_a_plan_older_than_a_rename_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table_of(tmp_path, "MERGE_ON_READ") as table:
        table.upsert([{"id": "x", "a": 9, "b": "nine"}])
        plan = table.services.schedule("compact")
        assert plan is not None
        monkeypatch.setattr(write_schema, "_refuse_pending_plans", lambda _: None)
        table.alter_schema(add={"c": pa.int32()})
        table.alter_schema(rename={"a": "b", "b": "a"})
        with pytest.raises(UnsupportedTableError) as caught:
            table.services.execute(plan.requested_time)
        assert caught.value.kind == "schema_changed"
        table.services.cancel(plan.requested_time)
        assert table.services.compact() is not None
        row = {"id": "x", "b": 9, "a": "nine", "c": None}
        assert rows_of(table) == [row, {"id": "y", "b": 2, "a": "two", "c": None}]


def test_a_compaction_in_flight_during_a_rename_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table_of(tmp_path, "MERGE_ON_READ") as table:
        table.upsert([{"id": "x", "a": 9, "b": "nine"}])
        original = compaction.on_file_groups

        def hooked(*args: Any, **more: Any) -> Any:
            made = original(*args, **more)
            monkeypatch.setattr(write_schema, "_refuse_pending_plans", lambda _: None)
            table.alter_schema(rename={"a": "b", "b": "a"})
            return made

        monkeypatch.setattr(compaction, "on_file_groups", hooked)
        left = table.services.compact()
        assert isinstance(left, ScheduledPlan)  # its files are not committed
        assert rows_of(table) == [{"id": "x", "b": 9, "a": "nine"}, {"id": "y", "b": 2, "a": "two"}]
