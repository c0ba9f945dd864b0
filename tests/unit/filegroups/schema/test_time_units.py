"""The table's schema gives the unit of a timestamp if an old writer's file names a wrong one."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filegroups.files.avro_columns import decode_records, encode_records
from filegroups.files.parquet import read_base_file, write_base_file
from filegroups.schema.avro_schema import arrow_to_avro
from filegroups.schema.casting import normalise, promote
from filegroups.schema.evolution import UNKNOWN_UNIT
from filegroups.schema.schema import KEY_COLUMN, with_meta
from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import InvalidInputError, UnsupportedTableError

UTC_MS, UTC_US = pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")
LOCAL_MS, LOCAL_US = pa.timestamp("ms"), pa.timestamp("us")

#: The file's type, the table's type, and whether the numbers are the table's.
REPAIRED = [(UTC_US, UTC_MS), (pa.int64(), LOCAL_MS), (pa.int64(), LOCAL_US)]
UNKNOWN = [
    (pa.int64(), UTC_MS),
    (pa.int64(), UTC_US),
    (LOCAL_US, LOCAL_MS),
    (LOCAL_US, UTC_MS),
    (UTC_US, LOCAL_MS),
]
TRUE = [(UTC_MS, UTC_US), (LOCAL_MS, LOCAL_US), (UTC_US, UTC_US), (UTC_MS, UTC_MS)]

Wrap = Callable[[pa.DataType], pa.DataType]
WRAPS: list[Wrap] = [
    lambda kind: kind,
    lambda kind: pa.list_(pa.field("element", kind)),
    lambda kind: pa.struct([("n", pa.int32()), ("t", kind)]),
    lambda kind: pa.map_(pa.string(), kind),
    lambda kind: pa.list_(pa.field("element", pa.struct([("t", kind)]))),
    lambda kind: pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.field("element", kind))))]),
]
NUMBERS = st.lists(st.none() | st.integers(-62_135_596_800_000, 253_402_300_799_999), min_size=1)


def inside(numbers: list[int | None], number: int) -> list[object]:
    """Return the numbers in the shape of `WRAPS[number]`."""
    shapes: list[Callable[[int | None], object]] = [
        lambda one: one,
        lambda one: [one, one],
        lambda one: {"n": 1, "t": one},
        lambda one: [("k", one)],
        lambda one: [{"t": one}],
        lambda one: {"m": [("k", [one])]},
    ]
    return [shapes[number](one) for one in numbers]


def column(numbers: list[int | None], wrap: int, kind: pa.DataType) -> pa.Table:
    """Return a column with these numbers as timestamps of a type, at some depth."""
    return pa.table(
        {"c": with_bits(pa.array(inside(numbers, wrap), WRAPS[wrap](pa.int64())), kind)}
    )


def with_bits(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same values, with another type for the longs."""
    made = values.type
    if made == pa.int64():
        return values.view(kind)
    if pa.types.is_struct(made):
        parts = [with_bits(values.field(at), kind) for at in range(made.num_fields)]
        fields = [each.with_type(part.type) for each, part in zip(made, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=values.is_null())
    if pa.types.is_map(made):
        items = with_bits(values.items, kind)
        return pa.MapArray.from_arrays(values.offsets, values.keys, items)
    if pa.types.is_list(made):
        inner = with_bits(values.values, kind)
        whole = pa.list_(pa.field("element", inner.type))
        return pa.ListArray.from_arrays(values.offsets, inner, type=whole)
    return values


@pytest.mark.parametrize(("stored", "wanted"), REPAIRED)
@given(numbers=NUMBERS, wrap=st.sampled_from(range(len(WRAPS))))
def test_numbers_under_an_old_label_are_of_the_tables_unit_at_every_level(
    stored: pa.DataType, wanted: pa.DataType, numbers: list[int | None], wrap: int
) -> None:
    rows = column(numbers, wrap, stored)
    expected = column(numbers, wrap, wanted)
    assert promote(rows, pa.schema([("c", WRAPS[wrap](wanted))])).equals(expected)


@pytest.mark.parametrize(("stored", "wanted"), TRUE)
@given(numbers=NUMBERS, wrap=st.sampled_from(range(len(WRAPS))))
def test_a_label_the_table_does_not_contradict_is_correct(
    stored: pa.DataType, wanted: pa.DataType, numbers: list[int | None], wrap: int
) -> None:
    rows = column(numbers, wrap, stored)
    found = promote(rows, pa.schema([("c", WRAPS[wrap](wanted))]))
    scale = 1 if stored == wanted else 1_000
    scaled = [None if one is None else one * scale for one in numbers]
    assert found.equals(column(scaled, wrap, wanted))


@pytest.mark.parametrize("wrap", range(len(WRAPS)))
@pytest.mark.parametrize(("stored", "wanted"), UNKNOWN)
@pytest.mark.parametrize("numbers", [[0, 1_577_836_800_000], []])
def test_timestamps_of_unknown_unit_are_refused(
    stored: pa.DataType, wanted: pa.DataType, wrap: int, numbers: list[int | None]
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        promote(column(numbers, wrap, stored), pa.schema([("c", WRAPS[wrap](wanted))]))
    assert caught.value.kind == UNKNOWN_UNIT


def test_rows_to_write_are_converted_to_the_unit_of_the_table() -> None:
    rows = pa.table({"c": pa.array([1_000, None], UTC_US)})
    assert normalise(rows, pa.schema([("c", UTC_MS)])).column("c").cast(pa.int64()).to_pylist() == [1, None]  # fmt: skip
    with pytest.raises(InvalidInputError) as caught:
        normalise(pa.table({"c": pa.array([1], UTC_US)}), pa.schema([("c", UTC_MS)]))
    assert caught.value.kind == "lossy_value"


def in_a_file(stored: pa.DataType, numbers: list[int | None]) -> MemoryStorage:
    schema = pa.schema([("c", stored)])
    keys = pa.array([str(each) for each in range(len(numbers))])
    columns = {name: keys for name in with_meta(schema).names if name != "c"}
    rows = pa.table({**columns, "c": pa.array(numbers, pa.int64()).view(stored)})
    storage = MemoryStorage()
    write_base_file(storage, "f.parquet", rows, avro_json=arrow_to_avro(schema, "t"))
    return storage


@pytest.mark.parametrize(("stored", "wanted"), REPAIRED)
def test_a_filter_on_a_column_of_another_label_loses_no_row(
    stored: pa.DataType, wanted: pa.DataType
) -> None:
    numbers = [1_577_836_799_999, 1_577_836_800_000, 0, None]
    storage = in_a_file(stored, numbers)
    asked = pa.schema([(KEY_COLUMN, pa.string()), ("c", wanted)])
    for place, number in enumerate(numbers[:3]):
        moment = pa.array([number]).view(wanted)[0]
        for condition, rows in (
            (pc.field("c") == moment, [place]),
            (pc.field("c") >= moment, [at for at in range(3) if (numbers[at] or 0) >= number]),
        ):
            found = read_base_file(storage, "f.parquet", schema=asked, row_filter=condition)
            assert found.column(KEY_COLUMN).to_pylist() == [str(each) for each in rows]


def test_a_file_of_unknown_unit_is_named_in_a_refusal_of_its_own_kind() -> None:
    storage = in_a_file(pa.int64(), [1])
    asked = pa.schema([(KEY_COLUMN, pa.string()), ("c", UTC_MS)])
    assert read_base_file(storage, "f.parquet", schema=asked, columns=[KEY_COLUMN]).num_rows == 1
    with pytest.raises(UnsupportedTableError) as caught:
        read_base_file(storage, "f.parquet", schema=asked)
    assert (caught.value.kind, caught.value.fields["path"]) == (UNKNOWN_UNIT, "f.parquet")


@pytest.mark.parametrize(("stored", "wanted"), REPAIRED)
def test_avro_records_under_an_old_label_are_of_the_tables_unit(
    stored: pa.DataType, wanted: pa.DataType
) -> None:
    written = arrow_to_avro(pa.schema([("c", stored)]), "t")
    numbers = pa.array([1_577_836_799_999, None, 0])
    content = encode_records(pa.table({"c": numbers.view(stored)}), written)
    found = decode_records(content[8:], 3, written, pa.schema([("c", wanted)]), path="l")
    assert found.column("c").combine_chunks().equals(numbers.view(wanted))
