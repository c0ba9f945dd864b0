"""
Slots and the truncation point to bytes and back (SLOT-4, GC-2).

A slot is one line of JSON, then a line with checksum and length. The trailer makes a torn or edited
slot visible; on storages that keep their promises a slot is whole or absent. CRC-32 as of zlib: it
protects against damage, not against forgery.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import asdict, dataclass
from functools import lru_cache
from hmac import compare_digest
from typing import Any, Final

from timeline.errors import ChecksumError, CorruptTableError
from timeline.model.commit_metadata import Access, AccessedFileGroup, FileGroupId, WriteSet
from timeline.model.file_names import parse_instant_name
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import MetadataLogFile, MetadataUpdate
from timeline.model.slot import (
    Batch,
    HashLink,
    Slot,
    SlotKind,
    SlotOwner,
    digest_of,
    least_version_of_slot,
    refuse_newer,
    signature_of,
    unknown_kind_error,
)

_KINDS: Final = frozenset(known.value for known in SlotKind)
_SIGNED: Final = re.compile(rb'(.*),"mac":"([0-9a-f]{64})"\}', re.DOTALL)


def encode_slot(slot: Slot, key: bytes | None = None) -> bytes:
    """
    Return the slot's bytes; equal slots give equal bytes (UNK-1 repeats them).

    Args:
        slot: The slot.
        key: Signs a slot of a table with signing (SLOT-7).
    """
    document = {
        "v": least_version_of_slot(slot),
        "table": slot.table_id,
        "n": slot.number,
        "kind": slot.kind.value,
        "action": slot.action.value,
        "rt": slot.requested_time,
        "ct": None if slot.kind is SlotKind.PLAN else slot.completion_time,
        "own_rt": slot.own_requested_time,
        "base": slot.base,
        "fgs": [
            {
                "partition": item.file_group.partition_path,
                "file_id": item.file_group.file_id,
                "base_rt": item.source_requested_time,
                "writes": item.access.value,
                "files": list(item.files),
                "bytes": item.written_bytes,
            }
            for item in slot.write_set.file_groups
        ],
        "claims": list(slot.write_set.partitions),
        "inserting": list(slot.write_set.inserting),
        "schema": {"before": slot.schema_before, "after": slot.schema_after},
        "batches": [
            {
                "id": batch.batch_id,
                **({"op": batch.operation} if batch.operation else {}),
                "inserted": batch.rows_inserted,
                "updated": batch.rows_updated,
                "deleted": batch.rows_deleted,
            }
            for batch in slot.batches
        ],
        "body": base64.b64encode(slot.body).decode(),
        "plan": base64.b64encode(slot.plan).decode(),
        "deletes": list(slot.deletes),
        **({"floor": slot.floor} if slot.floor else {}),
        **({"foreign": slot.timeline_digest} if slot.timeline_digest else {}),
        **({"metadata": _metadata_document(slot.metadata_update)} if slot.metadata_update else {}),
        "owner": slot.owner.writer_id,
        "host": slot.owner.host,
        "pid": slot.owner.pid,
        "application": slot.owner.application,
        "lock": slot.owner.fencing_token,
        "nonce": slot.nonce,
        **({"seal": _hash_link_document(slot.hash_link)} if slot.hash_link else {}),
    }
    line = json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode()
    if key is not None and slot.hash_link is not None:
        line = line[:-1] + f',"mac":"{signature_of(key, line)}"}}'.encode()
    return line + f"\n{zlib.crc32(line):08x} {len(line)}\n".encode()


def _hash_link_document(seal: HashLink) -> dict[str, str]:
    document = {"before": seal.before, "file": seal.file}
    return {**document, "key": seal.key_id} if seal.key_id else document


def _metadata_document(update: MetadataUpdate) -> dict[str, Any]:
    return {
        "version": update.table_version,
        "partitions": list(update.partitions),
        "files": [
            {
                "partition": one.partition,
                "file_id": one.file_id,
                "name": one.name,
                "bytes": one.size_bytes,
                "records": one.records,
                "base_rt": one.base_time,
                **({"content": base64.b64encode(one.content).decode()} if one.content else {}),
            }
            for one in update.files
        ],
    }


def _metadata_from(document: dict[str, Any] | None) -> MetadataUpdate | None:
    if document is None:
        return None
    return MetadataUpdate(
        table_version=int(document["version"]),
        partitions=tuple(map(str, document["partitions"])),
        files=tuple(
            MetadataLogFile(
                partition=str(item["partition"]),
                file_id=str(item["file_id"]),
                name=str(item["name"]),
                size_bytes=int(item["bytes"]),
                records=int(item["records"]),
                base_time=str(item["base_rt"]),
                content=base64.b64decode(item.get("content", ""), validate=True),
            )
            for item in document["files"]
        ),
    )


def is_signed_by(data: bytes, key: bytes) -> bool:
    """Return whether a slot was signed with this key and has not changed since."""
    line = data.partition(b"\n")[0]
    found = _SIGNED.fullmatch(line)
    if found is None:
        return False
    return compare_digest(signature_of(key, found[1] + b"}"), found[2].decode())


_REMEMBERED_BYTES: Final = 32_768
_BACK: Final = (
    "no writer can commit after it. Restore its file from a backup, or end the slot with 'hoodoo "
    "table end-slot TABLE NUMBER', then check the other slots with 'hoodoo table verify TABLE'"
)


def decode_slot(data: bytes, *, path: str, number: int) -> Slot:
    """
    Read a slot.

    Args:
        data: Its bytes.
        path: Its source, for errors.
        number: The number in its name.

    Raises:
        ChecksumError: The trailer does not fit.
        UnsupportedTableError: It needs a greater engine version, or its kind is unknown (SLOT-3;
            ``newer_engine``).
        CorruptTableError: Any other damage, another number inside than in the name, or names that
            no slot may have (``hostile_slot``).
    """
    if len(data) <= _REMEMBERED_BYTES:
        return _remembered(data, path, number)
    return _decoded(data, path, number)


def _decoded(data: bytes, path: str, number: int) -> Slot:
    line, _, trailer = data.partition(b"\n")
    if trailer != f"{zlib.crc32(line):08x} {len(line)}\n".encode():
        raise ChecksumError(
            f"a commit slot is incomplete or was edited; {_BACK}: {path}", path=path
        )
    try:
        document = json.loads(line)
        least, kind = int(document["v"]), str(document["kind"])
        refuse_newer(least, f"a commit slot of kind {kind[:40]!r}", path=path)
        if kind not in _KINDS:
            raise unknown_kind_error(f"a commit slot of the unknown kind {kind[:40]!r}", path=path)
        slot = _from_document(document, digest_of(data))
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CorruptTableError(
            f"a commit slot cannot be read ({error!r}); {_BACK}: {path}", path=path
        ) from error
    if slot.number != number:
        raise CorruptTableError(
            f"a commit slot was moved: its file name and its number differ; {_BACK}: {path} "
            f"contains number {slot.number}",
            path=path,
        )
    strange = slot.invalid_names()
    if strange:
        raise CorruptTableError(
            "a commit slot names files that a slot must not name, so it is forged or damaged. "
            f"Nothing was changed. End it with 'hoodoo table end-slot TABLE NUMBER': {path} names "
            f"{strange[0][:200]!r}",
            kind="hostile_slot",
            path=path,
            slot_number=number,
            names=[name[:200] for name in strange[:20]],
        )
    return slot


def _hash_link_from(document: dict[str, Any]) -> HashLink | None:
    seal = document.get("seal")
    if seal is None:
        return None
    return HashLink(
        before=str(seal["before"]),
        file=str(seal["file"]),
        key_id=str(seal.get("key", "")),
        signature=str(document.get("mac", "")),
    )


@lru_cache(maxsize=256)
def _remembered(data: bytes, path: str, number: int) -> Slot:
    """Decode a small slot, cached: every handle of the table reads it."""
    return _decoded(data, path, number)


def _from_document(document: dict[str, Any], digest: str) -> Slot:
    return Slot(
        number=int(document["n"]),
        table_id=str(document["table"]),
        kind=SlotKind(document["kind"]),
        action=Action(document["action"]),
        requested_time=str(document["rt"]),
        completion_time=str(document["rt"] if document["ct"] is None else document["ct"]),
        own_requested_time=document["own_rt"],
        base=int(document["base"]),
        nonce=str(document["nonce"]),
        owner=SlotOwner(
            host=str(document["host"]),
            pid=int(document["pid"]),
            writer_id=str(document["owner"]),
            application=str(document["application"]),
            fencing_token=document["lock"],
        ),
        write_set=WriteSet(
            file_groups=tuple(
                AccessedFileGroup(
                    file_group=FileGroupId(item["partition"], item["file_id"]),
                    access=Access(item["writes"]),
                    source_requested_time=item["base_rt"],
                    files=tuple(item["files"]),
                    written_bytes=int(item["bytes"]),
                )
                for item in document["fgs"]
            ),
            partitions=tuple(document["claims"]),
            inserting=tuple(document["inserting"]),
        ),
        schema_before=str(document["schema"]["before"]),
        schema_after=str(document["schema"]["after"]),
        batches=tuple(
            Batch(
                batch_id=item["id"],
                operation=str(item.get("op", "")),
                rows_inserted=int(item["inserted"]),
                rows_updated=int(item["updated"]),
                rows_deleted=int(item["deleted"]),
            )
            for item in document["batches"]
        ),
        body=base64.b64decode(document["body"], validate=True),
        plan=base64.b64decode(document["plan"], validate=True),
        deletes=tuple(document["deletes"]),
        floor=str(document.get("floor", "")),
        timeline_digest=str(document.get("foreign", "")),
        metadata_update=_metadata_from(document.get("metadata")),
        hash_link=_hash_link_from(document),
        least_engine_version=int(document["v"]),
        digest=digest,
    )


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


def encode_truncation_point(truncation_point: TruncationPoint) -> bytes:
    """Return the document; equal truncation points give equal bytes."""
    document = {
        "number": truncation_point.number,
        "time": truncation_point.time,
        "completed": list(truncation_point.completed),
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
            for one in truncation_point.batches
        ],
        **({"digest": truncation_point.digest} if truncation_point.digest else {}),
        **(
            {"earlier": [asdict(one) for one in truncation_point.earlier]}
            if truncation_point.earlier
            else {}
        ),
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
            f"the truncation point of the commit log cannot be read ({error!r}): restore the file "
            f"from a backup: {path}",
            path=path,
        ) from error


def _completed_name(name: object) -> str:
    instant = parse_instant_name(str(name))
    if instant is None or not instant.completed:
        raise ValueError(f"not a completed instant: {name!r}")
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
