"""
The whole table of `make demo`: 336,776 rows, the same rows in every engine.

Needs the table that `make demo` leaves behind (HOODOO_DEMO_TABLE, `demo-table` by default).
It has too many rows to return one by one, so each engine computes a checksum of its own.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import hudi
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hoodoo
from tests.interop import flights
from tests.interop.java import JavaOracle
from timeline.errors import InstantNotFoundError

TABLE = Path(os.environ.get("HOODOO_DEMO_TABLE", "demo-table"))
META = ("_hoodie_commit_time", "_hoodie_record_key", "_hoodie_partition_path")
ROWS = 336_776

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not (TABLE / ".hoodie").exists(), reason=f"no table at {TABLE}: run `make demo` first"
    ),
]

Sum = tuple[int, int]  # rows and checksum


def test_the_newest_and_three_earlier_snapshots_are_the_same(
    java_oracle: Callable[..., JavaOracle],
) -> None:
    java = java_oracle("1.2.0")
    with hoodoo.open_table(TABLE) as table:
        mine = checksum(table.current_state().to_arrow(with_hoodie_columns=True))
        assert mine[0] == ROWS
        assert by_java(java, TABLE, table.schema) == mine
        assert by_hudi_rs(TABLE, table.schema) == mine
        past = times_of_the_past(table)
        assert len(past) == 3
        for time in past:
            then = checksum(table.as_of(time).to_arrow(with_hoodie_columns=True))
            assert then != mine
            assert by_java(java, TABLE, table.schema, time) == then
            assert by_hudi_rs(TABLE, table.schema, time) == then


@pytest.mark.parametrize("index", ["BLOOM", "SIMPLE"])
def test_java_continues_on_the_table(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, index: str
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "demo"
    shutil.copytree(TABLE, path)
    flights.silent_for_an_hour(path)
    with flights.opened(path) as table:
        config, before = table.config, table.to_arrow()
    late = before.filter(pc.equal(before.column("month"), 11)).slice(0, 500)
    crashed = flights.crash(path, changed(late, config.ordering_fields))

    step = before.num_rows // 1000
    spread = before.take(pa.array(range(0, 1000 * step, step)))
    batch = changed(spread, config.ordering_fields)
    number = pc.add(batch.slice(900).column("flight"), 20_000)
    number = number.cast(batch.schema.field("flight").type)
    at = batch.schema.get_field_index("flight")
    batch = pa.concat_tables([batch[:900], batch[900:].set_column(at, "flight", number)])
    conf = {
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        "hoodie.clean.failed.writes.policy": "LAZY",
        "hoodie.write.lock.provider": (
            "org.apache.hudi.client.transaction.lock.InProcessLockProvider"
        ),
        "hoodie.metadata.enable": "false",
        "hoodie.datasource.write.recordkey.field": ",".join(config.record_key_fields),
        "hoodie.datasource.write.partitionpath.field": ",".join(config.partition_fields),
        "hoodie.datasource.write.hive_style_partitioning": str(
            config.hive_style_partitioning
        ).lower(),
        "hoodie.clean.automatic": "false",
        "hoodie.index.type": index,
    }
    java.write(path, flights.spark_rows(batch), conf=conf)
    java.service(path, "clean", conf={**conf, "hoodie.clean.commits.retained": "2"})

    assert crashed not in flights.pending(path)
    assert not list(path.rglob(f"*_{crashed}.parquet"))
    keys = list(config.record_key_fields)
    kept = before.join(batch.select(keys), keys=keys, join_type="left anti")
    expected = pa.concat_tables([kept.select(before.schema.names), batch])
    with flights.opened(path) as table:
        found = table.current_state().to_arrow(with_hoodie_columns=True)
        assert found.num_rows == expected.num_rows == ROWS + 100
        assert checksum(found.select(before.schema.names)) == checksum(expected)
        assert by_java(java, path, table.schema) == checksum(found)
        assert by_hudi_rs(path, table.schema) == checksum(found)
        assert table.upsert(changed(late, config.ordering_fields)).rows_inserted == 0
        found = table.current_state().to_arrow(with_hoodie_columns=True)
        assert found.num_rows == ROWS + 100
        assert by_java(java, path, table.schema) == checksum(found)


def changed(rows: pa.Table, ordering_fields: tuple[str, ...]) -> pa.Table:
    """Rows with another delay, and newer where the table asks for an order."""
    for name in {"dep_delay", *ordering_fields}:
        at, kind = rows.schema.get_field_index(name), rows.schema.field(name).type
        by = pa.scalar(10**7, pa.duration("us")) if pa.types.is_timestamp(kind) else pa.scalar(11)
        column = rows.column(name)
        filled = column if pa.types.is_timestamp(kind) else pc.fill_null(column, 0)
        rows = rows.set_column(at, name, pc.add(filled, by).cast(kind))
    return rows


def times_of_the_past(table: hoodoo.Table) -> list[str]:
    """The oldest, the middle and the youngest requested time that can still be read."""
    readable = []
    writes = [e for e in table.timeline if e.action in ("commit", "replacecommit")]
    for entry in [e for e in writes if e.completion_time is not None][:-1]:
        try:
            table.as_of(entry.requested_time)
        except InstantNotFoundError:
            continue
        readable.append(entry.requested_time)
    return [readable[0], readable[len(readable) // 2], readable[-1]]


def checksum(rows: pa.Table) -> Sum:
    """The row count and the sum of each row's CRC-32, independent of the order."""
    texts = [_text(rows.column(name)) for name in rows.schema.names if name in META]
    texts += [_text(rows.column(n)) for n in sorted(rows.schema.names) if not n.startswith("_")]
    lines = pc.binary_join_element_wise(*texts, "|")
    return rows.num_rows, sum(zlib.crc32(line.encode()) for line in lines.to_pylist())


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_floating(column.type):
        column = pc.round(pc.multiply(column, 1000.0)).cast(pa.int64())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return pc.fill_null(column.cast(pa.string()), "~")


def by_java(java: JavaOracle, path: Path, schema: pa.Schema, time: str | None = None) -> Sum:
    """The same, computed by Spark over Java Hudi."""
    words = [*META, *(_sql(schema.field(name)) for name in sorted(schema.names))]
    line = ", ".join(f"coalesce(cast({word} as string), '~')" for word in words)
    when = f" timestamp as of '{time}'" if time else ""
    (row,) = java.sql(
        path,
        f"select count(*) as n, sum(crc32(cast(concat_ws('|', {line}) as binary))) as s "
        f"from {{t}}{when}",
    )
    return row["n"], row["s"]


def _sql(field: pa.Field) -> str:
    if pa.types.is_floating(field.type):
        return f"cast(round(`{field.name}` * 1000) as bigint)"
    if pa.types.is_timestamp(field.type):
        return f"unix_micros(`{field.name}`)"
    return f"`{field.name}`"


def by_hudi_rs(path: Path, schema: pa.Schema, time: str | None = None) -> Sum:
    """The same rows as the hudi wheel reads them."""
    options = hudi.HudiReadOptions()
    if time is not None:
        options = options.with_as_of_timestamp(time)
    read = hudi.HudiTableBuilder.from_base_uri(str(path.absolute())).build().read(options)
    rows = pa.Table.from_batches([pa.record_batch(batch) for batch in read])
    return checksum(rows.select([*META, *schema.names]))
