"""A key that is only in a log file is found like any other, with reads only where needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filegroups.index import IndexedFile, LookupRules
from filegroups.index.buckets import FOLDER
from filegroups.keys.bucketing import BucketRules
from filegroups.reading.scan import view_of
from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload, WorkloadProfile
from filegroups.writing.write import write
from filegroups.writing.write_request import FileRules
from tests.unit.timeline.commit.test_other_engines import java_of
from tests.unit.timeline.engine import (
    Behind,
    Rows,
    new_table,
    opened,
    planned,
    put,
    rows_of,
    upsert,
)
from timeline.codecs.instant_avro import decode_commit, encode_commit
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import (
    LOG_COMPACT,
    CommitMetadata,
    FileGroupId,
    TableType,
    WriteOperation,
    WriteStat,
)
from timeline.model.file_names import instant_file_name, pending_file_names, timeline_path

UPSERT, INSERT, DELETE = WriteOperation.UPSERT, WriteOperation.INSERT, WriteOperation.DELETE

Change = Callable[[WriteStat], WriteStat]


def as_inserts(stat: WriteStat) -> WriteStat:
    return replace(stat, num_inserts=stat.num_writes, num_update_writes=0)


def as_updates(stat: WriteStat) -> WriteStat:
    return stat


class IntoLog(LocalWorkload):
    """A workload that puts every row into the log of one file group, as some indexes do."""

    into: FileGroupId

    def tag(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        found = super().tag(candidates)
        count = self._rows.num_rows
        self._found = pa.array(np.repeat(self.into.file_id, count), pa.string())
        return replace(found, inserts={}, updates={self.into: count})


def row(key: str, v: int, path: str = "x") -> dict[str, object]:
    return {"id": key, "p": path, "ts": v, "v": v}


def merge_on_read(*keys: str, **how: Any) -> TableReader:
    table = new_table(table_type=TableType.MERGE_ON_READ, **how)
    upsert(table, [row(key, 1) for key in keys])
    return table


def insert_into_log(
    table: TableReader,
    rows: Rows,
    change: Change = as_inserts,
    *,
    profile: bool = True,
    number: int = 0,
) -> str:
    """Insert rows into the log of a file group as another engine; return the requested time."""
    java = java_of(table)
    context = java.context
    workload = IntoLog(context.ports, pa.Table.from_pylist(rows))
    slices = sorted(
        view_of(context, context.snapshot()).latest_slices(), key=lambda one: one.base_instant_time
    )
    workload.into = slices[number].file_group
    time = write(context, planned(java, UPSERT), workload).requested_time
    _rewrite_metadata(table, time, lambda metadata: _changed(metadata, change))
    inflight = timeline_path(f"{time}.deltacommit.inflight")
    if not profile:
        _put(table, inflight, b"")
    return time


def _changed(metadata: CommitMetadata, change: Change) -> CommitMetadata:
    stats = {
        path: tuple(map(change, some)) for path, some in metadata.partition_to_write_stats.items()
    }
    extra = {key: text for key, text in metadata.extra_metadata.items() if "hoodoo" not in key}
    return replace(metadata, partition_to_write_stats=stats, extra_metadata=extra)


def _rewrite_metadata(
    table: TableReader, time: str, change: Callable[[CommitMetadata], CommitMetadata]
) -> None:
    instant = opened(table).context.active().find(time)
    assert instant is not None
    path = timeline_path(instant_file_name(instant))
    metadata = decode_commit(table.context.ports.storage.read(path), path=path)
    _put(table, path, encode_commit(change(metadata)))


def _put(table: TableReader, path: str, data: bytes) -> None:
    storage = table.context.ports.storage
    storage.delete(path)
    storage.create(path, data)


class Counting(Behind):
    """A storage that counts opened files."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.opens: list[str] = []

    def open_input(self, path: str) -> Any:
        self.opens.append(path)
        return self.inner.open_input(path)

    @property
    def logs(self) -> int:
        return sum(".log." in path for path in self.opens)


def logs_opened(table: TableReader, rows: Rows, **options: Any) -> int:
    """Return how many log files an upsert of a new table handle opens."""
    storage = Counting(table.context.ports.storage)
    upsert(opened(table, storage=storage), rows, **options)
    return storage.logs


def values(table: TableReader) -> dict[str, int]:
    found = rows_of(opened(table), "id", "v")
    assert max(Counter(key for key, _ in found).values(), default=1) == 1, found
    return dict(found)


LOOKUPS = {
    "simple": LookupRules(),
    "bloom": LookupRules(filters=True),
    "global simple": LookupRules(whole_table=True),
    "global bloom": LookupRules(whole_table=True, filters=True),
}


