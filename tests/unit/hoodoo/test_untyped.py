"""Rows without types take those of the table, and no digit is lost on the way."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import string
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hoodoo
from filegroups.schema.casting import normalise
from hoodoo.inputs import to_arrow_table, typed_column, typed_rows
from timeline.errors import InvalidInputError

UTC = dt.UTC
_DAYS = (dt.date(1, 1, 1), dt.date(9999, 12, 31))
_MOMENTS = (dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))  # noqa: DTZ001 - local timestamps

#: Each stored type that is flat, with values of it.
_FLAT: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=8),
    pa.binary(): st.binary(max_size=8),
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.date32(): st.dates(*_DAYS),
    pa.timestamp("us"): st.datetimes(*_MOMENTS),
    pa.timestamp("us", "UTC"): st.datetimes(*_MOMENTS, timezones=st.just(UTC)),
    pa.timestamp("ms", "UTC"): st.datetimes(*_MOMENTS, timezones=st.just(UTC)).map(
        lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
    ),
    pa.time64("us"): st.times(),
    pa.time32("ms"): st.times().map(lambda at: at.replace(microsecond=0)),
    pa.decimal128(10, 2): st.decimals(-99999999, 99999999, places=2),
    pa.decimal128(38, 10): st.decimals(-(10**27), 10**27, places=10),
}
_NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=3)


def _nested(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    structs = st.dictionaries(_NAMES, kinds, min_size=1, max_size=3)
    return st.one_of(
        kinds.map(lambda kind: pa.list_(pa.field("element", kind))),
        kinds.map(lambda kind: pa.map_(pa.string(), kind)),
        structs.map(lambda fields: pa.struct([pa.field(*one) for one in fields.items()])),
    )


KINDS = st.recursive(st.sampled_from(list(_FLAT)), _nested, max_leaves=4)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values as Arrow's own ``to_pylist`` gives them, with nulls at every level."""
    if pa.types.is_struct(kind):
        made: Any = st.fixed_dictionaries({each.name: values_of(each.type) for each in kind})
    elif pa.types.is_map(kind):
        pairs = st.dictionaries(
            st.text(string.ascii_letters, max_size=3), values_of(kind.item_type)
        )
        made = pairs.map(lambda one: list(one.items()))
    elif pa.types.is_list(kind):
        made = st.lists(values_of(kind.value_type), max_size=3)
    else:
        made = _FLAT[kind]
    return st.none() | made


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    """A type and values of it."""
    kind = draw(KINDS)
    return kind, draw(st.lists(values_of(kind), min_size=1, max_size=5))


