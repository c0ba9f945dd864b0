"""Plan a compaction: its settings, when it is due, and the slices that it merges."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, TypeVar

from pydantic import Field, field_validator

from tableservices.plan_execution import ignore_if_ended, leased_plan, read_requested
from tableservices.planned_service import (
    PlannedServiceSettings,
    invalid_plan_error,
    planned_slice,
    refuse_repeated,
)
from timeline.codecs.instant_avro import decode_compaction_plan
from timeline.context import TableContext
from timeline.errors import MissingFileError, SettingError
from timeline.heartbeat import Heartbeat
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import join
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action, Instant
from timeline.model.plans import CompactionOperation, CompactionPlan
from timeline.model.slot import plan_version_entry
from timeline.ports.ports import Storage
from timeline.properties.options import option


class CompactionTrigger(Enum):
    """The rule by which a compaction becomes due; Hudi's names."""

    NUM_COMMITS = "NUM_COMMITS"
    NUM_COMMITS_AFTER_LAST_REQUEST = "NUM_COMMITS_AFTER_LAST_REQUEST"
    TIME_ELAPSED = "TIME_ELAPSED"
    NUM_AND_TIME = "NUM_AND_TIME"
    NUM_OR_TIME = "NUM_OR_TIME"

    def is_met(self, *, by_number: bool, by_time: bool) -> bool:
        """Return whether enough commits, or enough time, makes a compaction due."""
        return {
            CompactionTrigger.NUM_COMMITS: by_number,
            CompactionTrigger.NUM_COMMITS_AFTER_LAST_REQUEST: by_number,
            CompactionTrigger.TIME_ELAPSED: by_time,
            CompactionTrigger.NUM_AND_TIME: by_number and by_time,
            CompactionTrigger.NUM_OR_TIME: by_number or by_time,
        }[self]


_JAVA = "org.apache.hudi.table.action.compact.strategy."


class CompactionStrategy(Enum):
    """The choice and order of file slices; the value is the name of Hudi's class."""

    LOG_FILE_SIZE = f"{_JAVA}LogFileSizeBasedCompactionStrategy"
    LOG_FILE_NUM = f"{_JAVA}LogFileNumBasedCompactionStrategy"
    BOUNDED_IO = f"{_JAVA}BoundedIOCompactionStrategy"
    DAY_BASED = f"{_JAVA}DayBasedCompactionStrategy"
    UNBOUNDED = f"{_JAVA}UnBoundedCompactionStrategy"


_STRATEGIES: Mapping[str, CompactionStrategy] = {
    strategy.value.removeprefix(_JAVA): strategy for strategy in CompactionStrategy
}


_Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
_Size = Annotated[int, Field(ge=0, le=2**62)]


class CompactionSettings(PlannedServiceSettings):
    """All settings of compaction."""

    runs_inline: bool = option(
        "hoodie.compact.inline",
        False,
        "Plan a compaction after a commit if one is due, and execute it.",
    )
    plans_inline: bool = option(
        "hoodie.compact.schedule.inline",
        False,
        "Only plan a compaction after a commit; a worker executes it.",
    )
    asynchronous: bool = option(
        "hoodie.datasource.compaction.async.enable",
        False,
        "Compact in the background of the writes; as in Hudi, the default for Spark's streams into a "
        "table is true.",
    )
    trigger: CompactionTrigger = option(
        "hoodie.compact.inline.trigger.strategy",
        CompactionTrigger.NUM_COMMITS,
        "Condition for a compaction: delta commits, time, both, or either of them.",
    )
    commits_max: _Count = option(
        "hoodie.compact.inline.max.delta.commits",
        5,
        "Number of delta commits since the last compaction after which one is due.",
    )
    seconds_max: _Count = option(
        "hoodie.compact.inline.max.delta.seconds",
        3_600,
        "Seconds since the last compaction after which one is due.",
    )
    # a plug-in's name
    strategy: CompactionStrategy | str = option(
        "hoodie.compaction.strategy",
        CompactionStrategy.LOG_FILE_SIZE,
        "Class name of Hudi that chooses the order and the number of file slices to compact.",
    )
    target_io_mb: _Count = option(
        "hoodie.compaction.target.io", 512_000, "Megabytes that one compaction may read and write."
    )
    log_bytes_min: _Size = option(
        "hoodie.compaction.logfile.size.threshold",
        0,
        "Least bytes of log files of a file slice that is compacted.",
    )
    log_files_min: _Size = option(
        "hoodie.compaction.logfile.num.threshold",
        0,
        "Least number of log files of a file slice that is compacted (LogFileNumBased).",
    )
    days_max: _Count = option(
        "hoodie.compaction.daybased.target.partitions",
        10,
        "Number of latest partitions that one compaction considers (DayBased).",
    )

    @field_validator("strategy", mode="before")
    @classmethod
    def _by_class_name(cls, value: object) -> object:
        """Map a class name by fixed tables; never import it (SEC4)."""
        return (
            _STRATEGIES.get(value.removeprefix(_JAVA), value) if isinstance(value, str) else value
        )


