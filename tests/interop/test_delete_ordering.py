"""
Our deletes and updates next to Java's, for every type that an ordering field may have.

A delete block has the ordering value of a delete in a wrapper of its type. If Java compared with
another type, Java would stop, or a late row would revive a deleted one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from tests.interop.java import JavaOracle
from tests.interop.mor import COMMON, EVENT_TIME, JAVA, SIMPLE, by_hudi_rs
from tests.interop.values import comparable, encoded, same

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of an ordering field, and three of its values: early, usual, late."""

    arrow: pa.DataType
    spark: str
    values: tuple[Any, Any, Any]


def at(day: int, microsecond: int = 0) -> dt.datetime:
    return dt.datetime(2024, 2, day, 12, 0, 0, microsecond, dt.UTC)


KINDS = {
    "int": Kind(pa.int32(), "int", (-5, 1, 7)),
    "long": Kind(pa.int64(), "bigint", (-(2**40), 9, 2**40)),
    "float": Kind(pa.float32(), "float", (-1.5, 0.25, 1e10)),
    "double": Kind(pa.float64(), "double", (-1.5, 0.1, 1e300)),
    "string": Kind(pa.string(), "string", ("B", "a", "ä")),
    "date": Kind(
        pa.date32(), "date", (dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(2024, 3, 1))
    ),
    "timestamp": Kind(pa.timestamp("us", tz="UTC"), "timestamp", (at(1), at(2), at(2, 1))),
    "decimal": Kind(
        pa.decimal128(12, 2), "decimal(12,2)", (Decimal("-3.10"), Decimal("9.90"), Decimal("10.00"))
    ),
}
RELEASES = (("1.2.0", 9), ("1.2.0", 8), ("1.1.1", 9), ("1.0.2", 8))
CASES = [
    pytest.param(release, version, name, id=f"{release}-v{version}-{name}")
    for release, version in RELEASES
    for name in KINDS
    if (release, name) != ("1.0.2", "decimal")  # it cannot compare its own, either
]


@pytest.mark.parametrize(("release", "version"), [("1.2.0", "9"), ("1.0.2", "8")])
def test_java_shows_the_newer_rows_of_our_logs_where_texts_order_them(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, release: str, version: str
) -> None:
    """The last row of a block is late; Java compares its text for all rows of a Parquet block."""
    options = {**COMMON, **EVENT_TIME, **SIMPLE, "hoodie.write.table.version": version}
    names = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.string())])
    schema = names.append(pa.field("val", pa.int64()))

    def write(table: hoodoo.Table, value: int, texts: str) -> None:
        rows = [
            {"id": key, "p": "x", "ts": ts, "val": value}
            for key, ts in zip("abc", texts, strict=True)
        ]
        table.upsert(pa.Table.from_pylist(rows, schema))

    with hoodoo.create_table(tmp_path / "t", schema=schema, properties=options) as table:
        write(table, 1, "mmm")
        write(table, 2, "zza")
        mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
    assert {row["id"]: row["val"] for row in mine} == {"a": 2, "b": 2, "c": 1}
    assert same(comparable(java_oracle(release).read(tmp_path / "t")), mine)


