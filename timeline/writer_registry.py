"""
The writer registry lists live writers and checks that their settings agree (REG-1).

Every writing process keeps one small document in it (holes 13 and 14). A new writer compares the
settings that must agree with those of every live writer. It writes its own document and compares
once more, so that one of two simultaneous new writers sees the other. The registry never decides a
commit. It refuses a wrong configuration with a list of the differences.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from timeline.context import TableContext
from timeline.errors import (
    InvalidInputError,
    UnsafeSetupError,
    UnsupportedTableError,
    WriterDisagreementError,
)
from timeline.model.file_names import TABLE_DESCRIPTOR, WRITERS, instant_file_name, timeline_folder
from timeline.model.instant_time import LOCAL, parse_wall_ms
from timeline.model.slot import FIRST_VERSION, process_text, refuse_newer, writer_versions
from timeline.ports.ports import FileStat, Storage, Ticker
from timeline.rules.bucket_ranges import (
    BUCKET_OWNERSHIP_KEY,
    EVERY_BUCKET,
    BucketRanges,
    overlapping_buckets,
)
from timeline.truncation import (
    GRACE_OF_SILENCES,
    keep_low_water_mark_above,
    raise_low_water_mark,
    write_low_water_mark,
)

AGREED_BY: Final[Mapping[str, str]] = {
    "mode": "hoodie.write.concurrency.mode",
    "lock_provider": "hoodie.write.lock.provider",
    "lock_identity": "the server and key that hoodie.write.lock.* names",
    "publish_lock": "hoodoo.publish.lock",
    "foreign_writers": "hoodoo.foreign.writers",
    "failed_writes_policy": "hoodie.clean.failed.writes.policy",
    "heartbeat_expiry_ms": (
        "hoodie.client.heartbeat.interval_in_ms * hoodie.client.heartbeat.tolerable.misses"
    ),
    "index": "hoodie.index.type and hoodie.bucket.index.*",
    "timeline_zone": "the time zone of the process (TZ), as the table's is LOCAL; '' for UTC",
}
"""The option that a user must set, by the name of each agreed value."""

#: Only writers of rows must agree on the index; the table's properties do not contain it.
_AGREED_BY_WRITERS_OF_ROWS: Final = frozenset({"index"})

_LOCK_KEYS = ("lock_provider", "lock_identity")
_ENTRIES_MAX = 10_000
_ZONE_INSTANTS = 4
_QUARTER_MS = 15 * 60_000  # zone offsets are multiples of it
_ZONES_APART_MS = 26 * 3_600_000
_WRITTEN_MS = 10_000  # between a completion time and its file's modification time


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredWriter:
    """One document of the registry."""

    writer_id: str
    host: str
    pid: int
    application: str
    since_ms: int
    agreement: Mapping[str, str]
    buckets: str  # written buckets, ``all``, or "" for services only (OWN-1)
    last_beat_ms: int
    alive: bool  # it beat within the tolerated silence; only a guess
    low_water_mark: int  # low-water mark: it needs the slots above this number (GC-3)
    silent: bool  # for so long that its mark no longer counts (GC-4)
    address: str = ""  # the table's address as it opened it; "" if not given
    file_number: str = ""  # of the identity file on its disk, equal for each path to it
    engine_version: int = FIRST_VERSION
    least_engine_version: int = FIRST_VERSION  # of a concurrent writer (REL-4)

    @property
    def text(self) -> str:
        """The writer in one line, for messages."""
        return process_text(self.application, self.pid, self.host)


@dataclass(slots=True)
class Registration:
    """This process's own entry while it writes."""

    context: TableContext
    ticker: Ticker
    agreement: Mapping[str, str]
    buckets: str

    def widen_buckets(self, buckets: str) -> None:
        """
        Announce the written buckets, once the process does more than services.

        Outside: 2 lists, 1 get per entry and list, 1 put.

        Raises:
            WriterDisagreementError: They overlap those of a live writer, or a setting differs that
                only writers of rows must share.
        """
        context, pin = self.context, self.context.low_water_mark
        refuse_disagreement(context, self.agreement, buckets)
        before, pin.entry = pin.entry, {**(pin.entry or {}), "buckets": buckets}
        raise_low_water_mark(context)
        try:
            refuse_disagreement(context, self.agreement, buckets)
        except (WriterDisagreementError, UnsupportedTableError):
            pin.entry = before
            raise_low_water_mark(context)
            raise
        self.buckets = buckets

    def beat(self) -> None:
        """Show that the writer lives, and which slots it needs."""
        raise_low_water_mark(self.context)

    def unregister(self) -> None:
        """Remove the own entry, because the process writes no more."""
        self.ticker.stop()
        pin = self.context.low_water_mark
        self.context.ports.storage.delete(pin.path)
        pin.entry = None


