"""
Partition TTL: its settings, the partitions that have expired, and the service that deletes them.

The settings are the ``hoodie.partition.ttl.*`` keys; the defaults are those of Hudi 1.2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from pydantic import Field

from filegroups.index.buckets import bucket_rules_in
from filegroups.keys.generators import infer_key_generator
from filegroups.keys.keys import KeySpec
from filegroups.reading.scan import view_of
from filegroups.supported import load_writable
from filegroups.writing.write import write
from filegroups.writing.write_request import RowRules, WriteRequest
from timeline.context import TableContext
from timeline.errors import counted
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import check_partition_path
from timeline.model.instant_time import (
    UTC_ZONE,
    InstantTime,
    TimelineZone,
    WallMs,
    instant_time,
    wall_ms,
)
from timeline.model.merge_definition import MergeDefinition
from timeline.partitions import partition_created_by
from timeline.properties.options import OptionSettings, option
from timeline.snapshot import Snapshot


class TtlStrategy(Enum):
    """The event from which the days of a partition count."""

    BY_TIME = "KEEP_BY_TIME"
    BY_CREATION_TIME = "KEEP_BY_CREATION_TIME"


#: Strategies by the short name of Java's class; no other class is accepted (SEC4).
_CLASSES = {
    "KeepByTimeStrategy": TtlStrategy.BY_TIME,
    "KeepByCreationTimeStrategy": TtlStrategy.BY_CREATION_TIME,
}
_PACKAGE = "org.apache.hudi.table.action.ttl.strategy."


class TtlSettings(OptionSettings):
    """All settings of partition TTL."""

    inline: bool = option(
        "hoodie.partition.ttl.inline", False, "Delete expired partitions after a commit."
    )
    strategy: TtlStrategy = option(
        "hoodie.partition.ttl.management.strategy.type",
        TtlStrategy.BY_TIME,
        "Whether the days count from the last write into a partition, or from its first.",
    )
    strategy_class: str | None = option(
        "hoodie.partition.ttl.strategy.class",
        None,
        "The same, by the name of Hudi's class; overrides the type.",
        choices=tuple(f"{_PACKAGE}{name}" for name in _CLASSES),
    )
    days_retained: Annotated[int, Field(ge=-1, le=366 * 1_000)] = option(
        "hoodie.partition.ttl.strategy.days.retain",
        -1,
        "Days for which a partition is kept; nothing expires unless it is positive.",
    )
    partitions_max: Annotated[int, Field(ge=1, le=1_000_000)] = option(
        "hoodie.partition.ttl.strategy.max.delete.partitions",
        1_000,
        "Most partitions that one round deletes.",
    )
    partitions_selected: tuple[str, ...] = option(
        "hoodie.partition.ttl.strategy.partition.selected",
        (),
        "Partition paths that may expire; all by default.",
    )

    @property
    def from_creation(self) -> bool:
        """Return whether the days count from a partition's first write."""
        chosen = self.strategy
        if self.strategy_class:
            chosen = _CLASSES[self.strategy_class.rpartition(".")[2]]
        return chosen is TtlStrategy.BY_CREATION_TIME


# ---- Which partitions have expired: pure, from one time for each (as Java Hudi, KEEP_BY_*)
#
# A partition expires when its days are over at the time of the check, to the millisecond. The
# oldest are deleted first, so that a limit on their number delays the youngest.
#
# Worked example, also a test: kept for 2 days, now the 10th at noon. A partition last written on
# the 8th at 11:59 is deleted; one written on the 8th at 12:00 is kept.

_DAY_MS = 24 * 3_600_000


def expired_paths(
    since: Mapping[str, InstantTime],
    *,
    now: WallMs,
    days_retained: int,
    partitions_max: int,
    zone: TimelineZone = UTC_ZONE,
) -> tuple[str, ...]:
    """
    Return the partition paths whose days are over, oldest first.

    Args:
        since: Partition path -> the instant time from which its days count.
        now: Ms since 1970-01-01 UTC.
        days_retained: How many days a partition is kept; none expires unless it is positive.
        partitions_max: At most so many.
        zone: The timeline's zone, in which the times were written.
    """
    if days_retained <= 0:
        return ()
    line = zone.earliest_from(now - days_retained * _DAY_MS)
    # A time of 14 digits counts as the last millisecond of its second.
    over = sorted(
        (instant_time(wall_ms(time)), path)
        for path, time in since.items()
        if instant_time(wall_ms(time)) < line
    )
    return tuple(path for _, path in over[:partitions_max])


