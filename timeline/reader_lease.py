"""
Reader leases: cleaning leaves the files of a snapshot alone while somebody reads it (RDL-1).

A lease tells the completion time a reader stands at (the range, if it reads changes). It is written first, then the reader
looks at the chain again; a clean takes its slot first, then looks at the leases (CLN-1). So
one of the two always sees the other. A clean's slot tells its *floor*: whoever stands at or
above it needs none of its files. What a clean spares is owed, and deleted by a later one.

Short reads never pay for a lease: it is taken once a read has lasted for ``LONG_READ_MS``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from timeline.active_timeline import ActiveTimeline
from timeline.context import TableContext
from timeline.errors import MissingFileError, SnapshotExpiredError, StorageUnavailableError
from timeline.heartbeat import LEASE_BEATS, is_lease_expired, is_lease_trusted
from timeline.layout import DEFERRED_DELETES, OURS, READERS, deferred_deletes_path, reader_path
from timeline.model.file_names import data_file_time, is_data_file, parse_instant_name
from timeline.model.instant_time import InstantTime, parse_wall_ms
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import Ticker
from timeline.ports.storage import AmbiguousWriteError, Storage
from timeline.restored_away import restored_away_by
from timeline.snapshot import Snapshot
from timeline.truncation import truncated_up_to

__all__ = [
    "LONG_READ_MS",
    "ReaderLease",
    "RegisteredReader",
    "defer_leased_deletes",
    "deferred_deletes",
    "lease_newest",
    "pin",
    "registered_readers",
    "run_deferred_deletes",
]

LONG_READ_MS: Final = 2_000

_ENTRIES_MAX: Final = 10_000
_TRIES: Final = 5
_FOLDERS: Final = frozenset(path.rpartition("/")[2] for path in (READERS, DEFERRED_DELETES))
#: A document that ended meanwhile (``ObjectMissingError`` is a ``LookupError``), or is none of ours.
_GONE_OR_NOT_OURS: Final = (
    *(ArithmeticError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError),
)
_OLD_LEASES: Final = 10  # so many times its own length after its end a lease goes


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredReader:
    """One lease."""

    reader_id: str
    host: str
    pid: int
    application: str
    since_ms: int
    oldest: InstantTime  # it needs every file that was in use at a completion time from here
    newest: InstantTime  # to here
    until_ms: int  # by the storage's clock
    lease_ms: int
    alive: bool

    @property
    def text(self) -> str:
        """One line for people."""
        name = f"{self.application} " if self.application else ""
        return f"{name}(pid {self.pid} on {self.host})"


class ReaderLease:
    """
    The lease of one reading; nothing is written before ``show`` or the first ``beat``.

    One that has ended by the reader's own monotonic clock is never renewed, because a clean
    may have passed it: a new one is taken (HB-3).

    Args:
        context: The table; ``limits.reader_lease_ms`` is how long a lease lasts, 0 for none.
        snapshot: What is read.
        since: Completion time back to which older files are read, too; None for none.
        until: Completion time at which the newest files of it were the newest; None for now.
        held: Whether it is renewed without any sign of use.
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
        self._used_ms = context.world.clock.monotonic_ms()
        self._rests_until_ms = 0
        self._ticker: Ticker | None = None
        self._is_broken = False  # it ended once, by the own clock, and was taken anew

    @property
    def is_unbroken(self) -> bool:
        """Whether it was there all the time since it was taken (HB-3)."""
        now = self._context.world.clock.monotonic_ms()
        trusted = is_lease_trusted(self._shown_ms, now, self._lease_ms)
        return bool(self._path) and trusted and not self._is_broken

    @property
    def newest(self) -> InstantTime:
        """Completion time up to which files are read."""
        return self._newest

    @property
    def is_useful(self) -> bool:
        """Whether anybody would look at it: who never took a slot never cleans."""
        return self._lease_ms > 0 and self._head > 0

    def begin(self) -> None:
        """Renew it in the background from now on; one that was not shown is, in a while."""
        if self.is_useful:
            interval_ms = min(LONG_READ_MS, max(self._lease_ms // LEASE_BEATS, 1))
            self._ticker = self._context.world.executor.every(interval_ms, self.beat)

    def used(self) -> None:
        """The reader went on; a lease without that ends by itself."""
        self._used_ms = self._context.world.clock.monotonic_ms()

    def beat(self) -> None:
        """
        Show or renew when it is time; a reader that may not write goes on without a lease.

        Outside: nothing, or as ``show``.
        """
        now = self._context.world.clock.monotonic_ms()
        if now < self._rests_until_ms:
            return
        try:
            self._beat(now)
        except (StorageUnavailableError, AmbiguousWriteError) as error:
            self._rests_until_ms = now + self._lease_ms // LEASE_BEATS
            self._context.world.events.emit("reader.unleased", why=str(error))

    def _beat(self, now: int) -> None:
        if self._path and not is_lease_trusted(self._shown_ms, now, self._lease_ms):
            self._is_broken = True
            self._give_up()
        if not self._path:
            if self._held or now - self._used_ms <= self._lease_ms:
                self.show()
        elif LEASE_BEATS * (now - self._shown_ms) >= self._lease_ms and (
            self._held or self._used_ms >= self._shown_ms
        ):
            self._write()

    def show(self) -> bool:
        """
        Take the lease.

        Outside: 1 put, the new slots, 1 list.

        Returns:
            Whether no clean is under way that does not see it: then every file of the
            snapshot stays while the lease lasts.
        """
        storage = self._context.world.storage
        self._path = reader_path(self._context.world.ids.nonce())
        self._since_ms = storage.now_ms()
        self._write()
        return self.is_covered()

    def end(self) -> None:
        """The reading ended. Never fails: a lease that stays ends by itself."""
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None
        self._give_up()

    def _give_up(self) -> None:
        path, self._path = self._path, ""
        if path:
            with suppress(StorageUnavailableError, AmbiguousWriteError):
                self._context.world.storage.delete(path)

    def _write(self) -> None:
        world = self._context.world
        started = world.clock.monotonic_ms()
        who = world.ids.identity()
        document = {
            "n": self._head,
            "oldest": self._oldest,
            "newest": self._newest,
            "until": world.storage.now_ms() + self._lease_ms,
            "lease_ms": self._lease_ms,
            "since": self._since_ms,
            "host": who.host,
            "pid": who.pid,
            "application": who.application,
        }
        world.storage.write(self._path, json.dumps(document, sort_keys=True).encode())
        self._shown_ms = started

    def is_covered(self) -> bool:
        """Whether it is sure that nothing takes its files. Outside: as ``is_taken_from``."""
        return self.is_taken_from() is False

    def is_taken_from(self) -> bool | None:
        """
        Whether a slot since the snapshot may take files away that it needs.

        Outside: 1 get; where there are new slots, those and 1 list.

        Returns:
            None where slots of that time are gone, so that they cannot tell.
        """
        chain = self._context.chain
        head = chain.head()
        boundary = 0 if head == self._head else truncated_up_to(self._context.world.storage)
        try:
            # The slot the snapshot ends with may have been settled after the look (PUB-3).
            since = chain.between(max(self._head - 1, boundary), head)
        except MissingFileError:
            boundary = head + 1
        if boundary > self._head:
            chain.restart()  # slots that nobody looked at are gone: anything may have been cleaned
            return None
        return any(_takes_from(slot, self._oldest) for slot in since if not self._came_after(slot))

    def _came_after(self, slot: Slot) -> bool:
        """
        Whether the look came after what the slot takes: it ended, or its instants were not seen.

        A restore unlists what it takes before it deletes a file, and its owner may be dead.
        """
        if slot.file_name in self._shown.file_names:
            return True
        if slot.kind is not SlotKind.RESTORE:
            return False
        seen = {one.requested_time for one in self._shown.completed_writes}
        return seen.isdisjoint(restored_away_by(slot))


def _takes_from(slot: Slot, moment: InstantTime) -> bool:
    """Whether a slot may delete files of who reads what had completed by a moment."""
    if slot.kind is SlotKind.CLEAN:
        return bool(slot.deletes) and moment < _floor(slot)
    return slot.kind is SlotKind.RESTORE


def _floor(slot: Slot) -> InstantTime:
    """A clean that tells none, another engine's or an older release's, may need anything."""
    return slot.floor or slot.completion_time


def pin(context: TableContext, snapshot: Snapshot) -> ReaderLease:
    """
    A lease on a state that was chosen, renewed until its ``end``.

    Raises:
        SnapshotExpiredError: A clean is taking files of it away; nothing is held.
        StorageUnavailableError: The lease could not be written.
    """
    lease = ReaderLease(context, snapshot, held=True)
    if lease.is_useful and not lease.show():
        lease.end()
        raise SnapshotExpiredError(
            "this state is just being cleaned; read a newer one, or keep more commits "
            "(hoodie.clean.commits.retained)"
        )
    lease.begin()
    return lease


def lease_newest(context: TableContext) -> tuple[Snapshot, ReaderLease]:
    """
    The newest state with a lease on it, which is renewed until its ``end``.

    Raises:
        SnapshotExpiredError: Cleaning was faster again and again; nothing is held.
        StorageUnavailableError: The lease could not be written.
    """
    for _ in range(_TRIES):
        snapshot = _restored(context, context.snapshot())
        try:
            return snapshot, pin(context, snapshot)
        except SnapshotExpiredError:
            context.world.events.emit("reader.overtaken", head=snapshot.head)
    raise SnapshotExpiredError(
        f"cleaning overtook this reader {_TRIES} times; keep more commits "
        "(hoodie.clean.commits.retained) or clean less often, then read again",
        attempts=_TRIES,
    )


def _restored(context: TableContext, snapshot: Snapshot) -> Snapshot:
    """
    The state without what a restore takes, whose slot decided it and which took nothing yet.

    Its owner may be dead, and who only reads cannot finish it: it would wait for the next writer.
    """
    top = context.chain.read(snapshot.head) if snapshot.head else None
    if top is None or top.kind is not SlotKind.RESTORE:
        return snapshot
    gone, names = restored_away_by(top), snapshot.active.file_names
    kept = [name for name in names if not _has_file_of(name, gone)]
    return replace(snapshot, active=ActiveTimeline.of(kept))


def _has_file_of(name: str, times: frozenset[InstantTime]) -> bool:
    one = parse_instant_name(name)
    return one is not None and one.completed and one.requested_time in times


def registered_readers(context: TableContext) -> list[RegisteredReader]:
    """Every readable lease, oldest first. Outside: 1 list, 1 get per lease."""
    storage = context.world.storage
    found = []
    for name in storage.names(READERS)[:_ENTRIES_MAX]:
        try:
            document = json.loads(storage.read(f"{READERS}/{name}"))
            found.append(_reader(name.removesuffix(".json"), document, storage.now_ms()))
        except _GONE_OR_NOT_OURS:
            continue  # it ended meanwhile, or is no lease of ours
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


# ---------------------------------------------------------------- what cleaning does with them


def defer_leased_deletes(context: TableContext, clean: Slot) -> tuple[str, ...]:
    """
    What a clean deletes now, with its slot taken; the rest is owed first (CLN-1).

    Outside: 1 list, 1 get per lease; 1 put where a lease spares something.
    """
    spared = frozenset(_needed(clean.deletes, _floor(clean), registered_readers(context)))
    if not spared:
        return clean.deletes
    owed = {"floor": _floor(clean), "paths": sorted(spared)}
    context.world.storage.write(deferred_deletes_path(clean.number), json.dumps(owed).encode())
    context.world.events.emit("cleaning.spared", number=clean.number, files=len(spared))
    return tuple(path for path in clean.deletes if path not in spared)


def _needed(
    paths: Sequence[str], floor: InstantTime, readers: Sequence[RegisteredReader]
) -> list[str]:
    """Those that some live reader may need: it begins below the floor and ends above the file."""
    below = [one.newest for one in readers if one.alive and one.oldest < floor]
    if not below:
        return []
    newest = max(below)
    return [path for path in paths if (data_file_time(path.rpartition("/")[2]) or "") <= newest]


def run_deferred_deletes(context: TableContext) -> int:
    """
    Delete what earlier cleans spared and no lease needs any more, and leases of the long dead.

    A clean's slot allows to delete its files for good, so anybody may. Outside: 1 list; 2 more
    and 1 get per lease where there are any, and the deletes.

    Returns:
        How many files went.
    """
    storage = context.world.storage
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
    What earlier cleans let go and spared for readers; ``run_deferred_deletes`` deletes it.

    No later clean needs to let it go again. Outside: 1 list, 1 get per clean that spared.
    """
    owed = (
        _owed(storage, f"{DEFERRED_DELETES}/{name}") for name in storage.names(DEFERRED_DELETES)
    )
    return frozenset(path for one in owed if one is not None for path in one[1])


def _owed(storage: Storage, path: str) -> tuple[InstantTime, list[str]] | None:
    """Floor and paths of what one clean owes; None when that is gone, or not ours."""
    try:
        document = json.loads(storage.read(path))
        return str(document["floor"]), [str(one) for one in document["paths"]]
    except _GONE_OR_NOT_OURS:
        return None


def _delete_owed(context: TableContext, name: str, readers: Sequence[RegisteredReader]) -> int:
    storage, path = context.world.storage, f"{DEFERRED_DELETES}/{name}"
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
