"""The effect of a table's definition on merging: order, deletes, and values that count."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

from filegroups.merge.rules import MergeRules, known_values
from timeline.model.commit_metadata import MergeMode
from timeline.model.merge_definition import MergeDefinition, PartialUpdateMode
from timeline.ports.merger import MergedRows, Versions

EVENT, COMMIT = MergeMode.EVENT_TIME_ORDERING, MergeMode.COMMIT_TIME_ORDERING
IGNORING, FILLING = PartialUpdateMode.IGNORE_DEFAULTS, PartialUpdateMode.FILL_UNAVAILABLE


@dataclass(frozen=True)
class Wanting:
    """A plug-in's merger that needs one more column."""

    strategy_ids: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    def columns_needed(self, schema: pa.Schema) -> tuple[str, ...]:
        return ("n", "nowhere", schema.names[0])

    def merge(self, older: Versions, newer: Versions) -> MergedRows:
        return MergedRows(columns={}, deleted=newer.deleted)


def rules(mode: MergeMode = EVENT, *fields: str, **more: object) -> MergeRules:
    return MergeRules(definition=MergeDefinition(mode=mode, ordering_fields=fields, **more))


MERGER = {"merger": Wanting()}
FOLDING = {"precombines": True}
PARTLY = {"partial_update_mode": IGNORING}


@pytest.mark.parametrize(
    ("mode", "fields", "more", "by_order", "reads", "folds"),
    [
        (EVENT, ("ts",), {}, True, True, True),
        (EVENT, (), {}, False, False, False),
        (COMMIT, ("ts",), {}, False, False, False),
        (COMMIT, (), {}, False, False, False),
        (COMMIT, ("ts",), FOLDING, False, True, True),
        (COMMIT, (), FOLDING, False, False, False),
        (EVENT, ("ts",), FOLDING, True, True, True),
        (COMMIT, ("ts",), {"deletes_by_order": True}, False, True, False),
        (COMMIT, (), {"deletes_by_order": True}, False, False, False),
        (MergeMode.CUSTOM, ("ts",), MERGER, False, True, False),
        (MergeMode.CUSTOM, (), MERGER, False, False, False),
    ],
)
def test_where_ordering_values_decide(
    mode: MergeMode,
    fields: tuple[str, ...],
    more: dict[str, object],
    by_order: bool,
    reads: bool,
    folds: bool,
) -> None:
    found = rules(mode, *fields, **more)
    assert (found.by_order, found.reads_order, found.folds_by_order) == (by_order, reads, folds)


@pytest.mark.parametrize(
    ("mode", "more", "reads", "fold_reads"),
    [
        (EVENT, {}, False, False),
        (EVENT, PARTLY, True, True),
        (EVENT, {"partial_update_mode": FILLING}, True, True),
        (EVENT, {"partial_update_mode": PartialUpdateMode.KEEP_VALUES}, False, False),
        (EVENT, {**PARTLY, **MERGER}, False, False),
        (EVENT, {**PARTLY, **FOLDING}, True, True),
        (COMMIT, {**PARTLY, **FOLDING}, True, False),
        (COMMIT, PARTLY, True, True),
        (COMMIT, FOLDING, False, False),
    ],
)
def test_where_single_values_may_not_count(
    mode: MergeMode, more: dict[str, object], reads: bool, fold_reads: bool
) -> None:
    found = rules(mode, "ts", **more)
    assert (found.reads_values, found.fold_reads_values) == (reads, fold_reads)


@pytest.mark.parametrize("mode", PartialUpdateMode)
def test_columns_that_a_record_lacks_are_kept_in_one_mode_only(mode: PartialUpdateMode) -> None:
    found = rules(partial_update_mode=mode)
    assert found.retains_missing_columns is (mode is PartialUpdateMode.KEEP_VALUES)


def test_logs_may_have_ordering_fields_of_their_own() -> None:
    assert rules(EVENT, "ts").log_ordering_fields == ("ts",)
    assert rules(EVENT, "ts", precombine_fields=("seq",)).log_ordering_fields == ("seq",)
    assert rules(EVENT, "ts").merger is None
    assert rules(**MERGER).merger == Wanting()


NAMES = ["k", "_hoodie_operation", "n", "op", "s", "ts", "_hoodie_is_deleted", "file.pos"]
SCHEMA = pa.schema([(name, pa.string()) for name in NAMES])


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (rules(COMMIT, "ts"), ["_hoodie_is_deleted", "_hoodie_operation"]),
        (rules(EVENT, "ts"), ["ts", "_hoodie_is_deleted", "_hoodie_operation"]),
        (
            rules(EVENT, "ts", "s.inner.deep", "gone", "file.pos"),
            ["ts", "s", "file.pos", "_hoodie_is_deleted", "_hoodie_operation"],
        ),
        (
            rules(EVENT, "ts", precombine_fields=("n", "ts")),
            ["ts", "n", "_hoodie_is_deleted", "_hoodie_operation"],
        ),
        (
            rules(COMMIT, delete_field="op", delete_marker="D"),
            ["op", "_hoodie_is_deleted", "_hoodie_operation"],
        ),
        (
            rules(COMMIT, "ts", **MERGER),
            ["ts", "_hoodie_is_deleted", "_hoodie_operation", "n", "k"],
        ),
    ],
)
def test_ordering_fields_are_the_first_columns_to_merge_by(
    found: MergeRules, names: list[str]
) -> None:
    assert found.columns_for(SCHEMA) == names


