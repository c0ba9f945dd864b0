"""
Finish cleans that another engine left pending, if their plan is harmless.

Java Hudi finishes its interrupted cleans before it plans new ones; hoodoo does the same. But any
process may have written the plan. Each path must be exactly that of a data file of its partition.
No existing file may be one that a reader or writer could need. A single doubtful entry leaves the
whole plan to its owner (SEC1, SEC2).
"""

from __future__ import annotations

from enum import Enum

from tableservices.cleaning.plan import (
    CollectedCleanInput,
    collect_clean_input,
    deleted_files,
    plan_clean,
    refuse_uncleanable,
)
from tableservices.cleaning.settings import CleaningPolicy, CleaningSettings
from timeline.active_timeline import ActiveTimeline
from timeline.codecs.instant_avro import decode_clean_plan, encode_clean
from timeline.commit.apply import apply
from timeline.commit.section import commit_in_section
from timeline.commit.state import CommitSection
from timeline.context import TableContext
from timeline.errors import CorruptTableError, HoodooError, MalformedNameError
from timeline.layout import timeline_path
from timeline.model.file_names import (
    check_partition_path,
    join,
    parse_base_file_name,
    parse_log_file_name,
    pending_file_names,
    without_scheme,
)
from timeline.model.instant import Action, Instant
from timeline.model.plans import CleanerPlan, CleanMetadata
from timeline.model.slot import Slot, SlotKind
from timeline.rollback.abandoned_foreign import requested_age_ms

__all__ = ["ForeignCleans", "finish_foreign_cleans", "planned_paths"]


class ForeignCleans(Enum):
    """The result for the pending cleans of a timeline."""

    NONE = "none"  # there were none, or they were refused
    ENDED = "ended"  # at least one is no longer pending
    AT_WORK = "at_work"  # the owner of at least one may still work on it


def finish_foreign_cleans(
    context: TableContext, settings: CleaningSettings, timeline: ActiveTimeline
) -> ForeignCleans:
    """
    Finish the pending cleans of another engine.

    A clean counts as in progress while its requested file is younger than the tolerated interval of
    writers. Outside per pending clean: 1 stat, 1 get, the listing of ``collect_clean_input``, 1
    commit section.
    """
    at_work = ended = False
    for instant in timeline.pending:
        if instant.action is not Action.CLEAN:
            continue
        if _is_applied(context, instant):
            ended = True
            continue
        age_ms = requested_age_ms(context, instant)
        if age_ms is None:
            continue  # it ended, or it has no requested file and so no known plan
        if age_ms <= context.limits.heartbeat.tolerated_ms:
            at_work = True
            continue
        try:
            _finish(context, settings, instant)
            ended = True
        except (CorruptTableError, MalformedNameError) as error:
            _leave_alone(context, instant, error)
    if at_work:
        return ForeignCleans.AT_WORK
    return ForeignCleans.ENDED if ended else ForeignCleans.NONE


def _is_applied(context: TableContext, instant: Instant) -> bool:
    """Return whether hoodoo's own newest slot made this clean; if so, finish it."""
    last = context.chain.read(context.chain.head())  # all earlier ones are applied (PUB-3)
    if last is None or last.kind is not SlotKind.CLEAN:
        return False
    if last.instant_time != instant.requested_time:
        return False
    if last.foreign:  # under the lock: others may end it, and its file is late (FOR-9)
        commit_in_section(context, f"finish clean {instant.requested_time}", lambda _: None)
    else:
        apply(context, last)
    return True


def _leave_alone(context: TableContext, instant: Instant, error: HoodooError) -> None:
    context.world.events.emit("cleaning.foreign_refused", rt=instant.requested_time, why=str(error))


