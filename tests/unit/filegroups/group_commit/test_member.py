"""A write with rows in another process: committed for its writer, or resolved by it."""

from __future__ import annotations

from typing import Any

import pytest

from filegroups.group_commit.commit_group import NotCommitted
from filegroups.group_commit.member import Member, can_be_offered, write_by_committer
from filegroups.group_commit.messages import (
    FallBack,
    MemberResult,
    Message,
    Offer,
    OutcomeUnknown,
    PeerLostError,
    WasCommitted,
)
from filegroups.keys.bucketing import BucketRules
from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import prepare_write, write_prepared
from filegroups.writing.write_request import CommitResult
from tests.unit.timeline.commit_slots import commit_slot
from tests.unit.timeline.engine import (
    Behind,
    Rows,
    as_table,
    data_files,
    leftovers,
    new_table,
    opened,
    planned,
    rows_of,
    upsert,
)
from tests.unit.timeline.loopback import RELEASE, Loopback, commit_offers
from timeline.codecs.commit_log import encode_slot
from timeline.errors import OutcomeUnknownError, StorageUnavailableError
from timeline.model.commit_metadata import ConcurrencyMode, TableType, WriteOperation
from timeline.model.file_names import slot_path
from timeline.model.slot import SlotKind
from timeline.rollback.resolve_unknown import WriteOutcome, resolve

UPSERT, DELETE = WriteOperation.UPSERT, WriteOperation.DELETE


def row(key: str, p: str, v: int) -> dict[str, Any]:
    return {"id": key, "p": p, "ts": v, "v": v}


def member(
    table: TableReader,
    rows: Rows,
    operation: WriteOperation = UPSERT,
    *,
    storage: Any = None,
    **how: Any,
) -> Member:
    """Return a write of another process with its own snapshot of the table."""
    own = opened(table, storage=storage)
    workload = LocalWorkload(own.context.ports, as_table(rows))
    work = prepare_write(
        own.context, planned(own, operation, **how), workload, own.context.cached_snapshot()
    )
    return Member(work, RELEASE)


class Disconnected(Behind):
    """A connection to the storage that may fail."""

    is_down = False

    def names(self, *folder: Any) -> Any:
        if self.is_down:
            raise StorageUnavailableError("no answer")
        return self.inner.names(*folder)


def lost() -> Message | None:
    raise PeerLostError("killed")


def together(table: TableReader, *channels: Loopback) -> list[CommitResult | NotCommitted]:
    return commit_offers(table.context, channels)


def committed(answer: CommitResult | NotCommitted) -> CommitResult:
    assert isinstance(answer, CommitResult)
    return answer


def as_message(result: CommitResult) -> WasCommitted:
    return WasCommitted(
        requested_time=result.requested_time,
        completion_time=result.completion_time,
        group=result.group,
        lost_slots=result.lost_slots,
        own=MemberResult.of(result),
    )


@pytest.mark.spec("GRP-4")
def test_writers_of_other_processes_share_an_instant() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1), row("b", "y", 1)])
    channels = [
        Loopback(member(table, [row("a", "x", 2), row("n", "x", 2)])),
        Loopback(member(table, [row("b", "y", 2)])),
        Loopback(member(table, [row("c", "z", 2)], batch_id="s/3")),
    ]
    answers = [committed(one) for one in together(table, *channels)]
    assert [(one.rows_inserted, one.rows_updated, one.group) for one in answers] == [
        (1, 1, 3),
        (0, 1, 3),
        (1, 0, 3),
    ]
    for channel, answer in zip(channels, answers, strict=True):
        mine = channel.member.commit_result(as_message(answer))
        assert mine == answer
        assert not channel.closed
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 2), ("c", 2), ("n", 2)]
    assert leftovers(table) == []


def test_rows_of_a_bucket_index_find_their_file_groups() -> None:
    table = new_table(table_type=TableType.MERGE_ON_READ)
    buckets = BucketRules(buckets=4, hash_fields=("id",))
    one = Loopback(member(table, [row(f"k{n}", "x", 1) for n in range(20)], buckets=buckets))
    assert committed(together(table, one)[0]).rows_inserted == 20
    two = Loopback(member(table, [row(f"k{n}", "x", 2) for n in range(10)], buckets=buckets))
    assert committed(together(table, two)[0]).rows_updated == 10
    assert {value for _, value in rows_of(table, "id", "v")} == {1, 2}


# ---- what a writer resolves


