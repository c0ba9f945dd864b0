"""The grammar of --filter."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from hoodoo.cli.read import parse_filter
from timeline.errors import InvalidInputError

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("ok", pa.bool_()),
    ]
)


def read(text: str) -> list[tuple[str, str, Any]]:
    return [
        (column, op, value.as_py() if isinstance(value, pa.Scalar) else value.to_pylist())
        for column, op, value in parse_filter(text, SCHEMA)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 3", [("id", "==", 3)]),
        ("id>=3 AND name != 'O''Hara and co'", [("id", ">=", 3), ("name", "!=", "O'Hara and co")]),
        ('name = "a b"', [("name", "==", "a b")]),
        ("id in (1, 2)", [("id", "in", [1, 2])]),
        ("name not in (AA,UA)", [("name", "not in", ["AA", "UA"])]),
        ("day < 2013-01-02", [("day", "<", dt.date(2013, 1, 2))]),
        ("ok = true", [("ok", "==", True)]),
        (
            "at = '2013-01-01 10:00:00'",
            [("at", "==", dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC))],
        ),
    ],
)
def test_a_filter_means_these_conditions(text: str, expected: list[tuple[str, str, Any]]) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "filter"),
        ("id", "filter"),
        ("id = ", "filter"),
        ("id = 3 or id = 4", "filter"),
        ("id in 3", "filter"),
        ("id in (3", "filter"),
        ("id like 3", "filter"),
        ("name = 'open", "filter"),
        ("nothing = 3", "unknown_column"),
        ("id = three", "filter_value"),
    ],
)
def test_what_is_no_filter_is_refused(text: str, kind: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_filter(text, SCHEMA)
    assert caught.value.kind == kind
