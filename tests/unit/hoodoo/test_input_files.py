"""``hoodoo write`` accepts the output of ``hoodoo read``, of any type."""

from __future__ import annotations

import decimal
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filegroups.schema.casting import normalise
from hoodoo.cli.rows import json_lines
from hoodoo.input_files import read_rows
from tests.unit.hoodoo.test_untyped import KINDS, columns, values_of
from timeline.errors import InvalidInputError


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


@st.composite
def _uneven_rows(draw: st.DrawFn) -> tuple[pa.Table, list[str], list[str]]:
    """Rows, the lines that name some of each row's columns, and the columns that a table has."""
    kinds = draw(st.lists(KINDS, min_size=1, max_size=3))
    count = draw(st.integers(1, 4))
    rows = pa.table(
        {
            f"c{number}": pa.array(
                draw(st.lists(values_of(kind), min_size=count, max_size=count)), kind
            )
            for number, kind in enumerate(kinds)
        }
    )
    subsets = st.lists(st.sampled_from(rows.column_names), unique=True)
    lines = []
    for number in range(count):
        named = rows.slice(number, 1).select(draw(subsets))
        lines += [json_lines(one)[0].as_py() for one in named.to_batches()] or ["{}"]
    return rows, lines, draw(subsets)


@given(_uneven_rows())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_lines_and_a_list_of_the_same_rows_are_read_alike(
    tmp_path: Path, drawn: tuple[pa.Table, list[str], list[str]]
):
    rows, lines, known = drawn
    schema = rows.select(known).schema
    (tmp_path / "r.ndjson").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "r.json").write_text(f"[{','.join(lines)}]", encoding="utf-8")
    read = [_read_or_kind(tmp_path / name, schema) for name in ("r.ndjson", "r.json")]
    assert read[0] == read[1]


def _read_or_kind(path: Path, schema: pa.Schema) -> object:
    try:
        made = read_rows(path, schema)
        known = [name for name in schema.names if name in made.column_names]
        stored = normalise(made.select(known), pa.schema([schema.field(name) for name in known]))
    except InvalidInputError as error:
        return error.kind
    new = made.drop_columns(known)
    return repr(stored.to_pylist()), repr(new.schema), repr(new.to_pylist()), made.column_names


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


def test_a_column_that_no_line_names_is_missing(tmp_path: Path):
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
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, text: str, kind: str):
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


