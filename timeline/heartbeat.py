"""Heartbeats: the proof that a pending instant's writer lives (HB-1 to HB-4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from timeline.errors import HeartbeatExpiredError, StorageUnavailableError
from timeline.layout import HEARTBEATS, TIMELINE, heartbeat_path
from timeline.model.instant import Action, State
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import Ports, Ticker
from timeline.ports.storage import AmbiguousWriteError, FileStat, Storage

__all__ = [
    "LEASE_BEATS",
    "Heartbeat",
    "HeartbeatLimits",
    "instants_with_expired_heartbeat",
    "is_heartbeat_expired",
    "is_lease_expired",
    "is_lease_trusted",
    "must_fence_itself",
    "stray_heartbeats",
]

# ---------------------------------------- When a pending instant counts as dead (HB-2, HB-3, HB-4)
#
# Being dead is only a guess: safety never depends on it, because a rollback takes an abort
# slot first. The guess only has to be good enough not to waste live work.

LEASE_BEATS: Final = 3
"""So many times a reader's lease is renewed before it would end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatLimits:
    """How often a writer beats and how many beats others tolerate to miss."""

    interval_ms: int = 60_000
    misses: int = 2

    @property
    def tolerated_ms(self) -> int:
        """A silence longer than this counts as death (Hudi's rule: interval x misses)."""
        return self.interval_ms * self.misses


def is_heartbeat_expired(
    last_beat_ms: int | None, storage_now_ms: int, limits: HeartbeatLimits
) -> bool:
    """
    Judge another writer.

    Args:
        last_beat_ms: Modification time of its heartbeat file, None when there is none.
        storage_now_ms: The same storage's clock now; never this host's wall clock (F12).
        limits: What is tolerated.
    """
    return last_beat_ms is None or storage_now_ms - last_beat_ms > limits.tolerated_ms


def must_fence_itself(
    last_beat_monotonic_ms: int, monotonic_now_ms: int, limits: HeartbeatLimits
) -> bool:
    """
    Judge oneself: after a gap others may have started a rollback, for good (HB-3, hole 5).

    Both times are the own monotonic clock, in ms.
    """
    return monotonic_now_ms - last_beat_monotonic_ms > limits.tolerated_ms


def is_lease_expired(until_ms: int, storage_now_ms: int) -> bool:
    """Judge a reader's lease; both times are the storage's clock (RDL-1)."""
    return until_ms < storage_now_ms


def is_lease_trusted(shown_monotonic_ms: int, monotonic_now_ms: int, lease_ms: int) -> bool:
    """
    Judge the own lease, by the own monotonic clock.

    A third of it is left for a storage whose clock is only guessed.
    """
    return LEASE_BEATS * (monotonic_now_ms - shown_monotonic_ms) <= (LEASE_BEATS - 1) * lease_ms


# --------------- Heartbeats: the proof that a pending instant's writer lives (HB-1 to HB-4, fmt 1)
#
# The file is Java Hudi's: ``.hoodie/.heartbeat/<requested time>``, empty, rewritten with
# every beat; others look at its modification time. The writer judges itself by its own
# monotonic clock: after too long a gap it is fenced for good and never beats again, so a
# paused process cannot bring a heartbeat back to life that others already buried (hole 5).

# Of writes; the requested file of a plan waits for whoever executes it.
_BEGUN = tuple(
    f".{action.value}.{State.REQUESTED.value}"
    for action in (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT)
)


