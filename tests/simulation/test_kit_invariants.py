"""Each invariant fires in at least one test; a correct history keeps them all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.invariants import check_all, check_structure, files_of_snapshot
from tests.simulator.table_builder import TableBuilder
from tests.simulator.table_facts import (
    ClientEventKind,
    InstantFact,
    ObservedSlotKind,
    ObservedTable,
    StatFact,
)


def broken(facts: ObservedTable) -> set[str]:
    return {violation.invariant for violation in check_all(facts)}


def two_commits() -> TableBuilder:
    table = TableBuilder()
    table.commit("op1", "k1", "k2")
    table.commit("op2", "k2", actor="b")
    return table


def change_slot(table: TableBuilder, place: int, /, **changes: object) -> ObservedTable:
    facts = table.facts()
    slots = [
        replace(slot, **changes) if slot.number == place else slot  # type: ignore[arg-type]
        for slot in facts.slots
    ]
    return replace(facts, slots=tuple(slots))


def change_instant(facts: ObservedTable, place: int, **changes: object) -> ObservedTable:
    instants = list(facts.instants)
    instants[place] = replace(instants[place], **changes)  # type: ignore[arg-type]
    return replace(facts, instants=tuple(instants))


def pending(requested_time: str) -> InstantFact:
    return InstantFact(action="commit", requested_time=requested_time, state="inflight")


def test_correct_history_keeps_every_invariant() -> None:
    table = two_commits()
    zombie = table.next_time()
    table.abort(zombie)
    table.delete(f"f1_1-0-0_{zombie}.parquet", actor="b", why="rollback")
    table.commit("op3", "k9", file_id="f2")
    old = table.facts().slots[0].stats[0].path
    table.clean(old)
    facts = table.facts(floor=2)
    table.say(ClientEventKind.READ, "read1", snapshot=2, rows=facts.rows[2])
    facts = table.facts(floor=2, visible={2: frozenset(files_of_snapshot(facts, 2))})
    assert check_all(facts) == []
    assert check_structure(facts) == []


def test_empty_table_keeps_every_invariant() -> None:
    assert check_all(ObservedTable()) == []


# ---------------------------------------------------------------- I1


def test_i1_fires_when_an_acknowledged_operation_is_in_no_slot() -> None:
    table = two_commits()
    table.say(ClientEventKind.INVOKE, "op3", keys=("k3",))
    table.say(ClientEventKind.OK, "op3")
    assert broken(table.facts()) == {"I1"}


def test_i1_fires_when_an_operation_was_committed_twice() -> None:
    facts = change_slot(two_commits(), 2, operations=frozenset({"op1", "op2"}))
    assert broken(facts) == {"I1"}


def test_i1_fires_when_a_row_is_missing() -> None:
    table = two_commits()
    rows = {**table.facts().rows, 2: {"k2": ("op2",)}}
    assert broken(table.facts(rows=rows)) == {"I1"}


def test_i1_fires_when_an_older_row_shadows_a_newer_one() -> None:
    table = two_commits()
    rows = {**table.facts().rows, 2: {"k1": ("op1",), "k2": ("op1",)}}
    assert broken(table.facts(rows=rows)) == {"I1"}


def test_i1_accepts_a_row_that_a_later_operation_overwrote_or_deleted() -> None:
    table = two_commits()
    assert broken(table.facts()) == set()
    slot = table.commit("op3")
    table.say(ClientEventKind.INVOKE, "op3", keys=("k1",), deletes=True)
    rows = {**table.facts().rows, slot.number: {"k2": ("op2",)}}
    assert broken(table.facts(rows=rows)) == set()


# ---------------------------------------------------------------- I2, I3, I4


def test_i2_fires_when_a_failed_operation_is_in_a_slot() -> None:
    table = TableBuilder()
    table.commit("op1", "k1")
    table.say(ClientEventKind.INVOKE, "op2", actor="b")
    table.say(ClientEventKind.FAIL, "op2", actor="b")
    assert broken(table.facts()) == set()
    slot = table.facts().slots[0]
    assert broken(table.facts(slots=(replace(slot, operations=frozenset({"op1", "op2"})),))) == {
        "I2"
    }


def test_i2_fires_when_a_failed_operation_is_in_a_row() -> None:
    table = TableBuilder()
    table.commit("op1", "k1")
    table.say(ClientEventKind.FAIL, "op2", actor="b")
    assert broken(table.facts(rows={1: {"k1": ("op1",), "k2": ("op2",)}})) == {"I2"}


def test_i2_fires_when_an_unknown_operation_was_committed_twice() -> None:
    table = two_commits()
    table.say(ClientEventKind.INFO, "op3")
    slots = tuple(
        replace(slot, operations=slot.operations | {"op3"}) for slot in table.facts().slots
    )
    assert broken(table.facts(slots=slots)) == {"I2"}


def test_i2_fires_when_a_client_got_two_answers() -> None:
    table = two_commits()
    table.say(ClientEventKind.INFO, "op1")
    assert broken(table.facts()) == {"I2"}


def test_i3_fires_when_a_read_contains_an_uncommitted_row() -> None:
    table = two_commits()
    table.say(ClientEventKind.READ, "read1", snapshot=7, rows={"k1": ("dirty",)})
    assert broken(table.facts()) == {"I3"}


def test_i3_fires_when_a_read_saw_a_later_slot() -> None:
    table = two_commits()
    rows = {"k1": ("op1",), "k2": ("op2",)}
    table.say(ClientEventKind.READ, "read1", snapshot=1, rows=rows)
    assert "I3" in broken(table.facts())


def test_i4_fires_when_two_reads_of_one_snapshot_differ() -> None:
    table = two_commits()
    table.say(ClientEventKind.READ, "read1", snapshot=1, rows={"k1": ("op1",)})
    table.say(ClientEventKind.READ, "read2", snapshot=1, rows={})
    newest_only = {2: table.facts().rows[2]}
    assert broken(table.facts(rows=newest_only)) == {"I4"}


def test_i4_fires_when_a_read_differs_from_the_table() -> None:
    table = two_commits()
    table.say(ClientEventKind.READ, "read1", snapshot=1, rows={"k1": ("op1",)})
    assert broken(table.facts()) == {"I4"}


# ---------------------------------------------------------------- I10


def test_i10_fires_when_a_service_changes_a_row() -> None:
    table = TableBuilder()
    table.commit("op1", "k1")
    first = table.facts()
    table.commit("op2", "k1")
    assert "I10" not in broken(table.facts())
    facts = change_slot(table, 2, action="compaction")
    assert "I10" in broken(facts)
    same = replace(facts, rows={**facts.rows, 2: first.rows[1]})
    assert "I10" not in broken(same)


# ---------------------------------------------------------------- I5


def forked_base(source: str | None) -> ObservedTable:
    table = two_commits()
    stat = replace(table.facts().slots[1].stats[0], previous_base=source)
    facts = change_slot(table, 2, stats=(stat,))
    return change_instant(facts, 1, stats=(stat,))


def test_i5_fires_when_a_base_file_has_no_source() -> None:
    assert broken(forked_base(None)) == {"I5"}


def test_i5_fires_when_two_base_files_have_one_source() -> None:
    table = two_commits()
    table.commit("op3", "k3")
    first = table.facts().slots[0].stats[0].path
    stat = replace(table.facts().slots[2].stats[0], previous_base=first)
    facts = change_instant(change_slot(table, 3, stats=(stat,)), 2, stats=(stat,))
    assert broken(facts) == {"I5"}


def test_i5_fires_when_a_replaced_file_group_is_written() -> None:
    facts = change_slot(two_commits(), 1, replaces=frozenset({("", "f1")}))
    assert "I5" in broken(facts)


# ---------------------------------------------------------------- I6


def test_i6_fires_when_completion_times_do_not_follow_the_slots() -> None:
    table = two_commits()
    first = table.facts().slots[0]
    facts = change_slot(
        table, 2, requested_time="20250101000000000", completion_time=first.requested_time
    )
    assert "I6" in broken(facts)


def test_i6_fires_when_a_completion_is_not_above_an_earlier_requested_time() -> None:
    table = TableBuilder()
    low = table.next_time()
    table.commit("op1", "k1")
    slots = table.facts().slots
    later_plan = replace(
        slots[0],
        number=2,
        kind=ObservedSlotKind.PLAN,
        requested_time="20270101000000000",
        completion_time=None,
        stats=(),
        operations=frozenset(),
    )
    third = replace(
        slots[0],
        number=3,
        requested_time=low,
        completion_time="20260601000000000",
        stats=(),
        operations=frozenset(),
    )
    found = check_structure(table.facts(slots=(slots[0], later_plan, third)))
    assert any("not above the known time 20270101000000000" in str(item) for item in found)


def test_i6_fires_when_two_slots_have_one_requested_time() -> None:
    table = two_commits()
    facts = change_slot(table, 2, requested_time=table.facts().slots[0].requested_time)
    assert "I6" in broken(facts)


def test_i6_fires_when_completed_at_its_requested_time() -> None:
    table = two_commits()
    facts = change_slot(table, 2, completion_time=table.facts().slots[1].requested_time)
    assert "I6" in broken(facts)


def test_i6_fires_for_a_gap_in_the_slots() -> None:
    assert "I6" in broken(change_slot(two_commits(), 2, number=3))


def test_i6_fires_for_a_completed_instant_without_slot() -> None:
    table = two_commits()
    facts = table.facts()
    foreign = replace(facts.instants[0], requested_time=table.next_time(), stats=())
    assert broken(replace(facts, instants=(*facts.instants, foreign))) == {"I6"}


def test_i6_fires_when_completed_file_and_slot_have_different_times() -> None:
    table = two_commits()
    assert broken(change_instant(table.facts(), 0, completion_time=table.next_time())) == {"I6"}


@pytest.mark.spec("PUB-3")
def test_i6_fires_for_an_unapplied_slot_below_the_last_two_commits_only() -> None:
    table = two_commits()
    table.commit("op3", "k3")
    facts = table.facts()
    first, second, third = facts.instants
    assert broken(replace(facts, instants=(second, third))) == {"I6"}
    assert broken(replace(facts, instants=(first,))) == set()
    archived = frozenset({first.requested_time})
    assert broken(replace(facts, instants=(second, third), archived=archived)) == set()


@pytest.mark.spec("PUB-3")
def test_i6_fires_for_an_unapplied_commit_before_a_table_service() -> None:
    table = two_commits()
    table.abort(table.next_time())
    facts = table.facts()
    first, _second, *others = facts.instants
    assert broken(facts) == set()
    assert broken(replace(facts, instants=(first, *others))) == {"I6"}


def test_i6_fires_when_two_pending_instants_share_a_time() -> None:
    table = two_commits()
    twins = (pending("20270101000000000"), pending("20270101000000000"))
    assert broken(table.facts(instants=(*table.facts().instants, *twins))) == {"I6"}


# ---------------------------------------------------------------- I7, I8, I9


def test_i7_fires_when_a_file_of_a_snapshot_is_missing_or_short() -> None:
    table = two_commits()
    facts = table.facts()
    path = facts.slots[1].stats[0].path
    assert broken(replace(facts, files={**facts.files, path: 4})) == {"I7"}
    without = {name: size for name, size in facts.files.items() if name != path}
    assert broken(replace(facts, files=without)) == {"I7"}


def test_i7_checks_every_snapshot_from_the_floor_on() -> None:
    facts = two_commits().facts()
    without_first = {facts.slots[1].stats[0].path: 101}
    assert broken(replace(facts, files=without_first, floor=1)) == {"I7"}
    assert broken(replace(facts, files=without_first, floor=2)) == set()


def test_i8_fires_when_a_reader_sees_a_file_of_no_slot() -> None:
    facts = two_commits().facts()
    assert broken(replace(facts, visible={2: frozenset({"f9_0-0-0_1.parquet"})})) == {"I8"}


def test_i8_fires_when_a_reader_still_sees_an_older_slice() -> None:
    facts = two_commits().facts()
    both = frozenset(stat.path for slot in facts.slots for stat in slot.stats)
    assert broken(replace(facts, visible={2: both})) == {"I8"}


def test_i8_fires_when_a_completed_file_names_more_than_its_slot() -> None:
    facts = two_commits().facts()
    stray = StatFact(partition_path="", file_id="f9", path="f9.parquet", size_bytes=1)
    changed = change_instant(facts, 1, stats=(*facts.instants[1].stats, stray))
    assert broken(changed) == {"I8"}


def test_i8_fires_when_an_aborted_instant_is_committed() -> None:
    table = two_commits()
    table.abort(table.facts().slots[1].requested_time)
    assert "I8" in broken(table.facts())


def test_i9_fires_when_a_committed_file_is_deleted_without_a_clean() -> None:
    table = two_commits()
    table.delete(table.facts().slots[0].stats[0].path, actor="a")
    assert broken(table.facts(floor=2)) == {"I9"}


def test_i9_fires_when_deleted_before_the_slot_that_allows_it() -> None:
    table = two_commits()
    target = table.next_time()
    table.delete(f"f1_1-0-0_{target}.parquet", actor="b", why="rollback")
    table.abort(target)
    assert broken(table.facts()) == {"I9"}


def test_i9_accepts_the_owners_own_attempts() -> None:
    table = two_commits()
    table.delete(f"f1_1-0-0_{table.next_time()}.parquet", actor="a", owner="a")
    published = table.facts().slots[1].requested_time
    table.delete(f"f1_9-9-9_{published}.parquet", actor="b", owner="b")
    assert broken(table.facts()) == set()
