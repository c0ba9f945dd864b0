"""Options of keys and merging become values; contradictions are refused by name."""

from __future__ import annotations

import pickle

import pytest

from filegroups.keys.generators import KeyGenerator, TimestampKeys, TimestampType, TimeUnit
from filegroups.schema.new_table import new_table_properties
from filegroups.settings.key_settings import (
    key_properties_of,
    key_spec_of,
    merge_definition_of_settings,
)
from filegroups.settings.settings import WriteSettings
from timeline.errors import SettingError, UnsupportedTableError
from timeline.model.commit_metadata import MergeMode
from timeline.model.merge_definition import MergeDefinition, PartialUpdateMode, merge_definition_of
from timeline.model.table_config import TableConfig

KEYGEN = "hoodie.datasource.write.keygenerator"
KEY = "hoodie.datasource.write.recordkey.field"
PARTITION = "hoodie.datasource.write.partitionpath.field"
PAYLOAD = "hoodie.datasource.write.payload.class"
TIME = "hoodie.keygen.timebased."
MILLIS = {TIME + "timestamp.type": "EPOCHMILLISECONDS", TIME + "output.dateformat": "yyyy/MM/dd"}
TEXTS = {TIME + "timestamp.type": "DATE_STRING", TIME + "output.dateformat": "yyyy"}
MODEL = "org.apache.hudi.common.model."


def write(properties: dict[str, str]) -> WriteSettings:
    return WriteSettings.from_properties(properties)


@pytest.mark.parametrize(
    ("name", "generator"),
    [
        ("SimpleKeyGenerator", KeyGenerator.SIMPLE),
        ("ComplexAvroKeyGenerator", KeyGenerator.COMPLEX),
        ("NonpartitionedKeyGenerator", KeyGenerator.NON_PARTITION),
        ("TimestampBasedKeyGenerator", KeyGenerator.TIMESTAMP),
        ("TimestampBasedAvroKeyGenerator", KeyGenerator.TIMESTAMP),
        ("CustomKeyGenerator", KeyGenerator.CUSTOM),
        ("CustomAvroKeyGenerator", KeyGenerator.CUSTOM),
        ("GlobalDeleteKeyGenerator", KeyGenerator.GLOBAL_DELETE),
        ("GlobalAvroDeleteKeyGenerator", KeyGenerator.GLOBAL_DELETE),
    ],
)
def test_java_class_names_select_key_generators(name: str, generator: KeyGenerator) -> None:
    assert write({KEYGEN + ".class": f"org.apache.hudi.keygen.{name}"}).key_generator is generator


def test_types_of_partition_fields_mean_a_custom_generator() -> None:
    settings = write({PARTITION: "region:simple, ts:TIMESTAMP", **MILLIS})
    assert settings.partition_fields == ("region", "ts")
    assert settings.partition_types == ("SIMPLE", "TIMESTAMP")
    assert settings.effective_key_generator is KeyGenerator.CUSTOM


def test_time_options_become_one_value() -> None:
    assert write({}).timestamp_keys is None
    assert write({**MILLIS, TIME + "timezone": "GMT+8:00"}).timestamp_keys == TimestampKeys(
        kind=TimestampType.EPOCHMILLISECONDS,
        output_format="yyyy/MM/dd",
        input_zone="GMT+8:00",
        output_zone="GMT+8:00",
    )
    older = {key.replace("hoodie.", "hoodie.deltastreamer."): v for key, v in MILLIS.items()}
    assert write(older).timestamp_keys == write(MILLIS).timestamp_keys
    scalar = {
        **MILLIS,
        TIME + "timestamp.type": "SCALAR",
        TIME + "timestamp.scalar.time.unit": "days",
    }
    keys = write(scalar).timestamp_keys
    assert keys is not None
    assert keys.unit is TimeUnit.DAYS


