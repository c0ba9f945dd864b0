"""The tables whose entries are compared with those that Java's own sync makes."""

from __future__ import annotations

import datetime as dt
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import hoodoo

H = "hoodie.datasource.hive_sync."
EXTRACTOR = f"{H}partition_extractor_class"
DAY = "org.apache.hudi.hive.SlashEncodedDayPartitionValueExtractor"
EVERY_TYPE = pa.schema(
    [
        ("id", pa.string()),
        ("ts", pa.int64()),
        ("i", pa.int32()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("bin", pa.binary()),
        ("dec", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("tl", pa.timestamp("us")),
        ("tm", pa.timestamp("ms", "UTC")),
        ("arr", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int32())),
        (
            "s",
            pa.struct(
                [
                    ("a", pa.int32()),
                    (
                        "x",
                        pa.list_(
                            pa.struct(
                                [("Y", pa.timestamp("us", "UTC")), ("z", pa.decimal128(5, 1))]
                            )
                        ),
                    ),
                ]
            ),
        ),
        ("Mixed", pa.string()),
        ("region", pa.string()),
        ("hour", pa.int32()),
    ]
)
BY_DAY = pa.schema([("id", pa.string()), ("p", pa.string())])

#: Table -> how it is created.
TABLES: dict[str, dict[str, object]] = {
    "cow": {"partition_by": "region"},
    "hive": {
        "partition_by": "region",
        "properties": {"hoodie.datasource.write.hive_style_partitioning": "true"},
    },
    "multi": {"partition_by": ["region", "hour"]},
    "flat": {},
    "mor": {"partition_by": "region", "table_type": "MERGE_ON_READ"},
}
#: Database of the catalog -> the tables synced into it, and the options. Java's sync needs the
#: partition columns among its options, and ours takes them from the table.
SYNCS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "plain": (tuple(TABLES), {}),
    "days": (("day",), {f"{H}partition_fields": "dt", EXTRACTOR: DAY}),
    "chosen": (
        ("cow",),
        {
            f"{H}support_timestamp": "true",
            f"{H}sync_comment": "true",
            f"{H}omit_metadata_fields": "true",
            f"{H}create_managed_table": "true",
            f"{H}table_properties": "a=b\nc=d",
            f"{H}serde_properties": "e=f",
            f"{H}schema_string_length_thresh": "500",
            "hoodie.meta_sync.spark.version": "3.5.1",
        },
    ),
    "optimized": (("mor",), {f"{H}table.strategy": "RO"}),
    "realtime": (("mor",), {f"{H}table.strategy": "RT"}),
    "no_suffix": (("mor",), {f"{H}skip_ro_suffix": "true"}),
}


def make_tables(folder: Path) -> None:
    """Write each table below the folder."""
    rows = pa.Table.from_pylist([_row(1, "eu"), _row(2, "us")], schema=EVERY_TYPE)
    for name, how in TABLES.items():
        with hoodoo.create_table(
            folder / name, schema=EVERY_TYPE, record_key="id", ordering="ts", **how
        ) as table:
            table.upsert(rows)
    with hoodoo.create_table(
        folder / "day", schema=BY_DAY, record_key="id", partition_by="p"
    ) as table:
        table.upsert([{"id": "1", "p": "2026/01/02"}])


def _row(number: int, region: str) -> dict[str, object]:
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    return {
        "id": str(number),
        "ts": number,
        "i": number,
        "f": 1.0,
        "d": 2.0,
        "b": True,
        "bin": b"x",
        "dec": Decimal("1.25"),
        "day": dt.date(2026, 1, 1),
        "t": noon,
        "tl": noon.replace(tzinfo=None),
        "tm": noon,
        "arr": ["a"],
        "m": [("k", 1)],
        "s": {"a": 1, "x": [{"Y": None, "z": None}]},
        "Mixed": "q",
        "region": region,
        "hour": number,
    }


# ---- A small table that each test makes

SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64()), ("region", pa.string())])


def make(folder: Path, properties: dict[str, str], **how: Any) -> hoodoo.Table:
    return hoodoo.create_table(
        folder / "t",
        schema=SCHEMA,
        record_key="id",
        partition_by="region",
        properties=properties,
        **how,
    )


def rows(*regions: str, v: int = 1) -> list[dict[str, object]]:
    return [{"id": region, "v": v, "region": region} for region in regions]


def write_at_once(folder: Path, properties: dict[str, str]) -> set[tuple[str, ...]]:
    """Make the table, and let four threads write and drop partitions; return those that are left."""
    make(folder, properties).close()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with hoodoo.open_table(folder / "t", properties=properties) as table:
                for turn in range(4):
                    table.upsert(rows(f"p{number}-{turn}"))
                    if turn == 2:
                        table.delete_partitions([f"p{number}-{turn}"])
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failures == []
    return {(f"p{number}-{turn}",) for number in range(4) for turn in (0, 1, 3)}
