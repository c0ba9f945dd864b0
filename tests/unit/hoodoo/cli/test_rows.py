"""Rows as JSON: every type keeps its value, and no value can steer a terminal."""

from __future__ import annotations

import datetime as dt
import decimal
import json

import pyarrow as pa
import pytest

from hoodoo.cli.rows import json_lines

MOMENT = dt.datetime(2013, 1, 1, 10, 0, 0, 5, tzinfo=dt.UTC)


def lines(**columns: pa.Array) -> list[str]:
    return json_lines(pa.RecordBatch.from_pydict(columns)).to_pylist()


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([2**62, None]), ["4611686018427387904", "null"]),
        (pa.array([True, False]), ["true", "false"]),
        (pa.array([1.5, None]), ["1.5", "null"]),
        (pa.array([float("nan"), float("-inf")]), ['"NaN"', '"-Infinity"']),
        (pa.array([decimal.Decimal("1.20")], pa.decimal128(20, 2)), ["1.20"]),
        (pa.array([MOMENT], pa.timestamp("us", "UTC")), ['"2013-01-01T10:00:00.000005Z"']),
        (pa.array([MOMENT], pa.timestamp("us", "+02:00")), ['"2013-01-01T10:00:00.000005Z"']),
        (pa.array([dt.date(2013, 1, 2)]), ['"2013-01-02"']),
        (pa.array([b"\x00\xff", None]), ['"AP8="', "null"]),
        (pa.array(['a"b\\c\n', "é日"]), ['"a\\"b\\\\c\\n"', '"é日"']),
        (pa.array(["a", "b"]).dictionary_encode(), ['"a"', '"b"']),
        (pa.array([{"x": [1, None]}]), ['{"x":[1,null]}']),
        (pa.nulls(1), ["null"]),
    ],
)
def test_a_value_becomes_this_json(column: pa.Array, expected: list[str]) -> None:
    assert lines(a=column) == [f'{{"a":{value}}}' for value in expected]


def test_the_order_of_columns_and_rows_is_kept() -> None:
    assert lines(b=pa.array([1, 2]), a=pa.array(["x", "y"])) == [
        '{"b":1,"a":"x"}',
        '{"b":2,"a":"y"}',
    ]


@pytest.mark.parametrize("hostile", ["\x1b[31m", "\x9b31m", "\u202e", "\x07", "\u2028"])
def test_control_characters_are_escaped_and_keep_their_value(hostile: str) -> None:
    line = lines(a=pa.array([hostile]))[0]
    assert hostile not in line
    assert json.loads(line) == {"a": hostile}
