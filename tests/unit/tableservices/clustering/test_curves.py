"""The order along curves: by value on small cubes, by property on bigger ones."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tableservices.clustering.curves import (
    COLUMNS_MAX,
    Curve,
    hilbert_numbers,
    row_order,
    z_numbers,
)
from timeline.errors import InvalidInputError


def _cube(dimensions: int, bits: int) -> np.ndarray:
    cells = np.indices((1 << bits,) * dimensions)
    return cells.reshape(dimensions, -1).astype(np.uint32)


def test_z_order_interleaves_the_bits() -> None:
    axes = np.array([[0b10, 0b01, 0b11], [0b01, 0b01, 0b00]], np.uint32)
    assert z_numbers(axes, 2).tolist() == [0b1001, 0b0011, 0b1010]


@pytest.mark.parametrize(("dimensions", "bits"), [(2, 3), (3, 2), (5, 2), (2, 16), (7, 9)])
def test_z_order_equals_the_bits_taken_one_by_one(dimensions: int, bits: int) -> None:
    rows = np.random.default_rng(7).integers(0, 1 << bits, (50, dimensions))
    expected = [
        int("".join(str((int(row[axis]) >> bit) & 1) for bit in reversed(range(bits)) for axis in range(dimensions)), 2)
        for row in rows
    ]  # fmt: skip
    assert z_numbers(rows.T.astype(np.uint32), bits).tolist() == expected


def test_hilbert_runs_through_the_smallest_square_in_a_u() -> None:
    numbers = hilbert_numbers(_cube(2, 1), 1)
    assert numbers.tolist() == [0, 1, 3, 2]  # (0,0) (0,1) (1,1) (1,0)


@pytest.mark.parametrize(("dimensions", "bits"), [(2, 1), (2, 4), (3, 3), (4, 2), (5, 2)])
def test_hilbert_visits_every_cell_and_moves_by_one_step(dimensions: int, bits: int) -> None:
    axes = _cube(dimensions, bits)
    numbers = hilbert_numbers(axes, bits)
    assert sorted(numbers.tolist()) == list(range(1 << (dimensions * bits)))
    path = axes[:, np.argsort(numbers)].astype(np.int64)
    assert (np.abs(np.diff(path, axis=1)).sum(axis=0) == 1).all()


def test_blocks_do_not_change_the_curve() -> None:
    axes = _cube(2, 9)  # four blocks
    path = axes[:, np.argsort(hilbert_numbers(axes, 9))].astype(np.int64)
    assert (np.abs(np.diff(path, axis=1)).sum(axis=0) == 1).all()


def test_linear_sorts_by_the_columns_and_keeps_ties_in_order() -> None:
    rows = pa.table({"a": [2, 1, 2, None, 1], "b": ["x", "z", "a", "a", "z"]})
    assert row_order(rows, ("a", "b"), Curve.LINEAR).tolist() == [1, 4, 2, 0, 3]


_WHEN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([3, 1, 2, None], pa.int16()),
        pa.array([3.5, -1.0, 0.5, None]),
        pa.array(["c", "a", "b", None]),
        pa.array([b"c", b"a", b"b", None]),
        pa.array([Decimal("3.1"), Decimal("-1.0"), Decimal("2.0"), None]),
        pa.array([_WHEN + dt.timedelta(days=n) for n in (3, 1, 2)] + [None]),
        pa.array([dt.date(2026, 1, n) for n in (3, 1, 2)] + [None]),
        pa.array(["c", "a", "b", None]).dictionary_encode(),
        pa.array(["c", "a", "b", None], pa.large_string()),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("curve", list(Curve))
def test_any_type_with_an_order_can_be_sorted_with_nulls_last(
    column: pa.Array, curve: Curve
) -> None:
    rows = pa.table({"x": column, "same": [1, 1, 1, 1]})
    assert row_order(rows, ("x",), curve).tolist() == [1, 2, 0, 3]
    assert row_order(rows, ("x", "same"), curve).tolist() == [1, 2, 0, 3]


def test_booleans_and_fields_of_structs_are_sorted() -> None:
    rows = pa.table({"s": [{"flag": True}, {"flag": False}], "n": [1, 1]})
    assert row_order(rows, ("s.flag", "n"), Curve.ZORDER).tolist() == [1, 0]


def test_a_skewed_column_does_not_push_the_other_out_of_the_order() -> None:
    """One huge value would leave no bits to the rest, were values taken as they are."""
    rng = np.random.default_rng(1)
    skewed = np.exp(rng.normal(size=4096) * 6)
    rows = pa.table({"skewed": skewed, "even": rng.normal(size=4096)})
    for curve in (Curve.ZORDER, Curve.HILBERT):
        order = row_order(rows, ("skewed", "even"), curve)
        for name in ("skewed", "even"):
            values = rows.column(name).to_numpy()[order].reshape(16, -1)
            middle = np.median(rows.column(name))
            touched = ((values.min(axis=1) <= middle) & (values.max(axis=1) >= middle)).sum()
            assert touched <= 6, (curve, name)  # of 16 files; 16 where the order ignores it


@given(st.lists(st.tuples(st.integers(-5, 5), st.text("ab", max_size=2)), max_size=40))
def test_every_order_is_a_permutation(values: list[tuple[int, str]]) -> None:
    rows = pa.table(
        {"a": pa.array([a for a, _ in values], pa.int64()), "b": pa.array([b for _, b in values], pa.string())}
    )  # fmt: skip
    for curve in Curve:
        assert sorted(row_order(rows, ("a", "b"), curve).tolist()) == list(range(len(values)))


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        (("nope",), "nope"),
        (("s",), "no order"),
        (("s.nope",), "s.nope"),
        (("n.deeper",), "n.deeper"),
        (tuple(["n"] * (COLUMNS_MAX + 1)), "at most"),
    ],
)
def test_a_column_without_an_order_is_refused_by_name(columns: tuple[str, ...], word: str) -> None:
    rows = pa.table({"s": [{"flag": True}], "n": [1]})
    with pytest.raises(InvalidInputError, match=word):
        row_order(rows, columns, Curve.ZORDER)
