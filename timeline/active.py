"""
The active timeline: every instant whose files lie in the timeline folder, at one moment.

A value made from one listing of names; nothing is read until content is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from timeline.errors import UnsupportedTableError
from timeline.model.filenames import parse_instant_name
from timeline.model.instant import WRITE_ACTIONS, Action, Instant, State
from timeline.model.times import InstantTime
from timeline.places import TIMELINE
from timeline.ports.storage import Storage

__all__ = ["ActiveTimeline"]

#: SEC14: a hostile or neglected table must not fill the memory.
INSTANT_FILES_MAX = 3_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveTimeline:
    """Instants in their furthest state, ascending by requested time, then action."""

    instants: tuple[Instant, ...]
    file_names: frozenset[str]

    @staticmethod
    def load(storage: Storage, *, files_max: int = INSTANT_FILES_MAX) -> ActiveTimeline:
        """
        List the timeline folder once.

        Args:
            storage: The table.
            files_max: Most files accepted (SEC14).

        Raises:
            UnsupportedTableError: More files than ``files_max``.
        """
        names = storage.names(TIMELINE)
        if len(names) > files_max:
            raise UnsupportedTableError(
                "the timeline has more files than hoodoo.limits.timeline.instants.max allows; "
                f"archive it or raise the limit: {len(names)}",
                kind="limit",
                found=len(names),
            )
        return ActiveTimeline.of(names)

    @staticmethod
    def of(names: Iterable[str]) -> ActiveTimeline:
        """
        Group file names to instants. Names outside the grammar are skipped (fmt 2.2).

        A clean may have several completed files under one requested time: the greatest
        completion time counts.
        """
        furthest: dict[tuple[Action, InstantTime], Instant] = {}
        kept = []
        for name in names:
            instant = parse_instant_name(name)
            if instant is None:
                continue
            kept.append(name)
            key = (instant.action.completes_as, instant.requested_time)
            before = furthest.get(key)
            if before is None or _further(instant, before):
                furthest[key] = instant
        ordered = sorted(
            furthest.values(), key=lambda item: (item.requested_time, item.action.value)
        )
        return ActiveTimeline(instants=tuple(ordered), file_names=frozenset(kept))

    @property
    def newest_time(self) -> InstantTime | None:
        """T of the timeline: the greatest requested or completion time of any instant."""
        return max((instant.newest_time for instant in self.instants), default=None)

    @property
    def newest_decided_time(self) -> InstantTime | None:
        """The greatest time fixed by a publication or plan, begun writes left out (BEG-5)."""
        return max(
            (
                instant.newest_time
                for instant in self.instants
                if instant.completed or instant.action not in _BEGUN
            ),
            default=None,
        )

    @property
    def completed_writes(self) -> tuple[Instant, ...]:
        """Completed instants that wrote data, ascending by requested time."""
        return tuple(i for i in self.instants if i.completed and i.action in WRITE_ACTIONS)

    @property
    def pending(self) -> tuple[Instant, ...]:
        """Requested and inflight instants."""
        return tuple(i for i in self.instants if not i.completed)

    @property
    def pending_ingestion(self) -> tuple[Instant, ...]:
        """Pending commits, deltacommits and replacecommits: what a rollback may target."""
        return tuple(i for i in self.pending if i.action in _BEGUN)

    @property
    def first_write_time(self) -> InstantTime | None:
        """
        Requested time of the first write instant, pending or not.

        Below it everything counts as archived, hence committed (fmt 6.3).
        """
        return next((i.requested_time for i in self.instants if i.action in WRITE_ACTIONS), None)

    def find(self, requested_time: InstantTime, *actions: Action) -> Instant | None:
        """The instant with this requested time; savepoints only when asked for by action."""
        for instant in self.instants:
            if instant.requested_time != requested_time:
                continue
            if actions and instant.action not in actions:
                continue
            if not actions and instant.action is Action.SAVEPOINT:
                continue
            return instant
        return None


_BEGUN = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})


def _further(one: Instant, other: Instant) -> bool:
    if one.state is other.state is State.COMPLETED:
        return (one.completion_time or "") > (other.completion_time or "")
    return one.state.rank > other.state.rank
