"""
Bloom filters over record keys, byte for byte as Java Hudi stores them in base file footers.

A BLOOM-index writer in Java reads the footer of every base file; a filter that lacks one key turns
its update into a duplicate insert. So bits, rows and header follow fmt 4.5 exactly, including the
peculiar Murmur tail. Keys are hashed as numpy columns. The part of the hash without the seed is
computed once per key; the chained rounds run over blocks that fit the processor's cache.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timeline.errors import CorruptTableError, InvalidInputError

DYNAMIC = "DYNAMIC_V0"
SIMPLE = "SIMPLE"

_M = np.uint32(0x5BD1E995)
_MURMUR = 1
_HEAD = struct.Struct(">iibi")
_DYNAMIC_HEAD = struct.Struct(">iii")
_ONE = np.uint32(1)
_BLOCK_ROWS = 4096  # times thirty rounds, still in the processor's cache
_BITS_MAX = 1 << 30  # a header above this is damage, not a filter
_ROWS_MAX = 1 << 12
_LEAST_ENTRIES = 256
_FEW_HASHES = 10
_HASHES_MAX = 16  # nearly half of Hudi's rounds, for a sixth more bits
_FEW_KEYS = 2048  # below, setting single bits is cheaper than a byte for every bit
_SMALL_ROW_BYTES = 1 << 14  # below, a byte for every bit costs nothing

_Bytes = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class BloomSettings:
    """The size of filters of new files; defaults are Hudi's."""

    kind: str = DYNAMIC  # hoodie.bloom.index.filter.type
    entries: int = 60_000  # hoodie.index.bloom.num_entries: keys one row of bits holds
    error_rate: float = 1e-9  # hoodie.index.bloom.fpp
    entries_max: int = 100_000  # hoodie.bloom.index.filter.dynamic.max.entries
    hashes: int | None = None  # bits set for each key; None for the fewest bits in total, as Hudi

    @property
    def vector_bits(self) -> int:
        """Bits of one row."""
        if self.hashes is not None:
            share = 1 - self.error_rate ** (1 / self.hashes)
            return math.ceil(-self.hashes * self.entries / math.log(share))
        return math.ceil(self.entries * (-math.log(self.error_rate) / math.log(2) ** 2))

    @property
    def hash_count(self) -> int:
        """Bits set for each key."""
        if self.hashes is not None:
            return self.hashes
        return math.ceil(math.log(2) * self.vector_bits / self.entries)

    def fitted(self, keys: int) -> BloomSettings:
        """
        Return settings for a file with so many keys; a dynamic filter stores its size (fmt 4.5).

        Hudi's 60,000 entries take 431 kB in the footer of the smallest file, which costs a small
        commit more than its rows. The filter leaves room for growth, up to the configured size.
        Hashing costs about as much as encoding the file. So fewer rounds go over more bits, with the
        same error rate. In a small file a third of the rounds goes over nearly twice the bits.
        """
        if self.kind != DYNAMIC:
            return self
        room = max(_LEAST_ENTRIES, 1 << max(keys - 1, 0).bit_length())
        entries = min(self.entries, room)
        hashes = min(_FEW_HASHES if room <= _FEW_KEYS else _HASHES_MAX, self.hash_count)
        return replace(self, entries=entries, hashes=hashes)