@pytest.mark.spec("LOGIN-1")
@pytest.mark.parametrize("stores_keys", [True, False], ids=["stored", "computed"])
@pytest.mark.parametrize("lookup", LOOKUPS.values(), ids=LOOKUPS)
def test_an_upsert_replaces_a_key_that_is_only_in_a_log(
    lookup: LookupRules, stores_keys: bool
) -> None:
    table = merge_on_read("a", stores_keys=stores_keys)
    insert_into_log(table, [row("b", 1)])
    upsert(opened(table), [row("a", 2), row("b", 2), row("c", 2)], lookup=lookup)
    assert values(table) == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("lookup", LOOKUPS.values(), ids=LOOKUPS)
def test_a_delete_removes_a_key_that_is_only_in_a_log(lookup: LookupRules) -> None:
    table = merge_on_read("a")
    insert_into_log(table, [row("b", 5)])
    result = put(opened(table), DELETE, [{"id": "b", "p": "x"}], lookup=lookup)
    assert (result.rows_deleted, values(table)) == (1, {"a": 1})


def test_a_row_marked_deleted_removes_a_key_that_is_only_in_a_log() -> None:
    table = merge_on_read("a")
    insert_into_log(table, [row("b", 5)])
    upsert(opened(table), [{**row("b", 6), "_hoodie_is_deleted": True}])
    assert values(table) == {"a": 1}


def test_a_late_row_loses_against_a_key_that_is_only_in_a_log() -> None:
    table = merge_on_read("a")
    insert_into_log(table, [row("b", 5)])
    upsert(opened(table), [row("b", 4)])
    assert values(table) == {"a": 1, "b": 5}


def test_an_insert_finds_a_key_that_is_only_in_a_log() -> None:
    table = merge_on_read("a")
    insert_into_log(table, [row("b", 5)])
    put(opened(table), INSERT, [row("b", 6), row("c", 6)], drop_found=True)
    assert values(table) == {"a": 1, "b": 5, "c": 6}
    plan = planned(table, INSERT, drop_found=True)
    refusing = replace(plan, rules=replace(plan.rules, drop_found=False, refuse_found=True))
    workload = LocalWorkload(table.context.ports, pa.Table.from_pylist([row("b", 7)]))
    with pytest.raises(InvalidInputError) as refused:
        write(opened(table).context, refusing, workload)
    assert refused.value.kind == "key_exists"


# ---------------------------------------------------------------- signs of keys in logs


def without_stats(stat: WriteStat) -> WriteStat:
    return replace(stat, path=f"{stat.path}0")


def _log_compacted(table: TableReader, time: str) -> None:
    _rewrite_metadata(table, time, lambda metadata: replace(metadata, operation_type=LOG_COMPACT))


def _damaged(table: TableReader, time: str) -> None:
    instant = opened(table).context.active().find(time)
    assert instant is not None
    _put(table, timeline_path(instant_file_name(instant)), b"torn")


def _without_inflight(table: TableReader, time: str) -> None:
    instant = opened(table).context.active().find(time)
    assert instant is not None
    for name in pending_file_names(instant.action, time):
        table.context.ports.storage.delete(timeline_path(name))


def _ring(table: TableReader, time: str) -> None:
    table.context.ports.storage.create(f"{FOLDER}/x/00000000000000.hashing_meta", b"{}")


AMBIGUOUS: dict[str, tuple[Change, bool, Callable[[TableReader, str], None] | None]] = {
    "inserts": (as_inserts, True, None),
    "counted as updates without an announced file group": (as_updates, False, None),
    "counted as updates without an announcement": (as_updates, True, _without_inflight),
    "no stat of the log": (without_stats, True, None),
    "logs of a log compaction only": (as_updates, True, _log_compacted),
    "consistent hashing": (as_updates, True, _ring),
}


