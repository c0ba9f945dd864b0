"""
What a boundary takes over of the batches that the one before it knew (BATCH-2).

A cut is a slot, and all of what it says goes through the queue of the writers: it repeats a few
hundred batch ids, not those of a week. Once there are more, they are left in the file where they
lie already, that of the former boundary, which is then kept and named. Files of equal size become
one of twice the size, so each id is written again as often as the number of ids doubles, and a
newcomer reads few files.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from timeline.codecs.truncation_point import CommittedBatch, EarlierBatches, TruncationPoint
from timeline.model.instant_time import InstantTime
from timeline.model.slot import digest_of
from timeline.ports.storage import ObjectMissingError, Storage
from timeline.truncation import read_truncated_batches

__all__ = ["RememberedBatches", "remember_batches"]

_FILE_TIMES_MAX: Final = 16  # so many times what a cut repeats may be in one file


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedBatches:
    """
    What the next boundary repeats, and the earlier ones it names for the rest.

    Batches of commits that completed before ``since`` are forgotten, those of newly collected
    slots as well.
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
    What the boundary after ``former`` takes over.

    Outside: 1 get per earlier file that is merged; all of them while something was withdrawn.

    Args:
        storage: Where the files of boundaries lie.
        former: The last boundary.
        body: The content of its file.
        since: Batches of commits that completed before this time are forgotten.
        withdrawn: Requested times of what was taken away again: their batches are void (RST-1).
        together: A boundary repeats that many before it leaves them where they are.

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
    """With those of the newest files, which are given up, as long as they are no larger."""
    while earlier and earlier[-1].count <= min(len(batches), count_max - len(batches)):
        try:
            batches = (*read_truncated_batches(storage, earlier[-1].number), *batches)
        except ObjectMissingError:
            break  # another cut came, and this one will be refused; or it is lost: stay with what is
        del earlier[-1]
    return batches


def _taken_out(
    storage: Storage, earlier: list[EarlierBatches], withdrawn: frozenset[InstantTime]
) -> tuple[CommittedBatch, ...]:
    """The batches of the files that have a withdrawn one, which are given up."""
    found: tuple[CommittedBatch, ...] = ()
    for one in tuple(earlier):
        with suppress(ObjectMissingError):  # as above
            batches = read_truncated_batches(storage, one.number)
            if not withdrawn.isdisjoint(each.requested_time for each in batches):
                found = (*found, *batches)
                earlier.remove(one)
    return found
