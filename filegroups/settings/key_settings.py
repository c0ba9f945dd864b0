"""
Settings of keys, partitions and merging, made from their options.

``filegroups.settings.settings`` holds the values. This module translates names of generators,
payloads and time formats by fixed tables, and refuses contradictions. No class is loaded by a name
from a property. A name outside the tables is refused, because a guess would write other keys or
keep other rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from filegroups.keys.date_patterns import parse_date_pattern
from filegroups.keys.keys import KeyGenerator, KeySpec, infer_key_generator
from filegroups.keys.timestamp_keys import TimestampKeys, TimestampType, TimeUnit, check_zone
from filegroups.settings.key_options import KEY_OPTIONS, TIME_OPTIONS
from timeline.errors import InvalidInputError, SettingError
from timeline.model.commit_metadata import MergeMode
from timeline.model.merge_definition import (
    MERGE_STRATEGY_IDS,
    MergeDefinition,
    PartialUpdateMode,
    definition_of_payload,
    known_payloads,
)
from timeline.properties.options import (
    CODE_LAYER,
    DEFAULT_LAYER,
    TABLE_LAYER,
    Option,
    PropertySet,
    parse_option,
)

if TYPE_CHECKING:
    from filegroups.settings.settings import WriteSettings
    from timeline.model.table_config import TableConfig

__all__ = [
    "contradictions_of_keys",
    "key_properties_of",
    "key_spec_of",
    "merge_definition_of_settings",
    "refuse_other_classes",
    "refuse_other_times",
    "resolve_key_options",
    "stored_times_of",
    "timestamp_keys_of",
]

_TIME_PREFIX: Final = "hoodie.keygen.timebased."
_DELIMITER: Final = re.compile(r"(?:\\s\*)?(\\?[^\w\\]|\[[^\w\\\]]\])(?:\\s\*)?")
_PARSER: Final = "org.apache.hudi.keygen.parser.HoodieDateTimeParser"
_MADE_OF: Final = ("key_generator_type", "key_generator_class", "merge_strategy_id")

T = TypeVar("T")

_GENERATOR_TYPES: Final[Mapping[str, KeyGenerator]] = MappingProxyType(
    {
        name + suffix: generator
        for name, generator in KeyGenerator.__members__.items()
        for suffix in ("", "_AVRO")
    }
)
_GENERATOR_CLASSES: Final[Mapping[str, KeyGenerator]] = MappingProxyType(
    {
        f"org.apache.hudi.keygen.{name}KeyGenerator": generator
        for name, generator in {
            "Simple": KeyGenerator.SIMPLE,
            "SimpleAvro": KeyGenerator.SIMPLE,
            "Complex": KeyGenerator.COMPLEX,
            "ComplexAvro": KeyGenerator.COMPLEX,
            "Nonpartitioned": KeyGenerator.NON_PARTITION,
            "NonpartitionedAvro": KeyGenerator.NON_PARTITION,
            "TimestampBased": KeyGenerator.TIMESTAMP,
            "TimestampBasedAvro": KeyGenerator.TIMESTAMP,
            "Custom": KeyGenerator.CUSTOM,
            "CustomAvro": KeyGenerator.CUSTOM,
            "GlobalDelete": KeyGenerator.GLOBAL_DELETE,
            "GlobalAvroDelete": KeyGenerator.GLOBAL_DELETE,
        }.items()
    }
)
_PAYLOADS: Final[Mapping[str, MergeMode]] = MappingProxyType(
    {name: definition.mode for name, definition in known_payloads().items()}
)
_MODES: Final[Mapping[str, MergeMode]] = MappingProxyType(
    {mode.value: mode for mode in (MergeMode.COMMIT_TIME_ORDERING, MergeMode.EVENT_TIME_ORDERING)}
)
_STRATEGIES: Final[Mapping[str, MergeMode]] = MappingProxyType(
    {MERGE_STRATEGY_IDS[mode]: mode for mode in _MODES.values()}
)
#: Names of the strategy before Hudi 1.0; there its default lets the payload class decide.
_STRATEGY_OF_OLD: Final = frozenset(
    {"hoodie.datasource.write.record.merger.strategy", "hoodie.compaction.record.merger.strategy"}
)


def resolve_key_options(properties: PropertySet, values: dict[str, Any]) -> None:
    """
    Turn the texts of key and merge options into the fields of ``WriteSettings``, in place.

    Args:
        properties: All layers.
        values: Option values by field, as read; gains ``key_generator``, ``merge_mode``,
            ``partition_types``, ``timestamp_keys`` and ``time_properties``.

    Raises:
        SettingError: A name is unknown, a pattern or zone is not valid, or two options contradict.
    """
    values["key_generator"] = _key_generator(properties)
    values["merge_mode"] = _merge_mode(properties)
    split = [field.partition(":") for field in values.get("partition_fields", ())]
    values["partition_fields"] = tuple(name.strip() for name, _, _ in split)
    values["partition_types"] = tuple(kind.strip().upper() or None for _, _, kind in split)
    values["timestamp_keys"] = _times_unless_unknown(properties)
    values["time_properties"] = {
        option.key: found[1].strip()
        for option in TIME_OPTIONS.values()
        if (found := properties.find(option)) is not None and found[1].strip()
    }
    for field in _MADE_OF:
        values.pop(field, None)


def _key_generator(properties: PropertySet) -> KeyGenerator | None:
    """
    Return the key generator given by type or by class name; None if neither is given.

    Raises:
        SettingError: This release does not have the generator, or type and class name differ.
    """
    by_type, by_class = KEY_OPTIONS["key_generator_type"], KEY_OPTIONS["key_generator_class"]
    found = [
        _translate(properties, by_type, _GENERATOR_TYPES, "this key generator"),
        _translate(properties, by_class, _GENERATOR_CLASSES, "this key generator"),
    ]
    return _one_of(properties, (by_type, by_class), found)


def _merge_mode(properties: PropertySet) -> MergeMode | None:
    """
    Return the merge mode given by name, payload class or strategy id; None if none is given.

    Raises:
        SettingError: The mode is custom, or the three contradict each other.

    Spec: fmt 1.5.
    """
    by_mode, by_payload = KEY_OPTIONS["merge_mode"], KEY_OPTIONS["payload_class"]
    by_strategy = KEY_OPTIONS["merge_strategy_id"]
    mode = _translate(properties, by_mode, _MODES, "this merge mode")
    payload = _translate(properties, by_payload, _PAYLOADS, "this payload class")
    strategy = _translate(properties, by_strategy, _STRATEGIES, "this merge strategy")
    said = properties.find(by_strategy)
    if said is not None and said[0] in _STRATEGY_OF_OLD and (mode or payload):
        strategy = None
    return _one_of(properties, (by_mode, by_payload, by_strategy), [mode, payload, strategy])


def _translate(
    properties: PropertySet, option: Option, names: Mapping[str, T], what: str
) -> T | None:
    said = properties.find(option)
    if said is None or not said[1]:
        return None
    key, text, layer = said
    value = parse_option(option, text, key=key, layer=layer)
    for name, meaning in names.items():
        if name.casefold() == str(value).casefold():
            return meaning
    accepted = ", ".join(names)
    raise SettingError(
        f"{what} is not supported, use one of {accepted}: {key}={text} (from {layer})",
        kind="unsupported_setting",
        key=key,
        value=text,
        layer=layer,
        suggestion=accepted,
    )


def _one_of(
    properties: PropertySet, options: tuple[Option, ...], found: list[T | None]
) -> T | None:
    meanings = [
        (option, meaning)
        for option, meaning in zip(options, found, strict=True)
        if meaning is not None
    ]
    for option, meaning in meanings[1:]:
        if meaning != meanings[0][1]:
            _refuse_pair(properties, meanings[0][0], option)
    return meanings[0][1] if meanings else None


def _refuse_pair(properties: PropertySet, one: Option, other: Option) -> NoReturn:
    first = properties.find(one) or (one.key, "", "")
    second = properties.find(other) or (other.key, "", "")
    raise SettingError(
        f"two properties contradict each other, keep one of them: {first[0]}={first[1]} "
        f"(from {first[2]}) and {second[0]}={second[1]} (from {second[2]})",
        kind="setting_contradiction",
        key=second[0],
        value=second[1],
        layer=second[2],
        suggestion=f"remove {second[0]} or {first[0]}",
    )


def _times_unless_unknown(properties: PropertySet) -> TimestampKeys | None:
    """Like ``timestamp_keys_of``; also None if only the table's own values are not valid."""
    try:
        return timestamp_keys_of(properties)
    except SettingError:
        found = (properties.find(option) for option in TIME_OPTIONS.values())
        if all(one is None or one[2] == TABLE_LAYER for one in found):
            return None
        raise