VARIANT = pa.struct(
    [
        pa.field("metadata", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)


def test_a_cell_of_a_variant_column_is_the_text_of_a_variant(tmp_path: Path):
    schema = pa.schema([("id", pa.int64()), ("v", VARIANT)])
    lines = [f'{{"id":{at},"v":{json.dumps(v)}}}' for at, v in enumerate(('{"a":1}', '"x"', "5"))]
    wanted = _read(tmp_path / "r.ndjson", "\n".join(lines), schema)
    cells = 'id,v\n0,"{""a"":1}"\n1,"""x"""\n2,5\n'
    assert _read(tmp_path / "r.csv", cells, schema).to_pylist() == wanted.to_pylist()


@pytest.mark.parametrize("schema", [None, PLAIN])
@pytest.mark.parametrize("partition", ["2024-01-01", "07", "true"])
def test_meta_columns_are_texts(tmp_path: Path, schema: pa.Schema | None, partition: str):
    lines = f'{{"_hoodie_partition_path":"{partition}","n":1}}\n{{"n":2}}'
    for name, text in (
        ("r.ndjson", lines),
        ("r.json", f"[{lines}]".replace("\n", ",")),
        ("r.csv", f"_hoodie_partition_path,n\n{partition},1\n,2"),
    ):
        made = _read(tmp_path / name, text, schema)
        assert made.column("_hoodie_partition_path").to_pylist() == [partition, None]
        assert made.column_names == ["_hoodie_partition_path", "n"]


TYPED = pa.schema(
    [
        ("id", pa.string()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("money", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("v", VARIANT),
        ("s", pa.struct({"x": pa.int32(), "at": pa.list_(pa.timestamp("us"))})),
        ("unnamed", pa.string()),
    ]
)
LINES = (
    '{"id":"a","d":0.1,"f":1,"at":"2026-01-02T03:00:00+02:00","day":"2026-01-02","money":1.50}\n'
    '\n{"id":"b","d":1e10,"raw":"AP8=","v":"5","s":{"x":1,"at":["2026-01-02T03:00:00"]},"y":[2]}\n'
)


@pytest.mark.parametrize("ending", [".ndjson", ".jsonl", ".json"])
@pytest.mark.parametrize("schema", [None, TYPED])
def test_flat_lines_are_not_read_value_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: pa.Schema | None, ending: str
):
    (tmp_path / "list.json").write_text("[" + LINES.replace("}\n\n{", "},{") + "]")
    one_by_one = read_rows(tmp_path / "list.json", schema)
    monkeypatch.setattr("hoodoo.input_files.typed_rows", pytest.fail)
    made = _read(tmp_path / f"r{ending}", LINES, schema)
    assert made.to_pylist() == one_by_one.to_pylist()
    assert "unnamed" not in made.column_names


@pytest.mark.parametrize("ending", [".ndjson", ".json"])
def test_texts_like_times_in_new_columns_stay_texts(tmp_path: Path, ending: str):
    row = {
        "id": 1,
        "at": "2026-01-02 03:04:05",
        "day": "2026-01-02",
        "s": {"ats": ["2026-01-02T03:04:05Z"], "n": 1.5},
    }
    text = json.dumps([row] if ending == ".json" else row)
    made = _read(tmp_path / f"r{ending}", text, pa.schema([("id", pa.int32())]))
    assert made.to_pylist() == [row]
    assert made.schema.field("id").type == pa.int32()


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (pa.float64(), '"Infinity"', math.inf),
        (pa.float64(), "Infinity", math.inf),
        (pa.float32(), "1e39", "lossy_value"),
        (pa.float32(), "1" + "0" * 400, "lossy_value"),
        (pa.int32(), "7.0", 7),
        (pa.int64(), str(2**63), "lossy_value"),
        (pa.decimal128(10, 2), "1.555", "lossy_value"),
        (pa.decimal128(20, 0), str(2**64), decimal.Decimal(2**64)),
        (pa.timestamp("us"), '"2026-01-02T03:00:00Z"', "lossy_value"),
        (pa.timestamp("us", "UTC"), '"2026-01-02T03:00:00"', "lossy_value"),
        (pa.timestamp("us"), '"2026-01-02T03:00:00.1234567"', "lossy_value"),
        (pa.map_(pa.string(), pa.int32()), '{"k":1}', [("k", 1)]),
        (pa.struct({"x": pa.int32()}), "{}", "schema_mismatch"),
        (None, str(2**64), decimal.Decimal(2**64)),
        (None, "1e400", "data"),
    ],
)
def test_values_that_arrow_would_round_are_read_one_by_one(
    tmp_path: Path, kind: pa.DataType | None, value: str, wanted: object
):
    schema = pa.schema([("id", pa.int32())])
    schema = schema if kind is None else schema.append(pa.field("c", kind))
    try:
        got = _read(tmp_path / "r.ndjson", f'{{"id":1,"c":{value}}}', schema)["c"][0].as_py()
    except InvalidInputError as error:
        got = error.kind
    assert got == wanted


@pytest.mark.parametrize("text", ['{\n "id": "a",\n "n": 1\n}', '{"id":"a",\n"n":1}\r\n\r\n'])
@pytest.mark.parametrize("ending", [".json", ".ndjson"])
def test_an_object_may_take_several_lines(tmp_path: Path, text: str, ending: str):
    assert _read(tmp_path / f"r{ending}", text).to_pylist() == [{"id": "a", "n": 1}]


@pytest.mark.parametrize("between", ["", "\n"])
@pytest.mark.parametrize("schema", [None, PLAIN])
def test_a_file_that_nests_too_deep_is_refused(
    tmp_path: Path, schema: pa.Schema | None, between: str
):
    text = '{"c":' + f"[{between}" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(InvalidInputError) as caught:
        _read(tmp_path / "r.ndjson", text, schema)
    assert caught.value.kind == "input_file"


def test_a_text_that_is_no_utf8_is_refused(tmp_path: Path):
    (tmp_path / "r.ndjson").write_bytes(b'{"id":"\xff","n":1}')
    with pytest.raises(InvalidInputError) as caught:
        read_rows(tmp_path / "r.ndjson", PLAIN)
    assert caught.value.kind == "input_file"


# ---- errors name the file, the line and the column of the first bad value

VALUES = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.float64()),
        ("d", pa.date32()),
        ("name", pa.string()),
        ("tags", pa.list_(pa.field("element", pa.int64()))),
    ]
)