# ---- The slices of an existing plan, checked, with the sizes of their files

Result = TypeVar("Result")


def read_slices(context: TableContext, planned: Instant) -> list[FileSlice]:
    """
    Return the slices of a pending plan. Outside: 1 get, those of ``slices_of_plan``.

    Raises:
        InstantNotFoundError: The plan does not exist any more.
        CorruptTableError: It is damaged.
        Others: As ``slices_of_plan``.
    """
    data, path = read_requested(context, planned)
    return slices_of_plan(context.ports.storage, decode_compaction_plan(data, path=path), path=path)


def execute_leased(
    context: TableContext,
    planned: Instant,
    run: Callable[[list[FileSlice], Heartbeat], Result | None],
) -> Result | None:
    """
    Lease a pending plan and execute it. Outside: 2 gets, the lease, 1 list per partition.

    Args:
        context: The table.
        planned: The pending instant, of a compaction or log compaction.
        run: Executes the plan, from its slices and the heartbeat of the lease.

    Returns:
        The result of ``run``; None when another executor has the plan, or it has ended.

    Raises:
        As ``read_slices``, ``leased_plan`` and ``run``.
    """
    with ignore_if_ended(context, planned):
        slices = read_slices(context, planned)
        with leased_plan(context, planned) as heartbeat:
            if heartbeat is not None:
                return run(slices, heartbeat)
    return None


def log_figures(plan: CompactionPlan | None) -> dict[str, int]:
    """Return the file groups, log files and bytes of a plan, for its preview."""
    operations = plan.operations if plan is not None else ()
    return {
        "file_groups": len(operations),
        "log_files": sum(len(one.delta_file_paths) for one in operations),
        "log_bytes": int(sum(one.metrics["TOTAL_LOG_FILES_SIZE"] for one in operations)),
    }


def slices_of_plan(storage: Storage, plan: CompactionPlan, *, path: str) -> list[FileSlice]:
    """
    Return the slices to merge, in the plan's order.

    Outside: 1 list per partition.

    Args:
        storage: The table's storage.
        plan: Untrusted.
        path: The plan's path, for errors.

    Raises:
        MissingFileError: A file of the plan is missing; cancel the plan.
        CorruptTableError, MalformedNameError, UnsupportedTableError: As ``planned_slice``; nothing
            was read.
    """
    slices = [_proven(storage, one, path) for one in plan.operations]
    refuse_repeated(slices, path=path)
    sizes = _Sizes(storage)
    return [_sized(one, sizes) for one in slices]


def _proven(storage: Storage, operation: CompactionOperation, path: str) -> FileSlice:
    found = planned_slice(
        storage,
        partition_path=operation.partition_path,
        file_id=operation.file_id,
        base_file=operation.data_file_path,
        log_files=operation.delta_file_paths,
        bootstrap_file=operation.bootstrap_file_path,
        path=path,
    )
    base_time = operation.base_instant_time
    base = found.base_file
    if not base_time or (base is not None and base.requested_time != base_time):
        raise invalid_plan_error(
            path, f"another base instant than that of its base file: {base_time!a}"
        )
    return replace(found, base_instant_time=base_time)


@dataclass(slots=True)
class _Sizes:
    """File sizes in bytes of a partition, listed at the first request."""

    storage: Storage
    listed: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def of(self, partition_path: str, name: str) -> int:
        if partition_path not in self.listed:
            self.listed[partition_path] = {
                entry.name: entry.size_bytes
                for entry in self.storage.list(partition_path)
                if not entry.is_folder
            }
        size = self.listed[partition_path].get(name)
        if size is None:
            missing = join(partition_path, name)
            raise MissingFileError(
                "a file of a pending plan is missing: run 'hoodoo services cancel TABLE "
                f"INSTANT': {missing}",
                path=missing,
            )
        return size


def _sized(one: FileSlice, sizes: _Sizes) -> FileSlice:
    partition_path, base = one.file_group.partition_path, one.base_file
    return replace(
        one,
        base_file=base and replace(base, size_bytes=sizes.of(partition_path, base.name)),
        log_files=tuple(
            replace(log, size_bytes=sizes.of(partition_path, log.name)) for log in one.log_files
        ),
    )


# ---- Which file slices a compaction merges: pure, in the form that Java Hudi writes and executes
#
# File names in the plan are bare, as in Hudi's plans of version 2; the operation has their
# partition path. The metrics are Hudi's; its strategies use them for order and limits.

_MB = 1024 * 1024
_LOG_FILES, _LOG_BYTES = "TOTAL_LOG_FILES", "TOTAL_LOG_FILES_SIZE"
_IO, _READ, _WRITTEN = "TOTAL_IO_MB", "TOTAL_IO_READ_MB", "TOTAL_IO_WRITE_MB"

