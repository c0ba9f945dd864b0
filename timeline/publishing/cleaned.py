"""
Whether a clean took files that a write's base snapshot shows (CLN-3).

A file group without its file is not found by who lists a partition: its keys pass for new ones.
Cleans keep what pending instants need, as far as requested times tell; what a begin really saw
they do not tell, where slots lack files, clocks differ, or an engine keeps versions whoever writes.
"""

from __future__ import annotations

from collections.abc import Iterator

from timeline.active import ActiveTimeline
from timeline.context import TableContext
from timeline.model.claim import FileGroupId
from timeline.model.filenames import parse_base_file_name, parse_log_file_name
from timeline.model.instant import Action, Instant
from timeline.model.plans import CleanMetadata
from timeline.model.slot import Slot, SlotKind
from timeline.properties.setting_names import ForeignWriters
from timeline.reading.cleans import read_clean
from timeline.rules.conflicts import Refused, Rival, RuleId

__all__ = ["cleaned_by_others", "cleaned_by_slots"]


def cleaned_by_slots(slots: list[Slot], rivals: list[Rival]) -> Refused | None:
    """
    Judge by the cleans of ours above the base snapshot.

    A clean deletes what no snapshot shows from its floor on; mine lacks the rivals, of which some
    may have completed before that: commits whose file was not there yet when I looked.

    Args:
        slots: Everything above the base snapshot.
        rivals: What the base snapshot lacks; one at least.
    """
    first = min(rival.completion_time for rival in rivals)
    for slot in slots:
        if slot.kind is not SlotKind.CLEAN or not slot.deletes:
            continue
        if (slot.floor or slot.completion_time) >= first:
            lacking = [rival for rival in rivals if rival.completion_time == first]
            return _refused(slot.instant_time, lacking)
    return None


def cleaned_by_others(
    context: TableContext,
    seen: ActiveTimeline,
    now: ActiveTimeline,
    slots: list[Slot],
    rivals: list[Rival],
) -> Refused | None:
    """
    Judge by another engine's cleans since the base snapshot, which have no slot.

    A file that is gone was shown there only if all that is newer in its file group is a rival's.
    Outside: 1 get for each such clean.
    """
    if context.limits.foreign_writers is not ForeignWriters.EXPECTED:
        return None
    known = {one.requested_time for one in seen.instants if one.action is Action.CLEAN}
    known.update(slot.instant_time for slot in slots if slot.kind is SlotKind.CLEAN)
    for clean in now.instants:
        if clean.action is not Action.CLEAN or clean.requested_time in known:
            continue
        gone = set(_groups_of(context, clean))
        meant = [
            rival
            for rival in rivals
            if not gone.isdisjoint(item.file_group for item in rival.claim.file_groups)
        ]
        if meant:
            return _refused(clean.requested_time, meant)
    return None


def _refused(clean: str, rivals: list[Rival]) -> Refused:
    return Refused(
        RuleId.SOURCE_NOT_NEWEST,
        "a clean took files that my base snapshot shows; rows must find their place again: "
        f"clean {clean}",
        tuple(rivals),
    )


def _groups_of(context: TableContext, clean: Instant) -> Iterator[FileGroupId]:
    """File groups of which a clean took, or is about to take, a file."""
    for partition_path, name in _files_of(context, clean):
        file = parse_base_file_name(name) or parse_log_file_name(name)
        if file is not None:
            yield FileGroupId(partition_path, file.file_id)


def _files_of(context: TableContext, clean: Instant) -> Iterator[tuple[str, str]]:
    """Partition path and name of each."""
    told = read_clean(context, clean)
    if isinstance(told, CleanMetadata):
        for partition_path, done in told.partition_metadata.items():
            for deleted in done.success_delete_files:
                yield partition_path, deleted.rpartition("/")[2]
    elif told is not None:
        for partition_path, names in told.files_to_be_deleted_per_partition.items():
            for planned in names:
                yield partition_path, planned.rpartition("/")[2]
        for partition_path, files in told.file_paths_to_be_deleted_per_partition.items():
            for file in files:
                yield partition_path, (file.file_path or "").rpartition("/")[2]
