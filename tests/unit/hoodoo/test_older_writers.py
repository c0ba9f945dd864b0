"""Tables of writers before Hudi 1.1 are read as Java 1.2 reads them: their labels of time err."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import filegroups.writing.write
import hoodoo
from filegroups.schema.avro_schema import arrow_to_avro
from filegroups.schema.evolution import UNKNOWN_UNIT
from filegroups.schema.schema import META_COLUMNS, TableSchema
from hoodoo.cli.app import main
from hoodoo.configuration import Layers
from hoodoo.timestamp_repair import repair_timestamps
from hoodoo.verify.timestamps import DoubtfulTimestamps
from hoodoo.verify.verify import verify_at
from tests.unit.filegroups.schema.test_time_units import (
    LOCAL_MS,
    LOCAL_US,
    UTC_MS,
    UTC_US,
    with_bits,
)
from timeline.errors import InvalidInputError, UnsupportedTableError
from timeline.properties.properties_file import update_properties

FOUND = Path(__file__).resolve().parents[2] / "interop" / "found"
KINDS = [
    ("COPY_ON_WRITE", "avro", "9"),
    ("MERGE_ON_READ", "avro", "9"),
    ("MERGE_ON_READ", "avro", "8"),
    ("MERGE_ON_READ", "parquet", "9"),
]
NUMBERS = [1_577_836_799_999, 0, -62_135_596_800, 1_432_125_295_000, 1]
MANUAL = {
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.compact.inline": "false",
    "hoodie.metadata.enable": "false",
}


def found_table(name: str, folder: Path) -> Path:
    with zipfile.ZipFile(FOUND / f"{name}.zip") as archive:
        archive.extractall(folder)
    return folder / name


def as_java_tells(rows: pa.Table, columns: list[str]) -> list[list[object]]:
    plain = [
        [
            one.replace(tzinfo=None).isoformat(timespec="microseconds")
            if isinstance(one, datetime)
            else one
            for one in (row[name] for name in columns)
        ]
        for row in rows.to_pylist()
    ]
    return sorted(plain, key=str)


def java(rows: list[list[Any]]) -> list[list[object]]:
    texts = [
        [
            datetime.fromisoformat(one).isoformat(timespec="microseconds")
            if isinstance(one, str) and one[10:11] == "T"
            else one
            for one in row
        ]
        for row in rows
    ]
    return sorted(texts, key=str)


@pytest.mark.parametrize(
    "name", ["trips_logical_types_json_cow_read_v6", "trips_logical_types_json_mor_read_v8"]
)
def test_found_tables_are_read_as_java_reads_them(tmp_path: Path, name: str) -> None:
    account = json.loads((FOUND / f"{name}.json").read_text(encoding="utf-8"))
    names = account["columns"]
    with hoodoo.open_table(found_table(name, tmp_path)) as table:
        newest = table.to_arrow(names)
        assert as_java_tells(newest, names) == java(account["snapshot"])
        optimized = table.to_arrow(names, query_type="read_optimized")
        expected = account.get("read_optimized", account["snapshot"])
        assert as_java_tells(optimized, names) == java(expected)
        for time, rows in account["as_of"].items():
            # The schema of that time says micros, so the label is taken for true, as by Java.
            assert as_java_tells(table.as_of(time).to_arrow(columns=names), names) == java(rows)
        for until, rows in account["incremental"].items():
            changed = table.changes("earliest", until, columns=names).read_all()
            assert as_java_tells(changed, names) == java(rows)
        for row in newest.slice(0, 4).to_pylist():
            assert row in table.get_rows([row["_hoodie_record_key"]], names).to_pylist()
            for column in ("ts_millis", "local_ts_millis", "local_ts_micros"):
                same = table.to_arrow(names, filter=[(column, "=", row[column])])
                assert row in same.to_pylist()


def shape(*, older: bool) -> pa.Schema:
    """Columns as writers before 1.1 say them, or as those since then do."""
    moment, millis, micros = (
        (UTC_US, pa.int64(), pa.int64()) if older else (UTC_MS, LOCAL_MS, LOCAL_US)
    )
    many = pa.list_(pa.field("element", moment))
    return pa.schema(
        [
            ("id", pa.string()),
            ("v", pa.int32()),
            ("moment", moment),
            ("millis", millis),
            ("micros", micros),
            ("true", UTC_US),
            ("s", pa.struct([("moment", moment), ("millis", millis), ("many", many)])),
            ("m", pa.map_(pa.string(), moment)),
            ("deep", pa.list_(pa.field("element", pa.struct([("micros", micros)])))),
        ]
    )


def rows(ids: str, value: int, *, older: bool, at: int = 0) -> pa.Table:
    """Rows whose moments have the same numbers, whatever type the columns declare."""
    columns: dict[str, list[Any]] = {name: [] for name in shape(older=older).names}
    for place, one in enumerate(ids, at):
        number = NUMBERS[place % len(NUMBERS)]
        fine = number * 1_000 + 7
        struct = {"moment": number, "millis": number, "many": [number, 0]}
        told = (one, value, number, number, fine, fine, struct, [("k", number)], [{"micros": fine}])
        for name, each in zip(columns, told, strict=True):
            columns[name].append(each)
    made = [
        relabelled(pa.array(values, as_numbers(each.type)), each.type)
        for each, values in zip(shape(older=older), columns.values(), strict=True)
    ]
    return pa.table(made, schema=shape(older=older))


def as_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(as_numbers(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", as_numbers(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), as_numbers(kind.item_type))
    return kind


def relabelled(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind):
        parts = [relabelled(values.field(at), each.type) for at, each in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=values.is_null())
    if pa.types.is_list(kind):
        inner = relabelled(values.values, kind.value_type)
        return pa.ListArray.from_arrays(values.offsets, inner, type=kind)
    if pa.types.is_map(kind):
        inner = relabelled(values.items, kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, values.keys, inner, type=kind)
    return with_bits(values, kind) if values.type == pa.int64() else values


@contextmanager
def newer_writer(monkeypatch: pytest.MonkeyPatch, schema: pa.Schema) -> Iterator[None]:
    """Writes that declare the table's columns again, as a streamer of Hudi 1.1 does."""

    def schema_for(context: Any, snapshot: Any, _workload: Any, _plan: Any) -> Any:
        before = TableSchema.from_avro(snapshot.newest_schema_json).avro_json
        return TableSchema.from_avro(arrow_to_avro(schema, context.config.name)), before

    with monkeypatch.context() as patch:
        patch.setattr(filegroups.writing.write, "schema_for", schema_for)
        yield


