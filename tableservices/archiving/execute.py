"""
Archive: from the decision to the last deleted slot (GC-1 to GC-5).

A truncation takes a slot whose body is the whole plan; applying it moves the truncation point.
Then, if no low-water mark is below it, it moves instants: rows to the archived timeline, then
deletes of pending files, completed files oldest first, slots last. After a crash the plan remains
in the commit log. The next archiver finds it and repeats the same steps. Where Java Hudi writes
too, all of this runs under the lock (FOR-6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from filegroups.schema.column_ids import remove_old_histories
from tableservices.archiving.archived_timeline import merge_levels, move_instants
from tableservices.archiving.batch_ids import remember_batches
from tableservices.archiving.plan import (
    ArchivalLimits,
    ArchiveRules,
    ArchivingSettings,
    archival_limits,
    ceiling_of,
    choose_instants,
    is_due,
    next_truncation_point,
)
from tableservices.cleaning.plan import refuse_uncleanable
from tableservices.service import ServiceResult
from timeline.codecs.commit_log import (
    NO_TRUNCATION,
    TruncationPoint,
    decode_truncation_point,
    encode_truncation_point,
)
from timeline.commit.apply import (
    apply,
    data_files_of,
    delete_from_metadata_table,
    revert_truncation,
)
from timeline.commit.revalidate import without_void
from timeline.commit.section import open_commit
from timeline.commit_log import restored_away_in
from timeline.context import TableContext
from timeline.errors import TableReplacedError, counted
from timeline.model.file_names import (
    BOUNDARIES,
    SLOTS,
    slot_path,
    truncation_point_path,
)
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime, Residue
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import Storage
from timeline.snapshot import ActiveTimeline
from timeline.truncation import raise_low_water_mark, slots_since_snapshot

_REST_MS = 10_000
_TRIES_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A truncation as decided before the commit section."""

    slots: tuple[Slot, ...]
    lines: ArchivalLimits
    going: frozenset[Instant]
    released: frozenset[InstantTime]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """The result of one archive; times are those of its last truncation."""

    requested_time: InstantTime
    completion_time: InstantTime
    instants: int
    slots_up_to: int
    merges: int

    @property
    def text(self) -> str:
        """One line for people."""
        archived = counted(self.instants, "instant")
        return f"archived {archived}, truncated slots up to {self.slots_up_to}"


@dataclass(slots=True)
class ArchiveBackoff:
    """
    When to check again after a check that found nothing to archive, on the monotonic clock.

    Without it, a table that cannot be archived would cost every small commit a full check.
    """

    skip_until_ms: int = 0


def archive(
    context: TableContext,
    rules: ArchiveRules,
    *,
    memory: ArchiveBackoff | None = None,
    has_other_writers: bool = False,
) -> ArchiveResult | None:
    """
    Archive the instants that the settings no longer keep on the active timeline.

    Outside: nothing while it is not due; else 1 get, the calls of ``archival_limits``, and per
    truncation 1 commit section, the registry, 1 get per file of its instants, the files of the
    archived timeline, 1 delete per file and slot. Where columns have ids also as
    ``remove_old_histories``.

    Args:
        context: The table.
        rules: Which instants are kept.
        memory: Kept between the archives of one process.
        has_other_writers: Many processes archive after their commits; only one of them does the work.

    Returns:
        None when there was nothing to do, when a process still needs every instant, or when another
        process archives.

    Raises:
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As
            ``timeline.commit.commit.commit_write``; the next archive continues from here.
        MetadataTableOnError, UnsupportedTableError: As ``refuse_uncleanable``.
        CorruptTableError: A file of the archived timeline or an instant cannot be read; nothing
            more was moved.
    """
    memory = memory or ArchiveBackoff()
    if context.ports.clock.monotonic_ms() < memory.skip_until_ms:
        return None
    timeline = context.cached_snapshot().active
    if not is_due(timeline, rules.archiving, rules.released):
        return None
    refuse_uncleanable(context, "archive")
    left = has_other_writers and _another_is_at_it(context, timeline)
    cuts = (
        []
        if left
        else list(_truncate_repeatedly(context, rules, 1 if has_other_writers else _TRIES_MAX))
    )
    if not cuts:
        memory.skip_until_ms = context.ports.clock.monotonic_ms() + _REST_MS
        return None
    with _alone(context):
        merges = merge_levels(context, rules.archiving)
    snapshot = context.cached_snapshot()
    if snapshot.newest_internal_schema_json:
        remove_old_histories(context.ports.storage, snapshot.active.first_write_time or "")
    documents = [_document(cut) for cut in cuts]
    result = ArchiveResult(
        requested_time=cuts[-1].requested_time,
        completion_time=cuts[-1].completion_time,
        instants=sum(len(one.completed) for one in documents),
        slots_up_to=documents[-1].number,
        merges=merges,
    )
    context.ports.events.emit(
        "archiving.done",
        instants=result.instants,
        slots_up_to=result.slots_up_to,
        merges=merges,
    )
    return result


