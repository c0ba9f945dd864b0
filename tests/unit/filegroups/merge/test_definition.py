"""The merge options of tables of every version become one value (fmt 1.5, 11.1, 11.2)."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from tests.interop import golden_tables
from timeline.errors import CorruptTableError, UnsupportedTableError
from timeline.model.commit_metadata import MergeMode
from timeline.model.merge_definition import (
    MergeDefinition,
    PartialUpdateMode,
    definition_of_payload,
    merge_definition_of,
)
from timeline.properties.properties_file import parse_properties

MODEL = "org.apache.hudi.common.model."
EVENT_ID = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"
COMMIT_ID = "ce9acb64-bde0-424c-9b91-f6ebba25356d"
CUSTOM_ID = "1897ef5f-18bc-4557-939c-9d6a8afd1519"
BY_PAYLOAD_ID = "00000000-0000-0000-0000-000000000000"

MODE = "hoodie.record.merge.mode"
ID = "hoodie.record.merge.strategy.id"
OLD_ID = "hoodie.compaction.record.merger.strategy"
PAYLOAD = "hoodie.compaction.payload.class"
LEGACY = "hoodie.table.legacy.payload.class"
ORDERING = "hoodie.table.ordering.fields"
PRECOMBINE = "hoodie.table.precombine.field"
PROPERTY = "hoodie.record.merge.property."


def derived(version: int, properties: dict[str, str]) -> MergeDefinition:
    return merge_definition_of(properties, table_version=version, path="p")


@pytest.mark.parametrize(
    ("version", "properties", "mode"),
    [
        # without a statement: by whether there is an ordering field
        (9, {ORDERING: "ts"}, "EVENT_TIME_ORDERING"),
        (9, {}, "COMMIT_TIME_ORDERING"),
        (8, {PRECOMBINE: "ts"}, "EVENT_TIME_ORDERING"),
        # one statement
        (8, {ID: COMMIT_ID, PRECOMBINE: "ts"}, "COMMIT_TIME_ORDERING"),
        (9, {PAYLOAD: MODEL + "DefaultHoodieRecordPayload"}, "EVENT_TIME_ORDERING"),
        (9, {PAYLOAD: MODEL + "EventTimeAvroPayload"}, "EVENT_TIME_ORDERING"),
        (8, {ID: BY_PAYLOAD_ID}, "CUSTOM"),
        (8, {ID: CUSTOM_ID}, "CUSTOM"),
        (8, {PAYLOAD: "com.example.MinePayload"}, "CUSTOM"),
        (9, {PAYLOAD: "com.example.DefaultHoodieRecordPayload"}, "CUSTOM"),
        # all three agree
        (
            8,
            {MODE: "EVENT_TIME_ORDERING", ID: EVENT_ID, PAYLOAD: MODEL + "EventTimeAvroPayload"},
            "EVENT_TIME_ORDERING",
        ),
        # version 6: the payload counts, even against an ordering field and the strategy (0.15)
        (
            6,
            {
                PAYLOAD: MODEL + "OverwriteWithLatestAvroPayload",
                OLD_ID: EVENT_ID,
                PRECOMBINE: "ts",
            },
            "COMMIT_TIME_ORDERING",
        ),
        (6, {PRECOMBINE: "ts"}, "EVENT_TIME_ORDERING"),
        # version 8: a custom strategy counts before a payload of Hudi's
        (8, {ID: CUSTOM_ID, PAYLOAD: MODEL + "DefaultHoodieRecordPayload"}, "CUSTOM"),
        # newer releases read such a payload class of Hudi's as custom
        (
            8,
            {MODE: "CUSTOM", ID: BY_PAYLOAD_ID, PAYLOAD: MODEL + "AWSDmsAvroPayload"},
            "COMMIT_TIME_ORDERING",
        ),
        (6, {PAYLOAD: MODEL + "PartialUpdateAvroPayload"}, "EVENT_TIME_ORDERING"),
        (9, {MODE: "EVENT_TIME_ORDERING", LEGACY: "com.example.Any"}, "EVENT_TIME_ORDERING"),
    ],
)
def test_the_merge_mode_follows_from_the_properties_of_the_version(
    version: int, properties: dict[str, str], mode: str
) -> None:
    assert derived(version, properties).mode is MergeMode[mode]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("DefaultHoodieRecordPayload", ("EVENT_TIME_ORDERING", None, None, "NONE", None)),
        ("OverwriteWithLatestAvroPayload", ("COMMIT_TIME_ORDERING", None, None, "NONE", None)),
        ("PartialUpdateAvroPayload", ("EVENT_TIME_ORDERING", None, None, "IGNORE_DEFAULTS", None)),
        (
            "OverwriteNonDefaultsWithLatestAvroPayload",
            ("COMMIT_TIME_ORDERING", None, None, "IGNORE_DEFAULTS", None),
        ),
        ("AWSDmsAvroPayload", ("COMMIT_TIME_ORDERING", "Op", "D", "NONE", None)),
        (
            "debezium.MySqlDebeziumAvroPayload",
            ("EVENT_TIME_ORDERING", "_change_operation_type", "d", "NONE", None),
        ),
        (
            "debezium.PostgresDebeziumAvroPayload",
            (
                "EVENT_TIME_ORDERING",
                "_change_operation_type",
                "d",
                "FILL_UNAVAILABLE",
                "__debezium_unavailable_value",
            ),
        ),
    ],
)
def test_hudis_payload_classes_are_read_as_its_newer_releases_read_them(
    payload: str, expected: tuple[str | None, ...]
) -> None:
    found = derived(6, {PAYLOAD: MODEL + payload, PRECOMBINE: "ts"})
    assert (
        found.mode.value,
        found.delete_field,
        found.delete_marker,
        found.partial_update_mode.value,
        found.unavailable_marker,
    ) == expected
    assert found.payload_class == MODEL + payload


def test_debezium_payloads_have_their_own_ordering() -> None:
    mysql = definition_of_payload(MODEL + "debezium.MySqlDebeziumAvroPayload")
    postgres = definition_of_payload(MODEL + "debezium.PostgresDebeziumAvroPayload")
    assert mysql is not None
    assert mysql.ordering_fields == ("_event_bin_file", "_event_pos")
    assert postgres is not None
    assert postgres.ordering_fields == ("_event_lsn",)


@pytest.mark.parametrize(("version", "in_logs"), [(6, ("_event_seq",)), (8, ())])
def test_logs_of_version_6_compare_the_field_of_the_table(
    version: int, in_logs: tuple[str, ...]
) -> None:
    """Java 0.15 uses the payload for base files only; in one log the table's field counts."""
    properties = {
        PAYLOAD: MODEL + "debezium.MySqlDebeziumAvroPayload",
        "hoodie.table.precombine.field": "_event_seq",
    }
    found = merge_definition_of(properties, table_version=version)
    assert found.ordering_fields == ("_event_bin_file", "_event_pos")
    assert found.precombine_fields == in_logs
    definitions = TypeAdapter(MergeDefinition)
    assert definitions.validate_json(definitions.dump_json(found)) == found


