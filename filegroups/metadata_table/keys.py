"""
The partitions of the metadata table, the names of their file groups, and the keys of their records.

Keys of statistics and bloom filters are hashes of column, partition and file name. A key of a
secondary index joins a value and a record key. A hash of the key gives the file group. All follow
Java's ``HoodieTableMetadataUtil``; a different bit would hide a record from Java. Functions over keys
work on whole columns, and hash each distinct name once.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from filegroups.keys.bucketing import java_hashes
from filegroups.metadata_table.records import NO_PARTITION
from filegroups.schema.arrow_columns import one_array
from timeline.errors import CorruptTableError
from timeline.model.metadata_table import PartitionKind, kind_of

Texts: TypeAlias = pa.Array | pa.ChunkedArray

_SEED: Final = 0xFFFF_FFFF_DABA_DABA  # Java extends the sign of its int 0xdabadaba
_NULL_VALUE: Final = "\0"  # the value part of a secondary key of a null
_SECONDARY_KEY: Final = r"(?s)^(?P<value>(?:[^\\$]|\\.)*)\$(?P<record_key>.*)$"
_ESCAPED: Final = r"(?s)\\(.)"
# Java's PartitionPathEncodeUtils.escapeFileName
_UNSAFE: Final = re.compile(r"""[\x01-\x1f"#%'*\-/:=?\[\\\]^_{\x7f]""")
_GROUP: Final = re.compile(r"(.*)-(\d{4,9})-0", re.DOTALL)


class IndexVersion(Enum):
    """The ``version`` of an index definition; a definition without one has V1."""

    V1 = "V1"
    V2 = "V2"


@dataclass(frozen=True, slots=True)
class FileGroupNumber:
    """The place of a file group in its partition."""

    number: int
    # The partition of the table whose keys the file group has, in a record index per partition.
    data_partition: str | None = None


_PREFIXES: Final = {
    PartitionKind.FILES: "files",
    PartitionKind.COLUMN_STATS: "col-stats",
    PartitionKind.BLOOM_FILTERS: "bloom-filters",
    PartitionKind.RECORD_INDEX: "record-index",
    PartitionKind.PARTITION_STATS: "partition-stats",
}


def file_group_id(partition: str, number: int, *, data_partition: str | None = None) -> str:
    """
    Return the file id of a file group.

    Args:
        partition: Folder of the metadata table.
        number: Counted from 0.
        data_partition: The table's partition, only in a record index per partition.
    """
    prefix = _id_prefix(partition)
    if data_partition is not None:
        prefix = f"{prefix}-{_UNSAFE.sub(_percent, data_partition)}"
    return f"{prefix}-{number:04d}-0"


def parse_file_group_id(partition: str, file_id: str) -> FileGroupNumber | None:
    """Return the number of a file group, None if the file id is not one of the partition."""
    found, prefix = _GROUP.fullmatch(file_id), _id_prefix(partition)
    if found is None:
        return None
    if found[1] == prefix:
        return FileGroupNumber(int(found[2]))
    data_partition = found[1].removeprefix(f"{prefix}-")
    is_split = partition == PartitionKind.RECORD_INDEX.value and "-" not in data_partition
    if not is_split or not found[1].startswith(f"{prefix}-"):
        return None
    return FileGroupNumber(int(found[2]), unquote(data_partition))


def _id_prefix(partition: str) -> str:
    kind = kind_of(partition)
    return partition.replace("_", "-") if kind is None or kind.is_named else _PREFIXES[kind]


