"""A repair of keys keeps the winner of each record, for any placement of rows and any death."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hoodoo
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from hoodoo.table import Table
from hoodoo.write_requests import write_request_of
from tests.unit.hoodoo.test_key_repair import SCHEMA, TYPES, problems, row, table_of
from timeline.model.commit_metadata import WriteOperation

META = ["_hoodie_record_key", "_hoodie_partition_path", "_hoodie_commit_time"]
GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE"}


@dataclass(frozen=True)
class Case:
    """Rows with where they are put, write by write, and how they are repaired."""

    table_type: str
    ordering: bool
    by_key: bool  # a global index
    window: int  # rows
    writes: list[tuple[WriteOperation, list[tuple[int, int, int, str, str]]]]
    dies_at: int  # 0: never
    dies_late: bool


class DeathError(Exception):
    """The process is gone."""


ROWS = st.tuples(
    st.integers(1, 4),
    st.integers(1, 2),
    st.integers(1, 3),
    st.sampled_from(["1.0", "2.0", "3.0", "4.0", "1", "2"]),
    st.sampled_from(["1.0", "2.0", "1"]),
)
CASES = st.builds(
    Case,
    table_type=st.sampled_from(TYPES),
    ordering=st.booleans(),
    by_key=st.booleans(),
    window=st.sampled_from([1, 2, 3, 500_000]),
    writes=st.lists(
        st.tuples(
            st.sampled_from([WriteOperation.BULK_INSERT, WriteOperation.UPSERT]),
            st.lists(ROWS, min_size=1, max_size=5),
        ),
        min_size=1,
        max_size=3,
    ),
    dies_at=st.integers(0, 6),
    dies_late=st.booleans(),
)


def right(one: dict[str, Any]) -> tuple[str, str]:
    return str(one["id"]), str(one["p"])


def lies(one: dict[str, Any]) -> tuple[str, str]:
    return one[META[0]], one[META[1]]


def put_all(table: Table, case: Case) -> None:
    """Put the rows into their places; no wrong row shares the key and path of a right one."""
    number = 0
    held: dict[tuple[str, str], bool] = {}
    for operation, drawn in case.writes:
        records, places, rows = set(), set(), []
        for key_number, folder, ts, key, path in drawn:
            number += 1
            one = row(float(key_number), ts, number, p=float(folder)) | {
                META[0]: key,
                META[1]: path,
            }
            is_right = lies(one) == right(one)
            record = one["id"] if case.by_key else right(one)
            taken = lies(one) in held and (is_right or held[lies(one)])
            if record in records or taken or lies(one) in places:
                continue
            held[lies(one)] = is_right
            records.add(record)
            if operation is WriteOperation.UPSERT:
                places.add(lies(one))
            rows.append(one)
        if rows:
            put(table, rows, operation)


def put(table: Table, rows: list[dict[str, Any]], operation: WriteOperation) -> None:
    plan = write_request_of(table.settings, table.config, operation)
    rules = replace(
        plan.rules,
        keys=replace(plan.rules.keys, carried=True, partition_fields=("gone",)),
        lookup=replace(plan.rules.lookup, whole_table=False),
    )
    text = [pa.field(name, pa.string()) for name in META[:2]]
    incoming = pa.Table.from_pylist(rows, pa.schema([*SCHEMA, *text]))
    workload = LocalWorkload(table.context.ports, incoming)
    write(table.context, replace(plan, rules=rules), workload)


def read(table: Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_arrow(columns=[*META, *SCHEMA.names]).to_pylist()
    return rows


def expected(rows: list[dict[str, Any]], case: Case) -> list[dict[str, Any]]:
    """The winner of each record that has a wrong row, and the other rows unchanged."""
    records = defaultdict(list)
    for one in rows:
        records[one["id"] if case.by_key else right(one)].append(one)
    kept = []
    for some in records.values():
        if all(lies(one) == right(one) for one in some):
            kept.extend(some)
        else:
            order = ["ts", META[2]] if case.ordering else [META[2]]
            kept.append(max(some, key=lambda one: [one[name] for name in order]))
    return kept


@contextmanager
def watched(
    table: Table, case: Case, wanted: list[dict[str, Any]], writes: list[int]
) -> Iterator[None]:
    """After each write all winners are there; the process dies before or after one of them."""
    published = table._writer.write

    def watch(plan: Any, workload: Any) -> Any:
        writes[0] += 1
        assert writes[0] < 100
        dies = writes[0] == case.dies_at
        if dies and not case.dies_late:
            raise DeathError
        result = published(plan, workload)
        assert {one["v"] for one in wanted} <= {one["v"] for one in read(table)}
        if dies:
            raise DeathError
        return result

    with (
        mock.patch.object(table._writer, "write", watch),
        mock.patch("hoodoo.key_repair._ROWS_MAX", case.window),
    ):
        yield


def repairs(case: Case) -> None:
    properties = GLOBAL if case.by_key else {}
    ordering = ["ts"] if case.ordering else []
    with TemporaryDirectory() as folder:
        root, writes = Path(folder) / "t", [0]
        options = {"ordering": ordering, "properties": properties}
        with table_of(root, case.table_type, **options) as table:
            put_all(table, case)
            wanted = expected(read(table), case)
            try:
                with watched(table, case, wanted, writes):
                    table.repair_keys()
            except DeathError:
                pass
        with hoodoo.open_table(root, properties=properties) as table:
            with watched(table, case, wanted, writes):
                table.repair_keys()
            found = sorted((lies(one), one["v"]) for one in read(table))
            assert found == sorted((right(one), one["v"]) for one in wanted)
            assert set(problems(table)) <= {"duplicate_key"}


@given(CASES)
@settings(max_examples=4, deadline=None)
def test_each_record_keeps_its_winner_wherever_a_repair_dies(case: Case) -> None:
    repairs(case)


@pytest.mark.slow
@given(CASES)
@settings(max_examples=200, deadline=None)
def test_many_repairs_keep_the_winner_of_each_record(case: Case) -> None:
    repairs(case)