def _another_is_at_it(context: TableContext, timeline: ActiveTimeline) -> bool:
    """
    Return whether another process truncated just now and still moves its instants.

    Writers that all archive after their commits find the same work due at the same time. If the
    other process died, this one continues its work after ``_REST_MS``. Outside: 1 get.
    """
    last = _last_truncation(context)
    if last is None or last.owner.writer_id == context.ports.ids.identity().writer_id:
        return False
    moment = context.zone.earliest_from(context.ports.clock.now_ms() - _REST_MS)
    moving = not timeline.file_names.isdisjoint(_document(last).completed)
    return moving and last.completion_time > moment


def _truncate_repeatedly(context: TableContext, rules: ArchiveRules, tries: int) -> Iterator[Slot]:
    """
    Truncate and move instants, again and again, until no more can move.

    ``tries`` limits how often a decision may be stale because another process took a slot.
    """
    finished = stale = 0
    while stale < tries:
        last = _last_truncation(context)
        if last is not None and last.number != finished:  # another process's, perhaps dead
            if not _finish(context, last):
                return
            finished = last.number
        planned = _planned(context, rules)
        if planned is None:
            return
        if _last_of(planned.slots) not in (None, finished):
            stale += 1  # a new truncation: finish it first (GC-1)
            continue
        cut = _try_truncate(context, rules.archiving, planned)
        if cut is None:
            stale += 1
            context.ports.events.emit("archiving.replanned")
            continue
        if not _finish(context, cut):
            return
        finished = cut.number
        yield cut


def _last_of(slots: Sequence[Slot]) -> int | None:
    """Return the number of the newest truncation among slots, oldest first; None without any."""
    return next((one.number for one in reversed(slots) if one.kind is SlotKind.TRUNCATE), None)


def _alone(context: TableContext) -> AbstractContextManager[object]:
    """Hold the lock where another engine may archive too; it respects only the lock."""
    if context.has_foreign_writers:
        return context.ports.lock.acquire("archive")
    return nullcontext()


def _last_truncation(context: TableContext) -> Slot | None:
    return next((s for s in context.commit_log.newest_first() if s.kind is SlotKind.TRUNCATE), None)


def _document(cut: Slot) -> TruncationPoint:
    return decode_truncation_point(cut.body, path=slot_path(cut.number))


def _planned(context: TableContext, rules: ArchiveRules) -> _Planned | None:
    """Decide before the commit section, which only checks that no new slot changes the decision."""
    snapshot = context.snapshot()
    if not is_due(snapshot.active, rules.archiving, rules.released):
        return None
    if context.low_water_mark.entry is not None:
        raise_low_water_mark(context)  # an old mark of this process must not delay its own archive
    slots = tuple(without_void(context.commit_log.newest_first()))[::-1]
    lines = archival_limits(context, snapshot, slots, rules)
    going = choose_instants(snapshot.active, rules.archiving, lines.times, rules.released)
    if not going:
        return None
    for path in _left_by(context.ports.storage, lines.ended):
        context.ports.storage.delete(path)
    delete_from_metadata_table(context.ports.storage, *lines.ended)
    return _Planned(slots=slots, lines=lines, going=frozenset(going), released=rules.released)


