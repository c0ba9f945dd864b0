"""
What the attempts of one write met and cost: whether it may go on, and how the next one is made.

The numbers are kept here, what follows from them is decided by ``timeline.rules.retry``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from timeline.context import TableContext
from timeline.publishing.queue import is_shared
from timeline.publishing.refusal import RefusalReport, Waited
from timeline.rules.retry import hold_ms, pause_ms, spent_bound, within_time

__all__ = ["Tries"]

#: Redos of one of those who have the lock together before it has it alone, which ends that for all
#: of them: the last of as many as are allowed by default.
_FIRST_WITHOUT = 3


@dataclass(slots=True)
class Tries:
    """The attempts of one write so far."""

    started_ms: int
    begun: int = 0
    groups_redone: int = 0  # in the attempt that is going on
    wasted_bytes: int = 0
    last_pause_ms: int = 0
    refusals: list[RefusalReport] = field(default_factory=list)
    waits: list[Waited] = field(default_factory=list)
    begun_ms: int = 0  # of the last attempt, on the monotonic clock
    offered_ms: int | None = None  # when it first asked to be published

    def begin(self, context: TableContext) -> None:
        """One more attempt begins."""
        self.begun += 1
        self.groups_redone = 0
        self.begun_ms = context.world.clock.monotonic_ms()
        self.offered_ms = None

    def offer(self, context: TableContext) -> None:
        """It asks to be published; from here on it waits for others, too."""
        if self.offered_ms is None:
            self.offered_ms = context.world.clock.monotonic_ms()

    def spent_bound(self, context: TableContext) -> str | None:
        """The option that forbids to do it again; None while it may be."""
        return spent_bound(
            context.limits.retry,
            conflicts=len(self.refusals),
            elapsed_ms=self._elapsed_ms(context),
            wasted_bytes=self.wasted_bytes,
        )

    def hold_ms(self, context: TableContext) -> int | None:
        """How long the next attempt may hold the queue, as the rule of that name."""
        ended_ms = self.offered_ms
        if ended_ms is None:
            ended_ms = context.world.clock.monotonic_ms()
        return hold_ms(
            context.limits.retry,
            conflicts=len(self.refusals),
            work_ms=ended_ms - self.begun_ms,
            look_ms=context.looked.took_ms if context.world.storage.capabilities.far else 0,
            first_without=_FIRST_WITHOUT if is_shared(context) else 0,
        )

    def must_queue(self, context: TableContext) -> bool:
        """Whether the user says that the next redo holds the queue, however long it takes."""
        return self.hold_ms(context) == 0

    def queues_rather(self, context: TableContext, *, groups_left: int) -> bool:
        """
        Whether all is done again in the queue, where merging some file groups might be enough.

        That spares most where many are left as they are, and nobody waits for it: it is tried once.
        """
        held_ms = self.hold_ms(context)
        if held_ms is None:
            return False
        return held_ms == 0 or groups_left == 0 or self.groups_redone > 0

    def pause(self, context: TableContext) -> None:
        """Let others pass before everything is done again."""
        world, budget = context.world, context.limits.retry
        self.last_pause_ms = pause_ms(
            self.begun - 1, world.ids.jitter(), budget, previous_ms=self.last_pause_ms
        )
        elapsed_ms = self._elapsed_ms(context)
        world.clock.sleep_ms(within_time(budget, self.last_pause_ms, elapsed_ms=elapsed_ms))

    def _elapsed_ms(self, context: TableContext) -> int:
        return context.world.clock.monotonic_ms() - self.started_ms
