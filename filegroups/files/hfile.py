"""
HFile: the sorted key-value file of Hudi's metadata table, read without a JVM.

This module reads the subset that Hudi's own writer and older HBase ones write: version 3, blocks
with checksums, gzip or no compression, and an index of one or more levels. Of an HBase key only the
row counts. Layout: data blocks; the parts loaded on opening (root index, meta index, file
info); a trailer of 4096 bytes at the end with the offsets.

Bytes are untrusted: every length is checked against the data, and blocks have a maximum size. The
entries of many small blocks are found at once, as whole columns.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

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
_CHILD_BYTES: Final = 12  # offset and size of a child
_KEY_BYTES_MORE: Final = 12  # what an HBase key of Hudi's writers has besides its row
# Hadoop's variable-length integers of one byte are outside of these, as unsigned bytes.
_SHORT_MAX, _SHORT_NEGATIVE_MIN = 127, 144
_ENTRIES: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_MEMSTORE_KEY: Final = b"KEY_VALUE_VERSION"
_MEMSTORE_VERSION: Final = (1).to_bytes(4, "big")
_AHEAD_BYTES: Final = 4 * 1024 * 1024
_BATCH_BYTES: Final = 4 * 1024 * 1024  # of blocks whose entries are found at once
_GUESSES_MAX: Final = 3
_FEW_BLOCKS: Final = 8

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """
    One block of the index: the least key below each child, ascending, and where the child is.

    ``sizes`` are the stored bytes of the children. They only save reads, so they may be wrong.
    """

    keys: Sequence[bytes]
    offsets: Sequence[int]
    sizes: Sequence[int]

    def children(self, ranges: _Ranges) -> list[int]:
        """Return the children that may hold keys of some ranges, ascending."""
        found: set[int] = set()
        for start, end in zip(ranges.starts, ranges.ends, strict=True):
            first = max(0, bisect_right(self.keys, start) - 1)
            found.update(range(first, bisect_left(self.keys, end, first)))
        return sorted(found)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Access to the blocks of a file by offset."""

    source: ByteSource
    size_bytes: int
    path: str
    compression: int

    def ahead(self) -> _Blocks:
        """Return an access that reads from one end to the other, in large pieces."""
        return replace(self, source=_ReadAhead(self.source))

    def content(self, offset: int, magics: tuple[bytes, ...], size_bytes: int = 0) -> bytes:
        """Return the content of a block; ``size_bytes`` is its size with head, if it is known."""
        return self.unpacked(self.stored(offset, size_bytes), offset, magics)

    def stored(self, offset: int, size_bytes: int = 0) -> bytes:
        """Return a block as it is stored, with its head. Outside: 1 read; 2 if it is longer."""
        end = self.size_bytes - _TRAILER_BYTES
        if not 0 <= offset <= end - _HEAD.size:
            raise _damaged(self.path, f"a block at {offset}")
        data = self.source.read_at(offset, min(max(size_bytes, _HEAD.size), end - offset))
        _, size, *_ = self.head(data, offset)
        if len(data) < _HEAD.size + size:
            missing = _HEAD.size + size - len(data)
            data += self.source.read_at(offset + len(data), missing)
        return data

    def head(self, data: bytes, offset: int) -> tuple[bytes, int, int, int]:
        """Return magic, stored bytes after the head, decompressed bytes, bytes with head."""
        if len(data) < _HEAD.size:
            raise _damaged(self.path, f"a block at {offset} is short")
        magic, size, unpacked, _, _, _, with_head = _HEAD.unpack_from(data)
        fits = 0 <= size <= self.size_bytes - offset - _HEAD.size
        if not fits or not 0 <= unpacked <= _BLOCK_BYTES_MAX or not 0 <= with_head - 33 <= size:
            raise _damaged(self.path, f"a block of {size} bytes at {offset}")
        return magic, size, unpacked, with_head

    def unpacked(self, stored: bytes, offset: int, magics: tuple[bytes, ...]) -> bytes:
        """Return the content of a block as it is stored."""
        magic, _, unpacked, with_head = self.head(stored, offset)
        if magic not in magics:
            raise _damaged(self.path, f"a block {magic!r} at {offset}")
        data: Any = memoryview(stored)[_HEAD.size : with_head]  # checksums follow
        if self.compression == _GZIP:
            # Ask for one byte more than the block has: gzip verifies its own checksum only after
            # the last byte.
            stream = zlib.decompressobj(31)
            try:
                data = stream.decompress(data, unpacked + 1)
            except zlib.error as error:
                raise _damaged(self.path, f"a block at {offset} cannot be unpacked") from error
            if not stream.eof or len(data) > unpacked:
                raise _damaged(self.path, f"a block at {offset} continues behind its end")
        if len(data) < unpacked:
            raise _damaged(self.path, f"a block at {offset} is short")
        return bytes(data[:unpacked])


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
    _root: _Index

    def read_all(self) -> pa.Table:
        """
        Return every entry in key order.

        Shapes: columns ``key`` and ``value`` (n,) of bytes.

        Raises:
            CorruptTableError: The file is damaged.

        Outside: 1 read for each 4 MiB.
        """
        batches = self._batches(self.all_blocks()) if self.entry_count else ()
        found = pa.Table.from_batches(batches, schema=_ENTRIES)
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

        Outside: 1 read for each block that may hold one of the keys; 1 for each 4 MiB between the
        first and the last of many keys.
        """
        ranges = _Ranges.of(keys, by_prefix=by_prefix)
        blocks, levels = self._blocks, max(1, self._trailer.levels)
        is_dense = len(ranges.starts) >= self._trailer.index_entries > _FEW_BLOCKS
        if is_dense and levels == 1:
            blocks = blocks.ahead()
        wanted = _blocks_of(blocks, ranges, self._root, levels)
        batches = self._batches(wanted) if self.entry_count else ()
        return pa.Table.from_batches(
            (self._selected(batch, ranges) for batch in batches), schema=_ENTRIES
        )

    def all_blocks(self) -> Iterator[bytes]:
        """Yield the contents of all data blocks."""
        at, end = self._trailer.first_data, self._trailer.last_data
        ahead = self._blocks.ahead()
        while at <= end:
            stored = ahead.stored(at)
            magic, size, *_ = ahead.head(stored, at)
            if magic not in _INLINE_MAGICS:
                yield ahead.unpacked(stored, at, _DATA_MAGICS)
            at += _HEAD.size + size

    def _batches(self, blocks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of blocks: those of many small blocks at once."""
        some: list[bytes] = []
        held_bytes = 0
        for content in blocks:
            some.append(content)
            held_bytes += len(content)
            if held_bytes >= _BATCH_BYTES:
                yield self.entries_of(some)[0]
                some, held_bytes = [], 0
        if some:
            yield self.entries_of(some)[0]

    def entries_of(self, blocks: Sequence[bytes]) -> tuple[pa.RecordBatch, Integers]:
        """Return the entries of some blocks, and how many entries end with each block."""
        content = b"".join(blocks)
        data = np.frombuffer(content, np.uint8)
        block_ends = np.cumsum([len(block) for block in blocks])
        versioned = self.is_versioned
        starts = _entry_starts(data, block_ends, versioned=versioned)
        if starts is None:
            walked = (_walked(block, self.path, versioned=versioned) for block in blocks)
            begins = block_ends - [len(block) for block in blocks]
            starts = np.concatenate([at + begin for at, begin in zip(walked, begins, strict=True)])
        key_at = starts + _ENTRY.size
        lengths = [_numbers(data, starts + shift, 4) for shift in (0, 4)]
        value_at = key_at + lengths[0]
        # Only the row of an HBase key counts; its length is before it.
        if (lengths[0] < _ROW_LENGTH_BYTES).any():
            raise _damaged(self.path, "a short key")
        row_at = key_at + _ROW_LENGTH_BYTES
        row_ends = row_at + _numbers(data, key_at, _ROW_LENGTH_BYTES)
        if (row_ends > value_at).any():
            raise _damaged(self.path, "a short key")
        columns = [
            _slices(content, row_at, row_ends),
            _slices(content, value_at, value_at + lengths[1]),
        ]
        found = pa.RecordBatch.from_arrays(columns, schema=_ENTRIES)
        return found, np.searchsorted(starts, block_ends)

    @property
    def is_versioned(self) -> bool:
        """Whether a version follows each value, as in files of HBase's writer, and of Hudi's."""
        return self.info.get(_MEMSTORE_KEY) == _MEMSTORE_VERSION

    def _selected(self, entries: pa.RecordBatch, ranges: _Ranges) -> pa.RecordBatch:
        """Return the entries in some ranges of keys."""
        held = entries.column(0)
        if pc.any(pc.greater(held[:-1], held[1:])).as_py():
            raise _damaged(self.path, "the keys of its blocks do not ascend")
        keys = held.to_pylist()
        first = bisect_right(ranges.ends, keys[0]) if keys else 0
        last = bisect_right(ranges.starts, keys[-1]) if keys else 0
        low = np.array([bisect_left(keys, one) for one in ranges.starts[first:last]], np.int64)
        high = np.array([bisect_left(keys, one) for one in ranges.ends[first:last]], np.int64)
        lengths = high - low
        firsts = np.repeat(low - (np.cumsum(lengths) - lengths), lengths)
        return entries.take(pa.array(firsts + np.arange(int(lengths.sum()))))


