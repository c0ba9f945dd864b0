"""
What is left to do of a published write: whether it landed, its markers, its heartbeat (PUB-9).

The write stands: but for the table being another one now (SLOT-10), what fails here is an
event, never a failed write.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from timeline.boundary import keep_up
from timeline.context import TableContext
from timeline.files.markers import found_markers
from timeline.model.slot import Slot
from timeline.publishing.begin import Begun
from timeline.publishing.turn import assert_landed

__all__ = ["clean_up", "landed"]

Answer = TypeVar("Answer")


def clean_up(context: TableContext, begun: Begun, slot: Slot) -> None:
    """
    Do all of it, before the writer is told.

    Raises:
        TableReplacedError, OutcomeUnknownError: As ``assert_landed``, which is asked meanwhile.
    """
    context.world.together(partial(assert_landed, context, slot), partial(_tidy_up, context, begun))
    _keep_up(context, begun)


def landed(context: TableContext, begun: Begun, slot: Slot) -> Callable[[], None]:
    """
    Do what must come before anybody is told; calling the answer does the rest, and never fails.

    Raises:
        TableReplacedError, OutcomeUnknownError: As ``assert_landed``.
    """
    _, tidy_up = context.world.together(
        partial(assert_landed, context, slot), partial(_found, context, begun)
    )

    def rest() -> None:
        tidy_up()
        _keep_up(context, begun)

    return rest


def _found(context: TableContext, begun: Begun) -> Callable[[], None]:
    """What is there to be taken away, which calling the answer does."""

    def nothing() -> None: ...

    find = partial(found_markers, context.world.storage, begun.requested_time)
    delete = _guarded(context, begun, find) or nothing

    def tidy_up() -> None:
        context.world.together(partial(_guarded, context, begun, delete), begun.heartbeat.stop)

    return tidy_up


def _tidy_up(context: TableContext, begun: Begun) -> None:
    _found(context, begun)()


def _keep_up(context: TableContext, begun: Begun) -> None:
    _guarded(context, begun, partial(keep_up, context))


def _guarded(context: TableContext, begun: Begun, call: Callable[[], Answer]) -> Answer | None:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the write is published
        context.world.events.emit("write.cleanup_failed", rt=begun.requested_time, why=str(error))
        return None