@pytest.mark.parametrize(
    ("listed", "delimiter", "expected"),
    [
        ("yyyy-MM-dd", None, ("yyyy-MM-dd",)),
        ("yyyy-MM-dd, yyyyMMdd", None, ("yyyy-MM-dd", "yyyyMMdd")),
        ("yyyy-MM-dd|yyyyMMdd", "\\|", ("yyyy-MM-dd", "yyyyMMdd")),
        ("yyyy-MM-dd;yyyyMMdd", "[;]", ("yyyy-MM-dd", "yyyyMMdd")),
        ("MMM d, yyyy ; yyyy", "\\s*;\\s*", ("MMM d, yyyy", "yyyy")),
    ],
)
def test_several_input_patterns_are_split_at_the_delimiter(
    listed: str, delimiter: str | None, expected: tuple[str, ...]
) -> None:
    properties = {**TEXTS, TIME + "input.dateformat": listed}
    if delimiter is not None:
        properties[TIME + "input.dateformat.list.delimiter.regex"] = delimiter
    keys = write(properties).timestamp_keys
    assert keys is not None
    assert keys.input_formats == expected


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({TIME + "timestamp.type": "EPOCHMILLISECONDS"}, "setting_missing"),
        ({TIME + "output.dateformat": "yyyy"}, "setting_missing"),
        (TEXTS, "setting_missing"),
        ({**MILLIS, TIME + "timestamp.type": "SOMETIMES"}, "setting_value"),
        ({**MILLIS, TIME + "output.dateformat": "yyyy-zz"}, "setting_value"),
        ({**MILLIS, TIME + "timezone": "Mars/Olympus"}, "setting_value"),
        ({**TEXTS, TIME + "input.dateformat": "yy"}, "setting_value"),
        (
            {
                **TEXTS,
                TIME + "input.dateformat": "yyyy",
                TIME + "input.dateformat.list.delimiter.regex": "(a+)+",
            },
            "unsupported_setting",
        ),
        ({**MILLIS, TIME + "datetime.parser.class": "os.system"}, "unsupported_setting"),
        ({KEYGEN + ".type": "TIMESTAMP", PARTITION: "a,b"}, "setting_contradiction"),
        ({KEYGEN + ".type": "TIMESTAMP", KEY: "a,b"}, "setting_contradiction"),
        ({KEYGEN + ".type": "COMPLEX", PARTITION: "a:SIMPLE"}, "setting_contradiction"),
        ({KEYGEN + ".type": "GLOBAL_DELETE", PARTITION: "a"}, "setting_contradiction"),
        ({KEYGEN + ".type": "CUSTOM", PARTITION: "a"}, "setting_value"),
        ({KEYGEN + ".type": "CUSTOM", PARTITION: "a:DATE"}, "setting_value"),
        (
            {
                PARTITION: "ts",
                "hoodie.datasource.write.precombine.field": "ts",
                "hoodie.datasource.write.drop.partition.columns": "true",
            },
            "setting_contradiction",
        ),
        (
            {
                PARTITION: "id",
                KEY: "id",
                "hoodie.populate.meta.fields": "false",
                "hoodie.datasource.write.drop.partition.columns": "true",
            },
            "setting_contradiction",
        ),
        ({"hoodie.payload.delete.field": "op"}, "setting_missing"),
        ({"hoodie.table.partial.update.mode": "FILL_UNAVAILABLE"}, "setting_missing"),
        ({"hoodie.payload.delete.marker": "d"}, "setting_missing"),
        ({"hoodie.table.partial.update.mode": "SOMETIMES"}, "setting_value"),
    ],
)
def test_contradicting_options_are_refused(properties: dict[str, str], kind: str) -> None:
    with pytest.raises(SettingError) as caught:
        write(properties)
    assert caught.value.kind == kind


def test_settings_with_time_formats_are_serialized_for_other_processes() -> None:
    settings = write(MILLIS)
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    "extra",
    [
        {TIME + "timezone": "Asia/Tokyo"},
        {TIME + "input.timezone": "Asia/Tokyo", TIME + "output.timezone": "UTC"},
        {TIME + "timestamp.type": "SCALAR", TIME + "timestamp.scalar.time.unit": "HOURS"},
        {TIME + "timestamp.type": "DATE_STRING", TIME + "input.dateformat": "yyyy-MM-dd,yyyy"},
        {
            TIME + "timestamp.type": "MIXED",
            TIME + "input.dateformat": "MMM d, yyyy;yyyy",
            TIME + "input.dateformat.list.delimiter.regex": ";",
        },
    ],
)
def test_a_table_keeps_its_time_formats_so_that_others_read_the_same(
    extra: dict[str, str],
) -> None:
    settings = write({**MILLIS, **extra})
    kept = key_properties_of(settings)
    assert write(kept).timestamp_keys == settings.timestamp_keys


