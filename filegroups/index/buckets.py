"""Bucket indexes: the hash of a key gives its file group, by a count or by ranges (fmt 9)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from filegroups.files.hashing_metadata import (
    FIRST_INSTANT,
    NORMAL,
    HashingMetadata,
    decode_hashing_metadata,
    encode_hashing_metadata,
    first_hashing_metadata,
)
from filegroups.keys.bucketing import (
    BucketAssigner,
    BucketEngine,
    BucketRules,
    ConsistentHashAssigner,
    SimpleBucketAssigner,
    bucket_file_id,
    bucket_of,
    fixed_file_id,
)
from timeline.errors import (
    CorruptTableError,
    SettingError,
    UnsupportedTableError,
)
from timeline.model.file_names import check_partition_path, join
from timeline.model.instant_time import InstantTime
from timeline.model.write_set import FileGroupId
from timeline.ports.storage import Storage, create_if_absent
from timeline.snapshot import Snapshot

__all__ = ["FOLDER", "Buckets", "find_buckets", "load_ranges"]

# ---- Consistent hashing: the newest committed ranges of each partition (fmt 9)
#
# Resizing a partition writes new metadata, which counts once its instant has completed. Until then
# the older ranges are valid. Writes into buckets that are being resized are refused like any
# pending clustering, so ranges never change during a write.

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
    Return the ranges of a partition's buckets; create them for a new partition.

    Args:
        storage: Storage of the table.
        snapshot: Base snapshot of the write; later instants do not count.
        partition_path: The partition.
        file_ids: Its file groups in the snapshot.
        buckets: Number of ranges in a new partition.

    Raises:
        CorruptTableError: The metadata is damaged.
        UnsupportedTableError: The ranges are being changed.
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
        # Its instant is archived, or failed before the timeline begins. It counts if one of its new
        # file groups exists.
        if settled or _fresh(storage, folder, metadata, found[place + 1 :]) & set(file_ids):
            return _settled(metadata, path)
    return _first(storage, folder, first_hashing_metadata(partition_path, buckets))


def _fresh(
    storage: Storage, folder: str, metadata: HashingMetadata, older: Sequence[str]
) -> set[str]:
    """Return the file ids that no older metadata contains."""
    fresh = {node.file_id for node in metadata.nodes}
    for name in older:
        path = f"{folder}/{name}"
        fresh -= {
            node.file_id for node in decode_hashing_metadata(storage.read(path), path=path).nodes
        }
    return fresh


def _first(storage: Storage, folder: str, metadata: HashingMetadata) -> HashingMetadata:
    path = f"{folder}/{FIRST_INSTANT}{_SUFFIX}"
    if create_if_absent(storage, path, encode_hashing_metadata(metadata), repeat="write again"):
        return metadata
    # Another writer created it, perhaps with another size.
    return decode_hashing_metadata(storage.read(path), path=path)


def _settled(metadata: HashingMetadata, path: str) -> HashingMetadata:
    if any(node.tag != NORMAL for node in metadata.nodes):
        raise UnsupportedTableError(
            "this partition's buckets are being split or merged; let Java Hudi finish its "
            f"clustering first: {path}",
            kind="bucket_resizing",
            path=path,
        )
    return metadata


# ---- The bucket index: a row's key gives its file group (fmt 9)
#
# Each bucket has one file group per partition, found by file ids alone. The simple engine writes
# the bucket's number in front of the file id; consistent hashing lists the ids in its metadata. A
# file group that does not fit the settings is refused before a row is written into a wrong bucket.

_COUNT_KEY, _TYPE_KEY = "hoodie.bucket.index.num.buckets", "hoodie.index.type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """The buckets of some partitions: how keys map to them, and which have a file group."""

    shares: BucketAssigner
    known: Mapping[tuple[str, int], FileGroupId]  # by (partition path, bucket number)
    fixed: Mapping[tuple[str, int], str] = field(default_factory=dict)  # file ids that must be used
    # For writers that agree on file ids without communication: the time since which the former file
    # group of a bucket is hidden. Its id would hide the new one, too (NBCC-4). None: ids are
    # random.
    hidden_since: Mapping[tuple[str, int], InstantTime] | None = None

    def file_id(self, partition_path: str, number: int, new_uuid: Callable[[], str]) -> str:
        """Return the file id of a bucket: existing, agreed on, or made from a random UUID."""
        place = (partition_path, number)
        if place in self.known:
            return self.known[place].file_id
        if place in self.fixed:
            return self.fixed[place]
        if self.hidden_since is not None:
            return fixed_file_id(number, self.hidden_since.get(place, ""))
        return bucket_file_id(number, new_uuid())

    def misplaced(self, group: FileGroupId, keys: pa.ChunkedArray) -> int:
        """
        Return how many keys of a file group do not belong to its bucket.

        There are some if the table was made with another number of buckets or other hash fields.
        """
        mine = next(number for (_, number), one in self.known.items() if one == group)
        paths = pa.repeat(pa.scalar(group.partition_path), len(keys))
        return int((self.shares.numbers(keys, paths) != mine).sum())


def find_buckets(
    storage: Storage,
    snapshot: Snapshot,
    rules: BucketRules,
    partition_paths: Collection[str],
    groups: Iterable[FileGroupId],
    *,
    agreed: bool = False,
) -> Buckets:
    """
    Find the file group of every bucket of some partitions.

    Args:
        storage: Storage of the table.
        snapshot: Base snapshot of the write.
        rules: The table's buckets.
        partition_paths: The partitions of the rows.
        groups: Every visible file group of these partitions in the snapshot.
        agreed: Whether a new file group gets an id on which all writers agree.

    Raises:
        SettingError: A file group belongs to no bucket or to one beyond the configured number: the
            table was made with other settings.
        CorruptTableError: Two file groups claim one bucket, or metadata is damaged.
        UnsupportedTableError: Buckets are being resized.

    Outside: nothing for the simple engine; 1 list and 1 get a partition for consistent hashing.
    """
    if rules.engine is BucketEngine.SIMPLE:
        return Buckets(
            shares=SimpleBucketAssigner(hash_fields=rules.hash_fields, buckets=rules.buckets),
            known=_numbered(rules.buckets, groups),
            hidden_since=_hidden_since(snapshot) if agreed else None,
        )
    listed: dict[str, list[FileGroupId]] = {path: [] for path in partition_paths}
    for group in groups:
        listed.setdefault(group.partition_path, []).append(group)
    ranges = {
        path: load_ranges(
            storage, snapshot, path, {one.file_id for one in some}, buckets=rules.buckets
        )
        for path, some in listed.items()
    }
    fixed = {
        (path, number): node.file_id
        for path, metadata in ranges.items()
        for number, node in enumerate(metadata.nodes)
    }
    numbers = {FileGroupId(path, file_id): number for (path, number), file_id in fixed.items()}
    known = {}
    for group in (one for some in listed.values() for one in some):
        if group not in numbers:
            raise _foreign(group)
        known[group.partition_path, numbers[group]] = group
    rings = {path: metadata.ends for path, metadata in ranges.items()}
    shares = ConsistentHashAssigner(hash_fields=rules.hash_fields, rings=rings)
    return Buckets(shares=shares, known=known, fixed=fixed)


def _numbered(count: int, groups: Iterable[FileGroupId]) -> dict[tuple[str, int], FileGroupId]:
    known: dict[tuple[str, int], FileGroupId] = {}
    for group in groups:
        number = bucket_of(group.file_id)
        if number is None:
            raise _foreign(group)
        if number >= count:
            raise SettingError(
                "the table has more buckets than configured; every writer must give the number "
                f"it was made with: {_COUNT_KEY}={count}, and there is {group}",
                kind="bucket_count",
                key=_COUNT_KEY,
                value=str(count),
                layer="",
                suggestion=f"at least {number + 1}",
            )
        other = known.setdefault((group.partition_path, number), group)
        if other != group:
            raise CorruptTableError(
                f"two file groups claim bucket {number}; rewrite the partition with "
                f"insert_overwrite: {other} and {group}",
                kind="duplicate_bucket",
                path=group.partition_path,
            )
    return known


def _hidden_since(snapshot: Snapshot) -> dict[tuple[str, int], InstantTime]:
    """Return when each bucket's newest replaced file group was replaced, by requested time."""
    found: dict[tuple[str, int], InstantTime] = {}
    for group, time in snapshot.replaced.items():
        number = bucket_of(group.file_id)
        if number is not None:
            place = (group.partition_path, number)
            found[place] = max(found.get(place, ""), time)
    return found


def _foreign(group: FileGroupId) -> SettingError:
    return SettingError(
        "a file group belongs to no bucket: the table was written without the bucket index, or "
        f"with another engine of it; give the settings it was made with: {group}",
        kind="no_bucket",
        key=_TYPE_KEY,
        value="BUCKET",
        layer="",
        suggestion="SIMPLE, or the other hoodie.index.bucket.engine",
    )
