"""Write the files of an assignment; rows of one pass choose their file groups meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from filegroups.reading.scan import view_of
from filegroups.writing.assign_file_groups import AssignmentBase, FileGroupAssignment
from filegroups.writing.row_checks import refuse_nesting
from filegroups.writing.workload import NewGroupStats, OnePassWorkload, Workload
from filegroups.writing.write_request import RowRules
from timeline.context import TableContext
from timeline.errors import InvariantError
from timeline.model.commit_metadata import WriteStat


def write_files(
    context: TableContext,
    started: AssignmentBase,
    workload: Workload | None,
    rules: RowRules,
    assignment: FileGroupAssignment,
) -> tuple[FileGroupAssignment, list[tuple[WriteStat, ...]]]:
    """
    Write the files; return the assignment with all tasks, and the stats of each.

    Errors: as ``Workload.rewrite``, ``OnePassWorkload.write_new_groups`` and ``refuse_nesting``.
    """
    groups = assignment.new_groups
    if groups is not None and isinstance(workload, OnePassWorkload):
        opened = workload.write_new_groups(groups)
        full = _with_new_groups(context, started, rules, assignment, opened)
        return full, [one.stats for one in opened]
    return assignment, [] if workload is None else workload.rewrite(assignment.tasks)


def _with_new_groups(
    context: TableContext,
    started: AssignmentBase,
    rules: RowRules,
    assignment: FileGroupAssignment,
    opened: Sequence[NewGroupStats],
) -> FileGroupAssignment:
    """
    Return the assignment of rows that chose their file groups while they were written.

    Outside, errors: as ``refuse_nesting``.
    """
    groups, rows = assignment.new_groups, dict[str, int]()
    if groups is None:
        raise InvariantError("rows without counts were not assigned in one pass; report it")
    for one in opened:
        path = one.file_group.partition_path
        rows[path] = rows.get(path, 0) + one.rows
    return replace(
        assignment,
        tasks=tuple(
            replace(
                groups.task,
                partition_path=one.file_group.partition_path,
                file_id=one.file_group.file_id,
            )
            for one in opened
        ),
        outer_folders=refuse_nesting(
            context, view_of(context, started.snapshot), tuple(sorted(rows)), rules
        ),
        new_rows=rows if rules.operation.traits.updates else {},
        new_groups=None,
    )
