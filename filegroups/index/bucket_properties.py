"""The bucket rules in the table's properties, and slices whose logs hold inserted keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from filegroups.files.parquet import read_keys
from filegroups.index.buckets import FOLDER, Buckets, find_buckets
from filegroups.keys.bucketing import BucketEngine, BucketRules, bucket_of
from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.read import view_of
from filegroups.settings.key_settings import BUCKET_PROPERTY_KEYS, KeySettings
from timeline.codecs.commit_body import decode_legacy_commit
from timeline.codecs.instant_avro import decode_commit
from timeline.context import TableContext
from timeline.errors import CorruptTableError, MissingFileError, SettingError
from timeline.model.commit_metadata import LOG_COMPACT, CommitMetadata
from timeline.model.file_names import FileSlice, LogFile, pending_file_names
from timeline.model.instant import Instant
from timeline.model.instant_time import WallMs, instant_time
from timeline.model.slot import SlotOwner
from timeline.model.table_config import TableConfig
from timeline.model.write_set import FileGroupId
from timeline.ports.storage import ObjectMissingError
from timeline.properties.properties_file import (
    load_config,
    misplaced_rows_noted,
    note_misplaced_rows,
    update_properties,
)
from timeline.snapshot import Snapshot

__all__ = [
    "bucket_properties",
    "bucket_rules_in",
    "has_bucket_rules",
    "record_bucket_rules",
    "record_misplaced_rows",
    "refuse_other_buckets",
    "slices_with_log_inserts",
]

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
    told = {field: config.raw.get(key, "") for field, key in BUCKET_PROPERTY_KEYS.items()}
    fields = tuple(name for name in told["bucket_hash_fields"].split(",") if name)
    count = told["bucket_count"]
    if not (
        has_bucket_rules(config) and fields and count.isascii() and count.isdigit() and int(count)
    ):
        return None
    if told["bucket_engine"] not in BucketEngine.__members__:
        return None
    return BucketRules(
        engine=BucketEngine[told["bucket_engine"]], buckets=int(count), hash_fields=fields
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
    world = context.world
    snapshot = context.snapshot()
    slices = {one.file_group: one for one in view_of(context, snapshot).latest_slices()}
    paths = {group.partition_path for group in slices}
    buckets = find_buckets(world.storage, snapshot, rules, paths, slices)
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
    world = context.world
    with world.lock.acquire("keep how buckets are made"):
        now = instant_time(WallMs(world.clock.now_ms()))
        update_properties(world.storage, bucket_properties(rules), now=now)


def record_misplaced_rows(context: TableContext) -> None:
    """
    Note in the table that rows may be in partitions that differ from their partition columns.

    Readers then do not prune partitions by a filter on these columns. Call it before the first such
    write.

    Raises:
        LockTimeoutError: Another process holds the lock.

    Outside: 1 get; if the table does not say so yet, the lock and the steps of fmt 1.3.
    """
    world = context.world
    if misplaced_rows_noted(load_config(world.storage)):
        return
    with world.lock.acquire("note that rows lie in other partitions"):
        note_misplaced_rows(world.storage, now=instant_time(WallMs(world.clock.now_ms())))


def _refuse_misplaced(
    context: TableContext, rules: BucketRules, buckets: Buckets, one: FileSlice
) -> None:
    if one.base_file is None:
        return
    wrong = buckets.misplaced(one.file_group, read_keys(context.world.storage, one.base_file.path))
    if not wrong:
        return
    option = KeySettings.options["bucket_count"]
    told = f"{rules.buckets} buckets of {','.join(rules.hash_fields)}"
    if rules.engine is BucketEngine.CONSISTENT_HASHING:
        told = f"ranges of {','.join(rules.hash_fields)}"
    raise SettingError(
        f"{wrong} keys of a file group belong elsewhere by {told}; every writer must give "
        f"{option.key} and hoodie.bucket.index.hash.field as the table was made: "
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
    told = _LogStats(context, view.snapshot, logged)
    return (one for one in logged if told.inserts(one))


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
        read = context.world.each(self._read, instants)
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
        said = [self._inserted(log) for log in one.log_files]
        return any(said) or all(each is None for each in said)

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
        if SlotOwner.told_in(metadata.extra_metadata) is not None:
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
                data = self._context.world.storage.read(path)
                groups = decode(data, path=path).file_groups()
                self._planned[time] = frozenset(FileGroupId(*each) for each in groups)
            except (ObjectMissingError, CorruptTableError):
                self._planned[time] = frozenset()
        return self._planned[time]

    @cached_property
    def _rings(self) -> bool:
        """Whether the table has consistent-hashing buckets, which file ids do not show."""
        return bool(self._context.world.storage.list(FOLDER))


def _is_bucket(one: FileSlice) -> bool:
    number = bucket_of(one.file_group.file_id)
    return number is not None and number < _BUCKETS_MAX
