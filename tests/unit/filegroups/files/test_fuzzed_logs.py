"""
Damaged log files give blocks, rows and deletes, or a clear error, and nothing else.

Goal: no bytes on the disk make a reader hang, crash, read without end or use memory beyond
their own size. Method: thousands of seeded mutants of Java's log files and of our own.
"""

from __future__ import annotations

import random
import tempfile
import tracemalloc
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from filegroups.files.avro_columns import decode_block
from filegroups.files.delete_block import decode_deletes, encode_deletes
from tests.fuzzing import mutants
from tests.interop import golden_tables
from timeline.codecs.log_blocks import (
    BlockType,
    HeaderKey,
    LogBlock,
    encode_block,
    iter_blocks,
    read_content,
)
from timeline.errors import HoodooError

SEED = 5
CASES = 2_000
CASES_NIGHTLY = 100_000
PARTS_NIGHTLY = 10
TABLES = (
    "v6_mor_logs",
    "v8_deletes_ordering",
    "v8_log_compaction",
    "v8_mor_logs",
    "v8_partial_update",
    "v9_all_types",
    "v9_cdc_mor",
    "v9_multi_ordering",
    "v9_schema_evolution",
)
WORDS = (b"#HUDI#", b"#HUDI#" + bytes(7) + b"\x40", b"HUDI")


