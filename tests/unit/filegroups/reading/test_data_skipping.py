"""Statistics of the metadata table leave out files, and never a row that matches."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hoodoo
from filegroups.files.slice_reader import SliceRead
from filegroups.merge.rules import MergeRules
from filegroups.metadata_table.keys import column_stats_keys, partition_stats_keys
from filegroups.metadata_table.records import COLUMN_STATS, ValueType
from filegroups.reading.data_skipping import skip_partitions, skip_slices
from filegroups.reading.scan import ScanPlan
from filegroups.schema.schema import TableSchema
from filegroups.table import TableReader, open_reader
from tests.interop import golden_tables
from tests.unit.timeline.engine import BRISK, new_table, world_of
from tests.unit.timeline.recording import RecordingStorage
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_slice import BaseFile, FileSlice
from timeline.model.table_config import TableConfig
from timeline.storage.local import LocalStorage

WITH_STATS = ("v9_cow_services", "v8_cow_all", "v9_mor_compacted", "v8_cow_colstats_nonpart")
CONDITIONS = [
    "id = 'k000'", "id > 'k003'", "id <= 'k001'", "id IN ('k002', 'nothing')", "id = 'nothing'",
    "a = 0", "a < 7", "a > 1000", "a <> 14", "ts >= 2", "ts = 1 AND a > 20", "a = 7 OR id = 'k005'",
    "name IS NULL", "name IS NOT NULL", "name = 'n3'", "NOT (name = 'n1')", "name LIKE 'n%'",
    "price > 3", "price = 2.02", "price < 0", "d = DATE '2024-01-02'", "d > DATE '2030-01-01'",
    "t > TIMESTAMP '2024-02-03 04:05:03'", "t < TIMESTAMP '2020-01-01 00:00:00'",
    "ok = true", "ok = false AND a > 0", "x > 1.0", "x < 0", "x <> 0.5", "part = 'p1' AND a < 10",
    "_hoodie_record_key = 'k004'", "_hoodie_commit_time > '2'",
]  # fmt: skip


def reader(path: Path, *, by_metadata: bool) -> TableReader:
    return open_reader(world_of(LocalStorage(path)), replace(BRISK, lists_by_metadata=by_metadata))


def rows(table: TableReader, condition: str) -> list[str]:
    return sorted(map(repr, table.to_arrow(filter=condition).to_pylist()))


@pytest.mark.parametrize("name", WITH_STATS)
def test_a_filtered_read_with_statistics_returns_the_same_rows(name: str, tmp_path: Path) -> None:
    path = golden_tables.unpack(name, tmp_path)
    plain, skipping = reader(path, by_metadata=False), reader(path, by_metadata=True)
    for condition in CONDITIONS:
        assert rows(skipping, condition) == rows(plain, condition), condition


@pytest.mark.parametrize("name", ["v9_cow_services", "v8_cow_all", "v9_mor_ri"])
@pytest.mark.parametrize(
    "condition",
    [
        "id = 'nothing'",
        "a > 100000",
        "price > 1000000",
        "d > DATE '2030-01-01'",
        "_hoodie_record_key > 'z'",
    ],
)
def test_files_without_matching_rows_are_not_read(
    name: str, condition: str, tmp_path: Path
) -> None:
    table = reader(golden_tables.unpack(name, tmp_path), by_metadata=True)
    slices = table.file_slices()
    with_logs = {one.file_group for one in slices if one.log_files}
    kept = {one.file_group for one in table.plan(filter=condition).slices}
    # Logs have no statistics of meta columns.
    assert kept <= (with_logs if condition.startswith("_hoodie") else set())


# ---- Any values

KINDS: dict[str, tuple[pa.DataType, Any, int | None]] = {
    "IntWrapper": (pa.int32(), st.integers(-3, 3), ValueType.INT),
    "LongWrapper": (pa.int64(), st.integers(-3, 3), ValueType.LONG),
    "BooleanWrapper": (pa.bool_(), st.booleans(), ValueType.BOOLEAN),
    "DoubleWrapper": (
        pa.float64(),
        st.sampled_from([-1.0, 0.0, -0.0, 2.5, math.nan, math.inf]),
        ValueType.DOUBLE,
    ),
    "StringWrapper": (
        pa.string(),
        st.sampled_from(["", "a", "b", "b" * 300, "\ue000", "\uffff", "😀", "é"]),
        ValueType.STRING,
    ),
    "BytesWrapper": (
        pa.decimal128(6, 2),
        st.decimals(-3, 3, places=2),
        ValueType.DECIMAL,
    ),
    "DecimalWrapper": (pa.decimal128(6, 2), st.decimals(-3, 3, places=2), None),
    "DateWrapper": (pa.date32(), st.dates(), None),
}


class Statistics:
    """A metadata table that has the records of a test."""

    has_statistics = True
    has_partition_statistics = True

    def __init__(self, records: pa.Table) -> None:
        self.records = records

    def statistics(self, keys: pa.ChunkedArray) -> pa.Table:
        return self.records.filter(pc.is_in(self.records.column("key"), value_set=keys))

    partition_statistics = statistics


def java_order(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-be", "surrogatepass")
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


def bound(wrapper: str, value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if wrapper == "BytesWrapper":
        whole = int(value.scaleb(2))
        value = whole.to_bytes((whole.bit_length() + 8) // 8, "big", signed=True)
    if wrapper == "DateWrapper":
        value = pa.scalar(value).cast(pa.int32()).as_py()
    return {wrapper: value}


def record(wrapper: str, name: str, values: list[Any], number: int | None) -> dict[str, Any]:
    """The record that Java makes of the values of a column."""
    held = [value for value in values if value is not None]
    low, high = (choose(held, key=java_order, default=None) for choose in (min, max))
    (key,) = column_stats_keys(pa.array(["c"]), pa.array(["p"]), pa.array([name])).to_pylist()
    return {
        "key": key,
        "min": bound(wrapper, low),
        "max": bound(wrapper, high),
        "value_count": len(values),
        "null_count": len(values) - len(held),
        "is_deleted": False,
        "is_tight": False,
        "value_type": number,
        "additional_info": "6,2" if number == ValueType.DECIMAL else None,
    }


NAME = "f%d-0_0-0-0_20260101000000000.parquet"
ZERO = pa.scalar(Decimal("0.00"), pa.decimal128(6, 2))
DAY = date(2000, 1, 1)
#: A value that is not that of the records.
OTHERS = {"IntWrapper": 3, "BytesWrapper": Decimal("2.00"), "StringWrapper": "a"}
CONTEXT = replace(new_table().context, limits=replace(BRISK, lists_by_metadata=True))


def kept(
    wrapper: str,
    groups: list[list[Any]],
    condition: pc.Expression,
    records: list[dict[str, Any]] | None = None,
) -> set[int]:
    """The numbers of the groups of values whose file is read."""
    kind, _, number = KINDS[wrapper]
    slices = []
    for at in range(len(groups)):
        group = FileGroupId("p", f"f{at}-0")
        time = "20260101000000000"
        file = BaseFile(file_group=group, name=NAME % at, requested_time=time, size_bytes=1)
        slices.append(FileSlice(file_group=group, base_instant_time=time, base_file=file))
    if records is None:
        records = [record(wrapper, NAME % at, one, number) for at, one in enumerate(groups)]
    plan = ScanPlan(
        slices=tuple(slices),
        read=SliceRead(
            file_schema=pa.schema([("c", kind)]),
            columns=("c",),
            filter=condition,
            rules=MergeRules(definition=CONTEXT.config.merge),
            visible=(),
        ),
    )
    listing: Any = Statistics(pa.Table.from_pylist(records, schema=COLUMN_STATS))
    found = skip_slices(CONTEXT, CONTEXT.snapshot(), plan, listing).slices
    return {int(one.file_group.file_id[1:-2]) for one in found}


def matching(wrapper: str, groups: list[list[Any]], condition: pc.Expression) -> set[int]:
    """The numbers of the groups that have a matching value."""
    tables = [pa.table({"c": pa.array(one, KINDS[wrapper][0])}) for one in groups]
    return {at for at, one in enumerate(tables) if one.filter(condition).num_rows}


@settings(max_examples=100)
@given(st.data())
def test_no_file_with_a_matching_row_is_skipped(data: st.DataObject) -> None:
    wrapper = data.draw(st.sampled_from(sorted(KINDS)))
    kind, value, number = KINDS[wrapper]
    values = st.lists(st.none() | value, max_size=3)
    groups = data.draw(st.lists(values, min_size=2, max_size=4))
    records = [
        record(wrapper, NAME % at, one, number)
        for at, one in enumerate(groups)
        if data.draw(st.integers(0, 5))
    ]
    column, asked = pc.field("c"), pa.scalar(data.draw(value), kind)
    condition = data.draw(
        st.sampled_from(
            [
                column == asked,
                column != asked,
                column < asked,
                column >= asked,
                column.is_null(),
                column.is_valid(),
                ~(column == asked),
                column.isin([asked]),
                (column > asked) | column.is_null(),
            ]
        )
    )
    assert kept(wrapper, groups, condition, records) >= matching(wrapper, groups, condition)


@pytest.mark.parametrize(
    ("wrapper", "groups", "condition", "expected"),
    [
        ("IntWrapper", [[1, 2], [3], [None], []], pc.field("c") > 2, {1, 2, 3}),
        ("IntWrapper", [[1, 2], [3, None]], pc.field("c").is_null(), {1}),
        ("StringWrapper", [["a"], ["b"]], pc.field("c") == "b", {1}),
        # UTF-16 orders the emoji below the other letter, UTF-8 above it.
        ("StringWrapper", [["\uffff", "😀"], ["b"]], pc.field("c") == "😀", {0}),
        ("StringWrapper", [["😀", "\ue000"], ["b"]], pc.field("c") == "\ue000", {0}),
        ("BytesWrapper", [[Decimal("-3.00")], [Decimal("2.50")]], pc.field("c") < ZERO, {0}),
        ("DecimalWrapper", [[Decimal("-3.00")], [Decimal("2.50")]], pc.field("c") < ZERO, {0}),
        ("DateWrapper", [[date(1500, 1, 1)], [date(2020, 2, 2)]], pc.field("c") > DAY, {1}),
        ("BooleanWrapper", [[True], [False, True]], pc.field("c") == pa.scalar(False), {1}),
    ],
)
def test_only_files_whose_bounds_allow_a_match_are_read(
    wrapper: str, groups: list[list[Any]], condition: pc.Expression, expected: set[int]
) -> None:
    assert kept(wrapper, groups, condition) == expected


def changed(wrapper: str, values: list[Any], **fields: Any) -> list[dict[str, Any]]:
    """The records of two equal files; the fields of the second one differ."""
    records = [record(wrapper, NAME % at, values, KINDS[wrapper][2]) for at in range(2)]
    return [records[0], {**records[1], **fields}]


@pytest.mark.parametrize(
    ("wrapper", "value", "fields"),
    [
        ("IntWrapper", 1, {"min": None, "max": None}),
        ("IntWrapper", 1, {"max": None}),
        ("IntWrapper", 1, {"min": {"StringWrapper": "1"}, "max": {"StringWrapper": "1"}}),
        ("IntWrapper", 1, {"value_type": int(ValueType.DATE)}),
        ("BytesWrapper", Decimal("1.00"), {"additional_info": "6,3"}),
        ("BytesWrapper", Decimal("1.00"), {"additional_info": None}),
        ("StringWrapper", "b" * 300, {"min": None, "max": None, "null_count": 1}),
    ],
)
def test_bounds_that_are_not_sure_keep_their_file(
    wrapper: str, value: Any, fields: dict[str, Any]
) -> None:
    records = changed(wrapper, [value], **fields)
    other = pa.scalar(OTHERS[wrapper], KINDS[wrapper][0])
    assert kept(wrapper, [[value], [value]], pc.field("c") == other, records) == {1}


def test_a_number_that_bounds_do_not_cover_keeps_its_file() -> None:
    """Footers leave NaN out of the bounds."""
    records = changed("DoubleWrapper", [2.5])
    groups = [[2.5], [2.5, math.nan]]
    condition = pc.field("c") != 2.5
    assert kept("DoubleWrapper", groups, condition, records) >= {1}


def test_a_file_without_a_record_is_read() -> None:
    records = changed("IntWrapper", [1])[:1]
    assert kept("IntWrapper", [[1], [1]], pc.field("c") == 3, records) == {1}


# ---- Partitions

PATHS = [f"p{number}" for number in range(9)]


def kept_partitions(
    wrapper: str,
    groups: list[list[Any]],
    condition: pc.Expression,
    records: list[dict[str, Any] | None] | None = None,
) -> set[int]:
    """The numbers of the groups of values whose partition is read; there are 9 partitions."""
    kind, _, number = KINDS[wrapper]
    known = records or [record(wrapper, "", one, number) for one in groups]
    schema = TableSchema.from_arrow(pa.schema([("id", pa.string()), ("c", kind)]), "t")
    keys = partition_stats_keys(pa.array(["c"] * 9), pa.array(PATHS)).to_pylist()
    made = [{**one, "key": key} for one, key in zip(known, keys, strict=False) if one is not None]
    listing: Any = Statistics(pa.Table.from_pylist(made, schema=COLUMN_STATS))
    config = replace(
        CONTEXT.config, raw={**CONTEXT.config.raw, "hoodie.table.create.schema": schema.avro_json}
    )
    context = replace(CONTEXT, config=TableConfig.from_properties(config.raw))
    found = skip_partitions(context, CONTEXT.snapshot(), condition, PATHS, listing=listing)
    assert found == sorted(found)
    return {PATHS.index(one) for one in found}


@settings(max_examples=100)
@given(st.data())
def test_no_partition_with_a_matching_row_is_skipped(data: st.DataObject) -> None:
    wrapper = data.draw(st.sampled_from(sorted(KINDS)))
    kind, value, number = KINDS[wrapper]
    groups = data.draw(st.lists(st.lists(st.none() | value, max_size=3), min_size=9, max_size=9))
    is_tight = data.draw(st.booleans())
    records = [
        {**record(wrapper, "", one, number), "is_tight": is_tight}
        if data.draw(st.integers(0, 5))
        else None
        for one in groups
    ]
    column, asked = pc.field("c"), pa.scalar(data.draw(value), kind)
    conditions = [column == asked, column != asked, column < asked, column >= asked]
    conditions += [column.is_null(), column.is_valid(), ~(column == asked), column.isin([asked])]
    condition = data.draw(st.sampled_from(conditions))
    assert kept_partitions(wrapper, groups, condition, records) >= matching(
        wrapper, groups, condition
    )


@pytest.mark.parametrize("is_tight", [True, False])
@pytest.mark.parametrize(
    ("wrapper", "value", "other"),
    [("LongWrapper", 1, 5), ("StringWrapper", "a", "b"), ("BooleanWrapper", True, False)],
)
def test_exact_and_wide_bounds_exclude_a_partition(
    wrapper: str, value: Any, other: Any, is_tight: bool
) -> None:
    groups = [[other]] * 8 + [[value]]
    number = KINDS[wrapper][2]
    records = [{**record(wrapper, "", one, number), "is_tight": is_tight} for one in groups]
    assert kept_partitions(wrapper, groups, pc.field("c") == value, records) == {8}


@pytest.mark.spec("MDT-21")
def test_missing_and_null_records_exclude_no_partition() -> None:
    known = record("LongWrapper", "", [5], ValueType.LONG)
    null = {**known, "min": None, "max": None}
    empty = {**null, "value_count": 0, "null_count": 0}
    half = {**known, "max": None}
    records = [None, null, empty, half, *[known] * 5]
    assert kept_partitions("LongWrapper", [], pc.field("c") == 1, records) == {0, 1, 2, 3}


def test_rows_of_files_without_the_column_are_nulls() -> None:
    groups = [[5]] * 9
    assert kept_partitions("LongWrapper", groups, pc.field("c").is_null()) == set(range(9))
    assert kept_partitions("LongWrapper", groups, pc.field("c") == 6) == set()


def test_a_partition_with_nulls_in_a_text_column_is_read() -> None:
    groups = [["b", None]] + [["b"]] * 8  # Java counts a long text as a null
    assert kept_partitions("StringWrapper", groups, pc.field("c") == "z" * 300) == {0}


def test_decimals_exclude_no_partition() -> None:
    groups = [[Decimal("-3.00")]] * 9  # a merge keeps the scale of one record
    assert kept_partitions("BytesWrapper", groups, pc.field("c") > ZERO) == set(range(9))


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A table of 12 partitions with a row in each, and no file of another moment."""
    path = tmp_path / "t"
    schema = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64())])
    with hoodoo.create_table(
        path,
        schema=schema,
        record_key="id",
        partition_by="p",
        properties={"hoodie.metadata.enable": "true"},
    ) as table:
        table.upsert([{"id": f"k{at}", "p": f"p{at:02d}", "v": at * 10} for at in range(12)])
    return path