@pytest.mark.parametrize(
    ("version", "properties"),
    [
        (9, {MODE: "EVENT_TIME_ORDERING", ID: COMMIT_ID}),
        (8, {MODE: "COMMIT_TIME_ORDERING", PAYLOAD: MODEL + "DefaultHoodieRecordPayload"}),
        (8, {ID: EVENT_ID, PAYLOAD: MODEL + "OverwriteWithLatestAvroPayload"}),
        (9, {ID: EVENT_ID, PAYLOAD: MODEL + "OverwriteWithLatestAvroPayload"}),
        (9, {MODE: "EVENT_TIME_ORDERING", PAYLOAD: MODEL + "AWSDmsAvroPayload"}),
        (9, {MODE: "CUSTOM", ID: COMMIT_ID}),
    ],
)
def test_statements_that_contradict_each_other_are_refused(
    version: int, properties: dict[str, str]
) -> None:
    with pytest.raises(CorruptTableError) as refused:
        derived(version, properties)
    assert refused.value.kind == "merge_mode_contradiction"


def test_version_9_keeps_the_replaced_payload_without_effect() -> None:
    found = derived(9, {MODE: "COMMIT_TIME_ORDERING", LEGACY: MODEL + "AWSDmsAvroPayload"})
    assert found == MergeDefinition(
        mode=MergeMode.COMMIT_TIME_ORDERING, payload_class=MODEL + "AWSDmsAvroPayload"
    )
    assert found.is_plain


