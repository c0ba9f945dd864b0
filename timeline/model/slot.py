"""One slot of the commit log, and its link in the hash chain (SLOT-1, SLOT-7)."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from timeline.layout import TIMELINE
from timeline.model.file_names import instant_file_name, is_data_file, parse_instant_name
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import InstantTime, is_instant_time
from timeline.model.write_set import WriteSet

__all__ = [
    "DIGEST",
    "NOTHING_BEFORE",
    "NOT_APPLIED_MAX",
    "NO_SEALS",
    "SLOT_LAYOUT",
    "Batch",
    "HashLink",
    "Slot",
    "SlotKind",
    "SlotOwner",
    "SlotSigning",
    "TamperEvidence",
    "digest_of",
    "key_id_of",
    "signature_of",
]

# ------------ Seals of commit slots: what shows that somebody edited the chain afterwards (SLOT-7)
#
# A slot that is sealed tells the digest of the slot before it and of its own completed file.
# Whoever changes, removes or exchanges one has to make every later slot anew; whoever noted the
# digest of one of those elsewhere sees it. With a key each slot is signed as well, and nobody
# without the key can make one anew.

NOTHING_BEFORE: Final = "0" * 64
"""What the first slot of a chain tells as the digest of the one before it."""

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_KEY_ID_PURPOSE: Final = b"hoodoo: which key signs slots"


class TamperEvidence(Enum):
    """What a process adds to the slots it takes."""

    NONE = "none"
    HASH = "hash"
    HMAC = "hmac"


@dataclass(frozen=True, slots=True, kw_only=True)
class HashLink:
    """
    What one slot tells of its surroundings.

    ``before`` is the digest of the slot before it, ``file`` that of the completed file, ``key_id``
    says which key signs; empty for none. ``signature``, known once the slot was written, covers
    all else in the slot.
    """

    before: str
    file: str
    key_id: str = ""
    signature: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSigning:
    """
    How a process seals, and what it expects of a chain it verifies.

    ``keys`` are known secrets, oldest last: the first signs, all of them verify. They are never
    shown.
    """

    evidence: TamperEvidence = TamperEvidence.NONE
    keys: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def key(self) -> bytes | None:
        """What signs the slots of this process; None when they are not signed."""
        return self.keys[0] if self.evidence is TamperEvidence.HMAC else None

    def seal(self, before: str, body: bytes) -> HashLink | None:
        """
        The seal of a slot that is about to be taken; None when this process seals none.

        Args:
            before: Digest of the slot before it, empty for the first one.
            body: The completed file that it fixes.
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
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def signature_of(key: bytes, data: bytes) -> str:
    """HMAC-SHA-256, in hexadecimal."""
    return hmac.new(key, data, hashlib.sha256).hexdigest()


def key_id_of(key: bytes) -> str:
    """Tells keys apart without telling anything about them."""
    return signature_of(key, _KEY_ID_PURPOSE)[:16]


# ----------------------------------------------------------------
# A slot: the numbered, create-once object that fixes the order of publications (SLOT-1, SLOT-4).
#
# A slot holds everything a helper needs to finish what its owner began: the exact bytes of
# the completed file (and of the plan, for upkeep), so that file bytes are a pure function of
# the slot (SLOT-5). Slots are ours alone: Java Hudi neither reads nor needs them.

#: Version of the slot's own layout; a greater one stops writing (SLOT-3).
SLOT_LAYOUT = 1

#: So many of the newest slots may not be settled; all before them are (PUB-3).
NOT_APPLIED_MAX = 2


class SlotKind(Enum):
    """What a slot decides."""

    COMMIT = "commit"
    PLAN = "plan"  # a table service's plan becomes visible
    ABORT = "abort"
    CANCEL = "cancel"  # a plan ends without having been carried out
    CLEAN = "clean"
    CUT = "cut"  # archiving moves its boundary
    SAVEPOINT = "savepoint"
    UNSAVEPOINT = "unsavepoint"
    RESTORE = "restore"
    VOID = "void"  # the commit or clean slot right before it never happened (FOR-4, FOR-9)
    NOOP = "noop"


