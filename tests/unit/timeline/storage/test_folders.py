"""A folder has the clock of its file system, so a wrong process clock changes no decision."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.unit.timeline.engine import StillClock
from timeline.heartbeat import HeartbeatLimits, instants_with_expired_heartbeat
from timeline.model.file_names import heartbeat_path
from timeline.ports.ports import Clock
from timeline.storage.folder_walker import FolderClock, FolderWalker, Syscalls, folder_clock
from timeline.storage.local import LocalStorage
from timeline.system import SystemClock, SystemIds

HOUR_MS = 3_600_000
RT = "20260102030405004"


def stamped(stamps: list[int | None]) -> tuple[StillClock, FolderClock]:
    clock = StillClock(now_ms=5_000)
    return clock, FolderClock(clock, lambda: stamps.pop(0))


def clock_of(folder: Path, own: Clock) -> FolderClock:
    return folder_clock(FolderWalker(str(folder), Syscalls(), strict=True), SystemIds(), own)


@pytest.mark.spec("HB-2")
def test_a_folder_returns_the_timestamp_of_its_file_system() -> None:
    _, clock = stamped([1_000])
    assert clock.now_ms() == 1_000


def test_a_stamp_is_kept_for_a_second_by_the_monotonic_clock() -> None:
    machine, clock = stamped([1_000, 9_000])
    assert clock.now_ms() == 1_000
    machine.sleep_ms(1_000)
    machine.wall += HOUR_MS
    assert clock.now_ms() == 2_000
    machine.sleep_ms(1)
    assert clock.now_ms() == 9_000


def test_without_a_file_timestamp_the_clock_of_the_process_is_used() -> None:
    machine, clock = stamped([None, 1_000])
    assert clock.now_ms() == 5_000
    machine.sleep_ms(10)
    assert clock.now_ms() == 1_000


@pytest.mark.spec("HB-2")
def test_a_process_an_hour_ahead_sees_no_live_heartbeat_as_expired(tmp_path: Path) -> None:
    limits = HeartbeatLimits(interval_ms=60_000, misses=2)
    LocalStorage(tmp_path).write(heartbeat_path(RT), b"")
    ahead = StillClock(now_ms=SystemClock().now_ms() + HOUR_MS)
    storage = LocalStorage(tmp_path, clock=clock_of(tmp_path, ahead))
    assert instants_with_expired_heartbeat(storage, (RT,), limits) == ()
    an_hour_ago = time.time() - HOUR_MS / 1_000
    os.utime(tmp_path / heartbeat_path(RT), (an_hour_ago, an_hour_ago))
    assert instants_with_expired_heartbeat(storage, (RT,), limits) == (RT,)


def test_a_timestamp_leaves_no_file_and_creates_no_folder(tmp_path: Path) -> None:
    clock = clock_of(tmp_path, StillClock(now_ms=7))
    assert clock.now_ms() == 7  # the table is missing
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".hoodie").mkdir()
    assert clock.now_ms() > HOUR_MS
    assert list((tmp_path / ".hoodie").iterdir()) == []
