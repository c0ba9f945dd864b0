"""Partition pruning omits no partition with a matching row, and keeps few others."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filegroups.files.parquet import works_without
from filegroups.keys.generators import KeyGenerator, TimestampKeys, TimestampType, TimeUnit
from filegroups.keys.keys import KeySpec, partition_paths
from filegroups.reading.partition_pruning import PartitionField, PartitionPruner
from filegroups.schema.schema import PARTITION_COLUMN
from timeline.errors import InvalidInputError

TEXTS = st.sampled_from(
    [
        *("", "a", "A", "a b", "a/b", "a/", "b", "a%2Fb", "%", "default", "p=a", "10", "9", "ä"),
        *("__HIVE_DEFAULT_PARTITION__", "2024", "2024/05", "null", "true", "a-b", "a!", "a0"),
    ]
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAYS = st.integers(-2, 2) | st.integers(19_658, 19_784)  # around 1970, and a winter
MOMENTS = st.builds(
    lambda day, second: EPOCH + timedelta(days=day, seconds=second), DAYS, st.integers(0, 86_399)
)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): TEXTS,
    pa.int32(): st.sampled_from([-1, 0, 9, 10, 100, 2**31 - 1]),
    pa.int64(): st.sampled_from([-(2**63), -1, 0, 9, 10, 100]),
    pa.bool_(): st.booleans(),
    pa.date32(): st.sampled_from([date(2, 1, 1), date(1970, 1, 1), date(2024, 2, 29)]),
    pa.decimal128(9, 2): st.sampled_from([Decimal("1.50"), Decimal("-0.01"), Decimal(10)]),
    pa.float64(): st.sampled_from([0.1, -0.0, 0.0, 1.5, 1e30, float("nan"), float("inf")]),
    pa.float32(): st.sampled_from([0.5, -0.0, 0.0, 1.5, float("nan")]),
}
OPERATORS = ["==", "!=", "<", "<=", ">", ">=", "in", "not in", "null", "valid"]


def condition_of(name: str, operator: str, value: Any, kind: pa.DataType) -> pc.Expression:
    column = pc.field(*name.split("."))
    some = pa.array([value, None], kind)
    scalar = pa.scalar(value, kind)
    return {
        "==": lambda: column == scalar,
        "!=": lambda: column != scalar,
        "<": lambda: column < scalar,
        "<=": lambda: column <= scalar,
        ">": lambda: column > scalar,
        ">=": lambda: column >= scalar,
        "in": lambda: column.isin(some),
        "not in": lambda: ~column.isin(some.slice(0, 1)),
        "null": column.is_null,
        "valid": column.is_valid,
    }[operator]()


def pruner_for(
    condition: pc.Expression, schema: pa.Schema, spec: KeySpec, fields: Sequence[PartitionField]
) -> PartitionPruner:
    names = {*(name for name in spec.partition_fields if name in schema.names), PARTITION_COLUMN}
    return PartitionPruner(
        condition=condition,
        schema=schema,
        named=frozenset(name for name in names if not works_without(condition, schema, name)),
        fields=tuple(fields),
        names=spec.partition_fields,
        hive_style=spec.hive_style,
        url_encode=spec.url_encode,
    )


def assert_keeps_matches(rows: pa.Table, pruner: PartitionPruner) -> None:
    paths = sorted(set(rows.column(PARTITION_COLUMN).to_pylist()))
    matching = set(rows.filter(pruner.condition).column(PARTITION_COLUMN).to_pylist())
    assert matching <= set(pruner.partitions(paths))
    parents = sorted(
        {"/".join(path.split("/")[:n]) for path in paths for n in range(1, path.count("/") + 2)}
    )
    kept = set(pruner.folders(parents))
    for path in matching:
        for n in range(1, path.count("/") + 2):
            assert "/".join(path.split("/")[:n]) in kept


def joined_paths(rows: pa.Table, spec: KeySpec) -> pa.Array:
    """Return paths as Java Hudi builds them: a slash in a value creates a folder."""
    try:
        return partition_paths(rows, spec)
    except InvalidInputError:
        texts = []
        for name in spec.partition_fields:
            column = rows.column(name)
            parts = [
                "__HIVE_DEFAULT_PARTITION__" if value in (None, "") else str(value)
                for value in column.to_pylist()
            ]
            texts.append([f"{name}={part}" if spec.hive_style else part for part in parts])
        return pa.array(["/".join(some) for some in zip(*texts, strict=True)])


@st.composite
def plain_tables(draw: st.DrawFn) -> tuple[pa.Table, PartitionPruner]:
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=2))
    names = [f"c{number}" for number in range(len(kinds))]
    count = draw(st.integers(1, 6))
    columns = {
        name: pa.array(
            draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count)), kind
        )
        for name, kind in zip(names, kinds, strict=True)
    }
    rows = pa.table(columns | {"v": pa.array(range(count), pa.int64())})
    spec = KeySpec(
        record_key_fields=("v",),
        partition_fields=tuple(names),
        key_generator=KeyGenerator.COMPLEX,
        hive_style=draw(st.booleans()),
        url_encode=draw(st.booleans()),
    )
    rows = rows.append_column(PARTITION_COLUMN, joined_paths(rows, spec))
    number = draw(st.integers(0, len(kinds) - 1))
    value = draw(VALUES[kinds[number]])
    condition = condition_of(names[number], draw(st.sampled_from(OPERATORS)), value, kinds[number])
    other = draw(st.sampled_from(["none", "and", "or", "not", "path"]))
    bound = pc.field("v") < draw(st.integers(0, 6))
    if other == "path":
        condition = pc.field(PARTITION_COLUMN) == draw(
            st.sampled_from(rows.column(PARTITION_COLUMN).to_pylist())
        )
    elif other != "none":
        condition = {"and": condition & bound, "or": condition | bound, "not": ~condition}[other]
    fields = [PartitionField(name=name, type=kind) for name, kind in zip(names, kinds, strict=True)]
    return rows, pruner_for(condition, rows.schema, spec, fields)


@given(plain_tables())
def test_a_partition_with_a_matching_row_is_kept(made: tuple[pa.Table, PartitionPruner]) -> None:
    assert_keeps_matches(*made)


PATTERNS = [
    "yyyy/MM/dd",
    "yyyyMMdd",
    "yyyy-MM-dd/HH",
    "yyyy",
    "HH",
    "dd/MM/yyyy",
    "yyyy/MMM",
    "yyyyMd",
]
ZONES = [None, "UTC", "GMT+05:30", "Europe/Berlin", "America/St_Johns"]


@st.composite
def tables_of_times(draw: st.DrawFn) -> tuple[pa.Table, PartitionPruner]:
    kind = draw(st.sampled_from(list(TimestampType)))
    if kind is TimestampType.MIXED:
        kind = TimestampType.DATE_STRING
    unit = draw(st.sampled_from([TimeUnit.SECONDS, TimeUnit.MILLISECONDS, TimeUnit.MICROSECONDS]))
    keys = TimestampKeys(
        kind=kind,
        output_format=draw(st.sampled_from(PATTERNS)),
        output_zone=draw(st.sampled_from(ZONES)),
        input_formats=("yyyy-MM-dd HH:mm:ss",),
        scalar_unit=unit,
    )
    moments = draw(st.lists(st.none() | MOMENTS, min_size=1, max_size=6))
    used = keys.unit or TimeUnit.SECONDS
    times, divisor = used.value

    def stored(moment: datetime | None) -> Any:
        if moment is None:
            return None
        if kind.reads_text:
            return moment.strftime("%Y-%m-%d %H:%M:%S")
        us = (moment - EPOCH) // timedelta(microseconds=1)
        return us * divisor // 1_000 // times

    column_type = pa.string() if kind.reads_text else pa.int64()
    rows = pa.table({"t": pa.array([stored(one) for one in moments], column_type)})
    spec = KeySpec(
        record_key_fields=("t",),
        partition_fields=("t",),
        key_generator=KeyGenerator.TIMESTAMP,
        times=keys,
        hive_style=draw(st.booleans()),
        url_encode=draw(st.booleans()),
    )
    rows = rows.append_column(PARTITION_COLUMN, partition_paths(rows, spec))
    value = stored(draw(MOMENTS)) if draw(st.booleans()) else stored(moments[0] or EPOCH)
    condition = condition_of("t", draw(st.sampled_from(OPERATORS)), value, column_type)
    field = PartitionField(name="t", type=column_type, times=keys)
    return rows, pruner_for(condition, rows.schema, spec, [field])


@given(tables_of_times())
def test_a_folder_of_times_with_a_matching_row_is_kept(
    made: tuple[pa.Table, PartitionPruner],
) -> None:
    assert_keeps_matches(*made)


def kept_of(
    paths: list[str],
    condition: pc.Expression,
    *fields: PartitionField,
    hive_style: bool = False,
    url_encode: bool = False,
) -> list[str]:
    schema = pa.schema([*((one.name, one.type) for one in fields), ("v", pa.int64())])
    spec = KeySpec(
        record_key_fields=("v",),
        partition_fields=tuple(one.name for one in fields),
        hive_style=hive_style,
        url_encode=url_encode,
    )
    return pruner_for(condition, schema, spec, fields).partitions(paths)


def test_numbers_compare_as_numbers() -> None:
    p = PartitionField(name="p", type=pa.int32())
    assert kept_of(["10", "9", "100"], pc.field("p") > 9, p) == ["10", "100"]
    assert kept_of(["10", "9", "100"], pc.field("p").isin([9, 10]), p) == ["10", "9"]


def test_the_default_partition_holds_nulls_and_empty_texts() -> None:
    p = PartitionField(name="p", type=pa.string())
    paths = ["__HIVE_DEFAULT_PARTITION__", "a"]
    assert kept_of(paths, pc.field("p").is_null(), p) == paths[:1]
    assert kept_of(paths, pc.field("p") == "", p) == paths[:1]
    assert kept_of(paths, pc.field("p").is_valid(), p) == paths
    n = PartitionField(name="p", type=pa.int64())
    assert kept_of(["__HIVE_DEFAULT_PARTITION__", "1"], pc.field("p").is_valid(), n) == ["1"]


def test_encoded_folders_are_decoded() -> None:
    p = PartitionField(name="p", type=pa.string())
    paths = ["p=a%2Fb", "p=a"]
    condition = pc.field("p") == "a/b"
    assert kept_of(paths, condition, p, hive_style=True, url_encode=True) == ["p=a%2Fb"]


def test_a_folder_stays_while_a_value_with_slashes_may_begin_with_it() -> None:
    p = PartitionField(name="p", type=pa.string())
    schema = pa.schema([("p", pa.string())])
    spec = KeySpec(record_key_fields=("v",), partition_fields=("p",))
    pruner = pruner_for(pc.field("p") == "2018/08/31", schema, spec, [p])
    assert pruner.folders(["2017", "2018", "2019"]) == ["2018"]
    assert pruner.folders(["2018/07", "2018/08"]) == ["2018/08"]
    assert pruner.partitions(["2018/08/30", "2018/08/31"]) == ["2018/08/31"]


def test_the_second_field_prunes_below_the_first() -> None:
    a, b = PartitionField(name="a", type=pa.string()), PartitionField(name="b", type=pa.date32())
    paths = [f"a={x}/b=2024-01-0{d}" for x in "xy" for d in range(1, 4)]
    condition = (pc.field("b") >= date(2024, 1, 3)) & (pc.field("v") > 1)
    assert kept_of(paths, condition, a, b, hive_style=True) == [paths[2], paths[5]]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "GMT+05:30"])
def test_a_range_of_times_keeps_its_days_only(zone: str) -> None:
    keys = TimestampKeys(
        kind=TimestampType.EPOCHMILLISECONDS, output_format="yyyy/MM/dd", output_zone=zone
    )
    t = PartitionField(name="t", type=pa.int64(), times=keys)
    paths = [f"2024/05/{day:02}" for day in range(1, 31)]
    noon = int(datetime(2024, 5, 7, 12, tzinfo=UTC).timestamp()) * 1_000
    assert kept_of(paths, pc.field("t") == noon, t) == ["2024/05/07"]
    some = (pc.field("t") >= noon) & (pc.field("t") < noon + 86_400_000)
    assert kept_of(paths, some, t) == ["2024/05/07", "2024/05/08"]


def test_times_of_an_unknown_zone_keep_the_neighbouring_days() -> None:
    keys = TimestampKeys(kind=TimestampType.UNIX_TIMESTAMP, output_format="yyyy/MM/dd")
    t = PartitionField(name="t", type=pa.int64(), times=keys)
    paths = [f"2024/05/{day:02}" for day in range(1, 31)]
    noon = int(datetime(2024, 5, 7, 12, tzinfo=UTC).timestamp())
    assert kept_of(paths, pc.field("t") == noon, t) == ["2024/05/06", "2024/05/07", "2024/05/08"]


def test_a_folder_of_another_form_is_kept() -> None:
    p = PartitionField(name="p", type=pa.int32())
    assert kept_of(["p=1", "x", "1", "2"], pc.field("p") == 1, p) == ["p=1", "x", "1"]


def test_timestamps_of_an_unknown_clock_keep_the_folders_of_a_day() -> None:
    t = PartitionField(name="t", type=pa.timestamp("us", "UTC"))
    paths = [f"2024-05-{day:02} 12%3A00%3A00" for day in range(1, 31)]
    paths += ["2024-05-20 12:00:00.5", "1715083200000000", "1715083200000", "soon"]
    noon = datetime(2024, 5, 7, 12, tzinfo=UTC)
    condition = pc.field("t") == pa.scalar(noon, t.type)
    assert kept_of(paths, condition, t) == [paths[6], *paths[-3:]]


@pytest.mark.parametrize(
    ("kind", "path", "exact"),
    [
        (pa.string(), "a b", ("a b",)),
        (pa.string(), "a/b", ("a/b",)),
        (pa.string(), "a%2Fb", None),
        (pa.string(), "__HIVE_DEFAULT_PARTITION__", None),
        (pa.int64(), "-7", (-7,)),
        (pa.int64(), "x", None),
        (pa.int64(), "__HIVE_DEFAULT_PARTITION__", (None,)),
        (pa.date32(), "1970-01-03", (2,)),
        (pa.timestamp("us"), "2026-01-02 03:04:05", None),
        (pa.string(), "", None),
    ],
)
def test_the_only_values_of_a_partition_are_known_or_none(
    kind: pa.DataType, path: str, exact: tuple[Any, ...] | None
) -> None:
    pruner = PartitionPruner(
        condition=pc.scalar(True),
        schema=pa.schema([("d", kind)]),
        named=frozenset({"d"}),
        fields=(PartitionField(name="d", type=kind),),
        names=("d",),
    )
    assert pruner.exact_values(path) == exact
