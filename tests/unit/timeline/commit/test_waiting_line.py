"""The waiting line of writers of the same file groups on a high-latency store (PUB-12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.timeline.engine import put, put_watched, rows_of, upsert
from tests.unit.timeline.line import LOOKS_MAX, Joined, Line, row
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import TIMELINE


@pytest.mark.spec("PUB-12")
def test_a_writer_waits_for_the_writer_ahead_in_its_file_group_and_merges_into_its_file() -> None:
    line = Line()
    line.written_by_others()
    line.clock.meanwhile = line.one_in_front(3)
    line.storage.forget()
    result, rewritten = put_watched(line.mine, WriteOperation.UPSERT, [row("a", 4)])
    assert (result.attempts, result.redone, result.lost_slots) == (1, "nothing", 0)
    assert line.front_times[0] < result.requested_time
    assert len(rewritten) == 1, "the data file is written once"
    assert line.places == 1
    before, after = line.around_the_data(result.requested_time)
    assert f"names {TIMELINE}" in before
    assert not [one for one in after if TIMELINE in one], (
        "the refresh showed that no writer was ahead"
    )
    assert rows_of(line.mine, "id", "v") == [("a", 4), ("b", 3), ("q", 1)]


@pytest.mark.spec("PUB-12")
def test_the_file_of_the_writer_ahead_is_requested_before_its_commit() -> None:
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
def test_a_writer_merges_after_two_commits_of_writers_ahead() -> None:
    line = Line()
    line.written_by_others()
    ends = [line.one_in_front(value) for value in (3, 5)]
    line.clock.meanwhile = lambda: [end() for end in ends]
    lock = Joined(line.mine.context.ports.lock)
    object.__setattr__(line.mine.context.ports, "lock", lock)
    result, rewritten = put_watched(line.mine, WriteOperation.UPSERT, [row("a", 4)])
    assert (result.attempts, result.lost_slots, len(rewritten)) == (1, 0, 1)
    assert max(line.front_times) < result.requested_time
    assert len(lock.asked) == 2, "once at the start of the wait, and once in the last refresh"
    assert rows_of(line.mine, "id", "v") == [("a", 4), ("b", 5), ("q", 1)]


@pytest.mark.spec("PUB-12")
def test_a_stalled_writer_is_not_waited_for_and_retries() -> None:
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
    assert front.attempts == 2, "another write of its file group committed first"
    assert mine[0].requested_time < front.requested_time
    assert rows_of(line.mine, "id", "v") == [("a", 4), ("b", 3), ("q", 1)]


@pytest.mark.spec("PUB-12")
def test_commits_to_other_file_groups_do_not_prolong_a_wait() -> None:
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
    assert len(line.clock.slept) <= LOOKS_MAX + 4, (
        "one refresh for each, and one for the commit section"
    )
    assert rows_of(line.mine, "id", "v")[:2] == [("a", 4), ("b", 3)]


@pytest.mark.spec("PUB-12")
def test_an_overtaken_writer_is_not_waited_for() -> None:
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
        pytest.param(lambda line: None, id="no other writer"),
        pytest.param(lambda line: upsert(line.mine, [row("a", 2)]), id="my own commits"),
        pytest.param(
            lambda line: upsert(line.other(), [row("q", 2, "y")]), id="others in another partition"
        ),
    ],
)
def test_a_writer_does_not_wait_where_no_other_committed_recently(
    before: Callable[[Line], object],
) -> None:
    line = Line()
    before(line)
    line.mine.context.commit_log.head()
    done: list[Any] = []
    put(
        line.other("front"),
        WriteOperation.UPSERT,
        [row("q", 3, "y")],
        lambda: done.append(upsert(line.mine, [row("a", 4)])),
    )
    assert (done[0].attempts, line.places, line.clock.slept) == (1, 0, [])


@pytest.mark.spec("PUB-12")
@pytest.mark.parametrize(("takes_ms", "refreshes"), [(0, 0), (10_000, 1)])
def test_a_state_older_than_a_few_refreshes_take_is_refreshed(
    takes_ms: int, refreshes: int
) -> None:
    line = Line()
    line.written_by_others()
    line.clock.meanwhile = line.one_in_front(3)
    line.storage.forget()
    done = upsert(line.mine, [row("a", 4)], lambda: line.clock.sleep_ms(takes_ms))
    assert (done.attempts, line.places) == (1, 1)
    _, after = line.around_the_data(done.requested_time)
    assert sum(TIMELINE in one for one in after) == refreshes


@pytest.mark.spec("PUB-12")
def test_a_retry_in_the_waiting_line_deletes_its_former_files_before_it_takes_the_slot() -> None:
    """The write knows of no other writer when it begins. It rewrites its files once, not twice."""
    line = Line()
    theirs = line.one_in_front(3)
    result, rewritten = put_watched(line.mine, WriteOperation.UPSERT, [row("a", 4)], theirs)
    assert (result.attempts, result.redone) == (2, "file groups")
    assert len(rewritten) == 2
    files = [one for one in line.base.names("x") if result.requested_time in one]
    assert len(files) == 1, "the file of the first attempt would become visible"
    assert rows_of(line.mine, "id", "v") == [("a", 4), ("b", 3), ("q", 1)]
