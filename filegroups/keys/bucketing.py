"""
Bucket numbers of keys, and buckets for inserted rows.

The hashes are those of Java, over whole columns: ``String.hashCode`` over UTF-16 code units and
xxHash32 over UTF-8 bytes. Arrow stores UTF-8, so texts beyond ASCII are re-encoded in blocks, never
one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.schema.arrow_columns import codes_of, rows_by_number, version_rounds
from timeline.properties.setting_enums import BucketEngine

_BLOCK_TEXTS = 65_536
_INVERSE_31 = pow(31, -1, 1 << 32)
_P1, _P2, _P3 = np.uint32(2_654_435_761), np.uint32(2_246_822_519), np.uint32(3_266_489_917)
_P4, _P5 = np.uint32(668_265_263), np.uint32(374_761_393)
_LANE_STARTS = ((int(_P1) + int(_P2)) & 0xFFFF_FFFF, int(_P2), 0, -int(_P1) & 0xFFFF_FFFF)
_LANE_TURNS = (1, 7, 12, 18)

_Words = npt.NDArray[np.uint32]


def java_hashes(texts: pa.Array) -> _Words:
    """
    Return ``String.hashCode`` of each text; 0 for an empty one.

    Shapes: texts (n,) strings without nulls -> (n,) unsigned 32-bit numbers.
    """
    blocks = [np.zeros(0, np.uint32)]
    for start in range(0, len(texts), _BLOCK_TEXTS):
        units, ends = _utf16(texts.slice(start, _BLOCK_TEXTS))
        blocks.append(_polynomials(units, ends))
    return np.concatenate(blocks)


def xx_hashes(texts: pa.Array) -> _Words:
    """
    Return xxHash32 with seed 0 of each text's UTF-8 bytes.

    Shapes: texts (n,) strings without nulls -> (n,) unsigned 32-bit numbers.
    """
    hashes = np.zeros(len(texts), np.uint32)
    starts, data = _utf8(texts)
    lengths = np.diff(starts)
    order = np.argsort(lengths, kind="stable")
    bounds = np.flatnonzero(np.diff(lengths[order])) + 1
    for group in np.split(order, bounds):
        if len(group) == 0:
            continue
        span = np.arange(lengths[group[0]])
        for first in range(0, len(group), _BLOCK_TEXTS):
            rows = group[first : first + _BLOCK_TEXTS]
            hashes[rows] = _xx_hash(data[starts[rows][:, None] + span])
    return hashes


def _utf8(texts: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the start of each text in its bytes (n + 1 numbers), and the bytes."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0:
        return np.zeros(len(texts) + 1, np.int32), np.zeros(0, np.uint8)
    starts = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    held = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return starts - starts[0], held[starts[0] : starts[-1]]


def _utf16(texts: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return all code units in sequence, and the start of each text (n + 1 numbers)."""
    starts, data = _utf8(texts)
    if data.max(initial=0) < 0x80:
        return data, starts.astype(np.int64)
    recoded = data.tobytes().decode("utf-8", "surrogatepass").encode("utf-16-le", "surrogatepass")
    units = np.frombuffer(recoded, "<u2")
    # Every byte except 10xxxxxx starts a code point; from F0 on it has two code units.
    width = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)
    before = np.concatenate([[0], np.cumsum(width)])
    return units, before[starts]