def registered_writers(context: TableContext, *, but: str = "") -> list[RegisteredWriter]:
    """
    Return every readable entry, oldest beat first. Outside: 1 list, 1 get per entry.

    Entries of another table are left out: a process that had a dropped table open still beats at
    its address.

    Args:
        context: The table.
        but: The id of a writer to leave out; its entry is not read.
    """
    ports, silence = context.ports, context.limits.heartbeat.tolerated_ms
    now, listed = ports.concurrently(ports.storage.now_ms, partial(ports.storage.list, WRITERS))
    others = [one for one in listed[:_ENTRIES_MAX] if one.name != f"{but}.json"]
    known = context.identity.known
    table_id = None if known is None else known.table_id
    reads = (partial(_entry, ports.storage, one, now, silence, table_id) for one in others)
    found = [writer for writer in ports.concurrently(*reads) if writer is not None]
    return sorted(found, key=lambda writer: writer.last_beat_ms)


def _entry(
    storage: Storage, entry: FileStat, now: int, silence: int, table_id: str | None
) -> RegisteredWriter | None:
    try:
        document = json.loads(storage.read(f"{WRITERS}/{entry.name}"))
        writer = _writer(document, entry.modified_ms, now - entry.modified_ms, silence)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None  # it left meanwhile (a LookupError), or is not hoodoo's
    return writer if table_id in (None, document.get("table", table_id)) else None


def forget(
    context: TableContext, writer_id: str, *, force: bool = False, dry_run: bool = False
) -> RegisteredWriter:
    """
    Remove the entry of a crashed process, so that its low-water mark no longer counts.

    The next clean rolls back its pending writes, as always. Outside: 1 list, 1 get per entry, 1
    delete.

    Args:
        context: The table.
        writer_id: As in ``registered_writers``.
        force: Also while it seems alive. If it lives with a delayed request for a file, that file
            may appear after its instant was archived (A3, GC-4).
        dry_run: Change nothing.

    Returns:
        The entry as it was.

    Raises:
        InvalidInputError: There is no such entry, or it seems alive.
    """
    found = {one.writer_id: one for one in registered_writers(context)}
    entry = found.get(writer_id)
    if entry is None:
        raise InvalidInputError(
            f"no writer has this id; 'hoodoo writers TABLE' lists them: {writer_id!r}",
            kind="no_such_writer",
            writer_id=writer_id,
        )
    if entry.alive and not force:
        raise InvalidInputError(
            "the heartbeat of this writer is fresh: end the writer, then wait until it is silent "
            f"for {context.limits.heartbeat.tolerated_ms} ms (pass the writers' --props, which set "
            "this time). If you know that its process has ended, use --force: "
            f"{entry.text}, {writer_id}",
            kind="writer_alive",
            writer_id=writer_id,
        )
    if not dry_run:
        context.ports.storage.delete(f"{WRITERS}/{writer_id}.json")
    return entry


