"""A place in the line of those who write the same file groups of a table far away (PUB-12)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.timeline.engine import (
    BRISK,
    Far,
    Heard,
    StillClock,
    new_table,
    opened,
    put,
    put_watched,
    rows_of,
    upsert,
)
from timeline.machine import ThreadExecutor
from timeline.model.operations import WriteOperation
from timeline.model.times import InstantTime
from timeline.places import SLOTS, TIMELINE
from timeline.properties.setting_names import PublishLock
from timeline.storage.memory import MemoryStorage
from timeline.storage.observed import ObservedStorage
from timeline.table import Table

FREE = replace(BRISK, publish_lock=PublishLock.NONE)
LOOKS_MAX = 12  # of one who stands still
WAIT_S = 30.0


def row(key: str, value: int, partition: str = "x") -> dict[str, Any]:
    return {"id": key, "p": partition, "ts": value, "v": value}


class Meeting(StillClock):
    """Something happens while its owner sleeps, at first or later."""

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


class Line:
    """A table far away with one file in ``x`` and one in ``y``; I, and others who write there."""

    def __init__(self) -> None:
        self.base = MemoryStorage()
        self.storage = ObservedStorage(Far(self.base))
        self.clock = Meeting()
        self.mine = new_table(self.storage, limits=FREE, clock=self.clock)
        object.__setattr__(self.mine.context.world, "executor", ThreadExecutor(1))
        upsert(self.mine, [row("a", 1), row("b", 1), row("q", 1, "y")])
        self.front_times: list[InstantTime] = []

    def other(self, name: str = "other") -> Table:
        far = Far(self.base)  # so that its markers come before its files
        return opened(self.mine, storage=far, application=name, limits=FREE, clock=StillClock())

    @property
    def events(self) -> Heard:
        events = self.mine.context.world.events
        assert isinstance(events, Heard)
        return events

    @property
    def places(self) -> int:
        return len(self.events.named("write.place_came"))

    def around_the_data(self, requested_time: InstantTime) -> tuple[list[str], list[str]]:
        """What was asked of the storage before my newest data file, and from then to my slot."""
        asked = self.storage.operations()
        slot = next(at for at, one in enumerate(asked) if one.startswith(f"create {SLOTS}"))
        data = max(at for at in range(slot) if f"_{requested_time}.parquet" in asked[at])
        return asked[:data], asked[data + 1 : slot]

    def written_by_others(self) -> None:
        """Another published into my file group, and I know."""
        upsert(self.other(), [row("b", 2)])
        self.mine.context.chain.head()

    def one_in_front(self, value: int, partition: str = "x") -> Callable[[], None]:
        """A write that is about to make its files; what comes back lets it go on to its end."""
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


@pytest.mark.spec("PUB-12")
def test_who_writes_what_the_one_in_front_writes_waits_and_builds_on_its_file() -> None:
    line = Line()
    line.written_by_others()
    line.clock.meanwhile = line.one_in_front(3)
    line.storage.forget()
    receipt, rewritten = put_watched(line.mine, WriteOperation.UPSERT, [row("a", 4)])
    assert (receipt.attempts, receipt.redone, receipt.lost_slots) == (1, "nothing", 0)
    assert line.front_times[0] < receipt.requested_time
    assert len(rewritten) == 1, "nothing was written in vain"
    assert line.places == 1
    before, after = line.around_the_data(receipt.requested_time)
    assert f"names {TIMELINE}" in before
    assert not [one for one in after if TIMELINE in one], "the look told that its place had come"
    assert rows_of(line.mine, "id", "v") == [("a", 4), ("b", 3), ("q", 1)]


@pytest.mark.spec("PUB-12")
def test_what_the_one_in_front_writes_is_asked_for_before_it_is_published() -> None:
    line = Line()
    line.written_by_others()
    ended = line.one_in_front(3)
    asked: list[str] = []

    def meanwhile() -> None:
        asked.extend(line.storage.operations())
        ended()

    line.clock.meanwhile, line.clock.at = meanwhile, 3
    upsert(line.mine, [row("a", 4)])
    (front,) = line.front_times
    assert [one for one in asked if one.startswith("open_input") and f"_{front}.parquet" in one]
    assert rows_of(line.mine, "id", "v") == [("a", 4), ("b", 3), ("q", 1)]


@pytest.mark.spec("PUB-12")
def test_who_stands_still_is_not_waited_for_and_begins_anew() -> None:
    line = Line()
    line.written_by_others()
    mine: list[Any] = []
    front = put(
        line.other("front"),
        WriteOperation.UPSERT,
        [row("b", 3)],
        lambda: mine.append(upsert(line.mine, [row("a", 4)])),
    )
    assert (mine[0].attempts, line.places) == (1, 1)
    assert len(line.clock.slept) <= LOOKS_MAX
    assert front.attempts == 2, "it was overtaken in its file group"
    assert mine[0].requested_time < front.requested_time
    assert rows_of(line.mine, "id", "v") == [("a", 4), ("b", 3), ("q", 1)]


@pytest.mark.spec("PUB-12")
def test_others_who_go_on_elsewhere_do_not_make_a_wait_longer() -> None:
    line = Line()
    line.written_by_others()
    elsewhere = line.other("elsewhere")
    values = iter(range(2, 100))

    def goes_on() -> None:
        upsert(elsewhere, [row("q", next(values), "y")])
        line.clock.at += 1

    line.clock.meanwhile = goes_on
    mine: list[Any] = []
    put(
        line.other("front"),
        WriteOperation.UPSERT,
        [row("b", 3)],
        lambda: mine.append(upsert(line.mine, [row("a", 4)])),
    )
    assert line.places == 1
    assert len(line.clock.slept) <= LOOKS_MAX + 4, "a look for each, and its turn"
    assert rows_of(line.mine, "id", "v")[:2] == [("a", 4), ("b", 3)]


@pytest.mark.spec("PUB-12")
def test_who_was_overtaken_is_not_waited_for() -> None:
    line = Line()
    ended: list[Any] = []

    def overtaken() -> None:
        line.written_by_others()
        ended.append(upsert(line.mine, [row("a", 4)]))

    front = put(line.other("front"), WriteOperation.UPSERT, [row("b", 3)], overtaken)
    assert (ended[0].attempts, line.places, line.clock.slept) == (1, 0, [])
    assert front.attempts == 2


@pytest.mark.spec("PUB-12")
@pytest.mark.parametrize(
    "before",
    [
        pytest.param(lambda line: None, id="nobody"),
        pytest.param(lambda line: upsert(line.mine, [row("a", 2)]), id="I alone"),
        pytest.param(lambda line: upsert(line.other(), [row("q", 2, "y")]), id="others elsewhere"),
    ],
)
def test_nobody_is_waited_for_where_no_other_published_lately(
    before: Callable[[Line], object],
) -> None:
    line = Line()
    before(line)
    line.mine.context.chain.head()
    done: list[Any] = []
    put(
        line.other("front"),
        WriteOperation.UPSERT,
        [row("q", 3, "y")],
        lambda: done.append(upsert(line.mine, [row("a", 4)])),
    )
    assert (done[0].attempts, line.places, line.clock.slept) == (1, 0, [])


@pytest.mark.spec("PUB-12")
@pytest.mark.parametrize(("takes_ms", "looks"), [(0, 0), (10_000, 1)])
def test_a_look_that_is_older_than_a_few_looks_take_is_made_again(
    takes_ms: int, looks: int
) -> None:
    line = Line()
    line.written_by_others()
    line.clock.meanwhile = line.one_in_front(3)
    line.storage.forget()
    done = upsert(line.mine, [row("a", 4)], lambda: line.clock.sleep_ms(takes_ms))
    assert (done.attempts, line.places) == (1, 1)
    _, after = line.around_the_data(done.requested_time)
    assert sum(TIMELINE in one for one in after) == looks


@pytest.mark.spec("PUB-12")
def test_a_redo_in_its_place_deletes_what_it_stands_for_before_it_takes_the_slot() -> None:
    """Nobody was known to write there when it began: its files are made again, and no third time."""
    line = Line()
    theirs = line.one_in_front(3)
    receipt, rewritten = put_watched(line.mine, WriteOperation.UPSERT, [row("a", 4)], theirs)
    assert (receipt.attempts, receipt.redone) == (2, "file groups")
    assert len(rewritten) == 2
    files = [one for one in line.base.names("x") if receipt.requested_time in one]
    assert len(files) == 1, "the former attempt would be seen with the commit"
    assert rows_of(line.mine, "id", "v") == [("a", 4), ("b", 3), ("q", 1)]
