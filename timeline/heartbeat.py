"""
Heartbeats: the proof that a pending instant's writer lives (HB-1 to HB-4, fmt 1).

The file is Java Hudi's: ``.hoodie/.heartbeat/<requested time>``, empty, rewritten with
every beat; others look at its modification time. The writer judges itself by its own
monotonic clock: after too long a gap it is fenced for good and never beats again, so a
paused process cannot bring a heartbeat back to life that others already buried (hole 5).
"""

from __future__ import annotations

from timeline.errors import HeartbeatExpiredError, StorageUnavailableError
from timeline.model.instant import Action, State
from timeline.model.times import InstantTime
from timeline.places import HEARTBEATS, TIMELINE, heartbeat_path
from timeline.ports.executor import Ticker
from timeline.ports.storage import AmbiguousWriteError, FileStat, Storage
from timeline.ports.world import World
from timeline.rules.liveness import HeartbeatLimits, must_fence_itself, seems_dead

__all__ = ["Heartbeat", "instants_that_seem_dead", "stray_heartbeats"]

# Of writes; the requested file of a plan waits for whoever executes it.
_BEGUN = tuple(
    f".{action.value}.{State.REQUESTED.value}"
    for action in (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT)
)


class Heartbeat:
    """The beating of one pending instant; create it by ``start``."""

    def __init__(self, world: World, requested_time: InstantTime, limits: HeartbeatLimits) -> None:
        self._world = world
        self._requested_time = requested_time
        self._limits = limits
        self._last_ms = world.clock.monotonic_ms()
        self._fenced = False
        self._ticker: Ticker | None = None

    @staticmethod
    def start(world: World, requested_time: InstantTime, limits: HeartbeatLimits) -> Heartbeat:
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


def instants_that_seem_dead(
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
    return tuple(time for time in pending if seems_dead(beats.get(time), now, limits))


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
        and seems_dead(entry.modified_ms, now, limits)
    )