def opened_files(table: TableReader) -> set[str]:
    storage: Any = table.context.ports.storage
    folder = ".hoodie/metadata/"
    found = [one.path for one in storage.calls if one.path.startswith(folder)]
    return {path.removeprefix(folder).partition("/")[0] for path in found}


def recorded(path: Path) -> TableReader:
    storage = RecordingStorage(LocalStorage(path))
    return open_reader(world_of(storage), replace(BRISK, lists_by_metadata=True))


def test_partitions_are_skipped_before_the_statistics_of_their_files_are_read(many: Path) -> None:
    table = recorded(many)
    assert table.plan(filter="v = 55").slices == ()
    assert {"partition_stats"} <= opened_files(table)
    assert "column_stats" not in opened_files(table)
    (one,) = table.plan(filter="v > 105 OR id = 'nothing'").slices
    assert one.file_group.partition_path == "p11"
    assert len(table.plan(filter="v >= 100 AND p <> 'p11'").slices) == 1
    assert len(table.file_slices(filter="v = 55")) == 12  # for reads of conflict checks


def test_few_partitions_are_not_worth_their_statistics(many: Path) -> None:
    table = recorded(many)
    assert table.plan(filter="v = 55", partitions=["p01", "p02"]).slices == ()
    assert "partition_stats" not in opened_files(table)


