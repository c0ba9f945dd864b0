"""The change log of a rewritten base file: its content in each mode, and its reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hoodoo
from filegroups.files.cdc_log import read_cdc_log
from filegroups.files.rewrite import FileGroupTask, write_file_group
from filegroups.merge.change_images import cdc_schema
from filegroups.schema.schema import TableSchema
from filegroups.table import TableReader
from tests.unit.timeline.engine import begun, new_table, opened, put, upsert
from timeline.codecs.log_blocks import BlockType, HeaderKey
from timeline.commit.apply import data_files_of
from timeline.commit.markers import marker_files
from timeline.errors import CorruptTableError, InstantNotFoundError
from timeline.model.commit_metadata import CdcMode, WriteOperation, WriteStat
from timeline.properties.properties_file import update_properties

OPERATIONS = (
    WriteOperation.UPSERT,
    WriteOperation.INSERT,
    WriteOperation.DELETE,
    WriteOperation.INSERT_OVERWRITE,
)
MODES = [mode.value for mode in CdcMode]
ROWS = [{"id": name, "part": "p", "ts": 10, "v": number} for number, name in enumerate("abcd")]


def make(path: Path, mode: str, **more: str) -> hoodoo.Table:
    table = hoodoo.create_table(
        path,
        record_key="id",
        partition_by="part",
        ordering="ts",
        properties={
            "hoodie.table.cdc.enabled": "true",
            "hoodie.table.cdc.supplemental.logging.mode": mode,
            "hoodoo.storage.durability": "relaxed",
            **more,
        },
    )
    table.insert(ROWS)
    return table


@pytest.fixture(params=MODES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hoodoo.Table]:
    made = make(tmp_path / "t", request.param)
    yield made
    made.close()


def newest_stats(table: hoodoo.Table) -> Sequence[WriteStat]:
    snapshot = table.snapshot
    newest = snapshot.newest_write
    assert newest is not None
    return snapshot.commits.read(newest).write_stats()


def changed(table: hoodoo.Table) -> list[tuple[str, Any, Any]]:
    found = table.changes("0", images=True).read_all().to_pylist()
    return [(row["op"], row["before"], row["after"]) for row in found]


def test_first_rows_have_no_change_log(table: hoodoo.Table) -> None:
    (stat,) = newest_stats(table)
    assert stat.cdc_stats is None


def test_every_supplemental_mode_returns_the_same_changes(table: hoodoo.Table) -> None:
    a, b, c, d = ROWS
    new = {"id": "e", "part": "p", "ts": 1, "v": 9}
    newer, same, late = {**a, "ts": 11, "v": 7}, dict(b), {**c, "ts": 9, "v": 8}
    table.upsert([newer, same, late, new])
    table.delete([{"id": "d", "part": "p"}])
    assert changed(table)[4:] == [
        ("u", a, newer),
        ("u", b, same),  # a rewrite with equal values is an update, as in Java
        ("i", None, new),
        ("d", d, None),
    ]


def test_the_log_is_java_s(table: hoodoo.Table) -> None:
    result = table.upsert([{**ROWS[0], "ts": 11}])
    (stat,) = newest_stats(table)
    ((path, size_bytes),) = (stat.cdc_stats or {}).items()
    storage, time = table.context.ports.storage, result.requested_time
    token = (stat.path or "").rpartition("/")[2].split("_")[1]
    assert path == f"p/.{stat.file_id}_{time}.log.1_{token}.cdc"
    found = storage.stat(path)
    assert found is not None
    assert found.size_bytes == size_bytes
    assert stat.total_write_bytes == stat.file_size_in_bytes
    ((block, rows),) = read_cdc_log(storage, path, time)
    assert block.block_type is BlockType.CDC_DATA
    assert set(block.header) == {HeaderKey.SCHEMA, HeaderKey.INSTANT_TIME}
    mode = table.config.change_log_mode
    assert (
        rows.schema.names
        == {
            CdcMode.OP_KEY_ONLY: ["op", "record_key"],
            CdcMode.DATA_BEFORE: ["op", "record_key", "before"],
            CdcMode.DATA_BEFORE_AFTER: ["op", "ts_ms", "before", "after"],
        }[mode or CdcMode.DATA_BEFORE_AFTER]
    )


def test_a_change_log_of_another_instant_or_a_truncated_one_is_refused(table: hoodoo.Table) -> None:
    result = table.upsert([{**ROWS[0], "ts": 11}])
    (path,) = newest_stats(table)[0].cdc_stats or {}
    storage = table.context.ports.storage
    with pytest.raises(CorruptTableError):
        list(read_cdc_log(storage, path, "20200101000000000"))
    whole = storage.read(path)
    storage.write(path, whole[:-5])
    with pytest.raises(CorruptTableError):
        list(read_cdc_log(storage, path, result.requested_time))


def test_a_row_that_moves_to_another_partition_is_a_change_in_both(tmp_path: Path) -> None:
    table = make(tmp_path / "t", "OP_KEY_ONLY", **{"hoodie.index.type": "GLOBAL_SIMPLE"})
    moved = {**ROWS[0], "part": "q", "ts": 11}
    with table:
        table.upsert([moved])
        changes = changed(table)[4:]
    assert sorted(changes, key=str) == [("d", ROWS[0], None), ("i", None, moved)]


def test_overwritten_rows_are_deletes_without_a_log(table: hoodoo.Table) -> None:
    new = {"id": "z", "part": "p", "ts": 1, "v": 1}
    table.insert_overwrite([new])
    assert newest_stats(table)[0].cdc_stats is None
    assert changed(table)[4:] == [*(("d", row, None) for row in ROWS), ("i", None, new)]


def test_a_column_added_since_is_null_in_older_images(tmp_path: Path) -> None:
    with make(tmp_path / "t", "DATA_BEFORE_AFTER") as table:
        table.upsert([{**ROWS[0], "ts": 11}])
        table.upsert([{**ROWS[0], "ts": 12, "more": 1}])
        changes = changed(table)[4:]
    first, second = {**ROWS[0], "more": None}, {**ROWS[0], "ts": 11, "more": None}
    assert changes == [("u", first, second), ("u", second, {**ROWS[0], "ts": 12, "more": 1})]


def test_a_rollback_finds_the_log_by_its_marker_and_by_its_name(table: hoodoo.Table) -> None:
    storage = table.context.ports.storage
    (one,) = table.file_slices()
    base, time = one.base_file, "29991121100000000"
    assert base is not None
    task = FileGroupTask(
        requested_time=time,
        operation=WriteOperation.UPSERT,
        partition_path="p",
        file_id=one.file_group.file_id,
        write_token="3-0-0",
        task_number=3,
        avro_json=TableSchema.from_arrow(table.schema, "t").avro_json,
        base_path=base.path,
        base_requested_time=base.requested_time,
        change_log=table.config.change_log_mode,
    )
    rows = pa.Table.from_pylist([{"_hoodie_record_key": "a", **ROWS[0]}])
    (stat,) = write_file_group(storage, task, rows)
    log = f"p/.{one.file_group.file_id}_{time}.log.1_3-0-0.cdc"
    assert list(stat.cdc_stats or ()) == [log]
    assert [f"p/{name}" for _, name, _ in marker_files(storage, time)] == [log, stat.path]
    assert data_files_of(storage, time) == [log, stat.path]


def test_the_stat_of_a_log_names_its_base_file_where_java_reads_it(tmp_path: Path) -> None:
    kind = {"hoodie.table.type": "MERGE_ON_READ"}
    with make(tmp_path / "t", "OP_KEY_ONLY", **kind) as table:
        base = (newest_stats(table)[0].path or "").rpartition("/")[2]
        names = []
        for time in (11, 12):
            table.upsert([{**ROWS[0], "ts": time}])
            (stat,) = newest_stats(table)
            names.append((stat.path or "").rpartition("/")[2])
            assert (stat.base_file, stat.log_files) == (base, tuple(names))
            assert stat.cdc_stats is None
        last = changed(table)[-1]
    assert last == ("u", {**ROWS[0], "ts": 11}, {**ROWS[0], "ts": 12})


def test_a_task_is_serialized_as_text_with_its_mode() -> None:
    task = FileGroupTask(
        requested_time="20261121100000000",
        operation=WriteOperation.UPSERT,
        partition_path="p",
        file_id="f-0",
        write_token="0-0-0",
        task_number=0,
        avro_json='{"type":"record","name":"r","fields":[]}',
        change_log=CdcMode.DATA_BEFORE,
    )
    assert FileGroupTask.from_json(task.to_json()) == task


def test_schemas_are_java_s() -> None:
    row = '{"type":"record","name":"t_record","namespace":"hoodie.t","fields":[]}'
    assert cdc_schema(CdcMode.OP_KEY_ONLY, row) == (
        '{"type": "record", "name": "Record", "fields": [{"name": "op", "type": ["string", '
        '"null"]}, {"name": "record_key", "type": ["string", "null"]}]}'
    )
    both = cdc_schema(CdcMode.DATA_BEFORE_AFTER, row)
    assert '{"name": "after", "type": ["null", "hoodie.t.t_record"], "default": null}' in both
    assert both.endswith('"namespace": "hoodie.t"}')


@pytest.mark.parametrize("mode", ["OP_KEY_ONLY", "DATA_BEFORE"])
def test_images_of_cleaned_files_are_refused_by_name(tmp_path: Path, mode: str) -> None:
    with make(tmp_path / "t", mode) as table:
        (first,) = (tmp_path / "t" / "p").glob("*.parquet")
        result = table.upsert([{**ROWS[0], "ts": 11}])
        first.unlink()
        started = table.timeline[0].completion_time
        assert started is not None
        with pytest.raises(InstantNotFoundError) as caught:
            table.changes(started, images=True)
    assert caught.value.fields["requested_time"] == result.requested_time
    assert caught.value.fields["path"] == f"p/{first.name}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "key",
    ["hoodie.populate.meta.fields=false", "hoodie.datasource.write.drop.partition.columns=true"],
)
def test_changes_of_tables_without_meta_or_partition_columns_are_returned(
    tmp_path: Path, mode: str, key: str
) -> None:
    name, _, value = key.partition("=")
    a, _, _, d = ROWS
    with make(tmp_path / "t", mode, **{name: value}) as table:
        table.upsert([{**a, "ts": 11}])
        table.delete([{"id": "d", "part": "p"}])
        changes = changed(table)[4:]
    assert changes == [("u", a, {**a, "ts": 11}), ("d", d, None)]


@pytest.mark.parametrize("logs", ["true", "false"])
def test_changes_follow_from_values_where_rows_have_no_commit_time(
    tmp_path: Path, logs: str
) -> None:
    more = {"hoodie.populate.meta.fields": "false", "hoodie.table.cdc.enabled": logs}
    a, b = ROWS[:2]
    with make(tmp_path / "t", "OP_KEY_ONLY", **more) as table:
        table.upsert([{**a, "ts": 11}, b])
        changes = changed(table)[4:]
    # Without a change log or a commit time a rewrite without a change is not visible.
    written_again = [("u", b, b)] if logs == "true" else []
    assert changes == [("u", a, {**a, "ts": 11}), *written_again]


@pytest.mark.parametrize("logs", ["true", "false"])
def test_a_late_row_that_fills_a_value_in_is_an_update(tmp_path: Path, logs: str) -> None:
    more = {
        "hoodie.table.cdc.enabled": logs,
        "hoodie.table.partial.update.mode": "IGNORE_DEFAULTS",
    }
    with make(tmp_path / "t", "DATA_BEFORE_AFTER", **more) as table:
        bare = {**ROWS[0], "id": "z", "v": None}
        table.upsert([bare])
        table.upsert([{**bare, "ts": 9, "v": 5}])
        changes = changed(table)[4:]
    assert changes == [("i", None, bare), ("u", bare, {**bare, "v": 5})]


def test_cleaning_deletes_change_logs_with_their_base_files(tmp_path: Path) -> None:
    keep_one = {"hoodie.clean.commits.retained": "1", "hoodie.clean.automatic": "true"}
    with make(tmp_path / "t", "DATA_BEFORE_AFTER", **keep_one) as table:
        for time in range(11, 16):
            table.upsert([{**ROWS[0], "ts": time}])
        assert any(entry.action == "clean" for entry in table.timeline)
    names = [file.name for file in (tmp_path / "t" / "p").iterdir()]
    base_times = {name.rpartition("_")[2].split(".")[0] for name in names if "parquet" in name}
    log_times = {name.split("_")[1].split(".")[0] for name in names if name.endswith(".cdc")}
    assert 1 < len(log_times) < 5
    assert log_times <= base_times


def test_superseded_change_logs_of_a_rebase_are_deleted_before_the_commit() -> None:
    mine = with_logs(new_table())
    upsert(mine, [row("a", 1, 1)])
    concurrent_write = begun(opened(mine), WriteOperation.UPSERT, [row("a", 2, 7)])
    result = upsert(mine, [row("a", 3, 8)], concurrent_write)
    assert result.attempts == 2
    files = [
        name
        for name in mine.context.ports.storage.names("x")
        if result.requested_time in name and not name.endswith(".crc")
    ]
    assert len(files) == 2, files  # a base file and its change log
    changes = mine.changes("0", images=True).read_all().to_pylist()
    assert [(each["op"], each["after"]["v"]) for each in changes] == [("i", 1), ("u", 7), ("u", 8)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_change_logs_and_data_files_give_the_same_changes_after_any_writes(
    mode: str, seed: int
) -> None:
    """The same writes to a table with logs and to one without give the same changes."""
    tables = with_logs(new_table(), mode), new_table()
    draw = np.random.default_rng(seed)
    for section in range(8):
        keys = draw.choice(list("abcdefgh"), size=3, replace=False)
        rows = [row(str(key), int(draw.integers(5)), int(draw.integers(99))) for key in keys]
        chosen = int(draw.integers(7)) if section > 1 else 0
        operation = OPERATIONS[chosen] if chosen < len(OPERATIONS) else WriteOperation.UPSERT
        for table in tables:
            put(table, operation, rows)
    first, second = (
        [
            (each["op"], each["before"], each["after"])
            for each in table.changes("0", images=True).read_all().to_pylist()
        ]
        for table in tables
    )
    assert sorted(first, key=str) == sorted(second, key=str)
    assert {op for op, _, _ in first} >= {"i", "u"}


def row(key: str, ts: int, v: int) -> dict[str, object]:
    return {"id": key, "p": "x", "ts": ts, "v": v}


def with_logs(table: TableReader, mode: str = "DATA_BEFORE_AFTER") -> TableReader:
    keys = {
        "hoodie.table.cdc.enabled": "true",
        "hoodie.table.cdc.supplemental.logging.mode": mode,
    }
    update_properties(table.context.ports.storage, keys, now="20261121100000000")
    return opened(table, application="")
