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
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.schema.casting import one_array
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
_COMPARATOR: Final = b"org.apache.hudi.io.storage.HoodieHBaseKVComparator"
_GZIP, _NONE = 1, 2
_NO_OFFSET: Final = -1

Integers = npt.NDArray[np.int64]


def encode_hfile(
    entries: pa.Table,
    *,
    schema_json: str,
    created_ms: int,
    compress: bool = True,
    block_bytes: int = BLOCK_BYTES,
) -> bytes:
    """
    Encode sorted entries as a whole file.

    Args:
        entries: Columns ``key`` and ``value`` of bytes without nulls, in ascending order of keys,
            each key once.
        schema_json: Avro schema of the values; readers decode with it.
        created_ms: Creation time in the file, milliseconds since 1970.
        compress: Whether blocks are compressed by gzip.
        block_bytes: Uncompressed bytes of a data block.

    Raises:
        InvariantError: Keys repeat or are not in order.
        InvalidInputError: A key is longer than `KEY_BYTES_MAX` (``long_key``).
    """
    keys, values = (one_array(entries.column(name)) for name in ("key", "value"))
    keys, values = keys.cast(pa.binary()), values.cast(pa.binary())
    key_sizes, value_sizes = _sizes(keys), _sizes(values)
    _check(keys, key_sizes)
    file = _File(compress)
    root = []
    for rows in _block_rows(key_sizes + value_sizes + _ENTRY_BYTES, block_bytes):
        first = keys[rows.start].as_py()
        content = _entries(keys[rows], values[rows], key_sizes[rows], value_sizes[rows])
        at, size = file.add(b"DATABLK*", content)
        root.append(struct.pack(">qi", at, size) + _hadoop_int(len(first) + 12) + _row_key(first))
    data_blocks = file.offsets[b"DATABLK*"]
    load_on_open, _ = file.add(b"IDXROOT2", b"".join(root))
    file.add(b"IDXROOT2", b"")  # the index of meta blocks, which readers expect
    count = len(keys)
    info = {
        b"MAX_MEMSTORE_TS_KEY": bytes(8),
        b"KEY_VALUE_VERSION": struct.pack(">i", 1),
        b"hfile.LASTKEY": _row_key(keys[-1].as_py()) if count else b"",
        b"hfile.AVG_KEY_LEN": struct.pack(">i", int(key_sizes.sum()) // max(1, count)),
        b"hfile.AVG_VALUE_LEN": struct.pack(">i", int(value_sizes.sum()) // max(1, count)),
        b"hfile.CREATE_TIME_TS": struct.pack(">q", created_ms),
        b"schema": schema_json.encode(),
    }
    pairs = b"".join(_text(1, _text(1, name) + _text(2, text)) for name, text in info.items())
    info_at, _ = file.add(b"FILEINF2", b"PBUF" + _varint(len(pairs)) + pairs)
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
        _number(12, _GZIP if compress else _NONE),
    )
    return file.closed(b"".join(trailer))


def _check(keys: pa.Array, sizes: Integers) -> None:
    if len(keys) > 1 and not pc.all(pc.less(keys[:-1], keys[1:])).as_py():
        raise InvariantError("the keys of an HFile repeat or are not in order; report it")
    longest = int(sizes.max(initial=0))
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


def _block_rows(sizes: Integers, block_bytes: int) -> Iterator[slice]:
    """Yield the rows of each block: as many as fit, at least one."""
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

    def __init__(self, compress: bool) -> None:  # noqa: FBT001 - private
        self._compress = compress
        self._parts: list[bytes] = []
        self._at = 0
        self.offsets: defaultdict[bytes, list[int]] = defaultdict(list)  # of blocks, by type
        self.uncompressed_bytes = 0

    def add(self, magic: bytes, content: Any) -> tuple[int, int]:
        """Append a block; return its offset and its bytes."""
        data = self._packed(content)
        offsets = self.offsets[magic]
        head = _HEAD.pack(
            magic,
            len(data) + _CHECKSUM_BYTES,
            len(content),
            offsets[-1] if offsets else _NO_OFFSET,
            _NO_CHECKSUM,
            _BYTES_PER_CHECKSUM,
            _HEAD.size + len(data),
        )
        self._parts += [head, data, bytes(_CHECKSUM_BYTES)]
        offsets.append(self._at)
        size = len(head) + len(data) + _CHECKSUM_BYTES
        self._at += size
        self.uncompressed_bytes += len(head) + len(content)
        return self._at - size, size

    def _packed(self, content: Any) -> bytes:
        if not self._compress:
            return bytes(content)
        packer = zlib.compressobj(wbits=31)  # gzip without a time, so equal input is equal output
        return packer.compress(content) + packer.flush()

    def closed(self, trailer: bytes) -> bytes:
        """Return the whole file."""
        text = b'TRABLK"$' + _varint(len(trailer)) + trailer
        major = struct.pack(">i", 3)
        return b"".join([*self._parts, text.ljust(_TRAILER_BYTES - len(major), b"\0"), major])


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
