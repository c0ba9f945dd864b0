"""Rows of one key in a batch are combined by the table's rules, as in Java Hudi (fmt 7)."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from filegroups.merge.merging import combine_incoming
from filegroups.merge.rules import MergeRules
from timeline.model.merge_definition import merge_definition_of

MODEL = "org.apache.hudi.common.model."
MODE = "hoodie.record.merge.mode"
PARTIAL = "hoodie.table.partial.update.mode"
EVENT = {MODE: "EVENT_TIME_ORDERING", "hoodie.table.ordering.fields": "ts"}
COMMIT = {MODE: "COMMIT_TIME_ORDERING"}
BY_PAYLOAD = {
    MODE: "CUSTOM",
    "hoodie.record.merge.strategy.id": "00000000-0000-0000-0000-000000000000",
    "hoodie.table.precombine.field": "ts",
}
AVRO = json.dumps(
    {
        "type": "record",
        "name": "t",
        "fields": [
            {"name": "ts", "type": "long"},
            {"name": "a", "type": ["null", "string"], "default": None},
            {"name": "b", "type": "string", "default": "none"},
            {"name": "_hoodie_is_deleted", "type": "boolean", "default": False},
        ],
    }
)
IGNORING = {**EVENT, PARTIAL: "IGNORE_DEFAULTS"}
UNAVAILABLE = "hoodie.record.merge.property.hoodie.write.partial.update.unavailable.value"
Row = tuple[str, int, str | None, str, bool]


def row(ts: int, a: str | None, b: str, *, key: str = "k", gone: bool = False) -> Row:
    return key, ts, a, b, gone


def combined(properties: dict[str, str], *rows: Row, version: int = 9) -> list[tuple[Any, ...]]:
    names = ["_hoodie_record_key", "ts", "a", "b", "_hoodie_is_deleted"]
    table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
    rules = MergeRules.of(merge_definition_of(properties, table_version=version), AVRO)
    found = combine_incoming(table, rules).select(["ts", "a", "b"])
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


@pytest.mark.parametrize(
    ("properties", "rows", "expected"),
    [
        # a default of the schema has no effect, in either order of the rows
        (IGNORING, [row(1, "x", "none"), row(2, None, "y")], [(2, "x", "y")]),
        (IGNORING, [row(2, None, "y"), row(1, "x", "late")], [(2, "x", "y")]),
        (IGNORING, [row(1, "x", "w"), row(2, None, "none"), row(3, None, "z")], [(3, "x", "z")]),
        (IGNORING, [row(1, None, "none"), row(2, None, "none")], [(2, None, "none")]),
        (
            {**COMMIT, PARTIAL: "IGNORE_DEFAULTS"},
            [row(9, "x", "w"), row(1, None, "y")],
            [(1, "x", "y")],
        ),
        # no value of a row that is deleted in between
        (
            IGNORING,
            [row(1, "x", "w"), row(2, None, "d", gone=True), row(3, None, "y")],
            [(3, None, "y")],
        ),
        # the marker of values that a database did not send, and its older name
        (
            {
                **EVENT,
                PARTIAL: "FILL_UNAVAILABLE",
                UNAVAILABLE: "?",
            },
            [row(1, "x", "w"), row(2, None, "?")],
            [(2, None, "w")],
        ),
        (
            {
                **EVENT,
                PARTIAL: "IGNORE_MARKERS",
                UNAVAILABLE: "?",
            },
            [row(2, "?", "w"), row(1, "x", "late")],
            [(2, "x", "w")],
        ),
        # modes for missing columns: in one batch no row lacks a column
        (
            {**EVENT, PARTIAL: "FILL_DEFAULTS"},
            [row(1, "x", "w"), row(2, None, "none")],
            [(2, None, "none")],
        ),
        (
            {**EVENT, PARTIAL: "KEEP_VALUES"},
            [row(1, "x", "w"), row(2, None, "none")],
            [(2, None, "none")],
        ),
        (EVENT, [row(1, "x", "w"), row(2, None, "none")], [(2, None, "none")]),
    ],
)
def test_partial_rows_of_one_key_are_put_together(properties, rows, expected) -> None:
    assert combined(properties, *rows) == expected


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("PartialUpdateAvroPayload", [(2, "x", "y")]),
        ("OverwriteNonDefaultsWithLatestAvroPayload", [(1, "x", "late")]),
        ("DefaultHoodieRecordPayload", [(2, None, "y")]),
    ],
)
def test_payload_classes_of_older_tables_mean_the_same(version, payload, expected) -> None:
    options = {**BY_PAYLOAD, "hoodie.compaction.payload.class": MODEL + payload}
    if version == 9 or payload == "DefaultHoodieRecordPayload":
        options = {key: text for key, text in options.items() if "merge" not in key}
    assert combined(options, row(2, None, "y"), row(1, "x", "late"), version=version) == expected


def test_other_keys_stay_apart() -> None:
    rows = [row(1, "x", "none"), row(1, "other", "none", key="l"), row(2, None, "y")]
    assert sorted(combined(IGNORING, *rows)) == [(1, "other", "none"), (2, "x", "y")]


@pytest.mark.parametrize(
    ("properties", "version"),
    [
        *((properties, 9) for properties in (EVENT, COMMIT, IGNORING)),
        ({**COMMIT, PARTIAL: "IGNORE_DEFAULTS"}, 9),
        ({**EVENT, PARTIAL: "FILL_UNAVAILABLE", UNAVAILABLE: "2"}, 9),
        ({**COMMIT, PARTIAL: "FILL_UNAVAILABLE", UNAVAILABLE: "2"}, 9),
        *(
            ({**BY_PAYLOAD, "hoodie.compaction.payload.class": MODEL + payload}, version)
            for payload, versions in (
                ("PartialUpdateAvroPayload", (6,)),
                ("OverwriteNonDefaultsWithLatestAvroPayload", (6,)),
                ("DefaultHoodieRecordPayload", (6, 8)),
                ("OverwriteWithLatestAvroPayload", (6, 8)),
            )
            for version in versions
        ),
    ],
)
@pytest.mark.parametrize("seed", range(20))
def test_rows_combined_in_pieces_are_those_combined_at_once(
    properties: dict[str, str], version: int, seed: int
) -> None:
    made = random.Random(seed)
    if version == 6:  # it has no modes
        properties = {key: text for key, text in properties.items() if "merge" not in key}
    rows = [
        row(
            made.randrange(4),  # 0 is a default
            made.choice([None, "1", "2"]),
            made.choice(["none", "2", "3"]),
            key=f"k{made.randrange(3)}",
            gone=made.random() < 0.3,
        )
        for _ in range(24)
    ]
    names = ["_hoodie_record_key", "ts", "a", "b", "_hoodie_is_deleted"]
    table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
    avro = AVRO.replace('"type": "long"', '"type": "long", "default": 0')
    rules = MergeRules.of(merge_definition_of(properties, table_version=version), avro)
    assert rules.combines_in_pieces
    held = table.slice(0, 0)
    for start in range(0, 24, 4):
        held = combine_incoming(pa.concat_tables([held, table.slice(start, 4)]), rules)
    at_once = combine_incoming(table, rules).sort_by("_hoodie_record_key")
    assert held.sort_by("_hoodie_record_key") == at_once
    if rules.keeps_whole_rows:
        parts = [combine_incoming(table.slice(start, 4), rules) for start in range(0, 24, 4)]
        held = combine_incoming(pa.concat_tables(parts), rules)
        assert held.sort_by("_hoodie_record_key") == at_once


@pytest.mark.parametrize(
    "payload", ["PartialUpdateAvroPayload", "OverwriteNonDefaultsWithLatestAvroPayload"]
)
def test_rows_are_combined_at_once_if_order_and_values_come_from_several(payload: str) -> None:
    properties = {**BY_PAYLOAD, "hoodie.compaction.payload.class": MODEL + payload}
    rules = MergeRules.of(merge_definition_of(properties, table_version=8), AVRO)
    assert not rules.combines_in_pieces


@pytest.mark.parametrize(
    ("properties", "version", "whole"),
    [
        (EVENT, 9, True),
        (COMMIT, 9, True),
        ({**BY_PAYLOAD, "hoodie.compaction.payload.class": MODEL + "AWSDmsAvroPayload"}, 8, False),
        (IGNORING, 9, False),
        ({"hoodie.table.precombine.field": "ts"}, 6, False),
    ],
)
def test_parts_of_a_batch_are_combined_first_only_where_whole_rows_stay(
    properties: dict[str, str], version: int, whole: bool
) -> None:
    rules = MergeRules.of(merge_definition_of(properties, table_version=version), AVRO)
    assert rules.keeps_whole_rows is whole
