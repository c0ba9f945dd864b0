"""Rows under a key that their columns do not make are found, and brought to where they belong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from hoodoo.table import Table
from hoodoo.verify.verify import verify
from hoodoo.write_requests import write_request_of
from timeline.errors import InvalidInputError, UnsupportedTableError
from timeline.model.commit_metadata import WriteOperation

SCHEMA = pa.schema(
    [("id", pa.float64()), ("p", pa.float64()), ("ts", pa.int64()), ("v", pa.int64())]
)
TYPES = ["COPY_ON_WRITE", "MERGE_ON_READ"]


def table_of(root: Path, table_type: str = "COPY_ON_WRITE", **options: Any) -> Table:
    chosen = {"record_key": ["id"], "partition_by": ["p"], "ordering": ["ts"], **options}
    return hoodoo.create_table(root, schema=SCHEMA, table_type=table_type, **chosen)


def row(number: float, ts: int, v: int, p: float = 1.0) -> dict[str, Any]:
    return {"id": number, "p": p, "ts": ts, "v": v}


def put(table: Table, row: dict[str, Any], key: str, path: str) -> None:
    """A row under another address, as earlier releases put it."""
    rows = pa.Table.from_pylist([row], SCHEMA)
    rows = rows.append_column("_hoodie_record_key", pa.array([key]))
    rows = rows.append_column("_hoodie_partition_path", pa.array([path]))
    plan = write_request_of(table.settings, table.config, WriteOperation.UPSERT)
    keys = replace(plan.rules.keys, carried=True, partition_fields=("gone",))
    lookup = replace(plan.rules.lookup, whole_table=False)
    plan = replace(plan, rules=replace(plan.rules, keys=keys, lookup=lookup))
    write(table.context, plan, LocalWorkload(table.context.ports, rows))


def stored(table: Table) -> list[tuple[str, str, int]]:
    names = ["_hoodie_record_key", "_hoodie_partition_path", "v"]
    rows = table.to_arrow(columns=names).to_pylist()
    return sorted((row[names[0]], row[names[1]], row["v"]) for row in rows)


def problems(table: Table) -> list[str]:
    return sorted(one.kind for one in verify(table.context, all_columns=True).problems)


@pytest.mark.parametrize("table_type", TYPES)
def test_the_row_with_the_greatest_ordering_value_stays(tmp_path: Path, table_type: str) -> None:
    with table_of(tmp_path / "t", table_type) as table:
        table.upsert([row(7.0, 5, 1), row(8.0, 5, 2), row(9.0, 1, 3)])
        put(table, row(7.0, 6, 10), "7", "1.0")  # newer than its twin
        put(table, row(8.0, 4, 20), "8", "1.0")  # older
        put(table, row(5.0, 1, 30), "5", "1.0")  # alone
        put(table, row(9.0, 2, 40), "9.0", "1")  # in another folder, and newer
        assert problems(table) == ["other_key", "other_partition"]
        assert table.repair_keys(dry_run=True).rows == 4
        done = table.repair_keys()
        assert (done.rewritten, done.deleted) == (3, 4)
        assert stored(table) == [
            ("5.0", "1.0", 30),
            ("7.0", "1.0", 10),
            ("8.0", "1.0", 2),
            ("9.0", "1.0", 40),
        ]
        assert problems(table) == []
        assert table.repair_keys().writes == 0


@pytest.mark.parametrize("table_type", TYPES)
def test_without_ordering_the_row_that_was_written_last_stays(
    tmp_path: Path, table_type: str
) -> None:
    with table_of(tmp_path / "t", table_type, ordering=[]) as table:
        table.upsert([row(7.0, 9, 1)])
        put(table, row(7.0, 0, 2), "7", "1.0")
        put(table, row(8.0, 9, 3), "8", "1.0")
        table.upsert([row(8.0, 0, 4)])
        table.repair_keys()
        assert stored(table) == [("7.0", "1.0", 2), ("8.0", "1.0", 4)]


@pytest.mark.parametrize("table_type", TYPES)
def test_rows_stored_under_each_others_keys_are_all_kept(tmp_path: Path, table_type: str) -> None:
    with table_of(tmp_path / "t", table_type) as table:
        put(table, row(1.0, 1, 10), "2.0", "1.0")
        put(table, row(2.0, 5, 20), "1.0", "1.0")
        put(table, row(3.0, 1, 30), "4.0", "1.0")
        put(table, row(4.0, 5, 40), "5", "1.0")
        assert table.repair_keys().writes == 4
        assert stored(table) == [(f"{n}.0", "1.0", 10 * n) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("ordering", [[], ["ts"]])
def test_rows_in_the_folder_of_their_neighbour_are_all_kept(
    tmp_path: Path, ordering: list[str]
) -> None:
    with table_of(tmp_path / "t", ordering=ordering) as table:
        for n in (1, 2, 3, 4):
            put(table, row(1.0, 9 - n, 10 * n, p=float(n)), "1.0", f"{n - 1}.0")
        assert table.repair_keys().writes == 4
        assert stored(table) == [("1.0", f"{n}.0", 10 * n) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("ordering", [[], ["ts"]])
def test_the_winner_stays_where_memory_holds_one_row(
    tmp_path: Path, ordering: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hoodoo.key_repair._ROWS_MAX", 1)
    with table_of(tmp_path / "t", ordering=ordering) as table:
        put(table, row(1.0, 1, 10), "1", "0.5")
        put(table, row(1.0, 1, 11), "1", "0.7")
        put(table, row(1.0, 1, 20, p=2.0), "1.0", "1.0")  # at the place of the others
        table.repair_keys()
        assert stored(table) == [("1.0", "1.0", 11), ("1.0", "2.0", 20)]


def test_rows_that_an_index_keeps_in_another_partition_are_valid(tmp_path: Path) -> None:
    stays = {
        "hoodie.index.type": "GLOBAL_SIMPLE",
        "hoodie.simple.index.update.partition.path": "false",
    }
    with table_of(tmp_path / "t", properties=stays) as table:
        table.upsert([row(1.0, 1, 10, p=1.0), row(2.0, 1, 20, p=1.0)])
        table.upsert([row(1.0, 2, 11, p=2.0)])
        assert problems(table) == []
        assert table.repair_keys().rows == 0
        put(table, row(2.0, 2, 21, p=2.0), "2", "3.0")
        assert problems(table) == ["other_key"]
        assert table.repair_keys(dry_run=True).rows == 1
        table.repair_keys()
        assert stored(table) == [("1.0", "1.0", 11), ("2.0", "3.0", 21)]


def test_with_a_global_index_rows_of_a_key_in_two_folders_are_one_record(tmp_path: Path) -> None:
    with table_of(tmp_path / "t", properties={"hoodie.index.type": "GLOBAL_SIMPLE"}) as table:
        table.upsert([row(1.0, 3, 10, p=1.0), row(2.0, 3, 20, p=1.0)])
        put(table, row(1.0, 5, 11, p=2.0), "1", "2.0")
        put(table, row(2.0, 2, 21, p=2.0), "2.0", "3.0")
        put(table, row(9.0, 9, 90, p=2.0), "1.0", "2.0")  # at the place of another
        table.repair_keys()
        assert stored(table) == [("1.0", "2.0", 11), ("2.0", "1.0", 20), ("9.0", "2.0", 90)]


def upsert_beside(table: hoodoo.Table, others: list[dict[str, Any]]) -> None:
    """Let another writer upsert one of these rows before each write of the table."""
    published = table._writer.write

    def beside(plan: Any, workload: Any) -> Any:
        if others:
            table.upsert([others.pop()])
        return published(plan, workload)

    table._writer.write = beside  # type: ignore[method-assign]


def test_a_repair_during_writes_loses_no_row(tmp_path: Path) -> None:
    with table_of(tmp_path / "t") as table:
        put(table, row(7.0, 6, 10), "7", "1.0")
        upsert_beside(table, [row(7.0, 8, 80), row(6.0, 1, 60)])
        table.repair_keys()
        assert stored(table) == [("6.0", "1.0", 60), ("7.0", "1.0", 80)]
        assert problems(table) == []


def test_a_row_that_another_writer_puts_into_another_folder_is_one_record_with_it(
    tmp_path: Path,
) -> None:
    unique = {"hoodie.index.type": "GLOBAL_SIMPLE"}
    with table_of(tmp_path / "t", ordering=[], properties=unique) as table:
        put(table, row(1.0, 5, 10, p=2.0), "1", "2.0")
        upsert_beside(table, [row(1.0, 9, 90, p=3.0)])
        table.repair_keys()
        assert stored(table) == [("1.0", "3.0", 90)]


FORM = "hoodie.write.complex.keygen.new.encoding"


def complex_table(root: Path) -> Table:
    generator = {"hoodie.datasource.write.keygenerator.type": "COMPLEX"}
    return table_of(root, properties={**generator, "hoodie.write.table.version": "8"})


def test_keys_of_two_forms_get_one(tmp_path: Path) -> None:
    with complex_table(tmp_path / "t") as table:
        table.upsert([row(1.0, 1, 10), row(2.0, 1, 20)])
        plan = write_request_of(table.settings, table.config, WriteOperation.INSERT)
        put(table, row(1.0, 2, 11), "id:1.0", "1.0")
        assert plan.rules.keys.prefixes_keys is False
    with hoodoo.open_table(tmp_path / "t") as table:
        with pytest.raises(UnsupportedTableError, match="repair-keys"):
            table.upsert([row(1.0, 3, 12)])
        table.repair_keys()
        assert stored(table) == [("id:1.0", "1.0", 11), ("id:2.0", "1.0", 20)]
        table.upsert([row(1.0, 3, 12)])
    with hoodoo.open_table(tmp_path / "t", properties={FORM: "true"}) as table:
        table.repair_keys()
        assert stored(table) == [("1.0", "1.0", 12), ("2.0", "1.0", 20)]


def test_the_form_of_keys_does_not_change_while_a_writer_is_registered(tmp_path: Path) -> None:
    with complex_table(tmp_path / "t") as writer:
        writer.upsert([row(1.0, 1, 10)])
        with hoodoo.open_table(tmp_path / "t", properties={FORM: "false"}) as table:
            put(table, row(2.0, 1, 20), "2", "1.0")  # a key of another type alone is repaired
            with pytest.raises(InvalidInputError) as refused:
                table.repair_keys()
            assert refused.value.kind == "writers_at_work"
            assert stored(table) == [("1.0", "1.0", 10), ("2", "1.0", 20)]
            writer.close()
            table.repair_keys()
            assert stored(table) == [("id:1.0", "1.0", 10), ("id:2.0", "1.0", 20)]


def test_a_writer_that_finds_the_other_key_form_reads_the_keys_again(tmp_path: Path) -> None:
    with complex_table(tmp_path / "t") as table:
        table.upsert([row(1.0, 1, 10), row(2.0, 1, 20)])
    with hoodoo.open_table(tmp_path / "t", properties={FORM: "false"}) as table:
        table.repair_keys()
    with hoodoo.open_table(tmp_path / "t") as table:
        table.context.key_encodings[""] = frozenset({False})  # found before the repair
        with pytest.raises(UnsupportedTableError):
            table.upsert([row(1.0, 2, 11)])
        assert table.upsert([row(1.0, 2, 11)]).rows_updated == 1


def test_rows_under_the_key_of_a_right_row_are_refused(tmp_path: Path) -> None:
    with table_of(tmp_path / "t") as table:
        table.upsert([row(7.0, 1, 1), row(8.0, 9, 8)])
        plan = write_request_of(table.settings, table.config, WriteOperation.BULK_INSERT)
        plan = plan.with_keys(replace(plan.rules.keys, carried=True))
        rows = pa.Table.from_pylist([row(8.0, 1, 9)], SCHEMA)
        rows = rows.append_column("_hoodie_record_key", pa.array(["7.0"]))
        write(table.context, plan, LocalWorkload(table.context.ports, rows))
        with pytest.raises(InvalidInputError) as refused:
            table.repair_keys()
        assert refused.value.kind == "key_twice"
        assert len(stored(table)) == 3


def test_a_table_without_key_fields_has_nothing_to_repair(tmp_path: Path) -> None:
    with (
        hoodoo.create_table(tmp_path / "t", schema=SCHEMA) as table,
        pytest.raises(UnsupportedTableError, match="nothing to repair"),
    ):
        table.repair_keys()