def made(path: Path, table_type: str, schema: pa.Schema, **options: str) -> hoodoo.Table:
    return hoodoo.create_table(
        path,
        schema=schema,
        record_key="id",
        ordering="v",
        table_type=table_type,
        properties=MANUAL | options,
    )


def by_id(found: pa.Table) -> dict[str, Any]:
    return {row["id"]: row for row in found.to_pylist()}


@pytest.mark.parametrize(("table_type", "log_format", "version"), KINDS)
def test_rows_of_older_writers_keep_their_timestamps_in_every_read_and_service(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_type: str,
    log_format: str,
    version: str,
) -> None:
    options = {
        "hoodie.logfile.data.block.format": log_format,
        "hoodie.write.table.version": version,
    }
    with made(tmp_path / "t", table_type, shape(older=True), **options) as table:
        table.insert(rows("abcdef", 1, older=True))
        table.upsert(rows("cd", 2, older=True, at=3))
        with newer_writer(monkeypatch, shape(older=False)):
            table.upsert(rows("fg", 3, older=False, at=1))
        writes = [("abcdef", 1, 0), ("cd", 2, 3), ("fg", 3, 1)]
        expected: dict[str, Any] = {}
        for ids, value, at in writes:
            expected |= by_id(rows(ids, value, older=False, at=at))
        assert by_id(table.to_arrow()) == expected
        assert by_id(table.changes("earliest").read_all()) == expected
        images = table.changes("earliest", images=True).read_all().to_pylist()
        lately = [one["before"] for one in images if one["op"] == "u" and one["after"]["v"] == 3]
        assert lately == [by_id(rows("abcdef", 1, older=False))["f"]]
        for row in expected.values():
            assert table.get_rows([row["id"]]).to_pylist() == [row]
            alike = {one["id"] for one in expected.values() if one["moment"] == row["moment"]}
            found = table.to_arrow(filter=[("moment", "=", row["moment"])])
            assert set(by_id(found)) == alike
        if table_type == "MERGE_ON_READ":
            assert table.services.compact() is not None
            assert by_id(table.to_arrow(query_type="read_optimized")) == expected
        table.upsert(rows("h", 4, older=False))
        expected |= by_id(rows("h", 4, older=False))
        table.services.cluster()
        assert by_id(table.to_arrow()) == expected
    assert verify_at(tmp_path / "t", Layers(), all_columns=True).problems == ()


