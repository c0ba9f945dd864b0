"""
The promises I1 to I9 as checkers over ``ObservedTable``.

``check_structure`` is cheap and may run after every step of a simulation: times, sources of base
files, foreign and missing files, stray deletes. ``check_all`` adds the answers that clients got
and the rows that readers saw. Call it at the end of a run, after late requests landed.
Every checker returns all findings and raises nothing, so that one broken promise does not
hide another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.simulator.permits import DeleteRules
from tests.simulator.table_facts import (
    ClientEvent,
    ClientEventKind,
    ObservedSlotKind,
    ObservedTable,
    SlotFact,
    StatFact,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken promise: its id (``I1`` ...) and the finding."""

    invariant: str
    found: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.found}"


def check_structure(facts: ObservedTable, *, same_slots: bool = False) -> list[Violation]:
    """
    Check I5 to I9, which hold after every single step.

    ``same_slots`` means that these slots held before: checks that read only slots are left out.
    """
    checks = _BESIDE_SLOTS if same_slots else _SLOTS_ALONE + _BESIDE_SLOTS
    return [violation for check in checks for violation in check(facts)]


def check_all(facts: ObservedTable) -> list[Violation]:
    """Check I1 to I10, which hold at the end of a run."""
    checks = _CLIENTS + _SLOTS_ALONE + _BESIDE_SLOTS
    return [violation for check in checks for violation in check(facts)]


# ---------------------------------------------------------------- answers to clients


def check_lost_updates(facts: ObservedTable) -> Iterator[Violation]:
    """
    I1: an operation answered ``ok`` is in exactly one slot and in the newest snapshot.

    A key's row may instead name an operation of a later slot; it may be missing only when
    a later operation deleted the key.
    """
    slots = _slots_of_operations(facts)
    invoked = _invocations(facts)
    newest = facts.rows.get(facts.head)
    for event in facts.history:
        if event.kind is not ClientEventKind.OK:
            continue
        operation = event.operation
        places = slots.get(operation, [])
        if len(places) != 1:
            yield _broken("I1", f"{operation} answered ok is in {len(places)} slots {places}")
            continue
        if newest is None or operation not in invoked:
            continue
        for key in invoked[operation].keys:
            why = _why_lost(key, operation, newest, slots, invoked)
            if why:
                yield _broken("I1", why)


def _why_lost(
    key: str,
    operation: str,
    newest: Mapping[str, tuple[str, ...]],
    slots: Mapping[str, list[int]],
    invoked: Mapping[str, ClientEvent],
) -> str:
    """Return the defect of one key of a committed operation; empty when there is none."""
    mine = slots[operation][0]
    row = newest.get(key, ())
    later_or_mine = [
        other
        for other, event in invoked.items()
        if key in event.keys and other in slots and max(slots[other]) >= mine
    ]
    if not row:
        if any(invoked[other].deletes for other in later_or_mine):
            return ""
        return f"row {key} of {operation} (slot {mine}) is lost and no operation deleted it"
    if operation in row:
        if invoked[operation].deletes and row[-1] == operation:
            return f"row {key} is still there after {operation} (slot {mine}) deleted it"
        return ""
    if any(other in row for other in later_or_mine):
        return ""
    return f"row {key} shows {row} although {operation} wrote it in the later slot {mine}"


def check_honest_answers(facts: ObservedTable) -> Iterator[Violation]:
    """I2: ``fail`` is in no slot and no row, ever; ``info`` is in at most one slot."""
    slots = _slots_of_operations(facts)
    shown = {
        operation
        for rows in facts.rows.values()
        for operations in rows.values()
        for operation in operations
    }
    answered: Counter[str] = Counter()
    for event in facts.history:
        places = slots.get(event.operation, [])
        if event.kind is ClientEventKind.FAIL:
            if places:
                yield _broken("I2", f"{event.operation} answered fail is in slots {places}")
            elif event.operation in shown:
                yield _broken("I2", f"{event.operation} answered fail is in a row")
        if event.kind is ClientEventKind.INFO and len(places) > 1:
            yield _broken("I2", f"{event.operation} answered info is in slots {places}")
        if event.kind in _ANSWERS:
            answered[event.operation] += 1
    for operation, count in answered.items():
        if count > 1:
            yield _broken("I2", f"{operation} was answered {count} times")


