"""
Variants: values of any JSON shape in two byte strings, as Parquet and Spark 4 encode them.

``metadata`` is a dictionary of field names, ``value`` the value that refers to it. Values are
decoded one by one, for display and for input; readers and services pass the bytes on unchanged. The
bytes of a table are untrusted: lengths are checked against the data.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

from timeline.errors import CorruptTableError, InvalidInputError

_DEPTH_MAX: Final = 64
_VERSION: Final = 1
_SHORT_TEXT_MAX: Final = 63
_DECIMAL_DIGITS_MAX: Final = 38
_TEXT_PER_BYTE_MAX: Final = 8  # a decimal of 6 bytes has 42 characters
_NAMES_TEXT_MAX: Final = 1 << 26  # characters: names are shared, so a small value can hold many
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the zone is added as text
_NAN_WORDS: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def variant_json(metadata: bytes, value: bytes) -> str:
    """
    Return a variant as JSON text; times and dates become ISO texts, binary base64.

    Raises:
        CorruptTableError: The bytes are not a variant (``bad_variant``).
    """
    try:
        return _VariantReader(metadata, value).text(0, 0)
    except (IndexError, struct.error, UnicodeDecodeError, OverflowError, ValueError) as error:
        raise CorruptTableError(
            f"a value is not a variant: write the record again from its source: {error}",
            kind="bad_variant",
        ) from error


def encode_variant(text: str) -> tuple[bytes, bytes]:
    """
    Return JSON text as a variant: (metadata, value).

    Numbers with a fraction become decimals, those with an exponent doubles, as in Spark.

    Raises:
        InvalidInputError: The text is not JSON, nests too deep, or has a number beyond a double or
            half of a surrogate pair (``bad_variant``).
    """
    try:
        parsed = json.loads(text, parse_float=_number)
        names: dict[str, int] = {}
        _names_of(parsed, names, 0)
        names = {name: number for number, name in enumerate(sorted(names))}
        return _metadata(list(names)), _value(parsed, names)
    except (ValueError, OverflowError, RecursionError) as error:
        raise InvalidInputError(
            f"a variant is written as JSON text: correct the text: {text[:100]!r} ({error})",
            kind="bad_variant",
        ) from error


def variant_struct(text: str) -> dict[str, bytes]:
    """Return ``encode_variant`` as the struct of a table."""
    metadata, value = encode_variant(text)
    return {"metadata": metadata, "value": value}


def _number(text: str) -> Decimal | float:
    if "e" not in text.lower():
        exact = Decimal(text)
        _, digits, exponent = exact.as_tuple()
        if max(len(digits), -int(exponent)) <= _DECIMAL_DIGITS_MAX:
            return exact
    number = float(text)
    if math.isinf(number):
        raise OverflowError("a number outside the range of a double")
    return number


class _VariantReader:
    """
    One value with its dictionary.

    Each value has bytes of its own, which bound the text. Values that refer to the same bytes again
    and again are refused.
    """

    def __init__(self, metadata: bytes, value: bytes) -> None:
        if not metadata or metadata[0] & 15 != _VERSION:
            raise ValueError("an unknown version")
        self._value = value
        self._text_left = _TEXT_PER_BYTE_MAX * len(value)
        self._names_left = _NAMES_TEXT_MAX
        size = (metadata[0] >> 6) + 1
        count = _unsigned(metadata, 1, size)
        places = 1 + size
        data = places + (count + 1) * size
        if data > len(metadata):
            raise ValueError("shorter than its dictionary")
        self._name: Callable[[int], str] = lambda number: _slice(
            metadata,
            data + _unsigned(metadata, places + number * size, size),
            data + _unsigned(metadata, places + (number + 1) * size, size),
        ).decode()

    def text(self, at: int, depth: int) -> str:
        """Return the JSON text of the value at an offset."""
        if depth > _DEPTH_MAX:
            raise ValueError("nested too deep")
        head = self._value[at]
        kind, more = head & 3, head >> 2
        if kind == 0:
            text = _PRIMITIVES[more](self._value, at + 1)
        elif kind == 1:
            text = _quoted(_slice(self._value, at + 1, at + 1 + more).decode())
        else:
            self._spend(1)
            return (self._object if kind == 2 else self._array)(at + 1, more, depth)
        self._spend(len(text))
        return text

    def _spend(self, characters: int) -> None:
        self._text_left -= characters
        if self._text_left < 0:
            raise ValueError("values that share their bytes")

    def _object(self, at: int, more: int, depth: int) -> str:
        width, id_width = (more & 3) + 1, (more >> 2 & 3) + 1
        count_width = 4 if more >> 4 & 1 else 1
        count = self._count(at, count_width, id_width + width)
        ids = at + count_width
        offsets = ids + count * id_width
        data = offsets + (count + 1) * width
        parts = []
        for number in range(count):
            name = self._name(_unsigned(self._value, ids + number * id_width, id_width))
            self._names_left -= len(name)
            if self._names_left < 0:
                raise ValueError(f"more than {_NAMES_TEXT_MAX:,} characters of names")
            place = data + _unsigned(self._value, offsets + number * width, width)
            parts.append(f"{_quoted(name)}:{self.text(place, depth + 1)}")
        return "{" + ",".join(parts) + "}"

    def _array(self, at: int, more: int, depth: int) -> str:
        width = (more & 3) + 1
        count_width = 4 if more >> 2 & 1 else 1
        count = self._count(at, count_width, width)
        offsets = at + count_width
        data = offsets + (count + 1) * width
        places = (
            data + _unsigned(self._value, offsets + number * width, width)
            for number in range(count)
        )
        return "[" + ",".join(self.text(place, depth + 1) for place in places) + "]"

    def _count(self, at: int, width: int, least: int) -> int:
        count = _unsigned(self._value, at, width)
        if count * least > len(self._value):
            raise ValueError("more elements than bytes")
        return count


def _slice(data: bytes, start: int, end: int) -> bytes:
    if not 0 <= start <= end <= len(data):
        raise ValueError("a length beyond the end of the bytes")
    return data[start:end]


def _unsigned(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(_slice(data, at, at + width), "little")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _integer(width: int) -> Callable[[bytes, int], str]:
    def read(data: bytes, at: int) -> str:
        return str(int.from_bytes(_slice(data, at, at + width), "little", signed=True))

    return read


def _floating(form: str) -> Callable[[bytes, int], str]:
    def read(data: bytes, at: int) -> str:
        text = str(struct.unpack_from(form, data, at)[0])
        return _NAN_WORDS.get(text, text)

    return read


def _decimal(width: int) -> Callable[[bytes, int], str]:
    def read(data: bytes, at: int) -> str:
        if data[at] > _DECIMAL_DIGITS_MAX:
            raise ValueError("a decimal with too many digits")
        number = int.from_bytes(_slice(data, at + 1, at + 1 + width), "little", signed=True)
        digits = tuple(map(int, str(abs(number))))
        return format(Decimal((int(number < 0), digits, -data[at])), "f")

    return read


def _moment(zone: str, per_second: int) -> Callable[[bytes, int], str]:
    def read(data: bytes, at: int) -> str:
        ticks = int.from_bytes(_slice(data, at, at + 8), "little", signed=True)
        seconds, part = divmod(ticks, per_second)
        digits = len(str(per_second)) - 1
        whole = (_EPOCH + dt.timedelta(seconds=seconds)).isoformat()
        return f'"{whole}.{part:0{digits}d}{zone}"'

    return read


def _day(data: bytes, at: int) -> str:
    days = int.from_bytes(_slice(data, at, at + 4), "little", signed=True)
    return f'"{(_EPOCH + dt.timedelta(days=days)).date().isoformat()}"'


def _time(data: bytes, at: int) -> str:
    micros = int.from_bytes(_slice(data, at, at + 8), "little", signed=True)
    return f'"{(_EPOCH + dt.timedelta(microseconds=micros)).time().isoformat()}"'


def _binary(data: bytes, at: int) -> str:
    size = _unsigned(data, at, 4)
    return f'"{base64.b64encode(_slice(data, at + 4, at + 4 + size)).decode()}"'


def _long_text(data: bytes, at: int) -> str:
    size = _unsigned(data, at, 4)
    return _quoted(_slice(data, at + 4, at + 4 + size).decode())


def _uuid(data: bytes, at: int) -> str:
    digits = _slice(data, at, at + 16).hex()
    ends = (0, 8, 12, 16, 20, 32)
    return '"' + "-".join(digits[a:b] for a, b in pairwise(ends)) + '"'


#: By the number of the primitive type in Parquet's specification of variants.
_PRIMITIVES: Final[tuple[Callable[[bytes, int], str], ...]] = (
    lambda *_: "null",
    lambda *_: "true",
    lambda *_: "false",
    _integer(1),
    _integer(2),
    _integer(4),
    _integer(8),
    _floating("<d"),
    _decimal(4),
    _decimal(8),
    _decimal(16),
    _day,
    _moment("Z", 1_000_000),
    _moment("", 1_000_000),
    _floating("<f"),
    _binary,
    _long_text,
    _time,
    _moment("Z", 1_000_000_000),
    _moment("", 1_000_000_000),
    _uuid,
)


def _names_of(value: Any, names: dict[str, int], depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise InvalidInputError(
            f"a variant has more than {_DEPTH_MAX} levels: flatten it", kind="bad_variant"
        )
    for inner in value.values() if isinstance(value, dict) else ():
        _names_of(inner, names, depth + 1)
    for inner in value if isinstance(value, list) else ():
        _names_of(inner, names, depth + 1)
    if isinstance(value, dict):
        names.update(dict.fromkeys(value, 0))


def _metadata(names: list[str]) -> bytes:
    texts = [name.encode() for name in names]
    width = _width(max(len(texts), sum(map(len, texts))))
    head = _VERSION | 1 << 4 | (width - 1) << 6  # the names are sorted
    count = len(texts).to_bytes(width, "little")
    return bytes([head]) + count + _offsets(texts, width) + b"".join(texts)


def _value(value: Any, names: dict[str, int]) -> bytes:
    if isinstance(value, dict):
        fields = sorted(value)
        parts = [_value(value[name], names) for name in fields]
        width, id_width = _width(sum(map(len, parts))), _width(max(len(names), 1))
        large = len(parts) > 255
        head = 2 | (width - 1) << 2 | (id_width - 1) << 4 | large << 6
        ids = b"".join(names[name].to_bytes(id_width, "little") for name in fields)
        return _counted(head, len(parts), large) + ids + _offsets(parts, width) + b"".join(parts)
    if isinstance(value, list):
        parts = [_value(each, names) for each in value]
        width, large = _width(sum(map(len, parts))), len(parts) > 255
        head = 3 | (width - 1) << 2 | large << 4
        return _counted(head, len(parts), large) + _offsets(parts, width) + b"".join(parts)
    return _primitive(value)


def _primitive(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return bytes([{None: 0, True: 1, False: 2}[value] << 2])
    if isinstance(value, str):
        data = value.encode()
        if len(data) <= _SHORT_TEXT_MAX:
            return bytes([1 | len(data) << 2]) + data
        return bytes([16 << 2]) + len(data).to_bytes(4, "little") + data
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        kind, width = next(
            (kind, width)
            for kind, width in ((3, 1), (4, 2), (5, 4), (6, 8))
            if -(1 << 8 * width - 1) <= value < 1 << 8 * width - 1
        )
        return bytes([kind << 2]) + value.to_bytes(width, "little", signed=True)
    if isinstance(value, int) and abs(value) < 10**_DECIMAL_DIGITS_MAX:
        value = Decimal(value)
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        number = int("".join(map(str, digits))) * (-1 if sign else 1)
        scale = -int(exponent)
        size = max(len(digits), scale)  # Spark bounds both by the width
        kind, width = (8, 4) if size <= 9 else (9, 8) if size <= 18 else (10, 16)
        return bytes([kind << 2, scale]) + number.to_bytes(width, "little", signed=True)
    return bytes([7 << 2]) + struct.pack("<d", float(value))


def _counted(head: int, count: int, large: bool) -> bytes:  # noqa: FBT001
    return bytes([head]) + count.to_bytes(4 if large else 1, "little")


def _offsets(parts: list[bytes], width: int) -> bytes:
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    return b"".join(end.to_bytes(width, "little") for end in ends)


def _width(largest: int) -> int:
    return max(1, (largest.bit_length() + 7) // 8)
