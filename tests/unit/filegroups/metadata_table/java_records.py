"""The records that Java Hudi wrote into the metadata tables of the golden tables, read by fastavro."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import fastavro

from filegroups.files.hfile import open_hfile
from tests.interop import golden_tables
from timeline.codecs.log_blocks import BlockType, BytesSource, iter_blocks, read_content

FOLDER = ".hoodie/metadata/"


@dataclass(frozen=True)
class JavaRecord:
    partition: str
    file_id: str
    key: str
    datum: bytes
    value: dict[str, Any]  # a wrapped bound is a pair of its wrapper's name and {"value": ...}
    schema_text: str


@functools.cache
def java_records(name: str) -> tuple[JavaRecord, ...]:
    """Return the records of all base files and data blocks, also of replaced and invisible ones."""
    found: list[JavaRecord] = []
    for partition, file, data in java_files(name):
        file_id = file.removeprefix(".").split("_")[0]
        for content in _contents(file, data):
            hfile = open_hfile(BytesSource(content), len(content), path=file)
            text = hfile.info[b"schema"].decode()
            parsed = fastavro.parse_schema(json.loads(text))
            for row in hfile.read_all().to_pylist():
                value = fastavro.schemaless_reader(
                    io.BytesIO(row["value"]), parsed, return_record_name=True,
                    return_record_name_override=True,
                )  # fmt: skip
                key = row["key"].decode()
                found.append(JavaRecord(partition, file_id, key, row["value"], value, text))
    return tuple(found)


def java_files(name: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield partition, name and bytes of each file with records in a golden metadata table."""
    with golden_tables.open_zip(name) as archive:
        for path in archive.namelist():
            place = PurePosixPath(path)
            partition = place.parent.as_posix().removeprefix(FOLDER)
            is_data = place.suffix == ".hfile" or ".log." in place.name
            if path.startswith(FOLDER) and "/" not in partition and is_data:
                yield partition, place.name, archive.read(path)


def _contents(file: str, data: bytes) -> Iterator[bytes]:
    if file.endswith(".hfile"):
        yield data
        return
    source = BytesSource(data)
    for block in iter_blocks(source, len(data), path=file):
        if block.block_type is BlockType.HFILE_DATA:
            yield read_content(source, block)
