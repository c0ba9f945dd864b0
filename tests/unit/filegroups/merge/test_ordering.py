"""Ordering values compare as in Java's ``compareTo``: by type, by fields, with nulls and NaN."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from filegroups.merge.rules import not_below, order_numbers, ordering_column
from filegroups.schema.java_text import java_texts
from timeline.errors import InvalidInputError

NAN = float("nan")


def column(values: list[object], kind: pa.DataType | None = None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values[:1], kind), pa.array(values[1:], kind)])


def numbered(*columns: pa.ChunkedArray) -> tuple[list[int], list[bool]]:
    """Return the rank of each row, equal for equal rows, and which rows have no value."""
    numbers, missing = order_numbers(columns)
    places = sorted(set(numbers.tolist()))
    return [places.index(number) for number in numbers.tolist()], missing.tolist()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([3, 1, 2, 1], pa.int64()),
        ([3, 1, 2, 1], pa.uint8()),
        ([3.5, -1.5, 2.0, -1.5], pa.float64()),
        ([NAN, -1.5, 2.0, -1.5], pa.float32()),
        ([dt.date(2024, 3, 3), dt.date(1969, 1, 1), dt.date(1970, 1, 1), dt.date(1969, 1, 1)], None),
        ([dt.time(3), dt.time(1), dt.time(2), dt.time(1)], pa.time32("ms")),
        ([dt.time(3), dt.time(1), dt.time(2), dt.time(1)], pa.time64("us")),
        ([3, 1, 2, 1], pa.timestamp("us")),
        (["c", "a", "b", "a"], pa.string()),
        ([Decimal("3.5"), Decimal("-1.5"), Decimal("2.0"), Decimal("-1.5")], None),
    ],
)  # fmt: skip
def test_rows_are_numbered_by_their_value(values: list[object], kind: pa.DataType | None) -> None:
    assert numbered(column(values, kind)) == ([2, 0, 1, 0], [False] * 4)


def test_large_numbers_differ_in_a_column_with_nulls() -> None:
    near = column([2**53 + 1, 2**53, None], pa.int64())
    assert numbered(near) == ([2, 1, 0], [False, False, True])


def test_false_sorts_before_true() -> None:
    assert numbered(column([True, False, True]))[0] == [1, 0, 1]


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.date32()])
def test_rows_without_a_value_are_marked(kind: pa.DataType) -> None:
    values = pa.chunked_array([pa.array([None, 1, None], pa.int32())])
    numbers, missing = order_numbers([values.cast(kind)])
    assert (len(numbers), missing.tolist()) == (3, [True, False, True])


def test_several_fields_compare_left_to_right() -> None:
    first, second = column([1, 2, 1, 1, 2]), column(["b", "a", "a", "b", "a"])
    assert numbered(first, second)[0] == [1, 2, 0, 1, 2]
    assert numbered(second, first)[0] == [2, 1, 0, 2, 1]


def test_a_row_that_lacks_one_of_several_fields_lacks_an_order() -> None:
    assert numbered(column([1, None, 1]), column([None, 1, 1], pa.int64()))[1] == [
        True,
        True,
        False,
    ]


def test_an_ordering_field_is_a_column_or_inside_a_struct() -> None:
    rows = pa.table({"s": [{"a": {"b": 5}}], "s.a": [7], "t": [9]})
    assert ordering_column(rows, "t").to_pylist() == [9]
    assert ordering_column(rows, "s.a").to_pylist() == [7]
    assert ordering_column(rows, "s.a.b").to_pylist() == [5]


def above(newer: list[list[object]], older: list[list[object]]) -> list[bool]:
    return not_below([pa.array(one) for one in newer], [pa.array(one) for one in older]).tolist()


def test_the_newer_one_wins_unless_it_is_below() -> None:
    assert above([[1, 2, 3]], [[2, 2, 2]]) == [False, True, True]


def test_a_later_field_decides_only_where_the_earlier_ones_are_equal() -> None:
    newer = [[1, 1, 2, 1, 1], [5, 5, 0, 9, 5], [7, 6, 0, 0, 8]]
    older = [[1, 1, 1, 2, 1], [5, 5, 9, 0, 6], [7, 7, 9, 0, 0]]
    assert above(newer, older) == [True, False, True, False, False]


def test_nan_is_above_every_number_and_equal_to_itself() -> None:
    newer, older = [NAN, 1.0, NAN, 2.0], [1.0, NAN, NAN, 2.0]
    assert above([newer], [older]) == [True, False, True, True]
    assert above([newer, [0, 0, 0, 0]], [older, [1, 1, 1, 1]]) == [True, False, False, False]


def test_without_a_value_on_a_side_the_newer_one_wins() -> None:
    newer, older = [None, 1, None], [1, None, None]
    assert above([newer], [older]) == [True, True, True]
    assert above([newer, [0, 0, 0]], [older, [1, 1, 1]]) == [True, True, True]


# ---------------------------------------------------------------- values as Java's texts


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (pa.array(["a", None]), ["a", None]),
        (pa.array(["a", None], pa.large_string()), ["a", None]),
        (pa.array(["a", None], pa.string_view()), ["a", None]),
        (pa.array([7, None], pa.uint8()), ["7", None]),
        (pa.array([True, None]), ["true", None]),
        (pa.array([dt.date(2013, 1, 2), None]), ["2013-01-02", None]),
        (pa.array([Decimal("1.50"), None]), ["1.50", None]),
        (pa.array([None, None]), [None, None]),
        (pa.array([1.0, None], pa.float32()), ["1.0", None]),
        (pa.array([1e7, None]), ["1.0E7", None]),
        (pa.array([5, None], pa.timestamp("us")), ["5", None]),
        (pa.array([5, None], pa.timestamp("ms")), ["5", None]),
        (pa.array([5, None], pa.timestamp("s", "UTC")), ["5000000", None]),
        (pa.array([5_999, None], pa.timestamp("ns")), ["5", None]),
        (pa.array([7, None]).dictionary_encode(), ["7", None]),
        (pa.array([1e7, None]).dictionary_encode(), ["1.0E7", None]),
    ],
)
def test_a_key_reads_as_java_writes_the_value(array: pa.Array, texts: list[str | None]) -> None:
    found = java_texts(array, "id", "unsupported_key_type")
    assert (found.to_pylist(), found.type) == (texts, pa.string())


@pytest.mark.parametrize("kind", ["unsupported_key_type", "unsupported_partition_type"])
@pytest.mark.parametrize("array", [pa.array([[1]]), pa.array([b"x"]), pa.array([dt.time(1)])])
def test_a_type_without_a_text_form_is_refused_by_its_column(array: pa.Array, kind: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        java_texts(array, "id", kind)
    assert refused.value.kind == kind
    assert refused.value.fields == {"column": "id", "type": str(array.type)}
