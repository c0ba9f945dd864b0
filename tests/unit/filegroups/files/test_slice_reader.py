"""A file slice returns the rows that Java Hudi returns: base file and logs merged (fmt 5, 6, 7)."""

from __future__ import annotations

import datetime as dt
import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from filegroups.files.avro_columns import encode_records
from filegroups.files.delete_block import encode_deletes
from filegroups.files.log_files import VisibleInstants
from filegroups.files.parquet import write_base_file
from filegroups.files.slice_reader import SliceRead, read_slice, split_by_logs
from filegroups.keys.keys import VirtualKeys
from filegroups.merge.rules import MergeRules
from filegroups.schema.column_ids import IdentifiedColumn, InternalSchema, SchemaHistory
from filegroups.schema.schema import (
    TableSchema,
    avro_with_meta,
    with_meta,
)
from tests.unit.filegroups.files.test_hfile import made
from tests.unit.timeline.engine import Heard
from tests.unit.timeline.memory import MemoryStorage
from timeline.codecs.log_blocks import BlockType, HeaderKey, encode_block
from timeline.errors import CorruptTableError, MissingFileError
from timeline.model.commit_metadata import FileGroupId, MergeMode
from timeline.model.file_names import parse_log_file_name
from timeline.model.file_slice import BaseFile, FileSlice, LogFile
from timeline.model.merge_definition import MergeDefinition, PartialUpdateMode

OWN = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("v", pa.string()), ("w", pa.int32())])
SCHEMA = TableSchema.from_arrow(OWN, "t")
GROUP = FileGroupId("", "g-0")
KEY = "_hoodie_record_key"
EVENT = MergeRules(
    definition=MergeDefinition(mode=MergeMode.EVENT_TIME_ORDERING, ordering_fields=("ts",))
)
Row = tuple[str, int, str]


def time(number: int) -> str:
    return f"202601010000000{number:02}"


def rows(*found: Row, at: int, schema: pa.Schema = OWN, meta: bool = True) -> pa.Table:
    """Return rows (id, ts, v) of one writer; ``w`` is the length of ``v``."""
    ids = [row[0] for row in found]
    columns: dict[str, Sequence[object]] = {
        "_hoodie_commit_time": [time(at) if meta else None for _ in found],
        "_hoodie_commit_seqno": [f"{time(at)}_0_{n}" if meta else None for n in range(len(ids))],
        KEY: ids if meta else [None for _ in ids],
        "_hoodie_partition_path": ["" if meta else None for _ in ids],
        "_hoodie_file_name": ["g-0" if meta else None for _ in ids],
        "id": ids,
        "ts": [row[1] for row in found],
        "v": [row[2] for row in found],
        "w": [len(row[2]) for row in found],
    }
    whole = with_meta(schema)
    return pa.table({name: columns[name] for name in whole.names}, schema=whole)


