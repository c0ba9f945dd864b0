"""
Hashing metadata: maps ranges of hashes to the file groups of a partition (fmt 9).

The JSON of ``<instant>.hashing_meta``. A partition's first metadata follows from its path and the
number of buckets alone, file ids included. So two writers that create it at the same time, Java or
not, create the same.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from filegroups.keys.bucketing import HASH_MAX
from timeline.errors import CorruptTableError

FIRST_INSTANT = "00000000000000"
NORMAL = "NORMAL"
_RANGE = struct.Struct(">qq")


@dataclass(frozen=True, slots=True, kw_only=True)
class HashingNode:
    """One range of hashes; it ends at ``value``, inclusive."""

    value: int
    file_id_prefix: str
    tag: str = NORMAL

    @property
    def file_id(self) -> str:
        """The one file group of the range."""
        return f"{self.file_id_prefix}-0"


@dataclass(frozen=True, slots=True, kw_only=True)
class HashingMetadata:
    """All ranges of one partition, ascending, as of one instant."""

    partition_path: str
    instant: str
    nodes: tuple[HashingNode, ...]
    version: int = 0
    sequence: int = 0

    @property
    def ends(self) -> tuple[int, ...]:
        """The upper ends of the ranges."""
        return tuple(node.value for node in self.nodes)


def first_hashing_metadata(partition_path: str, buckets: int) -> HashingMetadata:
    """Return the first metadata of a partition: ranges of equal length."""
    step = (HASH_MAX + buckets - 1) // buckets
    bounds = [min(step * number, HASH_MAX) for number in range(buckets + 1)]
    return HashingMetadata(
        partition_path=partition_path,
        instant=FIRST_INSTANT,
        nodes=tuple(
            HashingNode(value=end, file_id_prefix=_named_uuid(partition_path, start, end))
            for start, end in pairwise(bounds)
        ),
    )


def decode_hashing_metadata(data: bytes, *, path: str) -> HashingMetadata:
    """
    Read a metadata file.

    Raises:
        CorruptTableError: It is not such JSON, or its ranges do not ascend.
    """
    try:
        document: dict[str, Any] = json.loads(data)
        nodes = tuple(
            HashingNode(
                value=int(node["value"]),
                file_id_prefix=str(node["fileIdPrefix"]),
                tag=str(node.get("tag") or NORMAL),
            )
            for node in document["nodes"]
        )
        found = HashingMetadata(
            partition_path=str(document["partitionPath"]),
            instant=str(document["instant"]),
            nodes=tuple(sorted(nodes, key=lambda node: node.value)),
            version=int(document["version"]),
            sequence=int(document["seqNo"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__} {error}"[:200]) from error
    ends = found.ends
    if not ends or len(set(ends)) != len(ends) or not all(0 <= end <= HASH_MAX for end in ends):
        raise _damaged(path, f"ranges {ends[:10]}")
    return found


def encode_hashing_metadata(metadata: HashingMetadata) -> bytes:
    """Return the bytes Java writes for the same metadata."""
    nodes = ", ".join(
        "{\n"
        f'    "value" : {node.value},\n'
        f'    "fileIdPrefix" : {json.dumps(node.file_id_prefix, ensure_ascii=False)},\n'
        f'    "tag" : {json.dumps(node.tag)}\n'
        "  }"
        for node in metadata.nodes
    )
    path = json.dumps(metadata.partition_path, ensure_ascii=False)
    text = (
        "{\n"
        f'  "version" : {metadata.version},\n'
        f'  "partitionPath" : {path},\n'
        f'  "instant" : "{metadata.instant}",\n'
        f'  "numBuckets" : {len(metadata.nodes)},\n'
        f'  "seqNo" : {metadata.sequence},\n'
        f'  "nodes" : [ {nodes} ]\n'
        "}"
    )
    return text.encode()


def _named_uuid(partition_path: str, start: int, end: int) -> str:
    """Return Java's name-based UUID (version 3) of a range in a partition."""
    digest = hashlib.md5(
        _RANGE.pack(start, end) + partition_path.encode(), usedforsecurity=False
    ).digest()
    marked = bytearray(digest)
    marked[6] = marked[6] & 0x0F | 0x30
    marked[8] = marked[8] & 0x3F | 0x80
    text = marked.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _damaged(path: str, why: str) -> CorruptTableError:
    return CorruptTableError(
        f"the hashing metadata of a partition cannot be read; restore it: {path} ({why})",
        kind="bad_hashing_metadata",
        path=path,
    )
