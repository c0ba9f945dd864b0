"""More kinds of tables: every column type, other keys, folders and zones, and tables that Java made."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import CliRunner

from hoodoo.cli import main
from tests.golden_run.steps import GoldenRun

MADE_BY_JAVA = Path(__file__).resolve().parents[1] / "interop" / "golden"
#: Those tables were made in November 2026.
AFTER_JAVA_MS = 1_800_000_000_000
ALL_TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("yes", pa.bool_()),
        ("small", pa.int32()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("fixed", pa.binary(4)),
        ("money", pa.decimal128(20, 3)),
        ("day", pa.date32()),
        ("millis", pa.timestamp("ms", "UTC")),
        ("micros", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("list", pa.list_(pa.int32())),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("nested", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
    ]
)


def _typed(number: int) -> dict[str, Any]:
    if number % 3 == 0:
        return {"id": number}
    moment = datetime(2024, 2, 29, 12, 30, number, 123_456, UTC)
    return {
        "id": number,
        "yes": number % 2 == 0,
        "small": -number,
        "single": number / 4,
        "double": number / 3,
        "text": f"text {number} é",
        "raw": bytes([number, 0, 255]),
        "fixed": bytes(4),
        "money": Decimal(number) / 8,
        "day": date(1969, 12, number),
        "millis": moment.replace(microsecond=123_000),
        "micros": moment,
        "local": moment.replace(tzinfo=None),
        "list": [number, None],
        "map": [("k", number)],
        "nested": {"a": number, "b": ["x"]},
    }


def _all_types(run: GoldenRun, name: str, table_type: str, **properties: str) -> None:
    run.scenario(name)
    table = run.create(
        schema=ALL_TYPES, record_key="id", table_type=table_type, properties=properties
    )
    with run.step("insert"):
        table.insert(pa.Table.from_pylist([_typed(one) for one in range(1, 9)], ALL_TYPES))
    with run.step("upsert and delete"):
        table.upsert(pa.Table.from_pylist([_typed(one) for one in range(4, 12)], ALL_TYPES))
        table.delete(pa.table({"id": [5]}))
    with run.step("close"):
        table.close()


def all_types_in_base_files(run: GoldenRun) -> None:
    _all_types(run, "types", "COPY_ON_WRITE", **{"hoodie.table.cdc.enabled": "true"})


def all_types_in_avro_blocks(run: GoldenRun) -> None:
    _all_types(run, "avro", "MERGE_ON_READ", **{"hoodie.logfile.data.block.format": "avro"})


def all_types_in_parquet_blocks(run: GoldenRun) -> None:
    _all_types(run, "blocks", "MERGE_ON_READ", **{"hoodie.logfile.data.block.format": "parquet"})


SMALL = pa.schema([("id", pa.string()), ("at", pa.int64()), ("v", pa.int64())])


def _small(keys: range, value: int) -> pa.Table:
    rows = [{"id": f"k{key}", "at": key * 86_400_000, "v": value} for key in keys]
    return pa.Table.from_pylist(rows, SMALL)


def _small_table(run: GoldenRun, **options: Any) -> None:
    table = run.create(schema=SMALL, **options)
    with run.step("insert"):
        table.insert(_small(range(4), 1))
    with run.step("upsert"):
        table.upsert(_small(range(2, 6), 2))
    with run.step("close"):
        table.close()


def without_meta_columns(run: GoldenRun) -> None:
    run.scenario("virtual")
    _small_table(run, record_key="id", properties={"hoodie.populate.meta.fields": "false"})


def without_keys(run: GoldenRun) -> None:
    run.scenario("keyless")
    table = run.create(schema=SMALL)
    with run.step("insert"):
        table.insert(_small(range(4), 1))
    with run.step("delete where"):
        table.delete([("id", "=", "k2")])
    with run.step("close"):
        table.close()


def folders_of_times(run: GoldenRun) -> None:
    run.scenario("folders")
    _small_table(
        run,
        record_key="id",
        partition_by="at",
        properties={
            "hoodie.datasource.write.keygenerator.type": "TIMESTAMP",
            "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
            "hoodie.keygen.timebased.output.dateformat": "yyyy/MM/dd",
            "hoodie.datasource.write.hive_style_partitioning": "true",
            "hoodie.datasource.write.partitionpath.urlencode": "true",
        },
    )


def instants_of_another_zone(run: GoldenRun) -> None:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    try:
        run.scenario("zone")
        _small_table(run, record_key="id", properties={"hoodie.table.timeline.timezone": "LOCAL"})
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before


def consistent_buckets(run: GoldenRun) -> None:
    run.scenario("consistent")
    _small_table(
        run,
        record_key="id",
        table_type="MERGE_ON_READ",
        properties={
            "hoodie.index.type": "BUCKET",
            "hoodie.index.bucket.engine": "CONSISTENT_HASHING",
            "hoodie.bucket.index.num.buckets": "2",
        },
    )


def _made_by_java(run: GoldenRun, name: str) -> None:
    run.scenario(name)
    run.machine.now_ms = AFTER_JAVA_MS
    with zipfile.ZipFile(MADE_BY_JAVA / f"{name}.zip") as archive:
        archive.extractall(run.machine.root)
    run.take_over()


def metadata_table_maintained(run: GoldenRun) -> None:
    _made_by_java(run, "v9_cow_mdt_record_index")
    table = run.open("ours")
    with run.step("upsert"):
        table.upsert([{"id": "new", "ts": 1_000, "val": 1.0, "name": "by us", "region": "xx"}])
    with run.step("close"):
        table.close()


def upgrade_of_version_6(run: GoldenRun) -> None:
    for name in ("v6_mor_logs", "v6_cow_clean_archive"):
        _made_by_java(run, name)
        with run.step("upgrade"):
            run.machine.known_as("upgrade")
            done = CliRunner().invoke(main, ["table", "upgrade", "--yes", run.address])
            assert done.exit_code == 0, done.output
            run.machine.draw_again()
        table = run.open("ours")
        with run.step("write on"):
            table.delete([("id", "!=", "")])
        with run.step("close"):
            table.close()


KINDS_OF_TABLES: tuple[Callable[[GoldenRun], None], ...] = (
    all_types_in_base_files,
    all_types_in_avro_blocks,
    all_types_in_parquet_blocks,
    without_meta_columns,
    without_keys,
    folders_of_times,
    instants_of_another_zone,
    consistent_buckets,
    metadata_table_maintained,
    upgrade_of_version_6,
)