@pytest.mark.parametrize("version", ["8", "9"])
def test_an_upgrade_keeps_the_timestamps_of_older_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    from tableservices.upgrade import upgrade

    options = {"hoodie.write.table.version": "8"}
    with made(tmp_path / "t", "MERGE_ON_READ", shape(older=True), **options) as table:
        table.insert(rows("abc", 1, older=True))
        table.upsert(rows("c", 2, older=True, at=3))
        with newer_writer(monkeypatch, shape(older=False)):
            table.upsert(rows("d", 3, older=False))
        expected = by_id(table.to_arrow())
        context = table.context
    if version == "9":
        upgrade(context)
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.config.table_version == int(version)
        assert by_id(table.to_arrow()) == expected
        assert expected["a"] == by_id(rows("abc", 1, older=False))["a"]


def test_a_service_that_began_before_a_schema_changed_does_not_change_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(tmp_path / "t", "MERGE_ON_READ", shape(older=True)) as table:
        table.insert(rows("abc", 1, older=True))
        table.upsert(rows("c", 2, older=True, at=3))
        with newer_writer(monkeypatch, shape(older=False)):
            table.upsert(rows("d", 3, older=False))
        older = TableSchema.from_arrow(shape(older=True), "t").avro_json
        state = SimpleNamespace(newest_schema_json=older, newest_internal_schema_json=None)
        monkeypatch.setattr("tableservices.plan_execution._state_in", lambda *_: state)
        assert table.services.compact() is not None
        assert table.schema == shape(older=False)
        assert by_id(table.to_arrow())["a"] == by_id(rows("abc", 1, older=False))["a"]


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_table_of_unknown_time_unit_is_refused_by_kind_and_reported_by_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_type: str
) -> None:
    path = tmp_path / "t"
    before, after = (
        pa.schema([("id", pa.string()), ("v", pa.int32()), ("c", kind)])
        for kind in (pa.int64(), UTC_MS)
    )
    with made(path, table_type, before, **{"hoodie.write.table.version": "8"}) as table:
        table.insert(pa.table({"id": ["a"], "v": pa.array([1], pa.int32()), "c": [1]}))
        table.upsert(pa.table({"id": ["a"], "v": pa.array([2], pa.int32()), "c": [2]}))
        with newer_writer(monkeypatch, after):
            table.insert(pa.table([["z"], [3], [4]], schema=after))
        assert sorted(table.to_arrow(["id"]).column("id").to_pylist()) == ["a", "z"]
        with pytest.raises(UnsupportedTableError) as caught:
            table.to_arrow()
        assert caught.value.kind == UNKNOWN_UNIT
        told = verify_at(path, Layers()).problems
        assert told
        assert {one.kind for one in told} == {UNKNOWN_UNIT}
        if table_type == "MERGE_ON_READ":
            from tableservices.upgrade import upgrade

            instants = len(table.timeline)
            with pytest.raises(UnsupportedTableError) as caught:
                upgrade(table.context)
            assert caught.value.kind == UNKNOWN_UNIT
            assert len(table.timeline) == instants


def test_a_true_timestamp_of_1970_stays(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("c", UTC_US)])
    with made(tmp_path / "t", "COPY_ON_WRITE", schema.append(pa.field("v", pa.int32()))) as table:
        table.insert(pa.table({"id": ["a"], "c": pa.array([1_577_836_799], UTC_US), "v": [1]}))
        assert table.to_arrow().column("c").cast(pa.int64()).to_pylist() == [1_577_836_799]
        assert table.to_arrow().column("c").cast(pa.int64()).to_pylist() == [1_577_836_799]


