"""Record keys and partition paths have exactly Java Hudi's text (fmt 4.1, 4.3, SEC1)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from timeline.errors import InvalidInputError
from timeline.rules.keys import (
    KeyGenerator,
    KeySpec,
    infer_key_generator,
    partition_paths,
    record_keys,
    validate_ordering,
)


def keys(table: pa.Table, *fields: str, **more: object) -> list[str]:
    return record_keys(table, KeySpec(record_key_fields=fields, **more)).to_pylist()


def paths(table: pa.Table, *fields: str, **more: object) -> list[str]:
    spec = KeySpec(
        record_key_fields=("id",),
        partition_fields=fields,
        key_generator=infer_key_generator(1, len(fields)),
        **more,
    )
    return partition_paths(table, spec).to_pylist()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array(["a", "b"]), ["a", "b"]),
        (pa.array([7, -1], pa.int64()), ["7", "-1"]),
        (pa.array([True, False]), ["true", "false"]),
        (pa.array([dt.date(2013, 1, 2)]), ["2013-01-02"]),
        (pa.array([1_000_000], pa.timestamp("us", "UTC")), ["1000000"]),
        (pa.array([Decimal("1.50"), Decimal("0.00")]), ["1.50", "0.00"]),
        (pa.array([1.0, 0.001, 1e-4, 1e7, 12345678.5]), ["1.0", "0.001", "1.0E-4", "1.0E7", "1.23456785E7"]),
        (pa.array([0.1, 100.0, -2.5], pa.float32()), ["0.1", "100.0", "-2.5"]),
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
    ],
)  # fmt: skip
def test_a_single_key_is_the_value_as_java_writes_it(values, expected):
    assert keys(pa.table({"id": values}), "id") == expected


def test_several_key_fields_are_joined_with_their_names():
    table = pa.table({"a": ["x", None, ""], "b": [1, 2, 3]})
    assert keys(table, "a", "b") == ["a:x,b:1", "a:__null__,b:2", "a:__empty__,b:3"]


@pytest.mark.parametrize(("version", "expected"), [(8, ["x"]), (9, ["id:x"])])
def test_one_complex_key_field_is_prefixed_from_version_9_on(version, expected):
    table = pa.table({"id": ["x"]})
    complex_ = KeyGenerator.COMPLEX
    assert keys(table, "id", key_generator=complex_, table_version=version) == expected


def test_chunked_rows_keep_their_order():
    chunked = pa.chunked_array([["a"], ["b", "c"]])
    assert keys(pa.table({"id": chunked}), "id") == ["a", "b", "c"]


@pytest.mark.parametrize("fields", [("id",), ("id", "second")])
def test_rows_without_any_key_are_refused_with_their_number(fields):
    table = pa.table({"id": ["a", None, ""], "second": [None, None, ""]})
    with pytest.raises(InvalidInputError) as caught:
        keys(table, *fields)
    assert caught.value.kind == "null_key"
    assert caught.value.fields == {"columns": list(fields), "rows": 2}


def test_a_missing_key_column_is_named():
    with pytest.raises(InvalidInputError, match="column='id'") as caught:
        keys(pa.table({"x": [1]}), "id")
    assert caught.value.kind == "missing_key_column"


def test_a_key_field_inside_a_struct_is_found():
    assert keys(pa.table({"s": [{"k": 5}]}), "s.k") == ["5"]


@pytest.mark.parametrize(
    ("n_keys", "n_partitions", "expected"),
    [(1, 0, "NON_PARTITION"), (2, 0, "NON_PARTITION"), (1, 1, "SIMPLE"), (2, 1, "COMPLEX"), (1, 2, "COMPLEX")],
)  # fmt: skip
def test_the_generator_follows_from_the_number_of_fields(n_keys, n_partitions, expected):
    assert infer_key_generator(n_keys, n_partitions).value == expected


def test_partition_paths_join_the_values():
    table = pa.table({"y": [2013, 2013, None], "m": ["01", "", "02"]})
    assert paths(table, "y", "m", hive_style=True) == [
        "y=2013/m=01",
        "y=2013/m=__HIVE_DEFAULT_PARTITION__",
        "y=__HIVE_DEFAULT_PARTITION__/m=02",
    ]
    assert paths(table, "m") == ["01", "__HIVE_DEFAULT_PARTITION__", "02"]
    assert paths(table) == ["", "", ""]


def test_url_encoding_escapes_hives_characters():
    table = pa.table({"p": ["a/b:c", "50%", "é u"]})
    assert paths(table, "p", url_encode=True) == ["a%2Fb%3Ac", "50%25", "é u"]


@pytest.mark.parametrize("value", ["..", ".", "a/b", "../x", "a\\b", "a\nb", "a\x00", "x" * 256, ".hoodie"])  # fmt: skip
def test_hostile_partition_values_are_refused_by_name(value):
    with pytest.raises(InvalidInputError) as caught:
        paths(pa.table({"p": ["fine", value]}), "p")
    assert caught.value.kind == "bad_partition_value"
    assert caught.value.fields["column"] == "p"


@pytest.mark.parametrize("value", ["..", ".hoodie", "a\x00", "é" * 200])
def test_url_encoding_does_not_let_values_leave_the_table(value):
    with pytest.raises(InvalidInputError):
        paths(pa.table({"p": [value]}), "p", url_encode=True)


def test_timestamps_make_no_partition():
    table = pa.table({"p": pa.array([0], pa.timestamp("us", "UTC"))})
    with pytest.raises(InvalidInputError) as caught:
        paths(table, "p")
    assert caught.value.kind == "unsupported_partition_type"


def test_rows_without_an_ordering_value_are_refused_with_their_number():
    table = pa.table({"ts": [1, None, None]})
    with pytest.raises(InvalidInputError) as caught:
        validate_ordering(table, ["ts"])
    assert (caught.value.kind, caught.value.fields["rows"]) == ("null_ordering", 2)


def test_a_missing_ordering_column_is_named():
    with pytest.raises(InvalidInputError, match="column='ts'"):
        validate_ordering(pa.table({"x": [1]}), ["ts"])
