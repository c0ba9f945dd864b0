"""
Bucket ownership: check a writer's own buckets against its settings and its rows (OWN-1).

Rows are counted by bucket before a file is written, locally and on a cluster, so the check is
free. A write with rows of other writers' buckets is refused as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from filegroups.keys.bucketing import BucketEngine, bucket_of
from filegroups.settings.settings import WriteSettings
from filegroups.writing.workload import RowRules, WorkloadProfile
from timeline.errors import InvalidInputError, SettingError
from timeline.properties.setting_enums import IndexType
from timeline.rules.bucket_ranges import EVERY_BUCKET, BucketRanges

__all__ = [
    "bucket_range_text",
    "owned_buckets",
    "refuse_overwriting",
    "refuse_rows",
    "refuse_updates",
]

_SHOWN_MAX = 10
_FIELD = "own_buckets"


def owned_buckets(settings: WriteSettings) -> BucketRanges | None:
    """
    Return the buckets that this writer owns by its settings; None if it may write to all.

    Raises:
        SettingError: The table's index has no such buckets.
    """
    own = settings.own_buckets
    if own is None:
        return None
    if settings.index_type is not IndexType.BUCKET:
        raise _unfit(
            settings, "only the keys of a bucket index say by themselves where rows go", "BUCKET"
        )
    if settings.bucket_engine is not BucketEngine.SIMPLE:
        raise _unfit(
            settings,
            "buckets of consistent hashing are split and merged, each partition has its own",
            "a table with hoodie.index.bucket.engine=SIMPLE",
        )
    if own.last >= settings.bucket_count:
        raise _unfit(
            settings,
            f"the table has {settings.bucket_count} buckets, numbered from 0",
            f"at most {settings.bucket_count - 1}",
        )
    return own


def _unfit(settings: WriteSettings, why: str, suggestion: str) -> SettingError:
    key, layer = settings.options[_FIELD].key, settings.origin(_FIELD)
    return SettingError(
        f"a writer cannot have buckets of its own here, {why}: {key}={settings.own_buckets} "
        f"(from {layer}); use {suggestion}, or leave it out",
        kind="setting_contradiction",
        key=key,
        value=str(settings.own_buckets),
        layer=layer,
        suggestion=suggestion,
    )


def bucket_range_text(settings: WriteSettings) -> str:
    """Return the bucket range for the writer registry: its own, or that of all buckets."""
    own = owned_buckets(settings)
    return EVERY_BUCKET if own is None else str(own)


def refuse_overwriting(rules: RowRules) -> None:
    """
    Refuse to overwrite or delete whole partitions, because that covers every bucket.

    Raises:
        InvalidInputError: The writer owns only some buckets.
    """
    if rules.own_buckets is not None and rules.operation.replaces:
        raise InvalidInputError(
            "partitions are overwritten and deleted with all their buckets, and this writer has "
            f"only {rules.own_buckets}; write without hoodoo.write.bucket.range when no other "
            f"writer is there: {rules.operation.value}",
            kind="foreign_buckets",
            own=str(rules.own_buckets),
        )


def refuse_rows(rules: RowRules, rows: Mapping[tuple[str, int], int]) -> None:
    """
    Refuse a write with rows of other writers' buckets; nothing is written.

    Args:
        rules: The write's rules.
        rows: Row counts by partition path and bucket.

    Raises:
        InvalidInputError: There are such rows (``foreign_buckets``).
    """
    own = rules.own_buckets
    if own is None:
        return
    strange: Counter[int] = Counter()
    for (_, number), count in rows.items():
        if number not in own:
            strange[number] += count
    if not strange:
        return
    shown = ", ".join(f"{number} ({strange[number]})" for number in sorted(strange)[:_SHOWN_MAX])
    if len(strange) > _SHOWN_MAX:
        shown += f" and {len(strange) - _SHOWN_MAX} more"
    raise InvalidInputError(
        f"{strange.total()} rows belong to buckets that this writer does not own; send rows to the "
        f"writer of their bucket, or change hoodoo.write.bucket.range on all writers: it has {own}, "
        f"and there are rows of {shown}",
        kind="foreign_buckets",
        own=str(own),
        rows=strange.total(),
        buckets={str(number): strange[number] for number in sorted(strange)},
    )


def refuse_updates(rules: RowRules, found: WorkloadProfile) -> None:
    """Like ``refuse_rows``, for tagged rows: the ids of their file groups give the buckets."""
    if rules.own_buckets is not None:
        numbered = (
            ((group.partition_path, bucket_of(group.file_id)), count)
            for group, count in found.updates.items()
        )
        refuse_rows(rules, {(path, n): count for (path, n), count in numbered if n is not None})
