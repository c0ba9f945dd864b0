"""
Write HFiles: the base files and data blocks of the metadata table.

The file is of version 3 with an index of one level, as Hudi's own writer makes it. Blocks are small,
because a look-up unpacks a whole block for one key; those of Java's writer have 1 MiB. Small blocks
make a file larger by about a quarter. The file differs in three more points, which make released
readers fail on files of Java's writer. One checksum covers a whole block: Java's reader ends a block
too early by the size of its checksums and loses the last entries. Keys of the index have HBase's
suffix, which older readers expect. Each block has the offset of the one before.

Equal entries give equal bytes. A block's entries are one join of whole columns.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from itertools import pairwise
from typing import IO, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.schema.arrow_columns import one_array
from timeline.errors import InvalidInputError, InvariantError

BLOCK_BYTES: Final = 8 * 1024
"""Uncompressed bytes of a data block; a larger entry is a block by itself."""

KEY_BYTES_MAX: Final = 2**15 - 1
"""The longest key: HBase stores its length in a signed short."""

_TRAILER_BYTES: Final = 4096
_HEAD: Final = struct.Struct(">8siiqBii")
_NO_CHECKSUM: Final = 0
_BYTES_PER_CHECKSUM: Final = 2**30
_CHECKSUM_BYTES: Final = 4
_SUFFIX: Final = b"\0" + struct.pack(">qb", 2**63 - 1, 4)  # no family, latest time, a put
_ENTRY_BYTES: Final = 4 + 4 + 2 + len(_SUFFIX) + 1  # what an entry has besides key and value
_VERSION: Final = b"\0"  # after each value
_ENTRY_HEAD: Final = struct.Struct(">iiH")
_FEW_ENTRIES: Final = 32  # so few take longer by columns
_COMPARATOR: Final = b"org.apache.hudi.io.storage.HoodieHBaseKVComparator"
_GZIP = 1
_NO_OFFSET: Final = -1
_GZIP_HEAD: Final = b"\x1f\x8b\x08\0\0\0\0\0\0\x03"  # no name, no time, made on Unix
_STORED_BYTES_MAX: Final = 64  # so short contents are not compressed

Integers: TypeAlias = npt.NDArray[np.int64]


def encode_hfile(
    entries: pa.Table,
    *,
    schema_json: str,
    created_ms: int,
    block_bytes: int = BLOCK_BYTES,
) -> bytes:
    """Return a whole file. Arguments, errors: as ``write_hfile`` for one part."""
    sink = BytesIO()
    few = entries.num_rows <= _FEW_ENTRIES
    blocks = _few_blocks(entries, block_bytes) if few else _many_blocks([entries], block_bytes)
    _write(sink, blocks, schema_json, created_ms)
    return sink.getvalue()


def write_hfile(
    sink: IO[bytes],
    parts: Iterable[pa.Table],
    *,
    schema_json: str,
    created_ms: int,
    block_bytes: int = BLOCK_BYTES,
) -> WrittenHFile:
    """
    Write sorted entries as a file. One part and one block are in memory at a time.

    How the entries are cut into parts does not change the bytes.

    Args:
        sink: Receives the bytes.
        parts: Columns ``key`` and ``value`` of bytes without nulls, in ascending order of keys over
            all parts, each key once.
        schema_json: Avro schema of the values; readers decode with it.
        created_ms: Creation time in the file, milliseconds since 1970.
        block_bytes: Uncompressed bytes of a data block; tests set fewer to fill many blocks.

    Raises:
        InvariantError: Keys repeat or are not in order.
        InvalidInputError: A key is longer than `KEY_BYTES_MAX` (``long_key``).
    """
    return _write(sink, _many_blocks(parts, block_bytes), schema_json, created_ms)


def _write(
    sink: IO[bytes],
    blocks: Iterable[_Block],
    schema_json: str,
    created_ms: int,
) -> WrittenHFile:
    file = _File(sink)
    root = []
    last, count, key_bytes, value_bytes = b"", 0, 0, 0
    for block in blocks:
        first = block.first
        if count and first <= last:
            raise _not_in_order()
        at, size = file.add(b"DATABLK*", block.content)
        root.append(struct.pack(">qi", at, size) + _hadoop_int(len(first) + 12) + _row_key(first))
        last, count = block.last, count + block.count
        key_bytes, value_bytes = key_bytes + block.key_bytes, value_bytes + block.value_bytes
    data_blocks = file.offsets[b"DATABLK*"]
    load_on_open, _ = file.add(b"IDXROOT2", b"".join(root))
    file.add(b"IDXROOT2", b"")  # the index of meta blocks, which readers expect
    info = {
        b"MAX_MEMSTORE_TS_KEY": bytes(8),
        b"KEY_VALUE_VERSION": struct.pack(">i", 1),
        b"hfile.LASTKEY": _row_key(last) if count else b"",
        b"hfile.AVG_KEY_LEN": struct.pack(">i", key_bytes // max(1, count)),
        b"hfile.AVG_VALUE_LEN": struct.pack(">i", value_bytes // max(1, count)),
        b"hfile.CREATE_TIME_TS": struct.pack(">q", created_ms),
    }
    pairs = b"".join(_text(1, _text(1, name) + _text(2, text)) for name, text in info.items())
    schema = _schema_info(schema_json)
    head = b"PBUF" + _varint(len(pairs) + len(schema.content)) + pairs
    info_at, _ = file.add(b"FILEINF2", head, schema)
    trailer = (
        _number(1, info_at),
        _number(2, load_on_open),
        _number(3, sum(map(len, root))),
        _number(4, file.uncompressed_bytes),
        _number(5, len(root)),
        _number(6, 0),  # meta blocks
        _number(7, count),
        _number(8, 1),  # levels of the index
        _number(9, data_blocks[0] if data_blocks else 2**64 + _NO_OFFSET),
        _number(10, data_blocks[-1] if data_blocks else 0),
        _text(11, _COMPARATOR),
        _number(12, _GZIP),
    )
    return WrittenHFile(entries=count, size_bytes=file.close(b"".join(trailer)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenHFile:
    """The number of entries of a file, and its size in bytes."""

    entries: int
    size_bytes: int


def _not_in_order() -> InvariantError:
    return InvariantError("the keys of an HFile repeat or are not in order; report it")


def _check(keys: pa.Array, sizes: Integers) -> None:
    if len(keys) > 1 and not pc.all(pc.less(keys[:-1], keys[1:])).as_py():
        raise _not_in_order()
    _check_longest(int(sizes.max(initial=0)))


def _check_longest(longest: int) -> None:
    if longest > KEY_BYTES_MAX:
        raise InvalidInputError(
            f"a key of the metadata table has at most {KEY_BYTES_MAX} bytes: shorten the record "
            "key or the indexed value, or drop the index of the metadata table that holds it: "
            f"{longest} bytes",
            kind="long_key",
            size_bytes=longest,
        )


def _sizes(column: pa.Array) -> Integers:
    return np.asarray(pc.binary_length(column)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Block:
    """A data block: its first and last key, its entries, the bytes of their keys and values."""

    first: bytes
    last: bytes
    count: int
    key_bytes: int
    value_bytes: int
    content: bytes | memoryview


def _few_blocks(entries: pa.Table, block_bytes: int) -> Iterator[_Block]:
    """Yield the blocks of ``_many_blocks`` for at most `_FEW_ENTRIES`, one entry after the other."""
    keys, values = (
        one_array(entries.column(name)).cast(pa.binary()).to_pylist() for name in ("key", "value")
    )
    if any(one >= other for one, other in pairwise(keys)):
        raise _not_in_order()
    _check_longest(max(map(len, keys), default=0))
    start = 0
    while start < len(keys):
        until, size = start, 0
        content: list[bytes] = []
        for key, value in zip(keys[start:], values[start:], strict=True):
            size += len(key) + len(value) + _ENTRY_BYTES
            if content and size > block_bytes:
                break
            head = _ENTRY_HEAD.pack(len(key) + 12, len(value), len(key))
            content += (head, key, _SUFFIX, value, _VERSION)
            until += 1
        yield _Block(
            keys[start],
            keys[until - 1],
            until - start,
            sum(map(len, keys[start:until])),
            sum(map(len, values[start:until])),
            b"".join(content),
        )
        start = until


def _many_blocks(parts: Iterable[pa.Table], block_bytes: int) -> Iterator[_Block]:
    """Yield the blocks of some parts. Errors: as ``_check``."""
    for keys, values, key_sizes, value_sizes in _columns_of_blocks(parts, block_bytes):
        yield _Block(
            keys[0].as_py(),
            keys[-1].as_py(),
            len(keys),
            int(key_sizes.sum()),
            int(value_sizes.sum()),
            _entries(keys, values, key_sizes, value_sizes),
        )


#: Keys, values and the sizes of both.
_Columns: TypeAlias = tuple[pa.Array, pa.Array, Integers, Integers]


def _columns_of_blocks(parts: Iterable[pa.Table], block_bytes: int) -> Iterator[_Columns]:
    """Yield the entries of each block: as many as fit, at least one. Errors: as ``_check``."""
    left: _Columns | None = None
    for part in parts:
        keys, values = (one_array(part.column(name)).cast(pa.binary()) for name in ("key", "value"))
        if left is not None:
            keys, values = pa.concat_arrays([left[0], keys]), pa.concat_arrays([left[1], values])
        sizes = _sizes(keys), _sizes(values)
        _check(keys, sizes[0])
        for rows in _block_rows(sizes[0] + sizes[1] + _ENTRY_BYTES, block_bytes):
            left = keys[rows], values[rows], sizes[0][rows], sizes[1][rows]
            if rows.stop < len(keys):  # the last one may go on in the next part
                yield left
    if left is not None:
        yield left


def _block_rows(sizes: Integers, block_bytes: int) -> Iterator[slice]:
    """Yield the rows of each block."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        until = max(start + 1, int(np.searchsorted(ends, before + block_bytes, side="right")))
        yield slice(start, until)
        start = until


