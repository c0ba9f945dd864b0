"""Random merges give the rows that DuckDB's ``MERGE INTO`` gives for the same texts."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filegroups.writing.merge_clauses import (
    MergeAction,
    MergeClause,
    RowMerge,
    TargetRules,
    When,
    bind_clauses,
    matches,
)
from timeline.errors import InvalidInputError

TARGET = TargetRules(schema=pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())]))
SOURCE = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("op", pa.string())])
DUCKDB = duckdb.connect(config={"threads": 1})

KEYS = st.integers(0, 7) | st.none()
VALUES = st.integers(-3, 3) | st.none()
TARGET_ROWS = st.lists(st.tuples(KEYS, VALUES, st.sampled_from(["a", "b", None])), max_size=8).map(
    lambda rows: list({one[0]: one for one in rows}.values())
)
SOURCE_ROWS = st.lists(st.tuples(KEYS, VALUES, st.sampled_from(["u", "d", None])), max_size=8).map(
    lambda rows: list({one[0]: one for one in rows}.values())
)

OF_TARGET = ["target.v > 0", "s = 'a'", "target.v IS NULL", "NOT target.v + 1 > 1", "s LIKE 'b%'"]
OF_SOURCE = ["source.v > 0", "op = 'd'", "op <> 'd' OR source.v < 1", "op IN ('u')"]
OF_BOTH = [*OF_TARGET, *OF_SOURCE, "target.v < source.v", "target.v = source.v"]
UPDATES = [
    {"v": "target.v + 1"},
    {"s": "coalesce(s, 'none')"},
    {"v": "CASE WHEN s = 'a' THEN 5 END"},
]
UPDATES_OF_BOTH = [*UPDATES, {"v": "source.v", "s": "op"}, {"v": "target.v * source.v"}]
INSERTS = [{"k": "source.k", "v": "source.v"}, {"k": "source.k", "v": "source.v - 1", "s": "op"}]


def clauses(when: When, conditions: list[str], values: list[dict[str, str]]) -> Any:
    action = MergeAction.INSERT if when is When.NOT_MATCHED else MergeAction.UPDATE
    made = st.builds(
        MergeClause,
        when=st.just(when),
        action=st.just(action),
        condition=st.sampled_from(conditions) | st.none(),
        values=st.sampled_from(values),
    )
    if when is When.NOT_MATCHED:
        return made
    deletes = st.builds(
        MergeClause,
        when=st.just(when),
        action=st.just(MergeAction.DELETE),
        condition=st.sampled_from(conditions) | st.none(),
    )
    return made | deletes


CLAUSES = st.lists(
    clauses(When.MATCHED, OF_BOTH, UPDATES_OF_BOTH)
    | clauses(When.NOT_MATCHED, OF_SOURCE, INSERTS)
    | clauses(When.NOT_MATCHED_BY_SOURCE, OF_TARGET, UPDATES),
    min_size=1,
    max_size=5,
).map(lambda every: [one for n, one in enumerate(every) if not _never_acts(one, every[:n])])


def _never_acts(clause: MergeClause, before: list[MergeClause]) -> bool:
    return any(one.when is clause.when and one.condition is None for one in before)


def table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(schema.names, one, strict=True)) for one in rows], schema=schema
    )


def merged(
    target: pa.Table, source: pa.Table, statement: list[MergeClause], pieces: int
) -> list[Any]:
    """Return the rows after a merge of the target in several batches."""
    bound = bind_clauses(statement, TARGET, SOURCE)
    run = RowMerge(clauses=bound, target=TARGET, source=source, source_keys=source.select(["k"]))
    step = -(-target.num_rows // pieces) or 1
    parts = [target.slice(start, step) for start in range(0, target.num_rows, step)]
    changes = [run.piece(one, one.select(["k"])) for one in parts]
    changed = pa.concat_tables([one.rows for one in changes] or [target.slice(0, 0)])
    gone = [one for part in changes for one in part.deleted.to_pylist()]
    by_key = {row["k"]: row for row in target.to_pylist()}
    for row, is_deleted in zip(changed.to_pylist(), gone, strict=True):
        by_key[row["k"]] = None if is_deleted else row
    kept = [row for row in by_key.values() if row is not None]
    return [*kept, *run.rest().rows.to_pylist()]


def by_duckdb(target: pa.Table, source: pa.Table, statement: list[MergeClause]) -> list[Any]:
    DUCKDB.register("given", target)
    DUCKDB.register("source_rows", source)
    DUCKDB.execute("CREATE OR REPLACE TABLE merged AS SELECT * FROM given")
    text = "MERGE INTO merged AS target USING source_rows AS source ON target.k = source.k"
    for one in statement:
        text += f" WHEN {one.when.name.replace('_', ' ')}"
        text += f" AND ({one.condition})" if one.condition else ""
        values = one.values or {}
        if one.action is MergeAction.INSERT:
            text += f" THEN INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
        elif one.action is MergeAction.UPDATE:
            text += f" THEN UPDATE SET {', '.join(f'{k} = {v}' for k, v in values.items())}"
        else:
            text += " THEN DELETE"
    DUCKDB.execute(text)
    return list(DUCKDB.execute("SELECT * FROM merged").to_arrow_table().to_pylist())


@pytest.mark.parametrize("before", [[], [MergeAction.UPDATE]])
def test_a_merge_without_a_clause_that_acts_is_refused(before: list[MergeAction]) -> None:
    made = [MergeClause(when=When.MATCHED, action=one, values={"v": 1}) for one in before]
    last = [MergeClause(when=When.MATCHED, action=MergeAction.DELETE, condition="s = 'a'")]
    with pytest.raises(InvalidInputError) as caught:
        bind_clauses(made and made + last, TARGET, SOURCE)
    assert caught.value.kind == "merge_clauses"


def in_order(rows: list[Any]) -> list[str]:
    return sorted(str(tuple(one.values())) for one in rows)


@given(
    target_rows=TARGET_ROWS, source_rows=SOURCE_ROWS, statement=CLAUSES, pieces=st.integers(1, 3)
)
@settings(max_examples=200, deadline=None)
def test_a_merge_gives_the_rows_of_sql(
    target_rows: list[Any], source_rows: list[Any], statement: list[MergeClause], pieces: int
) -> None:
    target, source = table(target_rows, TARGET.schema), table(source_rows, SOURCE)
    mine = merged(target, source, statement, pieces)
    assert in_order(mine) == in_order(by_duckdb(target, source, statement))


@pytest.mark.parametrize(
    ("condition", "is_refused"), [(None, True), ("source.v > 1", False), ("op IS NULL", True)]
)
def test_a_row_that_two_source_rows_change_is_refused(
    condition: str | None, is_refused: bool
) -> None:
    target = table([(1, 1, "a")], TARGET.schema)
    source = table([(1, 1, None), (1, 2, None)], SOURCE)
    for action in (MergeAction.UPDATE, MergeAction.DELETE):
        clause = MergeClause(
            when=When.MATCHED, action=action, condition=condition, values={"v": "source.v"}
        )
        if not is_refused:
            assert len(merged(target, source, [clause], 1)) in (0, 1)
            continue
        with pytest.raises(InvalidInputError) as caught:
            merged(target, source, [clause], 1)
        assert (caught.value.kind, caught.value.fields["rows"]) == ("merge_row_twice", 1)


@pytest.mark.parametrize(
    "kind",
    ["int8", "int64", "float64", "string", "binary", "bool", "date32", "decimal", "timestamp"],
)
def test_rows_of_each_type_match_by_value_and_never_by_null(kind: str) -> None:
    types = {"decimal": pa.decimal128(21, 2), "timestamp": pa.timestamp("us", "UTC")}
    numbers = pa.array([0, 1, None, 1], pa.int64())
    target = pa.array(["0", "1", None, "1"]) if kind in ("string", "binary") else numbers
    if kind == "date32":
        target = target.cast(pa.int32())
    column = target.cast(types.get(kind) or getattr(pa, kind.replace("bool", "bool_"))())
    rows = pa.table([column], names=["k"])
    mine, others = matches(rows, rows.slice(1, 2))
    assert sorted(zip(mine.tolist(), others.tolist(), strict=True)) == [(1, 0), (3, 0)]
