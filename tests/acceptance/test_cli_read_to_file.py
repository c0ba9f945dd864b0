"""``hoodoo read --to FILE``: rows in a new Parquet or CSV file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import hoodoo
from hoodoo.cli.output_files import write_rows
from tests.acceptance.cli import run, table_with_rows
from timeline.errors import InvalidInputError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return table_with_rows(tmp_path)


def test_a_parquet_file_has_the_rows_and_types_of_the_table(table: Path, tmp_path: Path) -> None:
    target = tmp_path / "rows.parquet"
    said = run("read", table, "--to", target).document
    assert said == {"file": str(target), "rows": 3, "bytes": target.stat().st_size}
    with hoodoo.open_table(str(table)) as opened:
        assert pq.read_table(target).equals(opened.to_arrow())


def test_a_csv_file_has_the_chosen_columns_and_rows(table: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    run("read", table, "--to", target, "--columns", "name,id", "--filter", "id > 1")
    assert pacsv.read_csv(target).to_pylist() == [
        {"name": "bob", "id": 2},
        {"name": "eve", "id": 3},
    ]


def test_an_existing_file_is_replaced_only_by_force(table: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    target.write_text("mine")
    refused = run("read", table, "--to", target, "-o", "json")
    assert (refused.exit_code, refused.error["kind"]) == (1, "output_exists")
    assert target.read_text() == "mine"
    assert run("read", table, "--to", target, "--force", "--limit", 1).document["rows"] == 1
    assert len(target.read_text().splitlines()) == 2


def test_a_file_that_appears_during_the_read_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    batch = pa.record_batch({"a": [1]})

    def batches():
        target.write_text("of another process")
        yield batch

    with pytest.raises(InvalidInputError, match="exists"):
        write_rows(target, pa.RecordBatchReader.from_batches(batch.schema, batches()), force=False)
    assert [one.name for one in tmp_path.iterdir()] == ["out.csv"]
    assert target.read_text() == "of another process"


def test_a_failed_read_leaves_no_file(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": [1]})

    def batches():
        yield batch
        raise RuntimeError("the read failed")

    reader = pa.RecordBatchReader.from_batches(batch.schema, batches())
    with pytest.raises(RuntimeError, match="the read failed"):
        write_rows(tmp_path / "rows.parquet", reader, force=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("rows.json", "one of .parquet, .csv"), ("no/rows.csv", "existing, writable folder")],
)
def test_a_wrong_name_is_an_error_with_the_next_step(
    table: Path, tmp_path: Path, name: str, text: str
) -> None:
    answer = run("read", table, "--to", tmp_path / name, "-o", "json")
    assert (answer.exit_code, answer.error["kind"]) == (1, "output_file")
    assert text in answer.error["message"]


def test_csv_has_nested_values_as_json_and_binary_values_in_base64(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "tags": [["a", 'b"'], None],
            "place": [{"x": 1}, {"x": None}],
            "raw": pa.array([b"\x00\xff", None]),
        }
    )
    write_rows(tmp_path / "rows.csv", rows.to_reader(), force=False)
    assert pacsv.read_csv(tmp_path / "rows.csv").to_pylist() == [
        {"tags": '["a","b\\""]', "place": '{"x":1}', "raw": "AP8="},
        {"tags": "", "place": '{"x":null}', "raw": ""},
    ]