def check_dirty_reads(facts: ObservedTable) -> Iterator[Violation]:
    """I3: each row that a read returned belongs to a slot of its snapshot."""
    slots = _slots_of_operations(facts)
    for event in _reads(facts):
        for key, operations in sorted((event.rows or {}).items()):
            for operation in operations:
                places = slots.get(operation)
                if not places:
                    yield _broken("I3", f"{event.operation} saw {operation} at {key}: in no slot")
                elif event.snapshot is not None and min(places) > event.snapshot:
                    yield _broken(
                        "I3",
                        f"{event.operation} at slot {event.snapshot} saw {operation} of slot "
                        f"{min(places)} at {key}",
                    )


def check_repeatable_reads(facts: ObservedTable) -> Iterator[Violation]:
    """I4: all reads of one snapshot agree, with each other and with the table's own answer."""
    expected: dict[int, tuple[str, Mapping[str, tuple[str, ...]]]] = {
        number: ("the table", rows) for number, rows in facts.rows.items()
    }
    for event in _reads(facts):
        if event.snapshot is None or event.rows is None:
            continue
        who, rows = expected.setdefault(event.snapshot, (event.operation, event.rows))
        if dict(rows) != dict(event.rows):
            differing = sorted(
                key for key in {*rows, *event.rows} if rows.get(key) != event.rows.get(key)
            )
            yield _broken(
                "I4",
                f"{event.operation} and {who} differ on snapshot {event.snapshot} at {differing}",
            )


def check_services_unseen(facts: ObservedTable) -> Iterator[Violation]:
    """I10: services change no rows; compared where the files of both snapshots exist."""
    before: Mapping[str, tuple[str, ...]] | None = None
    for slot in _commits(facts):
        rows = facts.rows.get(slot.number)
        if slot.action in _MOVING and before is not None and rows is not None:
            keys = {*rows, *before}
            differing = sorted(key for key in keys if rows.get(key) != before.get(key))
            if differing:
                yield _broken("I10", f"slot {slot.number} ({slot.action}) changed {differing}")
        before = rows


# ---------------------------------------------------------------- the table's content


def check_base_chains(facts: ObservedTable) -> Iterator[Violation]:
    """
    I5: each base file's source is the newest base file of its file group before it.

    A base file of a plan is compared at the plan's position: below all writes that began and
    committed after the plan.
    """
    newest: dict[tuple[str, str], tuple[str, str]] = {}  # requested time, path
    planned: dict[str, dict[tuple[str, str], tuple[str, str]]] = {}
    replaced: dict[tuple[str, str], int] = {}
    for slot in facts.slots:
        if slot.kind is ObservedSlotKind.PLAN:
            planned[slot.requested_time] = dict(newest)
        if slot.kind is not ObservedSlotKind.COMMIT:
            continue
        sources = planned.get(slot.requested_time, newest)
        for stat in slot.stats:
            group = stat.file_group
            if group in replaced and sources is newest:
                yield _broken(
                    "I5",
                    f"slot {slot.number} writes {stat.path} into a file group that slot "
                    f"{replaced[group]} replaced",
                )
            if not stat.is_base:
                continue
            _, source = sources.get(group, ("", None))
            if stat.previous_base != source:
                yield _broken(
                    "I5",
                    f"slot {slot.number} made {stat.path} from {stat.previous_base}, "
                    f"the newest was {source}",
                )
            above = newest.get(group, ("", ""))
            if sources is newest and above[0] > slot.requested_time:
                yield _broken(
                    "I5", f"slot {slot.number} made {stat.path}, which {above[1]} hides (PUB-5)"
                )
            newest[group] = max(above, (slot.requested_time, stat.path))
        for group in slot.replaces:
            replaced[group] = slot.number
            newest.pop(group, None)


def check_times(facts: ObservedTable) -> Iterator[Violation]:
    """I6: slots have no gap, times are unique and ascending, timeline and slots agree."""
    yield from _check_slot_times(facts)
    yield from _check_timeline_against_slots(facts)