#: What only takes away, or concerns no instant, leaves no file of its own.
_FILELESS = frozenset(
    {SlotKind.NOOP, SlotKind.CANCEL, SlotKind.UNSAVEPOINT, SlotKind.CUT, SlotKind.VOID}
)


#: What deletes files of its target on the timeline.
_ENDING = frozenset({SlotKind.UNSAVEPOINT, SlotKind.VOID, SlotKind.NOOP})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOwner:
    """Who took the slot, for reports (SEC6)."""

    host: str
    pid: int
    writer_id: str
    application: str = ""
    fencing_token: int | None = None

    @property
    def text(self) -> str:
        """One line for people."""
        name = f"{self.application} " if self.application else ""
        return f"{name}(pid {self.pid} on {self.host})"

    @classmethod
    def told_in(cls, metadata: Mapping[str, str]) -> SlotOwner | None:
        """Who writes an instant, as its extra metadata says; None where it does not say."""
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
    An idempotent batch and its receipt (BATCH-1).

    ``operation`` is the caller's word for the write, empty in slots that do not tell it.
    """

    batch_id: str
    operation: str = ""
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """
    One decision.

    ``requested_time`` names the instant decided about: the published or planned one, or the
    target of an abort, a cancel or a restore. For an abort and a restore ``own_requested_time``
    names the rollback or restore instant. ``action`` is that of the instant's pending files:
    a compaction that completes is published as ``compaction``, its file is named ``commit``.
    ``body`` is the completed file (of a plan its requested file), ``plan`` the requested file of upkeep;
    ``deletes`` are the table-relative files that are removed before the completed file
    appears, in this order; who reads a snapshot at or above ``floor``, a completion time, needs
    none of them (RDL-1). A plan completes nothing: its completion time is its requested time.
    ``foreign``, beside other engines, is a digest of what its owner saw of the timeline; what has
    it decides together with its file (FOR-4, FOR-9). ``seal`` shows later edits of the chain (SLOT-7). ``digest`` is that of the
    slot's own bytes, empty until they are known.
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
    claim: WriteSet = field(default_factory=WriteSet)
    own_requested_time: InstantTime | None = None
    schema_before: str = ""
    schema_after: str = ""
    batches: tuple[Batch, ...] = ()
    body: bytes = b""
    plan: bytes = b""
    deletes: tuple[str, ...] = ()
    floor: InstantTime = ""  # of a clean
    foreign: str = ""
    seal: HashLink | None = None
    digest: str = field(default="", compare=False)

    @property
    def instant_time(self) -> InstantTime:
        """Requested time of the instant whose completed file this slot becomes."""
        return self.own_requested_time or self.requested_time

    @property
    def newest_time(self) -> InstantTime:
        """Greatest time the slot fixes."""
        return max(self.completion_time, self.instant_time, self.requested_time)

    @property
    def own_action(self) -> Action:
        """The action of the slot's own instant; of an abort not its target's."""
        return Action.ROLLBACK if self.kind is SlotKind.ABORT else self.action

    def strange_names(self) -> list[str]:
        """
        What the slot says that no slot may: times that are none, files that it may not delete.

        A clean deletes data files, and what ends an instant deletes that instant's files on the
        timeline (SEC2); no other slot deletes anything.
        """
        times = (self.requested_time, self.completion_time, self.own_requested_time, self.floor)
        found = [time for time in times if time and not is_instant_time(time)]
        may_delete = {SlotKind.CLEAN: is_data_file}.get(self.kind, self._is_file_of_target)
        return found + [path for path in self.deletes if not may_delete(path)]

    def _is_file_of_target(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        instant = parse_instant_name(name)
        return (
            self.kind in _ENDING
            and folder == TIMELINE
            and instant is not None
            and instant.requested_time == self.requested_time
        )

    @property
    def file_name(self) -> str | None:
        """The file that shows it: its completed file, a plan's requested one, else None."""
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

    def as_nothing(self) -> Slot:
        """The number and the bytes of it, which decide nothing (SLOT-8)."""
        return replace(
            self,
            kind=SlotKind.NOOP,
            claim=WriteSet(),
            batches=(),
            body=b"",
            plan=b"",
            deletes=(),
            foreign="",
            digest=self.digest,
        )