@pytest.mark.parametrize("prefix", ["", PROPERTY])
def test_delete_marker_partial_mode_and_unavailable_value_are_properties(prefix: str) -> None:
    found = derived(
        9,
        {
            MODE: "EVENT_TIME_ORDERING",
            ORDERING: "ts, seq",
            prefix + "hoodie.payload.delete.field": "Op",
            prefix + "hoodie.payload.delete.marker": "D",
            "hoodie.table.partial.update.mode": "FILL_UNAVAILABLE",
            prefix + "hoodie.write.partial.update.unavailable.value": "?",
        },
    )
    assert found == MergeDefinition(
        mode=MergeMode.EVENT_TIME_ORDERING,
        ordering_fields=("ts", "seq"),
        delete_field="Op",
        delete_marker="D",
        partial_update_mode=PartialUpdateMode.FILL_UNAVAILABLE,
        unavailable_marker="?",
    )
    assert not found.is_plain
    assert found.updates_partially


def test_the_name_of_before_the_release_means_the_same_mode() -> None:
    found = derived(9, {"hoodie.table.partial.update.mode": "IGNORE_MARKERS"})
    assert found.partial_update_mode is PartialUpdateMode.FILL_UNAVAILABLE


@pytest.mark.parametrize("key", ["hoodie.payload.delete.field", "hoodie.payload.delete.marker"])
def test_half_a_delete_marker_is_refused(key: str) -> None:
    with pytest.raises(CorruptTableError) as refused:
        derived(9, {PROPERTY + key: "D"})
    assert refused.value.kind == "table_property_missing"


@pytest.mark.parametrize("key", [MODE, "hoodie.table.partial.update.mode"])
def test_an_unknown_merge_mode_is_a_wrong_property(key: str) -> None:
    with pytest.raises(CorruptTableError) as refused:
        derived(9, {key: "SOMETIMES"})
    assert refused.value.kind == "table_property_wrong"


def test_a_custom_payload_class_is_refused_by_its_name() -> None:
    mine = derived(8, {MODE: "CUSTOM", PAYLOAD: "com.example.MinePayload", ID: BY_PAYLOAD_ID})
    with pytest.raises(UnsupportedTableError, match=r"com\.example\.MinePayload") as refused:
        mine.require_known()
    assert refused.value.kind == "custom_merger"
    with pytest.raises(UnsupportedTableError, match=CUSTOM_ID):
        derived(8, {ID: CUSTOM_ID}).require_known()
    derived(9, {}).require_known()


@pytest.mark.parametrize("name", golden_tables.names())
def test_every_golden_table_states_a_mode_we_carry_out(name: str) -> None:
    account = golden_tables.account(name)
    properties = account["properties"]
    found = derived(int(name[1]), properties)
    found.require_known()
    stated = properties.get(MODE)
    assert stated is None or found.mode.value == stated


def test_modes_order_only_with_something_to_order_by() -> None:
    event = MergeMode.EVENT_TIME_ORDERING
    assert MergeDefinition(mode=event, ordering_fields=("ts",)).orders
    assert not MergeDefinition(mode=event).orders
    commit = MergeMode.COMMIT_TIME_ORDERING
    assert not MergeDefinition(mode=commit, ordering_fields=("ts",)).orders


def test_properties_of_a_file_are_enough() -> None:
    text = b"hoodie.record.merge.mode=COMMIT_TIME_ORDERING\nhoodie.table.precombine.field=ts\n"
    found = merge_definition_of(parse_properties(text, path="p"), table_version=8)
    assert found.mode is MergeMode.COMMIT_TIME_ORDERING


def test_version_6_merges_by_its_payload_for_any_id_of_its_only_merger() -> None:
    properties = {
        "hoodie.compaction.payload.class": MODEL + "OverwriteNonDefaultsWithLatestAvroPayload",
        OLD_ID: "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
        "hoodie.table.precombine.field": "ts",
    }
    found = merge_definition_of(properties, table_version=6)
    assert found.mode is MergeMode.COMMIT_TIME_ORDERING
    assert found.partial_update_mode is PartialUpdateMode.IGNORE_DEFAULTS
    assert found.precombines
    assert not merge_definition_of({}, table_version=8).precombines


def test_version_8_keeps_payload_rules_that_version_9_replaced() -> None:
    def of(payload: str, version: int) -> tuple[bool, bool]:
        properties = {"hoodie.compaction.payload.class": MODEL + payload}
        found = merge_definition_of(properties, table_version=version)
        return found.deletes_by_order, found.late_rows_sign

    assert of("AWSDmsAvroPayload", 8) == (True, False)
    assert of("PartialUpdateAvroPayload", 8) == (True, True)
    assert of("PartialUpdateAvroPayload", 6) == (False, True)
    assert of("OverwriteWithLatestAvroPayload", 8) == (False, False)