@pytest.mark.spec("MDT-21")
def test_an_earlier_moment_is_not_excluded_by_bounds_of_now(many: Path) -> None:
    with hoodoo.open_table(many) as table:
        before = table.history()[0].completion_time
        table.insert_overwrite([{"id": "new", "p": f"p{at:02d}", "v": 1_000} for at in range(12)])
        table.metadata.rebuild("partition_stats")  # the bounds are those of the new rows alone
    with hoodoo.open_table(many, properties={"hoodie.metadata.enable": "true"}) as table:
        assert table.plan(filter="v = 50").slices == ()
        assert table.to_arrow(filter="v = 50").num_rows == 0
        then = table.as_of(before)
        assert then.to_arrow(filter="v = 50").column("id").to_pylist() == ["k5"]


@pytest.mark.spec("MDT-21")
def test_statistics_that_are_dropped_and_being_built_are_not_used(many: Path) -> None:
    reader = recorded(many)
    assert reader.plan(filter="v = 11").slices == ()
    with hoodoo.open_table(many) as table:
        table.metadata.drop("partition_stats")

        def never(*_: object) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tableservices.metadata_table.build._write_base_files", never)
            with pytest.raises(KeyboardInterrupt):
                table.metadata.create("partition_stats")
        table.bulk_insert([{"id": f"n{at}", "p": f"p{at:02d}", "v": 2} for at in range(12)])
    # Until the build ends, the bounds are those of the last files alone.
    for one in (reader, recorded(many)):
        (found,) = one.plan(filter="v = 110").slices
        assert found.file_group.partition_path == "p11"


def test_a_column_that_is_new_in_some_files_is_null_in_the_others(many: Path) -> None:
    with hoodoo.open_table(many, properties={"hoodie.metadata.enable": "true"}) as table:
        table.insert([{"id": f"n{at}", "p": f"p{at:02d}", "v": at, "w": at} for at in range(12)])
        assert table.to_arrow(filter="w IS NULL").num_rows == 12
        assert table.to_arrow(filter="w = 5").column("id").to_pylist() == ["n5"]