@pytest.mark.parametrize(
    ("name", "text", "kind", "problem"),
    [
        (
            "r.csv",
            "id,price\n1,2\n2,x\n",
            "input_file",
            "line 3, column 'price': 'x' is not a double",
        ),
        (
            "r.csv",
            'id,name,price\n1,"a\nb",2.5\n\n2,"c\nd",x\n',
            "input_file",
            "line 5, column 'price': 'x' is not a double",
        ),
        ("r.csv", "id\n1.5\n", "input_file", "line 2, column 'id': '1.5' is not an int64"),
        ("r.csv", "id,price\n1,2\n1,2,3\n", "input_file", "line 3: Expected 2 columns, got 3"),
        (
            "r.csv",
            'id,tags\n1,"[1]"\n2,"[1,2"\n',
            "input_file",
            "line 3, column 'tags': '[1,2' is not a list<element: int64>",
        ),
        (
            "r.ndjson",
            '{"id":1,"price":2.5}\n\n{"id":2,"price":"x"}\n{"id":3,"price":1}\n',
            "schema_mismatch",
            "line 3, column 'price': 'x' is not a double",
        ),
        (
            "r.ndjson",
            '{"id":1,"d":"2020-01-01"}\n{"id":2,"d":"20x"}\n',
            "lossy_value",
            "line 2, column 'd': '20x' is not a date32[day]",
        ),
        (
            "r.ndjson",
            '{"id":1}\n{"id":1.5}\n',
            "lossy_value",
            "line 2, column 'id': 1.5 is not an int64",
        ),
        (
            "r.ndjson",
            '{"tags":[1]}\n{"tags":["x"]}\n',
            "schema_mismatch",
            "line 2, column 'tags': ['x'] is not a list<element: int64>",
        ),
        (
            "r.json",
            '[{"id":1},\n{"id":"k"}]',
            "schema_mismatch",
            "row 2, column 'id': 'k' is not an int64",
        ),
    ],
)
def test_an_error_names_file_line_column_and_value(
    tmp_path: Path, name: str, text: str, kind: str, problem: str
):
    with pytest.raises(InvalidInputError) as caught:
        _read(tmp_path / name, text, VALUES)
    assert caught.value.kind == kind
    assert caught.value.message.startswith(f"{tmp_path / name} {problem}"), caught.value.message
    assert "; correct the " in caught.value.message


@given(st.integers(1, 300), st.data())
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_first_bad_row_is_named_at_any_place(tmp_path: Path, count: int, data: st.DataObject):
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    values = ["x" if number in bad else "1" for number in range(count)]
    texts = {
        "r.csv": "\n".join(["id,price", *(f"{n},{one}" for n, one in enumerate(values))]),
        "r.ndjson": "\n".join(json.dumps({"price": one if one == "x" else 1}) for one in values),
    }
    for (name, text), header in zip(texts.items(), (1, 0), strict=True):
        with pytest.raises(InvalidInputError) as caught:
            _read(tmp_path / name, text, VALUES)
        assert caught.value.fields["place"] == f"line {min(bad) + 1 + header}"


@pytest.mark.parametrize(
    ("text", "ending", "place", "before", "other"),
    [
        ('{"n":1}\n\n{"n":null}\n{"n":"x"}\n{"n":2}', ".ndjson", "line 4", "int64", "string"),
        ('{"n":"x"}\n{"n":true}', ".jsonl", "line 2", "string", "bool"),
        ('[{"n":null},\n{"n":[1]},{"n":{"a":1}}]', ".json", "row 3", "list<item: int64>", "struct<a: int64>"),
        ('{"n":{"a":1}}\n{"n":{"a":"x"}}', ".ndjson", "line 2", "struct<a: int64>", "struct<a: string>"),
        ('{"n":9223372036854775808}\n{"n":"5"}', ".ndjson", "line 2", "decimal128(19, 0)", "string"),
    ],
)  # fmt: skip
def test_a_new_column_of_mixed_types_names_line_and_types(
    tmp_path: Path, text: str, ending: str, place: str, before: str, other: str
) -> None:
    path = tmp_path / f"rows{ending}"
    path.write_text(text, encoding="utf-8")
    for schema in (None, pa.schema([("id", pa.int64())])):
        with pytest.raises(InvalidInputError) as caught:
            read_rows(path, schema)
        assert caught.value.kind == "data"
        assert caught.value.fields == {
            "column": "n",
            "type_before": before,
            "type": other,
            "path": str(path),
            "place": place,
        }
        assert caught.value.message.startswith(f"{path} {place}, column 'n': ")
        assert f" has the type {other}, and the values before it have {before};" in (
            caught.value.message
        )