@given(columns())
@settings(max_examples=60, deadline=None)
def test_rows_of_to_pylist_become_the_same_column(column: tuple[pa.DataType, list[Any]]):
    kind, values = column
    stored = pa.table({"c": pa.array(values, kind)})
    again = normalise(typed_rows(stored.to_pylist(), stored.schema), stored.schema)
    assert repr(again.to_pylist()) == repr(stored.to_pylist())  # of NaN, too


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.int32(), 7, 7),
        (pa.int32(), 7.0, 7),
        (pa.int64(), np.int8(7), 7),
        (pa.int64(), math.nan, None),
        (pa.int64(), decimal.Decimal(7), 7),
        (pa.int64(), 2**53 + 1, 2**53 + 1),
        (pa.int64(), float(2**53 - 1), 2**53 - 1),
        (pa.float32(), 0.5, 0.5),
        (pa.float64(), 7, 7.0),
        (pa.string(), math.nan, None),
        (pa.date32(), pd.NaT, None),
        (pa.decimal128(10, 2), 1.5, decimal.Decimal("1.50")),
        (pa.decimal128(10, 2), 0.1, decimal.Decimal("0.10")),
        (pa.decimal128(10, 2), "1.50", decimal.Decimal("1.50")),
        (pa.decimal128(10, 2), 7, decimal.Decimal("7.00")),
        (pa.decimal128(10, 2), decimal.Decimal("1.5000"), decimal.Decimal("1.50")),
        (pa.decimal128(38, 0), 2**64, decimal.Decimal(2**64)),
        (pa.date32(), "2026-01-02", dt.date(2026, 1, 2)),
        (
            pa.timestamp("us", "UTC"),
            "2026-01-02T03:00:00+02:00",
            dt.datetime(2026, 1, 2, 1, tzinfo=UTC),
        ),
        (pa.map_(pa.string(), pa.int32()), {"a": 1.0}, [("a", 1)]),
        (pa.map_(pa.string(), pa.int32()), {}, []),
        (pa.list_(pa.int32()), (), []),
    ],
)
def test_a_value_takes_the_columns_type(kind: pa.DataType, value: Any, stored: Any):
    made = normalise(
        pa.table({"c": typed_column([value, None], kind, "c")}), pa.schema({"c": kind})
    )
    assert made.column("c").to_pylist() == [stored, None]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 2**31),
        (pa.int64(), 2**63),
        (pa.int64(), 1.5),
        (pa.int64(), float(2**53)),
        (pa.int64(), math.inf),
        (pa.int64(), "7"),
        (pa.int64(), True),
        (pa.bool_(), 1),
        (pa.float32(), 1e300),
        (pa.float64(), 2**53 + 1),
        (pa.float64(), "NaN"),
        (pa.decimal128(10, 2), 1.555),
        (pa.decimal128(10, 2), "1.555"),
        (pa.decimal128(10, 2), 1e9),
        (pa.decimal128(10, 2), math.inf),
        (pa.decimal128(10, 2), "many"),
        (pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 2)),  # noqa: DTZ001
        (pa.timestamp("us"), dt.datetime(2026, 1, 2, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), "2026-01-02T03:00:00"),
        (pa.timestamp("us", "UTC"), 1767322800),
        (pa.date32(), dt.datetime(2026, 1, 2, 3)),  # noqa: DTZ001
        (pa.timestamp("us", "UTC"), pd.Timestamp("2026-01-02T00:00:00.000000999Z")),
        (pa.timestamp("us"), pd.Timestamp("2026-01-02T00:00:00.000000999")),
        (pa.list_(pa.timestamp("us")), [pd.Timestamp("2026-01-02T00:00:00.000000999")]),
        (pa.binary(4), b"five!"),
        (pa.struct({"x": pa.int32()}), [1]),
        (pa.map_(pa.string(), pa.int32()), {None: 1}),
        (pa.list_(pa.int32()), "text"),
    ],
)
def test_a_value_that_would_lose_precision_is_refused(kind: pa.DataType, value: Any):
    with pytest.raises(InvalidInputError) as caught:
        normalise(pa.table({"c": typed_column([value, None], kind, "c")}), pa.schema({"c": kind}))
    assert caught.value.kind in ("lossy_value", "schema_mismatch", "data")


@pytest.mark.parametrize("value", [decimal.Decimal("1e400"), decimal.Decimal("1e39"), 10**400])
def test_a_number_of_json_above_the_greatest_float_is_refused(value: Any):
    with pytest.raises(InvalidInputError) as caught:
        typed_column([None, value], pa.float32(), "c", json=True)
    assert caught.value.kind == "lossy_value"


@pytest.mark.parametrize("zone", ["", "Z"])
def test_nanoseconds_of_pandas_are_refused_where_the_table_has_no_such_column(zone: str):
    moment = pd.Timestamp(f"2026-01-02T00:00:00.000000999{zone}")
    with pytest.raises(InvalidInputError) as caught:
        to_arrow_table([{"id": "a", "new": None}, {"id": "b", "new": moment}])
    assert caught.value.kind == "lossy_value"
    made = to_arrow_table(
        pd.DataFrame({"new": [moment, None]}, dtype=object)
    )  # kept; a write refuses it
    assert made.schema.field("new").type.unit == "ns"
    whole = to_arrow_table([{"new": moment.floor("us")}]).column("new")
    assert whole.type.unit == "us"


