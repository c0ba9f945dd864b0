"""Rows of other processes that a committer writes, and each writer's own results (GRP-8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from filegroups.group_commit import member as members
from filegroups.group_commit.coalesce import JOINED_KEY, member_results
from filegroups.group_commit.commit_group import NotCommitted, commit_group
from filegroups.group_commit.member import Member, can_be_offered, offered_work
from filegroups.group_commit.messages import (
    FallBack,
    Message,
    PeerLostError,
    decoded_rows,
    encoded_rows,
)
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN
from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write_request import CommitResult
from tests.unit.filegroups.group_commit.test_member import (
    as_message,
    committed,
    dead_committer,
    lost,
    member,
    row,
    together,
)
from tests.unit.timeline.engine import (
    StillClock,
    data_files,
    leftovers,
    new_table,
    opened,
    rows_of,
    upsert,
)
from tests.unit.timeline.loopback import Loopback, commit_offers
from timeline.codecs.instant_avro import decode_commit
from timeline.errors import CorruptTableError, HoodooError
from timeline.model.commit_metadata import CommitMetadata, WriteOperation


def offering(table: TableReader, *rows: dict[str, Any], **how: Any) -> Loopback:
    return Loopback(member(table, list(rows), **how))


def found(channel: Loopback) -> CommitResult | None:
    return channel.member.resolve(channel.member.work.context)


def counts(result: CommitResult | None) -> tuple[int, int, int] | None:
    if result is None:
        return None
    return result.rows_inserted, result.rows_updated, result.group


@pytest.mark.spec("GRP-8")
def test_rows_of_several_processes_of_one_partition_make_one_file() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1), row("b", "y", 1)])
    before = data_files(table)
    channels = [
        offering(table, row("a", "x", 2), row("n", "x", 2)),
        offering(table, row("b", "y", 2), batch_id="s/2"),
        offering(table, row("b", "y", 3)),
        offering(table, row("c", "z", 3)),
    ]
    answers = [committed(one) for one in together(table, *channels)]
    assert [counts(one) for one in answers] == [(1, 1, 4), (0, 1, 4), (0, 1, 4), (1, 0, 4)]
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 3), ("c", 3), ("n", 2)]
    assert len(data_files(table)) == len(before) + 3
    assert leftovers(table) == []
    assert [one.asked for one in channels] == [["join"]] * 4
    for channel, answer in zip(channels, answers, strict=True):
        assert channel.member.commit_result(as_message(answer)) == answer
        assert found(channel) == answer
    slot = table.context.commit_log.read(table.context.commit_log.head())
    assert slot is not None
    assert set(member_results(decode_commit(slot.body, path="slot"))) == {"0", "1", "2", "3"}
    assert [(one.batch_id, one.rows_updated) for one in slot.batches] == [("s/2", 1)]


@pytest.mark.spec("GRP-8")
@pytest.mark.parametrize("operation", [WriteOperation.INSERT, WriteOperation.BULK_INSERT])
def test_new_rows_are_written_for_every_operation(operation: WriteOperation) -> None:
    table = new_table()
    channels = [offering(table, row(key, p, 1), operation=operation) for key, p in ("ax", "by")]
    answers = [committed(one) for one in together(table, *channels)]
    assert [counts(one) for one in answers] == [(1, 0, 2)] * 2
    assert rows_of(table, "id") == [("a",), ("b",)]
    assert [found(one) for one in channels] == answers


@pytest.mark.spec("GRP-8")
def test_deletes_in_event_time_order_are_not_coalesced_and_wait_for_the_next_group() -> None:
    table = new_table()
    shape = {"_hoodie_is_deleted": False}
    upsert(table, [row("a", "x", 1) | shape, row("b", "x", 1) | shape])
    first = offering(table, row("a", "x", 2) | shape)
    second = offering(table, row("b", "x", 2) | {"_hoodie_is_deleted": True})
    answers = together(table, first, second)
    assert counts(committed(answers[0])) == (0, 1, 1)
    assert answers[1] is NotCommitted.CONFLICTS
    assert found(second) is None
    before = second.member.requested_time
    result = committed(together(table, second)[0])
    assert second.member.requested_time != before
    assert (result.rows_deleted, found(second)) == (1, result)
    assert second.asked == ["join", "join"]
    assert rows_of(table, "id", "v") == [("a", 2)]


@pytest.mark.spec("GRP-8")
def test_rows_of_a_rejected_instant_are_looked_up_in_the_next_one() -> None:
    table = new_table()
    channels = [offering(table, row("a", "x", value)) for value in (1, 2)]

    def interferes(_: str, __: frozenset[int]) -> None:
        upsert(table, [row("a", "x", 9)])

    answers = commit_offers(table.context, channels, publishing=interferes)
    assert answers == [NotCommitted.ALONE] * 2
    named = channels[0].member.requested_time
    assert found(channels[0]) is None
    assert [counts(committed(one)) for one in together(table, *channels)] == [(0, 1, 2), (0, 1, 2)]
    assert channels[0].member.requested_time != named


@pytest.mark.spec("GRP-5")
@pytest.mark.spec("GRP-8")
def test_rows_of_a_writer_that_does_not_know_their_instant_are_not_committed() -> None:
    table = new_table()
    dead = offering(table, row("a", "x", 1))
    dead.acts["join"] = lost
    liar = offering(table, row("d", "x", 1))
    liar.acts["join"] = lambda: FallBack(why="no answer to that")
    others = [offering(table, row(key, "x", 1)) for key in "bc"]
    answers = together(table, dead, liar, *others)
    assert answers[:2] == [NotCommitted.LOST] * 2
    assert dead.closed
    assert liar.closed
    assert [committed(one).group for one in answers[2:]] == [2, 2]
    assert rows_of(table, "id") == [("b",), ("c",)]
    assert leftovers(table) == []
    assert found(dead) is None


@pytest.mark.spec("GRP-8")
def test_silent_writers_are_waited_for_together() -> None:
    """Otherwise each silent writer would cost the others its full time limit."""
    clock = StillClock()
    table = opened(new_table(), clock=clock)

    class Silent(Loopback):
        def receive(self, wait_ms: int) -> Message:
            answer = super().receive(wait_ms)
            clock.sleep_ms(wait_ms)
            raise PeerLostError(f"silent, though it is {answer.kind}")

    silent = [Silent(member(table, [row(key, key, 1)])) for key in "abc"]
    well = offering(table, row("d", "d", 1))
    answers = together(table, *silent, well)
    assert answers[:3] == [NotCommitted.LOST] * 3
    assert counts(committed(answers[3])) == (1, 0, 1)
    assert [one.waits[0] for one in (*silent, well)] == [1000, 100, 100, 100]


@pytest.mark.spec("GRP-6")
@pytest.mark.spec("GRP-8")
@pytest.mark.parametrize("partitions", ["xx", "xy"])
def test_a_writer_finds_its_rows_after_the_death_of_its_committer(partitions: str) -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1)])
    channels = [offering(table, row(key, p, 2)) for key, p in zip("ab", partitions, strict=True)]
    dead_committer(table, *channels, after="/slots/")
    assert [counts(found(one)) for one in channels] == [(0, 1, 2), (1, 0, 2)]
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 2)]


@pytest.mark.spec("GRP-8")
def test_a_write_in_memory_up_to_a_limit_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1)])
    for operation in (WriteOperation.UPSERT, WriteOperation.DELETE, WriteOperation.INSERT):
        work = member(table, [row("a", "x", 1)], operation).work
        assert isinstance(work.workload, LocalWorkload)
        for limit, small in ((work.workload.rows.nbytes, True), (1, False)):
            monkeypatch.setattr(members, "OFFERED_BYTES_MAX", limit)
            assert can_be_offered(work) is small


@pytest.mark.spec("GRP-4")
@pytest.mark.parametrize(("kib", "offered"), [(700, True), (800, False)])
def test_a_write_above_one_and_a_half_mebibytes_commits_alone(kib: int, offered: bool) -> None:
    """The rows contain the text twice: as a column and as the record key."""
    assert can_be_offered(member(new_table(), [row("k" * kib * 1024, "x", 1)]).work) is offered


def refused(one: Member, **lie: Any) -> pytest.ExceptionInfo[Exception]:
    """Return the error of an offer with a false value."""
    offer, work = replace(one.offer(), **lie), one.work
    with pytest.raises((ValueError, HoodooError)) as caught:
        offered_work(work.context, work.plan, offer)
    return caught


def given(columns: dict[str, list[Any]]) -> bytes:
    return encoded_rows(pa.table(columns))


ROWS: dict[str, list[Any]] = {"id": ["a"], "p": ["x"], "ts": [1], "v": [1]}
FALSE_VALUES: dict[str, dict[str, Any]] = {
    "nothing": {"rows": b""},
    "no rows": {"rows": b"rows"},
    "a column of another type": {
        "rows": given(ROWS | {"v": ["1"], KEY_COLUMN: ["a"], PARTITION_COLUMN: ["x"]})
    },
    "keys of another type": {"rows": given(ROWS | {KEY_COLUMN: [1], PARTITION_COLUMN: ["x"]})},
    "other columns": {"rows": given({"x": [1]})},
    "no keys": {"rows": given(ROWS | {KEY_COLUMN: [None], PARTITION_COLUMN: ["x"]})},
    "no partition paths": {"rows": given(ROWS | {KEY_COLUMN: ["a"], PARTITION_COLUMN: [None]})},
    "another partition": {"rows": given(ROWS | {KEY_COLUMN: ["a"], PARTITION_COLUMN: ["../x"]})},
    "a partition elsewhere": {"partition_paths": ("../x",)},
    "no incoming columns": {"columns": "?"},
}


@pytest.mark.spec("GRP-4")
@pytest.mark.parametrize("name", FALSE_VALUES)
def test_an_offer_of_other_rows_than_its_schema_and_partitions_name_is_refused(name: str) -> None:
    refused(member(new_table(), [row("a", "x", 1)]), **FALSE_VALUES[name])


def test_rows_are_transferred_unchanged() -> None:
    table = new_table()
    work = member(table, [row("a", "x", 1), row("b", "y", 2)]).work
    assert isinstance(work.workload, LocalWorkload)
    data = encoded_rows(work.workload.rows)
    again = decoded_rows(data, work.schema, work.plan.rules, ["x", "y"])
    assert again == work.workload.rows
    with pytest.raises(ValueError, match="not offered"):
        decoded_rows(data, work.schema, work.plan.rules, ["x"])


def test_threads_of_one_process_record_no_results() -> None:
    """Their writers know the outcome from the answer alone."""
    table = new_table()
    works = [member(table, [row("a", "x", value)]).work for value in (1, 2)]
    assert [counts(committed(one)) for one in commit_group(table.context, works)] == [
        (1, 0, 2),
        (0, 1, 2),
    ]
    slot = table.context.commit_log.read(table.context.commit_log.head())
    assert slot is not None
    assert member_results(decode_commit(slot.body, path="slot")) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"1":[1,2]}', '{"1":"x"}', '{"1":[1,2,3,4,null]}'])
def test_damaged_member_results_in_a_commit_are_reported(text: str) -> None:
    with pytest.raises(CorruptTableError, match="joined"):
        member_results(CommitMetadata(extra_metadata={JOINED_KEY: text}))
