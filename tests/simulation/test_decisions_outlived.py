"""
Slots that a service based its decision on are truncated before its commit section.

A decision holds no low-water mark: a heartbeat of the same process releases the slots it read, and
another process archives past them. Then the service decides again; no caller gets an error about
a missing slot.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from hoodoo.verify.verify import verify
from tableservices.archiving import execute as archiving
from tableservices.archiving.execute import archive
from tableservices.cleaning import execute as cleaning
from tableservices.cleaning.execute import clean
from tableservices.restoring import savepoints
from tests.simulation.engine_kit import (
    CLEANING,
    RETAINED,
    EngineObserver,
    open_table,
    outside,
    play,
)
from tests.simulation.test_engine_archive import (
    GRACE_MS,
    RULES,
    comebacks,
    copied,
    expect_whole,
    registered,
    writer,
)
from timeline.context import TableContext
from timeline.errors import MissingFileError
from timeline.model.file_names import slot_path
from timeline.truncation import raise_low_water_mark, slots_since_snapshot, truncated_up_to

pytestmark = pytest.mark.spec("GC-1")

Act = Callable[[TableContext], object]


def archives(context: TableContext) -> object:
    return archive(context, RULES)


def cleans(context: TableContext) -> object:
    return clean(context, CLEANING)


@pytest.mark.parametrize(
    ("act", "module", "before"),
    [
        (archives, archiving, "remember_batches"),
        (archives, archiving, "open_commit"),
        (cleans, cleaning, "open_commit"),
        (savepoints.savepoint, savepoints, "open_commit"),
    ],
    ids=["archive's batches", "archive", "clean", "savepoint"],
)
def test_a_decision_whose_slots_were_truncated_is_made_again(
    act: Act, module: ModuleType, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = copied(4)
    context = registered(outside(world))
    looked_at = context.commit_log.head()
    plain = getattr(module, before)
    reached: list[int] = []

    def later(*given: object, **named: object) -> object:
        if not reached:
            reached.append(0)
            play(world, [writer("V", [f"v{number}" for number in range(6)])], [])
            world.now_ms += GRACE_MS
            raise_low_water_mark(context)
            archive(registered(outside(world, "other")), RULES)
            reached[0] = truncated_up_to(context.ports.storage)
        return plain(*given, **named)

    monkeypatch.setattr(module, before, later)
    act(context)
    assert reached[0] > looked_at
    assert comebacks(world) == []
    problems = verify(open_table(outside(world))).problems
    assert problems == ()
    if act is not savepoints.savepoint:  # it has the requested time of a commit, which facts mix up
        expect_whole(world, EngineObserver(world, commits_retained=RETAINED), before)


def test_a_slot_that_is_missing_without_an_archive_is_reported() -> None:
    world = copied(4)
    looked_at = open_table(outside(world)).commit_log.head()
    play(world, [writer("V", ["v0", "v1"])], [])
    last = looked_at + 2
    came = slots_since_snapshot(open_table(outside(world)), looked_at, last)
    assert came is not None
    assert [slot.number for slot in came] == [looked_at + 1, last]
    world.remove("nobody", slot_path(looked_at + 1))
    with pytest.raises(MissingFileError):
        slots_since_snapshot(open_table(outside(world)), looked_at, last)