def test_values_of_several_classes_fit_one_column():
    kind = pa.decimal128(10, 2)
    values = [decimal.Decimal("1.5"), None, 1.5, "1.5", 1, decimal.Decimal("0.25")]
    made = typed_column(values, kind, "c").to_pylist()
    assert made == [
        decimal.Decimal(one) if one else None
        for one in ("1.50", None, "1.50", "1.50", "1.00", "0.25")
    ]


def test_timestamps_with_and_without_a_zone_do_not_mix():
    mixed = [dt.datetime(2026, 1, 2, tzinfo=UTC), dt.datetime(2026, 1, 2)]  # noqa: DTZ001
    with pytest.raises(InvalidInputError):
        typed_column(mixed, pa.timestamp("us", "UTC"), "c")


def test_a_column_that_only_later_rows_name_is_added():
    assert to_arrow_table([{"id": "a"}, {"id": "b", "late": 1}]).column("late").to_pylist() == [
        None,
        1,
    ]


SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("n", pa.int32()),
        ("big", pa.int64()),
        ("s", pa.struct({"x": pa.int32()})),
    ]
)
ROW = {"id": "a", "n": 1, "big": 1, "s": {"x": 1}}


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    made = hoodoo.create_table(
        tmp_path / "t",
        schema=SCHEMA,
        record_key="id",
        table_type=request.param,
        properties={"hoodie.datasource.hive_sync.enable": "false"},
    )
    with made:
        made.upsert([ROW])
        yield made


@pytest.mark.parametrize("name", [1, None, b"id"])
def test_dicts_name_their_columns_by_texts(table: hoodoo.Table, name: object):
    with pytest.raises(InvalidInputError, match="names of columns"):
        table.upsert([{"id": "a"}, {name: 2}])  # type: ignore[dict-item]


@pytest.mark.parametrize("names", ["record_key", "partition_by", "ordering"])
def test_columns_of_a_new_table_are_texts_or_none(tmp_path: Path, names: str):
    schema = pa.schema([("id", pa.string())])
    with pytest.raises(InvalidInputError, match="columns must be a list of texts"):
        hoodoo.create_table(tmp_path / "t", schema=schema, **{names: 3})
    hoodoo.create_table(tmp_path / "t", schema=schema, **{names: None}).close()


def test_dicts_change_no_type_of_the_table(table: hoodoo.Table):
    result = table.upsert([{**ROW, "n": 2}, {"id": "b", "n": None, "big": None, "s": {}}])
    assert result.schema_changes == ()
    assert table.schema == SCHEMA


def test_a_commit_result_lists_the_schema_changes(table: hoodoo.Table):
    rows = table.to_arrow(SCHEMA.names)
    rows = rows.set_column(1, "n", rows.column("n").cast(pa.int64()))
    rows = rows.append_column("more", pa.array(["x"]))
    changes = table.upsert(rows).schema_changes
    assert [one.text for one in changes] == [
        "column n is int64, was int32",
        "new column more: string",
    ]
    nested = table.upsert([{**ROW, "more": "y", "s": {"x": 1, "y": "new"}}]).schema_changes
    assert [one.text for one in nested] == ["new column s.y: string"]
    assert table.upsert([{**ROW, "more": "z", "s": {"x": 1, "y": "new"}}]).schema_changes == ()


EMPTY: dict[str, Any] = {
    "a list": [],
    "arrow": pa.table({"id": pa.array([], pa.int64()), "other": pa.array([], pa.string())}),
    "arrow without columns": pa.table({}),
    "pandas": pd.DataFrame({"id": [], "n": []}),
    "pandas without columns": pd.DataFrame(),
}


@pytest.mark.parametrize("rows", EMPTY.values(), ids=list(EMPTY))
@pytest.mark.parametrize("operation", ["upsert", "insert", "bulk_insert", "delete"])
def test_a_batch_without_rows_changes_nothing(table: hoodoo.Table, operation: str, rows: Any):
    before = table.to_arrow(SCHEMA.names)
    result = table.write(rows, operation)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (0, 0, 0)
    assert result.schema_changes == ()
    assert table.schema == SCHEMA
    assert table.to_arrow(SCHEMA.names).equals(before)


