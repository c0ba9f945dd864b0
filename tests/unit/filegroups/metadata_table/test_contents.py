"""The records of commits, applied in sequence, describe the table after each of them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filegroups.files.bloom import BloomFilter
from filegroups.files.log_files import keys_of_log
from filegroups.files.slice_reader import read_slice
from filegroups.index import LookupRules
from filegroups.keys.bucketing import BucketRules
from filegroups.metadata_table.contents import (
    PartitionContents,
    changes_of,
    contents_of_clean,
    contents_of_commit,
)
from filegroups.metadata_table.file_group_contents import IndexedTable, file_group_contents
from filegroups.metadata_table.index_definitions import IndexDefinition
from filegroups.metadata_table.keys import IndexVersion, split_secondary_keys
from filegroups.reading.scan import plan_scan, read_schema, view_of
from filegroups.table import TableReader
from tableservices.clustering.execute import execute_clustering, schedule_clustering
from tableservices.clustering.settings import ClusteringSettings
from tableservices.compaction.execute import execute_compaction, schedule_compaction
from tableservices.compaction.plan import CompactionSettings
from tests.unit.timeline.engine import SMALL, new_table, put, rows_of
from timeline.codecs.instant_avro import decode_commit
from timeline.errors import CorruptTableError, InvariantError
from timeline.model.commit_metadata import CommitMetadata, FileGroupId, TableType, WriteOperation
from timeline.model.file_names import parse_instant_name
from timeline.model.file_slice import FileSlice
from timeline.model.instant_time import UTC_ZONE
from timeline.system import NullEvents, ThreadExecutor

ALL = (
    *("files", "column_stats", "partition_stats", "bloom_filters", "record_index"),
    "secondary_index_v",
)
SECONDARY = IndexDefinition(
    name="secondary_index_v",
    index_type="secondary_index",
    source_fields=("v",),
    version=IndexVersion.V2,
)
PER_PARTITION = IndexDefinition(
    name="record_index", index_type="record_index", options={"isPartitioned": "true"}
)
GLOBAL = LookupRules(whole_table=True)
EXECUTOR = ThreadExecutor(1)
State = Mapping[FileGroupId, FileSlice]


def indexed(table: TableReader, *, per_partition: bool = False) -> IndexedTable:
    context = table.context
    snapshot = context.snapshot()
    schema = read_schema(context, snapshot)
    slices = view_of(context, snapshot).latest_slices()
    read = plan_scan(context, snapshot, slices, columns=("_hoodie_record_key",)).read
    definitions = {"secondary_index_v": SECONDARY}
    if per_partition:
        definitions["record_index"] = PER_PARTITION
    return IndexedTable(
        partitions=ALL, definitions=definitions, read=read, avro_json=schema.avro_json
    )


def slices_of(table: TableReader) -> State:
    snapshot = table.context.snapshot()
    return {one.file_group: one for one in view_of(table.context, snapshot).latest_slices()}


def commits(table: TableReader) -> list[tuple[str, CommitMetadata]]:
    storage, folder = table.context.ports.storage, ".hoodie/timeline"
    parsed = [(parse_instant_name(each.name), each.name) for each in storage.list(folder)]
    done = sorted(
        (str(one.completion_time), one.requested_time, name)
        for one, name in parsed
        if one is not None and one.completed
    )
    return [(time, decode_commit(storage.read(f"{folder}/{name}"))) for _, time, name in done]


@dataclass
class Indexes:
    """A table's metadata table as plain values, to which records are applied."""

    per_partition: bool = False
    files: dict[tuple[str, str], int] = field(default_factory=dict)
    locations: dict[Any, tuple[str, str]] = field(default_factory=dict)
    pairs: set[str] = field(default_factory=set)
    measured: set[str] = field(default_factory=set)
    blooms: dict[str, str] = field(default_factory=dict)

    def apply(self, made: Mapping[str, PartitionContents]) -> None:
        for row in made["files"].records.to_pylist():
            place = (row["key"], row["name"])
            if row["is_deleted"]:
                self.files.pop(place, None)
            else:
                self.files[place] = row["size"]
        index = made["record_index"]
        for row in index.deletes.to_pylist():
            del self.locations[self.place(row)]
        for row in index.records.to_pylist():
            self.locations[self.place(row)] = (row["partition_path"], row["file_id"])
        secondary = made["secondary_index_v"]
        self.pairs -= set(secondary.deletes.column("key").to_pylist())
        self.pairs |= set(secondary.records.column("key").to_pylist())
        for row in made["column_stats"].records.to_pylist():
            change = self.measured.discard if row["is_deleted"] else self.measured.add
            change(row["file_name"])
        for row in made["bloom_filters"].records.to_pylist():
            self.blooms[row["key"]] = "" if row["is_deleted"] else row["bloom_filter"].decode()

    def place(self, row: dict[str, Any]) -> Any:
        return (row["partition_path"], row["key"]) if self.per_partition else row["key"]


