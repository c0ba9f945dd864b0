"""The rows that differ between two states of a table."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hoodoo
from filegroups.reading.diff import DiffCounts, equal_values
from filegroups.table import TableReader
from timeline.errors import InvalidInputError

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.float64())])


def rows(*values: tuple[int, str, float | None]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, one, strict=True)) for one in values], SCHEMA
    )


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ"])
def table(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    with hoodoo.create_table(
        str(tmp_path / "t"),
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        table_type=request.param,
        properties={"hoodie.clean.automatic": "false"},
    ) as made:
        yield made


def test_inserted_updated_and_deleted_rows_are_counted_by_partition_and_column(table: Any) -> None:
    first = table.upsert(rows((1, "a", 1.0), (2, "a", 2.0), (3, "b", 3.0), (9, "c", 9.0)))
    table.upsert(rows((2, "a", 2.5), (4, "b", 4.0)))
    table.delete(rows((3, "b", None)))
    found = table.diff(first.requested_time)
    counts = found.counts()
    assert (counts.inserted, counts.updated, counts.deleted) == (1, 1, 1)
    assert counts.columns == {"v": 1}
    assert sorted(counts.partitions) == ["a", "b"]
    assert sorted(found.rows().read_all().to_pylist(), key=lambda one: one["key"]) == [
        {
            "op": "u",
            "partition": "a",
            "key": "2",
            "changed": ["v"],
            "before": {"id": 2, "p": "a", "v": 2.0},
            "after": {"id": 2, "p": "a", "v": 2.5},
        },
        {
            "op": "d",
            "partition": "b",
            "key": "3",
            "changed": [],
            "before": {"id": 3, "p": "b", "v": 3.0},
            "after": None,
        },
        {
            "op": "i",
            "partition": "b",
            "key": "4",
            "changed": [],
            "before": None,
            "after": {"id": 4, "p": "b", "v": 4.0},
        },
    ]


def test_the_reverse_difference_swaps_inserted_and_deleted_rows(table: Any) -> None:
    first = table.upsert(rows((1, "a", 1.0)))
    second = table.upsert(rows((2, "a", 2.0)))
    back = table.diff(second.requested_time, first.requested_time).counts()
    assert (back.inserted, back.updated, back.deleted) == (0, 0, 1)
    assert table.diff(second.requested_time).counts() == DiffCounts()


def test_rows_that_a_clustering_moves_do_not_differ(table: Any) -> None:
    table.bulk_insert(rows(*((key, "a", 1.0) for key in range(5))))
    first = table.bulk_insert(rows(*((key, "a", 1.0) for key in range(5, 9))))
    table.services.cluster(sort_by=["v"])
    second = table.upsert(rows((3, "a", 7.0)))
    assert len(table.file_slices()) == 1
    counts = table.diff(first.requested_time, second.requested_time).counts()
    assert (counts.inserted, counts.updated, counts.deleted) == (0, 1, 0)


def test_a_written_row_with_equal_values_does_not_differ(table: Any) -> None:
    first = table.upsert(rows((1, "a", None), (2, "a", float("nan"))))
    table.upsert(rows((1, "a", None), (2, "a", float("nan"))))
    assert table.diff(first.requested_time).counts() == DiffCounts()


def test_unchanged_file_groups_are_not_read(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = table.upsert(rows((1, "a", 1.0), (2, "b", 2.0), (3, "c", 3.0)))
    table.upsert(rows((2, "b", 2.5)))
    read = []
    import filegroups.reading.diff as module

    planned = module.plan_scan

    def watched(context: Any, snapshot: Any, slices: Any, **more: Any) -> Any:
        read.extend(one.file_group.partition_path for one in slices)
        return planned(context, snapshot, slices, **more)

    monkeypatch.setattr(module, "plan_scan", watched)
    table.diff(first.requested_time).counts()
    assert set(read) == {"b"}


def test_a_new_column_is_null_before(table: Any) -> None:
    first = table.upsert(rows((1, "a", 1.0)))
    table.upsert(rows((1, "a", 1.0)).append_column("note", pa.array(["new"])))
    [row] = table.diff(first.requested_time).rows().read_all().to_pylist()
    assert (row["changed"], row["before"]["note"], row["after"]["note"]) == (["note"], None, "new")


def test_chosen_columns_alone_are_compared(table: Any) -> None:
    first = table.upsert(rows((1, "a", 1.0)))
    table.upsert(rows((1, "a", 2.0)))
    assert table.diff(first.requested_time, columns=["id"]).counts().updated == 0
    with pytest.raises(InvalidInputError, match="no such columns: \\['x'\\]"):
        table.diff(first.requested_time, columns=["x"])


def test_rows_with_a_duplicate_key_are_paired_in_their_order(tmp_path: Any) -> None:
    with hoodoo.create_table(str(tmp_path / "d"), schema=SCHEMA, record_key="id") as made:
        first = made.bulk_insert(rows((1, "a", 1.0), (1, "a", 2.0)))
        made.insert(rows((1, "a", 3.0)))
        counts = made.diff(first.requested_time).counts()
        assert (counts.inserted, counts.updated, counts.deleted) == (1, 0, 0)


KINDS = st.sampled_from(
    [
        (pa.int32(), st.integers(-2, 2)),
        (pa.float64(), st.sampled_from([0.0, 1.5, float("inf")])),
        (pa.string(), st.sampled_from(["", "a", "b"])),
        (pa.list_(pa.int8()), st.lists(st.integers(0, 1) | st.none(), max_size=2)),
        (
            pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))]),
            st.fixed_dictionaries(
                {
                    "x": st.integers(0, 1) | st.none(),
                    "y": st.lists(st.sampled_from("ab"), max_size=2) | st.none(),
                }
            ),
        ),
        (
            pa.map_(pa.string(), pa.int8()),
            st.dictionaries(st.sampled_from("ab"), st.integers(0, 1), max_size=1).map(
                lambda one: list(one.items())
            ),
        ),
    ]
)


@given(st.data())
def test_values_are_equal_where_python_values_are(data: st.DataObject) -> None:
    kind, values = data.draw(KINDS)
    pairs = data.draw(st.lists(st.tuples(values | st.none(), values | st.none()), max_size=6))
    one, two = (pa.array([pair[side] for pair in pairs], kind) for side in (0, 1))
    wanted = np.array([left == right for left, right in pairs], np.bool_)
    assert equal_values(one, two).tolist() == wanted.tolist()
    assert equal_values(one.slice(1), two.slice(1)).tolist() == wanted[1:].tolist()


def test_a_reader_has_the_difference_too() -> None:
    assert TableReader.diff is hoodoo.Table.diff


STATES = st.dictionaries(
    st.integers(0, 5), st.tuples(st.sampled_from("ab"), st.sampled_from([None, 1.0, 2.0]))
)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["COPY_ON_WRITE", "MERGE_ON_READ"]),
    STATES.filter(bool),
    STATES,
    st.booleans(),
)
def test_the_difference_of_two_states_is_that_of_their_dictionaries(
    kind: str,
    before: dict[int, tuple[str, float | None]],
    after: dict[int, tuple[str, float | None]],
    compacts: bool,
) -> None:
    def state(values: dict[int, tuple[str, float | None]]) -> dict[tuple[str, str], Any]:
        return {(path, str(key)): value for key, (path, value) in values.items()}

    old, new = state(before), state(after)
    with (
        tempfile.TemporaryDirectory() as folder,
        hoodoo.create_table(
            f"{folder}/t", schema=SCHEMA, record_key="id", partition_by="p", table_type=kind
        ) as table,
    ):
        first = table.upsert(rows(*((key, *value) for key, value in before.items())))
        gone = [(int(key), path, None) for path, key in old.keys() - new.keys()]
        if gone:
            table.delete(rows(*gone))
        if after:
            table.upsert(rows(*((key, *value) for key, value in after.items())))
        if compacts and kind == "MERGE_ON_READ":
            table.services.compact()
        found = table.diff(first.requested_time)
        ops = {
            (one["partition"], one["key"]): one["op"]
            for batch in found.rows()
            for one in batch.to_pylist()
        }
        counts = found.counts()
    wanted = dict.fromkeys(new.keys() - old.keys(), "i")
    wanted |= dict.fromkeys(old.keys() - new.keys(), "d")
    wanted |= {key: "u" for key in old.keys() & new.keys() if old[key] != new[key]}
    assert ops == wanted
    assert counts.inserted + counts.updated + counts.deleted == len(wanted)
