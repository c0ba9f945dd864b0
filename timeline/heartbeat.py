"""
Heartbeats show that the writer of a pending instant is alive (HB-1 to HB-4).

The file is Java Hudi's: ``.hoodie/.heartbeat/<requested time>``, written again with every beat
(fmt 1). Other processes check its modification time. Java's file is empty; ours names the silence
after which its writer fences itself, which is shorter than Java's (HB-2). The writer checks itself
by its own monotonic clock. After too long a gap it is fenced for good and never beats again. So a paused
process cannot revive an instant that others already rolled back (hole 5).

An expired heartbeat is only a guess. Safety does not depend on it, because a rollback takes an
abort slot first. The guess only has to be good enough not to waste live work.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Final

from timeline.errors import HeartbeatExpiredError, StorageUnavailableError
from timeline.model.file_names import HEARTBEATS, TIMELINE, heartbeat_path
from timeline.model.instant import Action, State
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import AmbiguousWriteError, FileStat, Ports, Storage, Ticker

# ---- When a heartbeat expires

LEASE_BEATS: Final = 3
"""How many times a reader lease is renewed before it would end."""

_BEATS: Final = 3
_SILENCE: Final = "silence_ms"
_BEAT_BYTES_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatLimits:
    """How often a writer beats, and how many missed beats others tolerate."""

    interval_ms: int = 60_000
    misses: int = 2

    @property
    def tolerated_ms(self) -> int:
        """The longest tolerated silence of any writer in ms (Hudi's rule: interval x misses)."""
        return self.interval_ms * self.misses

    @property
    def silence_ms(self) -> int:
        """
        The silence in ms after which a writer of hoodoo fences itself: one miss fewer than Hudi's.

        A writer of Hudi beats once an interval. So it may be alive one interval after a beat, and
        only the next interval shows its death. Ours beats ``_BEATS`` times in this silence.
        """
        return self.interval_ms * max(self.misses - 1, 1)

    @property
    def pause_ms(self) -> int:
        """The pause between two beats of a writer of hoodoo, in ms."""
        return min(self.interval_ms, self.silence_ms // _BEATS)


def is_heartbeat_expired(
    last_beat_ms: int | None, storage_now_ms: int, limits: HeartbeatLimits
) -> bool:
    """
    Return whether another writer's heartbeat is expired.

    Args:
        last_beat_ms: Modification time of its heartbeat file, None when there is none.
        storage_now_ms: The clock of the same storage now; never this host's wall clock (F12).
        limits: The tolerated silence.
    """
    return last_beat_ms is None or storage_now_ms - last_beat_ms > limits.tolerated_ms


def must_fence_itself(
    last_beat_monotonic_ms: int, monotonic_now_ms: int, limits: HeartbeatLimits
) -> bool:
    """
    Return whether this writer's own gap is so long that it must fence itself (HB-3, hole 5).

    After such a gap others may have started a rollback, for good. Both times are of the own
    monotonic clock, in ms.
    """
    return monotonic_now_ms - last_beat_monotonic_ms > limits.silence_ms


def is_lease_expired(until_ms: int, storage_now_ms: int) -> bool:
    """Return whether a reader lease ended; both times are the storage's clock (RDL-1)."""
    return until_ms < storage_now_ms


def is_lease_trusted(shown_monotonic_ms: int, monotonic_now_ms: int, lease_ms: int) -> bool:
    """
    Return whether the own lease is safe, by the own monotonic clock.

    A third of its length is left as reserve for an estimated storage clock.
    """
    return LEASE_BEATS * (monotonic_now_ms - shown_monotonic_ms) <= (LEASE_BEATS - 1) * lease_ms


# ---- Writing heartbeats

# Of writes only. The requested file of a plan waits for any executor.
_BEGUN = tuple(
    f".{action.value}.{State.REQUESTED.value}"
    for action in (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT)
)


class Heartbeat:
    """The heartbeat of one pending instant; create it by ``start``."""

    def __init__(self, ports: Ports, requested_time: InstantTime, limits: HeartbeatLimits) -> None:
        self._world = ports
        self._requested_time = requested_time
        self._limits = limits
        self._last_ms = ports.clock.monotonic_ms()
        self._fenced = False
        self._ticker: Ticker | None = None

    @staticmethod
    def start(ports: Ports, requested_time: InstantTime, limits: HeartbeatLimits) -> Heartbeat:
        """
        Beat once now, then ``_BEATS`` times in each silence, in the background. Outside: 1 put.

        Raises:
            StorageUnavailableError: The first beat could not be written.
        """
        beating = Heartbeat(ports, requested_time, limits)
        ports.storage.write(heartbeat_path(requested_time), _beat(limits))
        beating._last_ms = ports.clock.monotonic_ms()
        beating._ticker = ports.executor.every(limits.pause_ms, beating.beat)
        return beating

    def beat(self) -> None:
        """Beat once. A failure is only an event, because the next beat may succeed (F25)."""
        if self.fenced():
            return
        try:
            self._world.storage.write(heartbeat_path(self._requested_time), _beat(self._limits))
        except (StorageUnavailableError, AmbiguousWriteError) as error:
            self._world.events.emit("heartbeat.failed", rt=self._requested_time, why=str(error))
            return
        if not self.fenced():
            self._last_ms = self._world.clock.monotonic_ms()

    def fenced(self) -> bool:
        """Return whether a gap ever exceeded the tolerated silence (HB-3)."""
        now = self._world.clock.monotonic_ms()
        if not self._fenced and must_fence_itself(self._last_ms, now, self._limits):
            self._fenced = True
            self._world.events.emit("heartbeat.fenced", rt=self._requested_time)
        return self._fenced

    def check(self) -> None:
        """
        Raise if other processes may take this writer for dead.

        Raises:
            HeartbeatExpiredError: It paused for too long; write again as a new instant.
        """
        if self.fenced():
            raise HeartbeatExpiredError(
                "this writer paused for longer than its heartbeat allows "
                f"({self._limits.silence_ms} ms), so other writers may have rolled it back; "
                f"write again: {self._requested_time}",
                requested_time=self._requested_time,
                tolerated_ms=self._limits.silence_ms,
            )

    def stop(self, *, remove: bool = True) -> None:
        """
        Stop beating; ``remove`` deletes the file, which a finished instant does not need.

        Never raises: a failed delete must not hide the outcome of the instant. The next clean
        deletes the file as a stray.
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
    Return the pending requested times whose heartbeat is missing or too old (HB-2).

    Outside: 1 list; on a high-latency store 1 more if one is missing; 1 get for each that is older
    than a living writer of hoodoo lets it become. The age is measured by the storage's own clock.
    """
    if not pending:
        return ()
    files = {entry.name: entry for entry in storage.list(HEARTBEATS)}
    beats = {name: entry.modified_ms for name, entry in files.items()}
    if storage.capabilities.high_latency and not beats.keys() >= set(pending):
        beats = {**_requested_at(storage), **beats}
    now = storage.now_ms()

    def is_expired(time: InstantTime) -> bool:
        if is_heartbeat_expired(beats.get(time), now, limits):
            return True
        age = now - beats[time]
        return time in files and age > limits.silence_ms and age > _silence(storage, files[time])

    return tuple(time for time in pending if is_expired(time))


def _beat(limits: HeartbeatLimits) -> bytes:
    """Return the bytes of a heartbeat file. Java reads the time of the file only."""
    return json.dumps({_SILENCE: limits.silence_ms}).encode()


def _silence(storage: Storage, beat: FileStat) -> float:
    """Return the silence in ms that the writer of the file allows itself; infinite if unsaid."""
    if not 0 < beat.size_bytes <= _BEAT_BYTES_MAX:
        return math.inf
    try:
        return float(json.loads(storage.read(f"{HEARTBEATS}/{beat.name}"))[_SILENCE])
    except (LookupError, TypeError, ValueError):
        return math.inf  # it ended meanwhile, or another engine wrote the file


def _requested_at(storage: Storage) -> dict[InstantTime, int]:
    """
    Return the begin time of each write that has only its requested file.

    On a high-latency store the requested file and the first beat are written in parallel, so the
    file counts as a beat (BEG-2).
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
    """Return heartbeat files without a pending instant that are silent for too long."""
    now = storage.now_ms()
    return tuple(
        entry.name
        for entry in storage.list(HEARTBEATS)
        if not entry.is_folder
        and entry.name.isdigit()
        and entry.name not in pending
        and is_heartbeat_expired(entry.modified_ms, now, limits)
    )
