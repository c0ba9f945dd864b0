"""``hoodoo diff``: which rows differ between two snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.cli import run, table_with_rows


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diff")
    made = table_with_rows(folder)
    later = folder / "later.csv"
    later.write_text("id,name,amount,day,version\n2,bo,2.5,2013-01-02,2\n4,dan,4,2013-01-03,1\n")
    assert run("write", made, "--input", later).exit_code == 0
    return made


def test_a_program_gets_the_counts_as_one_document(table: Path) -> None:
    document = run("diff", table, "@-2", "@-1", "--partitions").document
    assert document.pop("before") < document.pop("after")
    assert document == {
        "rows_inserted": 1,
        "rows_updated": 1,
        "rows_deleted": 0,
        "columns": {"name": 1, "version": 1},
        "partitions": [
            {
                "partition": "2013-01-02",
                "rows_inserted": 0,
                "rows_updated": 1,
                "rows_deleted": 0,
            },
            {
                "partition": "2013-01-03",
                "rows_inserted": 1,
                "rows_updated": 0,
                "rows_deleted": 0,
            },
        ],
    }


def test_a_program_gets_each_row_as_one_object(table: Path) -> None:
    old = {"id": 2, "name": "bob", "amount": 2.5, "day": "2013-01-02", "version": 1}
    new = {"id": 4, "name": "dan", "amount": 4, "day": "2013-01-03", "version": 1}
    updated = {
        "op": "u",
        "partition": "2013-01-02",
        "key": "2",
        "changed": ["name", "version"],
        "before": old,
        "after": old | {"name": "bo", "version": 2},
    }
    inserted = {
        "op": "i",
        "partition": "2013-01-03",
        "key": "4",
        "changed": [],
        "before": None,
        "after": new,
    }
    assert run("diff", table, "@-2", "--rows").rows == [updated, inserted]
    assert run("diff", table, "@-2", "--rows", "--limit", 1).rows == [updated]
    assert run("diff", table, "@-2", "--rows", "--limit", 0).out == ""


def test_chosen_columns_alone_are_compared(table: Path) -> None:
    document = run("diff", table, "@-2", "--columns", "amount").document
    assert (document["rows_updated"], document["rows_inserted"]) == (0, 1)
    answer = run("diff", table, "@-2", "--columns", "amuont", "-o", "json")
    assert (answer.exit_code, answer.error["kind"]) == (1, "unknown_column")


def test_a_moment_before_the_table_is_an_error(table: Path) -> None:
    answer = run("diff", table, "2w", "-o", "json")
    assert answer.exit_code == 1
    assert answer.err.count("\n") == 1
