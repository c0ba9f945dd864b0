"""Java Hudi skips data by statistics that hoodoo computed, and returns every row that fits."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.metadata_table.contents import contents_of_commit
from filegroups.metadata_table.file_group_contents import IndexedTable
from filegroups.metadata_table.index_definitions import read_index_definitions
from filegroups.metadata_table.log_files import MetadataWrite, metadata_log_files
from filegroups.reading.scan import plan_scan, read_schema, view_of
from filegroups.table import TableReader, open_reader
from tests.interop.java import JavaOracle
from tests.unit.timeline.engine import world_of
from timeline.codecs.instant_avro import decode_commit
from timeline.codecs.metadata_instants import encode_metadata_deltacommit
from timeline.context import TableLimits
from timeline.model.file_names import METADATA_TABLE, parse_instant_name
from timeline.model.instant_time import UTC_ZONE
from timeline.model.metadata_table import METADATA_TIMELINE, MetadataUpdate
from timeline.storage.local import LocalStorage
from timeline.system import ThreadExecutor

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

SCHEMA = "id string, p string, ts bigint, x double, name string, d date, price decimal(20,3)"
CONF = {
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.partition.stats.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.write.auto.upgrade": "false",
}
LONG = "m" * 5_000


def row(key: str, part: str, x: float | None, name: str | None) -> dict[str, Any]:
    return {"id": key, "p": part, "ts": 1, "x": x, "name": name, "d": None, "price": None}


@pytest.mark.slow
@pytest.mark.parametrize("release", ["1.2.0", "1.0.2"])
def test_java_finds_rows_by_filters_on_nan_and_long_texts(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, release: str
) -> None:
    java, path, copy = java_oracle(release), tmp_path / "table", tmp_path / "copy"
    java.write(path, [row("a", "x", 1.0, "b"), row("b", "x", 2.0, "c")], "insert",
               schema=SCHEMA, conf={**CONF, "hoodie.table.name": "t"})  # fmt: skip
    shutil.copytree(path, copy)
    rows = [
        row("a", "x", math.nan, LONG + "z"),
        row("c", "x", 7.5, None),
        row("d", "y", -3.0, LONG + "a"),
        row("e", "y", math.nan, "é\U0001f600"),
    ]
    with hoodoo.open_table(copy) as table:
        table.metadata.drop()
    with hoodoo.open_table(copy) as table:
        written = pa.Table.from_pylist(rows, table.current_state().to_arrow().schema)
        table.upsert(written)
    adopt(path, copy)
    for setting in ("hoodie.metadata.enable", "hoodie.enable.data.skipping"):
        java.sql(path, f"set {setting}=true")
    for condition, keys in (
        ("x > 7", ["a", "c", "e"]),
        ("x > 1000", ["a", "e"]),
        ("x < 0", ["d"]),
        ("x = 7.5", ["c"]),
        (f"name = '{LONG}z'", ["a"]),
        (f"name > '{LONG}b'", ["a", "e"]),
        (f"name < '{LONG}b'", ["b", "d"]),
        ("name is null", ["c"]),
        ("name = 'é\U0001f600'", ["e"]),
        ("d is null and p = 'y'", ["d", "e"]),
        ("id = 'd'", ["d"]),
    ):
        found = java.sql(path, f"select id from {{t}} where {condition}")
        assert sorted(each["id"] for each in found) == keys, condition
    # Java updates and deletes keys that it finds in the record index, on top of our records.
    java.write(path, [row("c", "x", 8.5, "new"), row("f", "y", 1.0, "f")], "upsert",
               conf={**CONF, "hoodie.index.type": "RECORD_INDEX"})  # fmt: skip
    # The files that it writes anew have NaN and long texts: there its own statistics lose rows.
    found = java.sql(path, "select id, x from {t} where id >= 'c'")
    assert sorted(each["id"] for each in found) == ["c", "d", "e", "f"]
    assert len(java.sql(path, "select id from {t}")) == 6


def test_java_finds_nan_in_files_of_hoodoo(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "table"
    schema = pa.schema([("id", "string"), ("ts", "int64"), ("x", "double")])
    with hoodoo.create_table(path, schema=schema, record_key="id", ordering="ts") as table:
        table.insert(pa.table({"id": ["a", "b"], "ts": [1, 1], "x": [-3.0, math.nan]}))
    for condition, keys in (
        ("x > 7", ["b"]),
        ("x = double('NaN')", ["b"]),
        ("x >= -3", ["a", "b"]),
        ("x < 0", ["a"]),
    ):
        found = java.sql(path, f"select id from {{t}} where {condition}")
        assert sorted(each["id"] for each in found) == keys, condition


def test_java_uses_every_index_after_changes_in_log_files(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    java, path, copy = java_oracle("1.2.0"), tmp_path / "table", tmp_path / "copy"
    conf = {
        **CONF,
        "hoodie.table.name": "t",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.metadata.index.bloom.filter.enable": "true",
    }
    first = [row(key, part, 1.0, f"n{key}") for key, part in ("ax", "bx", "cy", "dy")]
    java.write(path, first, "insert", schema=SCHEMA, conf=conf)
    for setting in ("hoodie.metadata.enable", "hoodie.enable.data.skipping"):
        java.sql(path, f"set {setting}=true")
    lock = "org.apache.hudi.client.transaction.lock.InProcessLockProvider"
    java.sql(path, f"set hoodie.write.lock.provider={lock}")
    java.sql(path, "create index idx_name on {t} (name)")
    shutil.copytree(path, copy)
    with hoodoo.open_table(copy) as table:
        table.metadata.drop()
    with hoodoo.open_table(copy) as table:
        schema = table.current_state().to_arrow().schema
        changed = [row("a", "x", math.nan, "$new"), row("e", "z", 5.0, None)]
        table.upsert(pa.Table.from_pylist(changed, schema))
    adopt(path, copy)
    with hoodoo.open_table(copy) as table:
        table.delete(pa.Table.from_pylist([row("b", "x", None, None)], schema))
    adopt(path, copy)
    for condition, keys in (
        ("name = '$new'", ["a"]),
        ("name = 'na'", []),
        ("name = 'nb'", []),
        ("name = 'nc'", ["c"]),
        ("id in ('a', 'b', 'c', 'e')", ["a", "c", "e"]),
        ("x > 1", ["a", "e"]),
        ("x > 4 and p = 'z'", ["e"]),
    ):
        found = java.sql(path, f"select id from {{t}} where {condition}")
        assert sorted(each["id"] for each in found) == keys, condition
    again = [row("b", "x", 2.0, "back"), row("e", "z", 6.0, "five")]
    java.write(path, again, "upsert", conf={**conf, "hoodie.index.type": "RECORD_INDEX"})
    found = java.sql(path, "select id, name from {t}")
    assert sorted(each["id"] for each in found) == ["a", "b", "c", "d", "e"]
    found = java.sql(path, "select id from {t} where name in ('back', 'five')")
    assert sorted(each["id"] for each in found) == ["b", "e"]


def adopt(path: Path, copy: Path) -> None:
    """Put the newest commit of a copy without metadata table into the table that has one."""
    storage, other = LocalStorage(str(path)), LocalStorage(str(copy))
    timeline = ".hoodie/timeline"
    parsed = [(parse_instant_name(each.name), each.name) for each in other.list(timeline)]
    done = [(one, name) for one, name in parsed if one is not None and one.completed]
    instant, name = max(done, key=lambda each: each[0].requested_time)
    commit = decode_commit(other.read(f"{timeline}/{name}"))
    before = reader(storage)
    slices = view_of(before.context, before.context.snapshot()).latest_slices()
    time = instant.requested_time
    for file in commit.written_paths():
        (path / file).parent.mkdir(exist_ok=True)
        shutil.copy(copy / file, path / file)
        marker = (path / file).parent / ".hoodie_partition_metadata"
        if not marker.exists():
            shutil.copy(copy / file.rpartition("/")[0] / marker.name, marker)
    made = contents_of_commit(
        storage,
        ThreadExecutor(1),
        indexed(before),
        commit,
        {one.file_group: one for one in slices},
        requested_time=time,
        zone=UTC_ZONE,
    )
    version = before.config.table_version
    write = MetadataWrite(
        requested_time=time,
        write_token="1-0-0",
        table_version=version,
        created_ms=0,
    )
    groups = {
        partition: file_groups(path / METADATA_TABLE / partition)
        for partition in before.config.metadata_partitions
    }
    files = []
    for file, data in metadata_log_files(made, groups, read_index_definitions(storage), write):
        storage.create(file.path, data)
        files.append(file)
    update = MetadataUpdate(
        table_version=version, partitions=tuple(sorted(groups)), files=tuple(files)
    )
    completion = str(int(str(instant.completion_time)) - 1)
    storage.create(f"{METADATA_TIMELINE}/{time}.deltacommit.requested", b"")
    storage.create(f"{METADATA_TIMELINE}/{time}.deltacommit.inflight", b"")
    storage.create(
        f"{METADATA_TIMELINE}/{time}_{completion}.deltacommit", encode_metadata_deltacommit(update)
    )
    for one, pending in sorted(parsed, key=lambda each: each[1] == name):
        if one is not None and one.requested_time == time:
            shutil.copy(copy / timeline / pending, path / timeline / pending)


def file_groups(folder: Path) -> list[str]:
    names = (file.name for file in folder.iterdir() if not file.name.endswith(".crc"))
    return sorted({name.removeprefix(".").split("_")[0] for name in names if "-" in name})


def reader(storage: LocalStorage) -> TableReader:
    return open_reader(world_of(storage), TableLimits())


def indexed(table: TableReader) -> IndexedTable:
    context = table.context
    snapshot = context.snapshot()
    slices = view_of(context, snapshot).latest_slices()
    return IndexedTable(
        partitions=context.config.metadata_partitions,
        definitions=read_index_definitions(context.ports.storage),
        read=plan_scan(context, snapshot, slices, columns=("_hoodie_record_key",)).read,
        avro_json=read_schema(context, snapshot).avro_json,
    )
