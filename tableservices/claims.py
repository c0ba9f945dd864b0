"""
Claims: one executor for a plan at a time, to save work (CMP-3).

The claim is the heartbeat of the plan's instant, in Hudi's form. Safety never rests on it
(HB-4): two executors make files of the same names, and the slot decides who completes. An
executor that dies stops beating, and whoever comes after the tolerated silence takes over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from timeline.context import TableContext
from timeline.errors import StorageUnavailableError
from timeline.heartbeat import Heartbeat
from timeline.model.filenames import pending_file_names
from timeline.model.instant import Instant
from timeline.places import heartbeat_path
from timeline.ports.storage import AmbiguousWriteError, ObjectExistsError
from timeline.rules.liveness import seems_dead
from timeline.setting_names import ForeignWriters

__all__ = ["claim_plan", "claimed", "is_claimed"]


_FOREIGN_MS = 3_600_000  # for how long another engine's executor is taken for alive


def is_claimed(context: TableContext, plan: Instant) -> bool:
    """
    Whether an executor of the plan seems to live (HB-2).

    Java's executors do not beat, and one that takes up a plan first deletes what was written
    for it. So where they are expected, an inflight plan without a heartbeat is left to its
    owner for an hour; who knows better names the plan. Outside: 1 stat, 2 beside them.
    """
    storage = context.world.storage
    beat = storage.stat(heartbeat_path(plan.requested_time))
    if beat is not None:
        return not seems_dead(beat.modified_ms, storage.now_ms(), context.limits.heartbeat)
    if context.limits.foreign_writers is not ForeignWriters.EXPECTED:
        return False
    inflight = pending_file_names(plan.action, plan.requested_time)[0]
    begun = storage.stat(context.instant_path(inflight))
    return begun is not None and storage.now_ms() - begun.modified_ms < _FOREIGN_MS


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
        return None  # a beat that lives; without one, who names the plan takes it
    return Heartbeat.start(context.world, plan.requested_time, context.limits.heartbeat)


@contextmanager
def claimed(context: TableContext, plan: Instant) -> Iterator[Heartbeat | None]:
    """Be the executor of a plan for a while. Answers, calls outside, errors: ``claim_plan``'s."""
    heartbeat = claim_plan(context, plan)
    if heartbeat is None:
        context.world.events.emit("service.claimed_elsewhere", rt=plan.requested_time)
        yield None
        return
    try:
        yield heartbeat
    finally:
        heartbeat.stop()  # whatever happened: the plan may be run again at once