def _blocks_of(blocks: _Blocks, ranges: _Ranges, index: _Index, levels: int) -> Iterator[bytes]:
    """Yield the contents of the data blocks that may hold keys of some ranges, in order."""
    if list(index.keys) != sorted(index.keys):
        raise _damaged(blocks.path, "its index is not in the order of the keys")
    for child in index.children(ranges):
        offset, size = index.offsets[child], index.sizes[child]
        if levels > 1:
            below = _index_block(blocks.content(offset, _INDEX_MAGICS, size), blocks.path)
            yield from _blocks_of(blocks, ranges, below, levels - 1)
        else:
            yield blocks.content(offset, _DATA_MAGICS, size)


def read_together(files: Sequence[HFile]) -> pa.Table | None:
    """
    Return the entries of small files, one file after the other; None if a file is damaged.

    Shapes, calls outside: as ``HFile.read_all``, whose error names the damage.
    """
    if len({one.is_versioned for one in files}) != 1:
        return pa.concat_tables(one.read_all() for one in files)
    try:
        contents = [list(one.all_blocks()) if one.entry_count else [] for one in files]
        blocks = [block for some in contents for block in some]
        found, ends = files[0].entries_of(blocks) if blocks else (None, [])
    except CorruptTableError:
        return None
    counts = np.diff(np.concatenate([[0], ends])[np.cumsum([0, *map(len, contents)])])
    if counts.tolist() != [one.entry_count for one in files]:
        return None
    return pa.Table.from_batches([] if found is None else [found], schema=_ENTRIES)


