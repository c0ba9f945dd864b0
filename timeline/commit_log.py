"""
Read the commit log of a table and take its next slot (SLOT-1, SLOT-2, UNK-*).

The module knows nothing about Hudi's files. It needs one promise of the storage: an atomic
create-if-absent. After an unanswered create it repeats the identical bytes until it can read the
slot. Until then the outcome is unknown, never "failed". It also finds the instants that a restore
took away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from timeline.codecs.commit_log import decode_slot, encode_slot
from timeline.codecs.instant_avro import decode_restore_plan, decode_rollback_plan
from timeline.errors import (
    CorruptTableError,
    MissingFileError,
    OutcomeUnknownError,
    StorageUnavailableError,
    TableReplacedError,
)
from timeline.model.file_names import (
    SLOTS,
    TABLE_DESCRIPTOR,
    check_slot_size,
    parse_instant_name,
    slot_path,
    timeline_path,
)
from timeline.model.instant import WRITE_ACTIONS, Action, Instant
from timeline.model.instant_time import InstantTime, is_between
from timeline.model.metadata_table import METADATA_TIMELINE
from timeline.model.slot import NO_SEALS, Slot, SlotKind, SlotSigning, digest_of
from timeline.ports.ports import (
    AmbiguousWriteError,
    ObjectExistsError,
    ObjectMissingError,
    Ports,
    Storage,
)
from timeline.properties.properties_file import decode_table_descriptor

_NAME = re.compile(r"[0-9]{20}")  # hoodoo writes no other names there
_PROBES_AT_ONCE_MAX = 8  # on a high-latency store


@dataclass(slots=True)
class _KnownChain:
    """
    The part of the commit log that this process has read.

    A restart replaces the whole value. A thread that still reads updates only its old value, and
    the new one ignores that.
    """

    head: int = 0
    is_read: int = 0  # last slot of the last full read; `glance` reads no slots
    is_proven: bool = False  # the head was proven once, even of an empty log
    taken: int = 0  # known to be taken by any writer; may not be read yet


class CommitLog:
    """
    One process's view of a table's commit log. It caches decoded slots, because slots never change.

    Args:
        ports: The ports.
        table_id: The table's identity, None when it has none yet. A slot with another identity
            decides nothing (SLOT-8), unless the table was dropped and created again under this
            writer (F27).
        unknown_ms_max: How long an unanswered create is repeated before it is reported, in ms.
        signing: How this process signs the slots that it takes (SLOT-7).
    """

    def __init__(
        self,
        ports: Ports,
        table_id: str | None,
        *,
        unknown_ms_max: int = 60_000,
        signing: SlotSigning = NO_SEALS,
    ) -> None:
        self._world = ports
        self._table_id = table_id
        self._unknown_ms_max = unknown_ms_max
        self._signing = signing
        self._known: dict[int, Slot] = {}
        self._seen = _KnownChain()
        self._sent: set[InstantTime] = set()  # commits whose writes have not ended
        self._last_own = 0
        self._commits: dict[InstantTime, int] = {}  # requested time -> its commit slot
        self._at_once = 1  # slots that are requested in parallel
        self._shown: dict[int, str] = {}  # files created since the last identity check
        self._encoded: tuple[Slot, bytes] | None = None  # the slot to take next

    def prefetch(self, count: int) -> None:
        """Request up to ``count`` more slots in parallel next time, on a high-latency store."""
        if self._world.storage.capabilities.high_latency:
            self._at_once = max(self._at_once, min(count, _PROBES_AT_ONCE_MAX))

    def head(self) -> int:
        """
        Return the greatest slot number, 0 for an empty log.

        The listing is only a hint, because it may be stale (F13). The absence of the next object
        proves the head. Outside: at most 1 list, then 1 get per new slot and 1 more. After a
        listing, 1 get for the last slot that it named, too.
        """
        seen = self._seen
        if seen.head:
            head = self._new_slots(seen)
        else:
            head = 0 if seen.is_proven and self._is_still_empty() else self._found(seen)
        seen.head = max(seen.head, head)  # another thread may have read more
        seen.is_read = max(seen.is_read, head)
        seen.is_proven = True
        return head

    def rescan(self, *, at_least: int = 0) -> int:
        """
        Forget all known slots, find the head from a new listing, and return it.

        Outside: 1 list, then as ``head``.

        Args:
            at_least: The log is known to reach this number, whatever a stale listing says (F13).
        """
        seen = _KnownChain()
        self._known, self._commits = {}, {}
        head = self._found(seen)
        if head < at_least:
            head = self._proven(seen, at_least)
        seen.head = seen.is_read = head
        seen.is_proven = True
        self._seen = seen
        return head

    def _new_slots(self, seen: _KnownChain) -> int:
        """
        Return the head, starting from the last known one.

        On a high-latency store this also reads the last slots that only ``glance`` listed.
        Validation needs them, and their number shows whether the table is busy.
        """
        glanced = seen.head
        if self._world.storage.capabilities.high_latency and seen.is_proven:
            head = self._proven(seen, max(seen.is_read, glanced - _PROBES_AT_ONCE_MAX))
            if head >= glanced:
                return head
        return self._proven(seen, glanced)  # the listed slots may have been truncated since

    def _found(self, seen: _KnownChain) -> int:
        listed = self._listed()
        for named in sorted({*listed} - {number - 1 for number in listed}, reverse=True):
            head = self._proven(seen, named)
            if not self._is_detached(named):
                return head
        return self._proven(seen, 0)

    def _is_still_empty(self) -> bool:
        """
        Return whether the log still has no slots; on a high-latency store in one round.

        It lists each time. A process that only reads does not stop truncation, so the absence of
        slot 1 alone would mean "empty" forever.
        """
        listed, first = self._world.concurrently(self._listed, partial(self.read, 1))
        return not listed and first is None

    def _proven(self, seen: _KnownChain, known: int) -> int:
        head, at_once = known, max(self._at_once, max(seen.taken, seen.head) - known + 1)
        while True:
            found = self._present(range(head + 1, head + 1 + at_once))
            head += found
            if found < at_once:
                break
            if self._world.storage.capabilities.high_latency:
                at_once = min(2 * at_once, _PROBES_AT_ONCE_MAX)
        if (
            self._world.storage.capabilities.high_latency
        ):  # as many as usually appear between two reads
            usual = max(head - known + 1, (self._at_once + 1) // 2)
            self._at_once = min(usual, _PROBES_AT_ONCE_MAX)
        return head

    def _present(self, numbers: range) -> int:
        """Count how many of these slots exist without a gap, with one request for each."""
        requests = [partial(self.read, number) for number in numbers]
        before = numbers.start - 1
        if (
            self._world.storage.capabilities.high_latency
            and before > 0
            and before not in self._known
        ):
            requests.append(partial(self.read, before))  # a listing named it, and a begin needs it
        read = self._world.concurrently(*requests)[: len(numbers)]
        return next((at for at, slot in enumerate(read) if slot is None), len(read))

    @property
    def is_contended(self) -> bool:
        """Whether others took slots between the last two reads, on a high-latency store."""
        return self._at_once > 1

    @property
    def is_loaded(self) -> bool:
        """Whether the head is known; it is 0 for a log without slots."""
        return self._seen.head > 0 or self._seen.is_proven

    @property
    def known_head(self) -> int:
        """The greatest known slot number; ``head`` asks the storage for a greater one."""
        return self._seen.head

    @property
    def taken_head(self) -> int:
        """As ``known_head``, or a greater number that this process lost and has not read yet."""
        return max(self._seen.head, self._seen.taken)

    def read(self, number: int) -> Slot | None:
        """
        Return a slot, or None when its number is not taken yet.

        Raises:
            ChecksumError, CorruptTableError, UnsupportedTableError: See ``decode_slot``.
            TableReplacedError: The slot belongs to the table that replaced this one.
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
            self._table_id = self._present_id()  # the identity exists before the first slot
        if slot.table_id != self._table_id:
            # A writer that had an earlier table open took the slot after that was replaced
            # (SLOT-8).
            self.assert_same_table()
            self._world.events.emit("slot.of_another_table", number=number, table=slot.table_id)
            slot = slot.as_noop()
        self._know(slot)
        return slot

    def assert_same_table(self) -> None:
        """
        Raise unless the address still has the table that was opened (F27).

        If it has another table, delete the completed files that this process created there
        (SLOT-10). Outside: 1 get, and then the deletes.

        Raises:
            TableReplacedError: The table was dropped, and perhaps another one created.
        """
        shown = dict(self._shown)  # the answer does not cover later files
        if self._table_id is not None and self._present_id() != self._table_id:
            for number, path in shown.items():
                self._world.storage.delete(path)
                self._shown.pop(number, None)
            raise _replaced()
        for number in shown:
            self._shown.pop(number, None)

    def will_create_file(self, slot: Slot) -> None:
        """Note that this process is about to create the completed file of any writer's slot."""
        if slot.file_name is not None:
            self._shown[slot.number] = timeline_path(slot.file_name)

    def shows_same_table(self, slot: Slot, names: Container[str]) -> bool:
        """
        Return whether a listing proves that this slot's table exists.

        The listing must contain the slot's file, and another process must have created it. A file
        that this process created may be all that is left of a dropped table (SLOT-9).
        """
        return slot.number not in self._shown and slot.file_name in names

    @property
    def has_created_files(self) -> bool:
        """Whether this process created files that may be in another table (SLOT-10)."""
        return bool(self._shown)

    def _present_id(self) -> str | None:
        try:
            return decode_table_descriptor(self._world.storage.read(TABLE_DESCRIPTOR)).table_id
        except ObjectMissingError:
            return None

    def newest_known(self, head: int) -> list[Slot]:
        """Return the cached ones of the last few slots up to ``head``, newest first."""
        return self.known_between(max(head - _PROBES_AT_ONCE_MAX, 0), head)[::-1]

    def known_between(self, after: int, last: int) -> list[Slot]:
        """Return the cached ones of the slots ``after < n <= last``, without any request."""
        known = map(self._known.get, range(after + 1, last + 1))
        return [slot for slot in known if slot is not None]

    def body_of(self, requested_time: InstantTime, completion_time: InstantTime) -> bytes | None:
        """Return the content of a commit's completed file from its known slot (SLOT-5)."""
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
        Return the slots ``after < n <= last``.

        Outside: 1 get per slot that is not cached; on a high-latency store a few of them in
        parallel.

        Raises:
            MissingFileError: One of them was truncated since the caller last read the log.
        """
        found = []
        for number in range(after + 1, last + 1):
            if number not in self._known:
                self._read_ahead(range(number, min(last + 1, number + _PROBES_AT_ONCE_MAX)))
            if (slot := self.read(number)) is None:
                raise MissingFileError(
                    "a commit slot is missing: another process archived it a moment ago, or it "
                    "is lost. Try again; if it fails again, run 'hoodoo table verify TABLE': "
                    f"{slot_path(number)}",
                    kind="slot_missing",
                    path=slot_path(number),
                )
            found.append(slot)
        return found

    def newest_first(self, last: int | None = None) -> Iterator[Slot]:
        """
        Yield every slot that is not truncated, from the head (or ``last``) down.

        Outside: 1 get per slot that is not cached.
        """
        for number in range(self.head() if last is None else last, 0, -1):
            if number not in self._known:
                self._read_ahead(range(max(0, number - _PROBES_AT_ONCE_MAX) + 1, number + 1))
            if (slot := self.read(number)) is None:
                return
            yield slot

    def _read_ahead(self, numbers: range) -> None:
        """Cache these slots in one parallel round, on a high-latency store only."""
        if self._world.storage.capabilities.high_latency:
            self._world.concurrently(*(partial(self.read, number) for number in numbers))

    def cached_head(self) -> None:
        """Advance the known head by a listing, without reading slots. Outside: 1 list."""
        seen, listed = self._seen, self._listed()
        head = seen.head
        while head + 1 in listed:
            head += 1
        seen.head = max(seen.head, head)

    def _listed(self) -> frozenset[int]:
        return frozenset(map(int, filter(_NAME.fullmatch, self._world.storage.names(SLOTS))))

    def newest_own_slot(self, last: int) -> Slot | None:
        """Return the newest slot of this table up to ``last``, skipping slots of other tables."""
        for number in range(last, 0, -1):
            slot = self.read(number)
            if slot is None or not self.is_of_another(slot):
                return slot
        return None

    def is_of_another(self, slot: Slot) -> bool:
        """Return whether the slot belongs to another table, so that it decides nothing (SLOT-8)."""
        return slot.table_id != self._table_id

    def _is_detached(self, last: int) -> bool:
        """
        Return whether the listed slots up to this one are outside the log (SLOT-8).

        A writer that had an earlier table open continued from that table's last slot. The log
        begins with a slot of this table and contains only what follows it without a gap.
        """
        for number in range(last, 0, -1):
            try:
                slot = self.read(number)
            except CorruptTableError:
                return False  # the reader of its content raises the error
            if slot is None:
                return number < last
            if slot.table_id == self._table_id:
                return False
        return False

    def restart(self) -> None:
        """Forget all known slots; the next ``head`` starts from a listing."""
        self._known, self._commits, self._seen = {}, {}, _KnownChain()

    def keep_newest(self, count: int) -> None:
        """Forget all but the newest slots once twice ``count`` are cached; each has a body."""
        if len(self._known) > 2 * count:
            self.forget(self._seen.head - count)

    def forget(self, last: int) -> None:
        """Drop the slots up to ``last`` from the cache; a later use reads them again."""
        known, commits = dict(self._known), dict(self._commits)  # another thread may add one
        self._known = {number: slot for number, slot in known.items() if number > last}
        self._commits = {time: at for time, at in commits.items() if at > last}

    def mark_void(self, slot: Slot) -> None:
        """Forget a slot that this process created but that decides nothing (GC-2)."""
        self._sent.discard(slot.requested_time)
        self._known.pop(slot.number, None)

    def encoded(self, slot: Slot) -> bytes:
        """
        Return the bytes of the slot that is taken next.

        Raises:
            InvalidInputError: The slot is too large to be read (``commit_too_large``).
        """
        made = self._encoded
        if made is None or made[0] is not slot:
            made = self._encoded = slot, encode_slot(slot, self._signing.key)
            check_slot_size(len(made[1]))
        return made[1]

    def take(
        self,
        slot: Slot,
        *,
        on_taken: Callable[[], object] = lambda: None,
    ) -> bool:
        """
        Create the slot. Return True if this process took it, False if another writer did.

        Outside: 1 create. If the number is taken 1 get, and after an unknown answer 1 create per
        repetition.

        Args:
            slot: The slot of the next number.
            on_taken: Called when the number is taken; if it reads the log, the get is not needed.

        Raises:
            OutcomeUnknownError: The storage did not answer within the deadline. The instant may be
                committed or not, so delete nothing of it; ``resolve`` decides it (UNK-3).
            InvalidInputError: As ``encoded``. Nothing was sent.
            TableReplacedError: The slot belongs to another table than the log. Nothing was sent.
        """
        if self._table_id not in (None, slot.table_id):
            # The table was dropped while it was opened: it had no identity, and now has another's.
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
                self._world.storage.create(path, data)
                return self._remember(slot)
            except ObjectExistsError as error:
                failure: Exception = error
                # UNK-2: this process's earlier, unanswered request may have created it.
                self._seen.taken = max(self._seen.taken, slot.number)
                on_taken()
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
                    f"the storage did not answer whether this write was committed ({failure}). "
                    f"Run 'hoodoo explain TABLE {slot.instant_time} --resolve' before you repeat "
                    "the write",
                    requested_time=slot.instant_time,
                    slot_number=slot.number,
                    nonce=slot.nonce,
                ) from failure
            clock.sleep_ms(pause)
            pause = min(pause * 2, 1_000)

    @property
    def last_own(self) -> int:
        """The number of the newest slot that this process took, 0 for none."""
        return self._last_own

    def may_have_committed(self, requested_time: InstantTime) -> bool:
        """
        Return whether a commit of this instant was sent and not seen to be lost, until ``ended``.

        The instant may then be committed, however the call that sent it ended.
        """
        return requested_time in self._sent

    def ended(self, requested_time: InstantTime) -> None:
        """Forget an instant whose write has ended, so that a long-lived process frees its entry."""
        self._sent.discard(requested_time)

    def _found_by(self, mine: Slot) -> Slot | None:
        """Return the slot that has the wanted number; None if the storage does not answer."""
        try:
            return self.read(mine.number)
        except StorageUnavailableError:
            return None
        except TableReplacedError:  # the slot belongs to the new table
            self._sent.discard(mine.requested_time)
            raise

    def _remember(self, slot: Slot) -> bool:
        self._know(slot)
        seen, self._last_own = self._seen, slot.number
        seen.head = max(seen.head, slot.number)
        seen.is_read = max(seen.is_read, slot.number)  # the slots before it were read
        return True


def _replaced() -> TableReplacedError:
    return TableReplacedError(
        "the table was dropped while it was open, and the path has another table now; open the "
        f"table again: {TABLE_DESCRIPTOR}",
        path=TABLE_DESCRIPTOR,
    )


# ---- Find the instants and files that a restore removes, from its slot (RST-1)
# A slot of kind ``RESTORE`` ends instants for good, committed ones too. Its action is Hudi's instant
# that documents it: ``restore`` (everything after the instant in ``requested_time``), or
# ``rollback`` (that one instant, the newest). The plan in the slot names the removed instants, so
# every reader of the commit log knows which instants ended.


def restored_away_by(slot: Slot) -> frozenset[InstantTime]:
    """Return the requested times of the instants that a slot removed; none unless a restore."""
    if slot.kind is not SlotKind.RESTORE:
        return frozenset()
    path = f"slot {slot.number}"
    if slot.action is Action.ROLLBACK:
        target = decode_rollback_plan(slot.plan, path=path).instant_to_rollback
        return frozenset() if target is None else frozenset({target.requested_time})
    plan = decode_restore_plan(slot.plan, path=path)
    return frozenset(one.requested_time for one in plan.instants_to_rollback)


def restored_away_in(slots: Iterable[Slot]) -> frozenset[InstantTime]:
    """Return the requested times of the instants that any of the slots removed."""
    return frozenset[InstantTime]().union(*(restored_away_by(slot) for slot in slots))


def ended_times(commit_log: CommitLog) -> frozenset[InstantTime]:
    """Return the requested times that slots ended: rolled back, cancelled or restored away."""
    slots = tuple(commit_log.newest_first())
    ended = (SlotKind.ABORT, SlotKind.CANCEL)
    aborted = frozenset(slot.requested_time for slot in slots if slot.kind in ended)
    return aborted | restored_away_in(slots)


def slots_with_removed_file(slots: Sequence[Slot]) -> frozenset[int]:
    """Return the numbers of the slots whose file a later slot removed."""
    gone: set[int] = set()
    for at, later in enumerate(slots):
        if later.kind in _ENDINGS:
            ended = restored_away_by(later)
            gone.update(slot.number for slot in slots[:at] if _takes_file(later, slot, ended))
    return frozenset(gone)


#: Kinds that remove files of earlier slots, and of which kinds. A restore names its own.
_ENDINGS: Mapping[SlotKind, frozenset[SlotKind]] = {
    SlotKind.CANCEL: frozenset({SlotKind.PLAN}),
    SlotKind.UNSAVEPOINT: frozenset({SlotKind.SAVEPOINT}),
    SlotKind.VOID: frozenset({SlotKind.COMMIT, SlotKind.CLEAN}),
    SlotKind.RESTORE: frozenset(),
}


def _takes_file(later: Slot, slot: Slot, ended: frozenset[InstantTime]) -> bool:
    if later.kind is not SlotKind.RESTORE:
        same = slot.requested_time == later.requested_time
        return same and slot.kind in _ENDINGS[later.kind]
    if slot.kind is SlotKind.SAVEPOINT:
        return False
    if slot.kind is SlotKind.ABORT or slot.action is Action.ROLLBACK:
        return later.action is Action.RESTORE and slot.instant_time > later.requested_time
    return slot.instant_time in ended


def files_removed_by_restore(
    storage: Storage, slot: Slot, folder: str
) -> tuple[list[str], list[str]]:
    """
    List the timeline's files that a restore removes: before the data files, and after them.

    The completed files are removed first, newest completion first, so that readers always see an
    earlier state. The pending files keep the instants known until their data is deleted (fmt 6.3).
    As in Java, a restore also removes the rollbacks after its target, also those that an engine
    began for a restore in which it died. A rollback with an update of the metadata table stays,
    because its update stays (MDT-12). Outside: 1 list, and 1 of the metadata table's timeline if
    there are such rollbacks.
    """
    times = restored_away_by(slot)
    completed: list[tuple[Instant, str]] = []
    pending: list[str] = []
    rollbacks: list[tuple[Instant, str]] = []
    for name in storage.names(folder):
        instant = parse_instant_name(name)
        if instant is None:
            continue
        if instant.action is Action.ROLLBACK:
            after = is_between(instant.requested_time, slot.requested_time, slot.completion_time)
            if after and slot.action is Action.RESTORE:
                rollbacks.append((instant, name))
        elif instant.action in WRITE_ACTIONS and instant.requested_time in times:
            if instant.completed:
                completed.append((instant, name))
            else:
                pending.append(name)
    names = storage.names(METADATA_TIMELINE) if rollbacks else ()
    updates = {
        own.requested_time
        for own in map(parse_instant_name, names)
        if own is not None and own.action is Action.DELTACOMMIT
    }
    pending += [name for one, name in rollbacks if one.requested_time not in updates]
    completed.sort(key=lambda one: one[0].completion_time or "", reverse=True)
    # Newest first; within an instant `.inflight` and `.commit.inflight` before
    # `.commit.requested`.
    pending.sort(key=lambda name: (name[:17], name.endswith("inflight")), reverse=True)
    return [name for _, name in completed], pending