def _check_slot_times(facts: ObservedTable) -> Iterator[Violation]:
    newest_completion = ""
    greatest = ""
    requested: dict[str, SlotFact] = {}
    for before, slot in zip((None, *facts.slots), facts.slots, strict=False):
        if before is not None and slot.number != before.number + 1:
            yield _broken("I6", f"slot {slot.number} follows slot {before.number}")
        own = (
            slot.own_requested_time if slot.kind is ObservedSlotKind.ABORT else slot.requested_time
        )
        completion = slot.completion_time
        if own is not None and slot.kind in _DRAWS_TIME:
            first = requested.setdefault(own, slot)
            fulfils = first.kind is ObservedSlotKind.PLAN and slot.kind is ObservedSlotKind.COMMIT
            if first is not slot and not fulfils:
                yield _broken(
                    "I6", f"requested time {own} is in slots {first.number}, {slot.number}"
                )
        if completion is not None:
            if own is not None and completion <= own:
                yield _broken("I6", f"slot {slot.number} completed at {completion}, begun at {own}")
            if completion <= newest_completion:
                yield _broken(
                    "I6",
                    f"slot {slot.number} completed at {completion}, an earlier slot "
                    f"at {newest_completion}",
                )
            if completion <= greatest:
                yield _broken(
                    "I6",
                    f"slot {slot.number} completed at {completion}, not above the known time "
                    f"{greatest}",
                )
            newest_completion = max(newest_completion, completion)
        greatest = max(greatest, own or "", completion or "")


def _check_timeline_against_slots(facts: ObservedTable) -> Iterator[Violation]:
    seen = Counter(one.requested_time for one in facts.instants if one.action != "savepoint")
    slot_times = {
        (
            slot.own_requested_time if slot.kind is ObservedSlotKind.ABORT else slot.requested_time
        ): slot
        for slot in facts.slots
        if slot.completion_time is not None
    }
    completed = {
        instant.requested_time: instant
        for instant in facts.instants
        if instant.state == "completed"
    }
    for instant in facts.instants:
        slot = slot_times.get(instant.requested_time)
        if instant.state != "completed" or instant.action == "savepoint":
            continue
        if slot is None:
            yield _broken("I6", f"{instant.requested_time} is completed without a slot")
        elif slot.completion_time != instant.completion_time:
            yield _broken(
                "I6",
                f"{instant.requested_time} is completed at {instant.completion_time}, its slot "
                f"{slot.number} says {slot.completion_time}",
            )
    for requested_time, count in seen.items():
        if count > 1:
            yield _broken("I6", f"{requested_time} names {count} instants")
    # PUB-3: before a writer takes a slot it applies all but the last, so only two may lack their
    # files.
    last = facts.head - sum(slot.kind is ObservedSlotKind.COMMIT for slot in facts.slots[-1:])
    for own, slot in slot_times.items():
        settled = (
            own in completed or own in facts.archived or slot.kind is not ObservedSlotKind.COMMIT
        )
        if slot.number < last and not settled:
            yield _broken("I6", f"slot {slot.number} ({own}) is not on the timeline")


def check_files_exist(facts: ObservedTable) -> Iterator[Violation]:
    """I7: every file of every snapshot from the floor on exists with the recorded size."""
    reported: set[str] = set()
    for number, stat in facts.needed or needed_files(facts):
        path, size = stat.path, facts.files.get(stat.path)
        if size != stat.size_bytes and path not in reported:
            reported.add(path)
            state = "is missing" if size is None else f"has {size} bytes"
            yield _broken("I7", f"{path} of snapshot {number} {state}, recorded {stat.size_bytes}")


def needed_files(facts: ObservedTable) -> tuple[tuple[int, StatFact], ...]:
    """Every file of a snapshot that must be readable, with the first such snapshot."""
    found: dict[int, tuple[int, StatFact]] = {}
    for number, files in _readable_snapshots(facts):
        for stat in files.values():
            found.setdefault(id(stat), (number, stat))
    return tuple(found.values())


def check_foreign_files(facts: ObservedTable) -> Iterator[Violation]:
    """I8: readers and completed instants show only files that the slots up to there added."""
    aborted = {slot.requested_time for slot in facts.slots if slot.kind is ObservedSlotKind.ABORT}
    recorded = {slot.requested_time: slot for slot in _commits(facts)}
    for requested_time in sorted(aborted & recorded.keys()):
        yield _broken("I8", f"{requested_time} has a commit slot and an abort slot")
    for instant in facts.instants:
        if instant.state != "completed" or not instant.stats:
            continue
        slot = recorded.get(instant.requested_time)
        ours = {stat.path for stat in slot.stats} if slot else set()
        for stat in instant.stats:
            if stat.path not in ours:
                yield _broken(
                    "I8", f"{instant.requested_time} shows {stat.path}, which its slot does not add"
                )
    for number, visible in sorted(facts.visible.items()):
        for path in sorted(visible - files_of_snapshot(facts, number).keys()):
            yield _broken("I8", f"snapshot {number} reads {path}, which no slot up to it added")


