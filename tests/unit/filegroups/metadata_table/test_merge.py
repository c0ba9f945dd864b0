"""Layers of the metadata table merge as Java merges them, and in any order where Java promises it."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filegroups.metadata_table.merge import live_files, merge_layers
from filegroups.metadata_table.records import (
    BLOOM_FILTERS,
    COLUMN_STATS,
    FILES,
    RECORD_INDEX,
    SECONDARY_INDEX,
    ValueType,
)

KEYS = st.sampled_from(["p0", "p1", "é", "p"])
NAMES = st.sampled_from(["a", "b", "c"])


def files(*rows: tuple[str, str, int]) -> pa.Table:
    """A layer of files; size 0 is a tombstone."""
    columns: list[Any] = [list(one) for one in zip(*rows, strict=True)] or [[], [], []]
    return pa.table([*columns, [size == 0 for size in columns[2]]], schema=FILES)


def stats(key: str, low: Any, high: Any, **fields: Any) -> dict[str, Any]:
    """A record of statistics; a bound is a wrapper's name and a value."""
    bounds = {"min": low, "max": high}
    known = {name: None if one is None else {one[0]: one[1]} for name, one in bounds.items()}
    counts = dict.fromkeys(("value_count", "null_count", "total_size"), 1)
    flags = {"is_deleted": False, "is_tight": False, "total_uncompressed_size": 2}
    return {"key": key, "file_name": "p", "column_name": "c", **known, **counts, **flags, **fields}


def layer(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=COLUMN_STATS)


def bound(row: dict[str, Any], name: str) -> Any:
    held = row[name]
    return None if held is None else next((k, v) for k, v in held.items() if v is not None)


# ---- Files


def fold_files(state: dict[str, dict[str, int]], one: Any) -> dict[str, dict[str, int]]:
    """Merge one layer in plain Python."""
    if isinstance(one, list):
        return {key: held for key, held in state.items() if key not in one}
    state = {key: dict(held) for key, held in state.items()}
    for (key, name), size in one.items():
        held = state.setdefault(key, {})
        if size:
            held[name] = max(size, held.get(name, 0))
        elif held.get(name):
            del held[name]
        else:
            held[name] = 0
    return state


LAYERS = st.lists(
    st.dictionaries(st.tuples(KEYS, NAMES), st.integers(0, 3), max_size=6)
    | st.lists(KEYS, max_size=2),
    max_size=6,
)


@given(LAYERS)
def test_files_merge_as_layer_after_layer(made: list[Any]) -> None:
    layers = [
        pa.array(one, pa.string())
        if isinstance(one, list)
        else files(*((key, name, size) for (key, name), size in one.items()))
        for one in made
    ]
    nothing: dict[str, dict[str, int]] = {}
    expected = reduce(fold_files, made, nothing)
    rows = [
        (key, name, size)
        for key in sorted(expected, key=str.encode)
        for name, size in expected[key].items()
    ]
    merged = merge_layers(layers, FILES)
    found = [(row["key"], row["name"], row["size"]) for row in merged.to_pylist()]
    assert sorted(found) == sorted(rows)
    keys = [key for key, _, _ in found]
    assert keys == sorted(keys, key=str.encode)
    assert merged.schema == FILES
    assert live_files(merged).num_rows == sum(size > 0 for _, _, size in rows)


@given(st.permutations([files(("p", "a", 3)), files(("p", "a", 5)), files(("p", "b", 1))]))
def test_listed_files_merge_in_any_order(layers: list[pa.Table]) -> None:
    merged = merge_layers(layers, FILES)
    assert {(row["name"], row["size"]) for row in merged.to_pylist()} == {("a", 5), ("b", 1)}


def test_a_deleted_partition_keeps_only_files_that_were_written_later() -> None:
    layers = [files(("p", "a", 3), ("q", "a", 1)), pa.array(["p"]), files(("p", "b", 2))]
    merged = merge_layers(layers, FILES)
    assert [(row["key"], row["name"]) for row in merged.to_pylist()] == [("p", "b"), ("q", "a")]


# ---- Statistics


