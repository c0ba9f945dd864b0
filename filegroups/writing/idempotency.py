"""
Find out whether a batch was committed before (BATCH-1, BATCH-2).

The batch id is in the commit slot, and moves to the truncation point when the slot is truncated. A
process keeps what it has read: the ids of slots, and fingerprints of the ids of truncation points,
whose files never change. So it reads only newer slots and files for the next batch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b

from filegroups.writing.write_request import CommitResult, WriteRequest
from timeline.codecs.commit_log import CommittedBatch, EarlierBatches
from timeline.commit.apply import apply, not_applied
from timeline.commit.revalidate import without_void
from timeline.commit.section import apply_pending_slots
from timeline.commit_log import restored_away_by
from timeline.context import KnownBatches, TableContext
from timeline.errors import CorruptTableError, InvalidInputError
from timeline.model.file_names import truncation_point_path
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import ObjectMissingError
from timeline.truncation import read_truncated_batches, read_truncation_point, truncated_up_to


class _Fingerprints(Container[str]):
    """
    Batch ids as 64 bits of their hash: a week of them takes megabytes, not hundreds.

    A false match is possible but extremely rare. After a match the batch itself is read.
    """

    def __init__(self, batches: Iterable[CommittedBatch]) -> None:
        self._sorted = array("Q", sorted(_fingerprint(one.batch.batch_id) for one in batches))

    def __contains__(self, batch_id: object) -> bool:
        wanted = _fingerprint(str(batch_id))
        place = bisect_left(self._sorted, wanted)
        return place < len(self._sorted) and self._sorted[place] == wanted


def _fingerprint(batch_id: str) -> int:
    data = batch_id.encode(errors="surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def result_of_batch(context: TableContext, plan: WriteRequest) -> CommitResult | None:
    """
    Return the result of a write whose batch id was committed before (BATCH-1), else None.

    Outside and errors as ``committed_batch``.

    Raises:
        InvalidInputError: Another operation was committed under this id, for example if a delete
            step and an upsert step share it. The requested write was never done.
    """
    known = committed_batch(context, plan)
    if known is not None and known.operation != plan.operation.value:
        raise InvalidInputError(
            f"batch {plan.batch_id!r} was committed as {known.operation} in instant "
            f"{known.requested_time}, and this is {plan.operation.value}: nothing was written. "
            "Give each step of a batch its own id",
            kind="batch_of_another_operation",
            batch_id=plan.batch_id,
            operation=plan.operation.value,
            published=known.operation,
            requested_time=known.requested_time,
        )
    return known


def committed_batch(context: TableContext, plan: WriteRequest) -> CommitResult | None:
    """
    Return the result of a batch id that was committed before (BATCH-1), else None.

    Outside: 1 list, 1 get per slot since the last call of this process, and 1 per file of
    truncation points that it has not read. If the id is found: as ``SlotChain.newest_first``, 1
    list, 1 get of the truncation point that has it, and 1 get of the table's identity.

    Raises:
        CorruptTableError: A truncation point cannot be read, or one that others name is missing, so
            its batches are unknown.
        TableReplacedError: The batch was committed in a table that was dropped since.
    """
    if plan.batch_id is None:
        return None
    if not _may_be_published(context, plan.batch_id):
        return None
    _decide_last(context)  # void or not (FOR-4); a returned result is readable (PUB-8)
    withdrawn: set[InstantTime] = set()  # RST-1: such a batch is written again
    for one in _published_batches(context, plan.batch_id, withdrawn):
        if one.batch.batch_id != plan.batch_id or one.requested_time in withdrawn:
            continue
        if not _taken_away(context, one.requested_time):
            context.commit_log.assert_same_table()  # a slot read before may be of a dropped table (F27)
            return CommitResult(
                action=one.action,
                operation=one.batch.operation or plan.operation.value,
                requested_time=one.requested_time,
                completion_time=one.completion_time,
                attempts=1,
                rows_inserted=one.batch.rows_inserted,
                rows_updated=one.batch.rows_updated,
                rows_deleted=one.batch.rows_deleted,
                already_published=True,
            )
    return None


def _may_be_published(context: TableContext, batch_id: str) -> bool:
    """Return whether a slot or truncation point has the batch, even if void or restored away."""
    seen, found, head = context.batches.cached, {}, context.commit_log.head()
    if seen.truncation_point > head:  # of a dropped table, so it is forgotten (SLOT-10)
        seen = KnownBatches()
    lowest = 0
    for slot in context.commit_log.newest_first(head):
        lowest = slot.number
        if lowest <= seen.through:
            break
        found[lowest] = frozenset(one.batch.batch_id for one in batches_of(slot))
    seen = _with_truncated_batches(context, seen)  # after the slots, as of BATCH-2
    if lowest > max(seen.through, seen.truncation_point) + 1:
        seen = _with_lost_boundary(context, seen, lowest - 1)
    ids = {
        number: those
        for number, those in {**seen.ids, **found}.items()
        if those and (number > seen.truncation_point or seen.truncation_point > head)
    }
    through = max(seen.through, *found, 0)
    context.batches.cached = replace(seen, through=through, ids=ids)
    return any(batch_id in those for those in (*ids.values(), *seen.archived.values()))


def _with_truncated_batches(context: TableContext, seen: KnownBatches) -> KnownBatches:
    """
    Add the batches of the current truncation point. Outside: 1 list, 1 get per unread file.

    If a file disappears during the read, a later truncation point replaced it and exists by then.
    """
    storage = context.ports.storage
    if truncated_up_to(storage) <= seen.truncation_point:
        return seen  # it never decreases: an unlisted one was read before, with the same content
    missed = -1
    while True:
        truncation_point = read_truncation_point(storage)
        own = {truncation_point.number: _Fingerprints(truncation_point.batches)}
        kept = {one.number for one in truncation_point.earlier}
        known = {number: ids for number, ids in seen.archived.items() if number in kept}
        try:
            read = _fingerprints_of(context, truncation_point.earlier, known)
        except ObjectMissingError as error:
            if truncation_point.number == missed:
                raise _forgotten(str(error)) from error
            missed = truncation_point.number
            continue
        return replace(
            seen, truncation_point=truncation_point.number, archived={**known, **read, **own}
        )


def _with_lost_boundary(context: TableContext, seen: KnownBatches, collected: int) -> KnownBatches:
    """
    Recover from a lost file of a truncation point, whose slots are already deleted.

    The truncation slot with the same content is in the commit log until a later truncation.

    Raises:
        CorruptTableError: That slot is missing, or the listing still lacks the file.
    """
    _rewrite_truncation_point(context)
    seen = _with_truncated_batches(context, seen)
    if seen.truncation_point < collected:
        raise _forgotten(truncation_point_path(collected), "says what batches were archived")
    return seen


def _rewrite_truncation_point(context: TableContext) -> None:
    """Write the truncation point again from its slot, unless it exists. Outside: 1 create."""
    cut = next(
        (one for one in context.commit_log.newest_first() if one.kind is SlotKind.TRUNCATE), None
    )
    if cut is not None:
        apply(context, cut)


def _fingerprints_of(
    context: TableContext, earlier: Iterable[EarlierBatches], known: Mapping[int, Container[str]]
) -> dict[int, Container[str]]:
    numbers = [one.number for one in earlier if one.number not in known]
    found = context.ports.for_each(
        lambda number: _Fingerprints(read_truncated_batches(context.ports.storage, number)), numbers
    )
    return dict(zip(numbers, found, strict=True))


def _forgotten(
    path: str, what: str = "the truncation point names for the batches in it"
) -> CorruptTableError:
    return CorruptTableError(
        f"{path} is missing, which {what}, so it is unknown whether this batch was committed "
        "before. Restore the file from a backup. Without a backup, search the table for the "
        "batch's rows; if they are missing, write them without a batch id. After "
        "hoodoo.batch.retention.ms no write needs the file",
        path=path,
    )


def _decide_last(context: TableContext) -> None:
    """Apply the newest slots or mark them void. Outside: 1 get, 1 list, a commit section."""
    left = not_applied(context, context.commit_log.head(), context.active())
    if left:
        apply_pending_slots(context, f"apply {left[-1].instant_time}")


def _taken_away(context: TableContext, requested_time: InstantTime) -> bool:
    """
    Return whether a restore of another engine removed a committed instant (RST-3).

    An instant older than the first write of the timeline may be archived, which the archived
    timeline shows. An instant older than that may have been in an archive that the table's owner
    deleted.
    Outside: 1 list, and the archived timeline if the instant is not on the active one.
    """
    timeline = context.active()
    if timeline.find(requested_time) is not None:
        return False
    archived = context.archived_timeline.times()
    if requested_time in archived.completions:
        return False
    counts = timeline.is_archived(requested_time, lambda: archived)
    return not counts or archived.rules_out(requested_time)


def _published_batches(
    context: TableContext, batch_id: str, withdrawn: set[InstantTime]
) -> Iterator[CommittedBatch]:
    """
    Yield the batches of slots, newest first, then of truncation points that may have the batch.

    The truncation point contains slots that are truncated during the read (BATCH-2).
    """
    for slot in without_void(context.commit_log.newest_first()):
        withdrawn |= restored_away_by(slot)
        yield from batches_of(slot)
    seen, missed = context.batches.cached, -1
    while True:
        seen = _with_truncated_batches(context, seen)
        having = [number for number, ids in seen.archived.items() if batch_id in ids]
        try:
            for number in sorted(having, reverse=True):
                yield from read_truncated_batches(context.ports.storage, number)
        except ObjectMissingError as error:  # a later truncation point replaced it
            if seen.truncation_point == missed:
                raise _forgotten(str(error)) from error
            missed = seen.truncation_point
            _rewrite_truncation_point(context)  # or the newest one was lost
            continue
        return


def batches_of(slot: Slot) -> tuple[CommittedBatch, ...]:
    """Return the batches that a slot committed."""
    if slot.kind is not SlotKind.COMMIT:
        return ()
    return tuple(
        CommittedBatch(
            batch=batch,
            action=slot.action.value,
            requested_time=slot.requested_time,
            completion_time=slot.completion_time,
        )
        for batch in slot.batches
    )