def _polynomials(units: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> _Words:
    # h = u0*31^(k-1) + ... + u(k-1). 31 has an inverse modulo 2^32. So one running sum of
    # u*31^-position over all texts gives each text's sum as a difference of two positions.
    falling = _powers(_INVERSE_31, len(units))
    sums = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(units.astype(np.uint32) * falling, dtype=np.uint32, out=sums[1:])
    rising = _powers(31, len(units))
    lasts = np.maximum(ends[1:] - 1, 0)
    differences = sums[ends[1:]] - sums[ends[:-1]]
    return differences * rising[lasts] if len(units) else differences


def _powers(factor: int, count: int) -> _Words:
    powers = np.ones(max(count, 1), np.uint32)
    done = 1
    while done < count:
        step = np.uint32(pow(factor, done, 1 << 32))
        more = min(done, count - done)
        powers[done : done + more] = powers[:more] * step
        done += more
    return powers


def _xx_hash(matrix: npt.NDArray[np.uint8]) -> _Words:
    """Hash texts of one length. Shapes: (n, length) bytes -> (n,)."""
    count, length = matrix.shape
    full = length // 4
    packed = np.ascontiguousarray(matrix[:, : full * 4]).view("<u4").astype(np.uint32)
    words = [packed[:, place] for place in range(full)]
    done = 0
    if length >= 16:
        lanes = [np.full(count, start, np.uint32) for start in _LANE_STARTS]
        while done + 4 <= full:
            for lane in range(4):
                lanes[lane] = _turned(lanes[lane] + words[done + lane] * _P2, 13) * _P1
            done += 4
        value = np.zeros(count, np.uint32)
        for state, section in zip(lanes, _LANE_TURNS, strict=True):
            value += _turned(state, section)
    else:
        value = np.full(count, _P5, np.uint32)
    value += np.uint32(length)
    for word in words[done:]:
        value = _turned(value + word * _P3, 17) * _P4
    for place in range(full * 4, length):
        value = _turned(value + matrix[:, place].astype(np.uint32) * _P5, 11) * _P1
    value ^= value >> np.uint32(15)
    value *= _P2
    value ^= value >> np.uint32(13)
    value *= _P3
    value ^= value >> np.uint32(16)
    return value


def _turned(value: _Words, bits: int) -> _Words:
    return (value << np.uint32(bits)) | (value >> np.uint32(32 - bits))


# ---- The bucket of a record key: Java Hudi's hashes over whole columns (fmt 9)
# With the bucket index the row's key alone gives its file group, without a lookup. One different hash
# would put a key into two file groups. The simple engine uses the hash's remainder, consistent
# hashing searches a ring of ranges. Both hash the texts of the hash fields, extracted from the record
# key exactly as Java does.

HASH_MAX = 0x7FFF_FFFF
_NULL_VALUE, _EMPTY_VALUE = "__null__", "__empty__"
_FILE_ID = re.compile(r"([0-9]{8})-")

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRules:
    """The settings that must be equal on all writers of a table with a bucket index."""

    engine: BucketEngine = BucketEngine.SIMPLE
    buckets: int = 256  # hoodie.bucket.index.num.buckets; of a new partition if counts vary
    hash_fields: tuple[str, ...] = ()  # hoodie.bucket.index.hash.field, all key fields by default


class BucketAssigner(Protocol):
    """Gives each row the number of its bucket within its partition."""

    def numbers(
        self, keys: pa.Array | pa.ChunkedArray, partition_paths: pa.Array | pa.ChunkedArray
    ) -> _Numbers:
        """Return the bucket numbers. Shapes: keys (n,), partition_paths (n,) -> (n,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleBucketAssigner:
    """The simple engine: the same number of buckets in every partition."""

    hash_fields: tuple[str, ...]
    buckets: int

    def numbers(
        self,
        keys: pa.Array | pa.ChunkedArray,
        partition_paths: pa.Array | pa.ChunkedArray,  # noqa: ARG002 - all are alike here
    ) -> _Numbers:
        """As the protocol."""
        hashes = bucket_hashes(keys, self.hash_fields).astype(np.int64)
        return (hashes & HASH_MAX) % self.buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistentHashAssigner:
    """
    Consistent hashing: each partition has ranges of its own.

    ``rings`` holds the upper ends of each partition's ranges, ascending and inclusive. A hash above
    the last end belongs to the first range.
    """

    hash_fields: tuple[str, ...]
    rings: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def numbers(
        self, keys: pa.Array | pa.ChunkedArray, partition_paths: pa.Array | pa.ChunkedArray
    ) -> _Numbers:
        """As the protocol. Every partition path must have a ring."""
        hashes = (ring_hashes(keys, self.hash_fields) & np.uint32(HASH_MAX)).astype(np.int64)
        numbers = np.zeros(len(hashes), np.int64)
        codes, paths = codes_of(partition_paths)
        for code, rows in rows_by_number(codes).items():
            ends = np.asarray(self.rings[paths[code]], np.int64)
            numbers[rows] = np.searchsorted(ends, hashes[rows], side="left") % len(ends)
        return numbers


def bucket_file_id(number: int, uuid: str) -> str:
    """Return the file id of a bucket's new file group: its number, the rest of a random UUID."""
    return f"{number:08d}{uuid[8:]}-0"


def fixed_file_id(number: int, hidden_since: str = "") -> str:
    """
    Return the file id of a bucket on which writers agree without communication (fmt 9).

    Args:
        number: The bucket.
        hidden_since: Requested time, at most 17 digits, of the replacecommit that hid the bucket's
            former file group; empty for its first one, whose id is Java's.
    """
    rest = hidden_since.ljust(24, "0")
    return f"{number:08d}-{rest[:4]}-{rest[4:8]}-{rest[8:12]}-{rest[12:]}-0"


def bucket_of(file_id: str) -> int | None:
    """Return the bucket of a file id, None if the file id is not of that form."""
    found = _FILE_ID.match(file_id)
    return None if found is None else int(found[1])


def bucket_hashes(
    keys: pa.Array | pa.ChunkedArray, hash_fields: tuple[str, ...]
) -> npt.NDArray[np.uint32]:
    """
    Return Java's list hash of each key's hash fields, before sign and remainder.

    Shapes: keys (n,) strings without nulls -> (n,) unsigned 32-bit numbers.
    """
    hashes = np.ones(len(keys), np.uint32)
    for start, chunk in _pieces(keys):
        owners, values = _hash_values(chunk, hash_fields)
        # Null and empty both have hash 0 in Java, whatever marks them in the key.
        marked = pc.is_in(values, value_set=pa.array([_NULL_VALUE, _EMPTY_VALUE]))
        texts = java_hashes(values)
        texts[np.asarray(marked).astype(np.bool_) & _is_compound(chunk)[owners]] = 0
        for these in version_rounds(owners):  # a key's list is hashed left to right
            rows = start + owners[these]
            hashes[rows] = hashes[rows] * np.uint32(31) + texts[these]
    return hashes


def ring_hashes(
    keys: pa.Array | pa.ChunkedArray, hash_fields: tuple[str, ...]
) -> npt.NDArray[np.uint32]:
    """
    Return the hash of each key's hash fields for consistent hashing, before its mask.

    Shapes: keys (n,) strings without nulls -> (n,) unsigned 32-bit numbers.
    """
    parts = [np.zeros(0, np.uint32)]
    for _, chunk in _pieces(keys):
        owners, values = _hash_values(chunk, hash_fields)
        compound = pa.array(_is_compound(chunk)[owners])
        # Java concatenates the values' texts; a null becomes "null".
        values = pc.if_else(pc.and_(compound, pc.equal(values, _NULL_VALUE)), "null", values)
        values = pc.if_else(pc.and_(compound, pc.equal(values, _EMPTY_VALUE)), "", values)
        ends = np.searchsorted(owners, np.arange(len(chunk) + 1), side="left")
        lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)
        parts.append(xx_hashes(pc.binary_join(lists, "")))
    return np.concatenate(parts)


