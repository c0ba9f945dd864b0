"""
Consistent hashing on storage: the newest committed ranges of each partition (fmt 9).

Resizing a partition writes new metadata whose instant must have completed before it
counts; until then the older ranges stand. What a resizing in progress owns is refused
like any pending clustering, so ranges never change under a write unseen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from timeline.codecs.hashing_metadata import (
    FIRST_INSTANT,
    NORMAL,
    HashingMetadata,
    decode_hashing_metadata,
    encode_hashing_metadata,
    first_hashing_metadata,
)
from timeline.errors import StorageUnavailableError, UnsupportedTableError
from timeline.model.paths import check_partition_path, join
from timeline.ports.storage import AmbiguousWriteError, ObjectExistsError, Storage
from timeline.reading.snapshot import Snapshot

__all__ = ["FOLDER", "load_ranges"]

FOLDER = ".hoodie/.bucket_index/consistent_hashing_metadata"
_SUFFIX, _COMMIT_SUFFIX = ".hashing_meta", ".commit"


def load_ranges(
    storage: Storage,
    snapshot: Snapshot,
    partition_path: str,
    file_ids: Collection[str],
    *,
    buckets: int,
) -> HashingMetadata:
    """
    The ranges rows of a partition are routed by; made when the partition is new.

    Args:
        storage: Where the table lies.
        snapshot: The write's base; later instants do not count.
        partition_path: The partition.
        file_ids: Its file groups in the snapshot.
        buckets: How many ranges a new partition gets.

    Raises:
        CorruptTableError: The metadata is damaged.
        UnsupportedTableError: The ranges are being changed just now.
        StorageUnavailableError: The storage did not answer.

    Outside: 1 list, 1 get; 1 create for a new partition.
    """
    check_partition_path(partition_path)
    folder = join(FOLDER, partition_path)
    names = storage.names(folder)
    marked = {name.removesuffix(_COMMIT_SUFFIX) for name in names if name.endswith(_COMMIT_SUFFIX)}
    found = sorted((name for name in names if name.endswith(_SUFFIX)), reverse=True)
    for place, name in enumerate(found):
        instant = name.removesuffix(_SUFFIX)
        first = instant == FIRST_INSTANT
        if not first and instant not in marked and not snapshot.is_committed(instant):
            continue
        path = f"{folder}/{name}"
        metadata = decode_hashing_metadata(storage.read(path), path=path)
        settled = first or instant in marked or instant in snapshot.completions
        # Archived long ago, or failed before the timeline begins: file groups of its own tell.
        if settled or _fresh(storage, folder, metadata, found[place + 1 :]) & set(file_ids):
            return _settled(metadata, path)
    return _first(storage, folder, first_hashing_metadata(partition_path, buckets))


def _fresh(
    storage: Storage, folder: str, metadata: HashingMetadata, older: Sequence[str]
) -> set[str]:
    """File ids that no older metadata knows."""
    fresh = {node.file_id for node in metadata.nodes}
    for name in older:
        path = f"{folder}/{name}"
        fresh -= {
            node.file_id for node in decode_hashing_metadata(storage.read(path), path=path).nodes
        }
    return fresh


def _first(storage: Storage, folder: str, metadata: HashingMetadata) -> HashingMetadata:
    path = f"{folder}/{FIRST_INSTANT}{_SUFFIX}"
    try:
        storage.create(path, encode_hashing_metadata(metadata))
    except ObjectExistsError:  # another writer made it at this moment, perhaps of another size
        return decode_hashing_metadata(storage.read(path), path=path)
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; write again: {path}", path=path
        ) from error
    return metadata


def _settled(metadata: HashingMetadata, path: str) -> HashingMetadata:
    if any(node.tag != NORMAL for node in metadata.nodes):
        raise UnsupportedTableError(
            "this partition's buckets are being split or merged; let Java Hudi finish its "
            f"clustering first: {path}",
            kind="bucket_resizing",
            path=path,
        )
    return metadata
