"""The data blocks that Java Hudi wrote, decoded by columns and row by row with fastavro."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from filegroups.files.avro_columns import decode_block
from filegroups.schema.avro_schema import avro_to_arrow
from tests.interop.golden_tables import FOLDER, names

SCHEMA_KEY = 2
WITH_RECORDS = (3, 6)  # Avro data and change data blocks


def blocks(log: bytes) -> Iterator[tuple[str, bytes]]:
    """Return schema and content of every block of records, framed as fmt 5.2 says."""
    at = 0
    while at < len(log):
        assert log[at : at + 6] == b"#HUDI#"
        size, _, kind, entries = struct.unpack_from(">qiii", log, at + 6)
        end, at = at + 14 + size, at + 26
        header = {}
        for _ in range(entries):
            key, length = struct.unpack_from(">ii", log, at)
            header[key] = log[at + 8 : at + 8 + length].decode()
            at += 8 + length
        (length,) = struct.unpack_from(">q", log, at)
        if kind in WITH_RECORDS:
            yield header[SCHEMA_KEY], log[at + 8 : at + 8 + length]
        at = end


def row_by_row(schema_json: str, content: bytes) -> list[dict[str, Any]]:
    schema = fastavro.parse_schema(json.loads(schema_json))
    _, count = struct.unpack_from(">ii", content)
    at, rows = 8, []
    for _ in range(count):
        (length,) = struct.unpack_from(">i", content, at)
        datum = io.BytesIO(content[at + 4 : at + 4 + length])
        rows.append(fastavro.schemaless_reader(datum, schema, None))
        at += 4 + length
    return rows


def normalized(value: Any) -> Any:
    """Return the values of both libraries in one form, with maps as sorted pairs."""
    if isinstance(value, dict):
        return sorted((key, normalized(each)) for key, each in value.items())
    if isinstance(value, list):
        each_plain = [normalized(each) for each in value]
        pairs = all(isinstance(each, tuple) for each in value)
        return sorted(each_plain) if pairs and value else each_plain
    if isinstance(value, tuple):
        return (value[0], normalized(value[1]))
    return value


LOGS = [
    (name, entry)
    for name in names()
    for entry in zipfile.ZipFile(FOLDER / f"{name}.zip").namelist()
    if ".log." in entry and not entry.endswith(".crc") and "/.hoodie/" not in entry
]


@pytest.mark.parametrize("name", sorted({name for name, _ in LOGS}))
def test_columns_and_rows_of_java_blocks_agree(name: str) -> None:
    seen = 0
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        for entry in [entry for table, entry in LOGS if table == name]:
            for schema_json, content in blocks(archive.read(entry)):
                table = decode_block(content, schema_json, path=entry)
                table.validate(full=True)
                expected = row_by_row(schema_json, content)
                assert [normalized(row) for row in table.to_pylist()] == [
                    normalized(r) for r in expected
                ]
                assert table.schema == avro_to_arrow(schema_json)
                seen += 1
    assert seen


def test_a_reader_gets_only_its_columns_in_its_order() -> None:
    with zipfile.ZipFile(FOLDER / "v9_all_types.zip") as archive:
        entry = next(entry for table, entry in LOGS if table == "v9_all_types")
        schema_json, content = next(blocks(archive.read(entry)))
    whole = decode_block(content, schema_json, path=entry)
    for position in range(whole.num_columns - 1, -1, -1):
        wanted = pa.schema([whole.schema.field(position), whole.schema.field(0)][: position + 1])
        part = decode_block(content, schema_json, wanted, path=entry)
        assert part.schema == wanted
        assert part.column(0) == whole.column(position)
