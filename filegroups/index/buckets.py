"""
The bucket index: bucket rules of a table, and the file group of each key (fmt 9).

The rules are in the table's properties. The newest committed ranges of a consistent index are in
its hashing metadata. Logs of a bucket may hold keys that the base file lacks.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import pyarrow as pa

from filegroups.files.parquet import read_keys
from filegroups.keys.bucketing import (
    HASH_MAX,
    BucketAssigner,
    BucketRules,
    ConsistentHashAssigner,
    SimpleBucketAssigner,
    bucket_file_id,
    bucket_of,
    fixed_file_id,
)
from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.scan import view_of
from filegroups.settings.key_settings import BUCKET_PROPERTY_KEYS, KeySettings
from timeline.codecs.instant_avro import decode_commit
from timeline.codecs.legacy_commit import decode_legacy_commit
from timeline.context import TableContext
from timeline.errors import (
    CorruptTableError,
    MissingFileError,
    SettingError,
    UnsupportedTableError,
    counted,
)
from timeline.model.commit_metadata import LOG_COMPACT, CommitMetadata, FileGroupId
from timeline.model.file_names import check_partition_path, join, pending_file_names
from timeline.model.file_slice import FileSlice, LogFile
from timeline.model.instant import Instant
from timeline.model.instant_time import InstantTime, WallMs, instant_time
from timeline.model.slot import SlotOwner
from timeline.model.table_config import TableConfig
from timeline.ports.ports import ObjectMissingError, Storage, create_if_absent
from timeline.properties.properties_file import (
    load_config,
    misplaced_rows_noted,
    note_misplaced_rows,
    update_properties,
)
from timeline.properties.setting_enums import BucketEngine
from timeline.snapshot import Snapshot

# ---- Bucket rules in the table's properties (fmt 1.1)
#
# Hudi does not store them: a writer with another number of buckets would put updated keys into
# other file groups without an error. So a table that hoodoo creates, or writes for the first time,
# stores them under hoodoo's own keys. Before a first write, the existing files are checked against
# the rules.

_SAMPLED_FILES = 3


def bucket_properties(rules: BucketRules) -> dict[str, str]:
    """Return the table properties of some bucket rules."""
    texts = {
        "index_type": "BUCKET",
        "bucket_engine": rules.engine.value,
        "bucket_count": str(rules.buckets),
        "bucket_hash_fields": ",".join(rules.hash_fields),
    }
    return {BUCKET_PROPERTY_KEYS[field]: text for field, text in texts.items()}


def has_bucket_rules(config: TableConfig) -> bool:
    """Return whether the table's properties contain bucket rules."""
    return config.raw.get(BUCKET_PROPERTY_KEYS["index_type"]) == "BUCKET"


def bucket_rules_in(config: TableConfig) -> BucketRules | None:
    """Return the bucket rules in the table's properties; None if there are no valid ones."""
    properties = {field: config.raw.get(key, "") for field, key in BUCKET_PROPERTY_KEYS.items()}
    fields = tuple(name for name in properties["bucket_hash_fields"].split(",") if name)
    count = properties["bucket_count"]
    if not (
        has_bucket_rules(config) and fields and count.isascii() and count.isdigit() and int(count)
    ):
        return None
    if properties["bucket_engine"] not in BucketEngine.__members__:
        return None
    return BucketRules(
        engine=BucketEngine[properties["bucket_engine"]], buckets=int(count), hash_fields=fields
    )


def refuse_other_buckets(context: TableContext, rules: BucketRules) -> None:
    """
    Check bucket rules against the files of a table that does not store its rules.

    Its file groups must be buckets by these rules, and keys sampled from its files must be in the
    buckets that the rules give.

    Raises:
        SettingError: The table was made with other settings.
        CorruptTableError: Two file groups claim one bucket.

    Outside: 1 list a partition, at most 3 open_input.
    """
    ports = context.ports
    snapshot = context.snapshot()
    slices = {one.file_group: one for one in view_of(context, snapshot).latest_slices()}
    paths = {group.partition_path for group in slices}
    buckets = find_buckets(ports.storage, snapshot, rules, paths, slices)
    with_files = [one for one in slices.values() if one.base_file is not None]
    for one in with_files[:_SAMPLED_FILES]:
        _refuse_misplaced(context, rules, buckets, one)