@pytest.mark.spec("LOGIN-1")
@pytest.mark.parametrize("ambiguous", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_logs_are_searched_where_stats_do_not_rule_out_inserts(ambiguous: Any) -> None:
    change, profile, act = ambiguous
    table = merge_on_read("a")
    time = insert_into_log(table, [row("b", 1)], change, profile=profile)
    if act is not None:
        act(table, time)
    upsert(opened(table), [row("b", 2)])
    assert values(table) == {"a": 1, "b": 2}


def test_logs_are_searched_where_the_metadata_of_their_write_is_damaged() -> None:
    table = merge_on_read("a")
    time = insert_into_log(table, [row("b", 1)])
    upsert(table, [row("a", 2)])  # the schema is in the newest metadata
    _damaged(table, time)
    assert logs_opened(table, [row("z", 3)]) > 0
    upsert(opened(table), [row("b", 2)])
    assert values(table) == {"a": 2, "b": 2, "z": 3}


def test_logs_of_buckets_are_searched_for_any_stats() -> None:
    table = new_table(table_type=TableType.MERGE_ON_READ)
    buckets = BucketRules(buckets=1, hash_fields=("id",))
    upsert(table, [row("a", 1)], buckets=buckets)
    upsert(table, [row("b", 1)], buckets=buckets)
    upsert(opened(table), [row("b", 2)])
    assert values(table) == {"a": 1, "b": 2}


def test_own_logs_without_inserts_cost_no_lookup() -> None:
    table = merge_on_read("a", "b")
    for version in range(2, 6):
        upsert(table, [row("a", version)])
    put(table, DELETE, [{"id": "b", "p": "x"}])
    assert logs_opened(table, [row("a", 9), row("c", 9)]) == 0
    assert values(table) == {"a": 9, "c": 9}


def test_logs_of_another_engine_that_announced_updates_cost_no_lookup() -> None:
    table = merge_on_read("a")
    insert_into_log(table, [row("a", 2)], as_updates)
    assert logs_opened(table, [row("a", 9)]) == 0
    assert values(table) == {"a": 9}


def test_only_the_file_group_with_inserts_in_its_log_is_read_whole() -> None:
    table = merge_on_read("a")
    put(table, INSERT, [row("k", 1)], files=FileRules(small_files_max=0))
    upsert(table, [row("a", 2), row("k", 2)])
    insert_into_log(table, [row("b", 1)], number=1)
    storage = Counting(table.context.ports.storage)
    upsert(opened(table, storage=storage), [row("b", 2)])
    assert len({path.partition("_")[0] for path in storage.opens if ".log." in path}) == 1
    assert values(table) == {"a": 2, "b": 2, "k": 2}


# ---------------------------------------------------------------- the file group of a key


def test_a_key_that_a_log_deleted_is_inserted_again_into_its_base_file_group() -> None:
    table = merge_on_read("a")
    insert_into_log(table, [row("b", 1)])
    put(table, DELETE, [{"id": "a", "p": "x"}])
    upsert(opened(table), [row("a", 3)])
    assert values(table) == {"a": 3, "b": 1}
    assert (
        len(
            {
                one.file_group
                for one in view_of(table.context, opened(table).context.snapshot()).latest_slices()
            }
        )
        == 1
    )


def test_a_key_that_a_log_inserted_and_deleted_is_new() -> None:
    table = merge_on_read("a")
    insert_into_log(table, [row("b", 1)])
    put(opened(table), DELETE, [{"id": "b", "p": "x"}])
    result = upsert(opened(table), [row("b", 3)])
    assert (result.rows_inserted, values(table)) == (1, {"a": 1, "b": 3})


def test_a_key_deleted_in_one_file_group_is_found_in_the_log_of_another() -> None:
    table = merge_on_read("a")
    put(table, INSERT, [row("k", 1)], files=FileRules(small_files_max=0))
    put(table, DELETE, [{"id": "k", "p": "x"}])
    insert_into_log(table, [row("k", 4)], number=0)
    upsert(opened(table), [row("k", 5)])
    assert values(table) == {"a": 1, "k": 5}


KEYS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True)
STEPS = st.lists(st.tuples(st.sampled_from(["log", "upsert", "delete"]), KEYS), max_size=7)


@settings(max_examples=10, deadline=None)
@given(steps=STEPS, lookup=st.sampled_from(list(LOOKUPS.values())), lying=st.booleans())
def test_lookups_in_logs_duplicate_no_key_and_lose_none(
    steps: list[tuple[str, list[str]]], lookup: LookupRules, lying: bool
) -> None:
    table = merge_on_read("a", "z")
    expected = {"a": 1, "z": 1}
    for version, (what, keys) in enumerate(steps, 2):
        rows = [row(key, version) for key in keys]
        if what == "log":
            new = [one for one in rows if one["id"] not in expected]
            if not new:
                continue
            stats = as_updates if lying else as_inserts
            insert_into_log(table, new, stats, profile=not lying)
            expected |= {str(one["id"]): version for one in new}
        elif what == "upsert":
            upsert(opened(table), rows, lookup=lookup)
            expected |= dict.fromkeys(keys, version)
        else:
            put(opened(table), DELETE, [{"id": k, "p": "x"} for k in keys], lookup=lookup)
            expected = {key: value for key, value in expected.items() if key not in keys}
        assert values(table) == expected