@pytest.mark.slow
@pytest.mark.parametrize(("release", "version", "name"), CASES)
def test_java_compares_our_deletes_as_we_do(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, release: str, version: int, name: str
) -> None:
    java, path, kind = java_oracle(release), tmp_path / "t", KINDS[name]
    early, usual, late = kind.values
    options = {**COMMON, **EVENT_TIME, **SIMPLE, "hoodie.write.table.version": str(version)}
    schema = pa.schema(
        [
            pa.field("id", pa.string()),
            pa.field("p", pa.string()),
            pa.field("ts", kind.arrow),
            pa.field("val", pa.string()),
            pa.field("_hoodie_is_deleted", pa.bool_()),
        ]
    )

    def row(key: str, ts: Any, val: str, *, gone: bool = False) -> dict[str, Any]:
        return {"id": key, "p": "x", "ts": ts, "val": val, "_hoodie_is_deleted": gone}

    def arrow(*rows: dict[str, Any]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), schema)

    def theirs(*rows: dict[str, Any]) -> None:
        rows_in_json = [{**each, "ts": in_json(each["ts"])} for each in rows]
        ddl = f"id string, p string, ts {kind.spark}, val string, _hoodie_is_deleted boolean"
        java.write(path, rows_in_json, schema=ddl, conf={**options, **JAVA})

    def everybody_sees(expected: dict[str, str]) -> None:
        with hoodoo.open_table(path, properties=options) as table:
            mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
        assert {each["id"]: each["val"] for each in mine} == expected
        assert same(comparable(java.read(path)), mine)
        assert same(by_hudi_rs(path), mine)

    with hoodoo.create_table(path, schema=schema, properties=options) as table:
        table.upsert(arrow(*(row(key, usual, "first") for key in "abcdefghijk")))
    theirs(row("a", late, "java"), row("b", early, "java"), row("j", late, "java"))
    with hoodoo.open_table(path, properties=options) as table:
        # rows marked as deleted: below, above and equal to the existing ordering values
        table.upsert(
            arrow(
                row("a", usual, "", gone=True),
                row("b", usual, "", gone=True),
                row("c", early, "", gone=True),
                row("d", late, "", gone=True),
                row("e", usual, "", gone=True),
            )
        )
        # deletes by key have the ordering of the row they delete
        table.delete(arrow(*(row(key, early, "") for key in "fghij")))
    now = {"a": "java", "c": "first", "k": "first"}
    everybody_sees(now)

    # Java's updates, earlier and later than our deletes
    theirs(
        row("b", late, "again"),
        row("d", usual, "late"),
        row("e", early, "late"),
        row("f", late, "again"),
        row("g", early, "late"),
        row("h", usual, "again"),
        row("j", usual, "late"),
    )
    now |= {"b": "again", "f": "again", "h": "again"}
    everybody_sees(now)
    java.service(path, "compact", conf={**options, **JAVA, "hoodie.auto.commit": "true"})
    everybody_sees(now)
    with hoodoo.open_table(path, properties=options) as table:
        assert not any(each.log_files for each in table.file_slices())


def in_json(value: Any) -> Any:
    """As Spark's JSON reader takes it."""
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, dt.date | Decimal) else value


@pytest.mark.parametrize("release", ["1.2.0", "1.1.1"])
def test_java_compares_our_deletes_by_several_fields(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, release: str
) -> None:
    java, path = java_oracle(release), tmp_path / "t"
    options = {**COMMON, **SIMPLE, "hoodie.datasource.write.precombine.field": "day,ts"}
    schema = pa.schema(
        [
            pa.field("id", pa.string()),
            pa.field("p", pa.string()),
            pa.field("day", pa.date32()),
            pa.field("ts", pa.int64()),
            pa.field("val", pa.string()),
            pa.field("_hoodie_is_deleted", pa.bool_()),
        ]
    )

    def rows(*values: tuple[str, int, int, str]) -> pa.Table:
        listed = [
            {"id": key, "p": "x", "day": dt.date(2024, 1, day), "ts": ts, "val": val}
            | {"_hoodie_is_deleted": not val}
            for key, day, ts, val in values
        ]
        return pa.Table.from_pylist(listed, schema)

    with hoodoo.create_table(path, schema=schema, properties=options) as table:
        table.upsert(rows(*((key, 2, 5, "first") for key in "abcd")))
        table.upsert(rows(("a", 2, 4, ""), ("b", 3, 1, "")))
        table.delete(rows(("c", 1, 1, "")))
        table.upsert(rows(("b", 2, 9, "late"), ("c", 2, 5, "tie")))
        mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
    assert {each["id"]: each["val"] for each in mine} == {"a": "first", "c": "tie", "d": "first"}
    assert same(comparable(java.read(path)), mine)