def record_bucket_rules(context: TableContext, rules: BucketRules) -> None:
    """
    Store bucket rules in a table that has none, most often a table of another engine.

    The rules are written to the properties under the lock and bind every later writer. The caller
    must be in the writer registry: the registry refuses it if a live writer has other rules
    (REG-1).

    Raises:
        SettingError, CorruptTableError: As ``refuse_other_buckets``; nothing was changed.
        LockTimeoutError: Another process holds the lock.

    Outside: as ``refuse_other_buckets``, then the steps of fmt 1.3.
    """
    refuse_other_buckets(context, rules)
    ports = context.ports
    with ports.lock.acquire("keep how buckets are made"):
        now = instant_time(WallMs(ports.clock.now_ms()))
        update_properties(ports.storage, bucket_properties(rules), now=now)


def record_misplaced_rows(context: TableContext) -> None:
    """
    Note in the table that rows may be in partitions that differ from their partition columns.

    Readers then do not prune partitions by a filter on these columns. Call it before the first such
    write.

    Raises:
        LockTimeoutError: Another process holds the lock.

    Outside: 1 get; if the table does not say so yet, the lock and the steps of fmt 1.3.
    """
    ports = context.ports
    if misplaced_rows_noted(load_config(ports.storage)):
        return
    with ports.lock.acquire("note rows in other partitions"):
        note_misplaced_rows(ports.storage, now=instant_time(WallMs(ports.clock.now_ms())))


def _refuse_misplaced(
    context: TableContext, rules: BucketRules, buckets: Buckets, one: FileSlice
) -> None:
    if one.base_file is None:
        return
    wrong = buckets.misplaced(one.file_group, read_keys(context.ports.storage, one.base_file.path))
    if not wrong:
        return
    option = KeySettings.options["bucket_count"]
    layout = f"{counted(rules.buckets, 'bucket')} of {','.join(rules.hash_fields)}"
    if rules.engine is BucketEngine.CONSISTENT_HASHING:
        layout = f"ranges of {','.join(rules.hash_fields)}"
    raise SettingError(
        f"{counted(wrong, 'key')} of a file group in another bucket by {layout}: set {option.key} and "
        "hoodie.bucket.index.hash.field in every writer as the table was made: "
        f"{one.base_file.path}",
        kind="bucket_count",
        key=option.key,
        value=str(rules.buckets),
        layer="",
        suggestion="the values of the other writers",
    )


# ---- Slices whose logs hold keys that no base file has
#
# Java Hudi inserts into logs if its index covers logs: INMEMORY, HBASE, Flink's state, buckets. Its
# SIMPLE and BLOOM indexes read base files only and write such a key a second time. Here the write
# stats of the logs show which slices must be read whole.
#
# Stats count a new key as an update if the writer chose the file group itself. That is so with
# buckets, and in Flink, which fills small file groups. Flink's inflight files name no file groups;
# buckets show in file ids or in metadata of their own. All other writers name the file groups that
# they update in the inflight file.

_BUCKETS_MAX = 100_000  # a random file id begins with such a number once in 40,000


def slices_with_log_inserts(
    context: TableContext, view: FileSystemView, slices: Iterable[FileSlice]
) -> Iterator[FileSlice]:
    """
    Return the slices with base file and logs that may hold a key the base file never had.

    A log counts if its write stat has inserts. It also counts if the stat is not usable: its
    instant is archived, its metadata is damaged, the log is named as in version 6, or its writer's
    counts are not reliable.

    Args:
        context: The table.
        view: View of the write's snapshot, which has the instants on the timeline.
        slices: Those that a write reads.

    Outside: 1 get per instant whose metadata is not known yet; if another engine wrote, 1 list and
    1 get per instant of that engine that updated.
    """
    logged = [one for one in slices if one.base_file is not None and one.log_files]
    counts = _LogStats(context, view.snapshot, logged)
    return (one for one in logged if counts.inserts(one))


