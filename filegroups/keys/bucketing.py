"""
The bucket of a record key: Java Hudi's hashes over whole columns (fmt 9).

With the bucket index the row's key alone gives its file group, without a lookup. One different hash
would put a key into two file groups. The simple engine uses the hash's remainder, consistent
hashing searches a ring of ranges. Both hash the texts of the hash fields, extracted from the record
key exactly as Java does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.keys.insert_buckets import codes_of, rows_by_number
from filegroups.keys.java_hashes import java_hashes, xx_hashes
from filegroups.schema.columns import version_rounds

__all__ = [
    "BucketAssigner",
    "BucketEngine",
    "BucketRules",
    "ConsistentHashAssigner",
    "SimpleBucketAssigner",
    "bucket_file_id",
    "bucket_hashes",
    "bucket_of",
    "fixed_file_id",
    "ring_hashes",
]

HASH_MAX = 0x7FFF_FFFF
_NULL_VALUE, _EMPTY_VALUE = "__null__", "__empty__"
_FILE_ID = re.compile(r"([0-9]{8})-")

_Numbers = npt.NDArray[np.int64]


class BucketEngine(Enum):
    """How hashes become buckets, spelled as in ``hoodie.index.bucket.engine``."""

    SIMPLE = "SIMPLE"
    CONSISTENT_HASHING = "CONSISTENT_HASHING"


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