class Heartbeat:
    """The beating of one pending instant; create it by ``start``."""

    def __init__(self, world: Ports, requested_time: InstantTime, limits: HeartbeatLimits) -> None:
        self._world = world
        self._requested_time = requested_time
        self._limits = limits
        self._last_ms = world.clock.monotonic_ms()
        self._fenced = False
        self._ticker: Ticker | None = None

    @staticmethod
    def start(world: Ports, requested_time: InstantTime, limits: HeartbeatLimits) -> Heartbeat:
        """
        Beat once now and then every interval in the background. Outside: 1 put.

        Raises:
            StorageUnavailableError: The first beat could not be written.
        """
        beating = Heartbeat(world, requested_time, limits)
        world.storage.write(heartbeat_path(requested_time), b"")
        beating._last_ms = world.clock.monotonic_ms()
        beating._ticker = world.executor.every(limits.interval_ms, beating.beat)
        return beating

    def beat(self) -> None:
        """One beat; a failed one is an event, the next may succeed (F25)."""
        if self.fenced():
            return
        try:
            self._world.storage.write(heartbeat_path(self._requested_time), b"")
        except (StorageUnavailableError, AmbiguousWriteError) as error:
            self._world.events.emit("heartbeat.failed", rt=self._requested_time, why=str(error))
            return
        if not self.fenced():
            self._last_ms = self._world.clock.monotonic_ms()

    def fenced(self) -> bool:
        """Whether a gap above the tolerated silence was ever seen (HB-3)."""
        now = self._world.clock.monotonic_ms()
        if not self._fenced and must_fence_itself(self._last_ms, now, self._limits):
            self._fenced = True
            self._world.events.emit("heartbeat.fenced", rt=self._requested_time)
        return self._fenced

    def check(self) -> None:
        """
        Pass while others must take this writer for alive.

        Raises:
            HeartbeatExpiredError: It paused for too long; write again as a new instant.
        """
        if self.fenced():
            raise HeartbeatExpiredError(
                "this writer paused longer than its heartbeat allows "
                f"({self._limits.tolerated_ms} ms), so others may have rolled it back; write "
                f"again: {self._requested_time}",
                requested_time=self._requested_time,
                tolerated_ms=self._limits.tolerated_ms,
            )

    def stop(self, *, remove: bool = True) -> None:
        """
        End the beating; ``remove`` takes the file away (a finished instant needs none).

        Never fails: what the instant came to must not be hidden by a heartbeat that could not
        be removed; the next clean takes it for a stray.
        """
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None
        if not remove:
            return
        try:
            self._world.storage.delete(heartbeat_path(self._requested_time))
        except (StorageUnavailableError, AmbiguousWriteError) as error:
            self._world.events.emit("heartbeat.left", rt=self._requested_time, why=str(error))


def instants_with_expired_heartbeat(
    storage: Storage, pending: tuple[InstantTime, ...], limits: HeartbeatLimits
) -> tuple[InstantTime, ...]:
    """
    Those of the pending requested times whose heartbeat is missing or too old (HB-2).

    Outside: 1 list; far away 1 more when one is missing. Age is measured against the storage's
    own clock.
    """
    if not pending:
        return ()
    beats = {entry.name: entry.modified_ms for entry in storage.list(HEARTBEATS)}
    if storage.capabilities.far and not beats.keys() >= set(pending):
        beats = {**_requested_at(storage), **beats}
    now = storage.now_ms()
    return tuple(time for time in pending if is_heartbeat_expired(beats.get(time), now, limits))


def _requested_at(storage: Storage) -> dict[InstantTime, int]:
    """
    When each write that shows nothing but its requested file was begun.

    Far away that file is on its way together with the first beat, and stands for it (BEG-2).
    """
    found: dict[InstantTime, list[FileStat]] = {}
    for entry in storage.list(TIMELINE):
        found.setdefault(entry.name.partition(".")[0], []).append(entry)
    return {
        time: files[0].modified_ms
        for time, files in found.items()
        if len(files) == 1 and files[0].name.endswith(_BEGUN)
    }


def stray_heartbeats(
    storage: Storage, pending: frozenset[InstantTime], limits: HeartbeatLimits
) -> tuple[InstantTime, ...]:
    """Heartbeat files without a pending instant that nobody renewed for the tolerated silence."""
    now = storage.now_ms()
    return tuple(
        entry.name
        for entry in storage.list(HEARTBEATS)
        if not entry.is_folder
        and entry.name.isdigit()
        and entry.name not in pending
        and is_heartbeat_expired(entry.modified_ms, now, limits)
    )
