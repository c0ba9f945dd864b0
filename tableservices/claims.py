"""
Claims: one executor for a plan at a time, to save work (CMP-3).

The claim is the heartbeat of the plan's instant, in Hudi's form. Safety never rests on it
(HB-4): two executors make files of the same names, and the slot decides who completes. An
executor that dies stops beating, and whoever comes after the tolerated silence takes over.
"""

from __future__ import annotations

from timeline.context import TableContext
from timeline.errors import StorageUnavailableError
from timeline.heartbeat import Heartbeat
from timeline.model.instant import Instant
from timeline.places import heartbeat_path
from timeline.ports.storage import AmbiguousWriteError, ObjectExistsError
from timeline.rules.liveness import seems_dead

__all__ = ["claim_plan", "is_claimed"]


def is_claimed(context: TableContext, plan: Instant) -> bool:
    """Whether an executor of the plan seems to live (HB-2). Outside: 1 stat."""
    storage = context.world.storage
    beat = storage.stat(heartbeat_path(plan.requested_time))
    if beat is None:
        return False
    return not seems_dead(beat.modified_ms, storage.now_ms(), context.limits.heartbeat)


def claim_plan(context: TableContext, plan: Instant) -> Heartbeat | None:
    """
    Become the executor of a plan; None when another one lives.

    Outside: 1 stat, 1 create, 1 put; a dead one's claim is taken over without the create.

    Raises:
        StorageUnavailableError: The storage does not answer.
    """
    storage = context.world.storage
    path = heartbeat_path(plan.requested_time)
    if storage.stat(path) is None:
        try:
            storage.create(path, b"", durable=False)
        except ObjectExistsError:
            return None
        except AmbiguousWriteError as error:
            raise StorageUnavailableError(
                f"the storage did not answer; run the service again: {path}", path=path
            ) from error
    elif is_claimed(context, plan):
        return None
    return Heartbeat.start(context.world, plan.requested_time, context.limits.heartbeat)