def test_a_table_of_version_8_keeps_the_requested_key_encoding() -> None:
    new = "hoodie.write.complex.keygen.new.encoding"
    asked = {KEY: "id", "hoodie.write.table.version": "8", new: "false"}
    assert key_properties_of(write(asked)) == {new: "false"}
    assert key_properties_of(write({**asked, "hoodie.write.table.version": "9"})) == {}
    assert key_properties_of(write({KEY: "id"})) == {}


@pytest.mark.parametrize(("new", "prefixed"), [("false", True), ("true", False), (None, False)])
def test_the_encoding_of_a_complex_key_of_one_field_in_version_8(
    new: str | None, *, prefixed: bool
) -> None:
    config = TableConfig.from_properties(
        new_table_properties(
            "t", table_version=8, record_key_fields=("id",), key_generator_type="COMPLEX"
        )
    )
    stored = {} if new is None else {"hoodie.write.complex.keygen.new.encoding": new}
    assert key_spec_of(write(stored), config).prefixes_keys is prefixed


# merging of new tables


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"hoodie.datasource.write.precombine.field": "ts"},
        {
            "hoodie.datasource.write.precombine.field": "ts",
            "hoodie.payload.delete.field": "op",
            "hoodie.payload.delete.marker": "d",
        },
        {PAYLOAD: MODEL + "AWSDmsAvroPayload"},
        {PAYLOAD: MODEL + "PartialUpdateAvroPayload", "hoodie.table.precombine.field": "ts"},
        {PAYLOAD: MODEL + "debezium.PostgresDebeziumAvroPayload"},
    ],
)
def test_a_new_table_stores_the_requested_merge_definition(
    version: int, properties: dict[str, str]
) -> None:
    asked = merge_definition_of_settings(write(properties))
    stored = new_table_properties("t", table_version=version, merge=asked)
    found = merge_definition_of(stored, table_version=version)
    for field in (
        "mode",
        "ordering_fields",
        "delete_field",
        "delete_marker",
        "partial_update_mode",
        "unavailable_marker",
    ):
        assert getattr(found, field) == getattr(asked, field), field


def test_version_8_stores_a_payload_as_java_1_0_does() -> None:
    asked = merge_definition_of_settings(write({PAYLOAD: MODEL + "AWSDmsAvroPayload"}))
    stored = new_table_properties("t", table_version=8, merge=asked)
    assert stored["hoodie.record.merge.mode"] == "CUSTOM"
    assert stored["hoodie.record.merge.strategy.id"] == "00000000-0000-0000-0000-000000000000"
    assert stored["hoodie.compaction.payload.class"] == MODEL + "AWSDmsAvroPayload"


def test_version_9_stores_a_payload_as_java_1_2_does() -> None:
    payload = MODEL + "debezium.PostgresDebeziumAvroPayload"
    stored = new_table_properties(
        "t", merge=merge_definition_of_settings(write({PAYLOAD: payload}))
    )
    prefix = "hoodie.record.merge.property."
    assert {key: text for key, text in stored.items() if "merge" in key or "payload" in key} == {
        "hoodie.record.merge.mode": "EVENT_TIME_ORDERING",
        "hoodie.table.legacy.payload.class": payload,
        prefix + "hoodie.payload.delete.field": "_change_operation_type",
        prefix + "hoodie.payload.delete.marker": "d",
        prefix + "hoodie.write.partial.update.unavailable.value": "__debezium_unavailable_value",
    }
    assert stored["hoodie.table.partial.update.mode"] == "FILL_UNAVAILABLE"
    assert stored["hoodie.table.ordering.fields"] == "_event_lsn"


def test_partial_updates_without_a_payload_need_version_9() -> None:
    asked = MergeDefinition(
        mode=MergeMode.COMMIT_TIME_ORDERING,
        partial_update_mode=PartialUpdateMode.IGNORE_DEFAULTS,
    )
    new_table_properties("t", table_version=9, merge=asked)
    with pytest.raises(UnsupportedTableError) as refused:
        new_table_properties("t", table_version=8, merge=asked)
    assert refused.value.kind == "partial_update_mode"
