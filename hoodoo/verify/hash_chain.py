"""Verify the commit log: no slot is missing, and the hash chain is intact (SLOT-1, SLOT-7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hoodoo.verify.records import Report
from timeline.codecs.commit_log import TruncationPoint, decode_slot, is_signed_by
from timeline.commit.apply import not_applied
from timeline.commit_log import slots_with_removed_file
from timeline.context import TableContext
from timeline.errors import InvalidInputError, UnsafeSetupError, counted
from timeline.model.file_names import (
    SLOTS,
    instant_file_name,
    slot_path,
    timeline_path,
    truncation_point_path,
)
from timeline.model.slot import (
    DIGEST,
    NOTHING_BEFORE,
    HashLink,
    Slot,
    SlotKind,
    SlotOwner,
    TamperEvidence,
    digest_of,
    key_id_of,
)
from timeline.ports.ports import ObjectMissingError
from timeline.properties.setting_enums import ForeignWriters
from timeline.snapshot import ActiveTimeline
from timeline.truncation import read_truncation_point, truncated_up_to

# ---- The commit log reaches from the truncation point to the newest hoodoo write (SLOT-1, GC-2)


class _CommitLogReport(Protocol):
    def problem(self, kind: str, path: str, message: str) -> None:
        """Record a problem: the table is not ok."""

    def note(self, kind: str, path: str, message: str) -> None:
        """Record a note: the table is ok."""


def check_commit_log(
    context: TableContext, slots: Sequence[Slot], timeline: ActiveTimeline, report: _CommitLogReport
) -> None:
    """
    Compare both ends of the commit log with the truncation point and the timeline.

    If slots are lost, writers take their numbers a second time and do not recognize a batch that
    was committed. Outside: 1 list, 1 get per write above the newest slot.

    Args:
        context: The table.
        slots: The slots, oldest first.
        timeline: The timeline, listed before the slots were read.
        report: Receives the findings.
    """
    try:
        context.identity.assert_decided_here(context.ports)
    except UnsafeSetupError as error:
        report.note(error.kind, SLOTS, f"slots were not checked: {error.message}")
        return
    collected = truncated_up_to(context.ports.storage)
    first = (
        slots[0].number if slots else collected and collected + 2
    )  # a truncate slot follows its point
    if first - 1 > collected:
        report.problem("slot_missing", slot_path(first - 1), "a slot number is missing")
    limits = context.limits
    sealed = limits.slot_signing.evidence is not TamperEvidence.NONE
    if context.identity.known is None or (sealed and limits.foreign_writers is ForeignWriters.NONE):
        return  # the hash chain covers each instant (SLOT-7)
    own = [slot.newest_time for slot in slots if not context.commit_log.is_of_another(slot)]
    newest = max(own, default="")
    for instant in timeline.completed_writes:
        if (instant.completion_time or "") <= newest:
            continue
        if SlotOwner.from_metadata(context.commits.read(instant).extra_metadata) is not None:
            report.problem(
                "slots_lost",
                slot_path(slots[-1].number + 1 if slots else collected + 1),
                f"{instant} was committed by a slot, and the commit log ends before it: restore "
                "its slots from a backup before any process writes",
            )
            return


# ----------------------------------------------------------------
# Check the hash chain and its signatures, and compare it with a witness (SLOT-7).
#
# The check reads the bytes of each slot again. The verifier's settings say whether each slot needs
# a hash link or a signature. Those that a slot has are always checked. No slot links to the newest
# one, so only a digest noted outside the table proves that no slot was removed from the end.


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """A slot number with the digest of the slot, noted outside the table."""

    number: int
    digest: str

    @staticmethod
    def parse(text: str) -> Witness:
        """
        Parse ``NUMBER:DIGEST``, the form that ``verify`` prints.

        Raises:
            InvalidInputError: The text has another form.
        """
        number, _, digest = text.strip().partition(":")
        if not (number.isascii() and number.isdecimal() and DIGEST.fullmatch(digest)):
            raise InvalidInputError(
                "the head must have the form NUMBER:DIGEST: copy it from an output of 'hoodoo "
                f"table verify': {text[:100]!a}",
                kind="witness",
            )
        return Witness(number=int(number), digest=digest)

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HashChainCoverage:
    """The slots that have hash links (``first`` to ``head``); whether signatures were checked."""

    first: int
    head: Witness
    signed: bool

    def as_document(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"first_slot": self.first, "head": str(self.head), "signed": self.signed}

    @property
    def text(self) -> str:
        """Summarize the coverage in one line for people."""
        how = "are signed" if self.signed else "have a hash chain"
        since = f"slots from {self.first} on {how}"
        return f"{since}; head to save outside of the table: {self.head}"


def verify_hash_chain(
    context: TableContext,
    slots: Sequence[Slot],
    timeline: ActiveTimeline,
    report: Report,
    *,
    witness: Witness | None = None,
) -> HashChainCoverage | None:
    """
    Check the hash link and the signature of each slot.

    Outside: nothing if no slot has a hash link and none is required; else the truncation point
    and 1 get per slot.

    Args:
        context: The table; its limits say what is required, and hold the keys.
        slots: The slots, oldest first.
        timeline: The timeline, listed before the slots were read.
        report: Receives the findings.
        witness: A head that was noted earlier.

    Returns:
        The coverage; None if no slot has a hash link.
    """
    demanded = context.limits.slot_signing.evidence is not TamperEvidence.NONE
    if not demanded and witness is None and not any(slot.hash_link for slot in slots):
        return None
    run = _HashChainCheck(context=context, report=report, demanded=demanded)
    return run.everything(slots, timeline, witness)


@dataclass(kw_only=True)
class _HashChainCheck:
    context: TableContext
    report: Report
    demanded: bool
    other_keys: list[int] = field(default_factory=list)  # numbers of slots signed with unknown keys

    def everything(
        self, known: Sequence[Slot], timeline: ActiveTimeline, witness: Witness | None
    ) -> HashChainCoverage | None:
        truncation_point = read_truncation_point(self.context.ports.storage)
        read = [each for slot in known if (each := self._read(slot.number)) is not None]
        slots = [slot for slot, _ in read]
        digests = {slot.number: slot.digest for slot in slots}
        if witness is not None:
            self._witnessed(witness, digests, truncation_point)
        first = next((slot for slot in slots if slot.hash_link), None)
        if first is None:
            if self.demanded and timeline.completed_times:
                newest = slots[-1].number if slots else truncation_point.number + 1
                self.report.problem("slot_unsealed", slot_path(newest), "no slot has a hash link")
            return None
        self._collected(truncation_point)
        below = truncation_point.digest if slots[0].number == truncation_point.number + 1 else ""
        if slots[0].number == 1:
            below = NOTHING_BEFORE
        for slot, data in read:
            if slot.number - 1 not in digests and slot is not slots[0]:
                below = ""  # the slot before was truncated meanwhile
            if slot.hash_link is not None:
                if not self.context.commit_log.is_of_another(
                    slot
                ):  # SLOT-8: linked to another commit log
                    self._linked(slot, slot.hash_link, below)
                self._signed(slot, slot.hash_link, data)
            elif slot.number > first.number:
                self._unsealed(slot)
            below = slot.digest
        if self.other_keys:
            self._other_keys()
        self._shown(slots, first, timeline)
        return HashChainCoverage(
            first=first.number,
            head=Witness(number=slots[-1].number, digest=slots[-1].digest),
            signed=bool(self.context.limits.slot_signing.keys) and _has_signatures(slots),
        )

    def _read(self, number: int) -> tuple[Slot, bytes] | None:
        path = slot_path(number)
        try:
            data = self.context.ports.storage.read(path)
        except ObjectMissingError:  # truncated meanwhile, or already reported
            return None
        return decode_slot(data, path=path, number=number), data

    def _linked(self, slot: Slot, seal: HashLink, below: str) -> None:
        path = slot_path(slot.number)
        if below and seal.before != below:
            self.report.problem(
                "slot_chain_broken",
                path,
                f"its writer saw another slot {slot.number - 1} than the present one: one of the "
                "two was edited, exchanged or created again",
            )
        if seal.file != digest_of(slot.body):
            self.report.problem(
                "slot_edited",
                path,
                "its hash link names another completed file than the present one",
            )

    def _signed(self, slot: Slot, seal: HashLink, data: bytes) -> None:
        sealing = self.context.limits.slot_signing
        path = slot_path(slot.number)
        if not seal.key_id:
            if self.demanded and sealing.evidence is TamperEvidence.HMAC:
                self.report.problem("slot_unsigned", path, f"taken by {slot.owner.text}")
            return
        if not sealing.keys:
            return
        key = next((key for key in sealing.keys if key_id_of(key) == seal.key_id), None)
        if key is None:
            self.other_keys.append(slot.number)
        elif not is_signed_by(data, key):
            self.report.problem(
                "slot_forged",
                path,
                "it is not the slot that the owner of the key signed: it was edited",
            )

    def _other_keys(self) -> None:
        self.report.problem(
            "slot_other_key",
            slot_path(self.other_keys[0]),
            "another key signs the slots from this one on: pass that key, or find out who signed "
            f"them: {counted(len(self.other_keys), 'slot')}",
        )

    def _unsealed(self, slot: Slot) -> None:
        tell = self.report.problem if self.demanded else self.report.note
        tell(
            "slot_unsealed",
            slot_path(slot.number),
            f"no hash link, although slots before it have one; taken by {slot.owner.text}",
        )

    def _collected(self, truncation_point: TruncationPoint) -> None:
        """Check that a truncate slot holds the bytes of the truncation point (GC-2)."""
        if not truncation_point.number:
            return
        # List the slots again: an archiver may have truncated since. A truncate slot has a greater
        # number than its truncation point.
        cuts = [
            one for one in self.context.commit_log.newest_first() if one.kind is SlotKind.TRUNCATE
        ]
        path = truncation_point_path(truncation_point.number)
        try:
            data = self.context.ports.storage.read(path)
        except ObjectMissingError:
            return  # a greater truncation point exists by now
        if data not in [slot.body for slot in cuts]:
            self.report.problem(
                "boundary_differs", path, "no truncation recorded these bytes: it was edited"
            )

    def _shown(self, slots: Sequence[Slot], first: Slot, timeline: ActiveTimeline) -> None:
        """Check that each completed instant has a slot, if no other engine writes the table."""
        if self.context.limits.foreign_writers is not ForeignWriters.NONE or not self.demanded:
            return
        self._hidden(slots, first)
        decided = {(slot.instant_time, slot.completion_time) for slot in slots}
        since = first.completion_time
        for instant in timeline.instants:
            time = instant.completion_time or ""
            if time > since and (instant.requested_time, time) not in decided:
                self.report.problem(
                    "instant_without_slot",
                    timeline_path(instant_file_name(instant)),
                    "it is completed, and no slot of the commit log names it: slots were "
                    "removed, or another program created it",
                )

    def _hidden(self, slots: Sequence[Slot], first: Slot) -> None:
        """Check that the instant of each commit slot is completed, on either timeline."""
        now = self.context.active()
        ended = {one.requested_time for one in now.instants if one.completed}
        ended.update(self.context.archived_timeline.times().completions)
        left = not_applied(self.context, slots[-1].number, now)
        gone = slots_with_removed_file(slots)
        for slot in slots:
            if slot.kind is not SlotKind.COMMIT or slot.number < first.number - 1:
                continue
            if slot.number in gone or slot in left or self.context.commit_log.is_of_another(slot):
                continue
            if slot.instant_time not in ended:
                self.report.problem(
                    "slot_without_instant",
                    slot_path(slot.number),
                    "its completed file was removed, and no restore or rollback removed "
                    f"{slot.instant_time}",
                )

    def _witnessed(
        self, witness: Witness, digests: dict[int, str], truncation_point: TruncationPoint
    ) -> None:
        path = slot_path(witness.number)
        found = digests.get(witness.number)
        if witness.number == truncation_point.number:
            found = found or truncation_point.digest or None
        if found == witness.digest:
            return
        if found is not None:
            self.report.problem("witness_differs", path, "it is another slot than the noted one")
        elif witness.number <= truncation_point.number:
            self.report.problem(
                "witness_collected",
                path,
                "it was truncated, so nothing can be compared; note a newer head in time",
            )
        else:
            self.report.problem(
                "chain_truncated", path, "the commit log ends before the noted slot"
            )


def _has_signatures(slots: Sequence[Slot]) -> bool:
    return any(slot.hash_link is not None and slot.hash_link.key_id for slot in slots)
