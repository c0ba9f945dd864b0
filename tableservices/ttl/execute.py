"""
Carrying partition TTL out: one ``delete_partition`` of all that expired.

It is a write like any other, and decides on its own base snapshot, anew in each attempt: a
partition written into meanwhile is either seen there, and younger then, or meets the claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tableservices.ttl.plan import expired
from tableservices.ttl.settings import TtlSettings
from timeline.context import TableContext
from timeline.index.adoption import rules_kept_in
from timeline.model.operations import WriteOperation
from timeline.model.paths import check_partition_path
from timeline.model.times import InstantTime, WallMs
from timeline.partitions import opening_time
from timeline.properties.properties_file import load_config
from timeline.readable import refuse_unwritable
from timeline.reading.read import view_of
from timeline.reading.snapshot import Snapshot
from timeline.rules.keys import KeySpec, infer_key_generator
from timeline.writing.receipt import WritePlan
from timeline.writing.workload import RowRules
from timeline.writing.write import write

__all__ = ["TtlReceipt", "TtlService", "expire", "expired_partitions"]

#: Days pass slowly: how long a process rests after a look at every partition, ms.
REST_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlReceipt:
    """What one round did; times are instant times."""

    requested_time: InstantTime
    completion_time: InstantTime
    partitions: tuple[str, ...]

    @property
    def text(self) -> str:
        """One line for people."""
        return f"deleted {len(self.partitions)} expired partitions"


class _NothingExpiredError(Exception):
    """What had expired a moment ago was written again."""


def expired_partitions(
    context: TableContext, settings: TtlSettings, snapshot: Snapshot | None = None
) -> tuple[str, ...]:
    """
    Partition paths that have expired, oldest first. Outside: 1 list a partition.

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
        # Without a visible file the partition is deleted already, whatever its folder holds.
        if last is not None:
            created = settings.from_creation
            time = opening_time(context.world.storage, path) if created else last
            if time is not None:
                since[path] = time
    return expired(
        since,
        now=WallMs(context.world.clock.now_ms()),
        zone=context.zone,
        days_retained=settings.days_retained,
        partitions_max=settings.partitions_max,
    )


def expire(context: TableContext, settings: TtlSettings) -> TtlReceipt | None:
    """
    Delete the partitions that have expired.

    Outside: 1 list a partition; when one has expired, again and as a delete of partitions.

    Returns:
        None when none has.

    Raises:
        TableConfigConflictError: The metadata table is on.
        UnsupportedTableError: The table is not written by this release, or its partitions
            cannot be deleted as wholes.
        ConflictError: Others wrote into what expires in every attempt.
        OutcomeUnknownError, LockTimeoutError, StorageUnavailableError: As a write.
    """
    if settings.days_retained <= 0:
        return None
    config = load_config(context.world.storage)
    refuse_unwritable(config, without_metadata_table=context.limits.without_metadata_table)
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
        merge_mode=config.merge_mode,
        ordering_fields=(),
        combine=False,
        tags=False,
        buckets=rules_kept_in(config),
    )
    try:
        done = write(context, WritePlan(rules=rules, choose_partitions=choose, paced=False), None)
    except _NothingExpiredError:
        return None
    context.world.events.emit("ttl.done", rt=done.requested_time, partitions=len(deleted))
    return TtlReceipt(
        requested_time=done.requested_time,
        completion_time=done.completion_time,
        partitions=deleted,
    )


@dataclass(slots=True)
class _LastLook:
    """When this process looked at every partition last, on the monotonic clock."""

    at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlService:
    """Partition TTL as a service."""

    settings: TtlSettings
    name: str = "ttl"
    last: _LastLook = field(default_factory=_LastLook)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TtlService:
        """
        Configured by ``hoodie.partition.ttl.*``.

        Raises:
            SettingError: A value is wrong.
        """
        return cls(settings=TtlSettings.from_properties(properties))

    @property
    def inline(self) -> bool:
        """``hoodie.partition.ttl.inline``."""
        return self.settings.inline

    @property
    def beside(self) -> bool:
        """Hudi has no key for it."""
        return False

    def run_once(self, context: TableContext) -> TtlReceipt | None:
        """Expire once, unless this process looked a moment ago; errors as ``expire``."""
        now = context.world.clock.monotonic_ms()
        if self.last.at_ms is not None and now - self.last.at_ms < REST_MS:
            return None
        receipt = expire(context, self.settings)
        self.last.at_ms = now
        return receipt
