"""A metadata table with a log compaction, as Java Hudi writes it, is read and maintained."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from filegroups.metadata_table.encode import encode_base_file, encode_records
from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from filegroups.metadata_table.records import RecordType
from timeline.codecs.log_blocks import BlockType, HeaderKey, encode_block
from timeline.codecs.metadata_instants import (
    encode_metadata_deltacommit,
    encode_metadata_inflight,
    metadata_record_schema,
)
from timeline.model.metadata_table import METADATA_TIMELINE, MetadataLogFile, MetadataUpdate

OPTIONS = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "false",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": "1",
    "hoodie.metadata.record.index.max.filegroup.count": "1",
    "hoodie.index.type": "RECORD_INDEX",
}
INDEX = "record_index"


def opened(table: hoodoo.Table) -> MetadataTable:
    context = table.context
    found = open_metadata_table(context.ports.storage, table.config, context.snapshot())
    assert found is not None
    assert found.lag.is_trusted
    return found


def indexed(table: hoodoo.Table) -> set[str]:
    return set(pa.concat_tables(opened(table).read(INDEX)).column("key").to_pylist())


def after(moment: str, ms: int) -> str:
    there = datetime.strptime(moment + "000", "%Y%m%d%H%M%S%f") + timedelta(milliseconds=ms)  # noqa: DTZ007
    return there.strftime("%Y%m%d%H%M%S%f")[:17]


def compact_logs(table: hoodoo.Table, *, missing: str = "") -> str:
    """Merge the log files of the record index into one block that replaces them; return its time."""
    found = opened(table)
    (one,) = found.slices(INDEX).values()
    logs = [log for log in one.log_files if log.size_bytes > 100]
    assert len(logs) > 1
    rows = found.merged(INDEX, replace(one, base_file=None))
    keys = rows.column("key").to_pylist()
    rows = rows.filter(pa.array([key != missing for key in keys]))
    moment = after(max(found.own.completions.values()), 2)
    data = encode_base_file(
        encode_records(rows, RecordType.RECORD_INDEX, table_version=9),
        table_version=9,
        created_ms=0,
    )
    header: dict[int, str] = {
        HeaderKey.INSTANT_TIME: moment,
        HeaderKey.SCHEMA: metadata_record_schema(9, with_meta_columns=True),
        HeaderKey.COMPACTED_BLOCK_TIMES: ",".join(log.instant_time for log in logs),
    }
    block = encode_block(BlockType.HFILE_DATA, header, data)
    name = f".{one.file_group.file_id}_{moment}.log.1_0-0-0"
    storage = table.context.ports.storage
    storage.write(f"{one.file_group.partition_path}/{name}", block)
    update = MetadataUpdate(
        table_version=9,
        partitions=(INDEX,),
        files=(
            MetadataLogFile(
                partition=INDEX,
                file_id=one.file_group.file_id,
                name=name,
                size_bytes=len(block),
                records=rows.num_rows,
                base_time=one.base_instant_time,
            ),
        ),
    )
    head = f"{METADATA_TIMELINE}/{moment}"
    storage.write(f"{head}.logcompaction.requested", b"")
    storage.write(f"{head}.logcompaction.inflight", encode_metadata_inflight())
    completed = f"{head}_{after(moment, 1)}.deltacommit"
    storage.write(completed, encode_metadata_deltacommit(update))
    time.sleep(0.05)  # later commits have later times
    return moment


@pytest.mark.spec("MDT-12")
def test_blocks_of_a_log_compaction_replace_those_that_it_names(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path / "t", record_key="id", properties=OPTIONS) as table:
        for number in range(3):
            table.upsert([{"id": f"k{number}", "v": 0}, {"id": f"n{number}", "v": 0}])
        keys = indexed(table)
        assert len(keys) == 6
        compact_logs(table, missing="k1")
        assert indexed(table) == keys - {"k1"}  # the replaced blocks do not count


@pytest.mark.spec("MDT-8")
def test_commits_and_a_compaction_go_on_above_a_log_compaction(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path / "t", record_key="id", properties=OPTIONS) as table:
        for number in range(3):
            table.upsert([{"id": f"k{number}", "v": 0}])
        compact_logs(table)
        assert table.verify().ok
    with hoodoo.open_table(tmp_path / "t", properties=OPTIONS) as table:
        table.upsert([{"id": "k1", "v": 1}, {"id": "new", "v": 1}])
        table.delete(keys=[{"id": "k0"}])
        assert indexed(table) == {"k1", "k2", "new"}
        assert table.verify().ok
        assert table.services.maintain_metadata_table() is not None
        (one,) = opened(table).slices(INDEX).values()
        assert one.base_file is not None
        assert not one.log_files
        table.upsert([{"id": "k2", "v": 2}])
        assert table.verify().ok
        assert table.to_arrow().num_rows == 3
