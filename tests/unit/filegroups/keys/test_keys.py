"""Record keys and partition paths have exactly Java Hudi's text (fmt 4.1, 4.3, SEC1)."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from filegroups.keys.generators import (
    KeyGenerator,
    TimestampKeys,
    TimestampType,
    infer_key_generator,
)
from filegroups.keys.keys import (
    KeySpec,
    VirtualKeys,
    key_range,
    partition_paths,
    record_keys,
    validate_ordering,
)
from timeline.errors import InvalidInputError
from timeline.model.file_names import TimestampForm, TimestampTexts, form_of


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


@pytest.mark.parametrize(
    ("version", "asked", "expected"),
    [
        (8, None, "x"),
        (8, True, "id:x"),
        (8, False, "x"),
        (9, None, "id:x"),
        (9, False, "id:x"),  # as in Java, version 9 has only one encoding
    ],
)
def test_version_8_has_two_encodings_of_a_complex_key_of_one_field(version, asked, expected):
    complex_ = {"key_generator": KeyGenerator.COMPLEX, "table_version": version}
    table = pa.table({"id": ["x"]})
    assert keys(table, "id", prefixes_single_key=asked, **complex_) == [expected]


def test_a_global_delete_key_always_has_the_field_names_and_no_partition():
    spec = KeySpec(
        record_key_fields=("id",),
        partition_fields=("p",),
        key_generator=KeyGenerator.GLOBAL_DELETE,
        table_version=8,
    )
    table = pa.table({"id": ["x"], "p": ["a"]})
    assert record_keys(table, spec).to_pylist() == ["id:x"]
    assert partition_paths(table, spec).to_pylist() == [""]


def test_without_key_fields_the_writer_of_a_file_gives_the_keys():
    spec = KeySpec(record_key_fields=())
    assert spec.automatic
    assert record_keys(pa.table({"a": [1, 2]}), spec).to_pylist() == [None, None]


def test_virtual_keys_are_computed_as_stored_ones_would_be():
    table = pa.table({"a": ["x"], "b": [1]})
    stored = KeySpec(record_key_fields=("a", "b"), key_generator=KeyGenerator.COMPLEX)
    assert stored.virtual is None
    virtual = replace(stored, stores_keys=False).virtual
    assert virtual == VirtualKeys(("a", "b"), True)
    assert virtual.of(table).equals(record_keys(table, stored))
    assert KeySpec(record_key_fields=(), stores_keys=False).virtual is None


def test_a_timestamp_has_one_key_in_every_unit():
    micros = pa.array([1_700_000_000_000_000], pa.timestamp("us"))
    for unit in ("s", "ns"):
        column = micros.cast(pa.timestamp(unit))
        assert keys(pa.table({"id": column}), "id") == ["1700000000000000"]


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


@pytest.mark.parametrize("value", ["..", ".", "/a", "a/", "a//b", "a/../b", "a/.b", "../x", "a\\b", "a\nb", "a\x00", "x" * 256, ".hoodie"])  # fmt: skip
def test_hostile_partition_values_are_refused_by_name(value):
    with pytest.raises(InvalidInputError) as caught:
        paths(pa.table({"p": ["fine", value]}), "p")
    assert caught.value.kind == "bad_partition_value"
    assert caught.value.fields["column"] == "p"


@pytest.mark.parametrize("value", ["..", ".hoodie", "a\x00", "é" * 200])
def test_url_encoding_does_not_let_values_leave_the_table(value):
    with pytest.raises(InvalidInputError):
        paths(pa.table({"p": [value]}), "p", url_encode=True)


MOMENT = 1_678_451_400_120_000  # 2023-03-10 12:30:00.12 UTC


@pytest.mark.parametrize(
    ("how", "encoded", "expected"),
    [
        (TimestampTexts(), False, str(MOMENT)),
        (TimestampTexts(TimestampForm.TIMESTAMP), False, "2023-03-10 12:30:00.12"),
        (TimestampTexts(TimestampForm.TIMESTAMP), True, "2023-03-10 12%3A30%3A00.12"),
        (TimestampTexts(TimestampForm.SQL), False, "2023-03-10 12%3A30%3A00"),
        (TimestampTexts(TimestampForm.SQL), True, "2023-03-10 12%3A30%3A00"),
        (TimestampTexts(TimestampForm.SQL, "Asia/Kolkata"), False, "2023-03-10 18%3A00%3A00"),
    ],
)
def test_a_timestamp_makes_a_folder_of_the_tables_form(how, encoded, expected):
    column = pa.array([MOMENT, None], pa.timestamp("us", "UTC"))
    made = paths(pa.table({"p": column}), "p", moments=how, url_encode=encoded)
    assert made == [expected, "__HIVE_DEFAULT_PARTITION__"]
    assert form_of(expected) is how.form


def test_a_timestamp_shows_at_least_one_digit_of_its_second():
    column = pa.array([MOMENT // 10**6 * 10**6], pa.timestamp("us", "UTC"))
    how = TimestampTexts(TimestampForm.TIMESTAMP)
    assert paths(pa.table({"p": column}), "p", moments=how) == ["2023-03-10 12:30:00.0"]


def test_a_timestamp_without_a_zone_is_formatted_as_a_number():
    column = pa.array([MOMENT // 1000], pa.timestamp("ms"))
    assert paths(pa.table({"p": column}), "p", moments=TimestampTexts(TimestampForm.SQL)) == [
        str(MOMENT // 1000)
    ]


def test_rows_without_an_ordering_value_are_refused_with_their_number():
    table = pa.table({"ts": [1, None, None]})
    with pytest.raises(InvalidInputError) as caught:
        validate_ordering(table, ["ts"])
    assert (caught.value.kind, caught.value.fields["rows"]) == ("null_ordering", 2)


def test_a_missing_ordering_column_is_named():
    with pytest.raises(InvalidInputError, match="column='ts'"):
        validate_ordering(pa.table({"x": [1]}), ["ts"])


TIMES = TimestampKeys(kind=TimestampType.EPOCHMILLISECONDS, output_format="yyyy/MM/dd")


def timed(**more: object) -> KeySpec:
    fields = {"partition_fields": ("ts",), "key_generator": KeyGenerator.TIMESTAMP, "times": TIMES}
    return KeySpec(record_key_fields=("id",), **{**fields, **more})


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ({}, "2023/11/14"),
        ({"hive_style": True}, "ts=2023/11/14"),
        ({"url_encode": True}, "2023%2F11%2F14"),
        ({"hive_style": True, "url_encode": True}, "ts=2023%2F11%2F14"),
    ],
)
def test_a_slash_of_the_output_pattern_makes_levels_unless_it_is_encoded(style, expected):
    table = pa.table({"id": ["a"], "ts": [1_700_000_000_000]})
    assert partition_paths(table, timed(**style)).to_pylist() == [expected]


def test_a_custom_generator_gives_each_field_its_own_type():
    spec = timed(
        key_generator=KeyGenerator.CUSTOM,
        partition_fields=("region", "ts"),
        partition_types=("SIMPLE", "TIMESTAMP"),
        hive_style=True,
        times=replace(TIMES, output_format="yyyyMM"),
    )
    table = pa.table({"id": ["a"], "region": [None], "ts": [1_700_000_000_000]})
    assert partition_paths(table, spec).to_pylist() == [
        "region=__HIVE_DEFAULT_PARTITION__/ts=202311"
    ]
    assert record_keys(table, spec).to_pylist() == ["a"], "the bare value, as a simple key"


def test_a_folder_of_a_time_may_precede_others():
    spec = timed(
        key_generator=KeyGenerator.CUSTOM,
        partition_fields=("ts", "region"),
        partition_types=("TIMESTAMP", "SIMPLE"),
    )
    table = pa.table({"id": ["a"], "region": ["eu"], "ts": [1_700_000_000_000]})
    assert partition_paths(table, spec).to_pylist() == ["2023/11/14/eu"]


def test_folders_of_times_without_a_time_format_are_refused():
    table = pa.table({"id": ["a"], "ts": [1]})
    with pytest.raises(InvalidInputError) as refused:
        partition_paths(table, timed(times=None))
    assert refused.value.kind == "no_time_format"


@pytest.mark.parametrize("pattern", ["'../'yyyy", "yyyy'/'", "'/'yyyy", "'.'yyyy", "yyyy'\\'"])
def test_an_output_pattern_cannot_lead_out_of_the_table(pattern):
    table = pa.table({"id": ["a"], "ts": [1]})
    with pytest.raises(InvalidInputError) as refused:
        partition_paths(table, timed(times=replace(TIMES, output_format=pattern)))
    assert refused.value.kind == "bad_partition_value"


def test_keys_that_are_not_stored_have_no_range():
    assert key_range(pa.nulls(3, pa.string())) is None


def test_ranges_are_those_of_java_which_compares_utf_16():
    beyond, private, last = "\U00010000", "\ue000", "\uffff"  # in Java's order
    assert key_range(pa.array([private, last, beyond])) == (beyond, last)
    assert key_range(pa.array([private, "a", last])) == ("a", last)
    assert key_range(pa.array([private, "a"])) == ("a", private)
    assert key_range(pa.array(["b" + private, "b" + beyond])) == ("b" + beyond, "b" + private)
    wide = pa.chunked_array([["x", None], [beyond, private]], pa.large_string())
    assert key_range(wide) == ("x", private)
    assert key_range(pa.array(["b", "a"]).slice(0, 1)) == ("b", "b")
    assert key_range(pa.array([], pa.string())) is None
    assert key_range(pa.array([""])) == ("", "")


@pytest.mark.parametrize("name", ["a.b", "s.k", "z.k", "z.b.c", "x", "y"])
def test_a_missing_key_field_is_named(name):
    table = pa.table({"s": [1], "z": [{"b": 1}]})
    with pytest.raises(InvalidInputError) as caught:
        keys(table, name)
    assert (caught.value.kind, caught.value.fields) == ("missing_key_column", {"column": name})


def test_a_folder_name_has_at_most_255_bytes():
    assert paths(pa.table({"p": ["é" * 127 + "x"]}), "p") == ["é" * 127 + "x"]
    with pytest.raises(InvalidInputError) as caught:
        paths(pa.table({"p": ["é" * 128]}), "p")
    assert caught.value.fields == {"column": "p", "value": "é" * 80}
    with pytest.raises(InvalidInputError):
        paths(pa.table({"p": ["x" * 254]}), "p", hive_style=True)


@pytest.mark.parametrize("value", [*"\x01\x1f\"#%'*/:=?\\\x7f{[]^"])
def test_each_of_hives_characters_is_escaped(value):
    [path] = paths(pa.table({"p": [f"a{value}"]}), "p", url_encode=True)
    assert path == f"a%{ord(value):02X}"


@pytest.mark.parametrize("value", [*"\x00\x1f\x7f\\/"])
def test_a_value_that_would_name_another_folder_is_refused(value):
    with pytest.raises(InvalidInputError) as caught:
        paths(pa.table({"p": [f"a{value}"]}), "p")
    assert caught.value.fields == {"column": "p", "value": f"a{value}"}


@pytest.mark.parametrize("value", [*" !$&()+,-;<>@_`|}~"])
def test_other_characters_stay_as_they_are(value):
    assert paths(pa.table({"p": [f"a{value}"]}), "p", url_encode=True) == [f"a{value}"]
    assert paths(pa.table({"p": [f"a{value}"]}), "p") == [f"a{value}"]