def timestamp_keys_of(properties: PropertySet) -> TimestampKeys | None:
    """
    Return the description of folders of times; None if there is none.

    Raises:
        SettingError: It is incomplete, or a pattern, zone or delimiter is not valid.
    """
    said = {name: _given(properties, option) for name, option in TIME_OPTIONS.items()}
    if said["kind"] is None and said["output_format"] is None:
        return None
    for name in ("kind", "output_format"):
        if said[name] is None:
            _refuse(properties, TIME_OPTIONS[name], "folders of times need it", "setting_missing")
    if said["parser_class"] not in (None, _PARSER):
        option = TIME_OPTIONS["parser_class"]
        _refuse(properties, option, f"only {_PARSER} is known", "unsupported_setting")
    kind = TimestampType[str(said["kind"])]
    keys = TimestampKeys(
        kind=kind,
        output_format=str(said["output_format"]),
        input_formats=_input_formats(properties, said) if kind.reads_text else (),
        input_zone=said["zone"] or said["input_zone"],
        output_zone=said["zone"] or said["output_zone"],
        scalar_unit=TimeUnit[said["scalar_unit"] or "SECONDS"],
    )
    _check_times(properties, keys)
    return keys


def _given(properties: PropertySet, option: Option) -> str | None:
    found = properties.find(option)
    if found is None or not found[1].strip():
        return None
    key, text, layer = found
    return str(parse_option(option, text.strip(), key=key, layer=layer))


