"""What ``hoodoo read`` prints can be given to ``hoodoo write``, whatever the type."""

from __future__ import annotations

import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from hoodoo.cli.input_files import read_rows
from hoodoo.cli.row_json import json_lines
from tests.unit.hoodoo.test_untyped import columns
from timeline.errors import InvalidInputError
from timeline.model.schema import normalise


def _given_again(rows: pa.Table, folder: Path, ending: str = ".ndjson") -> pa.Table:
    lines = [text for batch in rows.to_batches() for text in json_lines(batch).to_pylist()]
    for line in lines:
        json.loads(line)
    path = folder / f"rows{ending}"
    text = f"[{','.join(lines)}]" if ending == ".json" else "\n".join(lines)
    path.write_text(text, encoding="utf-8")
    return normalise(read_rows(path, rows.schema), rows.schema)


@given(columns())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_printed_rows_are_read_as_they_were(tmp_path: Path, column: tuple[pa.DataType, list[Any]]):
    kind, values = column
    rows = pa.table({"id": pa.array(range(len(values))), "c": pa.array(values, kind)})
    assert repr(_given_again(rows, tmp_path).to_pylist()) == repr(rows.to_pylist())
    part = rows.slice(1)  # a batch that begins inside of its buffers
    assert repr(_given_again(part, tmp_path, ".json").to_pylist()) == repr(part.to_pylist())


PLAIN = pa.schema([("id", pa.string()), ("n", pa.int32())])
DECIMALS = pa.schema([("id", pa.string()), ("d", pa.decimal128(20, 10))])


def _read(path: Path, text: str, schema: pa.Schema | None = PLAIN) -> pa.Table:
    path.write_text(text)
    return read_rows(path, schema)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.ndjson", '{"id":"a","n":1}\n\n{"id":"b"}\n'),
        ("r.jsonl", '{"id":"a","n":1}\n{"id":"b","n":null}'),
        ("r.json", '[{"id":"a","n":1},\n {"id":"b"}]'),
        ("r.json", '{"id":"a","n":1}\n{"id":"b"}'),
        ("r.json", '\ufeff[{"id":"a","n":1.0},{"id":"b"}]'),
        ("r.csv", "id,n\na,1\nb,\n"),
    ],
)
def test_every_form_gives_the_same_rows(tmp_path: Path, name: str, text: str):
    made = normalise(_read(tmp_path / name, text), PLAIN)
    assert made.to_pylist() == [{"id": "a", "n": 1}, {"id": "b", "n": None}]


def test_a_column_that_no_line_names_is_left_out(tmp_path: Path):
    assert _read(tmp_path / "r.ndjson", '{"id":"a"}').column_names == ["id"]
    assert _read(tmp_path / "r.ndjson", '{"id":"a","n":null}').column_names == ["id", "n"]


def test_a_new_column_has_the_type_that_a_new_table_would_give_it(tmp_path: Path):
    text = '{"id":"a","n":1,"x":{"d":1.5}}\n{"id":"b","n":2,"y":[2]}'
    new = _read(tmp_path / "r.ndjson", text, None).schema
    there = _read(tmp_path / "r.ndjson", text).schema
    assert (there.field("x").type, there.field("y").type) == (
        new.field("x").type,
        new.field("y").type,
    )


@pytest.mark.parametrize("name", ["r.ndjson", "r.jsonl", "r.json", "r.csv"])
def test_a_file_without_rows_has_none(tmp_path: Path, name: str):
    assert _read(tmp_path / name, "").num_rows == 0


def test_an_empty_list_has_no_rows(tmp_path: Path):
    assert _read(tmp_path / "r.json", "[]").num_rows == 0


def test_digits_of_a_decimal_are_kept(tmp_path: Path):
    for text in ('{"id":"a","d":1234567890.0123456789}', '{"id":"a","d":"1234567890.0123456789"}'):
        made = _read(tmp_path / "r.ndjson", text, DECIMALS).column("d").to_pylist()
        assert made == [decimal.Decimal("1234567890.0123456789")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"id":"a","n":2147483648}', "lossy_value"),
        ('{"id":"a","n":1.5}', "lossy_value"),
        ('{"id":"a","n":"1"}', "schema_mismatch"),
        ('{"id":"a","n":1}\n[1]', "input_file"),
        ('{"id":"a","n":1}\n{"id":', "input_file"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, text: str, kind: str):
    with pytest.raises(InvalidInputError) as caught:
        normalise(_read(tmp_path / "r.ndjson", text), PLAIN)
    assert caught.value.kind == kind


def test_binary_values_are_base64(tmp_path: Path):
    schema = pa.schema([("b", pa.binary())])
    assert _read(tmp_path / "r.ndjson", '{"b":"AP8="}', schema).to_pylist() == [{"b": b"\x00\xff"}]
    with pytest.raises(InvalidInputError, match="base64"):
        _read(tmp_path / "r.ndjson", '{"b":"%"}', schema)


def test_a_cell_of_a_nested_column_is_json(tmp_path: Path):
    schema = pa.schema([("id", pa.string()), ("m", pa.map_(pa.string(), pa.int32()))])
    made = _read(tmp_path / "r.csv", 'id,m\na,"{""k"":1}"\nb,\n', schema)
    assert made.to_pylist() == [{"id": "a", "m": [("k", 1)]}, {"id": "b", "m": None}]