def _left_by(storage: Storage, ended: Sequence[InstantTime]) -> list[str]:
    """Return the files of instants without a result. Outside: the listing of each."""
    return [path for target in ended for path in data_files_of(storage, target)]


def preview_archive(context: TableContext, rules: ArchiveRules) -> tuple[str, ...]:
    """
    Return the instants that an archive would move now; change nothing.

    Outside: as the decision of ``archive``.
    """
    snapshot = context.snapshot()
    if not is_due(snapshot.active, rules.archiving, rules.released):
        return ()
    slots = tuple(without_void(context.commit_log.newest_first()))[::-1]
    lines = archival_limits(context, snapshot, slots, rules)
    going = choose_instants(snapshot.active, rules.archiving, lines.times, rules.released)
    return tuple(map(str, going))


def _try_truncate(
    context: TableContext, settings: ArchivingSettings, planned: _Planned
) -> Slot | None:
    slots = planned.slots
    cuts = [one for one in slots if one.kind is SlotKind.TRUNCATE]
    documents = [_document(one) for one in cuts]
    former = documents[-1] if documents else NO_TRUNCATION
    bodies = (
        cut.body for cut, one in zip(cuts, documents, strict=True) if one.number == former.number
    )
    newest = slots[-1].number if slots else 0
    nonce = context.ports.ids.nonce()
    # Use the table's time if it is behind: a clock that is ahead must not drop ids early.
    now = context.ports.clock.now_ms()
    if slots:
        now = min(now, context.zone.wall_ms(slots[-1].newest_time))
    carried = remember_batches(
        context.ports.storage,
        former,
        next(bodies, b""),  # its file is the first truncation's, and is never overwritten
        since=context.zone.earliest_from(now - settings.batches_kept_ms),
        withdrawn=restored_away_in(slots),
        together=settings.batches_together,
    )

    if _is_stale(context, newest, context.commit_log.head()):
        return None  # checked before the commit section, in which all writers would wait
    commit = open_commit(context, "archive")
    while not commit.is_decided():
        with commit.section() as section:
            if _is_stale(context, newest, section.head):
                return None
            chosen = choose_instants(
                section.timeline, settings, planned.lines.times, planned.released
            )
            going = [one for one in chosen if one in planned.going]  # only checked instants
            if not going:
                return None
            requested = section.draw_time(context, Residue.SLOT_REQUESTED)
            truncation_point = next_truncation_point(
                former,
                section.timeline,
                going,
                slots,
                ceiling=planned.lines.ceiling,
                carried=carried,
            )
            slot = section.next_slot(
                context,
                SlotKind.TRUNCATE,
                Action.COMMIT,
                requested,
                nonce=nonce,
                body=encode_truncation_point(truncation_point),
            )
            commit.take(section, slot)
    _emit_batches(context, former, _document(commit.taken))
    return commit.taken


def _emit_batches(
    context: TableContext, former: TruncationPoint, truncation_point: TruncationPoint
) -> None:
    before = {one.number for one in former.earlier}
    now = {one.number for one in truncation_point.earlier}
    if now - before:
        context.ports.events.emit("archiving.batches_left", number=former.number)
    if before - now:
        context.ports.events.emit("archiving.batches_taken_over", boundaries=len(before - now))


def _is_stale(context: TableContext, after: int, last: int) -> bool:
    """Return whether the slots ``after < n <= last`` change the decision."""
    came = slots_since_snapshot(context, after, last)
    return came is None or not all(map(_leaves_as_it_is, came))


def _leaves_as_it_is(came: Slot) -> bool:
    """Return whether a slot changes none of the instants that were chosen to move."""
    return came.kind in (SlotKind.COMMIT, SlotKind.PLAN)


