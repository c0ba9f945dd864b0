"""With a global index a key is unique in the table: rows move, or keep their partition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.index import LookupRules
from filegroups.writing.workload import LocalWorkload
from tests.unit.timeline.engine import begun, new_table, opened, put, rows_of, upsert
from timeline.model.commit_metadata import TableType, WriteOperation

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("ts", pa.int64()),
        ("v", pa.int64()),
        ("_hoodie_is_deleted", pa.bool_()),
    ]
)
KINDS = ("GLOBAL_SIMPLE", "GLOBAL_BLOOM")
MANY = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "filesystem",
}


def properties(kind: str = "GLOBAL_SIMPLE", *, moves: bool = True, **more: str) -> dict[str, str]:
    name = kind.rpartition("_")[2].lower()
    key = f"hoodie.{name}.index.update.partition.path"
    return {"hoodie.index.type": kind, key: str(moves).lower(), **more}


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ"], ids=["cow", "mor"])
def table_type(request: pytest.FixtureRequest) -> str:
    """Run every test of this file on tables of both types."""
    return str(request.param)


def made(
    path: Path, options: dict[str, str], *, ordering: str = "ts", table_type: str = "COPY_ON_WRITE"
) -> hoodoo.Table:
    return hoodoo.create_table(
        path / "t",
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        ordering=ordering,
        table_type=table_type,
        properties=options,
    )


def batch(*rows: tuple[str, str, int, int], deleted: bool = False) -> pa.Table:
    listed = [
        {"id": key, "p": p, "ts": ts, "v": v, "_hoodie_is_deleted": deleted}
        for key, p, ts, v in rows
    ]
    return pa.Table.from_pylist(listed, schema=SCHEMA)


def stored(table: hoodoo.Table) -> list[tuple[str, str, int, str]]:
    """Return key, partition path, value, and partition column of every row."""
    found = table.current_state().to_arrow(with_hoodie_columns=True).to_pylist()
    return sorted((r["id"], r["_hoodie_partition_path"], r["v"], r["p"]) for r in found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_found_in_another_partition_moves(tmp_path: Path, kind: str, table_type: str) -> None:
    with made(tmp_path, properties(kind), table_type=table_type) as table:
        table.upsert(batch(("a", "p", 1, 1), ("b", "p", 1, 1), ("c", "q", 1, 1)))
        result = table.upsert(batch(("a", "q", 2, 2), ("b", "p", 2, 2), ("d", "r", 2, 2)))
        assert stored(table) == [
            ("a", "q", 2, "q"),
            ("b", "p", 2, "p"),
            ("c", "q", 1, "q"),
            ("d", "r", 2, "r"),
        ]
        assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (2, 1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_may_stay_in_its_old_partition_by_option(
    tmp_path: Path, kind: str, table_type: str
) -> None:
    with made(tmp_path, properties(kind, moves=False), table_type=table_type) as table:
        table.upsert(batch(("a", "p", 1, 1), ("c", "q", 1, 1)))
        table.upsert(batch(("a", "q", 2, 2), ("d", "r", 2, 2)))
        assert stored(table) == [("a", "p", 2, "q"), ("c", "q", 1, "q"), ("d", "r", 2, "r")]


def test_a_late_row_does_not_move_its_key(tmp_path: Path, table_type: str) -> None:
    with made(tmp_path, properties(), table_type=table_type) as table:
        table.upsert(batch(("a", "p", 10, 1), ("b", "p", 10, 1)))
        table.upsert(batch(("a", "q", 9, 2), ("b", "q", 10, 2)))
        assert stored(table) == [("a", "p", 1, "p"), ("b", "q", 2, "q")]


def test_without_order_the_newest_write_moves_it(tmp_path: Path, table_type: str) -> None:
    with made(tmp_path, properties(), ordering="", table_type=table_type) as table:
        table.upsert(batch(("a", "p", 10, 1)))
        table.upsert(batch(("a", "q", 9, 2)))
        assert stored(table) == [("a", "q", 2, "q")]


def test_a_key_moves_back_and_on(tmp_path: Path, table_type: str) -> None:
    with made(tmp_path, properties(), table_type=table_type) as table:
        for number, place in enumerate(("p", "q", "p", "r")):
            table.upsert(batch(("a", place, number, number), ("b", "p", number, number)))
        assert stored(table) == [("a", "r", 3, "r"), ("b", "p", 3, "p")]


def test_deletes_find_their_keys_in_any_partition(tmp_path: Path, table_type: str) -> None:
    with made(tmp_path, properties(), table_type=table_type) as table:
        table.upsert(batch(("a", "p", 1, 1), ("b", "p", 1, 1), ("c", "p", 5, 1), ("d", "p", 1, 1)))
        table.delete(batch(("a", "q", 0, 0)).select(["id", "p"]))
        table.upsert(batch(("b", "q", 2, 0), ("c", "q", 2, 0), deleted=True))  # c is late
        assert stored(table) == [("c", "p", 1, "p"), ("d", "p", 1, "p")]


def test_one_row_of_a_key_stays_in_a_batch_of_any_partitions(
    tmp_path: Path, table_type: str
) -> None:
    with made(tmp_path, properties(), table_type=table_type) as table:
        table.upsert(batch(("a", "p", 1, 1), ("a", "q", 3, 3), ("a", "r", 2, 2)))
        assert stored(table) == [("a", "q", 3, "q")]


def test_inserts_may_drop_keys_that_are_in_any_partition(tmp_path: Path, table_type: str) -> None:
    options = properties(**{"hoodie.datasource.insert.dup.policy": "drop"})
    with made(tmp_path, options, table_type=table_type) as table:
        table.insert(batch(("a", "p", 1, 1)))
        table.insert(batch(("a", "q", 2, 2), ("b", "q", 2, 2)))
        assert stored(table) == [("a", "p", 1, "p"), ("b", "q", 2, "q")]


def test_the_partition_index_keeps_a_key_in_each(tmp_path: Path, table_type: str) -> None:
    with made(tmp_path, {"hoodie.index.type": "BLOOM"}, table_type=table_type) as table:
        table.upsert(batch(("a", "p", 1, 1)))
        table.upsert(batch(("a", "q", 2, 2)))
        assert stored(table) == [("a", "p", 1, "p"), ("a", "q", 2, "q")]


# ---- two writers


class Meddled(LocalWorkload):
    """A workload that lets another writer commit before the files of the first attempt."""

    act: Callable[[], object] | None = None
    attempts = 0

    def rewrite(self, tasks: Any) -> Any:
        self.attempts += 1
        if self.act is not None:
            act, self.act = self.act, None
            act()
        return super().rewrite(tasks)


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        # both insert one key into different partitions
        (("k", "p", 1, 1), ("k", "q", 2, 2), ("k", "q", 2, "q")),
        (("k", "p", 2, 1), ("k", "q", 1, 2), ("k", "p", 1, "p")),
        # both move one key to different partitions
        (("a", "q", 2, 1), ("a", "r", 3, 2), ("a", "r", 2, "r")),
        (("a", "q", 3, 1), ("a", "r", 2, 2), ("a", "q", 1, "q")),
        # one updates it in its partition, the other moves it
        (("a", "p", 2, 1), ("a", "r", 1, 2), ("a", "p", 1, "p")),
        (("a", "q", 1, 1), ("a", "p", 2, 2), ("a", "p", 2, "p")),
    ],
)
def test_two_writers_never_leave_a_key_twice(
    tmp_path: Path,
    mine: tuple[str, str, int, int],
    theirs: tuple[str, str, int, int],
    expected: tuple[str, str, int, str],
    table_type: str,
) -> None:
    options = properties(**MANY)
    with (
        made(tmp_path, options, table_type=table_type) as table,
        hoodoo.open_table(tmp_path / "t", properties=options) as other,
    ):
        table.upsert(batch(("a", "p", 0, 0), ("x", "q", 0, 0)))
        workload = Meddled(table.context.ports, batch(mine))
        workload.act = lambda: other.upsert(batch(theirs))
        table._run(WriteOperation.UPSERT, workload)
        assert workload.attempts == 2
        found = [row for row in stored(table) if row[0] == mine[0]]
        assert found == [expected]


def test_a_rebase_is_not_enough_where_a_key_may_have_moved(table_type: str) -> None:
    """The other began earlier, so a rebase onto its file would lose the newer row."""
    table = new_table(table_type=TableType(table_type))
    everywhere = LookupRules(whole_table=True)
    upsert(table, [{"id": "a", "p": "p", "ts": 0, "v": 0}], lookup=everywhere)
    newer = [{"id": "a", "p": "p", "ts": 3, "v": 2}]
    finish = begun(opened(table), WriteOperation.UPSERT, newer, lookup=everywhere)
    upsert(table, [{"id": "a", "p": "q", "ts": 2, "v": 1}], finish, lookup=everywhere)
    assert rows_of(table, "id", "p", "ts", "v") == [("a", "p", 3, 2)]


def test_a_delete_follows_a_key_that_moves_at_the_same_time(table_type: str) -> None:
    table = new_table(table_type=TableType(table_type))
    everywhere = LookupRules(whole_table=True)
    rows = [{"id": key, "p": "p", "ts": 0, "v": 0} for key in ("a", "b")]
    upsert(table, rows, lookup=everywhere)
    moved = [{"id": "a", "p": "q", "ts": 3, "v": 2}]
    finish = begun(opened(table), WriteOperation.UPSERT, moved, lookup=everywhere)
    put(table, WriteOperation.DELETE, [{"id": "a", "p": "p"}], finish, lookup=everywhere)
    assert rows_of(table, "id", "p", "ts", "v") == [("b", "p", 0, 0)]