class _ReadAhead:
    """A source that is read from one end to the other, in large pieces."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._start = 0
        self._piece = b""

    def read_at(self, offset: int, length: int, /) -> bytes:
        begin = offset - self._start
        if not 0 <= begin <= len(self._piece) - length:
            self._start, begin = offset, 0
            self._piece = self._source.read_at(offset, max(length, _AHEAD_BYTES))
        return self._piece[begin : begin + length]


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
    root = _Index(keys=(), offsets=(), sizes=())
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


def _root_index(content: bytes, trailer: _Trailer, path: str) -> _Index:
    data = np.frombuffer(content, np.uint8)
    starts = _child_starts(data)
    if starts is not None and len(starts) == trailer.index_entries:
        key_at = starts + _CHILD_BYTES + 1
    else:
        starts, key_at = _walked_children(content, trailer, path)
    row_at = key_at + _ROW_LENGTH_BYTES
    ends = row_at + _numbers(data, key_at, _ROW_LENGTH_BYTES)
    if (ends > np.append(starts[1:], len(content))).any():
        raise _damaged(path, "a short key")
    return _Index(
        keys=_slices(content, row_at, ends).to_pylist(),
        offsets=_numbers(data, starts, 8).tolist(),
        sizes=_numbers(data, starts + 8, 4).tolist(),
    )


def _walked_children(content: bytes, trailer: _Trailer, path: str) -> tuple[Integers, Integers]:
    """Return the starts of the entries of the root index and of their keys, one after the other."""
    starts, keys, at = [], [], 0
    for _ in range(trailer.index_entries):
        if at + _CHILD_BYTES >= len(content):
            raise _damaged(path, "a short root index")
        length, begin = _variable_int(content, at + _CHILD_BYTES, path)
        starts.append(at)
        keys.append(begin)
        at = begin + length
        if length < _ROW_LENGTH_BYTES or at > len(content):
            raise _damaged(path, "a key beyond the root index")
    return np.array(starts, np.int64), np.array(keys, np.int64)


def _index_block(content: bytes, path: str) -> _Index:
    """Return an intermediate or leaf block of the index, which has the offset of each entry."""
    try:
        (count,) = struct.unpack_from(">i", content)
        if not 0 < count <= len(content) // 4:
            raise _damaged(path, f"an index block of {count} entries")
        starts = struct.unpack_from(f">{count + 1}i", content, 4)
        begin = 4 + 4 * (count + 1)
        places = [struct.unpack_from(">qi", content, begin + low) for low in starts[:-1]]
    except struct.error as error:
        raise _damaged(path, "a short index block") from error
    return _Index(
        keys=[
            _row(content[begin + low + _CHILD_BYTES : begin + high], path)
            for low, high in pairwise(starts)
        ],
        offsets=[offset for offset, _ in places],
        sizes=[size for _, size in places],
    )


def _file_info(blocks: _Blocks, offset: int) -> dict[bytes, bytes]:
    """Read the file info: the third block loaded on opening, after the two indexes."""
    at = offset
    for _ in range(3):
        stored = blocks.stored(at)
        magic, size, *_ = blocks.head(stored, at)
        if magic == _INFO_MAGIC:
            content = blocks.unpacked(stored, at, (_INFO_MAGIC,))
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


# ---- Chains of lengths
#
# The start of an entry follows from the lengths of the one before. A loop over them is slow. So each
# place that looks like an entry is a guess. If each guess ends where the next one starts, from the
# first byte to the last, the guesses are the entries, whatever the bytes are. Otherwise a loop walks
# the chain, and names what is damaged.


def _entry_starts(
    data: npt.NDArray[np.uint8], block_ends: Integers, *, versioned: bool
) -> Integers | None:
    """Return the starts of the entries of joined blocks; None if guesses do not form a chain."""
    count = max(0, len(data) - _ENTRY.size - _ROW_LENGTH_BYTES)
    # Zero where an entry may be: three high bytes of its lengths, and the low bytes of the lengths
    # of key and row.
    other = data[:count] | data[1 : count + 1] | data[4 : count + 4]
    other |= (data[3 : count + 3] - data[9 : count + 9]) ^ _KEY_BYTES_MORE
    guesses = np.flatnonzero(other == 0)
    keys = _numbers(data, guesses, 4)
    fits = keys == _numbers(data, guesses + _ENTRY.size, 2) + _KEY_BYTES_MORE
    guesses, keys = guesses[fits], keys[fits]
    ends = guesses + _ENTRY.size + keys + _numbers(data, guesses + 4, 4)
    ends += versioned
    starts = _chain(guesses, ends, len(data))
    if starts is None:
        return None
    begins = np.searchsorted(starts, block_ends[:-1])
    if not np.array_equal(starts[begins], block_ends[:-1]):
        return None
    versions = data[np.append(starts[1:], len(data)) - 1]
    long = versioned and ((versions > _SHORT_MAX) & (versions < _SHORT_NEGATIVE_MIN)).any()
    return None if long else starts


def _child_starts(data: npt.NDArray[np.uint8]) -> Integers | None:
    """Return the starts of the entries of the root index, if their keys have at most 127 bytes."""
    head = _CHILD_BYTES + 1  # with the length of the key
    zeros = data[:-1] | data[1:]
    guesses = np.flatnonzero(zeros[: max(0, len(data) - head - 1)] == 0)
    lengths = data[guesses + _CHILD_BYTES].astype(np.int64)
    more = lengths - _numbers(data, guesses + head, _ROW_LENGTH_BYTES)
    fits = (lengths <= _SHORT_MAX) & ((more == _ROW_LENGTH_BYTES) | (more == _KEY_BYTES_MORE))
    guesses, lengths = guesses[fits], lengths[fits]
    return _chain(guesses, guesses + head + lengths, len(data))


def _chain(starts: Integers, ends: Integers, size_bytes: int) -> Integers | None:
    """Return the starts that form a chain from 0 to the size; None if false guesses remain."""
    for _ in range(_GUESSES_MAX):
        if not len(starts):
            return None
        if np.array_equal(starts, np.append(0, ends[:-1])) and ends[-1] == size_bytes:
            return starts
        reached = np.zeros(size_bytes + 1, np.bool_)
        reached[0] = True
        reached[ends[ends <= size_bytes]] = True
        starts, ends = starts[reached[starts]], ends[reached[starts]]
    return None


def _walked(content: bytes, path: str, *, versioned: bool) -> Integers:
    """Return the starts of the entries of a block, one after the other."""
    starts: list[int] = []
    unpack, head, end = _ENTRY.unpack_from, _ENTRY.size, len(content)
    at = 0
    while at < end:
        if at + head > end:
            raise _damaged(path, "a short entry")
        both = unpack(content, at)
        starts.append(at)
        at += head + both[0] + both[1]
        if both[0] < 0 or both[1] < 0 or at > end:
            raise _damaged(path, "an entry beyond its block")
        if versioned:
            one_byte = at < end and not _SHORT_MAX < content[at] < _SHORT_NEGATIVE_MIN
            at += 1 if one_byte else _variable_int_bytes(content, at, path)
    return np.array(starts, np.int64)


def _numbers(data: npt.NDArray[np.uint8], at: Integers, width: int) -> Integers:
    """Return the big-endian numbers of some bytes at some offsets. Shapes: (n,) -> (n,)."""
    if not len(at):
        return np.zeros(0, np.int64)
    at_each_byte = np.ndarray(len(data) - width + 1, f">u{width}", data, strides=(1,))
    return at_each_byte[at].astype(np.int64)


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
