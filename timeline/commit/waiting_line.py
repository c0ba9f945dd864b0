"""
A place in the line of those who write the same file groups of a table far away.

Each of them merges its rows with what the one before made, so they follow each other whatever
they do, and what is merged before that has come is merged in vain. Who has seen another's commit
in its file groups therefore waits, without any lock, for all who began in between: they publish
in the order of their requested times, and who keeps it is never told to begin anew (PUB-5). Then
it merges, and takes the next slot on the look that told it that its place had come: whatever came
after that look takes the slot (SLOT-1). While it is next it reads ahead what the one before it
writes, whose name a marker tells. From one commit to the next that makes three ways to the store:
the slot is seen, the next file is written, its slot is taken.

An order of work, never of safety: nobody who stands still is waited for, and whoever comes too
early or too late is judged as ever (PUB-4).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from timeline.active_timeline import ActiveTimeline
from timeline.commit.admission import (
    TimelineState,
    is_lock_shared,
    is_object_store_protocol,
    refresh_in_line,
)
from timeline.commit.apply import not_applied
from timeline.commit.begin import StartedWrite
from timeline.commit.commit import BaseState, PendingCommit, validate_since
from timeline.commit.markers import marker_files
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import join, parse_base_file_name
from timeline.model.instant import State
from timeline.model.instant_time import InstantTime
from timeline.model.slot import SlotKind
from timeline.model.write_set import Access, FileGroupId, WriteSet
from timeline.ports.lock import LockSharing
from timeline.ports.storage import ObjectMissingError, open_cached
from timeline.properties.setting_enums import CommitLockMode
from timeline.rules.conflicts import NoConflict, Rebase, Rejected

__all__ = ["WaitResult", "must_wait_in_line", "wait_in_line"]

_STILL_MAX = 12  # looks in which nobody in front published, after which nobody is waited for
_FRESH_LOOKS = 4  # so long as these take, a look will do for a turn
_STEP_MS = 5
_LONGER_MS_MAX = 100  # between two looks of one who is far from being next
_NEAR = 2  # in front: who comes soon, and reads ahead
_EXPECTED = 2  # slots: the one that is waited for and, where there is none, the end


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitResult:
    """What is known when it has come: what is met, and the look on which the slot may be taken."""

    verdict: NoConflict | Rebase | Rejected
    seen: BaseState
    read: TimelineState
    read_at_ms: int  # on the monotonic clock

    def looked(self, context: TableContext) -> TimelineState | None:
        """
        The look, as long as it will do for a turn.

        Whatever came since takes the slot; but times are drawn above all that it shows
        (TL-SUCC-1), and the table's properties are in it, so it may not be much older than it took.
        """
        age_ms = context.world.clock.monotonic_ms() - self.read_at_ms
        return self.read if age_ms <= _FRESH_LOOKS * context.looked.took_ms else None


def must_wait_in_line(context: TableContext, claim: WriteSet) -> bool:
    """
    Whether a write follows others who write its file groups, where nobody waits for a lock.

    So far away, in mode ``ours``, without a lock or with one that is had together; and as far as is
    known: another published there lately. Outside: nothing.
    """
    unlocked = context.limits.publish_lock is CommitLockMode.NONE
    if not (is_object_store_protocol(context) and (unlocked or is_lock_shared(context))):
        return False
    return _newest_there(context, _rewritten(claim)) is not None


def wait_in_line(
    context: TableContext,
    begun: StartedWrite,
    claim: WriteSet,
    seen: BaseState,
    *,
    logs_may_meet: bool,
) -> WaitResult | None:
    """
    Wait for those in front who may write the same file groups, and judge what they published.

    Args:
        context: The table.
        begun: The write, which has announced itself.
        claim: What it touches, or is going to.
        seen: From what on it is judged.
        logs_may_meet: As of ``judge``.

    Returns:
        Its place; None where nobody is in front, or where a slot that may have no owner any more
        refuses it.

    Raises:
        HeartbeatExpiredError: This process paused too long (HB-3).

    Outside: nothing, or 1 list, 1 get and chain probes together, again while it waits.
    """
    wait = _LineWait(context, begun, _rewritten(claim))
    asked_at_ms = context.world.clock.monotonic_ms()
    looked = wait.until_it_comes()
    if looked is None:
        return None
    came_at_ms = context.world.clock.monotonic_ms()
    context.world.events.emit(
        "write.place_came", rt=begun.requested_time, wait_ms=came_at_ms - asked_at_ms
    )
    head, timeline, config = looked
    planned = PendingCommit(claim=claim, metadata=CommitMetadata(), logs_may_meet=logs_may_meet)
    verdict, now_seen = validate_since(
        context, begun, planned, seen, timeline, head=head, config=config
    )
    if isinstance(verdict, Rejected) and not_applied(context, head, timeline):
        return None  # its turn settles that first, or a new begin would not see what refused it
    return WaitResult(verdict=verdict, seen=now_seen, read=looked, read_at_ms=came_at_ms)


def _rewritten(claim: WriteSet) -> frozenset[FileGroupId]:
    """Logs meet nobody, or count in the order of requested times: they gain nothing by a place."""
    return frozenset(item.file_group for item in claim.file_groups if item.touch is Access.BASE)


def _newest_there(context: TableContext, mine: frozenset[FileGroupId]) -> InstantTime | None:
    """
    The greatest requested time that was published there lately; who is below begins anew.

    None where nobody else did: those who began before then write elsewhere, as far as is known.
    """
    chain, me = context.chain, context.world.ids.identity().writer_id
    there = [
        slot
        for slot in chain.newest_known(chain.known_head)
        if slot.kind is SlotKind.COMMIT
        and any(item.file_group in mine for item in slot.claim.file_groups)
    ]
    if all(slot.owner.writer_id == me for slot in there):
        return None
    return max(slot.requested_time for slot in there)


@dataclass(slots=True)
class _LineWait:
    context: TableContext
    begun: StartedWrite
    mine: frozenset[FileGroupId]
    #: Files of who is in front, by its requested time, and whether they were read.
    ahead: dict[InstantTime, dict[str, bool]] = field(default_factory=dict)
    has_looked: bool = False

    def until_it_comes(self) -> TimelineState | None:
        """Until nobody is in front, or nothing moves; the last look, None where nobody was."""
        context, chain = self.context, self.context.chain
        behind = _newest_there(context, self.mine)
        if behind is None:
            return None
        front = self._front(context.timelines.last, behind)
        if not front:
            return None
        still = 0
        looked: TimelineState | None = None
        while (front or looked is None) and still < _STILL_MAX:
            before, left = chain.known_head, len(front)
            self.begun.heartbeat.check()
            looked = self._step(front)
            came = chain.known_between(before, chain.known_head)
            front = front - {slot.requested_time for slot in came}
            if looked is not None:
                front = self._front(looked[1], _newest_there(context, self.mine) or behind)
            still = 0 if len(front) < left else still + 1  # others may go on for ever
        return looked or refresh_in_line(context)

    def _front(self, timeline: ActiveTimeline | None, behind: InstantTime) -> set[InstantTime]:
        """Who is about to publish before this write and was not overtaken."""
        chain = self.context.chain
        shown = {slot.requested_time for slot in chain.newest_known(chain.known_head)}
        pending = () if timeline is None else timeline.pending
        return {
            one.requested_time
            for one in pending
            if one.state is State.INFLIGHT
            and behind < one.requested_time < self.begun.requested_time
        } - shown

    def _step(self, front: set[InstantTime]) -> TimelineState | None:
        """A moment later the chain; the whole look by who is next, and what comes before it."""
        context, chain = self.context, self.context.chain
        others = len(front) - 1
        if front:
            # A slot comes in two rounds at the most; who is next or the one after it looks on.
            longer_ms = min(max(others - 1, 0) * context.looked.took_ms, _LONGER_MS_MAX)
            context.world.clock.sleep_ms(_STEP_MS + longer_ms)
        chain.expects(_EXPECTED)
        looks: list[TimelineState] = []

        def look() -> None:
            if others > 0:
                chain.head()
            else:
                looks.append(refresh_in_line(context))

        joins = (
            [self._join] if is_lock_shared(context) and (others <= 0 or not self.has_looked) else []
        )
        self.has_looked = True
        context.world.together(look, *self._reads_ahead(front), *joins)
        return looks[0] if looks else None

    def _reads_ahead(self, front: set[InstantTime]) -> list[Callable[[], None]]:
        """
        Requests for what the last one in front writes into the own file groups.

        Its markers tell the names, and are listed once: that may take longer than a look.
        """
        if not front or len(front) > _NEAR:
            return []
        before = max(front)
        files = self.ahead.setdefault(before, {})
        if not files:
            return [partial(self._ask, before, files)]
        return [partial(self._read, path, files) for path, read in files.items() if not read]

    def _ask(self, requested_time: InstantTime, files: dict[str, bool]) -> None:
        with suppress(HoodooError):
            for partition_path, name, _ in marker_files(self.context.world.storage, requested_time):
                found = parse_base_file_name(name)
                if found and FileGroupId(partition_path, found.file_id) in self.mine:
                    files.setdefault(join(partition_path, name), False)

    def _read(self, path: str, files: dict[str, bool]) -> None:
        # A file that is not there yet is asked for again.
        storage = self.context.world.storage
        with suppress(HoodooError, ObjectMissingError), open_cached(storage, path):
            files[path] = True

    def _join(self) -> None:
        """
        Ask beside other things for the part in a lock that is had together (LOCK-1).

        Where it is free as well: those in front are about to want it.
        """
        lock = self.context.world.lock
        lease = lock.acquire_while(lambda: False, "take a place", LockSharing.START)
        if lease is not None:
            lease.release()
