"""
What the cleaner deletes: a pure decision from the facts of one snapshot (CLN-2).

Theory of operation. Every file group is a row of slices, oldest first. Each reason to keep
something says from which slice on everything stays; the smallest answer wins and the
slices before it go, except those a savepoint pins. The reasons:

- the policy: the newest slice completed before the retained line (a query that began just
  before the line reads it), or the newest N slices;
- the oldest pending instant, for every policy: its base snapshot may show the newest slice
  completed before it was requested (hole 12);
- the input slice of a pending compaction or clustering;
- what lies below a slice of logs alone, down to a base file;
- the newest slice that has files, always.

"Before" is judged by completion time: with many writers an instant requested before the
line may have become visible after it. A replaced file group has no newest slice to keep:
it goes as a whole once the replacement lies before the same lines.

Worked example, also a test: commits t10..t50 all rewrite one file group, 2 are retained.
The line is t40, the slice of t30 stays for queries begun before t40; t10 and t20 go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tableservices.cleaning.settings import CleaningPolicy, CleaningSettings
from timeline.model.claim import FileGroupId
from timeline.model.file_group import FileSlice
from timeline.model.instant import Instant
from timeline.model.times import InstantTime

__all__ = ["CleanFacts", "CleanPlan", "plan_clean", "retained_line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanFacts:
    """Everything the decision depends on; times of unknown instants count as completed long ago."""

    line: Instant | None  # see retained_line
    oldest_pending: InstantTime | None
    completions: Mapping[InstantTime, InstantTime]  # requested -> completion, active writes
    groups: Mapping[FileGroupId, Sequence[FileSlice]]  # oldest first, replaced ones included
    replaced: Mapping[FileGroupId, InstantTime] = field(default_factory=dict)
    pinned: frozenset[str] = frozenset()  # paths that savepoints protect
    compactions: Mapping[FileGroupId, Sequence[InstantTime]] = field(default_factory=dict)
    clusterings: Mapping[FileGroupId, InstantTime] = field(default_factory=dict)
    # Paths by file group and requested time of the base file they lie beside.
    change_logs: Mapping[tuple[FileGroupId, InstantTime], Sequence[str]] = field(
        default_factory=dict
    )
    owed: frozenset[str] = frozenset()  # paths that earlier cleans let go and spared for readers


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPlan:
    """
    Files to delete by partition path, paths relative to the table, all sorted.

    ``floor`` is the completion time from which on no snapshot shows any of them.
    """

    files: Mapping[str, tuple[str, ...]]
    floor: InstantTime = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(path for paths in self.files.values() for path in paths)


def retained_line(
    completed: Sequence[Instant],
    oldest_pending: InstantTime | None,
    settings: CleaningSettings,
    now: InstantTime,
) -> Instant | None:
    """
    The earliest commit that stays readable, as Java Hudi finds it.

    Args:
        completed: Completed write instants, ascending by requested time.
        oldest_pending: Requested time of the oldest instant that is not completed.
        settings: Policy and retention.
        now: This moment minus ``hours_retained``, for that policy.

    Returns:
        None when there is no such line: nothing is old enough, or the policy counts slices.
    """
    line: Instant | None = None
    if settings.policy is CleaningPolicy.COMMITS and len(completed) > settings.commits_retained:
        line = completed[-settings.commits_retained]
    elif settings.policy is CleaningPolicy.HOURS:
        line = next((one for one in completed if one.requested_time >= now), None)
    if line is None or oldest_pending is None or line.requested_time <= oldest_pending:
        return line
    before = [one for one in completed if one.requested_time < oldest_pending]
    return before[-1] if before else None


def plan_clean(facts: CleanFacts, settings: CleaningSettings) -> CleanPlan:
    """Decide which files go."""
    chosen: dict[str, list[str]] = {}
    floor, archived_before = "", min(facts.completions.values(), default="")
    for group in sorted(facts.groups):
        slices = facts.groups[group]
        first = _first_kept(facts, settings, group, slices)
        going = _going(facts, group, slices[:first])
        if going:
            kept = slices[first].base_instant_time if first < len(slices) else facts.replaced[group]
            floor = max(floor, facts.completions.get(kept, archived_before))
            chosen.setdefault(group.partition_path, []).extend(going)
    return CleanPlan(
        files={
            partition: tuple(sorted(paths)) for partition, paths in sorted(chosen.items()) if paths
        },
        floor=floor,
    )


def _going(facts: CleanFacts, group: FileGroupId, slices: Sequence[FileSlice]) -> list[str]:
    """Paths of slices that go, but for those that have gone but for the deletes."""
    going = []
    for one in slices:
        paths = _paths(one)
        if facts.pinned.isdisjoint(paths):
            # Without the base files beside it a change log cannot be read in every mode.
            logs = facts.change_logs.get((group, one.base_instant_time), ())
            going += [path for path in (*paths, *logs) if path not in facts.owed]
    return going


def _paths(one: FileSlice) -> list[str]:
    base = [one.base_file.path] if one.base_file is not None else []
    return base + [log.path for log in one.log_files]


def _first_kept(
    facts: CleanFacts,
    settings: CleaningSettings,
    group: FileGroupId,
    slices: Sequence[FileSlice],
) -> int:
    """Index of the first slice that stays; the length when all go."""
    if group in facts.replaced:
        gone = group not in facts.clusterings and _replaced_long_ago(facts, settings, group)
        return len(slices) if gone else 0
    kept = [_by_policy(facts, settings, slices), _newest_with_files(slices)]
    if facts.oldest_pending is not None:
        kept.append(_newest_completed_before(facts, slices, facts.oldest_pending))
    if group in facts.clusterings:
        kept.append(_newest_completed_before(facts, slices, facts.clusterings[group]))
    kept.extend(
        _newest_requested_before(slices, requested)
        for requested in facts.compactions.get(group, ())
    )
    first = min(kept)
    while first and slices[first].base_file is None:
        first -= 1  # logs alone are merged with what lies below them (fmt 6.2)
    return first


def _replaced_long_ago(facts: CleanFacts, settings: CleaningSettings, group: FileGroupId) -> bool:
    completed = _completion(facts, facts.replaced[group])
    if facts.oldest_pending is not None and completed >= facts.oldest_pending:
        return False  # its snapshot may still show the group
    if settings.policy is CleaningPolicy.VERSIONS:
        return True
    return facts.line is not None and completed < facts.line.requested_time


def _by_policy(facts: CleanFacts, settings: CleaningSettings, slices: Sequence[FileSlice]) -> int:
    if settings.policy is CleaningPolicy.VERSIONS:
        return max(0, len(slices) - settings.versions_retained)
    if facts.line is None:
        return 0
    return _newest_completed_before(facts, slices, facts.line.requested_time)


def _newest_with_files(slices: Sequence[FileSlice]) -> int:
    return next((at for at in range(len(slices) - 1, 0, -1) if _paths(slices[at])), 0)


def _newest_completed_before(
    facts: CleanFacts, slices: Sequence[FileSlice], line: InstantTime
) -> int:
    for at in range(len(slices) - 1, 0, -1):
        if _paths(slices[at]) and _completion(facts, slices[at].base_instant_time) < line:
            return at
    return 0


def _newest_requested_before(slices: Sequence[FileSlice], requested: InstantTime) -> int:
    for at in range(len(slices) - 1, 0, -1):
        if slices[at].base_instant_time < requested:
            return at
    return 0


def _completion(facts: CleanFacts, requested: InstantTime) -> InstantTime:
    return facts.completions.get(requested, requested)
