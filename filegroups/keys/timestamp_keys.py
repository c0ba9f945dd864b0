"""
Time-based partition paths: turn a number or text of a time into a folder like ``2024/03/09``.

The rules are those of Java Hudi's TimestampBasedKeyGenerator (fmt 1.1, 4.1). A type gives the
meaning of the column: seconds, milliseconds, texts and others. A pattern and a zone give the folder. Whole
columns are computed; only the few distinct folders are formatted one by one. Where Java would use
the zone of its machine, hoodoo uses UTC.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.keys.date_patterns import DateFields, DatePattern, parse_date_pattern
from filegroups.keys.generators import TimestampKeys
from timeline.errors import InvalidInputError, UnsupportedTableError
from timeline.model.file_names import TimestampForm, TimestampTexts

_Times = npt.NDArray[np.int64]  # milliseconds since 1970 (UTC, or of a local clock)

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a local clock's zero, of no zone
_LEAST_MS: Final = -62_135_596_800_000  # year 1
_GREATEST_MS: Final = 253_402_300_799_999  # year 9999
_OFFSET_MAX_MS: Final = 18 * 3_600_000
_AROUND_MS: Final = 26 * 3_600_000  # a zone changes its offset at most once in that span
_GMT_OFFSET: Final = re.compile(r"(?:GMT|UTC|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")


def timestamp_folders(column: Any, keys: TimestampKeys, *, name: str) -> pa.Array:
    """
    Compute the folder of each value, without ``field=`` and not yet escaped.

    A null counts as the start of 1970, as in Java Hudi.

    Args:
        column: Arrow array of numbers, dates, timestamps (their stored number) or texts.
        keys: The table's properties.
        name: The column, for errors.

    Shapes: (n,) -> dictionary array (n,) of texts; no nulls.

    Raises:
        InvalidInputError: The type is neither number nor text, or not the one in the properties
            (``unsupported_partition_type``); or values are not times or are outside of the years 1
            to 9999 (``bad_partition_value``; fields ``column``, ``value``).
    """
    if pa.types.is_dictionary(column.type):
        codes = column.indices
        folders = timestamp_folders(column.dictionary, keys, name=name)
        return (
            pc.take(folders, codes)
            if not codes.null_count
            else timestamp_folders(pc.cast(column, column.type.value_type), keys, name=name)
        )
    pattern = parse_date_pattern(keys.output_format)
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    zone = keys.output_zone
    if is_text and not keys.kind.reads_text:
        column, is_text = _numbers_in(column, keys, name), False
    if is_text or (pa.types.is_null(column.type) and keys.kind.reads_text):
        times, offsets = _read_texts(pc.cast(column, pa.string()), keys, name)
        local = _local(times, zone, name) if zone is not None else times + offsets
    else:
        local = _local(_read_numbers(column, keys, name), zone or "UTC", name)
    return _written(local, pattern, name)


def folders_of_texts(texts: Any, keys: TimestampKeys) -> frozenset[str] | None:
    """
    Compute the folders of texts for which every writer, also Java Hudi, makes the same folder.

    None if the zone of a writer's machine may decide, or a text is not a time.
    """
    has_offset = any("Z" in pattern for pattern in keys.input_formats)
    if not keys.kind.reads_text or has_offset or texts.null_count:
        return None
    if (keys.input_zone is None) != (keys.output_zone is None):
        return None
    try:
        return frozenset(timestamp_folders(texts, keys, name="").dictionary.to_pylist())
    except InvalidInputError:
        return None


def span_of_folder(text: str, keys: TimestampKeys) -> tuple[int, int] | None:
    """
    Return the times whose folder is a given one, or is inside it.

    Returns:
        The first time and the first time after them, in milliseconds since 1970 (UTC); wider than
        needed if the zone is not known. None if other times may have that folder, too.
    """
    span = parse_date_pattern(keys.output_format).span(text)
    if span is None:
        return None
    low, high = ((one - _EPOCH) // timedelta(milliseconds=1) for one in span)
    if keys.output_zone is None:  # Java Hudi used its machine's zone
        return low - _OFFSET_MAX_MS, high + _OFFSET_MAX_MS
    offset = _offset_ms(keys.output_zone)
    if offset is not None:
        return low - offset, high - offset
    around = np.array([-_AROUND_MS, 0, _AROUND_MS], np.int64)
    if low - _AROUND_MS < _LEAST_MS or high + _AROUND_MS > _GREATEST_MS:
        return None
    of_low, of_high = (
        _local(one + around, keys.output_zone, "") - (one + around) for one in (low, high)
    )
    return low - int(of_low.max()), high - int(of_high.min())


def check_zone(zone: str) -> None:
    """
    Refuse an unknown zone; Java would silently use GMT.

    Raises:
        InvalidInputError: ``kind`` ``bad_time_zone``.
    """
    _offset_ms(zone)


def _written(local: _Times, pattern: DatePattern, name: str) -> pa.Array:
    if len(local) and (local.min() < _LEAST_MS or local.max() > _GREATEST_MS):
        worst = local[(local < _LEAST_MS) | (local > _GREATEST_MS)][0]
        raise bad_partition_value(name, f"{worst} ms", "is outside of the years 1 to 9999")
    # Folders are coarser than times: only one time of each folder is formatted.
    spans, codes = np.unique(local // pattern.finest_ms, return_inverse=True)
    texts = [
        pattern.write(_EPOCH + timedelta(milliseconds=span * pattern.finest_ms))
        for span in spans.tolist()
    ]
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int32)), pa.array(texts, pa.string())
    )


def _read_numbers(column: Any, keys: TimestampKeys, name: str) -> _Times:
    unit = keys.unit
    kind = column.type
    numeric = (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_null(kind)
    )
    if unit is None or not numeric:
        raise InvalidInputError(
            "the column does not contain values of hoodie.keygen.timebased.timestamp.type: use "
            "DATE_STRING for texts, SCALAR with hoodie.keygen.timebased.timestamp.scalar.time.unit="
            f"days for dates, and another type for numbers: column={name!r} type={kind} "
            f"timestamp.type={keys.kind.value}",
            kind="unsupported_partition_type",
            column=name,
            type=str(kind),
        )
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        column = pc.trunc(column)
    if pa.types.is_date32(kind):
        column = pc.cast(column, pa.int32())
    try:
        numbers = pc.fill_null(pc.cast(column, pa.int64()), 1)
    except pa.ArrowInvalid as error:
        raise bad_partition_value(name, str(error)[:80], "is no whole number of a time") from error
    values = np.asarray(numbers).astype(np.int64)
    times, divisor = unit.value
    limit = _GREATEST_MS * divisor // times
    far = (values > limit) | (values < -limit)
    if far.any():
        why = "is outside of the years 1 to 9999"
        if pa.types.is_timestamp(kind):
            why += " (a timestamp column counts microseconds: use the type EPOCHMICROSECONDS)"
        raise bad_partition_value(name, str(values[far][0]), why)
    # As in Java's TimeUnit, division rounds towards zero.
    whole: _Times = np.sign(values) * (np.abs(values) // divisor) * times
    return whole


def _numbers_in(texts: Any, keys: TimestampKeys, name: str) -> Any:
    """
    Return texts of whole numbers as numbers.

    Spark SQL declares the partition column of such a table as text, and writes numbers into it.
    """
    try:
        return pc.cast(texts, pa.int64())
    except pa.ArrowInvalid:
        _read_numbers(texts, keys, name)  # raises an error with the column's name
        raise


def _read_texts(texts: Any, keys: TimestampKeys, name: str) -> tuple[_Times, _Times]:
    """Return the times of texts, and in milliseconds the offset of the zone used for each."""
    patterns = [parse_date_pattern(one) for one in keys.input_formats]
    if texts.null_count:
        texts = pc.fill_null(texts, _text_of_nothing(patterns[0], keys))
    count = len(texts)
    times, offsets = np.zeros(count, np.int64), np.zeros(count, np.int64)
    left = np.ones(count, np.bool_)
    for pattern in patterns:
        places = np.flatnonzero(left)
        if not len(places):
            break
        found = pc.extract_regex(texts.take(pa.array(places)), pattern.expression())
        read = DateFields(found)
        local, valid = read.local_ms()
        given, has_offset = read.offset_ms()
        good = places[valid]
        mine, with_offset = given[valid], has_offset[valid]
        zone = keys.input_zone
        utc = local[valid] - mine
        utc[~with_offset] = _utc(utc[~with_offset], zone or "UTC", name)
        times[good] = utc
        # Without output zone, Java writes a text in the input zone, or in the text's own.
        offsets[good] = (_local(utc, zone, name) - utc) if zone is not None else mine
        left[good] = False
    if left.any():
        value = texts[int(np.flatnonzero(left)[0])].as_py()
        raise bad_partition_value(
            name, value[:80], f"is no time in the form {' or '.join(keys.input_formats)}"
        )
    return times, offsets


def _text_of_nothing(pattern: DatePattern, keys: TimestampKeys) -> str:
    """Return the text that Java reads for a null: the first time of 1970, in the first pattern."""
    moment = np.array([1], np.int64)
    local = _local(moment, keys.input_zone or keys.output_zone or "UTC", "")
    offset = int(local[0] - moment[0]) // 60_000
    return pattern.write(_EPOCH + timedelta(milliseconds=int(local[0])), offset)


def _local(times: _Times, zone: str, name: str) -> _Times:
    """Return UTC times as local times of a zone."""
    offset = _offset_ms(zone)
    if offset is not None:
        return times + offset
    if len(times) and (times.min() < _LEAST_MS or times.max() > _GREATEST_MS):
        raise bad_partition_value(name, f"{times.max()} ms", "is outside of the years 1 to 9999")
    moments = pa.array(times).cast(pa.timestamp("ms", zone))
    return np.asarray(pc.local_timestamp(moments).cast(pa.int64())).astype(np.int64)


def _utc(local: _Times, zone: str, name: str) -> _Times:
    """Return local times of a zone in UTC; the first of a repeated hour, as Joda-Time."""
    offset = _offset_ms(zone)
    if offset is not None:
        return local - offset
    clock = pa.array(local).cast(pa.timestamp("ms"))
    try:
        moments = pc.assume_timezone(clock, zone, ambiguous="earliest", nonexistent="raise")
    except pa.ArrowInvalid as error:
        raise bad_partition_value(
            name, str(error)[:80], f"is an hour that {zone} skipped"
        ) from error
    return np.asarray(moments.cast(pa.int64())).astype(np.int64)


@lru_cache(maxsize=64)
def _offset_ms(zone: str) -> int | None:
    """Return the fixed offset of a zone, None if it has a name and rules."""
    if zone.upper() in ("UTC", "GMT", "UT", "Z"):
        return 0
    fixed = _GMT_OFFSET.fullmatch(zone)
    if fixed is not None:
        minutes = int(fixed[2]) * 60 + int(fixed[3] or 0)
        return (-minutes if fixed[1] == "-" else minutes) * 60_000
    try:
        pc.local_timestamp(pa.scalar(0, pa.timestamp("ms", zone)))
    except (pa.ArrowInvalid, ValueError) as error:
        raise InvalidInputError(
            "the time zone is unknown: use UTC, GMT+1:00 or a name like Europe/Berlin: "
            f"{zone[:80]!r}",
            kind="bad_time_zone",
            zone=zone[:80],
        ) from error
    return None


def bad_partition_value(name: str, value: str, why: str) -> InvalidInputError:
    """Return the error for a value that names no partition."""
    return InvalidInputError(
        f"a partition value {why}; correct it: column={name!r} value={value!r}",
        kind="bad_partition_value",
        column=name,
        value=value,
    )


def timestamp_texts(moments: pa.Array, how: TimestampTexts, name: str) -> pa.Array:
    """
    Format timestamps with a zone for keys and folder names; nulls stay.

    Java's ``Timestamp`` of them has whole milliseconds, counted from 1970 in both directions.

    Shapes: (n,) timestamps -> (n,) texts, colons of the SQL form escaped.

    Raises:
        InvalidInputError: The zone is unknown here (``bad_time_zone``).
        UnsupportedTableError: Two zones are possible, and a timestamp differs between them
            (``partition_zone``).
    """
    texts = _texts_in(moments, how.form, how.zone, name)
    if how.or_zone:
        differ = pc.not_equal(texts, _texts_in(moments, how.form, how.or_zone, name))
        if pc.any(differ).as_py():
            raise UnsupportedTableError(
                "the table's folders fit two time zones, and a row has another folder in each. "
                "Let another writer write a row with such a time first, or set TZ=UTC if all "
                f"writers of the table use it: column={name!r} "
                f"zones={[how.zone, how.or_zone]} moment={moments.filter(differ)[0].as_py()}",
                kind="partition_zone",
                feature="folders of times in one of two zones",
            )
    return texts


def _texts_in(moments: pa.Array, form: TimestampForm, zone: str, name: str) -> pa.Array:
    fine = pc.cast(moments, pa.timestamp("ms", moments.type.tz), safe=False)
    try:
        clock = pc.local_timestamp(pc.cast(fine, pa.timestamp("ms", zone)))
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            "the table's folders show times in a time zone that this host does not know: set TZ "
            f"to its name as the operating system spells it: column={name!r} zone={zone!r}: "
            f"{error}",
            kind="bad_time_zone",
            column=name,
        ) from error
    if form is TimestampForm.SQL:
        seconds = pc.cast(pc.floor_temporal(clock, unit="second"), pa.timestamp("s"))
        return pc.replace_substring(pc.cast(seconds, pa.string()), ":", "%3A")
    texts = pc.cast(clock, pa.string())
    return pc.replace_substring_regex(texts, r"(\.\d+?)0*$", r"\1")