def truth(table: TableReader, *, per_partition: bool) -> tuple[dict[Any, Any], set[Any]]:
    """Return the location of each key, and the pairs of value and key, as reads show them."""
    spec = indexed(table)
    columns = ("id", "p", "v")
    read = replace(spec.read, columns=columns)
    locations: dict[Any, tuple[str, str]] = {}
    for group, one in slices_of(table).items():
        for batch in read_slice(table.context.ports.storage, NullEvents(), one, read):
            for row in batch.to_pylist():
                key = (group.partition_path, row["id"]) if per_partition else row["id"]
                assert row["p"] == group.partition_path
                locations[key] = (group.partition_path, group.file_id)
    rows = table.current_state().to_arrow(columns=["id", "v"]).to_pylist()
    pairs = {(None if row["v"] is None else str(row["v"]), row["id"]) for row in rows}
    return locations, pairs


class Watched:
    """A table whose commits update the indexes."""

    def __init__(self, table: TableReader, *, per_partition: bool = False) -> None:
        self.table = table
        self.indexes = Indexes(per_partition=per_partition)
        self.before: State = {}
        self.seen = 0

    def follow(self) -> None:
        assert len(commits(self.table)) <= self.seen + 1
        storage = self.table.context.ports.storage
        for time, commit in commits(self.table)[self.seen :]:
            spec = indexed(self.table, per_partition=self.indexes.per_partition)
            common: dict[str, Any] = {"zone": UTC_ZONE}
            made = contents_of_commit(
                storage, EXECUTOR, spec, commit, self.before, requested_time=time, **common
            )
            self.indexes.apply(made)
            self.seen += 1
        self.before = slices_of(self.table)
        self.check()

    def keys_in_logs(self) -> set[str]:
        """Return the keys of the records in all log files of the newest slices."""
        storage, read = self.table.context.ports.storage, indexed(self.table).read
        logs = [log for one in self.before.values() for log in one.log_files]
        found = (keys_of_log(storage, log, read.file_schema, read.keys) for log in logs)
        return {key for keys in found for key in keys.to_pylist()}

    def check(self) -> None:
        per_partition = self.indexes.per_partition
        locations, pairs = truth(self.table, per_partition=per_partition)
        extra = self.indexes.locations.keys() - locations.keys()
        assert {place: self.indexes.locations[place] for place in locations} == locations
        # An older delete may hide a record of a log until a compaction forgets the delete.
        in_logs = self.keys_in_logs()
        assert {place[-1] if per_partition else place for place in extra} <= in_logs
        if not per_partition:
            values, keys = split_secondary_keys(
                pa.array(sorted(self.indexes.pairs), pa.string()), path=""
            )
            found = set(zip(values.to_pylist(), keys.to_pylist(), strict=True))
            assert found >= pairs
            assert {key for _, key in found - pairs} <= in_logs
        for group, one in self.before.items():
            folder = group.partition_path or "."
            assert ("__all_partitions__", folder) in self.indexes.files
            files = [*one.log_files, *([one.base_file] if one.base_file else [])]
            for file in files:
                assert file.name in self.indexes.measured
                assert self.indexes.files[folder, file.name] > 0


OPERATIONS = st.sampled_from(
    ["upsert", "upsert", "upsert", "delete", "overwrite", "drop", "compact", "cluster"]
)
BATCHES = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.sampled_from("xy"),
        st.integers(1, 3),
        st.none() | st.integers(0, 3),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda row: row[0],
)
STEPS = st.tuples(BATCHES, st.lists(st.tuples(OPERATIONS, BATCHES), min_size=1, max_size=5)).map(
    lambda drawn: [("upsert", drawn[0]), *drawn[1]]
)


def step(watched: Watched, operation: str, batch: Any, **options: Any) -> None:
    table = watched.table
    rows = [dict(zip(("id", "p", "ts", "v"), row, strict=True)) for row in batch]
    named = pa.Table.from_pylist(
        rows, pa.schema([("id", "string"), ("p", "string"), ("ts", "int64"), ("v", "int64")])
    )
    if operation == "upsert":
        put(table, WriteOperation.UPSERT, named, **options)
    elif operation == "delete":
        put(table, WriteOperation.DELETE, named, **options)
    elif operation == "overwrite":
        # Keys stay unique in the table: keys of other partitions are left out.
        held = dict(rows_of(table, "id", "p"))
        mine = [row for row in named.to_pylist() if held.get(row["id"], row["p"]) == row["p"]]
        if mine:
            put(table, WriteOperation.INSERT_OVERWRITE, pa.Table.from_pylist(mine, named.schema))
    elif operation == "drop":
        put(table, WriteOperation.DELETE_PARTITION, [], delete_partitions=("x",))
    elif operation == "compact" and table.config.table_type is TableType.MERGE_ON_READ:
        planned = schedule_compaction(table.context, CompactionSettings(), SMALL)
        if planned is not None:
            execute_compaction(table.context, planned, SMALL)
    elif operation == "cluster" and "buckets" not in options:
        sorting = ClusteringSettings(sort_columns=("v",))
        planned = schedule_clustering(table.context, sorting)
        if planned is not None:
            execute_clustering(table.context, planned, sorting, SMALL)
    watched.follow()


