"""Slots of the commit log, their hash chain, and engine versions (SLOT-1, SLOT-7, REL-1)."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from timeline.errors import CorruptTableError, UnsupportedTableError
from timeline.model.commit_metadata import WriteSet
from timeline.model.file_names import (
    METADATA_TABLE,
    TIMELINE,
    instant_file_name,
    is_data_file,
    parse_instant_name,
)
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import InstantTime, is_instant_time
from timeline.model.metadata_table import METADATA_TIMELINE, MetadataUpdate, is_metadata_log_of

# ---- Hash chain and signing (SLOT-7)
# A slot in the hash chain contains the digests of the slot before it and of its own completed
# file. To change, remove or exchange one slot, an attacker must rewrite every later slot. A digest
# that was recorded elsewhere then shows the change. With a key each slot is signed as well, and
# only holders of the key can write valid slots.

NOTHING_BEFORE: Final = "0" * 64
"""The digest in the first slot, in place of a slot before it."""

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_KEY_ID_PURPOSE: Final = b"hoodoo: which key signs slots"


class TamperEvidence(Enum):
    """What a process adds to the slots that it takes."""

    NONE = "none"
    HASH = "hash"
    HMAC = "hmac"


@dataclass(frozen=True, slots=True, kw_only=True)
class HashLink:
    """
    The hashes and the signature in one slot.

    ``before`` is the digest of the slot before it, ``file`` that of the completed file. ``key_id``
    names the signing key, empty for none. ``signature`` covers the rest of the slot and is known
    once the slot was written.
    """

    before: str
    file: str
    key_id: str = ""
    signature: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSigning:
    """
    How a process signs its slots, and which keys it accepts in verification.

    ``keys`` are known secrets, oldest last: the first signs, all of them verify. They are never
    shown.
    """

    evidence: TamperEvidence = TamperEvidence.NONE
    keys: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def key(self) -> bytes | None:
        """The key that signs the slots of this process; None when they are not signed."""
        return self.keys[0] if self.evidence is TamperEvidence.HMAC else None

    def link(self, before: str, body: bytes) -> HashLink | None:
        """
        Return the hash link of the slot that is taken next; None if this process adds none.

        Args:
            before: Digest of the slot before it, empty for the first one.
            body: The completed file that the slot fixes.
        """
        if self.evidence is TamperEvidence.NONE:
            return None
        return HashLink(
            before=before or NOTHING_BEFORE,
            file=digest_of(body),
            key_id="" if self.key is None else key_id_of(self.key),
        )


NO_SEALS: Final = SlotSigning()


def digest_of(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def signature_of(key: bytes, data: bytes) -> str:
    """Return the HMAC-SHA-256 in hexadecimal."""
    return hmac.new(key, data, hashlib.sha256).hexdigest()


def key_id_of(key: bytes) -> str:
    """Return an id that distinguishes keys and reveals nothing about them."""
    return signature_of(key, _KEY_ID_PURPOSE)[:16]


# ---- Slots
# A slot (SLOT-1, SLOT-4) contains everything that another writer needs to apply it: the exact
# bytes of the completed file, and of a service's plan. So the bytes of the file are a pure
# function of the slot (SLOT-5). Only hoodoo uses slots; Java Hudi neither reads nor needs them.

#: At most this many of the newest slots may not be applied; all before them are (PUB-3).
NOT_APPLIED_MAX = 2


class SlotKind(Enum):
    """The decision of a slot."""

    COMMIT = "commit"
    PLAN = "plan"  # makes the plan of a table service visible
    ABORT = "abort"
    CANCEL = "cancel"  # ends a plan without executing it
    CLEAN = "clean"
    TRUNCATE = "cut"  # archiving moves the truncation point
    SAVEPOINT = "savepoint"
    UNSAVEPOINT = "unsavepoint"
    RESTORE = "restore"
    METADATA = "metadata"  # orders a change of the metadata table against commits
    VOID = "void"  # the commit or clean slot right before it decides nothing (FOR-4, FOR-9)
    NOOP = "noop"


#: Kinds that only remove, or concern no instant of the table, have no file on its timeline.
_FILELESS = frozenset(
    {
        SlotKind.NOOP,
        SlotKind.CANCEL,
        SlotKind.UNSAVEPOINT,
        SlotKind.TRUNCATE,
        SlotKind.METADATA,
        SlotKind.VOID,
    }
)


#: Kinds that delete files of their target on the timeline.
_ENDING = frozenset({SlotKind.UNSAVEPOINT, SlotKind.VOID, SlotKind.NOOP})


def process_text(application: str, pid: int, host: str) -> str:
    """Return a process in one line, for messages."""
    process = f"pid {pid} on {host}"
    return f"{application} ({process})" if application else process


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOwner:
    """The process that took the slot, for reports (SEC6)."""

    host: str
    pid: int
    writer_id: str
    application: str = ""
    fencing_token: int | None = None

    @property
    def text(self) -> str:
        """The owner in one line, for messages."""
        return process_text(self.application, self.pid, self.host)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> SlotOwner | None:
        """Return the owner named in an instant's extra metadata; None if there is none."""
        pid = metadata.get("hoodoo.pid", "")
        if "hoodoo.writer" not in metadata or not pid.isdecimal():
            return None
        return cls(
            host=metadata.get("hoodoo.host", ""),
            pid=int(pid),
            writer_id=metadata["hoodoo.writer"],
            application=metadata.get("hoodoo.application", ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """
    An idempotent batch and its commit result (BATCH-1).

    ``operation`` is the caller's operation, empty in slots without it.
    """

    batch_id: str
    operation: str = ""
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """
    One decision of the commit log.

    ``requested_time`` names the instant that it decides: the committed or planned one, or the
    target of an abort, a cancel or a restore. For an abort and a restore ``own_requested_time``
    names the rollback or restore instant. ``action`` is that of the instant's pending files: a
    completed compaction is committed as ``compaction``, and its file is named ``commit``.

    ``body`` is the completed file, or the requested file of a plan. For ``METADATA`` it is the
    completed file of the metadata table's compaction, and empty if partitions are built or dropped.
    ``plan`` is the requested file of a clean, rollback or restore. ``deletes`` are the
    table-relative files that are deleted before the completed file appears, in this order. A reader of a snapshot at or above ``floor``, a
    completion time, needs none of them (RDL-1). A plan completes nothing, so its completion time
    is its requested time.

    ``foreign``, in mode ``shared``, is a digest of the timeline that the owner read. A slot with
    it decides together with its file (FOR-4, FOR-9). ``metadata_update`` is what the slot adds to the
    metadata table, None if the table has none (MDT-3). ``seal`` is the hash link, which shows later
    edits of the commit log (SLOT-7). ``least_engine_version`` is what its content needs of the
    process that applies it; its kind may need more (REL-2). ``digest`` is that of the slot's own
    bytes, empty until they are known.
    """

    number: int
    table_id: str
    kind: SlotKind
    action: Action
    requested_time: InstantTime
    completion_time: InstantTime
    base: int
    nonce: str
    owner: SlotOwner
    write_set: WriteSet = field(default_factory=WriteSet)
    own_requested_time: InstantTime | None = None
    schema_before: str = ""
    schema_after: str = ""
    batches: tuple[Batch, ...] = ()
    body: bytes = b""
    plan: bytes = b""
    deletes: tuple[str, ...] = ()
    floor: InstantTime = ""  # of a clean
    timeline_digest: str = ""
    metadata_update: MetadataUpdate | None = None
    hash_link: HashLink | None = None
    least_engine_version: int = 1
    digest: str = field(default="", compare=False)

    @property
    def instant_time(self) -> InstantTime:
        """The requested time of the instant whose completed file this slot becomes."""
        return self.own_requested_time or self.requested_time

    @property
    def newest_time(self) -> InstantTime:
        """The greatest time that the slot fixes."""
        return max(self.completion_time, self.instant_time, self.requested_time)

    @property
    def own_action(self) -> Action:
        """The action of the slot's own instant; for an abort not that of its target."""
        return Action.ROLLBACK if self.kind is SlotKind.ABORT else self.action

    def invalid_names(self) -> list[str]:
        """
        Return invalid content: times that are no times, and files that it may not delete.

        A clean deletes data files. A slot that ends an instant deletes that instant's files on the
        timeline (SEC2). No other slot deletes anything.
        """
        times = (self.requested_time, self.completion_time, self.own_requested_time, self.floor)
        found = [time for time in times if time and not is_instant_time(time)]
        if self.metadata_update is not None:
            found += self.metadata_update.invalid_names(self.instant_time)
        may_delete = {SlotKind.CLEAN: is_data_file}.get(self.kind, self._is_file_of_target)
        return found + [path for path in self.deletes if not may_delete(path)]

    def _is_file_of_target(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        if self.kind in _ENDING and is_metadata_log_of(path, self.requested_time):
            return True
        instant = parse_instant_name(name)
        return (
            self.kind in _ENDING
            and folder in (TIMELINE, METADATA_TIMELINE)
            and instant is not None
            and instant.requested_time == self.requested_time
        )

    @property
    def deletes_in_metadata_table(self) -> bool:
        """
        Whether a void slot deletes files that the table's timeline does not show.

        Each process deletes them again until another slot follows (MDT-10). So no next slot of the
        same instant exists before they are gone.
        """
        return self.kind is SlotKind.VOID and any(
            path.startswith(f"{METADATA_TABLE}/") for path in self.deletes
        )

    @property
    def file_name(self) -> str | None:
        """The file that applies it: its completed file, a plan's requested one, else None."""
        if self.kind in _FILELESS:
            return None
        planned = self.kind is SlotKind.PLAN
        return instant_file_name(
            Instant(
                action=self.own_action,
                requested_time=self.instant_time,
                state=State.REQUESTED if planned else State.COMPLETED,
                completion_time=None if planned else self.completion_time,
            )
        )

    def as_noop(self) -> Slot:
        """Return a slot with its number and bytes that decides nothing (SLOT-8)."""
        return replace(
            self,
            kind=SlotKind.NOOP,
            write_set=WriteSet(),
            batches=(),
            body=b"",
            plan=b"",
            deletes=(),
            timeline_digest="",
            metadata_update=None,
            digest=self.digest,
        )


# ---- Engine versions (REL-1 to REL-6)
# A release that writes a new kind of thing raises ``ENGINE_VERSION`` by one and enters the new
# number below for that thing only. Everything else keeps its number, so releases run side by side
# until the new thing is written. A process of a lesser version then refuses (REL-2).

#: What names no version was written by this one (REL-1).
FIRST_VERSION: Final = 1

#: Slots that change the metadata table need it (MDT-3).
METADATA_VERSION: Final = 2

#: The version of this process: it applies whatever needs at most this one.
ENGINE_VERSION: int = METADATA_VERSION

#: By kind of slot. The content of one slot may need more: ``Slot.least_engine_version``.
LEAST_FOR_SLOT: Mapping[SlotKind, int] = {
    SlotKind.COMMIT: 1,
    SlotKind.PLAN: 1,
    SlotKind.ABORT: 1,
    SlotKind.CANCEL: 1,
    SlotKind.CLEAN: 1,
    SlotKind.TRUNCATE: 1,
    SlotKind.METADATA: METADATA_VERSION,
    SlotKind.SAVEPOINT: 1,
    SlotKind.UNSAVEPOINT: 1,
    SlotKind.RESTORE: 1,
    SlotKind.VOID: 1,
    SlotKind.NOOP: 1,
}

#: By action whose requested file is a plan. Hudi's plans of rollbacks and restores have no place
#: for it; they are in a slot, which names it.
LEAST_FOR_PLAN: Mapping[Action, int] = {
    Action.COMPACTION: 1,
    Action.LOGCOMPACTION: 1,
    Action.CLUSTERING: 1,
    Action.CLEAN: 1,
}

#: The least engine version of each writer that runs at the same time as this process.
LEAST_FOR_WRITER: int = 1

#: In the extra metadata of a plan: the least version that may execute it.
LEAST_VERSION_KEY: Final = "hoodoo.least_engine_version"


def least_version_of_slot(slot: Slot) -> int:
    """
    Return the least engine version that may apply a slot.

    A plan's slot needs no less than its plan, because a writer that reads the plan refuses as well.
    A release that does not know ``LEAST_VERSION_KEY`` knows the slot's version (SLOT-3).
    """
    of_plan = LEAST_FOR_PLAN.get(slot.action, 1) if slot.kind is SlotKind.PLAN else 1
    of_metadata = FIRST_VERSION if slot.metadata_update is None else METADATA_VERSION
    return max(slot.least_engine_version, LEAST_FOR_SLOT[slot.kind], of_plan, of_metadata)


def plan_version_entry(action: Action) -> dict[str, str]:
    """Return the entry of a plan's extra metadata that names its least version (REL-3)."""
    return {LEAST_VERSION_KEY: str(LEAST_FOR_PLAN[action])}


def writer_versions() -> dict[str, int]:
    """Return what the registry entry of this process says about versions (REL-4)."""
    return {"engine_version": ENGINE_VERSION, "least_engine_version": LEAST_FOR_WRITER}


def refuse_newer_plan(extra_metadata: Mapping[str, str] | None, *, path: str) -> None:
    """
    Refuse a plan that this process must not execute or reason about (REL-3).

    Raises:
        UnsupportedTableError: It needs a greater version (``newer_engine``).
        CorruptTableError: The named version is no number.
    """
    least = (extra_metadata or {}).get(LEAST_VERSION_KEY, str(FIRST_VERSION))
    if not (least.isascii() and least.isdecimal()):
        raise CorruptTableError(
            f"a plan is damaged, because its {LEAST_VERSION_KEY} is not a number: cancel it with "
            f"'hoodoo services cancel TABLE INSTANT': {least[:40]!r} in {path}",
            path=path,
        )
    refuse_newer(int(least), "the plan of a table service", path=path)


def refuse_newer(least: int, what: str, **fields: Any) -> None:
    """
    Refuse a thing on the table that needs a greater version than this process has (REL-2).

    Args:
        least: The least engine version that may apply it.
        what: The thing, in words.
        **fields: More data of the error; ``path`` is shown.

    Raises:
        UnsupportedTableError: This process is too old (``newer_engine``).
    """
    if least > ENGINE_VERSION:
        raise _newer_engine(least, what, **fields)


def unknown_kind_error(what: str, **fields: Any) -> UnsupportedTableError:
    """Return the error for a thing of a kind that only a later version can know (SLOT-3)."""
    return _newer_engine(ENGINE_VERSION + 1, what, **fields)


def _newer_engine(least: int, what: str, **fields: Any) -> UnsupportedTableError:
    path = f": {fields['path']}" if fields.get("path") else ""
    return UnsupportedTableError(
        f"a newer release works on this table: {what} needs engine version {least}, and this "
        f"process has engine version {ENGINE_VERSION}. Upgrade hoodoo in this process, then "
        f"retry{path}",
        kind="newer_engine",
        engine_version=ENGINE_VERSION,
        least_engine_version=least,
        **fields,
    )