class _LogStats:
    """The write stats of the instants of logs, each read once."""

    def __init__(
        self, context: TableContext, snapshot: Snapshot, slices: Iterable[FileSlice]
    ) -> None:
        self._context = context
        self._snapshot = snapshot
        times = {log.instant_time for one in slices if not _is_bucket(one) for log in one.log_files}
        found = [snapshot.active.find(time) for time in sorted(times)]
        instants = [one for one in found if one is not None and one.completed]
        read = context.ports.for_each(self._read, instants)
        self._written = {
            one.requested_time: (one, metadata)
            for one, metadata in zip(instants, read, strict=True)
        }
        self._planned: dict[str, frozenset[FileGroupId]] = {}

    def inserts(self, one: FileSlice) -> bool:
        """Return whether a log of a slice may have inserted a key."""
        if _is_bucket(one):
            return True
        # Rows of a log compaction are also in the logs it read, as long as those exist.
        answers = [self._inserted(log) for log in one.log_files]
        return any(answers) or all(each is None for each in answers)

    def _inserted(self, log: LogFile) -> bool | None:
        """Return whether a log may hold inserts; None for a log of a log compaction."""
        instant, metadata = self._written.get(log.instant_time, (None, None))
        if instant is None or metadata is None:
            return True
        if metadata.operation_type == LOG_COMPACT:
            return None
        stats = metadata.partition_to_write_stats.get(log.file_group.partition_path, ())
        mine = [one for one in stats if (one.path or "").rpartition("/")[2] == log.name]
        if not mine or any(one.num_inserts for one in mine):
            return True
        if not any(one.num_writes or one.num_update_writes for one in mine):
            return False  # only deletes
        if SlotOwner.from_metadata(metadata.extra_metadata) is not None:
            return has_bucket_rules(self._context.config)
        return self._rings or log.file_group not in self._updates(instant)

    def _read(self, instant: Instant) -> CommitMetadata | None:
        try:
            return self._snapshot.commits.read(instant)
        except (CorruptTableError, MissingFileError):
            return None

    def _updates(self, instant: Instant) -> frozenset[FileGroupId]:
        """Return the file groups that a write announced to update."""
        time = instant.requested_time
        if time not in self._planned:
            path = self._context.instant_path(pending_file_names(instant.action, time)[0])
            decode = decode_legacy_commit if instant.legacy else decode_commit
            try:
                data = self._context.ports.storage.read(path)
                groups = decode(data, path=path).file_groups()
                self._planned[time] = frozenset(FileGroupId(*each) for each in groups)
            except (ObjectMissingError, CorruptTableError):
                self._planned[time] = frozenset()
        return self._planned[time]

    @cached_property
    def _rings(self) -> bool:
        """Whether the table has consistent-hashing buckets, which file ids do not show."""
        return bool(self._context.ports.storage.list(FOLDER))


def _is_bucket(one: FileSlice) -> bool:
    number = bucket_of(one.file_group.file_id)
    return number is not None and number < _BUCKETS_MAX


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
        is_committed = first or instant in marked or instant in snapshot.completions
        # Its instant is archived, or failed before the timeline begins. It counts if one of its new
        # file groups exists.
        if is_committed or _fresh(storage, folder, metadata, found[place + 1 :]) & set(file_ids):
            return _without_resizing(metadata, path)
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


def _without_resizing(metadata: HashingMetadata, path: str) -> HashingMetadata:
    if any(node.tag != NORMAL for node in metadata.nodes):
        raise UnsupportedTableError(
            "this partition's buckets are being split or merged: let Java Hudi finish its "
            f"clustering, then write again: {path}",
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

    assigner: BucketAssigner
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
        return int((self.assigner.numbers(keys, paths) != mine).sum())


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
            assigner=SimpleBucketAssigner(hash_fields=rules.hash_fields, buckets=rules.buckets),
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
    return Buckets(assigner=shares, known=known, fixed=fixed)


def _numbered(count: int, groups: Iterable[FileGroupId]) -> dict[tuple[str, int], FileGroupId]:
    numbers: dict[FileGroupId, int] = {}
    for group in groups:
        number = bucket_of(group.file_id)
        if number is None:
            raise _foreign(group)
        numbers[group] = number
    known: dict[tuple[str, int], FileGroupId] = {}
    # Only now the count: a random file id that begins with eight digits passes for a bucket.
    for group, number in numbers.items():
        if number >= count:
            raise SettingError(
                "the table has more buckets than configured: set the number that the table was "
                f"made with in every writer: {_COUNT_KEY}={count}, and the table has {group}",
                kind="bucket_count",
                key=_COUNT_KEY,
                value=str(count),
                layer="",
                suggestion=f"at least {number + 1}",
            )
        other = known.setdefault((group.partition_path, number), group)
        if other != group:
            raise CorruptTableError(
                f"two file groups have bucket {number}: read the partition, then write its rows "
                f"with insert_overwrite: {other} and {group}",
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
        "a file group belongs to no bucket, because the table was written without the bucket "
        "index or with another bucket engine: use the settings that the table was made with: "
        f"{group}",
        kind="no_bucket",
        key=_TYPE_KEY,
        value="BUCKET",
        layer="",
        suggestion="SIMPLE, or the other hoodie.index.bucket.engine",
    )


# ---- Hashing metadata: maps ranges of hashes to the file groups of a partition (fmt 9)
# The JSON of ``<instant>.hashing_meta``. A partition's first metadata follows from its path and the
# number of buckets alone, file ids included. So two writers that create it at the same time, Java or
# not, create the same.

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
        "the hashing metadata of a partition cannot be read: restore the file from a backup: "
        f"{path} ({why})",
        kind="bad_hashing_metadata",
        path=path,
    )