def _finish(context: TableContext, settings: CleaningSettings, instant: Instant) -> None:
    path = timeline_path(pending_file_names(Action.CLEAN, instant.requested_time)[-1])
    data = context.world.storage.read(path)
    plan = decode_clean_plan(data, path=path)
    planned = planned_paths(context, plan)
    gathered = _input_without_effect(context, settings, planned)
    metadata = _foreign_metadata(instant, plan, planned)
    nonce = context.world.ids.nonce()

    def decide(turn: CommitSection) -> Slot | None:
        now = turn.timeline.find(instant.requested_time, Action.CLEAN)
        if now is None or now.completed or not gathered.still_holds(context, turn):
            return None
        refuse_uncleanable(context)
        return turn.slot(
            context,
            SlotKind.CLEAN,
            Action.CLEAN,
            instant.requested_time,
            nonce=nonce,
            body=encode_clean(metadata),
            plan=data,
            deletes=tuple(path for paths in planned.values() for path in paths),
        )

    slot, _ = commit_in_section(context, f"finish clean {instant.requested_time}", decide)
    if slot is not None:
        context.world.events.emit("cleaning.foreign_finished", rt=instant.requested_time)


def planned_paths(context: TableContext, plan: CleanerPlan) -> dict[str, tuple[str, ...]]:
    """
    Return the relative paths of a plan by partition, each checked to be in its partition.

    Raises:
        MalformedNameError: A path leaves its partition or names no data file.
        CorruptTableError: The plan deletes whole partitions or has the old form.
    """
    if plan.partitions_to_be_deleted or plan.files_to_be_deleted_per_partition:
        raise CorruptTableError(
            "a pending clean of a form that this release does not finish; let the engine that "
            "planned it finish it",
            kind="clean_plan_form",
        )
    found: dict[str, tuple[str, ...]] = {}
    for partition_path, files in sorted(plan.file_paths_to_be_deleted_per_partition.items()):
        check_partition_path(partition_path)
        found[partition_path] = tuple(
            _relative(context, partition_path, one.file_path or "") for one in files
        )
    return found


def _relative(context: TableContext, partition_path: str, address: str) -> str:
    name = address.rpartition("/")[2]
    if parse_base_file_name(name) is not None or parse_log_file_name(name) is not None:
        path = join(partition_path, name)
        if without_scheme(context.world.storage.locate(path)) == without_scheme(address):
            return path
    raise MalformedNameError(
        "a pending clean names something that is no data file of its partition; nothing was "
        f"deleted, remove that clean by hand: {address!r}",
        path=address,
    )


def _input_without_effect(
    context: TableContext, settings: CleaningSettings, planned: dict[str, tuple[str, ...]]
) -> CollectedCleanInput:
    """
    Return the clean input in which every planned file is unneeded or already deleted.

    Raises:
        MalformedNameError: A planned file exists, and a reader, writer or savepoint may need it.
    """
    loosest = settings.model_copy(
        update={"policy": CleaningPolicy.VERSIONS, "versions_retained": 1}
    )
    gathered = collect_clean_input(context, context.snapshot(), loosest)
    needless = set(plan_clean(gathered.facts, loosest).paths)
    for path in (path for paths in planned.values() for path in paths):
        if path not in needless and context.world.storage.stat(path) is not None:
            raise MalformedNameError(
                "a pending clean names a file that a reader, writer or savepoint may still "
                f"need; nothing was deleted, the clean is left alone: {path!r}",
                path=path,
            )
    return gathered


def _foreign_metadata(
    instant: Instant, plan: CleanerPlan, planned: dict[str, tuple[str, ...]]
) -> CleanMetadata:
    line = plan.earliest_instant_to_retain
    return CleanMetadata(
        start_clean_time=instant.requested_time,
        total_files_deleted=sum(len(paths) for paths in planned.values()),
        earliest_commit_to_retain=line.requested_time if line is not None else "",
        last_completed_commit_timestamp=plan.last_completed_commit_timestamp,
        partition_metadata=deleted_files(planned, plan.policy),
        extra_metadata=plan.extra_metadata,
    )
