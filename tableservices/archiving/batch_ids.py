"""
Carry idempotency ids from one truncation point to the next (BATCH-2).

A truncation takes a slot in the commit section, so its size delays all writers: it repeats a few
hundred ids, not those of a week. When there are more, they remain in the file of the former
truncation point, which is then kept and named. Files of equal size are merged into one of twice the
size. So each id is written again only as often as the number of ids doubles, and a new process
reads few files.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from timeline.codecs.commit_log import CommittedBatch, EarlierBatches, TruncationPoint
from timeline.model.instant_time import InstantTime
from timeline.model.slot import digest_of
from timeline.ports.ports import ObjectMissingError, Storage
from timeline.truncation import read_truncated_batches

_FILE_TIMES_MAX: Final = 16  # a file may have so many times the ids that a truncation repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedBatches:
    """
    The batches that the next truncation point repeats, and the earlier points that it names.

    Batches of commits that completed before ``since`` are dropped, also those of newly truncated
    slots.
    """

    batches: tuple[CommittedBatch, ...] = ()
    earlier: tuple[EarlierBatches, ...] = ()
    since: InstantTime = ""


def remember_batches(
    storage: Storage,
    former: TruncationPoint,
    body: bytes,
    *,
    since: InstantTime,
    withdrawn: frozenset[InstantTime],
    together: int,
) -> RememberedBatches:
    """
    Return the batches that the truncation point after ``former`` keeps.

    Outside: 1 get per earlier file that is merged; all of them while ``withdrawn`` is not empty.

    Args:
        storage: Has the files of truncation points.
        former: The last truncation point.
        body: The content of its file.
        since: Batches of commits that completed before this time are dropped.
        withdrawn: Requested times of restored-away instants: their batches are void (RST-1).
        together: A truncation point repeats up to this many ids, then leaves them in its file.

    Raises:
        CorruptTableError: An earlier file cannot be read.
    """
    batches = former.batches
    earlier = [one for one in former.earlier if one.newest >= since]
    if withdrawn:
        batches = (*_taken_out(storage, earlier, withdrawn), *batches)
    elif len(batches) >= together:
        merged = _merged(storage, earlier, batches, _FILE_TIMES_MAX * together)
        if merged is batches:
            earlier.append(_left_in_file(former, body))
        batches = () if merged is batches else merged
    return RememberedBatches(
        batches=tuple(
            one
            for one in batches
            if one.completion_time >= since and one.requested_time not in withdrawn
        ),
        earlier=tuple(earlier),
        since=since,
    )


def _left_in_file(former: TruncationPoint, body: bytes) -> EarlierBatches:
    return EarlierBatches(
        number=former.number,
        count=len(former.batches),
        newest=max(one.completion_time for one in former.batches),
        digest=digest_of(body),
    )


def _merged(
    storage: Storage,
    earlier: list[EarlierBatches],
    batches: tuple[CommittedBatch, ...],
    count_max: int,
) -> tuple[CommittedBatch, ...]:
    """Add the ids of the newest files, and drop these files, while they are no larger."""
    while earlier and earlier[-1].count <= min(len(batches), count_max - len(batches)):
        try:
            batches = (*read_truncated_batches(storage, earlier[-1].number), *batches)
        except ObjectMissingError:
            break  # deleted by another truncation, so this one fails; or missing: stop here
        del earlier[-1]
    return batches


def _taken_out(
    storage: Storage, earlier: list[EarlierBatches], withdrawn: frozenset[InstantTime]
) -> tuple[CommittedBatch, ...]:
    """Return the batches of files that have a restored-away one; drop these files."""
    found: tuple[CommittedBatch, ...] = ()
    for one in tuple(earlier):
        with suppress(ObjectMissingError):  # as above
            batches = read_truncated_batches(storage, one.number)
            if not withdrawn.isdisjoint(each.requested_time for each in batches):
                found = (*found, *batches)
                earlier.remove(one)
    return found
