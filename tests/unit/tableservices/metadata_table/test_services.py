"""Compaction, clean and archive of the metadata table change nothing that a reader sees (MDT-8)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from filegroups.table import TableReader
from hoodoo.inspect.idle_services import idle_reason
from tableservices.archiving.execute import ArchivingService, archive
from tableservices.archiving.plan import ArchiveRules, ArchivingSettings
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from tableservices.compaction.execute import execute_compaction, schedule_compaction
from tableservices.compaction.plan import CompactionSettings
from tableservices.metadata_table import execute
from tableservices.metadata_table.execute import (
    CheckBackoff,
    MetadataServiceResult,
    MetadataTableService,
    idle_reason_of,
    maintain_metadata_table,
)
from tableservices.metadata_table.plan import (
    MetadataServiceSettings,
    newest_compaction,
    pending_compactions,
    read_metadata_timeline,
)
from tests.unit.filegroups.writing.test_metadata_update import INDEXES, KEYS, check, rows
from tests.unit.timeline.engine import (
    BRISK,
    SMALL,
    Behind,
    Heard,
    StillClock,
    new_table,
    opened,
    put,
)
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from tests.unit.timeline.metadata_tables import add_metadata_table
from timeline.archived import ArchivedTimeline
from timeline.codecs.instant_avro import (
    decode_commit,
    decode_compaction_plan,
    encode_compaction_plan,
)
from timeline.commit.apply import metadata_plan_path
from timeline.context import TableLimits
from timeline.errors import ServiceConflictError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import METADATA_TABLE, TIMELINE, parse_instant_name
from timeline.model.instant import Action
from timeline.model.metadata_table import METADATA_TIMELINE
from timeline.model.slot import SlotKind
from timeline.model.table_config import METADATA_CHANGES
from timeline.properties.properties_file import update_properties
from timeline.properties.setting_enums import CommitLockMode, ForeignWriters
from timeline.storage.subfolder import SubfolderStorage
from timeline.system import NullEvents

ALWAYS = MetadataServiceSettings(commits_max=1)
FEW = ArchivingSettings(commits_kept_min=2, commits_kept_max=3)
RULES = ArchiveRules.from_properties(
    {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
    }
)
LONG_MS = 3_600_000


def metadata_table(table: TableReader) -> MetadataTable:
    context = opened(table).context
    found = open_metadata_table(context.ports.storage, table.config, context.snapshot())
    assert found is not None
    return found


def contents(table: TableReader) -> dict[str, Any]:
    """Return every record of the metadata table."""
    found = metadata_table(table)
    return {
        name: [row for one in found.read(name) for row in one.to_pylist()]
        for name in found.partitions
    }


def with_metadata_table(clock: StillClock | None = None, **given: Any) -> TableReader:
    table = new_table(
        MemoryStorage(ports=MemoryWorld(clock)) if clock else None, clock=clock, **given
    )
    add_metadata_table(table.context.ports.storage, *INDEXES)
    return opened(table, clock=clock)


def maintained(table: TableReader, **given: Any) -> MetadataServiceResult | None:
    return maintain_metadata_table(table.context, ALWAYS, FEW, **given)


def names_of(table: TableReader, partition: str) -> list[str]:
    return sorted(table.context.ports.storage.names(f"{METADATA_TABLE}/{partition}"))


def files_of_times(table: TableReader) -> list[str]:
    return sorted(table.context.ports.storage.names(METADATA_TIMELINE))


# ---- A reader sees the same


@pytest.mark.spec("MDT-8")
@pytest.mark.parametrize(
    ("table_type", "version"), [(TableType.COPY_ON_WRITE, 8), (TableType.MERGE_ON_READ, 9)]
)
def test_a_reader_sees_the_same_records_between_all_services_of_the_metadata_table(
    table_type: TableType, version: int
) -> None:
    chance, clock = random.Random(f"{table_type} {version}"), StillClock()
    table = with_metadata_table(clock, version=version, table_type=table_type)
    put(table, WriteOperation.UPSERT, rows(KEYS[:4], 0))
    compacted = archived = 0
    for value in range(1, 12):
        keys = chance.sample(KEYS, chance.randint(1, 4))
        work = chance.choice(["upsert"] * 2 + ["delete", "overwrite", "service"])
        if work == "service" and table_type is TableType.MERGE_ON_READ:
            planned = schedule_compaction(table.context, CompactionSettings(), files=SMALL)
            if planned is not None:
                execute_compaction(table.context, planned, SMALL)
        elif work == "service":
            clean(table.context, CleaningSettings(commits_retained=1))
        elif work == "delete":
            put(table, WriteOperation.DELETE, rows(keys, value))
        elif work == "overwrite":
            put(table, WriteOperation.INSERT_OVERWRITE, rows(keys, value))
        else:
            put(table, WriteOperation.UPSERT, rows(keys, value))
        if chance.random() < 0.6:
            before = contents(table)
            result = maintained(table)
            compacted += result is not None
            assert contents(table) == before
        if chance.random() < 0.5:
            before = contents(table)
            archived += archive(table.context, RULES) is not None
            assert contents(table) == before
        clock.sleep_ms(LONG_MS)
        check(table)
    assert compacted > 3
    assert archived > 0


def test_old_slices_and_instants_of_the_metadata_table_go() -> None:
    clock = StillClock()
    table = with_metadata_table(clock)
    results = []
    for value in range(12):
        put(table, WriteOperation.UPSERT, rows(KEYS, value))
        results.append(maintained(table))
        archive(table.context, RULES)
        clock.sleep_ms(LONG_MS)
    assert all(one is not None for one in results)
    assert sum(one.instants_archived for one in results if one) > 10
    # Two compactions and their log files, besides the first log file of a group.
    assert len(names_of(table, "files")) <= 4
    assert len(files_of_times(table)) < 3 * 12
    inside = SubfolderStorage(table.context.ports.storage, METADATA_TABLE)
    history = ArchivedTimeline(inside, NullEvents())
    rows_there = [one.requested_time for one in history.instants()]
    assert len(rows_there) == len(set(rows_there)) > 10
    check(table)


def test_a_slice_stays_while_a_reader_may_have_opened_it() -> None:
    clock = StillClock()
    table = with_metadata_table(clock)
    for value in range(4):
        put(table, WriteOperation.UPSERT, rows(KEYS, value))
        result = maintained(table)
        assert result is not None
        assert result.files_deleted == 0
    clock.sleep_ms(LONG_MS)
    put(table, WriteOperation.UPSERT, rows(KEYS, 4))
    result = maintained(table)
    assert result is not None
    assert result.files_deleted > 0
    assert metadata_table(table).slices("files")
    check(table)


# ---- The plan


def test_a_log_file_is_in_the_plan_or_completes_above_it() -> None:
    table = with_metadata_table()
    put(table, WriteOperation.UPSERT, rows(KEYS, 1))
    result = maintained(table)
    assert result is not None
    path = metadata_plan_path(result.requested_time)
    plan = decode_compaction_plan(table.context.ports.storage.read(path), path=path)
    named = {name for one in plan.operations for name in one.delta_file_paths}
    logs = {name for part in INDEXES for name in names_of(table, part) if ".log." in name}
    assert named == logs
    put(table, WriteOperation.UPSERT, rows(KEYS, 2))
    own = read_metadata_timeline(table.context.ports.storage)
    assert own.completed_writes[-1].newest_time > result.completion_time > result.requested_time
    [slot] = [
        one for one in table.context.commit_log.newest_first() if one.kind is SlotKind.METADATA
    ]
    assert (slot.requested_time, slot.completion_time) == (
        result.requested_time,
        result.completion_time,
    )
    assert result.requested_time not in "".join(table.context.ports.storage.names(TIMELINE))


def test_the_completed_file_names_the_base_files() -> None:
    table = with_metadata_table()
    put(table, WriteOperation.UPSERT, rows(KEYS, 1))
    result = maintained(table)
    assert result is not None
    last = newest_compaction(read_metadata_timeline(table.context.ports.storage))
    assert last is not None
    path = f"{METADATA_TIMELINE}/{last.requested_time}_{last.completion_time}.commit"
    done = decode_commit(table.context.ports.storage.read(path), path=path)
    assert done.operation_type == "COMPACT"
    for one in done.write_stats():
        found = table.context.ports.storage.stat(f"{METADATA_TABLE}/{one.path}")
        assert found is not None
        assert found.size_bytes == one.file_size_in_bytes


def test_nothing_is_compacted_before_it_is_due() -> None:
    table = with_metadata_table()
    settings = MetadataServiceSettings(commits_max=4)
    for value in range(2):
        put(table, WriteOperation.UPSERT, rows(KEYS, value))
        assert maintain_metadata_table(table.context, settings, FEW) is None
    assert "3 delta commits; it runs after 4" in idle_reason_of(table.context, settings)
    put(table, WriteOperation.UPSERT, rows(KEYS, 3))
    assert maintain_metadata_table(table.context, settings, FEW) is not None
    assert maintain_metadata_table(table.context, settings, FEW, now=True) is None


def test_a_table_without_metadata_table_gets_no_slot() -> None:
    table = new_table()
    put(table, WriteOperation.UPSERT, rows(KEYS, 1))
    head = table.context.commit_log.head()
    assert maintain_metadata_table(table.context, ALWAYS, FEW, now=True) is None
    assert table.context.commit_log.head() == head


# ---- Crashes, other executors and other engines


@pytest.mark.parametrize("done", ["", "bases", "inflight"])
def test_another_process_completes_the_plan_of_a_dead_one_under_the_same_names(
    done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StillClock()
    table = with_metadata_table(clock)
    put(table, WriteOperation.UPSERT, rows(KEYS, 1))
    before = contents(table)
    merge, made = execute.merge_files, []

    def dies(*given: Any) -> Any:
        made.extend(merge(*given) if done else [])
        raise KeyboardInterrupt

    monkeypatch.setattr(execute, "merge_files", dies)
    with pytest.raises(KeyboardInterrupt):
        maintained(table)
    monkeypatch.undo()
    assert contents(table) == before
    [pending] = pending_compactions(read_metadata_timeline(table.context.ports.storage))
    if done == "inflight":
        name = f"{pending.requested_time}.compaction.inflight"
        table.context.ports.storage.create(f"{METADATA_TIMELINE}/{name}", b"")
    other = opened(table, clock=clock)
    assert maintained(other) is None, "its process may be alive"
    assert "another process" in idle_reason_of(other.context, ALWAYS)
    clock.sleep_ms(LONG_MS)
    result = maintained(other)
    assert result is not None
    assert result.requested_time == pending.requested_time
    assert contents(table) == before
    [slot] = [
        one for one in table.context.commit_log.newest_first() if one.kind is SlotKind.METADATA
    ]
    assert slot.completion_time == result.completion_time
    check(table)


def test_a_plan_that_appears_below_a_newer_compaction_is_deleted() -> None:
    clock = StillClock()
    table = with_metadata_table(clock)
    put(table, WriteOperation.UPSERT, rows(KEYS, 1))
    first = maintained(table)
    assert first is not None
    plan = table.context.ports.storage.read(metadata_plan_path(first.requested_time))
    late = f"{int(first.requested_time) - 2}"
    put(table, WriteOperation.UPSERT, rows(KEYS, 2))
    table.context.ports.storage.create(metadata_plan_path(late), plan)
    before = contents(table)
    clock.sleep_ms(LONG_MS)
    assert maintained(table) is not None
    assert not [name for name in files_of_times(table) if name.startswith(late)]
    assert contents(table) == before


def test_a_plan_with_a_missing_file_is_made_again() -> None:
    clock = StillClock()
    table = with_metadata_table(clock)
    put(table, WriteOperation.UPSERT, rows(KEYS, 1))
    first = maintained(table)
    assert first is not None
    storage = table.context.ports.storage
    plan = storage.read(metadata_plan_path(first.requested_time)).replace(
        b".log.1_0-0-0", b".log.9_0-0-0"
    )
    late = f"{int(first.completion_time) + 1}"
    storage.create(metadata_plan_path(late), plan)
    put(table, WriteOperation.UPSERT, rows(KEYS, 2))
    clock.sleep_ms(LONG_MS)
    assert maintained(table) is None
    assert maintained(table) is not None
    check(table)


def test_an_instant_that_is_pending_on_the_table_holds_the_compaction_and_is_named() -> None:
    table = with_metadata_table()
    put(table, WriteOperation.UPSERT, rows(KEYS, 1))
    storage = table.context.ports.storage
    put(table, WriteOperation.UPSERT, rows(KEYS, 2))
    newest = table.context.active().completed_writes[-1]
    completed = next(
        name
        for name in storage.names(TIMELINE)
        if (one := parse_instant_name(name))
        and one.completed
        and one.requested_time == newest.requested_time
    )
    storage.delete(f"{TIMELINE}/{completed}")  # as after a crash of Java Hudi
    slots = table.context.commit_log.head()
    storage.delete(f".hoodie/.hoodoo/slots/{slots:020}")
    found = opened(table)
    assert maintained(found) is None
    heard = found.context.ports.events
    assert isinstance(heard, Heard)
    [held] = heard.named("metadata_table.compaction_held")
    assert held["instant"] == newest.requested_time
    assert "hoodoo explain" in held["why"]
    assert newest.requested_time in idle_reason_of(found.context, ALWAYS)
    strict = MetadataServiceSettings(commits_max=1, pending_max=1)
    with pytest.raises(ServiceConflictError) as refused:
        maintain_metadata_table(found.context, strict, FEW)
    assert refused.value.kind == "metadata_compaction_held"


def shared(table: TableReader) -> TableReader:
    limits = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)
    return opened(table, limits=limits)


def test_beside_java_everything_happens_in_one_holding_of_the_lock() -> None:
    table = shared(with_metadata_table())
    put(table, WriteOperation.UPSERT, rows(KEYS, 1))
    before = contents(table)
    assert maintained(table) is not None
    assert contents(table) == before
    check(table)


def test_beside_java_a_pending_compaction_of_java_is_left_alone() -> None:
    table = shared(with_metadata_table())
    put(table, WriteOperation.UPSERT, rows(KEYS, 1))
    storage = table.context.ports.storage
    first = maintained(table)
    assert first is not None
    path = metadata_plan_path(first.requested_time)
    plan = decode_compaction_plan(storage.read(path), path=path)
    later = f"{int(first.completion_time) + 1}"
    theirs = metadata_plan_path(later)
    storage.create(theirs, encode_compaction_plan(replace(plan, extra_metadata={})))
    put(table, WriteOperation.UPSERT, rows(KEYS, 2))
    assert maintained(table) is None
    assert storage.stat(theirs) is not None
    heard = table.context.ports.events
    assert isinstance(heard, Heard)
    assert [one["instant"] for one in heard.named("metadata_table.compaction_held")] == [later]


# ---- Archiving of the table


def test_a_table_with_a_metadata_table_archives_nothing_before_a_compaction() -> None:
    table = with_metadata_table()
    for value in range(8):
        put(table, WriteOperation.UPSERT, rows(KEYS[:2], value))
    assert archive(table.context, RULES) is None
    heard = table.context.ports.events
    assert isinstance(heard, Heard)
    assert "--service metadata" in heard.named("archiving.held_by_metadata_table")[0]["why"]
    service = ArchivingService(rules=RULES)
    assert "no compaction yet" in idle_reason(table.context, service)
    assert maintained(table) is not None
    put(table, WriteOperation.UPSERT, rows(KEYS[:2], 9))
    again = opened(table)
    assert archive(again.context, RULES) is not None
    check(table)


def test_the_pending_instant_that_holds_the_archive_is_named() -> None:
    table = new_table()
    for value in range(6):
        put(table, WriteOperation.UPSERT, rows(KEYS[:2], value))
    old = f"{int(table.context.active().completed_writes[0].requested_time) - 2}"
    table.context.ports.storage.create(f"{TIMELINE}/{old}.commit.requested", b"")
    table = opened(table)
    assert archive(table.context, RULES) is None
    why = idle_reason(table.context, ArchivingService(rules=RULES))
    assert f"'hoodoo explain TABLE {old} --resolve'" in why


def test_archiving_does_not_pass_what_no_compaction_merged() -> None:
    table = with_metadata_table()
    for value in range(3):
        put(table, WriteOperation.UPSERT, rows(KEYS[:2], value))
    result = maintained(table)
    assert result is not None
    for value in range(3, 9):
        put(table, WriteOperation.UPSERT, rows(KEYS[:2], value))
    assert archive(table.context, RULES) is not None
    left = table.context.active().completed_writes
    assert len(left) == 6
    assert all(one.newest_time > result.requested_time for one in left)
    check(table)


@pytest.mark.spec("MDT-8")
@pytest.mark.parametrize("action", ["deltacommit", "clean", "rollback"])
def test_what_a_dead_process_of_java_left_pending_does_not_hold_the_archive(action: str) -> None:
    clock = StillClock()
    table = with_metadata_table(clock)
    storage = table.context.ports.storage
    put(table, WriteOperation.UPSERT, rows(KEYS[:2], 0))
    dead = f"{int(table.context.active().completed_writes[-1].requested_time) + 1}"
    files = [f"{METADATA_TIMELINE}/{dead}.{action}.{state}" for state in ("requested", "inflight")]
    log = f"{METADATA_TABLE}/files/.files-0000-0_{dead}.log.1_0-0-0"
    for path in (*files, log):
        storage.create(path, b"")

    def work(values: Iterable[int]) -> list[int]:
        for value in values:
            put(opened(table, clock=clock), WriteOperation.UPSERT, rows(KEYS[:2], value))
            maintained(opened(table, clock=clock))
            archive(opened(table, clock=clock).context, RULES)
        return [len(delta_commits_of(table)), sum(storage.stat(one) is not None for one in files)]

    before, left = work(range(1, 7))
    assert left == 2, "its process may live"
    clock.sleep_ms(LONG_MS)
    after, left = work(range(7, 9))
    assert left == 0
    assert after < before
    assert (storage.stat(log) is None) == (action == "deltacommit")
    check(table)


def delta_commits_of(table: TableReader) -> list[str]:
    names = table.context.ports.storage.names(METADATA_TIMELINE)
    return sorted(name for name in names if name.endswith(".deltacommit") and name < "9")


def lose_one(table: TableReader) -> str:
    """Lose an instant of the metadata table, as with an older copy of its folder."""
    time = table.context.active().completed_writes[-1].requested_time
    for name in table.context.ports.storage.names(METADATA_TIMELINE):
        if name.startswith(time):
            table.context.ports.storage.delete(f"{METADATA_TIMELINE}/{name}")
    return time


def add_one(table: TableReader) -> str:
    """Add an instant that the table lacks, as with an older copy of its own timeline."""
    storage, last = table.context.ports.storage, delta_commits_of(table)[-1]
    time, ended = last.removesuffix(".deltacommit").split("_")
    new = f"{int(time) + 1}"
    content = storage.read(f"{METADATA_TIMELINE}/{last}")
    storage.create(f"{METADATA_TIMELINE}/{new}_{int(ended) + 1}.deltacommit", content)
    return new


@pytest.mark.spec("MDT-8")
@pytest.mark.parametrize("damage", [lose_one, add_one])
def test_a_difference_of_the_timelines_stays_visible_until_it_is_repaired(
    damage: Callable[[TableReader], str],
) -> None:
    table = with_metadata_table()
    for value in range(3):
        put(table, WriteOperation.UPSERT, rows(KEYS[:2], value))
    time = damage(table)
    for value in range(3, 12):
        put(table, WriteOperation.UPSERT, rows(KEYS[:2], value))
        maintained(opened(table))
        archive(opened(table).context, RULES)
    assert metadata_table(table).lag.differing == (time,)
    assert not metadata_table(table).lag.is_trusted
    again = opened(table)
    assert time in idle_reason(again.context, ArchivingService(rules=RULES))


# ---- The service


def test_a_writer_checks_again_only_after_enough_commits() -> None:
    table = with_metadata_table()
    service = MetadataTableService(
        settings=MetadataServiceSettings(commits_max=5), archiving=FEW, after_commits=True
    )
    done = []
    for value in range(10):
        put(table, WriteOperation.UPSERT, rows(KEYS[:2], value))
        done.append(service.run_once(table.context) is not None)
    assert sum(done) == 2
    assert done[3]  # the first delta commit built the metadata table


def test_the_backoff_counts_slots() -> None:
    table = with_metadata_table()
    put(table, WriteOperation.UPSERT, rows(KEYS[:2], 0))
    backoff = CheckBackoff()
    settings = MetadataServiceSettings(commits_max=9)
    maintain_metadata_table(table.context, settings, FEW, backoff=backoff)
    assert backoff.from_slot == table.context.commit_log.known_head + 7


def test_a_compaction_of_the_metadata_table_is_no_plan_of_the_table() -> None:
    table = with_metadata_table()
    put(table, WriteOperation.UPSERT, rows(KEYS[:2], 0))
    maintained(table)
    assert not table.context.active().has_pending(Action.COMPACTION)


# ---- Writers, builds and drops at the same time


def test_a_commit_between_plan_and_execution_is_above_the_compaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = with_metadata_table()
    put(table, WriteOperation.UPSERT, rows(KEYS[:4], 1))
    merge = execute.merge_files

    def late(*given: Any) -> Any:
        put(opened(table), WriteOperation.UPSERT, rows(KEYS, 2))
        return merge(*given)

    monkeypatch.setattr(execute, "merge_files", late)
    assert maintained(table) is not None
    check(table)
    monkeypatch.undo()
    assert maintained(table) is not None
    check(table)


def test_a_lost_slot_makes_the_plan_again(monkeypatch: pytest.MonkeyPatch) -> None:
    table = with_metadata_table()
    table = opened(table, limits=replace(BRISK, publish_lock=CommitLockMode.NONE))
    put(table, WriteOperation.UPSERT, rows(KEYS[:4], 1))
    planning, others = execute.metadata_compaction_plan, [2]

    def late(*given: Any) -> Any:
        plan = planning(*given)
        while others:
            put(opened(table), WriteOperation.UPSERT, rows(KEYS, others.pop()))
        return plan

    monkeypatch.setattr(execute, "metadata_compaction_plan", late)
    result = maintained(table)
    assert result is not None
    own = read_metadata_timeline(table.context.ports.storage)
    assert [one.action for one in own.completed_writes][-1] is Action.COMMIT
    check(table)


def test_a_partition_that_is_being_built_holds_the_compaction() -> None:
    table = with_metadata_table()
    put(table, WriteOperation.UPSERT, rows(KEYS[:4], 1))
    storage = table.context.ports.storage
    now = "hoodie.table.metadata.partitions"
    left = ",".join(sorted({*INDEXES} - {"record_index"}))
    update_properties(storage, {now: left, f"{now}.inflight": "record_index"}, now="now")
    table = opened(table)
    assert maintained(table) is None
    assert "hoodoo metadata drop TABLE record_index" in idle_reason_of(table.context, ALWAYS)


@pytest.mark.parametrize("what", ["the plan is gone", "a partition was built again"])
def test_an_executor_whose_plan_ended_leaves_no_file(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = with_metadata_table()
    put(table, WriteOperation.UPSERT, rows(KEYS[:4], 1))
    storage = table.context.ports.storage
    before, merge = contents(table), execute.merge_files

    def ended(*given: Any) -> Any:
        stats, planned = merge(*given), given[3]
        if what == "the plan is gone":  # as a restore does
            storage.delete(metadata_plan_path(planned.requested_time))
        else:
            update_properties(storage, {METADATA_CHANGES: "7"}, now="now")
        return stats

    monkeypatch.setattr(execute, "merge_files", ended)
    assert maintained(table) is None
    assert not [name for part in INDEXES for name in names_of(table, part) if "hfile" in name]
    assert newest_compaction(read_metadata_timeline(storage)) is None
    assert contents(table) == before


# ---- A crash at each call


class Mortal(Behind):
    """A storage whose process dies at one of its changes, before or after it."""

    def __init__(self, inner: Any, left: int, *, after: bool) -> None:
        super().__init__(inner)
        self.left, self.after = left, after

    def _change(self, name: str, *given: Any, **named: Any) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise KeyboardInterrupt
        getattr(self.inner, name)(*given, **named)
        if self.left == 0:
            raise KeyboardInterrupt

    def create(self, *given: Any, **named: Any) -> None:
        self._change("create", *given, **named)

    def write(self, *given: Any, **named: Any) -> None:
        self._change("write", *given, **named)

    def delete(self, *given: Any, **named: Any) -> None:
        self._change("delete", *given, **named)


def dies_at(call: int, limits: TableLimits, *, after: bool) -> bool:
    """Let the service die at a call; return False if it makes fewer calls."""
    clock = StillClock()
    table = with_metadata_table(clock)
    for value in range(8):
        put(table, WriteOperation.UPSERT, rows(KEYS[:6], value))
        if value in (2, 5):
            maintained(table)
            archive(table.context, RULES)
            clock.sleep_ms(LONG_MS)
    before, died = contents(table), False
    mortal = Mortal(table.context.ports.storage, call, after=after)
    try:
        maintained(opened(table, storage=mortal, clock=clock, limits=limits))
    except KeyboardInterrupt:
        died = True
    assert contents(table) == before
    clock.sleep_ms(LONG_MS)
    other = opened(table, clock=clock, limits=limits)
    put(other, WriteOperation.UPSERT, rows(KEYS, 9))
    check(other)
    maintained(other)
    put(other, WriteOperation.DELETE, rows(KEYS[:1], 10))
    clock.sleep_ms(LONG_MS)
    assert maintained(other) is not None
    archive(other.context, RULES)
    check(other)
    return died


@pytest.mark.slow
@pytest.mark.parametrize(
    ("foreign_writers", "after"), [(ForeignWriters.NONE, True), (ForeignWriters.EXPECTED, False)]
)
def test_a_crash_at_any_call_of_the_service_changes_nothing_that_a_reader_sees(
    foreign_writers: ForeignWriters, after: bool
) -> None:
    limits, call = replace(BRISK, foreign_writers=foreign_writers), 1
    while dies_at(call, limits, after=after):
        call += 1
    assert call > 15