def fold_stats(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Merge one record in plain Python."""
    if old is None or old["is_deleted"] or new["is_deleted"] or new["is_tight"]:
        return new
    found = dict(new)
    for name, choose in (("min", min), ("max", max)):
        held = [one for one in (bound(old, name), bound(new, name)) if one is not None]
        kind, value = choose(held, key=lambda one: one[1]) if held else (None, None)
        found[name] = None if kind is None else {kind: value}
    for name in ("value_count", "null_count", "total_size", "total_uncompressed_size"):
        found[name] = old[name] + new[name]
    return found


VALUES = {
    "IntWrapper": st.integers(-(2**31), 2**31 - 1),
    "LongWrapper": st.integers(-(2**63), 2**63 - 1),
    "DoubleWrapper": st.floats(allow_nan=False, allow_infinity=True).map(lambda x: x + 0.0),
    "StringWrapper": st.text(max_size=3),
    "BytesWrapper": st.binary(max_size=3),
    "BooleanWrapper": st.booleans(),
    "DateWrapper": st.integers(-(2**31), 2**31 - 1),
    "DecimalWrapper": st.decimals(-(10**6), 10**6, places=15),
}


@st.composite
def histories(draw: Any) -> list[dict[str, Any]]:
    kind = draw(st.sampled_from(sorted(VALUES)))
    value = st.none() | VALUES[kind].map(lambda one: (kind, one))
    made = []
    for _ in range(draw(st.integers(1, 5))):
        flags = draw(st.sampled_from([{}, {}, {}, {"is_tight": True}, {"is_deleted": True}]))
        counts = {"value_count": draw(st.integers(0, 5)), "null_count": draw(st.integers(0, 5))}
        made.append(stats("k", draw(value), draw(value), **flags, **counts))
    return made


@given(st.lists(histories(), min_size=1, max_size=4))
def test_statistics_merge_as_record_after_record(made: list[list[dict[str, Any]]]) -> None:
    for number, rows in enumerate(made):
        for row in rows:
            row["key"] = f"k{number}"
    rounds = itertools.zip_longest(*made)
    layers = [layer(*(row for row in some if row is not None)) for some in rounds]
    expected = [reduce(fold_stats, rows, None) for rows in made]
    merged = merge_layers(layers, COLUMN_STATS)
    found = {row["key"]: row for row in merged.to_pylist()}
    assert merged.schema == COLUMN_STATS
    for one in expected:
        assert one is not None
        if one["is_deleted"]:
            assert one["key"] not in found
            continue
        row = found.pop(one["key"])
        for name in ("min", "max"):
            wanted = None if one[name] is None else bound(one, name)
            held = bound(row, name)
            if wanted is not None and wanted[0] == "StringWrapper":  # by bytes, unlike Python
                assert held is not None
                continue
            assert held == wanted
        assert {k: row[k] for k in ("value_count", "null_count")} == {
            k: one[k] for k in ("value_count", "null_count")
        }
    assert not found


@given(st.permutations([(1, 5), (3, 9), (-4, 2)]))
def test_loose_statistics_merge_in_any_order(limits: list[tuple[int, int]]) -> None:
    layers = [layer(stats("k", ("IntWrapper", a), ("IntWrapper", b))) for a, b in limits]
    (row,) = merge_layers(layers, COLUMN_STATS).to_pylist()
    assert (bound(row, "min"), bound(row, "max")) == (("IntWrapper", -4), ("IntWrapper", 9))
    assert row["value_count"] == 3


def merged_bounds(*limits: tuple[Any, Any], **fields: Any) -> tuple[Any, Any]:
    layers = [layer(stats("k", *one, **fields)) for one in limits]
    (row,) = merge_layers(layers, COLUMN_STATS).to_pylist()
    return bound(row, "min"), bound(row, "max")


def test_a_decimal_in_bytes_is_compared_as_a_number() -> None:
    def number(value: int) -> tuple[str, bytes]:
        length = (value.bit_length() + 8) // 8
        return "BytesWrapper", value.to_bytes(length, "big", signed=True)

    values = [3, -300, 70_000, -2, 255, 128, -129]
    found = merged_bounds(
        *((number(one), number(one)) for one in values), value_type=ValueType.DECIMAL
    )
    assert found == (number(-300), number(70_000))


def test_nan_is_the_greatest_number_and_minus_zero_is_below_zero() -> None:
    def double(value: float) -> tuple[tuple[str, float], tuple[str, float]]:
        return ("DoubleWrapper", value), ("DoubleWrapper", value)

    low, high = merged_bounds(double(0.0), double(math.nan), double(-0.0))
    assert math.copysign(1, low[1]) == -1
    assert math.isnan(high[1])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (("IntWrapper", 7), ("LongWrapper", 2**40), (("LongWrapper", 7), ("LongWrapper", 2**40))),
        (("LongWrapper", 9), ("IntWrapper", 3), (("LongWrapper", 3), ("LongWrapper", 9))),
        (
            ("FloatWrapper", 1.5),
            ("DoubleWrapper", 2.5),
            (("DoubleWrapper", 1.5), ("DoubleWrapper", 2.5)),
        ),
        (
            ("IntWrapper", 4),
            ("DoubleWrapper", 2.5),
            (("DoubleWrapper", 2.5), ("DoubleWrapper", 4.0)),
        ),
        (("IntWrapper", 4), ("StringWrapper", "x"), (None, None)),
    ],
)
def test_bounds_of_a_column_whose_type_changed_get_the_wider_type(
    first: Any, second: Any, expected: Any
) -> None:
    assert merged_bounds((first, first), (second, second)) == expected


def test_a_long_becomes_a_double_that_is_not_inside_the_bounds() -> None:
    value = 2**53 + 1
    number = ("LongWrapper", value)
    low, high = merged_bounds((number, number), (("DoubleWrapper", 1e300), ("DoubleWrapper", 0.0)))
    assert low[1] <= value <= high[1]


def test_an_unknown_count_makes_the_sum_unknown() -> None:
    rows = [layer(stats("k", None, None)), layer(stats("k", None, None, null_count=None))]
    (row,) = merge_layers(rows, COLUMN_STATS).to_pylist()
    assert (row["value_count"], row["null_count"]) == (2, None)


# ---- The other kinds


def test_the_newest_record_of_a_key_counts() -> None:
    def place(key: str, path: str) -> pa.Table:
        return pa.table([[key], [path], ["f-0"], [1]], schema=RECORD_INDEX)

    layers = [place("a", "p"), place("b", "p"), pa.array(["b", "c"]), place("a", "q")]
    merged = merge_layers(layers, RECORD_INDEX)
    assert [(row["key"], row["partition_path"]) for row in merged.to_pylist()] == [("a", "q")]
    assert merge_layers([*layers, place("b", "r")], RECORD_INDEX).num_rows == 2


def test_a_record_that_is_marked_as_deleted_is_no_record() -> None:
    pairs = [
        pa.table([["v$a", "v$b"], [False, False]], schema=SECONDARY_INDEX),
        pa.table([["v$a"], [True]], schema=SECONDARY_INDEX),
    ]
    assert merge_layers(pairs, SECONDARY_INDEX).column("key").to_pylist() == ["v$b"]
    bloom = pa.table([["k"], ["SIMPLE"], ["1"], [b""], [True]], schema=BLOOM_FILTERS)
    assert merge_layers([bloom], BLOOM_FILTERS).num_rows == 0


@pytest.mark.parametrize(
    "shape", [FILES, COLUMN_STATS, BLOOM_FILTERS, RECORD_INDEX, SECONDARY_INDEX]
)
def test_no_layers_and_empty_layers_merge_to_no_rows(shape: pa.Schema) -> None:
    for layers in ([], [shape.empty_table()], [pa.array([], pa.string())], [pa.array(["k"])]):
        assert merge_layers(layers, shape) == shape.empty_table()


def test_decimals_of_version_8_merge_as_numbers() -> None:
    def number(text: str) -> tuple[str, Decimal]:
        return "DecimalWrapper", Decimal(text)

    limits = [(number(text), number(text)) for text in ("1.5", "-20.25", "9")]
    low, high = merged_bounds(*limits)
    assert (low[1], high[1]) == (Decimal("-20.25"), Decimal(9))