def test_timestamps_that_an_earlier_release_divided_are_found_and_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    before, after = (
        pa.schema([("id", pa.string()), ("v", pa.int32()), ("c", kind)])
        for kind in (UTC_US, UTC_MS)
    )
    seconds = 1_577_836_800_000
    options = {"hoodie.parquet.small.file.limit": "1000000"}
    with made(path, "COPY_ON_WRITE", before, **options) as table:
        ids = pa.array(["a", "b", "zero"])
        numbers = pa.array([seconds, seconds, 0])
        table.insert(pa.table([ids, pa.array([1] * 3, pa.int32()), numbers.view(UTC_US)], schema=before))  # fmt: skip
        with newer_writer(monkeypatch, after), monkeypatch.context() as patch:
            patch.setattr("filegroups.schema.casting.stored_in", lambda *_: None)  # as it was
            table.upsert(pa.table([["b"], [2], pa.array([seconds], UTC_MS)], schema=after))
        numbers_of = {row["id"]: row["c"] for row in table.to_arrow().to_pylist()}
        assert numbers_of["a"].year == 1970
        storage = table.context.ports.storage
        update_properties(storage, {"hoodie.table.initial.version": "6"}, now="20261127000000000")
    told = verify_at(path, Layers(), all_columns=True)
    assert [(one.kind, one.message[-5:]) for one in told.notes] == [("doubtful_moments", "1 row")]
    dry = CliRunner().invoke(main, ["table", "repair-moments", str(path), "--dry-run"])
    assert json.loads(dry.stdout)["rows"] == 1
    done = CliRunner().invoke(main, ["table", "repair-moments", str(path), "--yes"])
    assert (done.exit_code, json.loads(done.stdout)["writes"]) == (0, 1)
    with hoodoo.open_table(path) as table:
        found = {row["id"]: row["c"].year for row in table.to_arrow().to_pylist()}
        assert found == {"a": 2020, "b": 2020, "zero": 1970}
    assert verify_at(path, Layers(), all_columns=True).notes == ()


def years(table: hoodoo.Table, name: str) -> dict[str, int]:
    rows = table.to_arrow().to_pylist()
    return {row["id"]: row[name].year for row in rows if row[name] is not None}


@pytest.mark.parametrize("keys", [{"record_key": ["id"], "ordering": ["v"]}, {}])
def test_only_divided_timestamps_are_multiplied_with_and_without_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, list[str]]
) -> None:
    before, after = (
        pa.schema([("id", pa.string()), ("v", pa.int32()), ("c", kind), ("d", UTC_MS)])
        for kind in (UTC_US, UTC_MS)
    )
    options = {"hoodie.parquet.small.file.limit": "1000000", "hoodie.metadata.enable": "false"}
    seconds, day = pa.array([1_577_836_800_000] * 2), pa.array([86_400_000] * 2, UTC_MS)
    ones = pa.array([1, 1], pa.int32())
    with hoodoo.create_table(tmp_path / "t", schema=before, properties=options, **keys) as table:
        empty = pa.nulls(1, UTC_US), pa.nulls(1, UTC_MS)
        table.insert(pa.table([["z"], ones[:1], *empty], schema=before))
        with newer_writer(monkeypatch, before):
            table.insert(pa.table([["a", "b"], ones, seconds.view(UTC_US), day], schema=before))
        with newer_writer(monkeypatch, after), monkeypatch.context() as patch:
            patch.setattr("filegroups.schema.casting.stored_in", lambda *_: None)  # as it was
            table.insert(pa.table([["x", "y"], ones, seconds.view(UTC_MS), day], schema=after))
        storage = table.context.ports.storage
        update_properties(storage, {"hoodie.table.initial.version": "6"}, now="20261127000000000")
    with hoodoo.open_table(tmp_path / "t") as table:
        assert years(table, "c") == {"a": 1970, "b": 1970, "x": 2020, "y": 2020}
        done = repair_timestamps(table)
        assert (done.rows, done.writes) == (2, 1)
        assert years(table, "c") == dict.fromkeys("abxy", 2020)
        assert years(table, "d") == dict.fromkeys("abxy", 1970)
        assert table.to_arrow().num_rows == 5


def test_a_repair_of_timestamps_ends_where_the_table_keeps_the_old_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of = "hoodoo.timestamp_repair.doubtful_timestamps"
    schema = pa.schema([("id", pa.string()), ("v", pa.int32()), ("c", UTC_MS)])
    with hoodoo.create_table(
        tmp_path / "t", schema=schema, record_key=["id"], ordering=["v"]
    ) as table:
        table.insert(
            pa.table([["a"], pa.array([1], pa.int32()), pa.array([1], UTC_MS)], schema=schema)
        )

        def always(context: Any, snapshot: Any, slices: Any) -> Iterator[DoubtfulTimestamps]:
            rows = table.to_arrow(columns=[*META_COLUMNS, *schema.names])
            yield DoubtfulTimestamps(
                slice=slices[0], rows=rows, columns={"c": pa.chunked_array([[False]])}
            )

        monkeypatch.setattr(rows_of, always)
        with pytest.raises(InvalidInputError) as caught:
            repair_timestamps(table)
        assert caught.value.kind == "row_stays"
        assert len(table.timeline) == 2