def _writer(
    document: dict[str, Any], beat_ms: int, silent_ms: int, silence: int
) -> RegisteredWriter:
    writer_id = str(document["writer_id"])
    grace_ms = int(document.get("grace_ms", GRACE_OF_SILENCES * silence))
    silence = max(silence, grace_ms // GRACE_OF_SILENCES)  # it may beat at a longer interval
    return RegisteredWriter(
        writer_id=writer_id,
        host=str(document["host"]),
        pid=int(document["pid"]),
        application=str(document["application"]),
        since_ms=parse_wall_ms(document["since_ms"]),
        agreement={str(key): str(value) for key, value in document["agreement"].items()},
        buckets=_readable(str(document.get("buckets", ""))),
        last_beat_ms=beat_ms,
        alive=silent_ms <= silence,
        low_water_mark=int(document.get("pin", 0)),
        silent=silent_ms > grace_ms,
        address=str(document.get("address", "")),
        file_number=str(document.get("file_number", "")),
        engine_version=int(document.get("engine_version", FIRST_VERSION)),
        least_engine_version=int(document.get("least_engine_version", FIRST_VERSION)),
    )


def _readable(buckets: str) -> str:
    """Return the same text; raise ``ValueError`` if it is no list of buckets."""
    return buckets if buckets in ("", EVERY_BUCKET) else str(BucketRanges.parse(buckets))


def register_process(
    context: TableContext,
    agreement: Mapping[str, str],
    buckets: str = "",
    *,
    prove: Callable[[], object] | None = None,
) -> Registration:
    """
    Register this process as a writer.

    Outside: 3 lists, 1 get per entry and list, 1 put, slot probes; the identity if it is new.

    Args:
        context: The table.
        agreement: The settings that must agree among all writers, as texts.
        buckets: The written buckets: its own range, ``EVERY_BUCKET``, or "" for none.
        prove: A check to run before; it raises if it fails.

    Raises:
        WriterDisagreementError: A live writer has other settings, or owns some of the same
            buckets, or works on the table that this one was copied from (``copied_table``).
            Or its release is too old for this process (``older_writer``). Nothing was changed.
        UnsupportedTableError: A live writer needs a newer release than this process has
            (``newer_engine``). Nothing was changed.
    """
    ports, table_id = context.ports, context.table_id
    who = ports.ids.identity()
    compare = partial(_compare, context, agreement, buckets, who.writer_id)
    *_, head = ports.concurrently(prove or _nothing, compare, context.commit_log.rescan)
    pin = context.low_water_mark
    pin.path = f"{WRITERS}/{who.writer_id}.json"
    pin.entry = {
        "writer_id": who.writer_id,
        "host": who.host,
        "pid": who.pid,
        "application": who.application,
        "since_ms": ports.storage.now_ms(),
        "agreement": dict(agreement),
        "buckets": buckets,
        "table": table_id,
        "address": ports.storage.base_uri,
        "file_number": _file_number(ports.storage),
        **writer_versions(),
    }
    written_at_ms = write_low_water_mark(context, head)
    try:
        ports.concurrently(partial(keep_low_water_mark_above, context, written_at_ms), compare)
    except (WriterDisagreementError, UnsupportedTableError):
        ports.storage.delete(pin.path)
        pin.entry = None
        raise
    registration = Registration(context, _NoTicker(), agreement, buckets)
    registration.ticker = ports.executor.every(
        context.limits.heartbeat.interval_ms, registration.beat
    )
    return registration


def warn_other_zone(context: TableContext) -> None:
    """
    Warn if clocks of another time zone than this process's wrote the newest instants.

    Java Hudi is in no registry, so only the modification times of its files can show this. They
    then differ from the instant times by the same whole quarters of an hour. Copied files may do
    so by chance, so this is only a warning. Outside: 2 lists; nothing on a table of zone UTC.
    """
    if context.config.timeline_timezone != LOCAL:
        return
    done = [one for one in context.active().instants if one.completed and not one.legacy]
    newest = sorted(done, key=lambda one: one.completion_time or "")[-_ZONE_INSTANTS:]
    folder = timeline_folder(context.config.timeline_layout_version)
    written_ms = {one.name: one.modified_ms for one in context.ports.storage.list(folder)}
    apart = [
        written_ms[name] - context.zone.wall_ms(one.completion_time or "")
        for one in newest
        if (name := instant_file_name(one)) in written_ms
    ]
    quarters = {round(one / _QUARTER_MS) for one in apart}
    if len(apart) < 2 or len(quarters) != 1 or 0 in quarters:
        return
    by_ms = quarters.pop() * _QUARTER_MS
    if abs(by_ms) <= _ZONES_APART_MS and all(abs(one - by_ms) < _WRITTEN_MS for one in apart):
        context.ports.events.emit(
            "timeline.other_zone_noticed",
            zone=context.zone.name,
            apart_minutes=by_ms // 60_000,
            why="the newest times of this table are in another time zone; run all its writers with "
            "one TZ, or their commits are not in order",
        )


def refuse_disagreement(
    context: TableContext, agreement: Mapping[str, str], buckets: str = ""
) -> None:
    """Raise as ``register_process`` would now, write nothing. Outside: 1 list, 1 get per entry."""
    _compare(context, agreement, buckets, context.ports.ids.identity().writer_id)


def refuse_with_writers(context: TableContext) -> None:
    """
    Refuse an operation while another writer is live. Outside: 1 list, 1 get per entry.

    Raises:
        InvalidInputError: Another writer is live (``writers_at_work``).
    """
    own = context.ports.ids.identity().writer_id
    alive = [one.text for one in registered_writers(context, but=own) if one.alive]
    if alive:
        raise InvalidInputError(
            "a writer of this table is live: end it or let it call table.close(), then repeat: "
            f"{'; '.join(alive)}",
            kind="writers_at_work",
            writers=alive,
        )


def copied_writers(context: TableContext) -> list[RegisteredWriter]:
    """
    Return the entries that were copied with the table's folder; their writers beat elsewhere.

    Outside: 1 stat on a local disk, 1 list, 1 get per entry.
    """
    own = context.ports.ids.identity().writer_id
    return _copied(context, registered_writers(context, but=own))


def reset_copied_table(context: TableContext, *, dry_run: bool = False) -> list[RegisteredWriter]:
    """
    Make a copied table independent: remove the entries of the original's writers.

    Args:
        context: The copy.
        dry_run: Change nothing.

    Returns:
        The writers of the original.

    Raises:
        UnsafeSetupError: A slot store keeps the slots: it would mix those of the two tables.

    Outside: as ``copied_writers``, 1 delete for each entry.
    """
    storage = context.ports.storage
    if storage.capabilities.slots != "storage":
        raise UnsafeSetupError(
            "a slot store decides the commits of this table, and it does not distinguish the "
            "copy from the original: delete .hoodie/.hoodoo in the copy before its first write: "
            f"{storage.capabilities.slots!r}",
            kind="copy_decided_elsewhere",
        )
    found = copied_writers(context)
    for one in found if not dry_run else ():
        storage.delete(f"{WRITERS}/{one.writer_id}.json")
    return found


def _file_number(storage: Storage) -> str:
    """Return the disk's number of the identity file, equal for each path; "" on other storages."""
    if storage.capabilities.local_root is None:
        return ""
    found = storage.stat(TABLE_DESCRIPTOR)
    return "" if found is None else found.version.partition("-")[0]


def _copied(context: TableContext, writers: Sequence[RegisteredWriter]) -> list[RegisteredWriter]:
    storage = context.ports.storage
    others = [one for one in writers if one.address not in ("", storage.base_uri)]
    number = _file_number(storage) if others else ""
    return [one for one in others if not number or one.file_number != number]


def _refuse_copy(context: TableContext, living: Sequence[RegisteredWriter]) -> None:
    copied = _copied(context, living)
    if copied:
        raise WriterDisagreementError(
            "this table is a copy: its writer registry names a writer of the original. Run "
            f"'hoodoo table adopt {context.ports.storage.base_uri}' to use the copy as a separate "
            "table, then 'hoodoo table verify': a copy made during writes may be incomplete: "
            f"{copied[0].text} works on {copied[0].address}",
            kind="copied_table",
            other=copied[0].text,
            address=copied[0].address,
        )


def _nothing() -> None:
    """Check nothing."""


class _NoTicker:
    def stop(self) -> None:
        """Do nothing, because nothing runs yet."""


def _compare(
    context: TableContext, agreement: Mapping[str, str], buckets: str, own_id: str
) -> None:
    others = registered_writers(context, but=own_id)
    if context.low_water_mark.entry is None:  # before this process registers, so only once
        _notice_other_lock(context, agreement, others)
    living = [other for other in others if other.alive]
    _refuse_copy(context, living)
    _refuse_other_releases(context, living)
    for other in living:
        compared = {*agreement, *other.agreement}
        if not (buckets and other.buckets):
            compared -= _AGREED_BY_WRITERS_OF_ROWS
        differences = {
            key: {"mine": agreement.get(key, ""), "theirs": other.agreement.get(key, "")}
            for key in sorted(compared)
            if agreement.get(key, "") != other.agreement.get(key, "")
        }
        if differences:
            listed = "; ".join(
                f"{AGREED_BY.get(key, key)}: mine {pair['mine']!r}, theirs {pair['theirs']!r}"
                for key, pair in differences.items()
            )
            silence = context.limits.heartbeat.tolerated_ms
            raise WriterDisagreementError(
                f"another live writer of this table has other settings: {other.text}. Use the "
                "same properties for both (commands: --props FILE), or end that writer with "
                f"table.close(). If its process was killed, wait until it is silent for {silence} "
                f"ms ('hoodoo writers TABLE' lists them): {listed}",
                other=other.text,
                differences=differences,
            )
    _refuse_overlapping(context, buckets, living)


def _notice_other_lock(
    context: TableContext, agreement: Mapping[str, str], others: Sequence[RegisteredWriter]
) -> None:
    """Emit an event if the newest writer that ended without close() used another lock."""
    ended = [other for other in others if not other.alive]
    listed = "; ".join(
        f"{AGREED_BY[key]}: mine {agreement.get(key, '')!r}, theirs {theirs!r}"
        for key in _LOCK_KEYS
        if ended and (theirs := ended[-1].agreement.get(key, "")) != agreement.get(key, "")
    )
    if listed:
        context.ports.events.emit(
            "writers.other_lock_noticed", writer=ended[-1].text, settings=listed
        )


def _refuse_other_releases(context: TableContext, living: Sequence[RegisteredWriter]) -> None:
    """Raise if this process is too old for a live writer, or a live writer is for it (REL-4)."""
    own = writer_versions()
    for other in living:
        refuse_newer(other.least_engine_version, f"the writer {other.text}", other=other.text)
        if other.engine_version < own["least_engine_version"]:
            raise WriterDisagreementError(
                f"another writer of this table, {other.text}, runs an older release: it has "
                f"engine version {other.engine_version}, and this process (engine version "
                f"{own['engine_version']}) needs engine version {own['least_engine_version']} "
                "there. Upgrade hoodoo in that process, or end it. If it was killed, wait until "
                f"it is silent for {context.limits.heartbeat.tolerated_ms} ms ('hoodoo writers "
                "TABLE' lists them)",
                kind="older_writer",
                other=other.text,
                engine_version=other.engine_version,
                least_engine_version=own["least_engine_version"],
            )


def _refuse_overlapping(
    context: TableContext, buckets: str, living: Sequence[RegisteredWriter]
) -> None:
    """Raise if a live writer shares buckets although one of the two owns them (OWN-1)."""
    for other in living:
        overlap = overlapping_buckets(buckets, other.buckets)
        if overlap:
            silence = context.limits.heartbeat.tolerated_ms
            raise WriterDisagreementError(
                f"another live writer of this table, {other.text}, writes to the same buckets, "
                f"and one of both owns them: give each writer its own {BUCKET_OWNERSHIP_KEY}, or "
                "end that writer with table.close(). If its process was killed, wait until it is "
                f"silent for {silence} ms: mine {buckets!r}, theirs {other.buckets!r}, both {overlap}",
                kind="buckets_met",
                other=other.text,
                differences={BUCKET_OWNERSHIP_KEY: {"mine": buckets, "theirs": other.buckets}},
                buckets=overlap,
            )