def _percent(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


# ---- Keys of statistics and bloom filters


def column_stats_keys(columns: Texts, partition_paths: Texts, file_names: Texts) -> pa.Array:
    """
    Return the keys in ``column_stats`` of some columns of some files.

    Shapes: columns, partition_paths ("" for the base folder), file_names without folder, all (n,)
    texts without nulls -> (n,) texts of 48 letters.
    """
    return _joined(
        _by_distinct(columns, _h64),
        _by_distinct(partition_paths, _partition_h64),
        _by_distinct(file_names, _md5),
    )


def partition_stats_keys(columns: Texts, partition_paths: Texts) -> pa.Array:
    """Return keys in ``partition_stats``. Shapes: as `column_stats_keys` -> texts of 24 letters."""
    return _joined(
        _by_distinct(columns, _h64),
        _by_distinct(partition_paths, _partition_h64),
    )


def bloom_filter_keys(partition_paths: Texts, file_names: Texts) -> pa.Array:
    """Return keys in ``bloom_filters``. Shapes: as `column_stats_keys` -> texts of 36 letters."""
    return _joined(
        _by_distinct(partition_paths, _partition_h64),
        _by_distinct(file_names, _md5),
    )


def _by_distinct(texts: Texts, convert: Callable[[str], str]) -> pa.Array:
    encoded = one_array(texts).cast(pa.string()).dictionary_encode()
    converted = [convert(text) for text in encoded.dictionary.to_pylist()]
    return pa.array(converted, pa.string()).take(encoded.indices)


def _joined(*parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _h64(text: str) -> str:
    return base64.b64encode(xxhash.xxh64_digest(text.encode(), seed=_SEED)).decode("ascii")


def _partition_h64(path: str) -> str:
    return _h64(path or NO_PARTITION)


def _md5(text: str) -> str:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return base64.b64encode(digest).decode("ascii")


# ---- Keys of a secondary index


def secondary_keys(values: Texts, record_keys: Texts) -> pa.Array:
    """
    Return the keys of a secondary index.

    Shapes: values (n,) texts, null for a null; record_keys (n,) texts without nulls -> (n,).
    """
    escaped = pc.fill_null(_escaped(values), _NULL_VALUE)
    return pc.binary_join_element_wise(escaped, _escaped(record_keys), "$")


def split_secondary_keys(keys: Texts, *, path: str) -> tuple[pa.Array, pa.Array]:
    """
    Return the values and the record keys of keys of a secondary index.

    Args:
        keys: The keys, no nulls.
        path: The file that errors name.

    Shapes: keys (n,) -> values (n,), null for a null, and record keys (n,).

    Raises:
        CorruptTableError: A key has no separator (``bad_hfile``).
    """
    values, record_keys = _halves(keys, path)
    null = pa.scalar(None, pa.string())
    return (
        pc.if_else(pc.equal(values, _NULL_VALUE), null, _unescaped(values)),
        _unescaped(record_keys),
    )


def _halves(keys: Texts, path: str) -> tuple[pa.Array, pa.Array]:
    halves = pc.extract_regex(one_array(keys).cast(pa.string()), _SECONDARY_KEY)
    if halves.null_count:
        bad = one_array(keys).filter(pc.is_null(halves))[0].as_py()
        raise CorruptTableError(
            "a key of a secondary index is damaged: build the index again with 'hoodoo "
            f"metadata rebuild TABLE': {path} has the key {bad!r} without a separator",
            kind="bad_hfile",
            path=path,
        )
    return halves.field("value"), halves.field("record_key")


def _escaped(texts: Texts) -> pa.Array:
    found = one_array(texts).cast(pa.string())
    for special in ("\\", "$", "\0"):
        found = pc.replace_substring(found, special, f"\\{special}")
    return found


def _unescaped(texts: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(texts, _ESCAPED, r"\1")


# ---- The file group of a key


def shards(
    keys: Texts,
    count: int,
    kind: PartitionKind,
    *,
    index_version: IndexVersion = IndexVersion.V2,
    path: str = "",
) -> npt.NDArray[np.int64]:
    """
    Return the file group of each key, as its place among the sorted file ids.

    Args:
        keys: Keys of records, no nulls.
        count: Number of file groups; in a record index per partition, those of the key's partition.
        kind: The partition.
        index_version: Version of the definition of a secondary index. V2 hashes the value alone, so
            all records of a value are in one file group; V1 hashes the whole key.
        path: The file or partition that errors name.

    Shapes: keys (n,) -> (n,) numbers from 0 to count - 1.

    Raises:
        CorruptTableError: A key of a secondary index has no separator (``bad_hfile``).
    """
    if count <= 1 or kind is PartitionKind.FILES:
        return np.zeros(len(keys), np.int64)
    texts = one_array(keys).cast(pa.string())
    if kind is PartitionKind.SECONDARY_INDEX and index_version is IndexVersion.V2:
        texts = pc.binary_join_element_wise(_halves(texts, path)[0], "$", "")
    hashes = java_hashes(texts).view(np.int32).astype(np.int64)
    return np.abs(hashes) % count
