"""
Skew: file groups with more changed rows than one core's share.

One task merges a base file, so the other cores wait for a skewed one. Rows that are appended to
logs need no merge. Several tasks append them, each to a log file of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from filegroups.files.rewrite import FileGroupTask
from timeline.model.commit_metadata import FileGroupId
from timeline.ports.ports import EventSink

_ROWS_MIN: Final = 100_000
_FACTOR: Final = 1.5
_PART_ROWS_MIN: Final = 50_000  # readers open each log file


def skewed_groups(
    rows: Mapping[FileGroupId, int], *, of: int, cores: int
) -> dict[FileGroupId, int]:
    """
    Return the file groups that have more than 1.5 times a core's share of the rows.

    Args:
        rows: The rows of file groups that cannot be smaller.
        of: The number of all rows of the write.
        cores: The number of tasks that run at a time.

    Returns:
        For each, the number of tasks that would have a fair share of its rows, at least 1.
    """
    return {
        group: max(1, min(cores, -(-count * cores // of), count // _PART_ROWS_MIN))
        for group, count in rows.items()
        if count >= _ROWS_MIN and count * cores > _FACTOR * of
    }


def in_parts(task: FileGroupTask, parts: int, number: int) -> list[FileGroupTask]:
    """
    Return a task, and copies that append its other parts if it gets log files.

    Args:
        task: The task.
        parts: How many tasks would have a fair share of its rows.
        number: The number of the first copy; numbers of their rows differ.
    """
    appends = task.log is not None and not task.operation.traits.deletes_keys
    numbers = range(number, number + parts - 1) if appends else ()
    return [
        task,
        *(replace(task, task_number=own, write_token=f"{own}-0-0") for own in numbers),
    ]


def report_skew(events: EventSink, group: FileGroupId, rows: int, *, of: int, tasks: int) -> None:
    """Report a skewed file group with its rows of all, and the tasks that share them."""
    events.emit(
        "spark.skew_warning" if tasks == 1 else "spark.skew_spread",
        partition_path=group.partition_path,
        file_id=group.file_id,
        rows=rows,
        of=of,
        **({} if tasks == 1 else {"tasks": tasks}),
    )


def spread(target: Any, key: str, parts: Mapping[int, tuple[int, ...]]) -> Any:
    """
    Return a column of targets in which the parts of a target share its rows; each key has one part.

    Args:
        target: The column of targets.
        key: The name of the column of record keys.
        parts: The parts of the targets that have several.
    """
    spreading = target
    for whole, each in parts.items():
        numbers = F.array(*map(F.lit, each))
        place = F.coalesce(F.pmod(F.xxhash64(key), F.lit(len(each))).cast("int"), F.lit(0))
        spreading = F.when(target == whole, numbers[place]).otherwise(spreading)
    return spreading