def _input_formats(properties: PropertySet, said: Mapping[str, str | None]) -> tuple[str, ...]:
    listed = said["input_formats"]
    if listed is None:
        _refuse(properties, TIME_OPTIONS["input_formats"], "texts need a form", "setting_missing")
    text = said["input_delimiter"] or ","
    # Java accepts any regular expression. A delimiter is one character; anything else is more
    # likely an attack by an expensive expression (SEC14).
    delimiter = _DELIMITER.fullmatch(text)
    if delimiter is None:
        _refuse(
            properties,
            TIME_OPTIONS["input_delimiter"],
            "the delimiter is one character, escaped or in brackets",
            "unsupported_setting",
        )
    character = delimiter[1].strip("[]") if delimiter[1].startswith("[") else delimiter[1][-1]
    return tuple(one.strip() for one in listed.split(character) if one.strip())


def _check_times(properties: PropertySet, keys: TimestampKeys) -> None:
    def tried(name: str, check: Any, text: str) -> None:
        try:
            check(text)
        except InvalidInputError as error:
            option = TIME_OPTIONS[name]
            if name != "zone" or _given(properties, option) is not None:
                _refuse(properties, option, error.message, "setting_value")

    tried("output_format", parse_date_pattern, keys.output_format)
    for pattern in keys.input_formats:
        tried("input_formats", lambda text: parse_date_pattern(text).expression(), pattern)
    both = _given(properties, TIME_OPTIONS["zone"]) is not None
    if keys.input_zone is not None:
        tried("zone" if both else "input_zone", check_zone, keys.input_zone)
    if keys.output_zone is not None:
        tried("zone" if both else "output_zone", check_zone, keys.output_zone)


