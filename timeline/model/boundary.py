"""
The boundary: how far the chain of commit slots was collected, and what was archived with it (GC-2).

A number at or below it never commits again, whoever creates it. What the collected slots
knew and somebody may still ask for, the batch ids, moves into it (BATCH-2). A boundary repeats
the newest of them only; the others stay in the files of earlier boundaries, which it names.
"""

from __future__ import annotations

from dataclasses import dataclass

from timeline.model.slot import Batch
from timeline.model.times import InstantTime

__all__ = ["NO_BOUNDARY", "Boundary", "EarlierBatches", "PublishedBatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBatch:
    """A batch whose slot was collected: its receipt."""

    batch: Batch
    action: str
    requested_time: InstantTime
    completion_time: InstantTime


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierBatches:
    """
    The batches in the file of an earlier boundary, which are not repeated in later ones.

    ``count`` is how many, ``newest`` the greatest completion time among them, ``digest`` that
    of the file.
    """

    number: int
    count: int
    newest: InstantTime
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """
    One cut: slots up to ``number`` go, and these completed instants move to the history.

    ``time`` is the greatest requested or completion time among them and all before them.
    ``completed`` are the names of the completed files, oldest first. ``digest`` is that of the
    slot ``number``, so that the chain above it still shows what it was built upon (SLOT-7).
    ``earlier`` are the boundaries whose files are kept for their batches, oldest first.
    """

    number: int
    time: InstantTime
    completed: tuple[str, ...] = ()
    batches: tuple[PublishedBatch, ...] = ()
    digest: str = ""
    earlier: tuple[EarlierBatches, ...] = ()


NO_BOUNDARY = Boundary(number=0, time="")
