"""
Claims: one executor for a plan at a time, to save work (CMP-3).

The claim is the heartbeat of the plan's instant, in Hudi's form. Safety never rests on it
(HB-4): two executors make files of the same names, and the slot decides who completes. An
executor that dies stops beating, and whoever comes after the tolerated silence takes over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum

from tableservices.completing import withdraw_if_ended
from tableservices.scheduling import pending_plans
from timeline.context import TableContext
from timeline.errors import HeartbeatExpiredError, MissingFileError, StorageUnavailableError
from timeline.heartbeat import Heartbeat
from timeline.model.filenames import pending_file_names
from timeline.model.instant import Instant
from timeline.places import heartbeat_path
from timeline.ports.storage import AmbiguousWriteError, ObjectExistsError
from timeline.properties.setting_names import ForeignWriters
from timeline.publishing.plan_ending import Ended, how_it_ended
from timeline.publishing.turn import take_turn
from timeline.rules.liveness import seems_dead

__all__ = ["Standing", "await_plan", "claim_plan", "claimed", "is_claimed", "unless_ended"]


_FOREIGN_MS = 3_600_000  # for how long another engine's executor is taken for alive
_LOOK_MS = 1_000  # how soon a free plan is noticed by who waits for it


class Standing(Enum):
    """How a plan stands for who would carry it out."""

    FREE = "nobody is at it"
    HELD = "another executor is at it"
    ENDED = "it was completed or cancelled"


def is_claimed(context: TableContext, plan: Instant) -> bool:
    """
    Whether an executor of the plan seems to live (HB-2).

    Java's executors do not beat, and one that takes up a plan first deletes what was written
    for it. So where they are expected, an inflight plan without a heartbeat is left to its
    owner for an hour; who knows better names the plan. Outside: 1 stat, 2 beside them.
    """
    beats = _beats(context, plan)
    if beats is not None:
        return beats
    if context.limits.foreign_writers is not ForeignWriters.EXPECTED:
        return False
    storage = context.world.storage
    inflight = pending_file_names(plan.action, plan.requested_time)[0]
    begun = storage.stat(context.instant_path(inflight))
    return begun is not None and storage.now_ms() - begun.modified_ms < _FOREIGN_MS


def _beats(context: TableContext, plan: Instant) -> bool | None:
    """Whether the plan's heartbeat is of somebody who lives; None where there is none."""
    storage = context.world.storage
    beat = storage.stat(heartbeat_path(plan.requested_time))
    if beat is None:
        return None
    return not seems_dead(beat.modified_ms, storage.now_ms(), context.limits.heartbeat)


def await_plan(
    context: TableContext, plan: Instant, *, wait_ms: int, named: bool = False
) -> Standing:
    """
    Wait until no executor of a plan seems to live, or the plan has ended.

    An executor that dies is silent for as long as is tolerated (HB-2), and then the plan is
    free; a shorter wait outlasts only the living. Outside: as ``is_claimed``, and once a
    second while another executor is at it; 1 list more when one was.

    Args:
        context: The table.
        plan: Pending when it was looked at last.
        wait_ms: For how long; 0 only looks.
        named: Whether somebody names the plan, who then knows that no executor of another
            engine, which does not beat, is at it.
    """
    clock = context.world.clock
    until = clock.monotonic_ms() + wait_ms
    waited = False
    while bool(_beats(context, plan)) if named else is_claimed(context, plan):
        left = until - clock.monotonic_ms()
        if left <= 0:
            return Standing.HELD
        if not waited:
            context.world.events.emit("service.waiting", rt=plan.requested_time, wait_ms=wait_ms)
            waited = True
        clock.sleep_ms(min(left, _LOOK_MS))
    if waited and plan.requested_time not in {
        one.requested_time for one in pending_plans(context.active(), plan.action)
    }:
        return Standing.ENDED
    return Standing.FREE


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
    """
    Be the executor of a plan for a while. Answers, calls outside, errors: ``claim_plan``'s.

    One that slept while others ended the plan, or misses files since, takes back what it wrote
    (RB-10).
    """
    heartbeat = claim_plan(context, plan)
    if heartbeat is None:
        context.world.events.emit("service.claimed_elsewhere", rt=plan.requested_time)
        yield None
        return
    try:
        yield heartbeat
    except (HeartbeatExpiredError, MissingFileError) as error:
        if isinstance(error, MissingFileError):
            _end_restore(context, plan)
        with suppress(StorageUnavailableError):
            withdraw_if_ended(context, plan, heartbeat)
        raise
    finally:
        heartbeat.stop()  # whatever happened: the plan may be run again at once


@contextmanager
def unless_ended(context: TableContext, plan: Instant) -> Iterator[None]:
    """
    Leave the block where files of a plan are gone because somebody ended it meanwhile.

    A clean takes them once another executor's result has replaced them, a restore before it takes
    the plan; who slept, or had read the plan just before, has nothing left to do. Outside: nothing,
    else 2 lists, and 1 turn where the plan is pending.

    Raises:
        MissingFileError: They are gone and the plan is pending: it can only be cancelled.
        Others: As ``timeline.publishing.turn.take_turn``.
    """
    try:
        yield
    except MissingFileError:
        _end_restore(context, plan)
        ended = how_it_ended(context.active(), plan)
        if ended not in (Ended.COMPLETED_ELSEWHERE, Ended.CANCELLED):
            raise
        context.world.events.emit(
            "service.ended_meanwhile", rt=plan.requested_time, why=ended.value
        )


def _end_restore(context: TableContext, plan: Instant) -> None:
    """
    Finish the restore that is taking a plan away, if there is one.

    It deletes what the plan reads before the plan (RST-1), and nobody else may come after its owner
    died. A turn settles what it finds (PUB-3). Outside: 1 list, and 1 turn where the plan is pending.
    """
    if how_it_ended(context.active(), plan) in (None, Ended.ROLLED_BACK):
        take_turn(context, f"look what becomes of {plan.requested_time}", lambda _: None)
