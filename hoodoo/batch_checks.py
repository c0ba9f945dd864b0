"""The boundaries that are kept for the batch ids in them are there, with the bytes they had (BATCH-2)."""

from __future__ import annotations

from typing import Protocol

from timeline.boundary import boundary_number, read_boundary
from timeline.context import TableContext
from timeline.model.sealing import digest_of
from timeline.places import boundary_path
from timeline.ports.storage import ObjectMissingError

__all__ = ["check_batches"]


class _Report(Protocol):
    def problem(self, kind: str, path: str, message: str) -> None:
        """One thing that is wrong."""


def check_batches(context: TableContext, report: _Report) -> None:
    """
    Compare the earlier boundaries with what the present one says of them.

    Outside: 1 list and 1 get, 1 get per earlier boundary; as often as another cut came meanwhile.

    Args:
        context: The table.
        report: Gets what is wrong.

    Raises:
        CorruptTableError: The present boundary cannot be read.
    """
    storage = context.world.storage
    while True:
        boundary = read_boundary(storage)
        found: list[tuple[str, str, str]] = []
        for one in boundary.earlier:
            path = boundary_path(one.number)
            try:
                differs = digest_of(storage.read(path)) != one.digest
            except ObjectMissingError:
                told = f"it knew {one.count} batch ids, writes with a batch id are refused"
                found.append(("boundary_missing", path, told))
                continue
            if differs:
                told = "it is not what the present boundary was built upon: it was edited"
                found.append(("boundary_differs", path, told))
        if not found or boundary_number(storage) == boundary.number:
            break
    for each in found:
        report.problem(*each)
