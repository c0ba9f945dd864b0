"""The truncation point: the start of the commit log, and the batch ids that it keeps (GC-2)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from timeline.errors import CorruptTableError
from timeline.model.file_names import parse_instant_name
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Batch

__all__ = [
    "NO_TRUNCATION",
    "CommittedBatch",
    "EarlierBatches",
    "TruncationPoint",
    "decode_truncation_point",
    "encode_truncation_point",
]


# ---- The truncation point (GC-2)
#
# A slot number at or below it never commits again, whichever process creates it. The batch ids of
# the truncated slots, which writers may still ask for, move into it (BATCH-2). A truncation point
# repeats only the newest of them; the others stay in the files of earlier truncation points, which
# it names.


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBatch:
    """A batch whose slot was truncated, with its commit result."""

    batch: Batch
    action: str
    requested_time: InstantTime
    completion_time: InstantTime


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierBatches:
    """
    The batches in the file of an earlier truncation point, which later ones do not repeat.

    ``count`` is their number, ``newest`` their greatest completion time, ``digest`` that of the
    file.
    """

    number: int
    count: int
    newest: InstantTime
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncationPoint:
    """
    One truncation: slots up to ``number`` are deleted, and these instants are archived.

    ``time`` is the greatest requested or completion time among them and all before them.
    ``completed`` are the names of the completed files, oldest first. ``digest`` is that of the slot
    ``number``, so that the hash chain above it still shows its predecessor (SLOT-7). ``earlier``
    are the truncation points whose files are kept for their batches, oldest first.
    """

    number: int
    time: InstantTime
    completed: tuple[str, ...] = ()
    batches: tuple[CommittedBatch, ...] = ()
    digest: str = ""
    earlier: tuple[EarlierBatches, ...] = ()


NO_TRUNCATION = TruncationPoint(number=0, time="")


# ---- The JSON document: body of a truncate slot and the file that it becomes (GC-2)
#
# Names in it become paths, so each must be that of a completed instant (SEC1).


def encode_truncation_point(boundary: TruncationPoint) -> bytes:
    """Return the document; equal truncation points give equal bytes."""
    document = {
        "number": boundary.number,
        "time": boundary.time,
        "completed": list(boundary.completed),
        "batches": [
            {
                "id": one.batch.batch_id,
                **({"op": one.batch.operation} if one.batch.operation else {}),
                "action": one.action,
                "rt": one.requested_time,
                "ct": one.completion_time,
                "inserted": one.batch.rows_inserted,
                "updated": one.batch.rows_updated,
                "deleted": one.batch.rows_deleted,
            }
            for one in boundary.batches
        ],
        **({"digest": boundary.digest} if boundary.digest else {}),
        **({"earlier": [asdict(one) for one in boundary.earlier]} if boundary.earlier else {}),
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode_truncation_point(data: bytes, *, path: str) -> TruncationPoint:
    """
    Read a truncation point.

    Raises:
        CorruptTableError: It is not such a document, or names more than completed instants.
    """
    try:
        document = json.loads(data)
        return TruncationPoint(
            number=int(document["number"]),
            time=str(document["time"]),
            completed=tuple(_completed_name(name) for name in document["completed"]),
            batches=tuple(_batch(one) for one in document["batches"]),
            digest=str(document.get("digest", "")),
            earlier=tuple(_earlier(one) for one in document.get("earlier", ())),
        )
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CorruptTableError(
            f"the boundary of the commit slots cannot be read ({error!r}): {path}", path=path
        ) from error


def _completed_name(name: object) -> str:
    instant = parse_instant_name(str(name))
    if instant is None or not instant.completed:
        raise ValueError(f"no completed instant: {name!r}")
    return str(name)


def _batch(document: dict[str, Any]) -> CommittedBatch:
    return CommittedBatch(
        batch=Batch(
            batch_id=str(document["id"]),
            operation=str(document.get("op", "")),
            rows_inserted=int(document["inserted"]),
            rows_updated=int(document["updated"]),
            rows_deleted=int(document["deleted"]),
        ),
        action=str(document["action"]),
        requested_time=str(document["rt"]),
        completion_time=str(document["ct"]),
    )


def _earlier(document: dict[str, Any]) -> EarlierBatches:
    return EarlierBatches(
        number=int(document["number"]),
        count=int(document["count"]),
        newest=str(document["newest"]),
        digest=str(document["digest"]),
    )