class Group:
    """A file group whose files a test writes one by one."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.events = Heard()
        self.base: BaseFile | None = None
        self.logs: list[LogFile] = []

    def with_base(self, *found: Row, at: int = 1, meta: bool = True) -> Group:
        name = f"g-0_0-0-0_{time(at)}.parquet"
        table = rows(*found, at=at, meta=meta)
        size = write_base_file(self.storage, name, table, avro_json=SCHEMA.avro_json)
        self.base = BaseFile(file_group=GROUP, name=name, requested_time=time(at), size_bytes=size)
        return self

    def log(self, at: int, *blocks: bytes, version: int = 1) -> Group:
        name = f".g-0_{time(at)}.log.{version}_0-0-0"
        data = b"".join(blocks)
        self.storage.create(name, data)
        parsed = parse_log_file_name(name)
        assert parsed is not None
        self.logs.append(
            LogFile(
                file_group=GROUP,
                name=name,
                instant_time=parsed.instant_time,
                log_version=version,
                write_token="0-0-0",
                size_bytes=len(data),
            )
        )
        return self

    def read(self, *columns: str, hidden: Sequence[int] = (), **how: object) -> list[tuple]:
        times = {time(number) for number in range(20)} - {time(number) for number in hidden}
        read = SliceRead(
            **{
                "file_schema": with_meta(OWN),
                "columns": columns or ("id", "ts", "v"),
                "rules": EVENT,
                "visible": VisibleInstants(times=frozenset(times)),
                **how,
            }
        )
        read = pickle.loads(pickle.dumps(read))  # as Spark sends it to its executors
        one = FileSlice(
            file_group=GROUP,
            base_instant_time=time(0),
            base_file=self.base,
            log_files=tuple(sorted(self.logs, key=lambda log: log.order)),
        )
        found = self.tuples(one, read)
        if read.filter is None and read.base_filter is None:
            assert self.split(one, read) == sorted(found, key=repr), "another reader reads the base"
        return found

    def tuples(self, one: FileSlice, read: SliceRead) -> list[tuple]:
        batches = list(read_slice(self.storage, Heard(), one, read))
        table = pa.Table.from_batches(batches, schema=read.output_schema)
        return [tuple(row.values()) for row in table.to_pylist()]

    def split(self, one: FileSlice, read: SliceRead) -> list[tuple]:
        """Return the rows of the base file that no log hides, and those of the logs, sorted."""
        hidden, changed = split_by_logs(self.storage, self.events, one, read)
        key_only = replace(read, columns=(KEY,))
        assert split_by_logs(self.storage, Heard(), one, key_only)[0].tolist() == hidden.tolist()
        assert changed.schema == read.output_schema
        base = self.tuples(replace(one, log_files=()), read)
        shown = [row for number, row in enumerate(base) if number not in hidden]
        return sorted([*shown, *(tuple(row.values()) for row in changed.to_pylist())], key=repr)


def header(at: int, schema: str | None = None, **more: str) -> Mapping[int, str]:
    entries = {
        HeaderKey.INSTANT_TIME: time(at),
        HeaderKey.SCHEMA: schema or avro_with_meta(SCHEMA.avro_json),
    }
    return entries | {HeaderKey[name.upper()]: text for name, text in more.items()}


def avro(at: int, *found: Row, **more: str) -> bytes:
    head = header(at, **more)
    content = encode_records(rows(*found, at=at), head[HeaderKey.SCHEMA])
    return encode_block(BlockType.AVRO_DATA, head, content)


def parquet(at: int, *found: Row, **more: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows(*found, at=at), sink, store_schema=False)
    return encode_block(BlockType.PARQUET_DATA, header(at, **more), sink.getvalue())


def deletes(at: int, *keys: str, ts: int | None = None) -> bytes:
    orderings = () if ts is None else (pa.array([ts for _ in keys], pa.int64()),)
    content = encode_deletes(pa.array(keys), "", orderings)
    return encode_block(BlockType.DELETE, header(at), content)


def rollback(at: int, target: int) -> bytes:
    head = header(at, target_instant_time=time(target), command_block_type="0")
    return encode_block(BlockType.COMMAND, head, b"")


def partial(at: int, key: str, **named: object) -> bytes:
    """Return a block with the meta columns and the named ones, without the key column."""
    schema = pa.schema([each for each in OWN if each.name in named])
    text = avro_with_meta(TableSchema.from_arrow(schema, "t").avro_json)
    whole = rows((key, 0, ""), at=at)
    table = pa.table(
        {
            n: pa.array([named[n]], OWN.field(n).type) if n in named else whole[n]
            for n in with_meta(schema).names
        },
        schema=with_meta(schema),
    )
    head = header(at, schema=text, is_partial="true")
    return encode_block(BlockType.AVRO_DATA, head, encode_records(table, text))


BASE = (("a", 10, "base"), ("b", 10, "base"), ("c", 10, "base"))


@pytest.mark.parametrize("block", [avro, parquet])
def test_logs_update_insert_and_delete(block):
    group = Group().with_base(*BASE)
    group.log(2, block(2, ("a", 20, "new"), ("d", 1, "new")), deletes(2, "b", ts=10))
    assert group.read() == [("a", 20, "new"), ("c", 10, "base"), ("d", 1, "new")]


def test_late_rows_and_late_deletes_change_nothing():
    group = Group().with_base(*BASE).log(2, avro(2, ("a", 9, "late")), deletes(2, "b", ts=9))
    assert group.read() == list(BASE)


@pytest.mark.parametrize(
    ("of_base", "second"),
    [(1, (20, "new")), (9, (10, "twice")), (None, (10, "twice"))],
    ids=["of this base", "of another", "without"],
)
def test_logs_with_positions_change_every_copy_of_a_key(of_base, second):
    """Java 1.2 merges by position here. Without positions it merges by key, once for each key."""
    named = {}
    if of_base is not None:
        named["base_file_instant_time_of_record_positions"] = time(of_base)
    group = Group().with_base(*BASE[:2], ("a", 10, "twice"))
    group.log(2, avro(2, ("a", 20, "new"), **named))
    assert group.read() == [("a", 20, "new"), BASE[1], ("a", *second)]


def test_logs_alone_are_a_slice():
    group = Group().log(2, avro(2, ("a", 1, "x"))).log(3, avro(3, ("a", 1, "tie"), ("b", 1, "y")))
    assert group.read() == [("a", 1, "tie"), ("b", 1, "y")]


def test_equal_ordering_values_are_decided_by_requested_time():
    # The file with the greater requested time is listed first, and is still the newer one.
    group = Group().log(3, avro(3, ("a", 1, "fast"))).log(2, avro(2, ("a", 1, "slow")))
    assert group.read() == [("a", 1, "fast")]


def test_meta_columns_are_those_of_the_surviving_row():
    group = Group().with_base(*BASE[:2]).log(2, avro(2, ("a", 20, "new")))
    assert group.read("_hoodie_commit_time", KEY, "id") == [
        (time(2), "a", "a"),
        (time(1), "b", "b"),
    ]


def test_blocks_of_invisible_instants_are_ignored():
    group = Group().with_base(*BASE[:1]).log(2, avro(2, ("a", 20, "new")))
    assert group.read(hidden=[2]) == [BASE[0]]


def test_a_rollback_block_removes_its_target_block():
    group = Group().with_base(*BASE[:1])
    group.log(2, avro(2, ("a", 20, "x"))).log(3, rollback(3, 2)).log(4, avro(4, ("b", 1, "y")))
    assert group.read() == [BASE[0], ("b", 1, "y")]


def test_a_log_compaction_replaces_the_blocks_it_compacted():
    group = Group().log(2, avro(2, ("a", 1, "x"))).log(3, avro(3, ("a", 1, "y")))
    group.log(4, avro(4, ("a", 1, "tie of a later writer")))
    times = f"{time(3)},{time(2)}"
    group.log(5, avro(5, ("a", 1, "y"), compacted_block_times=times))
    assert group.read() == [("a", 1, "tie of a later writer")]
    assert group.read(hidden=[4]) == [("a", 1, "y")]


TORN = avro(2, ("b", 1, "torn"))[:-3]


@pytest.mark.parametrize("parts", [(), (TORN,), (avro(2, ("a", 1, "x")), TORN)])
def test_a_torn_log_of_a_committed_write_is_damaged(parts: tuple[bytes, ...]):
    """F21: its rows would be lost, and a compaction would delete them for ever."""
    group = Group().with_base(*BASE).log(2, *parts).log(3, avro(3, ("c", 99, "z")))
    with pytest.raises(CorruptTableError, match="restore it from a backup") as caught:
        group.read()
    assert caught.value.kind == "log_torn"
    assert caught.value.fields["path"] == group.logs[0].path
    assert ("c", 99, "z") in group.read(hidden=[2])  # a failed write that never committed


def test_a_torn_log_that_no_visible_instant_needs_is_ignored():
    group = Group().log(2, TORN).log(3, avro(3, ("a", 1, "x"), compacted_block_times=time(2)))
    assert group.read() == [("a", 1, "x")]
    group = Group().with_base(*BASE[:1]).log(2, TORN).log(3, rollback(3, 2))
    assert group.read() == [BASE[0]]


def test_a_torn_block_in_a_log_of_version_6_is_reported_and_skipped():
    """The log is named after its base file, and several instants append to it."""
    group = Group().log(2, avro(3, ("a", 1, "x")), TORN)
    assert group.read() == [("a", 1, "x")]
    (event,) = group.events.named("log.corrupt")
    assert event["path"] == group.logs[0].path
    assert event["bytes"] > 0


def test_a_log_without_visible_blocks_leaves_the_base_file_unchanged():
    group = Group().with_base(*BASE).log(2, avro(2, ("a", 20, "x")))
    condition = pc.field("v") == "base"
    assert group.read("id", hidden=[2], filter=condition) == [("a",), ("b",), ("c",)]


def test_a_filter_is_applied_to_merged_rows_only():
    group = Group().with_base(*BASE)
    group.log(2, avro(2, ("a", 20, "hit")), avro(2, ("b", 5, "hit")), deletes(2, "c"))
    # a has its new value; b's late row does not count; c is deleted.
    assert group.read("id", filter=pc.field("v") == "hit") == [("a",)]
    assert group.read("id", filter=pc.field("v") == "base") == [("b",)]
    assert group.read("id", filter=pc.field("w") > 3) == [("b",)]


@pytest.mark.parametrize("block", [avro, parquet])
def test_columns_have_the_requested_order(block):
    group = Group().with_base(*BASE[:1]).log(2, block(2, ("a", 9, "late"), ("b", 1, "yy")))
    assert group.read("w", "id") == [(4, "a"), (2, "b")]
    assert group.read("v") == [("base",), ("yy",)]


def test_rows_of_the_base_that_do_not_count_are_no_older_version():
    group = Group().with_base(*BASE[:2]).log(2, avro(2, ("a", 5, "late")))
    of_range = pc.field("_hoodie_commit_time").isin([time(2)])
    assert group.read(filter=of_range, base_filter=of_range) == [("a", 5, "late")]


def test_partial_updates_keep_the_other_columns():
    group = Group().with_base(*BASE[:2])
    group.log(2, partial(2, "a", ts=11, v="new")).log(3, partial(3, "a", ts=12, w=7))
    group.log(4, partial(4, "b", ts=9, v="late"))
    assert group.read("id", "ts", "v", "w") == [("a", 12, "new", 7), ("b", 10, "base", 4)]
    assert group.read("v", "w", "_hoodie_commit_time") == [
        ("new", 7, time(3)),
        ("base", 4, time(1)),
    ]


def test_columns_that_a_block_lacks_are_null_or_kept_by_the_rules_of_the_table():
    short = pa.schema([each for each in OWN if each.name != "w"])
    text = avro_with_meta(TableSchema.from_arrow(short, "t").avro_json)
    content = encode_records(rows(("a", 11, "new"), at=2, schema=short), text)
    block = encode_block(BlockType.AVRO_DATA, header(2, schema=text), content)
    group = Group().with_base(*BASE[:1]).log(2, block)
    assert group.read("id", "v", "w") == [("a", "new", None)]
    definition = replace(EVENT.definition, partial_update_mode=PartialUpdateMode.KEEP_VALUES)
    keeping = MergeRules(definition=definition)
    assert group.read("id", "v", "w", rules=keeping) == [("a", "new", 4)]


def test_keys_that_are_not_stored_are_computed():
    def virtual(at: int, *found: Row) -> bytes:
        table = rows(*found, at=at, meta=False)
        content = encode_records(table, header(at)[HeaderKey.SCHEMA])
        return encode_block(BlockType.AVRO_DATA, header(at), content)

    group = Group().with_base(*BASE, meta=False)
    group.log(2, virtual(2, ("a", 20, "new"), ("d", 1, "new")), deletes(2, "id:b"))
    keys = VirtualKeys(("id",), prefixed=True)
    assert group.read(KEY, "v", keys=keys) == [(None, "new"), (None, "base"), (None, "new")]
    with pytest.raises(CorruptTableError) as caught:
        group.read()
    assert caught.value.kind == "bad_log_block"


def test_columns_are_found_by_their_numbers_where_they_have_some():
    older = pa.schema([each.with_name("u") if each.name == "v" else each for each in OWN])
    text = avro_with_meta(TableSchema.from_arrow(older, "t").avro_json)
    table = rows(("a", 20, "x"), at=2).rename_columns(with_meta(older).names)
    block = encode_block(BlockType.AVRO_DATA, header(2, schema=text), encode_records(table, text))
    names = {"id": 1, "ts": 2, "w": 4}

    def version(number: int, third: str) -> InternalSchema:
        columns = [IdentifiedColumn(n, name) for name, n in {**names, third: 3}.items()]
        return InternalSchema(number, tuple(columns))

    now = version(int(time(3)), "v")
    history = SchemaHistory(now, (version(0, "u"), now))
    group = Group().log(2, block).log(4, avro(4, ("b", 1, "y")))
    assert group.read(history=history) == [("a", 20, "x"), ("b", 1, "y")]
    assert group.read() == [("a", 20, None), ("b", 1, "y")]


def test_rows_marked_deleted_are_removed():
    # In Java an int of 0 means no ordering value (fmt 5.5), also in such a row.
    own = pa.schema([("id", pa.string()), ("ts", pa.int32()), ("_hoodie_is_deleted", pa.bool_())])
    schema = TableSchema.from_arrow(own, "t")

    def block(at: int, *found: tuple[str, int, bool | None]) -> bytes:
        meta = {name: [row[0] for row in found] for name in with_meta(own).names[:5]}
        keys, orders, flags = zip(*found, strict=True)
        table = pa.table(
            {**meta, "id": keys, "ts": pa.array(orders, pa.int32()), "_hoodie_is_deleted": flags},
            schema=with_meta(own),
        )
        text = avro_with_meta(schema.avro_json)
        return encode_block(
            BlockType.AVRO_DATA, header(at, schema=text), encode_records(table, text)
        )

    group = Group().log(2, block(2, ("a", 5, None), ("b", 5, False), ("c", 5, None)))
    group.log(3, block(3, ("a", 5, True), ("b", 4, True), ("c", 0, True)))
    assert group.read("id", "ts", file_schema=with_meta(own)) == [("b", 5)]
    group.log(4, block(4, ("a", 4, None), ("c", 1, None)))
    assert group.read("id", "ts", file_schema=with_meta(own)) == [("b", 5), ("c", 1)]


def test_a_delete_with_another_wrapper_is_compared_as_a_number():
    content = encode_deletes(pa.array(["a", "b"]), "", (pa.array([9, 11], pa.int32()),))
    group = Group().with_base(*BASE[:2]).log(2, encode_block(BlockType.DELETE, header(2), content))
    assert group.read() == [BASE[0]]


def test_a_delete_that_cannot_be_compared_is_an_error():
    content = encode_deletes(pa.array(["a"]), "", (pa.array(["text"]),))
    group = Group().with_base(*BASE[:1]).log(2, encode_block(BlockType.DELETE, header(2), content))
    with pytest.raises(CorruptTableError) as caught:
        group.read()
    assert caught.value.kind == "delete_ordering"


def test_blocks_of_hfiles_have_their_keys_outside_of_the_records():
    table = rows(("a", 20, "new"), ("d", 1, "new"), at=2)
    inside = table.set_column(2, KEY, pa.array(["", ""]))
    content = encode_records(inside, header(2)[HeaderKey.SCHEMA])
    values, at = [], 8
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        values.append(content[at + 4 : at + 4 + length])
        at += 4 + length
    file = made([[(b"a", values[0])], [(b"d", values[1])]])
    block = encode_block(BlockType.HFILE_DATA, header(2), file)
    group = Group().with_base(*BASE[:2]).log(2, block, deletes(2, "b"))
    assert group.read(KEY, "id", "v") == [("a", "a", "new"), ("d", "d", "new")]
    assert group.read("v") == [("new",), ("new",)]
    damaged = Group().log(2, encode_block(BlockType.HFILE_DATA, header(2), file[:-9]))
    with pytest.raises(CorruptTableError):
        damaged.read()


def test_a_missing_or_damaged_log_is_reported():
    group = Group().log(2, encode_block(BlockType.PARQUET_DATA, header(2), b"no parquet"))
    with pytest.raises(CorruptTableError) as caught:
        group.read()
    assert caught.value.kind == "bad_log_block"
    group.storage.delete(group.logs[0].path)
    with pytest.raises(MissingFileError):
        group.read()


def typed_group(
    kind: pa.DataType,
    base: object,
    deleted: object,
    *,
    nested: bool = False,
    precombines: bool = False,
) -> list[tuple]:
    """Return a file group with a base row and a delete with another ordering value of its type."""
    field = pa.field("n", pa.struct([("o", kind)])) if nested else pa.field("o", kind)
    own = pa.schema([("id", pa.string()), field])
    schema = TableSchema.from_arrow(own, "t")
    if kind == pa.timestamp("ms", "UTC"):  # as in Java's tables; ours have microseconds
        schema = TableSchema.from_avro(
            schema.avro_json.replace("timestamp-micros", "timestamp-millis")
        )
    value = {"o": base} if nested else base
    table = pa.table(
        {**{name: ["k"] for name in with_meta(own).names[:5]}, "id": ["k"],
         field.name: pa.array([value], field.type)},
        schema=with_meta(own),
    )  # fmt: skip
    text = avro_with_meta(schema.avro_json)
    record = encode_block(BlockType.AVRO_DATA, header(2, schema=text), encode_records(table, text))
    content = encode_deletes(pa.array(["k"]), "", (pa.array([deleted], kind),))
    delete = encode_block(BlockType.DELETE, header(3, schema=text), content)
    name = "n.o" if nested else "o"
    definition = MergeDefinition(
        mode=MergeMode.EVENT_TIME_ORDERING, ordering_fields=(name,), precombines=precombines
    )
    group = Group().log(2, record).log(3, delete)
    above = group.read("id", file_schema=with_meta(own), rules=MergeRules(definition=definition))
    if precombines:
        return above
    group.base = None
    path = f"g-0_0-0-0_{time(1)}.parquet"
    size = write_base_file(group.storage, path, table, avro_json=schema.avro_json)
    group.base = BaseFile(file_group=GROUP, name=path, requested_time=time(1), size_bytes=size)
    group.logs = group.logs[1:]
    below = group.read("id", file_schema=with_meta(own), rules=MergeRules(definition=definition))
    assert above == below, "the fold and the base file agree"
    return above


DAY = dt.date(2026, 1, 2)
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=dt.UTC)
ORDERINGS = [
    (pa.int32(), 5, 6),
    (pa.int64(), 5, 6),
    (pa.float32(), 0.5, 1.5),
    (pa.float64(), 0.5, 1.5),
    (pa.string(), "5", "6"),
    (pa.binary(), b"5", b"6"),
    (pa.bool_(), False, True),
    (pa.date32(), DAY, DAY + dt.timedelta(days=1)),
    (pa.timestamp("us", "UTC"), MOMENT, MOMENT + dt.timedelta(microseconds=1)),
    (pa.timestamp("ms", "UTC"), MOMENT, MOMENT + dt.timedelta(milliseconds=1)),
    (pa.timestamp("us"), MOMENT.replace(tzinfo=None), MOMENT.replace(tzinfo=None, year=2027)),
    (pa.decimal128(10, 2), Decimal("5.25"), Decimal("5.26")),
]


@pytest.mark.parametrize(("kind", "less", "more"), ORDERINGS, ids=str)
def test_deletes_compare_in_every_type_of_ordering_field(kind, less, more):
    assert typed_group(kind, less, more) == []
    assert typed_group(kind, more, less) == [("k",)]
    assert typed_group(kind, more, more) == []


def test_late_deletes_of_version_6_win_where_the_ordering_is_a_text():
    """Java 0.15 compares values of one class only, and texts may have two classes."""
    assert typed_group(pa.string(), "6", "5", precombines=True) == []
    assert typed_group(pa.int64(), 6, 5, precombines=True) == [("k",)]


def test_ordering_fields_may_be_inside_structs():
    assert typed_group(pa.int64(), 5, 6, nested=True) == []
    assert typed_group(pa.int64(), 6, 5, nested=True) == [("k",)]


def test_several_ordering_fields_of_deletes_compare_left_to_right():
    definition = MergeDefinition(mode=MergeMode.EVENT_TIME_ORDERING, ordering_fields=("ts", "w"))
    for second, left in ((5, []), (4, []), (3, [("a", 10)])):
        orderings = (pa.array([10], pa.int64()), pa.array([second], pa.int32()))
        content = encode_deletes(pa.array(["a"]), "", orderings)
        group = Group().with_base(BASE[0])
        group.log(2, encode_block(BlockType.DELETE, header(2), content))
        assert group.read("id", "ts", rules=MergeRules(definition=definition)) == left


def test_the_first_row_of_a_repeated_key_in_the_base_file_is_changed():
    group = Group().with_base(("a", 1, "one"), ("a", 1, "two"), ("b", 1, "one"), ("b", 1, "two"))
    group.log(2, avro(2, ("a", 2, "new")), deletes(2, "b"))
    assert group.read("id", "v") == [("a", "new"), ("a", "two"), ("b", "two")]


def test_a_slice_with_more_logs_than_open_files_is_read():
    group = Group()
    for number in range(70):
        group.log(
            2, avro(2, (f"k{number:02}", 1, "x"), ("same", number, str(number))), version=number
        )
    found = group.read("id", "v")
    assert len(found) == 71
    assert ("same", "69") in found