class Script:
    """The writer's end of a channel, with given messages of the committer."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.sent: list[Message] = []
        self.closed = False

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def receive(self, wait_ms: int) -> Message:
        if not self.messages:
            raise PeerLostError("killed")
        return self.messages.pop(0)

    def close(self) -> None:
        self.closed = True


def test_the_answer_of_a_committer_is_the_answer_of_the_write() -> None:
    table = new_table()
    mine = member(table, [row("a", "x", 1)])
    freed: list[None] = []
    alone = Script(FallBack(why="met"))
    assert write_by_committer(alone, mine, wait_ms=1, done=lambda: freed.append(None)) is None
    assert isinstance(alone.sent[0], Offer)
    assert freed
    assert not alone.closed
    times = {"requested_time": "20260101000000000", "completion_time": "20260101000000001"}
    own = MemberResult(
        rows_inserted=9, rows_updated=9, rows_deleted=9, files_written=9, bytes_written=9
    )
    yes = Script(WasCommitted(**times, group=3, lost_slots=1, own=own))
    result = write_by_committer(yes, mine, wait_ms=1)
    assert result is not None
    assert (result.group, result.lost_slots, result.rows_inserted) == (3, 1, 9)


def test_a_committer_that_dies_before_files_were_written_leaves_nothing() -> None:
    table = new_table()
    mine, dead = member(table, [row("a", "x", 1)]), Script()
    with pytest.raises(PeerLostError):
        write_by_committer(dead, mine, wait_ms=1)
    assert dead.closed
    assert table.context.active().instants == ()


def test_an_interrupted_writer_notifies_the_committer() -> None:
    table = new_table()
    channel = Script()

    def interrupt(wait_ms: int) -> Message:
        raise KeyboardInterrupt

    channel.receive = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        write_by_committer(channel, member(table, [row("a", "x", 1)]), wait_ms=1)
    assert channel.closed


def dead_committer(table: TableReader, *channels: Loopback, after: str) -> TableReader:
    """Return a committer that dies right after it creates a kind of file, and releases nothing."""

    class Deadly(Behind):
        dead = False

        def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
            if self.dead:
                raise KeyboardInterrupt
            self.inner.create(path, data, durable=durable)
            if after in path:
                self.dead = True
                raise KeyboardInterrupt

        def delete(self, path: str) -> None:
            if self.dead:
                raise KeyboardInterrupt
            self.inner.delete(path)

    dying = opened(table, storage=Deadly(table.context.ports.storage))
    with pytest.raises(KeyboardInterrupt):
        together(dying, *channels)
    return dying


@pytest.mark.spec("GRP-6")
def test_a_writer_finds_that_its_committer_committed_before_it_died() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1)])
    channels = [
        Loopback(member(table, [row("a", "x", 2)])),
        Loopback(member(table, [row("b", "y", 2)])),
    ]
    dead_committer(table, *channels, after="/slots/")
    assert len(table.context.active().pending) == 1, "its completed file is missing"
    results = [one.member.resolve(one.member.work.context) for one in channels]
    assert [one and (one.rows_inserted, one.rows_updated, one.group) for one in results] == [
        (0, 1, 2),
        (1, 0, 2),
    ]
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 2)]
    assert len({one.requested_time for one in results if one}) == 1


@pytest.mark.spec("GRP-6")
@pytest.mark.spec("GRP-8")
def test_a_writer_prevents_the_commit_of_its_dead_committer() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1)])
    channels = [Loopback(member(table, [row(key, "x", 2)])) for key in ("a", "b")]

    def dies(_: str, __: frozenset[int]) -> None:
        raise KeyboardInterrupt

    before = data_files(table)
    with pytest.raises(KeyboardInterrupt):
        commit_offers(table.context, channels, publishing=dies)
    assert len(data_files(table)) == len(before) + 1
    for one in channels:
        assert one.member.resolve(one.member.work.context) is None
    head = table.context.commit_log.read(table.context.commit_log.head())
    assert head is not None
    assert head.kind is SlotKind.ABORT
    assert data_files(table) == before
    assert rows_of(table, "id", "v") == [("a", 1)]
    for one in channels:
        write_prepared(one.member.work)
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 2)]


@pytest.mark.spec("GRP-6")
def test_a_committer_that_paused_is_rejected_after_its_writer_resolved_the_write() -> None:
    """The writer times out while the committer pauses right before its commit."""
    table = new_table()
    sleeper, other = (
        Loopback(member(table, [row("a", "x", 1)])),
        Loopback(member(table, [row("b", "y", 1)])),
    )
    results: list[CommitResult | None] = []

    def times_out(_: str, __: frozenset[int]) -> None:
        if results:
            return
        results.append(sleeper.member.resolve(sleeper.member.work.context))
        results.append(write_prepared(sleeper.member.work))

    answers = commit_offers(table.context, [sleeper, other], publishing=times_out)
    assert results[0] is None
    assert results[1] is not None
    assert not any(isinstance(one, CommitResult) for one in answers)
    assert other.member.resolve(other.member.work.context) is None
    assert rows_of(table, "id") == [("a",)]
    assert committed(together(table, other)[0]).rows_inserted == 1
    assert rows_of(table, "id") == [("a",), ("b",)]


@pytest.mark.spec("GRP-6")
def test_a_member_that_conflicts_is_not_in_the_instant_of_the_group() -> None:
    """Deletes are not coalesced."""
    table = new_table()
    upsert(table, [row("k", "x", 1), row("l", "x", 1)])
    channels = [Loopback(member(table, [row(key, "x", 2)], DELETE)) for key in "kl"]
    [one, two] = together(table, *channels)
    assert committed(one).rows_deleted == 1
    assert two is NotCommitted.CONFLICTS
    assert channels[1].member.requested_time == committed(one).requested_time, (
        "the member knows the time of the group"
    )
    assert channels[0].member.resolve(channels[0].member.work.context) is not None
    assert channels[1].member.resolve(channels[1].member.work.context) is None
    assert rows_of(table, "id") == [("l",)]
    before = channels[1].member.requested_time
    assert committed(together(table, channels[1])[0]).rows_deleted == 1
    assert channels[1].member.requested_time != before
    assert rows_of(table, "id") == []


@pytest.mark.spec("GRP-6")
def test_an_unknown_outcome_does_not_report_the_instant_of_the_group_as_that_of_the_write() -> None:
    """The write was assigned to that instant, which committed without it."""
    table = new_table()
    upsert(table, [row("k", "x", 1), row("l", "x", 1)])
    wire = Disconnected(table.context.ports.storage)
    first = Loopback(member(table, [row("k", "x", 2)], DELETE))
    conflicting = Loopback(member(table, [row("l", "x", 2)], DELETE, storage=wire, batch_id="s/1"))
    time = committed(together(table, first, conflicting)[0]).requested_time
    wire.is_down = True
    with pytest.raises(OutcomeUnknownError) as caught:
        conflicting.member.resolve(conflicting.member.work.context)
    assert resolve(table.context, time).outcome is WriteOutcome.PUBLISHED
    assert f"'hoodoo explain TABLE {time} --resolve'" in caught.value.message
    wire.is_down = False
    assert not write_prepared(conflicting.member.work).already_published
    assert rows_of(table, "id") == []


@pytest.mark.spec("SLOT-8")
@pytest.mark.spec("GRP-6")
def test_a_slot_of_a_dropped_table_hides_no_commit_from_its_writer() -> None:
    """A writer with the dropped table open may take a slot here, with much older times."""
    table = new_table()
    mine = Loopback(member(table, [row("a", "x", 1)]))
    result = committed(together(table, mine)[0])
    late = commit_slot(table.context.commit_log.head() + 1, "dropped")
    assert late.completion_time < result.requested_time
    table.context.ports.storage.create(slot_path(late.number), encode_slot(late))
    found = mine.member.resolve(mine.member.work.context)
    assert found is not None
    assert found.requested_time == result.requested_time


@pytest.mark.spec("GRP-6")
def test_a_write_that_cannot_be_resolved_has_an_unknown_outcome() -> None:
    table = new_table()
    wire = Disconnected(table.context.ports.storage)
    mine = Loopback(member(table, [row("a", "x", 1)], storage=wire))
    result = committed(together(table, mine)[0])
    wire.is_down = True
    with pytest.raises(OutcomeUnknownError) as caught:
        mine.member.resolve(mine.member.work.context)
    assert caught.value.fields["requested_time"] == result.requested_time
    wire.is_down = False
    found = write_by_committer(Script(OutcomeUnknown()), mine.member, wait_ms=1)
    assert found is not None
    assert (found.requested_time, found.rows_inserted) == (result.requested_time, 1)


def test_only_a_serializable_request_is_offered_to_a_committer() -> None:
    table = new_table()
    upsert(table, [row("a", "x", 1)])
    assert can_be_offered(member(table, [row("a", "x", 1)]).work)
    overwrite = member(table, [row("a", "x", 1)], WriteOperation.INSERT_OVERWRITE)
    assert not can_be_offered(overwrite.work)
    assert ConcurrencyMode.SINGLE_WRITER is table.context.limits.mode