def _entries(
    keys: pa.Array, values: pa.Array, key_sizes: Integers, value_sizes: Integers
) -> memoryview:
    """Return the entries of a block: lengths, HBase's key, value and version of each."""
    heads = np.zeros(len(keys), np.dtype([("key", ">i4"), ("value", ">i4"), ("row", ">u2")]))
    heads["key"], heads["value"], heads["row"] = key_sizes + 12, value_sizes, key_sizes
    head = pa.Array.from_buffers(
        pa.binary(heads.itemsize), len(keys), [None, pa.py_buffer(heads.tobytes())]
    ).cast(pa.binary())
    suffix, version, nothing = (pa.scalar(text, pa.binary()) for text in (_SUFFIX, _VERSION, b""))
    joined = pc.binary_join_element_wise(head, keys, suffix, values, version, nothing)
    _, offsets, content = joined.buffers()
    return memoryview(content)[: np.frombuffer(offsets, np.int32)[len(keys)]]


def _row_key(row: bytes) -> bytes:
    return struct.pack(">H", len(row)) + row + _SUFFIX


class _File:
    """The blocks of a file, in sequence."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self._at = 0
        self.offsets: defaultdict[bytes, list[int]] = defaultdict(list)  # of blocks, by type
        self.uncompressed_bytes = 0

    def add(self, magic: bytes, content: Any, end: _Constant | None = None) -> tuple[int, int]:
        """Append a block of a content, which a constant may end; return its offset and its bytes."""
        data = self._packed(content, end)
        size = len(content) + (len(end.content) if end is not None else 0)
        offsets = self.offsets[magic]
        head = _HEAD.pack(
            magic,
            len(data) + _CHECKSUM_BYTES,
            size,
            offsets[-1] if offsets else _NO_OFFSET,
            _NO_CHECKSUM,
            _BYTES_PER_CHECKSUM,
            _HEAD.size + len(data),
        )
        self._sink.write(b"".join([head, data, bytes(_CHECKSUM_BYTES)]))
        offsets.append(self._at)
        written = len(head) + len(data) + _CHECKSUM_BYTES
        self._at += written
        self.uncompressed_bytes += len(head) + size
        return self._at - written, written

    def _packed(self, content: Any, end: _Constant | None) -> bytes:
        """Return gzip's form without a time, so equal input is equal output."""
        if end is None and len(content) > _STORED_BYTES_MAX:
            packer = zlib.compressobj(wbits=31)
            return packer.compress(content) + packer.flush()
        if end is None:
            return _gzip(content, _stored(content, is_last=True))
        whole = bytes(content) + end.content
        return _gzip(whole, _stored(content, is_last=False) + end.deflated)

    def close(self, trailer: bytes) -> int:
        """Append the trailer; return the bytes of the whole file."""
        text = b'TRABLK"$' + _varint(len(trailer)) + trailer
        major = struct.pack(">i", 3)
        self._sink.write(text.ljust(_TRAILER_BYTES - len(major), b"\0") + major)
        return self._at + _TRAILER_BYTES


