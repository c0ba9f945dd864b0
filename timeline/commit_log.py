"""
The chain of commit slots: find its head, read it, take the next one (SLOT-1, SLOT-2, UNK-*).

Knows nothing about Hudi files. The one promise it needs from the storage is an atomic
create-if-absent; an unknown answer is resolved by repeating the identical bytes until the
slot shows ours or another's, and until then it is UNKNOWN, never "failed".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from functools import partial

from timeline.codecs.properties import decode_table_descriptor
from timeline.codecs.slot import decode_slot, encode_slot
from timeline.errors import (
    CorruptTableError,
    MissingFileError,
    OutcomeUnknownError,
    StorageUnavailableError,
    TableReplacedError,
    UnsupportedTableError,
)
from timeline.layout import SLOTS, TABLE_DESCRIPTOR, check_slot_size, slot_path, timeline_path
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot, SlotKind, digest_of
from timeline.ports.ports import Ports
from timeline.ports.storage import AmbiguousWriteError, ObjectExistsError, ObjectMissingError

__all__ = ["CommitLog"]

_NAME = re.compile(r"[0-9]{20}")  # anything else in the folder is not ours
_PROBES_AT_ONCE_MAX = 8  # of a store that is far away


@dataclass(slots=True)
class _KnownChain:
    """
    How far a chain was seen to come.

    Looked for anew it is replaced as a whole: a thread that looks meanwhile goes on with its own,
    and what it finds out late does not count for the new one.
    """

    head: int = 0
    looked: int = 0  # the last slot of the last look; above it a glance did not read
    is_looked_for: bool = False  # the head was proven once, of an empty chain, too
    taken: int = 0  # seen to be taken, by whomever; it may not be read yet


class CommitLog:
    """
    One writer's view of a table's chain. Decoded slots are kept, they never change.

    Args:
        world: The ports.
        table_id: The table's identity, None when it has none yet. A slot with another one
            decides nothing (SLOT-8), unless the table was dropped and made again under this
            writer (F27).
        unknown_ms_max: How long an unanswered create is repeated before it is reported.
        key: Signs the sealed slots that are taken here (SLOT-7).
    """

    def __init__(
        self,
        world: Ports,
        table_id: str | None,
        *,
        unknown_ms_max: int = 60_000,
        key: bytes | None = None,
    ) -> None:
        self._world = world
        self._table_id = table_id
        self._unknown_ms_max = unknown_ms_max
        self._key = key
        self._known: dict[int, Slot] = {}
        self._seen = _KnownChain()
        self._sent: set[InstantTime] = set()  # of commits whose writes have not ended
        self._last_own = 0
        self._commits: dict[InstantTime, int] = {}  # requested time -> the slot that published it
        self._at_once = 1  # slots that are looked for side by side
        self._shown: dict[int, str] = {}  # files made here since the identity was asked last
        self._encoded: tuple[Slot, bytes] | None = None  # what is taken next

    def expects(self, count: int) -> None:
        """Look for so many further slots side by side next time, of a storage that is far away."""
        if self._world.storage.capabilities.far:
            self._at_once = max(self._at_once, min(count, _PROBES_AT_ONCE_MAX))

    def head(self) -> int:
        """
        The greatest slot number, 0 for an empty chain.

        The listing is only a hint (it may be stale, F13): the head is proven by the absence
        of the next object. Outside: at most 1 list, then 1 get per new slot and 1 more; of
        the slot that a listing named last, too.
        """
        seen = self._seen
        if seen.head:
            head = self._come(seen)
        else:
            head = 0 if seen.is_looked_for and self._is_still_empty() else self._found(seen)
        seen.head = max(seen.head, head)  # another thread may have seen more
        seen.looked = max(seen.looked, head)
        seen.is_looked_for = True
        return head

    def look_anew(self, *, at_least: int = 0) -> int:
        """
        The head, looked for from a listing again, and all that was seen before is forgotten.

        Outside: 1 list, then as ``head``.

        Args:
            at_least: The chain has come so far for sure, whatever a stale listing shows (F13).
        """
        seen = _KnownChain()
        self._known, self._commits = {}, {}
        head = self._found(seen)
        if head < at_least:
            head = self._proven(seen, at_least)
        seen.head = seen.looked = head
        seen.is_looked_for = True
        self._seen = seen
        return head

    def _come(self, seen: _KnownChain) -> int:
        """
        How far the chain has come since the last look.

        Far away the last few that a glance has seen are read along with those after them: who
        judges needs them, and how many came tells whether the chain is busy.
        """
        glanced = seen.head
        if self._world.storage.capabilities.far and seen.is_looked_for:
            head = self._proven(seen, max(seen.looked, glanced - _PROBES_AT_ONCE_MAX))
            if head >= glanced:
                return head
        return self._proven(seen, glanced)  # what was seen there may have been collected since

    def _found(self, seen: _KnownChain) -> int:
        listed = self._listed()
        for named in sorted({*listed} - {number - 1 for number in listed}, reverse=True):
            head = self._proven(seen, named)
            if not self._is_detached(named):
                return head
        return self._proven(seen, 0)

    def _is_still_empty(self) -> bool:
        """
        Whether a chain without slots has none yet; far away in one round.

        Listed again each time: who only reads keeps no slot from being collected, and the
        absence of the first one alone would tell it for ever that there is none.
        """
        listed, first = self._world.together(self._listed, partial(self.read, 1))
        return not listed and first is None

    def _proven(self, seen: _KnownChain, known: int) -> int:
        head, at_once = known, max(self._at_once, max(seen.taken, seen.head) - known + 1)
        while True:
            found = self._present(range(head + 1, head + 1 + at_once))
            head += found
            if found < at_once:
                break
            if self._world.storage.capabilities.far:
                at_once = min(2 * at_once, _PROBES_AT_ONCE_MAX)
        if self._world.storage.capabilities.far:  # as many as usually come between two looks
            usual = max(head - known + 1, (self._at_once + 1) // 2)
            self._at_once = min(usual, _PROBES_AT_ONCE_MAX)
        return head

    def _present(self, numbers: range) -> int:
        """How many of these slots are there without a gap, each of them looked for."""
        looks = [partial(self.read, number) for number in numbers]
        before = numbers.start - 1
        if self._world.storage.capabilities.far and before > 0 and before not in self._known:
            looks.append(partial(self.read, before))  # a listing named it; who begins asks for it
        read = self._world.together(*looks)[: len(numbers)]
        return next((at for at, slot in enumerate(read) if slot is None), len(read))

    @property
    def is_busy(self) -> bool:
        """Whether others took slots between the last two looks, of a storage that is far away."""
        return self._at_once > 1

    @property
    def has_looked(self) -> bool:
        """Whether a head is known, which is 0 of a chain without slots."""
        return self._seen.head > 0 or self._seen.is_looked_for

    @property
    def known_head(self) -> int:
        """The greatest slot number seen so far; ``head`` looks for a greater one."""
        return self._seen.head

    @property
    def taken_head(self) -> int:
        """As ``known_head``, or a number that this process lost and has not read yet."""
        return max(self._seen.head, self._seen.taken)

    def read(self, number: int) -> Slot | None:
        """
        A slot, or None when that number was not taken yet.

        Raises:
            ChecksumError, CorruptTableError, UnsupportedTableError: See ``decode_slot``.
            TableReplacedError: The slot is of the table that was made in place of this one.
        """
        known = self._known.get(number)
        if known is not None:
            return known
        path = slot_path(number)
        try:
            data = self._world.storage.read(path)
        except ObjectMissingError:
            return None
        slot = decode_slot(data, path=path, number=number)
        if self._table_id is None:
            self._table_id = self._present_id()  # made before the table's first slot
        if slot.table_id != self._table_id:
            # Somebody who had an earlier table open took it while that was replaced (SLOT-8).
            self.assert_same_table()
            self._world.events.emit("slot.of_another_table", number=number, table=slot.table_id)
            slot = slot.as_nothing()
        self._know(slot)
        return slot

    def assert_same_table(self) -> None:
        """
        An address is no identity: what is there now must be the table that was opened (F27).

        If it is not, what showed slots of that one here is taken away (SLOT-10). Outside: 1 get,
        and then the deletes.

        Raises:
            TableReplacedError: The table was dropped, and perhaps another one made.
        """
        shown = dict(self._shown)  # what comes while the answer is under way is not told by it
        if self._table_id is not None and self._present_id() != self._table_id:
            for number, path in shown.items():
                self._world.storage.delete(path)
                self._shown.pop(number, None)
            raise _replaced()
        for number in shown:
            self._shown.pop(number, None)

    def will_show(self, slot: Slot) -> None:
        """This process is about to make the completed file of a slot, its own or another's."""
        if slot.file_name is not None:
            self._shown[slot.number] = timeline_path(slot.file_name)

    def tells_table(self, slot: Slot, names: Container[str]) -> bool:
        """
        Whether a listing shows that the table of this slot is there: its file, not made here.

        A file that this process made may be all there is of a dropped table (SLOT-9).
        """
        return slot.number not in self._shown and slot.file_name in names

    @property
    def has_shown(self) -> bool:
        """Whether files were made that may be in another table (SLOT-10)."""
        return bool(self._shown)

    def _present_id(self) -> str | None:
        try:
            return decode_table_descriptor(self._world.storage.read(TABLE_DESCRIPTOR)).table_id
        except ObjectMissingError:
            return None

    def newest_known(self, head: int) -> list[Slot]:
        """Of the few slots up to ``head`` those that were read, from the newest down."""
        return self.known_between(max(head - _PROBES_AT_ONCE_MAX, 0), head)[::-1]

    def known_between(self, after: int, last: int) -> list[Slot]:
        """Of the slots ``after < n <= last`` those that were read; nothing is asked."""
        known = map(self._known.get, range(after + 1, last + 1))
        return [slot for slot in known if slot is not None]

    def body_of(self, requested_time: InstantTime, completion_time: InstantTime) -> bytes | None:
        """What a known slot says the completed file of a commit has in it (SLOT-5)."""
        slot = self._known.get(self._commits.get(requested_time, 0))
        if slot is None or slot.completion_time != completion_time:
            return None
        return slot.body

    def _know(self, slot: Slot) -> None:
        self._known[slot.number] = slot
        if slot.kind is SlotKind.COMMIT:
            self._commits[slot.requested_time] = slot.number

    def between(self, after: int, last: int) -> list[Slot]:
        """
        The slots ``after < n <= last``.

        Outside: 1 get per slot that was not seen before, far away a few of them at once.

        Raises:
            MissingFileError: One of them was collected since the caller looked last.
        """
        found = []
        for number in range(after + 1, last + 1):
            if number not in self._known:
                self._read_ahead(range(number, min(last + 1, number + _PROBES_AT_ONCE_MAX)))
            if (slot := self.read(number)) is None:
                raise MissingFileError(
                    "a commit slot was archived since this process looked last, or is lost; try "
                    f"again, and run 'hoodoo table verify' when it fails again: {slot_path(number)}",
                    kind="slot_missing",
                    path=slot_path(number),
                )
            found.append(slot)
        return found

    def newest_first(self, last: int | None = None) -> Iterator[Slot]:
        """
        Every slot that was not collected, from the head (or ``last``) down.

        Outside: 1 get per slot that was not seen before.
        """
        for number in range(self.head() if last is None else last, 0, -1):
            if number not in self._known:
                self._read_ahead(range(max(0, number - _PROBES_AT_ONCE_MAX) + 1, number + 1))
            if (slot := self.read(number)) is None:
                return
            yield slot

    def _read_ahead(self, numbers: range) -> None:
        """Far away: these slots in one round, since one after the other each costs a round."""
        if self._world.storage.capabilities.far:
            self._world.together(*(partial(self.read, number) for number in numbers))

    def glance(self) -> None:
        """See how far the chain has come at least, without reading it. Outside: 1 list."""
        seen, listed = self._seen, self._listed()
        head = seen.head
        while head + 1 in listed:
            head += 1
        seen.head = max(seen.head, head)

    def _listed(self) -> frozenset[int]:
        return frozenset(map(int, filter(_NAME.fullmatch, self._world.storage.names(SLOTS))))

    def deciding(self, last: int) -> Slot | None:
        """The newest slot up to ``last`` that is of this table: what others took hides none."""
        for number in range(last, 0, -1):
            slot = self.read(number)
            if slot is None or not self.is_of_another(slot):
                return slot
        return None

    def is_of_another(self, slot: Slot) -> bool:
        """Whether one who had an earlier table open took it, and it decides nothing (SLOT-8)."""
        return slot.table_id != self._table_id

    def _is_detached(self, last: int) -> bool:
        """
        Whether the listed slots up to this one lie beyond the chain (SLOT-8).

        Who had an earlier table open counted on from its last slot. The chain begins with a slot
        of this table, and only what follows without a gap belongs to it.
        """
        for number in range(last, 0, -1):
            try:
                slot = self.read(number)
            except (CorruptTableError, UnsupportedTableError):
                return False  # told to who needs what is in it (SLOT-3)
            if slot is None:
                return number < last
            if slot.table_id == self._table_id:
                return False
        return False

    def restart(self) -> None:
        """Forget what was seen: the head is looked for from a listing again."""
        self._known, self._commits, self._seen = {}, {}, _KnownChain()

    def keep_newest(self, count: int) -> None:
        """Forget all but so many slots, once there are twice as many; each has a commit's body."""
        if len(self._known) > 2 * count:
            self.forget(self._seen.head - count)

    def forget(self, last: int) -> None:
        """Slots up to this number need not be remembered; who asks for one reads it again."""
        known, commits = dict(self._known), dict(self._commits)  # another thread may add one
        self._known = {number: slot for number, slot in known.items() if number > last}
        self._commits = {time: at for time, at in commits.items() if at > last}

    def disown(self, slot: Slot) -> None:
        """A slot created here turned out to decide nothing (GC-2)."""
        self._sent.discard(slot.requested_time)
        self._known.pop(slot.number, None)

    def encoded(self, slot: Slot) -> bytes:
        """
        The bytes of a slot that is taken next.

        Raises:
            InvalidInputError: They are too many to be read (``commit_too_large``).
        """
        made = self._encoded
        if made is None or made[0] is not slot:
            made = self._encoded = slot, encode_slot(slot, self._key)
            check_slot_size(len(made[1]))
        return made[1]

    def take(
        self,
        slot: Slot,
        *,
        look: Callable[[], object] = lambda: None,
        beside: Callable[[], object] = lambda: None,
    ) -> bool:
        """
        Create the slot. Returns True when it is ours, False when another took the number.

        Outside: 1 create; when the number is taken 1 get, and after an unknown answer 1 create
        per repetition.

        Args:
            slot: Of the next number.
            look: Called when the number is taken; one that reads the chain spares the get.
            beside: Called along with each create.

        Raises:
            OutcomeUnknownError: No answer within the deadline. The instant may be published
                or not: nothing of it may be deleted, ``resolve`` finds out (UNK-3).
            InvalidInputError: As ``encoded``. Nothing was sent.
            TableReplacedError: The slot is of another table than the chain. Nothing was sent.
        """
        if self._table_id not in (None, slot.table_id):
            # Opened while a table was dropped: it had no identity, and now another's is there.
            raise _replaced()
        data, self._encoded = self.encoded(slot), None
        slot = replace(slot, digest=digest_of(data))
        path = slot_path(slot.number)
        if slot.kind is SlotKind.COMMIT:
            self._sent.add(slot.requested_time)
        self._table_id = self._table_id or slot.table_id
        clock, pause = self._world.clock, 10
        started = clock.monotonic_ms()
        while True:
            try:
                self._world.together(partial(self._world.storage.create, path, data), beside)
                return self._remember(slot)
            except ObjectExistsError as error:
                failure: Exception = error
                # UNK-2: our own earlier, unanswered request may have made it.
                self._seen.taken = max(self._seen.taken, slot.number)
                look()
                found = self._found_by(slot)
                if found is not None and found.nonce == slot.nonce:
                    return self._remember(slot)
                if found is not None:
                    self._sent.discard(slot.requested_time)
                    return False
            except (AmbiguousWriteError, StorageUnavailableError) as error:
                failure = error
                self._world.events.emit("slot.unknown", number=slot.number, rt=slot.requested_time)
            if clock.monotonic_ms() - started > self._unknown_ms_max:
                raise OutcomeUnknownError(
                    f"nobody knows whether this write was published ({failure}); run "
                    f"'hoodoo explain' on instant {slot.instant_time} before you repeat it",
                    requested_time=slot.instant_time,
                    slot_number=slot.number,
                    nonce=slot.nonce,
                ) from failure
            clock.sleep_ms(pause)
            pause = min(pause * 2, 1_000)

    @property
    def last_own(self) -> int:
        """Number of the newest slot this process took here, 0 for none."""
        return self._last_own

    def may_hold(self, requested_time: InstantTime) -> bool:
        """
        Whether a commit of this instant was sent by this process and not seen lost, till ``ended``.

        Then the instant may be published, however the call that sent it has ended.
        """
        return requested_time in self._sent

    def ended(self, requested_time: InstantTime) -> None:
        """Who wrote this instant asks ``may_hold`` no more: a process that lives on forgets it."""
        self._sent.discard(requested_time)

    def _found_by(self, mine: Slot) -> Slot | None:
        """Who has the number that we wanted; None where the storage does not tell."""
        try:
            return self.read(mine.number)
        except StorageUnavailableError:
            return None
        except TableReplacedError:  # one of the new table
            self._sent.discard(mine.requested_time)
            raise

    def _remember(self, slot: Slot) -> bool:
        self._know(slot)
        seen, self._last_own = self._seen, slot.number
        seen.head = max(seen.head, slot.number)
        seen.looked = max(seen.looked, slot.number)  # it was looked at before
        return True


def _replaced() -> TableReplacedError:
    return TableReplacedError(
        "the table was dropped while this handle was open, and what is there now is "
        f"another one; open it again: {TABLE_DESCRIPTOR}",
        path=TABLE_DESCRIPTOR,
    )