class BoundedSource:
    """Fails when a reader asks for more than the file's size can explain."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads_left = 100 + len(data) // 8

    def read_at(self, offset: int, length: int, /) -> bytes:
        assert 0 <= offset <= offset + length <= len(self.data)
        self.reads_left -= 1
        assert self.reads_left > 0, "the reader does not end"
        return self.data[offset : offset + length]


@cache
def good() -> tuple[bytes, ...]:
    """Return every log file of some golden tables, and files with further shapes."""
    with tempfile.TemporaryDirectory() as folder:
        files = [
            file.read_bytes()
            for name in TABLES
            for file in sorted(golden_tables.unpack(name, Path(folder)).rglob(".*.log.*"))
            if not file.name.endswith(".crc")
        ]
    return (*(file for file in files if file), *ours())


def ours() -> list[bytes]:
    header = {HeaderKey.INSTANT_TIME: "20261121102318499", HeaderKey.SCHEMA: '"long"'}
    rollback = encode_block(
        BlockType.COMMAND,
        {
            HeaderKey.INSTANT_TIME: "20261121102318499",
            HeaderKey.TARGET_INSTANT_TIME: "20261121102315779",
            HeaderKey.COMMAND_BLOCK_TYPE: "0",
        },
        b"",
    )
    keys = pa.array([f"k{n}" for n in range(300)])
    columns = [pa.array(range(300)), pa.array([f"v{n}" for n in range(300)])]
    contents = [
        encode_deletes(keys, "region=us", columns[:1]),
        encode_deletes(keys.slice(0, 5), "", columns_of(columns, 5)),
        encode_deletes(keys.slice(0, 3), "p"),
    ]
    deletes = [encode_block(BlockType.DELETE, header, content) for content in contents]
    parquet = encode_block(BlockType.PARQUET_DATA, header, b"PAR1" + bytes(50) + b"PAR1")
    torn = deletes[2][:-20]
    return [
        b"".join(deletes),
        deletes[2] + rollback + deletes[1],
        parquet + torn + parquet,
        rollback * 3,
    ]


def columns_of(columns: list[pa.Array], rows: int) -> list[pa.Array]:
    return [column.slice(0, rows) for column in columns]


def read_everything(data: bytes) -> int:
    """Find and decode the blocks as a reader of slices does; return their number."""
    source = BoundedSource(data)
    found: list[LogBlock] = []
    end_offset = 0
    for block in iter_blocks(source, len(data), path="p/x.log"):
        assert block.offset == end_offset, "every byte belongs to exactly one block"
        assert block.end_offset > block.offset
        end_offset = block.end_offset
        found.append(block)
    assert end_offset == len(data)
    for block in found:
        try:
            decode(source, block)
        except HoodooError as error:
            assert error.message  # noqa: PT017
    return len(found)


def decode(source: BoundedSource, block: LogBlock) -> None:
    if block.block_type is BlockType.DELETE:
        deletes = decode_deletes(read_content(source, block), path=block.path)
        deletes.validate(full=True)
    elif block.block_type in (BlockType.AVRO_DATA, BlockType.CDC_DATA):
        content = read_content(source, block)
        rows = decode_block(content, block.schema_json, path=block.path)
        rows.validate(full=True)


@cache
def blocks() -> tuple[tuple[LogBlock, bytes], ...]:
    """Return every valid block with its bytes, from magic to reverse pointer."""
    return tuple(
        (block, data[block.offset : block.end_offset])
        for data in good()
        for block in iter_blocks(BoundedSource(data), len(data), path="x")
        if block.block_type is not BlockType.CORRUPT
    )


def mutants_within(seed: int, count: int) -> Iterator[bytes]:
    """Return blocks with a whole frame and a mutated header or content."""
    for inside in mutants(seed, [data[14:-8] for _, data in blocks()], count, words=WORDS):
        size = len(inside) + 8
        yield b"#HUDI#" + size.to_bytes(8) + inside + (size + 6).to_bytes(8)


def mutants_of_contents(seed: int, count: int) -> Iterator[bytes]:
    """Return blocks with a mutated content only, so that schemas and lengths fit."""
    filled = [(block, data) for block, data in blocks() if block.content_length]
    chance = random.Random(seed)
    for one in range(count):
        block, data = chance.choice(filled)
        start = block.content_offset - block.offset
        content = data[start : start + block.content_length]
        for mutant in mutants(seed + one, [content], 1):
            yield encode_block(block.block_type, block.header, mutant)


def run(seed: int, count: int) -> tuple[int, int]:
    """Count the files that are read and those that are refused."""
    read = refused = 0
    kinds = (
        mutants(seed, good(), count // 3, words=WORDS),
        mutants_within(seed, count // 3),
        mutants_of_contents(seed, count - 2 * (count // 3)),
    )
    for number, data in enumerate(chain.from_iterable(kinds)):
        try:
            read_everything(data)
            read += 1
        except HoodooError as error:
            assert "p/x.log" in error.message  # noqa: PT017
            refused += 1
        except BaseException as error:
            error.add_note(f"mutant {number} of seed {seed} and count {count}")
            raise
    return read, refused


def test_the_good_files_are_read() -> None:
    assert len(good()) > 25
    for data in good():
        assert read_everything(data) > 0


def test_mutants_of_log_files_are_read_or_refused() -> None:
    read, refused = run(SEED, CASES)
    assert read > CASES / 4
    assert refused > CASES / 10


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS_NIGHTLY))
def test_many_mutants_of_log_files_are_read_or_refused(nightly: bool, part: int) -> None:
    cases = CASES_NIGHTLY // PARTS_NIGHTLY if nightly else CASES
    assert sum(run(1000 + part, cases)) == cases


def test_mutants_of_delete_records_are_read_or_refused() -> None:
    """The mutants are below the content's own length, which most changes contradict."""
    datums = [
        data[block.content_offset - block.offset + 8 : -12]
        for block, data in blocks()
        if block.block_type is BlockType.DELETE
    ]
    read = 0
    for datum in mutants(SEED, datums, CASES):
        content = (3).to_bytes(4) + len(datum).to_bytes(4) + datum
        try:
            decode_deletes(content, path="x").validate(full=True)
            read += 1
        except HoodooError:
            continue
    assert CASES / 20 < read < CASES


def test_mutants_take_no_more_memory_than_their_size_explains() -> None:
    largest = max(len(data) for data in good())
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        run(SEED + 1, 300)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert largest < 100_000
    assert peak < 8 * 1024 * 1024
    assert pool.max_memory() < 8 * 1024 * 1024