@settings(max_examples=10)
@given(
    steps=STEPS,
    kind=st.sampled_from(list(TableType)),
    stores_keys=st.booleans(),
    ordered=st.booleans(),
)
def test_a_record_index_and_a_secondary_index_follow_every_operation(
    steps: list[Any], kind: TableType, stores_keys: bool, ordered: bool
) -> None:
    table = new_table(table_type=kind, stores_keys=stores_keys, ordering=("ts",) if ordered else ())
    watched = Watched(table)
    for operation, batch in steps:
        step(watched, operation, batch, lookup=GLOBAL)


@settings(max_examples=6)
@given(steps=STEPS, kind=st.sampled_from(list(TableType)))
def test_a_record_index_per_partition_has_keys_of_each_partition(
    steps: list[Any], kind: TableType
) -> None:
    table = new_table(table_type=kind)
    watched = Watched(table, per_partition=True)
    for operation, batch in steps:
        step(watched, operation, batch)


@settings(max_examples=6)
@given(steps=STEPS)
def test_indexes_follow_inserts_into_log_files(steps: list[Any]) -> None:
    table = new_table(table_type=TableType.MERGE_ON_READ, partitions=())
    buckets = BucketRules(buckets=2, hash_fields=("id",))
    watched = Watched(table)
    for operation, batch in steps:
        if operation in ("upsert", "delete", "compact"):
            rows = [(key, "", ts, v) for key, _, ts, v in batch]
            step(watched, operation, rows, buckets=buckets)


# ---- Single rules

INSERT, UPSERT = WriteOperation.INSERT, WriteOperation.UPSERT


def row(key: str, part: str, v: int | None = 1) -> dict[str, Any]:
    return {"id": key, "p": part, "ts": 1, "v": v}


def made_by_last(table: TableReader, before: State, **changes: Any) -> dict[str, PartitionContents]:
    time, commit = commits(table)[-1]
    spec = replace(indexed(table), **changes)
    storage = table.context.ports.storage
    return contents_of_commit(
        storage, EXECUTOR, spec, commit, before, requested_time=time, zone=UTC_ZONE
    )


def test_a_record_that_moves_to_another_partition_keeps_its_record() -> None:
    table = new_table()
    put(table, INSERT, [row("a", "x"), row("b", "x")])
    before = slices_of(table)
    put(table, UPSERT, [row("a", "y")], lookup=GLOBAL)
    index = made_by_last(table, before)["record_index"]
    assert index.deletes.num_rows == 0
    assert [(each["key"], each["partition_path"]) for each in index.records.to_pylist()] == [
        ("a", "y")
    ]


def test_updates_in_place_write_nothing_to_the_record_index() -> None:
    for kind in TableType:
        table = new_table(table_type=kind)
        put(table, INSERT, [row("a", "x"), row("b", "x")])
        before = slices_of(table)
        put(table, UPSERT, [row("a", "x", 7)])
        made = made_by_last(table, before)
        assert made["record_index"].is_empty
        assert made["secondary_index_v"].records.column("key").to_pylist() == ["7$a"]
        assert made["secondary_index_v"].deletes.column("key").to_pylist() == ["1$a"]
        (row_of_v,) = (
            each
            for each in made["partition_stats"].records.to_pylist()
            if each["column_name"] == "v"
        )
        assert row_of_v["max"]["LongWrapper"] == 7


def test_a_base_file_without_bloom_filter_gets_one_of_its_keys() -> None:
    table = new_table()
    put(table, INSERT, [row("a", "x")], files=replace(SMALL, bloom=None))
    (made,) = made_by_last(table, {})["bloom_filters"].records.to_pylist()
    found = BloomFilter.load(made["bloom_filter"].decode(), made["type"])
    assert found.may_contain(pa.array(["a", "b"])).tolist() == [True, False]


