"""
Reader leases keep the files of a snapshot from cleaning while a process reads it (RDL-1).

A lease contains the completion time that a reader reads at, or a range for an incremental read.
The reader writes its lease first, then reads the commit log again. A clean takes its slot first,
then reads the leases (CLN-1). So at least one of the two sees the other. A clean's slot contains
its *floor*: a reader at or above it needs none of the clean's files. The clean defers the deletes
of needed files to a later clean.

Short reads pay nothing for this: a read takes a lease only after ``LONG_READ_MS``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from timeline.codecs.instant_avro import decode_clean, decode_clean_plan
from timeline.commit_log import restored_away_by
from timeline.context import TableContext
from timeline.errors import MissingFileError, SnapshotExpiredError, StorageUnavailableError
from timeline.heartbeat import LEASE_BEATS, is_lease_expired, is_lease_trusted
from timeline.model.file_names import (
    DEFERRED_DELETES,
    OURS,
    PROPERTIES,
    READERS,
    data_file_time,
    deferred_deletes_path,
    instant_file_name,
    is_data_file,
    parse_instant_name,
    pending_file_names,
    reader_path,
)
from timeline.model.instant import Instant
from timeline.model.instant_time import InstantTime, parse_wall_ms
from timeline.model.plans import CleanerPlan, CleanMetadata
from timeline.model.slot import Slot, SlotKind, process_text
from timeline.ports.ports import AmbiguousWriteError, ObjectMissingError, Storage, Ticker
from timeline.snapshot import ActiveTimeline, Snapshot
from timeline.truncation import truncated_up_to

LONG_READ_MS: Final = 2_000

_ENTRIES_MAX: Final = 10_000
_TRIES: Final = 5
_FOLDERS: Final = frozenset(path.rpartition("/")[2] for path in (READERS, DEFERRED_DELETES))
#: A document that was deleted meanwhile (``ObjectMissingError`` is a ``LookupError``), or is not
#: hoodoo's.
_GONE_OR_NOT_OURS: Final = (
    *(ArithmeticError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError),
)
_OLD_LEASES: Final = 10  # a lease is deleted this many lengths after its end


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredReader:
    """One lease."""

    reader_id: str
    host: str
    pid: int
    application: str
    since_ms: int
    oldest: InstantTime  # it needs every file in use from this completion time
    newest: InstantTime  # to this one
    until_ms: int  # by the storage's clock
    lease_ms: int
    alive: bool

    @property
    def text(self) -> str:
        """The reader in one line, for messages."""
        return process_text(self.application, self.pid, self.host)


class ReaderLease:
    """
    The lease of one read; it writes nothing before ``show`` or the first ``beat``.

    A lease that ended by the reader's own monotonic clock is never renewed, because a clean may
    have ignored it. The reader takes a new one (HB-3).

    Args:
        context: The table; ``limits.reader_lease_ms`` is how long a lease lasts, 0 for none.
        snapshot: The snapshot that is read.
        since: Completion time from which older files are read, too; None for none.
        until: Completion time at which the newest read files were the newest; None for now.
        held: Renew it even without ``used``.
    """

    def __init__(
        self,
        context: TableContext,
        snapshot: Snapshot,
        *,
        since: InstantTime | None = None,
        until: InstantTime | None = None,
        held: bool = False,
    ) -> None:
        self._context = context
        self._head = snapshot.head
        self._shown = snapshot.active
        self._newest = until or snapshot.as_of or snapshot.newest_completion or ""
        self._oldest = self._newest if since is None else since
        self._lease_ms = context.limits.reader_lease_ms
        self._held = held
        self._path = ""
        self._since_ms = 0
        self._shown_ms = 0
        self._used_ms = context.ports.clock.monotonic_ms()
        self._rests_until_ms = 0
        self._ticker: Ticker | None = None
        self._is_broken = False  # it ended once by the own clock and was taken again

    @property
    def is_valid(self) -> bool:
        """Whether the lease existed without a gap since it was taken (HB-3)."""
        now = self._context.ports.clock.monotonic_ms()
        trusted = is_lease_trusted(self._shown_ms, now, self._lease_ms)
        return bool(self._path) and trusted and not self._is_broken

    @property
    def newest(self) -> InstantTime:
        """The completion time up to which files are read."""
        return self._newest

    @property
    def is_needed(self) -> bool:
        """Whether any clean reads the lease; a table without slots was never cleaned by hoodoo."""
        return self._lease_ms > 0 and self._head > 0

    def begin(self) -> None:
        """Renew the lease in the background from now on; take it after a while if not taken yet."""
        if self.is_needed:
            interval_ms = min(LONG_READ_MS, max(self._lease_ms // LEASE_BEATS, 1))
            self._ticker = self._context.ports.executor.every(interval_ms, self.beat)

    def note_use(self) -> None:
        """Note that the reader still reads; an unused lease ends by itself."""
        self._used_ms = self._context.ports.clock.monotonic_ms()

    def beat(self) -> None:
        """
        Take or renew the lease when it is due; without write access the reader has no lease.

        Outside: nothing, or as ``show``.
        """
        now = self._context.ports.clock.monotonic_ms()
        if now < self._rests_until_ms:
            return
        try:
            self._beat(now)
        except (StorageUnavailableError, AmbiguousWriteError) as error:
            self._rests_until_ms = now + self._lease_ms // LEASE_BEATS
            self._context.ports.events.emit("reader.unleased", why=str(error))

    def _beat(self, now: int) -> None:
        if self._path and not is_lease_trusted(self._shown_ms, now, self._lease_ms):
            self._is_broken = True
            self._give_up()
        if not self._path:
            is_due = self._held or now - self._used_ms <= self._lease_ms
        else:
            is_due = LEASE_BEATS * (now - self._shown_ms) >= self._lease_ms and (
                self._held or self._used_ms >= self._shown_ms
            )
        # A lease of a dropped or moved table would make its folder again.
        if is_due and self._context.ports.storage.stat(PROPERTIES) is not None:
            if self._path:
                self._write()
            else:
                self.acquire()

    def acquire(self) -> bool:
        """
        Take the lease.

        Outside: 1 put, the new slots, 1 list.

        Returns:
            Whether no running clean can have missed the lease. Then every file of the snapshot
            stays while the lease lasts.
        """
        storage = self._context.ports.storage
        self._path = reader_path(self._context.ports.ids.nonce())
        self._since_ms = storage.now_ms()
        self._write()
        return self.has_all_files()

    def end(self) -> None:
        """End the read. Never raises: a lease that cannot be deleted ends by itself."""
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None
        self._give_up()

    def _give_up(self) -> None:
        path, self._path = self._path, ""
        if path:
            with suppress(StorageUnavailableError, AmbiguousWriteError):
                self._context.ports.storage.delete(path)

    def _write(self) -> None:
        ports = self._context.ports
        started = ports.clock.monotonic_ms()
        who = ports.ids.identity()
        document = {
            "n": self._head,
            "oldest": self._oldest,
            "newest": self._newest,
            "until": ports.storage.now_ms() + self._lease_ms,
            "lease_ms": self._lease_ms,
            "since": self._since_ms,
            "host": who.host,
            "pid": who.pid,
            "application": who.application,
        }
        ports.storage.write(self._path, json.dumps(document, sort_keys=True).encode())
        self._shown_ms = started

    def has_all_files(self) -> bool:
        """Return whether no slot can delete its files. Outside: as ``may_lose_files``."""
        return self.may_lose_files() is False

    def may_lose_files(self) -> bool | None:
        """
        Return whether a slot since the snapshot may delete files that this read needs.

        Outside: 1 get; if there are new slots, those and 1 list.

        Returns:
            None if slots since the snapshot were truncated, so that the answer is unknown.
        """
        commit_log = self._context.commit_log
        head = commit_log.head()
        truncation_point = 0 if head == self._head else truncated_up_to(self._context.ports.storage)
        try:
            # The last slot of the snapshot may have been applied after the refresh (PUB-3).
            since = commit_log.between(max(self._head - 1, truncation_point), head)
        except MissingFileError:
            truncation_point = head + 1
        if truncation_point > self._head:
            commit_log.restart()  # unread slots were truncated: any clean may have run
            return None
        return any(
            _takes_from(slot, self._oldest) for slot in since if not self._was_read_after(slot)
        )

    def _was_read_after(self, slot: Slot) -> bool:
        """
        Return whether the snapshot already lacks the files that the slot deletes.

        Then the slot was applied before, or its instants are not in the snapshot. A restore
        removes its instants from the timeline before it deletes a file, and its owner may be dead.
        """
        if slot.file_name in self._shown.file_names:
            return True
        if slot.kind is not SlotKind.RESTORE:
            return False
        seen = {one.requested_time for one in self._shown.completed_writes}
        return seen.isdisjoint(restored_away_by(slot))


def _takes_from(slot: Slot, moment: InstantTime) -> bool:
    """Return whether a slot may delete files that a read at this completion time needs."""
    if slot.kind is SlotKind.CLEAN:
        return bool(slot.deletes) and moment < _floor(slot)
    return slot.kind is SlotKind.RESTORE


def _floor(slot: Slot) -> InstantTime:
    """Return a clean's floor; without one (Java, an older release) it may delete any file."""
    return slot.floor or slot.completion_time


