"""Rows of other processes that a committer writes as one, and how each finds its own again (GRP-8)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from filegroups.group_commit import coalesce as joint
from filegroups.group_commit.coalesce import JOINED_KEY, member_results
from filegroups.group_commit.commit_group import NotCommitted, commit_group
from filegroups.group_commit.messages import (
    Assigned,
    Failed,
    GivenRows,
    Message,
    Offer,
    PeerLostError,
    decoded_rows,
    encoded_rows,
)
from filegroups.group_commit.remote_workload import remote_work
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN
from filegroups.table import Table
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write_request import CommitResult
from tests.unit.filegroups.group_commit.test_member import (
    left_by,
    lost,
    member,
    published,
    row,
    together,
    told,
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
from tests.unit.timeline.loopback import Loopback, remote
from timeline.codecs.instant_avro import decode_commit
from timeline.errors import CorruptTableError
from timeline.model.commit_metadata import CommitMetadata, WriteOperation


def giving(table: Table, *rows: dict[str, Any], **how: Any) -> Loopback:
    return Loopback(member(table, list(rows), **how), gives=True)


def bringing(table: Table, *rows: dict[str, Any], **how: Any) -> Loopback:
    return Loopback(member(table, list(rows), **how), brings=True)


def found(channel: Loopback) -> CommitResult | None:
    return channel.member.find_out(channel.member.work.context)


def counts(receipt: CommitResult | None) -> tuple[int, int, int] | None:
    if receipt is None:
        return None
    return receipt.rows_inserted, receipt.rows_updated, receipt.group


@pytest.mark.spec("GRP-8")
def test_rows_of_several_processes_make_one_file() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1)])
    before = data_files(table)
    channels = [
        giving(table, row("a", "x", 2), row("n", "x", 2)),
        giving(table, row("a", "x", 3), batch_id="s/2"),
        giving(table, row("c", "z", 3)),
    ]
    answers = [published(one) for one in together(table, *channels)]
    assert [counts(one) for one in answers] == [(1, 1, 3), (0, 1, 3), (1, 0, 3)]
    assert rows_of(table, "id", "v") == [("a", 3), ("c", 3), ("n", 2)]
    assert len(data_files(table)) == len(before) + 2
    assert leftovers(table) == []
    # Of its own file a writer knows by itself; what it gave away the committer tells.
    for channel, answer in zip(channels, answers, strict=True):
        assert channel.member.receipt(told(answer)) == answer
        assert found(channel) == answer
    assert ["give" in one.asked for one in channels] == [True, True, False]
    assert ["rewrite" in one.asked for one in channels] == [False, False, True]
    slot = table.context.chain.read(table.context.chain.head())
    assert slot is not None
    assert set(member_results(decode_commit(slot.body, path="slot"))) == {"0", "1"}
    assert [(one.batch_id, one.rows_updated) for one in slot.batches] == [("s/2", 1)]


@pytest.mark.spec("GRP-8")
def test_threads_and_processes_are_joined_alike() -> None:
    table = new_table()
    mine = member(table, [row("a", "x", 1)]).work
    other = giving(table, row("a", "x", 2))
    answers = commit_group(table.context, [mine, remote(table.context, other)])
    assert [counts(published(one)) for one in answers] == [(1, 0, 2), (0, 1, 2)]
    assert rows_of(table, "id", "v") == [("a", 2)]


@pytest.mark.spec("GRP-8")
def test_big_rows_stay_with_their_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table()
    monkeypatch.setattr(joint, "RECEIVED_BYTES_MAX", 10)
    channels = [giving(table, row("a", "x", value)) for value in (1, 2)]
    assert together(table, *channels)[1] is NotCommitted.MEETS
    assert not any("give" in one.asked for one in channels)


@pytest.mark.spec("GRP-8")
def test_whose_rows_turn_out_otherwise_writes_them_itself() -> None:
    """Deletes in event-time order are seen when the rows are there."""
    table = new_table()
    shape = {"_hoodie_is_deleted": False}
    upsert(table, [row("a", "x", 1) | shape, row("b", "x", 1) | shape])
    first = giving(table, row("a", "x", 2) | shape)
    second = giving(table, row("b", "x", 2) | {"_hoodie_is_deleted": True})
    third = giving(table, row("a", "x", 3) | shape)
    answers = together(table, first, second, third)
    assert [counts(published(answers[0])), counts(published(answers[2]))] == [(0, 1, 2), (0, 1, 2)]
    assert answers[1] is NotCommitted.MEETS
    assert second.asked.count("give") == 1
    assert found(second) is None, "it gave its rows to that instant, which does not tell of it"
    receipt = published(together(table, second)[0])
    assert second.asked.count("give") == 1
    assert receipt.rows_deleted == 1
    assert found(second) == receipt
    assert rows_of(table, "id", "v") == [("a", 3)]


@pytest.mark.spec("GRP-8")
@pytest.mark.spec("GRP-6")
def test_a_writer_finds_the_rows_that_it_gave_away() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1)])
    channels = [giving(table, row("a", "x", 2)), giving(table, row("b", "x", 2))]
    left_by(table, *channels, after="/slots/")
    assert [counts(found(one)) for one in channels] == [(0, 1, 2), (1, 0, 2)]
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 2)]


@pytest.mark.spec("GRP-8")
def test_rows_given_for_one_instant_are_not_looked_for_in_another() -> None:
    """A group that was refused is told so; the next one asks again."""
    table = new_table()
    channels = [giving(table, row("a", "x", value)) for value in (1, 2)]
    works = [remote(table.context, one) for one in channels]

    def interferes(_: str, __: frozenset[int]) -> None:
        upsert(table, [row("a", "x", 9)])

    assert commit_group(table.context, works, publishing=interferes) == [NotCommitted.ALONE] * 2
    given_for = channels[0].member.requested_time
    assert found(channels[0]) is None
    assert [counts(published(one)) for one in together(table, *channels)] == [(0, 1, 2), (0, 1, 2)]
    assert channels[0].member.requested_time != given_for


@pytest.mark.spec("GRP-8")
def test_a_writer_that_dies_when_its_rows_are_asked_for_leaves_the_group() -> None:
    table = new_table()
    dead = giving(table, row("a", "x", 1))
    dead.acts["give"] = lost
    others = [giving(table, row(key, "x", 1)) for key in "bc"]
    answers = together(table, dead, *others)
    assert answers[0] is NotCommitted.LOST
    assert [published(one).group for one in answers[1:]] == [2, 2]
    assert rows_of(table, "id") == [("b",), ("c",)]
    assert leftovers(table) == []


@pytest.mark.spec("GRP-8")
def test_few_rows_come_with_their_offer_and_are_written_by_the_committer() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1), row("b", "y", 1)])
    before = data_files(table)
    channels = [
        bringing(table, row("a", "x", 2), row("n", "x", 2)),
        bringing(table, row("b", "y", 2), batch_id="s/2"),
        bringing(table, row("b", "y", 3)),
        Loopback(member(table, [row("c", "z", 3)])),
    ]
    answers = [published(one) for one in together(table, *channels)]
    assert [counts(one) for one in answers] == [(1, 1, 4), (0, 1, 4), (0, 1, 4), (1, 0, 4)]
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 3), ("c", 3), ("n", 2)]
    assert len(data_files(table)) == len(before) + 3
    assert leftovers(table) == []
    assert [one.asked for one in channels[:3]] == [["give"]] * 3, "only told where they go"
    assert "give" not in channels[3].asked
    for channel, answer in zip(channels, answers, strict=True):
        assert channel.member.receipt(told(answer)) == answer
        assert found(channel) == answer
    slot = table.context.chain.read(table.context.chain.head())
    assert slot is not None
    assert set(member_results(decode_commit(slot.body, path="slot"))) == {"0", "1", "2"}
    assert [(one.batch_id, one.rows_updated) for one in slot.batches] == [("s/2", 1)]


@pytest.mark.spec("GRP-8")
@pytest.mark.parametrize("operation", [WriteOperation.INSERT, WriteOperation.BULK_INSERT])
def test_new_rows_that_came_along_are_written_whatever_the_operation(
    operation: WriteOperation,
) -> None:
    table = new_table()
    channels = [bringing(table, row(key, p, 1), operation=operation) for key, p in ("ax", "by")]
    answers = [published(one) for one in together(table, *channels)]
    assert [counts(one) for one in answers] == [(1, 0, 2)] * 2
    assert [one.asked for one in channels] == [["give"]] * 2
    assert rows_of(table, "id") == [("a",), ("b",)]
    assert [found(one) for one in channels] == answers


@pytest.mark.spec("GRP-8")
def test_rows_that_came_along_and_meet_are_told_anew_in_the_next_group() -> None:
    """Deletes in event-time order are not joined with others."""
    table = new_table()
    shape = {"_hoodie_is_deleted": False}
    upsert(table, [row("a", "x", 1) | shape, row("b", "x", 1) | shape])
    first = bringing(table, row("a", "x", 2) | shape)
    second = bringing(table, row("b", "x", 2) | {"_hoodie_is_deleted": True})
    answers = together(table, first, second)
    assert counts(published(answers[0])) == (0, 1, 1)
    assert answers[1] is NotCommitted.MEETS
    assert found(second) is None
    before = second.member.requested_time
    receipt = published(together(table, second)[0])
    assert second.member.requested_time != before
    assert (receipt.rows_deleted, found(second)) == (1, receipt)
    assert second.asked == ["give", "give"]
    assert rows_of(table, "id", "v") == [("a", 2)]


@pytest.mark.spec("GRP-8")
def test_a_writer_that_is_gone_before_it_knows_where_its_rows_go_has_none_published() -> None:
    table = new_table()
    dead = bringing(table, row("a", "x", 1))
    dead.acts["give"] = lost
    failing = bringing(table, row("d", "v", 1))
    failing.acts["give"] = lambda: Failed(why="no memory")
    other = bringing(table, row("b", "y", 1))
    answers = together(table, dead, failing, other)
    assert answers[0] is NotCommitted.LOST
    assert dead.closed
    assert [counts(published(one)) for one in answers[1:]] == [(1, 0, 2), (1, 0, 2)]
    assert "rewrite" in failing.asked, "who only could not say so writes its rows itself"
    assert rows_of(table, "id") == [("b",), ("d",)]
    assert leftovers(table) == []
    assert found(dead) is None


@pytest.mark.spec("GRP-8")
def test_silent_writers_are_waited_for_together() -> None:
    """Or each would cost the others, whose patience has an end, as much as one may take."""
    clock = StillClock()
    table = opened(new_table(), clock=clock)

    class Silent(Loopback):
        def receive(self, wait_ms: int) -> Message:
            answer = super().receive(wait_ms)
            clock.sleep_ms(wait_ms)
            raise PeerLostError(f"silent, though it is {answer.kind}")

    silent = [Silent(member(table, [row(key, key, 1)]), brings=True) for key in "abc"]
    well = bringing(table, row("d", "d", 1))
    answers = together(table, *silent, well)
    assert answers[:3] == [NotCommitted.LOST] * 3
    assert counts(published(answers[3])) == (1, 0, 1)
    assert [one.waits[0] for one in (*silent, well)] == [1000, 100, 100, 100]


@pytest.mark.spec("GRP-6")
@pytest.mark.spec("GRP-8")
def test_a_writer_finds_the_rows_that_it_brought() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1)])
    channels = [bringing(table, row("a", "x", 2)), bringing(table, row("b", "y", 2))]
    left_by(table, *channels, after="/slots/")
    assert [counts(found(one)) for one in channels] == [(0, 1, 2), (1, 0, 2)]
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 2)]


@pytest.mark.spec("GRP-8")
def test_only_few_rows_with_all_their_columns_come_along() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1)])
    assert member(table, [row("a", "x", 1)]).offer().rows is not None
    assert member(table, [row(f"{n}", "x", 1) for n in range(9_999)]).offer().rows is None
    deleted = member(table, [row("a", "x", 1)], operation=WriteOperation.DELETE)
    assert deleted.offer().rows is None


def given(columns: dict[str, list[Any]]) -> Callable[[], Message]:
    return lambda: GivenRows(rows=encoded_rows(pa.table(columns)))


ROWS: dict[str, list[Any]] = {"id": ["a"], "p": ["x"], "ts": [1], "v": [1]}
LIES: dict[str, Callable[[], Message]] = {
    "another answer": Assigned,
    "no text of bytes": lambda: GivenRows(rows="?"),
    "rows that it did not offer": lambda: GivenRows(rows=None),
    "no rows": lambda: GivenRows(rows=base64.b64encode(b"rows").decode()),
    "more rows than it offered": given(
        {name: values * 9_999 for name, values in ROWS.items()}
        | {KEY_COLUMN: ["a"] * 9_999, PARTITION_COLUMN: ["x"] * 9_999}
    ),
    "a column of another type": given(
        ROWS | {"v": ["1"], KEY_COLUMN: ["a"], PARTITION_COLUMN: ["x"]}
    ),
    "keys that are no texts": given(ROWS | {KEY_COLUMN: [1], PARTITION_COLUMN: ["x"]}),
    "other columns": given({"x": [1]}),
    "no keys": given(ROWS | {KEY_COLUMN: [None], PARTITION_COLUMN: ["x"]}),
    "no partition paths": given(ROWS | {KEY_COLUMN: ["a"], PARTITION_COLUMN: [None]}),
    "another partition": given(ROWS | {KEY_COLUMN: ["a"], PARTITION_COLUMN: ["../x"]}),
}


@pytest.mark.spec("GRP-4")
@pytest.mark.parametrize("name", LIES)
def test_a_writer_gives_no_rows_but_those_it_offered(name: str) -> None:
    table = new_table()
    liar = giving(table, row("a", "x", 1))
    liar.acts["give"] = LIES[name]
    answers = together(table, liar, giving(table, row("b", "x", 1)))
    assert answers[0] is NotCommitted.LOST
    assert liar.closed
    assert counts(published(answers[1])) == (1, 0, 1)
    assert rows_of(table, "id") == [("b",)]


@pytest.mark.spec("GRP-4")
@pytest.mark.parametrize("text", ["?", encoded_rows(pa.table({"x": [1]}))])
def test_a_writer_brings_no_rows_but_those_it_tells_of(text: str) -> None:
    table = new_table()
    liar, well = bringing(table, row("a", "x", 1)), bringing(table, row("b", "x", 1))
    offer = replace(liar.member.offer(), rows=text)
    lying = remote_work(table.context, liar.member.work.plan, offer, liar, answer_ms=1000)
    answers = commit_group(table.context, [lying, remote(table.context, well)])
    assert answers[0] is NotCommitted.LOST
    assert liar.closed
    assert counts(published(answers[1])) == (1, 0, 1)
    assert rows_of(table, "id") == [("b",)]


def test_rows_come_over_the_wire_as_they_are() -> None:
    table = new_table()
    work = member(table, [row("a", "x", 1), row("b", "y", 2)]).work
    assert isinstance(work.workload, LocalWorkload)
    text = encoded_rows(work.workload.rows)
    size = work.workload.rows.nbytes
    again = decoded_rows(text, work.schema, ["x", "y"], bytes_max=size)
    assert again == work.workload.rows
    with pytest.raises(ValueError, match="not offered"):
        decoded_rows(text, work.schema, ["x"], bytes_max=size)
    with pytest.raises(ValueError, match="more rows than were offered"):
        decoded_rows(text, work.schema, ["x", "y"], bytes_max=again.nbytes - 1)


@pytest.mark.parametrize("text", ["", "[]", '{"1":[1,2]}', '{"1":"x"}', '{"1":[1,2,3,4,null]}'])
def test_what_a_damaged_commit_says_of_its_writes_is_told(text: str) -> None:
    with pytest.raises(CorruptTableError, match="joined"):
        member_results(CommitMetadata(extra_metadata={JOINED_KEY: text}))


def test_only_rows_in_memory_are_offered() -> None:
    table = new_table()
    offer: Offer = member(table, [row("a", "x", 1)]).offer()
    assert offer.rows_bytes is not None
    assert offer.rows_bytes > 0