def contradictions_of_keys(settings: WriteSettings) -> tuple[str, str, str, str] | None:
    """
    Return the contradiction among key options: field, message, suggestion, kind.

    None if there is none.
    """
    keys, partitions = len(settings.record_key_fields), len(settings.partition_fields)
    generator = settings.key_generator
    single = (KeyGenerator.SIMPLE, KeyGenerator.TIMESTAMP)
    contradiction = "setting_contradiction"
    if generator in single and (keys > 1 or partitions > 1):
        return (
            "record_key_fields" if keys > 1 else "partition_fields",
            "this key generator takes one field for the key and one for the partition",
            "use key generator COMPLEX or CUSTOM, or leave it out",
            contradiction,
        )
    if generator in (KeyGenerator.NON_PARTITION, KeyGenerator.GLOBAL_DELETE) and partitions:
        return (
            "partition_fields",
            "the key generator is for tables without partitions",
            "leave one of the two out",
            contradiction,
        )
    types = set(settings.partition_types)
    if generator not in (None, KeyGenerator.CUSTOM) and types - {None}:
        return (
            "partition_fields",
            "types of partition fields are for key generator CUSTOM",
            "leave them out, or use CUSTOM",
            contradiction,
        )
    if generator is KeyGenerator.CUSTOM and types - {"SIMPLE", "TIMESTAMP"}:
        return (
            "partition_fields",
            "key generator CUSTOM needs a type for each partition field",
            "write region:SIMPLE,ts:TIMESTAMP",
            "setting_value",
        )
    left_out = set(settings.partition_fields if settings.drop_partition_columns else ())
    needed = set(settings.ordering_fields)
    if not settings.populate_meta_fields:
        needed.update(settings.record_key_fields)
    if left_out & needed:
        return (
            "drop_partition_columns",
            "rows are compared by a column that files would leave out",
            f"keep the columns, or partition by others: {sorted(left_out & needed)}",
            contradiction,
        )
    if (settings.delete_field is None) != (settings.delete_marker is None):
        return (
            "delete_field" if settings.delete_marker is None else "delete_marker",
            "a column that marks deletes needs its marker, and the marker its column",
            "set both or none",
            "setting_missing",
        )
    fills = settings.partial_update_mode == PartialUpdateMode.FILL_UNAVAILABLE.value
    if fills and merge_definition_of_settings(settings).unavailable_marker is None:
        return (
            "partial_update_mode",
            "nothing tells which value means that the older one stays",
            f"set {KEY_OPTIONS['unavailable_marker'].key}",
            "setting_missing",
        )
    return None


def key_spec_of(settings: WriteSettings, config: TableConfig) -> KeySpec:
    """
    Return how to make the keys of an existing table, from its properties and the settings.

    Settings supply only the facts that Java Hudi does not store with the table: the time formats of
    a CUSTOM generator and the encoding of a complex key of one field.
    """
    told = (config.key_generator_type or "").removesuffix("_AVRO")
    if told in KeyGenerator.__members__:
        generator = KeyGenerator[told]
    else:
        generator = infer_key_generator(len(config.record_key_fields), len(config.partition_fields))
    types = config.partition_field_types
    if generator is KeyGenerator.CUSTOM and None in types:
        types = settings.partition_types
    bare = settings.complex_key_bare
    return KeySpec(
        record_key_fields=config.record_key_fields,
        partition_fields=config.partition_fields,
        partition_types=types,
        key_generator=generator,
        hive_style=config.hive_style_partitioning,
        url_encode=config.url_encode_partitioning,
        table_version=config.table_version,
        ordering_fields=config.ordering_fields if config.merge.orders else (),
        times=settings.timestamp_keys,
        prefixes_single_key=None if bare is None else not bare,
        stores_keys=config.populate_meta_fields,
    )


def stored_times_of(config: TableConfig) -> TimestampKeys | None:
    """Return the table's own description of folders of times; None if missing or not valid."""
    kept = {key: text for key, text in config.raw.items() if key.startswith(_TIME_PREFIX)}
    try:
        return timestamp_keys_of(PropertySet().with_layer(TABLE_LAYER, kept)) if kept else None
    except SettingError:
        return None


def refuse_other_classes(settings: WriteSettings, config: TableConfig) -> None:
    """
    Refuse Java classes and ids that mean another rule than the table's, as Java does.

    The payload class the table was made with is accepted: version 9 reads some in another mode.

    Raises:
        SettingError: ``kind`` ``setting_against_table``.
    """
    meant = _meanings(settings, config)
    for field, (mine, theirs) in meant.items():
        layer, option = settings.origin(field), KEY_OPTIONS[field]
        if layer in (DEFAULT_LAYER, TABLE_LAYER) or mine in (None, theirs):
            continue
        raise SettingError(
            f"the table was made with another value: {option.key} (from {layer}) stands for "
            f"{mine.value}, the table has {theirs.value}; leave the option out or write to "
            "another table",
            kind="setting_against_table",
            key=option.key,
            layer=layer,
            suggestion=theirs.value,
        )