# ---- Gzip: a short content costs more to compress than it saves


@dataclass(frozen=True, slots=True)
class _Constant:
    """The end of a content that many files share, and its deflated bytes."""

    content: bytes
    deflated: bytes


@lru_cache(maxsize=8)
def _schema_info(schema_json: str) -> _Constant:
    """Return the schema as the last pair of the file's information."""
    content = _text(1, _text(1, b"schema") + _text(2, schema_json.encode()))
    packer = zlib.compressobj(wbits=-15)
    return _Constant(content, packer.compress(content) + packer.flush())


def _stored(content: bytes, *, is_last: bool) -> bytes:
    """Return at most 65,535 bytes as a deflate block that is not compressed (RFC 1951, 3.2.4)."""
    return struct.pack("<BHH", is_last, len(content), len(content) ^ 0xFFFF) + content


def _gzip(content: bytes, deflated: bytes) -> bytes:
    """Return a gzip member of a content that is deflated already (RFC 1952, 2.3)."""
    return _GZIP_HEAD + deflated + struct.pack("<II", zlib.crc32(content), len(content))


# ---- Numbers of protobuf and of Hadoop


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, text: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(text)) + text


def _hadoop_int(value: int) -> bytes:
    """Return Hadoop's variable-length form of a number that is not negative."""
    if value <= 127:
        return bytes([value])
    raw = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return struct.pack(">b", -112 - len(raw)) + raw
