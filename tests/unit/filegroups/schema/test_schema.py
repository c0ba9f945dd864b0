"""Chunked columns become one array, or numbers for their distinct values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from filegroups.schema.arrow_columns import distinct_codes, one_array, ranks, version_rounds


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["b", "a", "b"]),
        pa.chunked_array([["b"], [], ["a", "b"]]),
        pa.chunked_array(
            [
                pa.array(["b"]).dictionary_encode(),
                pa.array(["a", "b"])[:0].cast(pa.dictionary(pa.int32(), pa.string())),
                pa.array(["a", "b"]).dictionary_encode(),
            ]
        ),
    ],
    ids=["array", "chunks", "dictionaries"],
)
def test_values_are_numbered_as_they_first_appear(column: pa.Array | pa.ChunkedArray) -> None:
    codes, values = distinct_codes(column)
    assert codes.tolist() == [0, 1, 0]
    assert values.to_pylist() == ["b", "a"]
    assert one_array(column).to_pylist() == ["b", "a", "b"]


def test_a_column_without_chunks_has_no_values() -> None:
    column = pa.chunked_array([], pa.string())
    codes, values = distinct_codes(column)
    assert (len(codes), values.type, len(values)) == (0, pa.string(), 0)
    assert one_array(column).type == pa.string()
    days = pa.dictionary(pa.int32(), pa.date32())
    assert one_array(pa.chunked_array([], days)).type == days


def test_one_chunk_is_not_copied() -> None:
    only = pa.array([1, 2])
    assert one_array(pa.chunked_array([only])).buffers()[1].address == only.buffers()[1].address


def test_equal_codes_are_ranked_in_their_order() -> None:
    codes = np.array([7, 3, 7, 7, 3])
    assert ranks(codes).tolist() == [0, 0, 1, 2, 1]
    assert [each.tolist() for each in version_rounds(codes)] == [[1, 0], [4, 2], [3]]


def test_empty_codes_have_no_rounds() -> None:
    none = np.zeros(0, np.int64)
    assert ranks(none).tolist() == []
    assert list(version_rounds(none)) == []