def _pieces(keys: pa.Array | pa.ChunkedArray) -> Iterator[tuple[int, pa.Array]]:
    start = 0
    for chunk in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
        if not pa.types.is_string(chunk.type):
            chunk = pc.cast(chunk, pa.string())  # noqa: PLW2901
        if len(chunk):
            yield start, chunk
        start += len(chunk)


def _is_compound(keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the keys that Java splits: those with a comma and a colon."""
    found = pc.and_(pc.match_substring(keys, ","), pc.match_substring(keys, ":"))
    return np.asarray(found).astype(np.bool_)


def _hash_values(
    keys: pa.Array, hash_fields: tuple[str, ...]
) -> tuple[npt.NDArray[np.intp], pa.Array]:
    """
    Return the texts to hash: for each key those of its hash fields, in the key's order.

    A key without any of them, or of one field only, is hashed whole.

    Shapes: keys (n,) -> positions of keys (m,), ascending, and their texts (m,).
    """
    compound = np.flatnonzero(_is_compound(keys))
    if len(compound) == 0:
        return np.arange(len(keys)), keys
    owners, names, values = _named_values(keys.take(pa.array(compound)))
    chosen = np.asarray(pc.is_in(names, value_set=pa.array(hash_fields, pa.string())))
    chosen = chosen.astype(np.bool_)
    whole = np.ones(len(keys), np.bool_)
    whole[compound[owners[chosen]]] = False
    rest = np.flatnonzero(whole)
    rows = np.concatenate([rest, compound[owners[chosen]]])
    texts: Any = pa.concat_arrays([keys.take(pa.array(rest)), values.filter(pa.array(chosen))])
    order = np.argsort(rows, kind="stable")
    return rows[order], texts.take(pa.array(order))


def _named_values(keys: pa.Array) -> tuple[npt.NDArray[np.intp], pa.Array, pa.Array]:
    """
    Split ``name:value,name:value`` as Java does.

    A comma separates pairs only if another ``name:`` follows before the next comma; any other comma
    belongs to the value. A value ends where its pair ends, colons included.

    Shapes: keys (n,) -> positions of keys (m,), names (m,), values (m,).
    """
    lists = pc.split_pattern(keys, ",")
    counts = np.asarray(pc.list_value_length(lists)).astype(np.intp)
    pieces = lists.flatten()
    owners = np.repeat(np.arange(len(keys)), counts)
    starts = np.cumsum(counts) - counts
    named = np.asarray(pc.match_substring(pieces, ":")).astype(np.bool_)
    seen = np.cumsum(named)
    before: Any = (seen - named)[starts]  # pieces with a colon before each key's first
    opens = named & (seen - before[owners] > 1)
    opens[starts] = True
    heads = np.flatnonzero(opens)
    bounds = pa.array(np.append(heads, len(pieces)), pa.int32())
    pairs = pc.binary_join(pa.ListArray.from_arrays(bounds, pieces), ",")
    halves = pc.split_pattern(pairs, ":", max_splits=1)
    return owners[heads], pc.list_element(halves, 0), pc.list_element(halves, 1)


# ---- Assign new records to file groups: fill small files first, then create new file groups
# This is Hudi's upsert partitioner, so a table written by both engines keeps files of one size. The
# plan uses an estimate of a stored record's bytes, computed from existing files. The module is pure:
# the caller adds file ids and write tokens later.

_LEARN_ROWS_MIN = 1_000  # a smaller file is mostly footer and shows nothing about records


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSettings:
    """The target sizes of base files; defaults are Hudi's."""

    file_bytes_max: int = 125_829_120  # hoodie.parquet.max.file.size
    small_file_bytes: int = 104_857_600  # hoodie.parquet.small.file.limit; 0 never fills files
    record_bytes: int = 1_024  # hoodie.copyonwrite.record.size.estimate
    insert_rows: int = 500_000  # hoodie.copyonwrite.insert.split.size
    auto_split: bool = True  # hoodie.copyonwrite.insert.auto.split: rows follow from bytes

    @property
    def rows_per_file(self) -> int:
        """The number of rows for a new file."""
        if not self.auto_split:
            return max(1, self.insert_rows)
        return max(1, self.file_bytes_max // max(1, self.record_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFile:
    """The newest base file of a file group that may take more records."""

    file_id: str
    size_bytes: int
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertBucket:
    """The part of a partition's new records that goes to one file group."""

    number: int  # unique within the plan
    partition_path: str
    file_id: str | None  # None makes a new file group
    rows: int
    weight: int | None = None  # takes the rows of this bucket of a bucket index, else any


def learn_record_bytes(files: Iterable[tuple[int, int]], *, default: int = 1_024) -> int:
    """
    Estimate the stored bytes of a record.

    Args:
        files: (bytes of the records, rows) of base files of the table, small ones too.
        default: The result if there are too few rows for an estimate.

    Returns:
        Bytes, at least 1.
    """
    size_bytes = rows = 0
    for file_bytes, file_rows in files:
        size_bytes += file_bytes
        rows += file_rows
    if rows < _LEARN_ROWS_MIN or size_bytes == 0:
        return default
    return max(1, -(-size_bytes // rows))


def assign_inserts(
    counts: Mapping[str, int],
    small_files: Mapping[str, Sequence[SmallFile]],
    settings: SizeSettings,
) -> tuple[InsertBucket, ...]:
    """
    Plan the file groups of each partition's new records.

    Args:
        counts: New records by partition path.
        small_files: Base files by partition path. Larger files are skipped; files owned by a
            pending service must already be left out. A bulk insert passes none.
        settings: Sizes.

    Returns:
        Insert buckets sorted by partition path; in each partition the filled files first, smallest
        first. Their rows add up to the counts.
    """
    buckets: list[InsertBucket] = []
    for partition_path in sorted(counts):
        left = counts[partition_path]
        for small in _by_size(small_files.get(partition_path, ()), settings):
            room = (settings.file_bytes_max - small.size_bytes) // max(1, settings.record_bytes)
            rows = min(room, left)
            if rows > 0:
                buckets.append(
                    InsertBucket(
                        number=len(buckets),
                        partition_path=partition_path,
                        file_id=small.file_id,
                        rows=rows,
                    )
                )
                left -= rows
        while left > 0:
            rows = min(left, settings.rows_per_file)
            buckets.append(
                InsertBucket(
                    number=len(buckets),
                    partition_path=partition_path,
                    file_id=None,
                    rows=rows,
                )
            )
            left -= rows
    return tuple(buckets)


def assign_buckets(
    partition_paths: pa.Array | pa.ChunkedArray, buckets: Sequence[InsertBucket]
) -> npt.NDArray[np.int64]:
    """
    Assign each new record to an insert bucket: a partition's rows fill its buckets in order.

    The result is the same for the same rows in the same order. Neighbours stay together, so sorted
    data stays sorted in its files.

    Args:
        partition_paths: Of each new record.
        buckets: From ``assign_inserts`` with these rows' counts. Rows beyond the plan go to their
            partition's last bucket.

    Shapes: (n,) -> bucket numbers (n,); order kept.
    """
    shares: dict[str, list[InsertBucket]] = {}
    for bucket in buckets:
        shares.setdefault(bucket.partition_path, []).append(bucket)
    numbers = np.zeros(len(partition_paths), np.int64)
    codes, paths = codes_of(partition_paths)
    for code, rows in rows_by_number(codes).items():
        own = shares[paths[code]]
        share = np.repeat([b.number for b in own], [b.rows for b in own])[: len(rows)]
        rest = np.full(len(rows) - len(share), own[-1].number)
        numbers[rows] = np.concatenate([share, rest])
    return numbers


def assign_by_bucket(
    partition_paths: pa.Array | pa.ChunkedArray,
    shares: npt.NDArray[np.int64],
    buckets: Sequence[InsertBucket],
) -> npt.NDArray[np.int64]:
    """
    Assign each row of a bucket index to the insert bucket with its partition path and bucket.

    Shapes: partition_paths (n,), shares (n,) -> bucket numbers (n,), -1 if there is none.
    """
    codes, paths = codes_of(partition_paths)
    width = int(max(shares.max(initial=0), *(bucket.weight or 0 for bucket in buckets), 0)) + 1
    code_of = {path: code for code, path in enumerate(paths)}
    wanted = sorted(
        (code_of[bucket.partition_path] * width + (bucket.weight or 0), bucket.number)
        for bucket in buckets
        if bucket.partition_path in code_of
    )
    numbers = np.full(len(codes), -1, np.int64)
    if not wanted or not len(codes):
        return numbers
    places, targets = np.array(wanted, np.int64).T
    mine = codes * width + shares
    positions = np.minimum(np.searchsorted(places, mine), len(places) - 1)
    found = places[positions] == mine
    numbers[found] = targets[positions[found]]
    return numbers


def _by_size(files: Sequence[SmallFile], settings: SizeSettings) -> list[SmallFile]:
    small = [each for each in files if each.size_bytes < settings.small_file_bytes]
    return sorted(small, key=lambda each: (each.size_bytes, each.file_id))
