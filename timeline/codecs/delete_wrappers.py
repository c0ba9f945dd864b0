"""
The typed wrappers around the ordering of a delete, one for each type of column.

A reader in Java compares the wrapped value with the row's own, and a value of another class
is an exception there (fmt 5.5). So a column is wrapped as Java's writers wrap it: what Avro
stores as a plain number, also dates, times of day and timestamps, stays that number.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timeline.codecs.avro_columns.decode import RecordPlan, plan_record
from timeline.codecs.avro_columns.types import Items, Record, arrow_type, parse_schema
from timeline.codecs.ragged import blobs, cells, joined, longs, with_lengths
from timeline.errors import InvalidInputError
from timeline.model.columns import one_array

__all__ = ["ARRAY", "BRANCHES", "INT", "NULL", "DeleteLayout", "delete_layout", "texts", "wrapped"]

NULL: Final = 0
INT: Final = 2
ARRAY: Final = 12
"""Branch of several orderings in one; inside of them 12 is a wrapper of a local date."""
BRANCHES: Final = 13

_WRAPPERS: Final[tuple[tuple[str, Any], ...]] = (
    ("BooleanWrapper", "boolean"),
    ("IntWrapper", "int"),
    ("LongWrapper", "long"),
    ("FloatWrapper", "float"),
    ("DoubleWrapper", "double"),
    ("BytesWrapper", "bytes"),
    ("StringWrapper", "string"),
    ("DateWrapper", {"type": "int", "logicalType": "date"}),
    ("DecimalWrapper", {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 15}),
    ("TimeMicrosWrapper", {"type": "long", "logicalType": "time-micros"}),
    ("TimestampMicrosWrapper", {"type": "long", "logicalType": "timestamp-micros"}),
)
_LOCAL_DATE: Final = ("LocalDateWrapper", {"type": "int", "logicalType": "date"})
_DECIMAL: Final = pa.decimal128(30, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLayout:
    """How delete records are read."""

    records: Items  # the whole array, to step over its items
    names: RecordPlan  # record key and partition path
    wrappers: tuple[RecordPlan | None, ...]  # by branch inside an array; None for null


@cache
def delete_layout() -> DeleteLayout:
    """The layout of every delete block; releases before 1.1 lack the last branch only."""
    named = ["null", *(name for name, _ in _WRAPPERS), _wrapper(*_LOCAL_DATE)]
    array = _record("ArrayWrapper", wrappedValues=["null", {"type": "array", "items": named}])
    texts_only = {"recordKey": ["null", "string"], "partitionPath": ["null", "string"]}
    union = ["null", *(_wrapper(*each) for each in _WRAPPERS), array]
    record = _record("HoodieDeleteRecord", **texts_only, orderingVal=union)
    root = _parsed(_record("HoodieDeleteRecordList", list={"type": "array", "items": record}))
    (records,) = root.nodes
    assert isinstance(records, Items)
    return DeleteLayout(
        records=records,
        names=_plan(_record("Names", **texts_only)),
        wrappers=(None, *(_plan(_wrapper(*each)) for each in (*_WRAPPERS, _LOCAL_DATE))),
    )


def _record(name: str, **fields: Any) -> dict[str, Any]:
    listed = [{"name": each, "type": kind} for each, kind in fields.items()]
    return {"type": "record", "name": name, "fields": listed}


def _wrapper(name: str, kind: Any) -> dict[str, Any]:
    return _record(name, value=kind)


def _parsed(schema: dict[str, Any]) -> Record:
    return parse_schema(json.dumps(schema), path="")


def _plan(schema: dict[str, Any]) -> RecordPlan:
    record = _parsed(schema)
    return plan_record(record, arrow_type(record))


def wrapped(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """
    The branch and the value of every row, in the wrapper of the column's type.

    Raises:
        InvalidInputError: No wrapper holds the type (``ordering_type``) or one of the values.
    """
    whole = one_array(column)
    if pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_decode()
    for fits, branch, encode in _WRITERS:
        if fits(whole.type):
            return joined(bytes([2 * branch]), encode(whole))
    raise InvalidInputError(
        "a delete cannot carry an ordering of this type, choose another ordering field: "
        f"{whole.type}",
        kind="ordering_type",
        type=str(whole.type),
    )


def texts(column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array:
    """
    The length and the bytes of every text.

    Raises:
        InvalidInputError: A text is null; `name` says whose.
    """
    whole = one_array(column).cast(pa.string())
    if whole.null_count:
        raise InvalidInputError(
            f"a delete needs a value in column {name}: {whole.null_count} are null",
            kind="null_key",
            column=name,
        )
    return blobs(whole)


def _numbers(kind: str) -> Callable[[pa.Array], pa.Array]:
    def encode(column: pa.Array) -> pa.Array:
        # A view keeps the number that a date, a time or a timestamp is stored as.
        if not pa.types.is_integer(column.type):
            column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
        return longs(column.to_numpy(zero_copy_only=False).astype(kind))

    return encode


def _floats(column: pa.Array) -> pa.Array:
    values = column.to_numpy(zero_copy_only=False)
    little = values.astype(values.dtype.newbyteorder("<"))
    return cells(little.view(np.uint8).reshape(len(values), little.itemsize))


def _flags(column: pa.Array) -> pa.Array:
    return cells(column.cast(pa.uint8()).to_numpy().reshape(-1, 1))


def _decimals(column: pa.Array) -> pa.Array:
    try:
        held = pc.cast(column, _DECIMAL)
    except pa.ArrowInvalid as failure:
        raise InvalidInputError(
            "a delete's ordering has more digits than hudi keeps, 15 before and 15 behind the "
            f"point: {str(failure)[:200]}",
            kind="ordering_value",
        ) from failure
    _, content = held.buffers()
    little = np.frombuffer(content, np.uint8).reshape(-1, 16)[held.offset : held.offset + len(held)]
    return _shortest(little[:, ::-1])


def _shortest(big: npt.NDArray[np.uint8]) -> pa.Array:
    """
    Two's complement numbers without the leading bytes that only repeat the sign, as in Java.

    Shapes: big (n, width), the highest byte first.
    """
    width = big.shape[1]
    sign = np.where(big[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    # A byte may go when it repeats the sign and the next one begins with the sign's bit.
    spare = (big[:, :-1] == sign) & ((big[:, 1:] ^ sign) < 0x80)
    dropped = np.cumprod(spare, axis=1, dtype=np.int64).sum(axis=1)
    return with_lengths(cells(big, np.arange(width) >= dropped[:, None]))


_WRITERS: Final[tuple[tuple[Callable[[Any], bool], int, Callable[[pa.Array], pa.Array]], ...]] = (
    (pa.types.is_boolean, 1, _flags),
    (lambda kind: kind in (pa.int8(), pa.int16(), pa.int32()), INT, _numbers("i4")),
    (pa.types.is_time32, INT, _numbers("i4")),
    (pa.types.is_int64, 3, _numbers("i8")),
    (pa.types.is_time64, 3, _numbers("i8")),
    (pa.types.is_timestamp, 3, _numbers("i8")),
    (pa.types.is_float32, 4, _floats),
    (pa.types.is_float64, 5, _floats),
    (pa.types.is_binary, 6, blobs),
    (pa.types.is_large_binary, 6, blobs),
    (pa.types.is_fixed_size_binary, 6, lambda column: blobs(column.cast(pa.binary()))),
    (pa.types.is_string, 7, blobs),
    (pa.types.is_large_string, 7, blobs),
    (pa.types.is_date32, INT, _numbers("i4")),  # in Java a DateWrapper is no number any more
    (pa.types.is_decimal, 9, _decimals),
)
