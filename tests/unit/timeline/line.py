"""A table on a high-latency store with several writers of the same file groups."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from filegroups.table import TableReader
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    Far,
    Heard,
    StillClock,
    new_table,
    opened,
    put,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import SLOTS
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import LockSharing
from timeline.properties.setting_enums import CommitLockMode
from timeline.system import ThreadExecutor

FREE = replace(BRISK, publish_lock=CommitLockMode.NONE)
LOOKS_MAX = 12  # the polls before a writer that does not commit is passed over
WAIT_S = 30.0


def row(key: str, value: int, partition: str = "x") -> dict[str, Any]:
    return {"id": key, "p": partition, "ts": value, "v": value}


class Meeting(StillClock):
    """A clock that runs an action during its owner's n-th sleep, by default the first."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] = lambda: None
        self.at = 1
        self.slept: list[int] = []

    def sleep_ms(self, duration_ms: int) -> None:
        super().sleep_ms(duration_ms)
        self.slept.append(duration_ms)
        if len(self.slept) == self.at:
            self.meanwhile()


class Joined(Behind):
    """A lock that several writers share."""

    is_shareable = True

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.asked: list[tuple[bool, LockSharing]] = []
        self.leases: list[Any] = []

    def acquire_while(self, wanted: Callable[[], bool], purpose: str, sharing: LockSharing) -> Any:
        self.asked.append((wanted(), sharing))
        if not self.leases:
            self.leases.append(self.inner.acquire(purpose))
            return self.leases[0]
        return None


class Line:
    """A table on a high-latency store with one file in ``x`` and one in ``y``, and its writers."""

    def __init__(self) -> None:
        self.base = MemoryStorage()
        self.storage = RecordingStorage(Far(self.base))
        self.clock = Meeting()
        self.mine = new_table(self.storage, limits=FREE, clock=self.clock)
        object.__setattr__(self.mine.context.ports, "executor", ThreadExecutor(1))
        upsert(self.mine, [row("a", 1), row("b", 1), row("q", 1, "y")])
        self.front_times: list[InstantTime] = []

    def other(self, name: str = "other") -> TableReader:
        far = Far(self.base)  # so that the markers of a write are created before its data files
        return opened(self.mine, storage=far, application=name, limits=FREE, clock=StillClock())

    @property
    def events(self) -> Heard:
        events = self.mine.context.ports.events
        assert isinstance(events, Heard)
        return events

    @property
    def places(self) -> int:
        return len(self.events.named("write.place_came"))

    def around_the_data(self, requested_time: InstantTime) -> tuple[list[str], list[str]]:
        """Return the storage calls before my newest data file, and those from there to my slot."""
        asked = self.storage.operations()
        slot = next(at for at, one in enumerate(asked) if one.startswith(f"create {SLOTS}"))
        data = max(at for at in range(slot) if f"_{requested_time}.parquet" in asked[at])
        return asked[:data], asked[data + 1 : slot]

    def written_by_others(self) -> None:
        """Let another writer commit to my file group, and read the commit log."""
        upsert(self.other(), [row("b", 2)])
        self.mine.context.commit_log.head()

    def one_in_front(self, value: int, partition: str = "x") -> Callable[[], None]:
        """Begin a write that stops before its data files; the returned call finishes it."""
        reached, goes_on = threading.Event(), threading.Event()

        def act() -> None:
            reached.set()
            assert goes_on.wait(WAIT_S)

        def play() -> None:
            done = put(
                self.other("front"), WriteOperation.UPSERT, [row("b", value, partition)], act
            )
            self.front_times.append(done.requested_time)

        thread = threading.Thread(target=play)
        thread.start()
        assert reached.wait(WAIT_S)

        def end() -> None:
            goes_on.set()
            thread.join(WAIT_S)
            assert self.front_times

        return end
