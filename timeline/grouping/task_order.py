"""
The order in which the logs of a group count (GRP-2).

Those of one instant in one file group count in the order of their tokens, which every reader
compares as texts (fmt 5.7): ``10-0-0`` comes before ``9-0-0``. Numbers of equal length keep the
order of the members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from timeline.files.rewrite import FileGroupTask

__all__ = ["in_text_order"]

_ONE_DIGIT: Final = 10  # so many numbers have one


def in_text_order(tasks: Sequence[FileGroupTask], count: int) -> tuple[FileGroupTask, ...]:
    """
    Tasks that are numbered through a whole group, with tokens whose order as texts is that.

    Args:
        tasks: Of one member.
        count: Of all members; numbers are below it.
    """
    first = 0 if count <= _ONE_DIGIT else 10 ** len(str(count))
    return tuple(
        replace(
            task,
            task_number=first + task.task_number,
            write_token=f"{first + task.task_number}-0-0",
        )
        for task in tasks
    )