def test_a_batch_without_rows_keeps_its_id(table: hoodoo.Table):
    first = table.upsert([], batch_id="1")
    again = table.upsert([], batch_id="1")
    assert (first.already_published, again.already_published) == (False, True)


def test_a_table_without_columns_takes_a_batch_without_rows(tmp_path: Path):
    with hoodoo.create_table(tmp_path / "t", record_key="id") as table:
        table.upsert([])
        table.delete([])
        assert table.upsert([{"id": "a", "n": 1}]).rows_inserted == 1
        assert table.to_arrow(["id", "n"]).to_pylist() == [{"id": "a", "n": 1}]


@pytest.fixture
def parts(tmp_path: Path) -> Any:
    schema = pa.schema([("id", pa.string()), ("p", pa.string())])
    with hoodoo.create_table(
        tmp_path / "t", schema=schema, record_key="id", partition_by="p"
    ) as made:
        made.upsert([{"id": one, "p": one} for one in "abc"])
        yield made


def test_an_empty_overwrite_of_the_table_empties_it(parts: hoodoo.Table):
    parts.insert_overwrite_table([])
    assert parts.to_arrow().num_rows == 0
    assert parts.upsert([{"id": "z", "p": "a"}]).rows_inserted == 1


def test_an_empty_dynamic_overwrite_replaces_nothing(parts: hoodoo.Table):
    parts.insert_overwrite([])
    assert parts.to_arrow().num_rows == 3


def test_an_overwrite_of_named_partitions_empties_those_without_rows(parts: hoodoo.Table):
    parts.insert_overwrite([], partitions=["a"])
    assert parts.to_arrow(["id"]).column("id").to_pylist() == ["b", "c"]
    parts.insert_overwrite([{"id": "d", "p": "c"}], partitions=["b", "c"])
    assert parts.to_arrow(["id"]).column("id").to_pylist() == ["d"]


def test_a_row_outside_of_the_named_partitions_is_refused(parts: hoodoo.Table):
    with pytest.raises(InvalidInputError) as caught:
        parts.insert_overwrite([{"id": "d", "p": "c"}], partitions=["a"])
    assert caught.value.kind == "outside_partitions"
    assert parts.to_arrow().num_rows == 3


@pytest.mark.parametrize("whole", [0, 7, -7, 2**53 - 1, 1 - 2**53])
def test_whole_floats_of_pandas_go_into_a_column_of_longs(table: hoodoo.Table, whole: int):
    frame = pd.DataFrame(
        {"id": ["a", "b"], "n": np.int32([1, 1]), "big": [whole, None], "s": [{"x": 1}, None]}
    )
    assert frame["big"].dtype == np.float64
    assert table.upsert(frame).schema_changes == ()
    rows = sorted(table.to_arrow(["id", "big"]).to_pylist(), key=lambda row: row["id"])
    assert [row["big"] for row in rows] == [whole, None]


@pytest.mark.parametrize("great", [2**53, 2**53 + 1, -(2**60)])
def test_floats_of_pandas_that_may_have_lost_digits_are_refused(table: hoodoo.Table, great: int):
    frame = pd.DataFrame(
        {"id": ["a", "b"], "n": np.int32([1, 1]), "big": [great, None], "s": [{"x": 1}, None]}
    )
    with pytest.raises(InvalidInputError, match="Int64") as caught:
        table.upsert(frame)
    assert caught.value.kind == "lossy_value"
    frame["big"] = pd.array([great, None], dtype="Int64")
    table.upsert(frame)
    assert great in table.to_arrow(["big"]).column("big").to_pylist()


def test_columns_of_none_take_the_tables_type(table: hoodoo.Table):
    nothing = pd.DataFrame({"id": ["a"], "n": [None], "big": [np.nan], "s": [None]})
    assert table.upsert(nothing).schema_changes == ()
    assert table.to_arrow(SCHEMA.names).to_pylist() == [
        {"id": "a", "n": None, "big": None, "s": None}
    ]
