"""Value texts of updates and merges have the meaning of SQL; DuckDB gives the expected values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filegroups.reading.filter_text import FilterText, computed
from timeline.errors import InvalidInputError

ROWS = pa.table(
    {
        "a": pa.array([1, 2, None, -7, 0], pa.int32()),
        "b": pa.array([3, None, 5, -2, 0], pa.int64()),
        "rate": pa.array([0.5, None, -1.5, 2.0, 3.25]),
        "cost": pa.array(
            [None if one is None else Decimal(one) for one in ("1.25", "-2.55", None, "0", "9")],
            pa.decimal128(10, 2),
        ),
        "name": pa.array(["ann", " Bo ", None, "", "é1"]),
        "day": pa.array([dt.date(2026, 1, one) for one in (1, 2, 3, 4)] + [None], pa.date32()),
        "noted": pa.array(
            [dt.datetime(2026, 1, 1, one, tzinfo=dt.UTC) for one in range(4)] + [None]
        ),
        "ok": pa.array([True, False, None, True, False]),
        "place": pa.array([{"City": one} for one in ("Rome", "Oslo", None, "Rome", "Bonn")]),
    }
)
ROWS = ROWS.set_column(6, "noted", ROWS.column("noted").cast(pa.timestamp("us")))

DUCKDB = duckdb.connect(config={"threads": 1})
DUCKDB.register("given", ROWS)
DUCKDB.execute("CREATE TABLE rows AS SELECT * FROM given")


def values(text: str, kind: pa.DataType | None = None) -> pa.ChunkedArray:
    found = FilterText(text, ROWS.schema, kind="expression").value(kind)
    return computed(ROWS, found)


def same(text: str) -> None:
    expected = [one for (one,) in DUCKDB.execute(f"SELECT {text} FROM rows").fetchall()]
    assert values(text).to_pylist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "a + 1",
        "A * 2 - b",
        "-a",
        "a / 2",
        "a / nullif(b, 0)",
        "a % 3",
        "b % 2",
        "rate % 2",
        "rate * a",
        "cost + 1",
        "cost * 2.5",
        "cost + cost",
        "rate + cost",
        "(a + b) * (a - b)",
        "abs(a)",
        "floor(rate)",
        "ceil(rate)",
        "round(rate)",
        "name || '!'",
        "upper(trim(name))",
        "lower(name)",
        "length(name)",
        "substring(name, 2, 1)",
        "substring(name, 2)",
        "coalesce(a, b, 9)",
        "coalesce(name, 'none')",
        "nullif(a, 1)",
        "greatest(a, b)",
        "least(a, b, 1)",
        "CASE WHEN a > 1 THEN 'big' WHEN a = 1 THEN name ELSE 'small' END",
        "CASE a WHEN 1 THEN 10 WHEN 2 THEN 20 END",
        "CASE WHEN ok THEN a ELSE b END",
        "CASE WHEN ok IS NULL OR name LIKE 'a%' THEN 1.5 ELSE cost END",
        "CASE WHEN b <> 0 THEN a / b ELSE 0.5 END",
        "CASE WHEN a + 1 > b AND NOT length(name) IN (0, 3) THEN 1 ELSE 0 END",
        "CAST(a AS BIGINT)",
        "CAST(a AS DOUBLE)",
        "CAST(cost AS DECIMAL(10, 1))",
        "CAST(a AS VARCHAR)",
        "CAST('7' AS INT)",
        "a::BIGINT",
        "noted + INTERVAL '1' DAY",
        "noted - INTERVAL '90' MINUTE",
        "DATE '2026-05-01'",
        "place.city",
        "NULL",
        "TRUE",
        "'it''s'",
        "12",
        "1.50",
    ],
)
def test_a_value_is_that_of_sql(text: str) -> None:
    same(text)


NUMBERS = st.recursive(
    st.sampled_from(["a", "b", "1", "-3", "0"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*%"), inner).map(lambda one: f"({' '.join(one)})"),
        st.tuples(inner, inner).map(lambda one: f"coalesce({', '.join(one)})"),
        st.tuples(inner, inner).map(lambda one: f"nullif({one[0]} + 0 * a, {one[1]})"),
        st.tuples(inner, st.sampled_from(["<", ">=", "=", "<>"]), inner, inner).map(
            lambda one: f"CASE WHEN {one[0]} + 0 * a {one[1]} {one[2]} THEN {one[3]} ELSE a END"
        ),
    ),
    max_leaves=6,
)


@given(text=NUMBERS)
@settings(max_examples=150, deadline=None)
def test_nested_numbers_are_those_of_sql(text: str) -> None:
    same(text)


def test_a_division_by_zero_is_null_as_in_spark() -> None:
    assert values("1 / a").to_pylist() == [1.0, 0.5, None, -1 / 7, None]
    assert values("b % 0").to_pylist() == [None] * 5


def test_a_cast_to_an_integer_truncates_the_fraction_as_in_spark() -> None:
    assert values("CAST(rate AS INT)").to_pylist() == [0, None, -1, 2, 3]


def test_a_literal_takes_the_type_of_its_column() -> None:
    assert values("'2026-05-01'", pa.date32()).to_pylist() == [dt.date(2026, 5, 1)] * 5
    assert values("coalesce(NULL, 3)", pa.int8()).type == pa.int8()


@pytest.mark.parametrize(
    ("text", "kind", "part"),
    [
        ("uper(name)", "expression", "Did you mean upper?"),
        ("md5(name)", "expression", "upper"),
        ("nam", "unknown_column", "Did you mean 'name'?"),
        ("new", "unknown_column", "single quotes"),
        ("a +", "expression", "after '+'"),
        ("a > 1", "expression", "CASE WHEN"),
        ("name + 1", "expression", "string"),
        ("CAST(a AS GEOMETRY)", "expression", "DECIMAL"),
        ("substring(name, a)", "expression", "whole number"),
        ("9223372036854775806 + a", "", ""),
    ],
)
def test_an_error_of_a_value_names_the_valid_forms(text: str, kind: str, part: str) -> None:
    if not kind:
        assert values(text).to_pylist()[0] == Decimal(9223372036854775807)
        return
    with pytest.raises(InvalidInputError) as caught:
        values(text)
    assert caught.value.kind == kind
    assert part in str(caught.value)
    assert "\n  " in str(caught.value)


@pytest.mark.parametrize("text", ["CAST(name AS INT)", "(b + 9000000000) * (b + 9000000000)"])
def test_a_value_that_cannot_be_computed_for_a_row_is_an_error(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        values(text)
    assert caught.value.kind == "expression_value"


SIDES = pa.schema(
    [
        pa.field(
            "target", pa.struct([("id", pa.int64()), ("v", pa.int64()), ("Own", pa.string())])
        ),
        pa.field("source", pa.struct([("id", pa.int64()), ("v", pa.int64()), ("op", pa.string())])),
    ]
)


def bound(text: str) -> FilterText:
    return FilterText(text, SIDES, sides=True)


def test_a_name_that_one_side_has_needs_no_prefix() -> None:
    assert bound("op").column_name() == "source.op"
    assert bound("own").column_name() == "target.Own"
    assert bound("TARGET.V").column_name() == "target.v"


def test_a_name_that_both_sides_have_is_ambiguous() -> None:
    with pytest.raises(InvalidInputError) as caught:
        bound("v").column_name()
    assert "target.v or source.v" in str(caught.value)


def test_an_unknown_column_of_a_side_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidInputError) as caught:
        bound("source.ob = 'd'").expression  # noqa: B018
    assert caught.value.kind == "unknown_column"
    assert "Did you mean 'source.op'?" in str(caught.value)


def test_the_equal_columns_of_a_join_are_split_from_the_rest() -> None:
    pairs, rest = bound("source.id = target.id AND target.v = source.v AND op = 'd'").join()
    assert pairs == [("id", "id"), ("v", "v")]
    assert rest is not None
    assert bound("target.id = source.id").join()[1] is None


def test_the_value_of_a_row_has_the_shape_of_the_rows() -> None:
    empty: Any = computed(ROWS.slice(0, 0), FilterText("a + 1", ROWS.schema).value())
    assert (len(empty), empty.type) == (0, pa.int64())
