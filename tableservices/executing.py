"""The first steps of whoever carries out a plan: read it, and show that it is begun."""

from __future__ import annotations

from timeline.context import TableContext
from timeline.errors import InstantNotFoundError, StorageUnavailableError
from timeline.model.filenames import pending_file_names
from timeline.model.instant import Instant
from timeline.ports.storage import AmbiguousWriteError, ObjectExistsError, ObjectMissingError

__all__ = ["make_inflight", "read_requested"]


def read_requested(context: TableContext, planned: Instant) -> tuple[bytes, str]:
    """
    The requested file of a plan, and its path for errors. Outside: 1 get.

    Raises:
        InstantNotFoundError: There is no such plan any more.
    """
    path = context.instant_path(pending_file_names(planned.action, planned.requested_time)[-1])
    try:
        return context.world.storage.read(path), path
    except ObjectMissingError:
        raise InstantNotFoundError(
            f"there is no such plan any more: {planned}",
            kind="plan_unknown",
            requested_time=planned.requested_time,
        ) from None


def make_inflight(context: TableContext, planned: Instant) -> bool:
    """
    Show that the plan is carried out; whether somebody had begun before. Outside: 1 create.

    Raises:
        StorageUnavailableError: The storage does not answer.
    """
    path = context.instant_path(pending_file_names(planned.action, planned.requested_time)[0])
    try:
        context.world.storage.create(path, b"")
    except ObjectExistsError:
        return True
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; run the service again: {path}", path=path
        ) from error
    return False