def test_a_base_file_without_an_indexed_column_widens_the_partition() -> None:
    table = new_table()
    put(table, INSERT, [row("a", "x")])
    spec = indexed(table)
    wider = pa.schema([*spec.read.file_schema, pa.field("n", pa.int32())])
    column_stats = IndexDefinition(
        name="column_stats",
        index_type="column_stats",
        source_fields=("v", "n"),
        version=IndexVersion.V2,
    )
    made = made_by_last(
        table,
        {},
        partitions=("column_stats", "partition_stats"),
        definitions={"column_stats": column_stats},
        read=replace(spec.read, file_schema=wider),
    )
    assert made["column_stats"].records.column("column_name").to_pylist() == ["v"]
    _, row_of_n = made["partition_stats"].records.to_pylist()
    assert row_of_n["min"]["IntWrapper"] == -(2**31)
    assert 0 < row_of_n["null_count"] < row_of_n["value_count"]


def test_a_base_file_without_row_groups_says_nothing_about_its_partition() -> None:
    # Such a file of Java's compaction made the bounds of its partition the widest of all.
    table = new_table()
    put(table, INSERT, [row("a", "x")])
    storage = table.context.ports.storage
    (path,) = commits(table)[-1][1].written_paths()
    empty = io.BytesIO()
    pq.ParquetWriter(empty, pq.read_schema(io.BytesIO(storage.read(path)))).close()
    storage.write(path, empty.getvalue())
    made = made_by_last(table, {}, partitions=("column_stats", "partition_stats"))
    assert made["column_stats"].is_empty
    assert made["partition_stats"].is_empty


def test_a_log_of_deletes_says_nothing_about_its_partition() -> None:
    table = new_table(table_type=TableType.MERGE_ON_READ)
    put(table, INSERT, [row("a", "x"), row("b", "x")])
    before = slices_of(table)
    put(table, WriteOperation.DELETE, [row("a", "x")])
    made = made_by_last(table, before)
    assert made["partition_stats"].is_empty
    assert set(made["column_stats"].records.column("value_type").to_pylist()) == {1}
    assert made["record_index"].deletes.column("key").to_pylist() == ["a"]
    assert made["secondary_index_v"].deletes.column("key").to_pylist() == ["1$a"]


def test_a_changed_file_group_without_its_slice_is_an_error() -> None:
    table = new_table()
    put(table, INSERT, [row("a", "x")])
    put(table, UPSERT, [row("a", "x", 7)])
    with pytest.raises(InvariantError):
        made_by_last(table, {})
    logs = new_table(table_type=TableType.MERGE_ON_READ)
    put(logs, INSERT, [row("a", "x")])
    put(logs, UPSERT, [row("a", "x", 7)])
    with pytest.raises(InvariantError):
        made_by_last(logs, {})
    assert set(made_by_last(table, {}, partitions=("files",))) == {"files"}
    put(table, WriteOperation.DELETE_PARTITION, [], delete_partitions=("x",))
    with pytest.raises(InvariantError):
        made_by_last(table, {})


def test_a_secondary_index_without_definition_is_an_error() -> None:
    table = new_table()
    put(table, INSERT, [row("a", "x")])
    with pytest.raises(CorruptTableError) as caught:
        made_by_last(table, {}, definitions={})
    assert caught.value.kind == "bad_index_definitions"


def test_a_clean_deletes_files_statistics_and_bloom_filters() -> None:
    table = new_table()
    put(table, INSERT, [row("a", "x")])
    base, log = "f-0_1-0-0_20260101000000000.parquet", ".f-0_20260101000000000.log.1_1-0-0"
    made = contents_of_clean(
        indexed(table),
        {"x": [log, base, log + ".cdc"], "y": [base]},
        requested_time="20260102000000000",
    )
    files = made["files"]
    assert [(each["key"], each["name"]) for each in files.records.to_pylist()] == [
        ("x", log),
        ("x", log + ".cdc"),
        ("x", base),
        ("y", base),
    ]
    assert pc.all(files.records.column("is_deleted")).as_py()
    assert files.deletes.num_rows == 0
    stats = made["column_stats"].records
    assert set(stats.column("file_name").to_pylist()) == {base, log}
    assert pc.all(stats.column("is_deleted")).as_py()
    assert made["bloom_filters"].records.column("is_deleted").to_pylist() == [True, True]
    assert set(made) == {"files", "column_stats", "bloom_filters"}


def test_the_work_of_a_file_group_can_be_sent_to_another_process() -> None:
    table = new_table(table_type=TableType.MERGE_ON_READ)
    put(table, INSERT, [row("a", "x"), row("b", "x")])
    before = slices_of(table)
    put(table, UPSERT, [row("a", "x", 7)])
    time, commit = commits(table)[-1]
    spec = indexed(table)
    for change in changes_of(spec, commit, before):
        sent = pickle.loads(pickle.dumps((spec, change)))
        found = file_group_contents(table.context.ports.storage, sent[0], time, sent[1])
        (gained, _) = pickle.loads(pickle.dumps(found)).pairs["secondary_index_v"]
        assert gained.to_pylist() == ["7$a"]