def check_stray_deletes(facts: ObservedTable) -> Iterator[Violation]:
    """
    I9: a deleted data file was cleaned, aborted, or its owner's own unpublished attempt.

    Only slots that existed at the moment of the deletion count as permission (CLN-1, RB-1).
    """
    if not facts.deletions:
        return
    permits = DeleteRules(facts.slots)
    for deletion in facts.deletions:
        if not permits.allow(deletion):
            yield _broken(
                "I9",
                f"{deletion.actor} deleted {deletion.path} at head {deletion.head} "
                f"without a right to ({deletion.why or 'no reason given'})",
            )


# ---------------------------------------------------------------- the model


class _Reading:
    """The files that a reader reads, commit by commit: newest base files and logs on top."""

    def __init__(self) -> None:
        self._bases: dict[tuple[str, str], tuple[str, StatFact]] = {}
        self._logs: dict[tuple[str, str], list[tuple[str, StatFact]]] = defaultdict(list)

    def add(self, slot: SlotFact) -> None:
        """Advance to the snapshot of this commit."""
        bases, logs = self._bases, self._logs
        for stat in slot.stats:
            group = stat.file_group
            if not stat.is_base:
                logs[group].append((slot.completion_time or "", stat))
            elif group not in bases or bases[group][0] < slot.requested_time:
                bases[group] = (slot.requested_time, stat)
        for group in slot.replaces:
            bases.pop(group, None)
            logs.pop(group, None)

    def files(self) -> dict[str, StatFact]:
        """Those of now: logs count that completed after the base file was requested (fmt 6.1)."""
        found = {}
        for group in dict.fromkeys((*self._bases, *self._logs)):
            since, base = self._bases.get(group, ("", None))
            if base is not None:
                found[base.path] = base
            logs = self._logs.get(group, ())
            found.update((stat.path, stat) for done, stat in logs if done > since)
        return found


def files_of_snapshot(facts: ObservedTable, number: int) -> dict[str, StatFact]:
    """Files a reader of the snapshot at slot ``number`` reads."""
    reading = _Reading()
    for slot in _commits(facts):
        if slot.number > number:
            break
        reading.add(slot)
    return reading.files()


def _readable_snapshots(facts: ObservedTable) -> Iterator[tuple[int, dict[str, StatFact]]]:
    """Every commit from the floor on, with its files; the head's when there is none."""
    reading, some = _Reading(), False
    for slot in _commits(facts):
        reading.add(slot)
        if slot.number >= facts.floor:
            some = True
            yield slot.number, reading.files()
    if not some:
        yield facts.head, reading.files()


def _commits(facts: ObservedTable) -> list[SlotFact]:
    return [slot for slot in facts.slots if slot.kind is ObservedSlotKind.COMMIT]


def _slots_of_operations(facts: ObservedTable) -> dict[str, list[int]]:
    places: dict[str, list[int]] = defaultdict(list)
    for slot in _commits(facts):
        for operation in slot.operations:
            places[operation].append(slot.number)
    return dict(places)


def _invocations(facts: ObservedTable) -> dict[str, ClientEvent]:
    return {
        event.operation: event for event in facts.history if event.kind is ClientEventKind.INVOKE
    }


def _reads(facts: ObservedTable) -> list[ClientEvent]:
    return [event for event in facts.history if event.kind is ClientEventKind.READ]


def _broken(invariant: str, found: str) -> Violation:
    return Violation(invariant=invariant, found=found)


_ANSWERS = frozenset({ClientEventKind.OK, ClientEventKind.FAIL, ClientEventKind.INFO})
_MOVING = frozenset({"compaction", "logcompaction", "clustering"})
_DRAWS_TIME = frozenset(
    {ObservedSlotKind.COMMIT, ObservedSlotKind.PLAN, ObservedSlotKind.ABORT, ObservedSlotKind.CLEAN}
)

_Checker = Callable[[ObservedTable], Iterator[Violation]]
_CLIENTS: tuple[_Checker, ...] = (
    check_lost_updates,
    check_honest_answers,
    check_dirty_reads,
    check_repeatable_reads,
    check_services_unseen,
)
_SLOTS_ALONE: tuple[_Checker, ...] = (check_base_chains, _check_slot_times)
_BESIDE_SLOTS: tuple[_Checker, ...] = (
    _check_timeline_against_slots,
    check_files_exist,
    check_foreign_files,
    check_stray_deletes,
)