# ---- Execute partition TTL: one ``delete_partition`` of all expired partitions
#
# It is a write like any other. Each attempt decides on its own base snapshot. If a concurrent
# writer writes to a partition, the snapshot includes that and the partition is younger, or the
# write sets conflict.

#: A process pauses this long after a check of every partition, ms: days pass slowly.
REST_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlResult:
    """The result of one round; times are instant times."""

    requested_time: InstantTime
    completion_time: InstantTime
    partitions: tuple[str, ...]

    @property
    def text(self) -> str:
        """One line for people."""
        return f"deleted {counted(len(self.partitions), 'expired partition')}"


class _NothingExpiredError(Exception):
    """A writer wrote to all expired partitions since the check."""


def expired_partitions(
    context: TableContext, settings: TtlSettings, snapshot: Snapshot | None = None
) -> tuple[str, ...]:
    """
    Return the partition paths that have expired, oldest first. Outside: 1 list a partition.

    Raises:
        MalformedNameError: A selected partition path leaves the table.
    """
    if settings.days_retained <= 0 or not context.config.partition_fields:
        return ()
    seen = snapshot or context.snapshot()
    view = view_of(context, seen)
    chosen = [check_partition_path(path) for path in settings.partitions_selected]
    since: dict[str, InstantTime] = {}
    for path in chosen or view.partition_paths():
        last = max(
            (
                time
                for slices in view.slices(path).values()
                for one in slices
                for time in (one.base_instant_time, *(log.instant_time for log in one.log_files))
            ),
            default=None,
        )
        # A partition without a visible file is deleted already, whatever its folder holds.
        if last is not None:
            created = settings.from_creation
            time = partition_created_by(context.ports.storage, path) if created else last
            if time is not None:
                since[path] = time
    return expired_paths(
        since,
        now=WallMs(context.ports.clock.now_ms()),
        zone=context.zone,
        days_retained=settings.days_retained,
        partitions_max=settings.partitions_max,
    )


def expire(context: TableContext, settings: TtlSettings) -> TtlResult | None:
    """
    Delete the partitions that have expired.

    Outside: 1 list a partition; when one has expired, again and as a delete of partitions.

    Returns:
        None when none has.

    Raises:
        MetadataTableOnError: The metadata table has a partition that cannot be maintained.
        UnsupportedTableError: This release does not write the table, or cannot delete its
            partitions as a whole.
        ConflictError: Other writers wrote to expired partitions during every attempt.
        OutcomeUnknownError, LockTimeoutError, StorageUnavailableError: As a write.
    """
    if settings.days_retained <= 0:
        return None
    config = load_writable(context)
    if not expired_partitions(context, settings):
        return None
    deleted: tuple[str, ...] = ()

    def choose(snapshot: Snapshot) -> tuple[str, ...]:
        nonlocal deleted
        deleted = expired_partitions(context, settings, snapshot)
        if not deleted:
            raise _NothingExpiredError
        return deleted

    rules = RowRules(
        keys=KeySpec(
            record_key_fields=config.record_key_fields,
            partition_fields=config.partition_fields,
            key_generator=infer_key_generator(
                len(config.record_key_fields), len(config.partition_fields)
            ),
        ),
        operation=WriteOperation.DELETE_PARTITION,
        merge=MergeDefinition(mode=config.merge_mode),
        ordering_fields=(),
        combine=False,
        tags=False,
        buckets=bucket_rules_in(config),
    )
    try:
        done = write(
            context, WriteRequest(rules=rules, choose_partitions=choose, rate_limited=False), None
        )
    except _NothingExpiredError:
        return None
    context.ports.events.emit("ttl.done", rt=done.requested_time, partitions=len(deleted))
    return TtlResult(
        requested_time=done.requested_time,
        completion_time=done.completion_time,
        partitions=deleted,
    )


@dataclass(slots=True)
class _LastScan:
    """When this process last checked every partition, on the monotonic clock."""

    at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlService:
    """Partition TTL as a service."""

    settings: TtlSettings
    name: str = "ttl"
    last: _LastScan = field(default_factory=_LastScan)

    @property
    def runs_inline(self) -> bool:
        """Return ``hoodie.partition.ttl.inline``."""
        return self.settings.inline

    @property
    def runs_in_background(self) -> bool:
        """Return False: Hudi has no key for it."""
        return False

    def run_once(self, context: TableContext) -> TtlResult | None:
        """Expire once, unless this process checked just before; errors as ``expire``."""
        now = context.ports.clock.monotonic_ms()
        if self.last.at_ms is not None and now - self.last.at_ms < REST_MS:
            return None
        result = expire(context, self.settings)
        self.last.at_ms = now
        return result