def pin(context: TableContext, snapshot: Snapshot) -> ReaderLease:
    """
    Pin a chosen snapshot: return its lease, renewed until its ``end``.

    Raises:
        SnapshotExpiredError: A clean is deleting its files; no lease is kept.
        StorageUnavailableError: The lease could not be written.
    """
    lease = ReaderLease(context, snapshot, held=True)
    if lease.is_needed and not lease.acquire():
        lease.end()
        raise SnapshotExpiredError(
            "a clean is deleting files of this snapshot: read a newer one, or retain more "
            "commits (hoodie.clean.commits.retained)"
        )
    lease.begin()
    return lease


def lease_newest(context: TableContext) -> tuple[Snapshot, ReaderLease]:
    """
    Pin the newest snapshot: return it and its lease, renewed until its ``end``.

    Raises:
        SnapshotExpiredError: Cleaning was faster several times; no lease is kept.
        StorageUnavailableError: The lease could not be written.
    """
    for _ in range(_TRIES):
        snapshot = _restored(context, context.snapshot())
        try:
            return snapshot, pin(context, snapshot)
        except SnapshotExpiredError:
            context.ports.events.emit("reader.overtaken", head=snapshot.head)
    raise SnapshotExpiredError(
        f"cleans deleted files of this read's snapshot in {_TRIES} attempts: retain more commits "
        "(hoodie.clean.commits.retained) or clean less often, then read again",
        attempts=_TRIES,
    )