def test_missing_columns_are_not_requested_for_merging() -> None:
    assert rules(EVENT, "ts", delete_field="op").columns_for(pa.schema([("k", pa.string())])) == []


@pytest.mark.parametrize(
    ("columns", "deleted"),
    [
        ({"_hoodie_is_deleted": [True, False, None]}, [True, False, False]),
        ({"_hoodie_is_deleted": ["true", "D", None]}, [False, False, False]),
        ({"_hoodie_operation": ["D", "-U", "I"]}, [True, True, False]),
        ({"_hoodie_operation": ["d", None, "U"]}, [False, False, False]),
        ({"op": ["1", "0", None]}, [True, False, False]),
        ({"op": [1, 0, None]}, [True, False, False]),
        ({"v": [True, False, None]}, [False, False, False]),
        (
            {
                "_hoodie_is_deleted": [True, False, False],
                "_hoodie_operation": ["I", "D", "I"],
                "op": ["0", "0", "1"],
            },
            [True, True, True],
        ),
    ],
)
def test_a_row_means_a_delete_by_a_flag_an_operation_or_the_tables_marker(
    columns: dict[str, list[object]], deleted: list[bool]
) -> None:
    found = rules(COMMIT, delete_field="op", delete_marker="1")
    assert found.deletes(pa.table(columns)).tolist() == deleted


def test_a_field_without_a_marker_and_a_marker_without_a_field_mean_no_delete() -> None:
    rows = pa.table({"op": ["1", "0"]})
    assert rules(COMMIT, delete_field="op").deletes(rows).tolist() == [False, False]
    assert rules(COMMIT, delete_marker="1").deletes(rows).tolist() == [False, False]


def known_columns(found: MergeRules, **columns: object) -> dict[str, list[bool]]:
    counts = known_values(pa.table(columns), found)
    return {name: mask.tolist() for name, mask in counts.items()}


def test_a_value_that_is_its_columns_default_does_not_count() -> None:
    found = MergeRules(
        definition=MergeDefinition(mode=EVENT, partial_update_mode=IGNORING),
        defaults={"a": "", "n": 0, "l": 1},
    )
    assert known_columns(
        found,
        a=["", "x", None],
        n=[1, 0, 2],
        b=[None, "x", None],
        full=[1, 2, 3],
        l=[[1], None, [2]],
        _hoodie_commit_time=[None, "t", None],
    ) == {
        "a": [False, True, True],
        "n": [True, False, True],
        "b": [False, True, False],
        "l": [True, False, True],
    }
    assert known_columns(found, a=["x", "y"], n=[1, 2]) == {}


def test_a_text_that_is_the_marker_does_not_count() -> None:
    found = rules(COMMIT, partial_update_mode=FILLING, unavailable_marker="?")
    assert known_columns(
        found,
        a=["?", "x", None],
        b=[b"?", b"x", None],
        n=[1, 2, 3],
        c=["x", "y", None],
        d=["x", "y", "?"],
    ) == {"a": [False, True, True], "b": [False, True, True], "d": [True, True, False]}
    assert known_columns(rules(COMMIT, partial_update_mode=FILLING), a=["?"]) == {}
    assert known_columns(rules(COMMIT, unavailable_marker="?"), a=["?", None]) == {}


SCHEMA_TEXT = (
    '{"type":"record","name":"t","fields":['
    '{"name":"b","type":"boolean","default":false},{"name":"i","type":"int","default":1},'
    '{"name":"l","type":"long","default":2},{"name":"f","type":"float","default":0.5},'
    '{"name":"d","type":["double","null"],"default":1.5},'
    '{"name":"s","type":["string","null"],"default":"x"},'
    '{"name":"n","type":["null","string"],"default":null},'
    '{"name":"m","type":["null","string"],"default":"odd"},'
    '{"name":"e","type":[],"default":1},'
    '{"name":"y","type":"bytes","default":"z"},{"name":"o","type":"long"},'
    '{"name":"a","type":{"type":"array","items":"int"},"default":[]}]}'
)


def test_defaults_are_those_of_plain_columns_where_the_table_ignores_them() -> None:
    definition = MergeDefinition(mode=EVENT, partial_update_mode=IGNORING)
    found = MergeRules.of(definition, SCHEMA_TEXT)
    assert found.defaults == {"b": False, "i": 1, "l": 2, "f": 0.5, "d": 1.5, "s": "x"}
    for mode in (PartialUpdateMode.NONE, FILLING):
        other = MergeDefinition(mode=EVENT, partial_update_mode=mode)
        assert MergeRules.of(other, SCHEMA_TEXT).defaults == {}
    assert MergeRules.of(definition).defaults == {}


def test_ordering_fields_that_the_schema_lacks_are_ignored() -> None:
    definition = MergeDefinition(
        mode=EVENT, ordering_fields=("gone", "l", "s.x"), precombine_fields=("i", "gone.x")
    )
    found = MergeRules.of(definition, SCHEMA_TEXT).definition
    assert (found.ordering_fields, found.precombine_fields) == (("l", "s.x"), ("i",))
    assert MergeRules.of(definition).definition == definition
    assert MergeRules.of(definition, "").definition == definition