class BloomFilter:
    """
    A filter in memory; grows by ``add``.

    Args:
        settings: Size of an empty filter, and when a dynamic one stops growing.
        content: Bytes of an existing filter; use ``load`` for them.
    """

    __slots__ = (
        "_bits",
        "_current",
        "_entries",
        "_entries_max",
        "_hashes",
        "_overflow",
        "_rows",
        "kind",
    )

    def __init__(self, settings: BloomSettings, content: memoryview | None = None) -> None:
        if settings.kind not in (DYNAMIC, SIMPLE):
            raise InvalidInputError(
                f"a bloom filter is {DYNAMIC} or {SIMPLE}: set hoodie.bloom.index.filter.type to "
                f"one of them: kind={settings.kind!r}",
                kind="bloom_kind",
                value=settings.kind,
            )
        self.kind = settings.kind
        self._entries = settings.entries
        self._entries_max = settings.entries_max
        self._bits = settings.vector_bits
        self._hashes = settings.hash_count
        self._current = 0  # keys in the newest row of a dynamic filter
        self._overflow = 0  # keys added since the last row became full; not on disk
        self._rows: list[_Bytes] = []  # bits, least significant first
        if content is None:
            self._rows.append(self._empty_row())
        else:
            self._parse(content)

    @classmethod
    def load(cls, text: str, kind: str, settings: BloomSettings | None = None) -> BloomFilter:
        """
        Read a filter from a footer.

        Args:
            text: The base64 text of ``org.apache.hudi.bloomfilter``.
            kind: The type code in the footer (``DYNAMIC_V0`` or ``SIMPLE``).
            settings: The growth limit of a dynamic filter; the text has its size.

        Raises:
            CorruptTableError: The text is not such a filter (``bad_bloom_filter``).
        """
        sizes = settings or BloomSettings()
        try:
            data = memoryview(base64.b64decode(text, validate=True))
            return cls(replace(sizes, kind=kind), content=data)
        except (binascii.Error, struct.error, ValueError) as error:
            raise CorruptTableError(
                f"a bloom filter cannot be read: write the rows of its file again: {error}",
                kind="bad_bloom_filter",
            ) from error

    def add(self, keys: pa.Array | pa.ChunkedArray) -> None:
        """
        Add record keys in this order, which decides the row of a dynamic filter.

        Shapes: keys (n,) strings without nulls.

        Raises:
            InvalidInputError: A key is empty or null; Java's filter refuses it too.
        """
        for chunk in _chunks(keys):
            for row, part in self._spread(chunk):
                _set_bits(self._rows[row], part, self._bits, self._hashes)

    @property
    def entries(self) -> int:
        """Keys that one row of bits holds; 0 if the format does not have it (SIMPLE)."""
        return self._entries

    def may_contain(self, keys: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """Return for each key whether it may be in: False is certain. Shapes: (n,) -> (n,)."""
        answers = []
        for chunk in _chunks(keys):
            found = np.zeros(len(chunk), np.bool_)
            for row in self._rows:
                inside = np.zeros(len(chunk), np.bool_)
                for where, positions in _positions(chunk, self._bits, self._hashes):
                    hits = row[positions >> 3] >> (positions & 7) & 1
                    inside[where] = hits.all(axis=0)
                found |= inside
            answers.append(found)
        return np.concatenate(answers) if answers else np.zeros(0, np.bool_)

    def to_base64(self) -> str:
        """Return the text for the footer."""
        head = _HEAD.pack(-1, self._hashes, _MURMUR, self._bits)
        rows = [row.tobytes() for row in self._rows]
        if self.kind == SIMPLE:
            data = head + rows[0]
        else:
            counts = _DYNAMIC_HEAD.pack(self._entries, self._current, len(rows))
            data = head + counts + b"".join(part for row in rows for part in (head, row))
        return base64.b64encode(data).decode("ascii")

    def _parse(self, data: memoryview) -> None:
        version, self._hashes, hash_type, self._bits = _HEAD.unpack_from(data)
        if version != -1 or hash_type != _MURMUR:
            raise ValueError("an old filter with another hash")
        if not (0 < self._bits <= _BITS_MAX and 0 < self._hashes <= 255):
            raise ValueError(f"sizes out of range: bits={self._bits} hashes={self._hashes}")
        width = (self._bits + 7) // 8
        if self.kind == SIMPLE:
            self._entries, self._current, count, start = 0, 0, 1, _HEAD.size
            step = width
        else:
            counts = _DYNAMIC_HEAD.unpack_from(data, _HEAD.size)
            self._entries, self._current, count = counts
            step = _HEAD.size + width
            start = _HEAD.size + _DYNAMIC_HEAD.size
        if not 0 < count <= _ROWS_MAX or len(data) != start + count * step:
            raise ValueError(f"length does not fit its sizes: rows={count} bytes={len(data)}")
        for number in range(count):
            end = start + (number + 1) * step
            self._rows.append(np.frombuffer(data[end - width : end], np.uint8).copy())

    def _empty_row(self) -> _Bytes:
        return np.zeros((self._bits + 7) // 8, np.uint8)

    def _spread(self, keys: pa.Array) -> Iterator[tuple[int, pa.Array]]:
        """Yield rows of bits and their keys, as Java's dynamic filter fills them."""
        if self.kind == SIMPLE:
            yield 0, keys
            return
        done, total = 0, len(keys)
        while done < total:
            if self._current >= self._entries:
                if len(self._rows) * self._entries >= self._entries_max:
                    yield from self._round_robin(keys.slice(done))
                    return
                self._rows.append(self._empty_row())
                self._current = 0
            part = keys.slice(done, self._entries - self._current)
            self._current += len(part)
            done += len(part)
            yield len(self._rows) - 1, part

    def _round_robin(self, keys: pa.Array) -> Iterator[tuple[int, pa.Array]]:
        # A full filter reuses its rows: the first excess key is added to row 0, the following ones
        # to 0, 1, 2, ... again.
        count = len(self._rows)
        number = np.arange(self._overflow, self._overflow + len(keys))
        target = np.maximum(number - 1, 0) % count
        self._overflow += len(keys)
        self._current += len(keys)
        for row in range(count):
            yield row, keys.take(pa.array(np.flatnonzero(target == row)))


def _set_bits(row: _Bytes, keys: pa.Array, bits: int, hashes: int) -> None:
    if len(keys) == 0:
        return
    if len(keys) <= _FEW_KEYS and len(row) > _SMALL_ROW_BYTES:
        every = [positions.ravel() for _, positions in _positions(keys, bits, hashes)]
        wanted = np.unique(np.concatenate(every))
        where, starts = np.unique(wanted >> 3, return_index=True)
        masks = np.left_shift(1, wanted & 7)
        row[where] |= np.bitwise_or.reduceat(masks, starts).astype(np.uint8)
        return
    loose = np.unpackbits(row, bitorder="little").view(np.bool_)
    for _, positions in _positions(keys, bits, hashes):
        loose[positions] = True
    row[:] = np.packbits(loose, bitorder="little")


def _chunks(keys: pa.Array | pa.ChunkedArray) -> list[Any]:
    chunks = keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]
    return [chunk for chunk in chunks if len(chunk)]


def _positions(
    keys: pa.Array, bits: int, hashes: int
) -> Iterator[tuple[Any, npt.NDArray[np.intp]]]:
    """
    Yield bit positions of all keys by block: (which keys, their positions).

    Shapes: m keys, (hashes, m).
    """
    if keys.null_count:
        raise InvalidInputError(
            "a record key is null: fill the key column, or remove the row",
            kind="null_key",
            rows=keys.null_count,
        )
    offsets, data = _text_buffers(keys)
    lengths = np.diff(offsets)
    if len(lengths) == 0:
        return
    least, most = int(lengths.min()), int(lengths.max())
    if least == 0:
        raise InvalidInputError(
            "a record key is empty: fill the key column, or remove the row", kind="null_key"
        )
    if least == most:
        matrix = data[offsets[0] : offsets[-1]].reshape(-1, most)
        for start in range(0, len(matrix), _BLOCK_ROWS):
            where = slice(start, min(start + _BLOCK_ROWS, len(matrix)))
            yield where, _hashed(matrix[where], lengths[where], bits, hashes)
        return
    order = np.argsort(lengths, kind="stable")  # neighbours have similar lengths: little padding
    for start in range(0, len(order), _BLOCK_ROWS):
        block = order[start : start + _BLOCK_ROWS]
        span = np.arange(int(lengths[block[-1]]))
        inside = span < lengths[block][:, None]
        padded = np.where(inside, data[np.where(inside, offsets[block][:, None] + span, 0)], 0)
        yield block, _hashed(padded.astype(np.uint8, copy=False), lengths[block], bits, hashes)


def _text_buffers(keys: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    _, offsets, data = keys.buffers()
    kind = np.int64 if pa.types.is_large_string(keys.type) else np.int32
    starts = np.frombuffer(offsets, kind)[keys.offset : keys.offset + len(keys) + 1]
    text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return starts, text


def _hashed(
    matrix: npt.NDArray[np.uint8], lengths: npt.NDArray[Any], bits: int, hashes: int
) -> npt.NDArray[np.intp]:
    """
    Return the chained rounds of a block of keys; each round's hash is the next one's seed.

    Keys of different lengths take the same steps: a key without a further word is multiplied by
    one.
    Shapes: (m, longest), (m,) -> (hashes, m).
    """
    lengths = lengths.astype(np.uint32)
    words = _mixed_words(matrix, lengths)
    tail, tail_factor = _tail(matrix, lengths)
    value = np.zeros(len(matrix), np.uint32)
    spare = np.empty(len(matrix), np.uint32)
    made = np.empty((hashes, len(matrix)), np.uint32)
    for number in range(hashes):
        np.bitwise_xor(value, lengths, out=value)
        for factor, word in words:
            np.multiply(value, factor, out=value)
            np.bitwise_xor(value, word, out=value)
        if tail is not None:
            np.bitwise_xor(value, tail, out=value)
            np.multiply(value, tail_factor, out=value)
        np.right_shift(value, 13, out=spare)
        np.bitwise_xor(value, spare, out=value)
        np.multiply(value, _M, out=value)
        np.right_shift(value, 15, out=spare)
        np.bitwise_xor(value, spare, out=value)
        made[number] = value
    # |signed value rem bits|: Java keeps the dividend's sign, so use the magnitude's remainder.
    # numpy vectorises division by a constant, but not the remainder.
    magnitude = np.abs(made.view(np.int32)).view(np.uint32)
    np.floor_divide(magnitude, np.uint32(bits), out=made)
    np.multiply(made, np.uint32(bits), out=made)
    np.subtract(magnitude, made, out=magnitude)
    return magnitude.astype(np.intp)


def _mixed_words(
    matrix: npt.NDArray[np.uint8], lengths: _Words
) -> list[tuple[np.uint32 | _Words, _Words]]:
    """Return for each full word of four bytes the factor of the hash, and the mixed word."""
    count, longest = matrix.shape
    full = longest // 4
    packed = np.ascontiguousarray(matrix[:, : full * 4]).view("<u4")
    # Always copy: a column of one word is the caller's own bytes, which must not change.
    words = packed.T.astype(np.uint32, order="C").reshape(full, count)
    words *= _M
    words ^= words >> np.uint32(24)
    words *= _M
    shortest = int(lengths.min())
    mixed: list[tuple[np.uint32 | _Words, _Words]] = []
    for number, word in enumerate(words, start=1):
        if shortest >= number * 4:
            mixed.append((_M, word))
            continue
        there = lengths >= number * 4
        mixed.append((np.where(there, _M, _ONE), np.where(there, word, np.uint32(0))))
    return mixed


def _tail(
    matrix: npt.NDArray[np.uint8], lengths: _Words
) -> tuple[_Words | None, np.uint32 | _Words]:
    """
    Return the terms of the last one to three bytes: sign-extended, from the END of the key.

    None if no key has such a rest, else the addend and the factor of each key.
    """
    rest = lengths & np.uint32(3)
    if not rest.any():
        return None, _M
    tail = np.zeros(len(matrix), np.uint32)
    rows = np.arange(len(matrix))
    for distance in (1, 2, 3):
        there = rest >= distance
        place = np.where(there, lengths - np.uint32(distance), 0).astype(np.intp)
        signed = matrix[rows, place].view(np.int8).astype(np.int32).view(np.uint32)
        tail ^= np.where(there, signed << np.uint32(8 * (distance - 1)), np.uint32(0))
    return tail, np.where(rest > 0, _M, _ONE)
