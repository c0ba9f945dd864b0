"""
HFile: the sorted key-value file of Hudi's metadata table, read without a JVM.

This module reads the subset that Hudi's own writer and older HBase ones write: version 3, blocks
with checksums, gzip or no compression, an index of one or more levels, and HBase keys, of which
only the row counts. Layout: data blocks; the parts loaded on opening (root index, meta index, file
info); a trailer of 4096 bytes at the end with the offsets.

Bytes are untrusted: every length is checked against the data, and blocks have a maximum size. The
entries of a block are a chain of lengths, which a plain loop walks within one small block.
Everything else works on whole columns.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timeline.codecs.log_blocks import ByteSource
from timeline.errors import CorruptTableError, UnsupportedTableError

_TRAILER_BYTES: Final = 4096
_TRAILER_MAGIC: Final = b'TRABLK"$'
_DATA_MAGICS: Final = (b"DATABLK*", b"DATABLKE")
_ROOT_MAGIC, _INFO_MAGIC = b"IDXROOT2", b"FILEINF2"
_INDEX_MAGICS: Final = (b"IDXINTE2", b"IDXLEAF2")
_INLINE_MAGICS: Final = (*_INDEX_MAGICS, b"BLMFBLK2")  # between data blocks of big files
_INFO_PROTOBUF_MAGIC: Final = b"PBUF"
_HEAD: Final = struct.Struct(">8siiqBii")
_ENTRY: Final = struct.Struct(">ii")
_BLOCK_BYTES_MAX: Final = 256 * 1024 * 1024
_LEVELS_MAX: Final = 16
_GZIP, _NONE = 1, 2
_ROW_LENGTH_BYTES: Final = 2
# Hadoop's variable-length integers of one byte are outside of these, as unsigned bytes.
_SHORT_MAX, _SHORT_NEGATIVE_MIN = 127, 144
_ENTRIES: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_MEMSTORE_KEY: Final = b"KEY_VALUE_VERSION"
_MEMSTORE_VERSION: Final = (1).to_bytes(4, "big")

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Trailer:
    load_on_open: int
    first_data: int
    last_data: int
    index_entries: int
    entries: int
    levels: int
    compression: int


@dataclass(frozen=True, slots=True)
class _Child:
    """An entry of an index block: the least key below it, and the offset of its block."""

    key: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Access to the blocks of a file by offset."""

    source: ByteSource
    size_bytes: int
    path: str
    compression: int

    def head(self, offset: int) -> tuple[bytes, int, int, int]:
        """Return magic, stored bytes after the head, decompressed bytes, bytes with checksums."""
        if not 0 <= offset <= self.size_bytes - _HEAD.size - _TRAILER_BYTES:
            raise _damaged(self.path, f"a block at {offset}")
        head = _HEAD.unpack(self.source.read_at(offset, _HEAD.size))
        magic, size, unpacked, _, _, _, with_head = head
        fits = 0 <= size <= self.size_bytes - offset - _HEAD.size
        if not fits or not 0 <= unpacked <= _BLOCK_BYTES_MAX or not 0 <= with_head - 33 <= size:
            raise _damaged(self.path, f"a block of {size} bytes at {offset}")
        return magic, size, unpacked, with_head

    def content(self, offset: int, magics: tuple[bytes, ...]) -> bytes:
        magic, _, unpacked, with_head = self.head(offset)
        if magic not in magics:
            raise _damaged(self.path, f"a block {magic!r} at {offset}")
        data = self.source.read_at(offset + _HEAD.size, with_head - _HEAD.size)
        if self.compression == _GZIP:
            # Checksums follow the compressed bytes. Ask for one byte more than the block has: gzip
            # verifies its own checksum only after the last byte.
            stream = zlib.decompressobj(31)
            try:
                data = stream.decompress(data, unpacked + 1)
            except zlib.error as error:
                raise _damaged(self.path, f"a block at {offset} cannot be unpacked") from error
            if not stream.eof or len(data) > unpacked:
                raise _damaged(self.path, f"a block at {offset} goes on behind its end")
        if len(data) < unpacked:
            raise _damaged(self.path, f"a block at {offset} is short")
        return data[:unpacked]


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Ranges of keys, ascending and disjoint; an end is above its range."""

    starts: Sequence[bytes]
    ends: Sequence[bytes]

    @staticmethod
    def of(keys: Sequence[bytes], *, by_prefix: bool) -> _Ranges:
        starts = sorted(set(keys))
        # The key after a key; after all keys with a prefix: no key of UTF-8 text has this byte.
        last = b"\xff" if by_prefix else b"\0"
        return _Ranges(starts, [key + last for key in starts])


@dataclass(frozen=True, slots=True, kw_only=True)
class HFile:
    """An opened file. ``entry_count`` and ``info`` are from the file and untrusted."""

    path: str
    entry_count: int
    info: Mapping[bytes, bytes]
    _blocks: _Blocks
    _trailer: _Trailer
    _root: tuple[_Child, ...]

    def read_all(self) -> pa.Table:
        """
        Return every entry in key order.

        Shapes: columns ``key`` and ``value`` (n,) of bytes.

        Raises:
            CorruptTableError: The file is damaged.
        """
        if not self.entry_count:
            return _ENTRIES.empty_table()
        found = pa.Table.from_batches(
            (self._entries(offset) for offset in self._data_blocks()), schema=_ENTRIES
        )
        if found.num_rows != self.entry_count:
            raise _damaged(self.path, f"{found.num_rows} entries instead of {self.entry_count}")
        return found

    def get_rows(self, keys: Sequence[bytes], *, by_prefix: bool = False) -> pa.Table:
        """
        Return the entries of some keys; each block is read at most once.

        Args:
            keys: May repeat. Of prefixes, none may begin with another one.
            by_prefix: Return all entries whose keys begin with one of ``keys``.

        Shapes: keys (n,) -> columns ``key`` and ``value``, in key order; at most n rows for whole
        keys.

        Raises:
            CorruptTableError: The file is damaged.
        """
        ranges = _Ranges.of(keys, by_prefix=by_prefix)
        wanted: dict[int, list[_Ranges]] = {}
        if self.entry_count:
            levels = max(1, self._trailer.levels)
            for offset, some in self._blocks_of(ranges, self._root, levels):
                wanted.setdefault(offset, []).append(some)
        return pa.Table.from_batches(
            (self._some_entries(at, some) for at in sorted(wanted) for some in wanted[at]),
            schema=_ENTRIES,
        )

    def _data_blocks(self) -> Iterator[int]:
        at, end = self._trailer.first_data, self._trailer.last_data
        while at <= end:
            magic, size, *_ = self._blocks.head(at)
            if magic in _DATA_MAGICS:
                yield at
            elif magic not in _INLINE_MAGICS:
                raise _damaged(self.path, f"a block {magic!r} at {at}")
            at += _HEAD.size + size

    def _blocks_of(
        self, ranges: _Ranges, children: Sequence[_Child], levels: int
    ) -> Iterator[tuple[int, _Ranges]]:
        """Yield the data blocks that may hold keys of some ranges, each with those ranges."""
        if not levels:
            raise _damaged(self.path, "its index has more levels than it says")
        if any(one.key > two.key for one, two in pairwise(children)):
            raise _damaged(self.path, "its index is not in the order of the keys")
        for child, after in zip_longest(children, children[1:]):
            low = bisect_right(ranges.ends, child.key)
            high = len(ranges.starts) if after is None else bisect_left(ranges.starts, after.key)
            if low >= high:
                continue
            some = _Ranges(ranges.starts[low:high], ranges.ends[low:high])
            if self._blocks.head(child.offset)[0] in _INDEX_MAGICS:
                yield from self._blocks_of(some, self._index_block(child.offset), levels - 1)
            else:
                yield child.offset, some

    def _index_block(self, offset: int) -> tuple[_Child, ...]:
        """Read an intermediate or leaf block of the index, which has the offset of each entry."""
        content = self._blocks.content(offset, _INDEX_MAGICS)
        try:
            (count,) = struct.unpack_from(">i", content)
            if not 0 < count <= len(content) // 4:
                raise _damaged(self.path, f"an index block of {count} entries")
            starts = struct.unpack_from(f">{count + 1}i", content, 4)
            begin = 4 + 4 * (count + 1)
            return tuple(
                _Child(
                    _row(content[begin + low + 12 : begin + high], self.path),
                    struct.unpack_from(">q", content, begin + low)[0],
                )
                for low, high in pairwise(starts)
            )
        except struct.error as error:
            raise _damaged(self.path, "a short index block") from error

    def _some_entries(self, offset: int, ranges: _Ranges) -> pa.RecordBatch:
        entries = self._entries(offset)
        held = entries.column(0)
        if pc.any(pc.greater(held[:-1], held[1:])).as_py():
            raise _damaged(self.path, f"the keys of the block at {offset} do not ascend")
        keys = held.to_pylist()
        low = np.array([bisect_left(keys, one) for one in ranges.starts], np.int64)
        high = np.array([bisect_left(keys, one) for one in ranges.ends], np.int64)
        lengths = high - low
        firsts = np.repeat(low - (np.cumsum(lengths) - lengths), lengths)
        return entries.take(pa.array(firsts + np.arange(int(lengths.sum()))))

    def _entries(self, offset: int) -> pa.RecordBatch:
        content = self._blocks.content(offset, _DATA_MAGICS)
        # HBase's writer, and Hudi's after it, may put a version after each value.
        versioned = self.info.get(_MEMSTORE_KEY) == _MEMSTORE_VERSION
        starts, lengths = _borders(content, self.path, versioned=versioned)
        key_at = starts + _ENTRY.size
        value_at = key_at + lengths[:, 0]
        data = np.frombuffer(content, np.uint8)
        # Only the row of an HBase key counts; its length is before it.
        short = lengths[:, 0] < _ROW_LENGTH_BYTES
        if short.any():
            raise _damaged(self.path, "a short key")
        rows = data[key_at].astype(np.int64) << 8 | data[key_at + 1]
        row_at = key_at + _ROW_LENGTH_BYTES
        if (row_at + rows > value_at).any():
            raise _damaged(self.path, "a short key")
        columns = [
            _slices(content, row_at, row_at + rows),
            _slices(content, value_at, value_at + lengths[:, 1]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_ENTRIES)


def open_hfile(source: ByteSource, size_bytes: int, *, path: str) -> HFile:
    """
    Open a file: read its trailer, root index and file info.

    Args:
        source: The bytes; offsets in a region of a log file count from the region's start.
        size_bytes: The number of bytes.
        path: The file that errors name.

    Raises:
        CorruptTableError: The file is damaged.
        UnsupportedTableError: Another version or compression.
    """
    if size_bytes < _TRAILER_BYTES:
        raise _damaged(path, "shorter than its trailer")
    data = source.read_at(size_bytes - _TRAILER_BYTES, _TRAILER_BYTES)
    version = int.from_bytes(data[-4:], "big") & 0xFFFFFF
    if data[:8] != _TRAILER_MAGIC:
        raise _damaged(path, "no trailer")
    if version != 3:
        raise UnsupportedTableError(
            "this release reads HFiles of version 3: build the metadata table again with 'hoodoo "
            f"metadata rebuild TABLE': {path} is of version {version}",
            kind="hfile_version",
            path=path,
        )
    trailer = _trailer(data[8:-4], path)
    blocks = _Blocks(source, size_bytes, path, trailer.compression)
    root: tuple[_Child, ...] = ()
    if trailer.entries:
        root = _root_index(blocks.content(trailer.load_on_open, (_ROOT_MAGIC,)), trailer, path)
    return HFile(
        path=path,
        entry_count=trailer.entries,
        info=_file_info(blocks, trailer.load_on_open),
        _blocks=blocks,
        _trailer=trailer,
        _root=root,
    )


def _trailer(data: bytes, path: str) -> _Trailer:
    length, at = _varint(data, 0, path)
    if at + length > len(data):
        raise _damaged(path, "a short trailer")
    numbered = _fields(data[at : at + length], path)
    fields = {number: value for number, value in numbered if isinstance(value, int)}
    compression = fields.get(12, _NONE)
    if compression not in (_GZIP, _NONE):
        raise UnsupportedTableError(
            "this release reads HFiles with gzip or without compression: build the "
            f"metadata table again with 'hoodoo metadata rebuild TABLE': {path} has algorithm {compression}",
            kind="hfile_compression",
            path=path,
        )
    levels = fields.get(8, 1)
    if levels > _LEVELS_MAX:
        raise _damaged(path, f"an index of {levels} levels")
    index_entries, entries = fields.get(5, 0), fields.get(7, 0)
    if bool(entries) != bool(index_entries):
        raise _damaged(path, f"{entries} entries, and {index_entries} in the index")
    return _Trailer(
        load_on_open=fields.get(2, 0),
        first_data=fields.get(9, 0),
        last_data=fields.get(10, 0),
        index_entries=index_entries,
        entries=entries,
        levels=levels,
        compression=compression,
    )


def _root_index(content: bytes, trailer: _Trailer, path: str) -> tuple[_Child, ...]:
    children, at = [], 0
    for _ in range(trailer.index_entries):
        if at + 12 >= len(content):
            raise _damaged(path, "a short root index")
        (offset,) = struct.unpack_from(">q", content, at)
        length, begin = _variable_int(content, at + 12, path)
        at = begin + length
        if length < 0 or at > len(content):
            raise _damaged(path, "a key beyond the root index")
        children.append(_Child(_row(content[begin:at], path), offset))
    return tuple(children)


def _file_info(blocks: _Blocks, offset: int) -> dict[bytes, bytes]:
    """Read the file info: the third block loaded on opening, after the two indexes."""
    at = offset
    for _ in range(3):
        magic, size, *_ = blocks.head(at)
        if magic == _INFO_MAGIC:
            content = blocks.content(at, (_INFO_MAGIC,))
            if not content.startswith(_INFO_PROTOBUF_MAGIC):
                raise _damaged(blocks.path, "file info of another form")
            length, begin = _varint(content, len(_INFO_PROTOBUF_MAGIC), blocks.path)
            pairs = _fields(content[begin : begin + length], blocks.path)
            halves = [_fields(pair, blocks.path) for _, pair in pairs if isinstance(pair, bytes)]
            texts = [dict(half) for half in halves]
            return {
                key: value
                for key, value in ((text.get(1), text.get(2)) for text in texts)
                if isinstance(key, bytes) and isinstance(value, bytes)
            }
        at += _HEAD.size + size
    raise _damaged(blocks.path, "no file info")


def _borders(content: bytes, path: str, *, versioned: bool) -> tuple[Integers, Integers]:
    """
    Walk the chain of lengths in a block.

    Shapes: -> starts (n,) of the entries, and (n, 2) bytes of key and of value.
    """
    starts: list[int] = []
    lengths: list[tuple[int, int]] = []
    unpack, head, end = _ENTRY.unpack_from, _ENTRY.size, len(content)
    at = 0
    while at < end:
        if at + head > end:
            raise _damaged(path, "a short entry")
        both = unpack(content, at)
        starts.append(at)
        lengths.append(both)
        at += head + both[0] + both[1]
        if both[0] < 0 or both[1] < 0 or at > end:
            raise _damaged(path, "an entry beyond its block")
        if versioned:
            one_byte = at < end and not _SHORT_MAX < content[at] < _SHORT_NEGATIVE_MIN
            at += 1 if one_byte else _variable_int_bytes(content, at, path)
    return np.array(starts, np.int64), np.array(lengths, np.int64).reshape(-1, 2)


def _slices(content: bytes, starts: Integers, ends: Integers) -> pa.Array:
    """Return ranges of bytes that ascend and do not overlap. Shapes: (n,), (n,) -> (n,)."""
    # The whole content becomes one array: each second element is a range, the others lie between.
    offsets = np.empty(2 * len(starts) + 2, np.int32)
    offsets[0] = 0
    offsets[1:-1:2] = starts
    offsets[2::2] = ends
    offsets[-1] = len(content)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    both = pa.Array.from_buffers(pa.binary(), 2 * len(starts) + 1, buffers, null_count=0)
    return both.take(pa.array(np.arange(1, 2 * len(starts) + 1, 2)))


def _row(key: bytes, path: str) -> bytes:
    """Return the row of an HBase key; the rest has no meaning here."""
    length = int.from_bytes(key[:2], "big")
    if len(key) < 2 + length:
        raise _damaged(path, "a short key")
    return key[2 : 2 + length]


def _fields(message: bytes, path: str) -> list[tuple[int, int | bytes]]:
    """Return the numbers and byte strings of a protobuf message; other fields are skipped."""
    found: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(message):
        tag, at = _varint(message, at, path)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at, path)
            found.append((tag >> 3, value))
        elif kind == 2:
            length, at = _varint(message, at, path)
            found.append((tag >> 3, message[at : at + length]))
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise _damaged(path, "a message of another form")
    return found


def _varint(data: bytes, at: int, path: str) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _damaged(path, "a number without an end")


def _variable_int(data: bytes, at: int, path: str) -> tuple[int, int]:
    """Return Hadoop's variable-length integer and its end."""
    length = _variable_int_bytes(data, at, path)
    first = int.from_bytes(data[at : at + 1], "big", signed=True)
    if length == 1:
        return first, at + 1
    value = int.from_bytes(data[at + 1 : at + length], "big")
    return (~value if first < -120 else value), at + length


def _variable_int_bytes(data: bytes, at: int, path: str) -> int:
    if at >= len(data):
        raise _damaged(path, "a short number")
    first = int.from_bytes(data[at : at + 1], "big", signed=True)
    length = 1 if first >= -112 else (-111 - first if first >= -120 else -119 - first)
    if at + length > len(data):
        raise _damaged(path, "a short number")
    return length


def _damaged(path: str, why: str) -> CorruptTableError:
    return CorruptTableError(
        "an HFile of the metadata table is damaged: build it again with 'hoodoo metadata "
        f"rebuild TABLE': {path} ({why})",
        kind="bad_hfile",
        path=path,
    )