def _meanings(settings: WriteSettings, config: TableConfig) -> dict[str, tuple[Any, Any]]:
    """Return for each option what the caller's class means (or None), and what the table has."""
    payload, merge = settings.payload_class, config.merge
    found: dict[str, tuple[Any, Any]] = {}
    if payload is None or payload != merge.payload_class:
        modes = settings.merge_mode, config.merge_mode
        known = definition_of_payload(payload) if payload else None
        fills = known.partial_update_mode if known else None
        found["merge_strategy_id"] = modes
        same = modes[0] is modes[1]
        found["payload_class"] = (fills, merge.partial_update_mode) if same else modes
    told, mine = (config.key_generator_type or "").removesuffix("_AVRO"), settings.key_generator
    if told in KeyGenerator.__members__:
        theirs = KeyGenerator[told]
        same = {mine, theirs} <= {KeyGenerator.NON_PARTITION, KeyGenerator.GLOBAL_DELETE}
        found["key_generator_type"] = found["key_generator_class"] = (
            mine,
            mine if same else theirs,
        )
    return found


def refuse_other_times(settings: WriteSettings, config: TableConfig) -> None:
    """
    Refuse time formats other than the table's, because rows would get other folders.

    Raises:
        SettingError: ``kind`` ``setting_against_table``.
    """
    theirs = None if settings.timestamp_keys is None else stored_times_of(config)
    if (
        theirs is not None
        and settings.timestamp_keys is not None
        and theirs != settings.timestamp_keys
    ):
        raise SettingError(
            "the table's folders of times were made otherwise, and rows would get others; leave "
            f"{_TIME_PREFIX}* out: {settings.timestamp_keys} against the table's {theirs}",
            kind="setting_against_table",
            key=TIME_OPTIONS["output_format"].key,
            value=settings.timestamp_keys.output_format,
            layer=CODE_LAYER,
            suggestion=theirs.output_format,
        )


def key_properties_of(settings: WriteSettings) -> dict[str, str]:
    """Return the properties of the key generator to store in a new table, for later writers."""
    # Exact texts, because Java compares the texts of its options with those of the table.
    kept = dict(settings.time_properties)
    bare = settings.complex_key_bare
    if bare is not None and settings.table_version == 8 and len(settings.record_key_fields) == 1:
        # Java reads this key with the same meaning, as a write option.
        kept[KEY_OPTIONS["complex_key_bare"].key] = "true" if bare else "false"
    return kept


def merge_definition_of_settings(settings: WriteSettings) -> MergeDefinition:
    """Return the merge definition of a new table: payload class, mode and markers together."""
    known = definition_of_payload(settings.payload_class) if settings.payload_class else None
    definition = known or MergeDefinition(mode=settings.effective_merge_mode)
    definition = replace(
        definition, ordering_fields=definition.ordering_fields or settings.ordering_fields
    )
    if settings.merge_mode is not None and settings.merge_mode is not MergeMode.CUSTOM:
        definition = replace(definition, mode=settings.merge_mode)
    if settings.delete_field is not None:
        definition = replace(
            definition, delete_field=settings.delete_field, delete_marker=settings.delete_marker
        )
    if settings.partial_update_mode is not None:
        mode = PartialUpdateMode(settings.partial_update_mode)
        definition = replace(definition, partial_update_mode=mode)
    if settings.unavailable_marker is not None:
        definition = replace(definition, unavailable_marker=settings.unavailable_marker)
    return definition


def _refuse(properties: PropertySet, option: Option, why: str, kind: str) -> NoReturn:
    found = properties.find(option)
    key, text, layer = found or (option.key, "(not set)", DEFAULT_LAYER)
    raise SettingError(
        f"{why}: {key}={text} (from {layer})",
        kind=kind,
        key=key,
        value=text,
        layer=layer,
        suggestion=option.doc,
    )