def _restored(context: TableContext, snapshot: Snapshot) -> Snapshot:
    """
    Return the snapshot without the instants of a restore that is decided but not applied yet.

    Its owner may be dead, and a process that only reads cannot apply it. Otherwise the read would
    wait for the next writer.
    """
    top = context.commit_log.read(snapshot.head) if snapshot.head else None
    if top is None or top.kind is not SlotKind.RESTORE:
        return snapshot
    gone, names = restored_away_by(top), snapshot.active.file_names
    kept = [name for name in names if not _has_file_of(name, gone)]
    return replace(snapshot, active=ActiveTimeline.of(kept))


def _has_file_of(name: str, times: frozenset[InstantTime]) -> bool:
    one = parse_instant_name(name)
    return one is not None and one.completed and one.requested_time in times


def registered_readers(context: TableContext) -> list[RegisteredReader]:
    """Return every readable lease, oldest first. Outside: 1 list, 1 get per lease."""
    storage = context.ports.storage
    found = []
    for name in storage.names(READERS)[:_ENTRIES_MAX]:
        try:
            document = json.loads(storage.read(f"{READERS}/{name}"))
            found.append(_reader(name.removesuffix(".json"), document, storage.now_ms()))
        except _GONE_OR_NOT_OURS:
            continue  # it ended meanwhile, or is not hoodoo's
    return sorted(found, key=lambda reader: reader.since_ms)


def _reader(reader_id: str, document: dict[str, Any], now_ms: int) -> RegisteredReader:
    return RegisteredReader(
        reader_id=reader_id,
        host=str(document["host"]),
        pid=int(document["pid"]),
        application=str(document["application"]),
        since_ms=parse_wall_ms(document["since"]),
        oldest=str(document["oldest"]),
        newest=str(document["newest"]),
        until_ms=parse_wall_ms(document["until"]),
        lease_ms=int(document["lease_ms"]),
        alive=not is_lease_expired(int(document["until"]), now_ms),
    )


