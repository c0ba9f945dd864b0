"""
What a bucket index's writers must agree on, kept in the table's properties (fmt 1.1).

Hudi stores none of it: a writer with another number of buckets would put keys it updates
into other file groups, unseen. So a table that we make, or write into for the first time,
keeps it under keys of our own; before that, what is there already is held against it.
"""

from __future__ import annotations

from timeline.context import TableContext
from timeline.errors import SettingError
from timeline.files.parquet import read_keys
from timeline.index.buckets import Buckets, find_buckets
from timeline.index.options import INDEX_OPTIONS, KEPT_KEYS
from timeline.model.file_group import FileSlice
from timeline.model.table_config import TableConfig
from timeline.model.times import WallMs, instant_time
from timeline.properties.properties_file import (
    keep_rows_elsewhere,
    load_config,
    rows_elsewhere_noted,
    update_properties,
)
from timeline.reading.read import view_of
from timeline.rules.bucketing import BucketEngine, BucketRules

__all__ = [
    "adopt_buckets",
    "adopt_rows_elsewhere",
    "keeps_buckets",
    "kept_properties",
    "refuse_other_buckets",
    "rules_kept_in",
]

_SAMPLED_FILES = 3


def kept_properties(rules: BucketRules) -> dict[str, str]:
    """What goes into the table's properties."""
    texts = {
        "index_type": "BUCKET",
        "bucket_engine": rules.engine.value,
        "bucket_count": str(rules.buckets),
        "bucket_hash_fields": ",".join(rules.hash_fields),
    }
    return {KEPT_KEYS[field]: text for field, text in texts.items()}


def keeps_buckets(config: TableConfig) -> bool:
    """Whether a table says itself how its buckets were made."""
    return config.raw.get(KEPT_KEYS["index_type"]) == "BUCKET"


def rules_kept_in(config: TableConfig) -> BucketRules | None:
    """How a table says that its buckets are made; None when it says nothing, or nothing right."""
    told = {field: config.raw.get(key, "") for field, key in KEPT_KEYS.items()}
    fields = tuple(name for name in told["bucket_hash_fields"].split(",") if name)
    count = told["bucket_count"]
    if not (
        keeps_buckets(config) and fields and count.isascii() and count.isdigit() and int(count)
    ):
        return None
    if told["bucket_engine"] not in BucketEngine.__members__:
        return None
    return BucketRules(
        engine=BucketEngine[told["bucket_engine"]], buckets=int(count), hash_fields=fields
    )


def refuse_other_buckets(context: TableContext, rules: BucketRules) -> None:
    """
    Hold some rules against a table that does not say how its buckets were made.

    Its file groups must be buckets by these rules, and keys sampled from its files must lie
    where the rules put them.

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


def adopt_buckets(context: TableContext, rules: BucketRules) -> None:
    """
    Take over a table that does not say how its buckets were made, another engine's above all.

    The rules go into the properties, under the lock, and bind every writer from then on. So who
    asks is in the registry: a writer by other rules that is there has refused it (REG-1).

    Raises:
        SettingError, CorruptTableError: As ``refuse_other_buckets``; nothing was changed.
        LockTimeoutError: Somebody else holds the lock.

    Outside: as ``refuse_other_buckets``, then the steps of fmt 1.3.
    """
    refuse_other_buckets(context, rules)
    world = context.world
    with world.lock.acquire("keep how buckets are made"):
        now = instant_time(WallMs(world.clock.now_ms()))
        update_properties(world.storage, kept_properties(rules), now=now)


def adopt_rows_elsewhere(context: TableContext) -> None:
    """
    Note in the table that rows may lie in partitions other than that of their partition columns.

    Readers then choose no partitions by a filter on these columns. Call it before the first such
    write.

    Raises:
        LockTimeoutError: Another process holds the lock.

    Outside: 1 get; if the table does not say so yet, the lock and the steps of fmt 1.3.
    """
    world = context.world
    if rows_elsewhere_noted(load_config(world.storage)):
        return
    with world.lock.acquire("note that rows lie in other partitions"):
        keep_rows_elsewhere(world.storage, now=instant_time(WallMs(world.clock.now_ms())))


def _refuse_misplaced(
    context: TableContext, rules: BucketRules, buckets: Buckets, one: FileSlice
) -> None:
    if one.base_file is None:
        return
    wrong = buckets.misplaced(one.file_group, read_keys(context.world.storage, one.base_file.path))
    if not wrong:
        return
    option = INDEX_OPTIONS["bucket_count"]
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