def _finish(context: TableContext, cut: Slot) -> bool:
    """
    Do the rest of a truncation; return False when a new low-water mark is below its reach.

    Outside: 1 create, 3 lists, the registry; the rest only while something is left to do.
    """
    truncation_point = _document(cut)
    with _alone(context):
        context.commit_log.assert_same_table()  # the slot may be one of a dropped table (SLOT-10)
        apply(context, cut)
        _assert_same_table(context, cut)
        names = context.active().file_names
        left = [name for name in truncation_point.completed if name in names]
        slots = _slots_up_to(context.ports.storage, truncation_point.number)
        if not left and not slots:
            return True
        if ceiling_of(context, cut.number) < _reach(context, truncation_point):  # GC-3: check again
            context.ports.events.emit("archiving.held", number=cut.number)
            return False
        if left:
            _move(context, cut, truncation_point, names)
        _assert_same_table(context, cut)
        context.ports.for_each(context.ports.storage.delete, slots)
        for number in _unneeded_truncation_points(context.ports.storage, truncation_point):
            context.ports.storage.delete(truncation_point_path(number))
    context.commit_log.forget(truncation_point.number)
    return True


def _assert_same_table(context: TableContext, cut: Slot) -> None:
    """Check before deletes (SLOT-10); in another table, delete the new truncation point again."""
    try:
        context.commit_log.assert_same_table()
    except TableReplacedError:
        revert_truncation(context, cut)
        raise


def _reach(context: TableContext, truncation_point: TruncationPoint) -> int:
    """Return the greatest slot that is truncated, or whose completed file moves."""
    times = {name[:17] for name in truncation_point.completed}
    slots = context.commit_log.newest_first()
    return max([truncation_point.number, *(s.number for s in slots if s.instant_time in times)])


def _move(
    context: TableContext, cut: Slot, truncation_point: TruncationPoint, names: frozenset[str]
) -> None:
    # F24: if the file is damaged, its slot, which is deleted next, has the only whole copy.
    fixed: dict[str | None, bytes] = {
        slot.file_name: slot.body
        for slot in context.commit_log.newest_first(cut.number)
        if slot.file_name in truncation_point.completed and slot.body
    }
    move_instants(context, truncation_point.completed, names, fixed)


def _slots_up_to(storage: Storage, number: int) -> list[str]:
    names = (name for name in storage.names(SLOTS) if name.isdigit())
    return [slot_path(n) for n in sorted(map(int, names)) if n <= number]


def _unneeded_truncation_points(storage: Storage, truncation_point: TruncationPoint) -> list[int]:
    """
    Return older truncation points whose batches no later one needs.

    The result may lack some that a later point dropped, but never has one that a later point names.
    Each point names its predecessor, and only older points that its predecessor names.
    """
    named = {one.number for one in truncation_point.earlier}
    numbers = {int(name) for name in storage.names(BOUNDARIES) if name.isdigit()}
    return sorted(number for number in numbers - named if number < truncation_point.number)


# ---- Archiving as a service, for writers and workers


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivingService:
    """Archiving as a service."""

    rules: ArchiveRules
    has_other_writers: bool = (
        False  # one of many writers that archive after commits, as of ``archive``
    )
    name: str = "archive"
    backoff: ArchiveBackoff = field(default_factory=ArchiveBackoff)

    @property
    def runs_inline(self) -> bool:
        """Return ``hoodie.archive.automatic`` and not ``hoodie.archive.async``."""
        archiving = self.rules.archiving
        return archiving.automatic and not archiving.asynchronous

    @property
    def runs_in_background(self) -> bool:
        """Return ``hoodie.archive.automatic`` and ``hoodie.archive.async``."""
        archiving = self.rules.archiving
        return archiving.automatic and archiving.asynchronous

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Archive once; errors as ``archive``."""
        return archive(
            context, self.rules, memory=self.backoff, has_other_writers=self.has_other_writers
        )
