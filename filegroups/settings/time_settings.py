"""
Options of folders of times, and the description of the folders that is made of them.

Key generator TIMESTAMP needs them, and fields of that type of CUSTOM. Java Hudi does not store all
of them with the table, so hoodoo keeps their exact texts in the table's properties.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from filegroups.keys.generators import TimestampKeys, TimestampType, TimeUnit
from timeline.errors import InvalidInputError, SettingError
from timeline.properties.options import (
    CODE_LAYER,
    TABLE_LAYER,
    OptionSettings,
    PropertySet,
    option,
)

if TYPE_CHECKING:
    from timeline.model.table_config import TableConfig


_TIME_PREFIX: Final = "hoodie.keygen.timebased."
_DELIMITER: Final = re.compile(r"(?:\\s\*)?(\\?[^\w\\]|\[[^\w\\\]]\])(?:\\s\*)?")
_PARSER: Final = "org.apache.hudi.keygen.parser.HoodieDateTimeParser"


def _time_option(name: str, default: object, doc: str, choices: tuple[str, ...] = ()) -> Any:
    older = f"hoodie.deltastreamer.keygen.timebased.{name}"
    return option(f"{_TIME_PREFIX}{name}", default, doc, aliases=(older,), choices=choices)


class TimeSettings(OptionSettings):
    """Folders of times: for key generator TIMESTAMP, and for fields of that type of CUSTOM."""

    kind: TimestampType | None = _time_option(
        "timestamp.type", None, "Type of the values in the partition field."
    )
    scalar_unit: str = _time_option(
        "timestamp.scalar.time.unit",
        "SECONDS",
        "Unit of a SCALAR value.",
        tuple(TimeUnit.__members__),
    )
    input_formats: str | None = _time_option(
        "input.dateformat",
        None,
        "Patterns of incoming texts (Joda-Time); the first that fits is used.",
    )
    input_delimiter: str = _time_option(
        "input.dateformat.list.delimiter.regex", ",", "Separator of several patterns."
    )
    input_zone: str | None = _time_option(
        "input.timezone", None, "Zone of texts without one; UTC by default (Hudi: the JVM's)."
    )
    output_format: str | None = _time_option(
        "output.dateformat", None, "Pattern of the folder's name; a slash in it makes levels."
    )
    output_zone: str | None = _time_option(
        "output.timezone", None, "Zone of the folder's name; UTC by default (Hudi: the JVM's)."
    )
    zone: str | None = _time_option(
        "timezone", None, "Zone of both input and output; overrides the two keys."
    )
    parser_class: str | None = _time_option(
        "datetime.parser.class", None, "Only Hudi's own parser is known, and no class is loaded."
    )


def times_unless_unknown(properties: PropertySet) -> TimestampKeys | None:
    """Like ``timestamp_keys_of``; also None if only the table's own values are not valid."""
    try:
        return timestamp_keys_of(properties)
    except SettingError:
        found = (properties.find(one) for one in TimeSettings.options.values())
        if all(one is None or one[2] == TABLE_LAYER for one in found):
            return None
        raise


def timestamp_keys_of(properties: PropertySet) -> TimestampKeys | None:
    """
    Return the description of folders of times; None if there is none.

    Raises:
        SettingError: It is incomplete, or a pattern, zone or delimiter is not valid.
    """
    times = TimeSettings.from_properties(properties)
    if times.kind is None and times.output_format is None:
        return None
    if times.kind is None or times.output_format is None:
        missing = "kind" if times.kind is None else "output_format"
        raise TimeSettings.refusal(
            properties, missing, "folders of times require it", kind="setting_missing"
        )
    if times.parser_class not in (None, _PARSER):
        raise TimeSettings.refusal(
            properties, "parser_class", f"only {_PARSER} is known", kind="unsupported_setting"
        )
    keys = TimestampKeys(
        kind=times.kind,
        output_format=times.output_format,
        input_formats=_input_formats(properties, times) if times.kind.reads_text else (),
        input_zone=times.zone or times.input_zone,
        output_zone=times.zone or times.output_zone,
        scalar_unit=TimeUnit[times.scalar_unit],
    )
    _check_times(properties, keys, has_one_zone=times.zone is not None)
    return keys


def _input_formats(properties: PropertySet, times: TimeSettings) -> tuple[str, ...]:
    if times.input_formats is None:
        raise TimeSettings.refusal(
            properties, "input_formats", "texts need a format", kind="setting_missing"
        )
    # Java accepts any regular expression. A delimiter is one character; anything else is more
    # likely an attack by an expensive expression (SEC14).
    delimiter = _DELIMITER.fullmatch(times.input_delimiter)
    if delimiter is None:
        raise TimeSettings.refusal(
            properties,
            "input_delimiter",
            "the delimiter is one character, escaped or in brackets",
            kind="unsupported_setting",
        )
    character = delimiter[1].strip("[]") if delimiter[1].startswith("[") else delimiter[1][-1]
    return tuple(one.strip() for one in times.input_formats.split(character) if one.strip())


def _check_times(properties: PropertySet, keys: TimestampKeys, *, has_one_zone: bool) -> None:
    from filegroups.keys.date_patterns import parse_date_pattern  # needs numpy and pyarrow
    from filegroups.keys.timestamp_keys import check_zone

    def tried(name: str, check: Any, text: str) -> None:
        try:
            check(text)
        except InvalidInputError as error:
            raise TimeSettings.refusal(properties, name, error.message) from None

    tried("output_format", parse_date_pattern, keys.output_format)
    for pattern in keys.input_formats:
        tried("input_formats", lambda text: parse_date_pattern(text).expression(), pattern)
    if keys.input_zone is not None:
        tried("zone" if has_one_zone else "input_zone", check_zone, keys.input_zone)
    if keys.output_zone is not None:
        tried("zone" if has_one_zone else "output_zone", check_zone, keys.output_zone)


def stored_times_of(config: TableConfig) -> TimestampKeys | None:
    """Return the table's own description of folders of times; None if missing or not valid."""
    kept = {key: text for key, text in config.raw.items() if key.startswith(_TIME_PREFIX)}
    try:
        return timestamp_keys_of(PropertySet().with_layer(TABLE_LAYER, kept)) if kept else None
    except SettingError:
        return None


def refuse_other_times(mine: TimestampKeys, config: TableConfig) -> None:
    """
    Refuse time formats other than the table's: rows would get other folders.

    Raises:
        SettingError: ``kind`` ``setting_against_table``.
    """
    theirs = stored_times_of(config)
    if theirs is not None and theirs != mine:
        raise SettingError(
            "the table's folders of times were made with other settings, and rows would get "
            f"other folders: remove {_TIME_PREFIX}*: {mine} against the table's {theirs}",
            kind="setting_against_table",
            key=TimeSettings.options["output_format"].key,
            value=mine.output_format,
            layer=CODE_LAYER,
            suggestion=theirs.output_format,
        )