# ---- Deferred deletes


def defer_leased_deletes(context: TableContext, clean: Slot) -> tuple[str, ...]:
    """
    Return the files that a clean deletes now, after it recorded the deferred ones (CLN-1).

    Its slot is already taken. Outside: 1 list, 1 get per lease; 1 put if a lease needs a file.
    """
    spared = frozenset(_needed(clean.deletes, _floor(clean), registered_readers(context)))
    if not spared:
        return clean.deletes
    owed = {"floor": _floor(clean), "paths": sorted(spared)}
    context.ports.storage.write(deferred_deletes_path(clean.number), json.dumps(owed).encode())
    context.ports.events.emit("cleaning.spared", number=clean.number, files=len(spared))
    return tuple(path for path in clean.deletes if path not in spared)


def _needed(
    paths: Sequence[str], floor: InstantTime, readers: Sequence[RegisteredReader]
) -> list[str]:
    """Return the files that a live reader below the floor may need, by its newest time."""
    below = [one.newest for one in readers if one.alive and one.oldest < floor]
    if not below:
        return []
    newest = max(below)
    return [path for path in paths if (data_file_time(path.rpartition("/")[2]) or "") <= newest]


def run_deferred_deletes(context: TableContext) -> int:
    """
    Delete deferred files that no lease needs any more, and leases that ended long ago.

    A clean's slot allows the deletes for good, so any process may do them. Outside: 1 list; if
    there are any 2 more, 1 get per lease, and the deletes.

    Returns:
        How many files were deleted.
    """
    storage = context.ports.storage
    ours = {one.name for one in storage.list(OURS) if one.is_folder}
    if ours.isdisjoint(_FOLDERS):
        return 0
    readers = registered_readers(context)
    now = storage.now_ms()
    for one in readers:
        if now - one.until_ms > _OLD_LEASES * one.lease_ms:
            storage.delete(reader_path(one.reader_id))
    return sum(_delete_owed(context, name, readers) for name in storage.names(DEFERRED_DELETES))


def deferred_deletes(storage: Storage) -> frozenset[str]:
    """
    Return the files that earlier cleans deferred; ``run_deferred_deletes`` deletes them.

    A later clean need not list them again. Outside: 1 list, 1 get per clean with deferred files.
    """
    owed = (
        _owed(storage, f"{DEFERRED_DELETES}/{name}") for name in storage.names(DEFERRED_DELETES)
    )
    return frozenset(path for one in owed if one is not None for path in one[1])


def _owed(storage: Storage, path: str) -> tuple[InstantTime, list[str]] | None:
    """Return floor and paths of one clean's deferred files; None if missing, or not hoodoo's."""
    try:
        document = json.loads(storage.read(path))
        return str(document["floor"]), [str(one) for one in document["paths"]]
    except _GONE_OR_NOT_OURS:
        return None


def _delete_owed(context: TableContext, name: str, readers: Sequence[RegisteredReader]) -> int:
    storage, path = context.ports.storage, f"{DEFERRED_DELETES}/{name}"
    owed = _owed(storage, path)
    if owed is None:
        return 0
    floor, paths = owed
    if _needed(paths, floor, readers):
        return 0
    known = [one for one in paths if is_data_file(one)]  # SEC2
    for one in known:
        storage.delete(one)
    storage.delete(path)
    return len(known)


# ---- Read what a clean on the timeline did or plans to do
# Another engine's clean has no slot, so its files are the only source (CLN-3, RDL-2).


def read_clean(context: TableContext, clean: Instant) -> CleanMetadata | CleanerPlan | None:
    """
    Return the metadata of a clean, or its plan while pending; None if missing. Outside: 1 get.

    Raises:
        CorruptTableError: The file is damaged.
    """
    name = instant_file_name(clean)
    if not clean.completed:
        name = pending_file_names(clean.action, clean.requested_time)[-1]
    path = context.instant_path(name)
    try:
        data = context.ports.storage.read(path)
    except ObjectMissingError:  # archived or rolled back meanwhile
        return None
    if clean.completed:
        return decode_clean(data, path=path)
    return decode_clean_plan(data, path=path)