Operations = Sequence[CompactionOperation]
OperationChoice = Callable[[Operations, CompactionSettings], Sequence[CompactionOperation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOrder:
    """
    A strategy of a plug-in: choose and order the operations of one compaction.

    ``name`` is a value of ``hoodie.compaction.strategy``, perhaps the Java class that the strategy
    replaces. ``choose`` is pure.
    """

    name: str
    choose: OperationChoice


def operations_of(
    slices: Iterable[FileSlice], busy: Container[FileGroupId], *, new_file_bytes: int
) -> list[CompactionOperation]:
    """
    Return one operation for each slice with log files that no other plan owns (PLAN-3).

    Args:
        slices: The newest of every file group, with the completed log files.
        busy: File groups of pending plans.
        new_file_bytes: Assumed size of a base file where a slice has none yet.
    """
    return [
        CompactionOperation(
            base_instant_time=one.base_instant_time,
            delta_file_paths=tuple(log.name for log in one.log_files),
            data_file_path=one.base_file.name if one.base_file is not None else None,
            file_id=one.file_group.file_id,
            partition_path=one.file_group.partition_path,
            metrics=_metrics(one, new_file_bytes),
        )
        for one in slices
        if one.log_files and one.file_group not in busy
    ]


def _metrics(one: FileSlice, new_file_bytes: int) -> dict[str, float]:
    logs = sum(log.size_bytes for log in one.log_files)
    base = one.base_file.size_bytes if one.base_file is not None else 0
    read = base // _MB + logs // _MB
    written = (base or new_file_bytes) // _MB
    return {
        _LOG_FILES: float(len(one.log_files)),
        _IO: float(read + written),
        _READ: float(read),
        _LOG_BYTES: float(logs),
        _WRITTEN: float(written),
    }


def choose(
    operations: Operations,
    settings: CompactionSettings,
    orders: Iterable[CompactionOrder] = (),
) -> list[CompactionOperation]:
    """
    Return the operations that the strategy chooses, in its order.

    Args:
        operations: All possible operations.
        settings: The strategy and its limits.
        orders: The strategies of plug-ins.

    Raises:
        SettingError: No strategy has that name.
    """
    if isinstance(settings.strategy, CompactionStrategy):
        return list(_CHOICES[settings.strategy](operations, settings))
    for order in orders:
        if order.name == settings.strategy:
            return list(order.choose(operations, settings))
    option = CompactionSettings.options["strategy"]
    known = [*_STRATEGIES, *(order.name for order in orders)]
    raise SettingError(
        f"this compaction strategy is unknown: choose one of {', '.join(known)}: "
        f"{option.key}={settings.strategy[:200]!a}",
        kind="setting_value",
        key=option.key,
        value=settings.strategy,
    )


def _by_log_size(operations: Operations, settings: CompactionSettings) -> list[CompactionOperation]:
    enough = [one for one in operations if one.metrics[_LOG_BYTES] >= settings.log_bytes_min]
    return _bounded(sorted(enough, key=lambda one: -one.metrics[_LOG_BYTES]), settings)


def _by_log_number(
    operations: Operations, settings: CompactionSettings
) -> list[CompactionOperation]:
    enough = [one for one in operations if one.metrics[_LOG_FILES] >= settings.log_files_min]
    return _bounded(sorted(enough, key=lambda one: -one.metrics[_LOG_FILES]), settings)


def _bounded(operations: Operations, settings: CompactionSettings) -> list[CompactionOperation]:
    """Return operations up to the I/O limit, at least one, or big file groups would never merge."""
    left, found = float(settings.target_io_mb), []
    for one in operations:
        if left <= 0:
            break
        left -= one.metrics[_IO]
        found.append(one)
    return found


def _by_day(operations: Operations, settings: CompactionSettings) -> list[CompactionOperation]:
    """Choose the latest partitions; path values must sort like days (``2026/01/31``)."""
    paths = sorted({one.partition_path or "" for one in operations}, key=_day, reverse=True)
    order = {path: place for place, path in enumerate(paths[: settings.days_max])}
    kept = [one for one in operations if one.partition_path in order]
    return sorted(kept, key=lambda one: order[one.partition_path or ""])


def _day(partition_path: str) -> list[str]:
    """Return path values without hive-style names; a day with dashes becomes one with slashes."""
    values = (part.rpartition("=")[2] for part in partition_path.split("/"))
    return "/".join(values).replace("-", "/").split("/")


def _all(operations: Operations, settings: CompactionSettings) -> list[CompactionOperation]:  # noqa: ARG001
    return list(operations)


_CHOICES: Mapping[CompactionStrategy, OperationChoice] = {
    CompactionStrategy.LOG_FILE_SIZE: _by_log_size,
    CompactionStrategy.LOG_FILE_NUM: _by_log_number,
    CompactionStrategy.BOUNDED_IO: _bounded,
    CompactionStrategy.DAY_BASED: _by_day,
    CompactionStrategy.UNBOUNDED: _all,
}


def compaction_plan(operations: Operations) -> CompactionPlan:
    """Return the content of a requested compaction."""
    return CompactionPlan(
        operations=tuple(operations), extra_metadata=plan_version_entry(Action.COMPACTION)
    )
