"""
Random serial runs, as clients and a table record them, are clean; one defect is found.

A small table of rows is played, one operation after the other. Its records have every feature that
makes a correct run seem wrong: keys in two places, retried writes, unknown answers, repeated
batches, rows hidden by an overwrite, rolled back writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoodoo.history_checker.anomalies import AnomalyKind, find_anomalies
from hoodoo.history_checker.history import HistoryRecorder

ITEMS = ("a", "b", "c", "d")
Rows = dict[tuple[str, str], str]  # (item, place): version


@dataclass
class Table:
    """Rows by position, and the recorded run."""

    run: HistoryRecorder = field(default_factory=HistoryRecorder)
    states: list[tuple[int, Rows]] = field(default_factory=lambda: [(0, {})])
    committed: list[tuple[str, str | None]] = field(default_factory=list)
    count: int = 0

    @property
    def rows(self) -> Rows:
        return self.states[-1][1]

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count:03d}"

    def seen(self, items: list[str], rows: Rows) -> list[tuple[str, str | None]]:
        """Of a key in two places a client is shown the first."""
        places = [sorted(place for key, place in rows if key == item) for item in items]
        return [
            (item, rows[item, of[0]] if of else None)
            for item, of in zip(items, places, strict=True)
        ]

    def commit(self, name: str, place: str, rows: Rows, batch: str | None = None) -> None:
        position = 10 * self.count
        self.states.append((position, rows))
        self.committed.append((name, batch))
        self.run.transaction(name, position=position, places=[place], batch=batch)

    def write(self, items: list[str], place: str, *, tells: bool, looks: int, reads: int) -> None:
        """A write of a client that may have restarted; a journal records it if ``tells``."""
        name = self.name("T")
        if tells:
            answer = "ok" if self.count % 3 else None
            snapshot = self.states[-1 - looks % len(self.states)][0] if looks else None
            self.run.transaction(name, answer=answer, snapshot=snapshot)
            self.run.reads(name, self.seen(list(ITEMS[:reads]), self.rows))
            self.run.writes(name, items)
        rows = self.rows | {(item, place): name for item in items}
        self.commit(name, place, rows, batch=f"b{name}")

    def delete(self, items: list[str], place: str, *, tells: bool, looks: int, reads: int) -> None:
        name = self.name("T")
        if tells:
            self.run.transaction(name, answer="ok")
            self.run.reads(name, self.seen(list(ITEMS[:reads]), self.rows))
            self.run.writes(name, items, deletes=True)
        else:
            self.run.cleared = 10 * self.count
        gone = {(item, place) for item in items}
        self.commit(name, place, {k: v for k, v in self.rows.items() if k not in gone})

    def overwrite(
        self, items: list[str], place: str, *, tells: bool, looks: int, reads: int
    ) -> None:
        """No client names the rows that it hides."""
        name = self.name("T")
        self.run.cleared = 10 * self.count
        if tells:
            self.run.transaction(name, answer="ok")
            self.run.writes(name, items)
        kept = {k: v for k, v in self.rows.items() if k[1] != place}
        self.commit(name, place, kept | {(item, place): name for item in items})

    def fail(self, items: list[str], place: str, *, tells: bool, looks: int, reads: int) -> None:
        """A write that was refused after it saw its own rows."""
        name = self.name("T")
        state = self.states[-1 - looks % len(self.states)]
        self.run.transaction(name, answer="fail" if tells else None, snapshot=state[0])
        self.run.writes(name, items)
        self.run.reads(name, [(item, name) for item in items])
        self.run.reads(name, self.seen([i for i in ITEMS[:reads] if i not in items], state[1]))

    def repeat(self, items: list[str], place: str, *, tells: bool, looks: int, reads: int) -> None:
        """A repeated batch has the first commit result."""
        if self.committed:
            name, batch = self.committed[-1]
            self.run.transaction(name, answer="ok", batch=batch)

    def undo(self, items: list[str], place: str, *, tells: bool, looks: int, reads: int) -> None:
        """Roll back the newest write; the rows that it hid are visible again."""
        if len(self.states) > 1:
            position, _ = self.states.pop()
            name, _ = self.committed.pop()
            self.run._transactions[name].pop("position")
            self.run._transactions[name].pop("batch", None)
            self.run.transaction(name, undone=True)
            self.run.cleared = max(self.run.cleared, position)

    def read(self, items: list[str], place: str, *, tells: bool, looks: int, reads: int) -> None:
        """Some keys, or all rows with their places, as of now or of before."""
        name = self.name("R")
        position, rows = self.states[-1 - looks % len(self.states)]
        self.run.transaction(name, snapshot=position if reads else None, full=tells)
        if not tells:
            self.run.reads(name, self.seen(items, rows))
            return
        columns = [[key[0] for key in rows], list(rows.values()), [key[1] for key in rows]]
        self.run.reads_rows(name, *(pa.chunked_array([pa.array(c, pa.string())]) for c in columns))


KINDS = ("write", "write", "delete", "overwrite", "fail", "repeat", "undo", "read", "read")


def operations(kinds: tuple[str, ...], places: str) -> st.SearchStrategy[list[tuple[object, ...]]]:
    items = st.lists(st.sampled_from(ITEMS), min_size=1, max_size=3, unique=True)
    small = st.integers(0, 3)
    one = st.tuples(
        st.sampled_from(kinds), items, st.sampled_from(places), st.booleans(), small, small
    )
    return st.lists(one, min_size=1, max_size=14)


def play(steps: list[tuple[object, ...]]) -> Table:
    table = Table()
    for kind, items, place, tells, looks, reads in steps:
        getattr(table, str(kind))(items, place, tells=tells, looks=looks, reads=reads)
    return table


@given(operations(KINDS, "xy"))
def test_a_serial_run_is_clean(steps: list[tuple[object, ...]]) -> None:
    assert find_anomalies(play(steps).run.finish()) == []


@given(operations(KINDS, "x"))
def test_a_serial_run_of_keys_in_one_partition_is_clean(steps: list[tuple[object, ...]]) -> None:
    assert find_anomalies(play(steps).run.finish()) == []


@given(st.data())
def test_logs_in_the_order_of_requested_times_are_clean(data: st.DataObject) -> None:
    """Writers without a lock: a log that began earlier and committed later is below the others."""
    run = HistoryRecorder()
    ranks = data.draw(st.permutations(range(1, 9)))
    slice_of, rows = 0, {}
    for position, rank in enumerate(ranks, start=1):
        slice_of += data.draw(st.booleans())  # a compaction was planned: later logs are above
        name = f"T{rank}"
        items = data.draw(st.lists(st.sampled_from(ITEMS), min_size=1, unique=True))
        run.transaction(name, position=10 * position, answer="ok", places=["x"])
        run.writes(name, items, rank=rank)
        for item in items:
            rows[item] = max(rows.get(item, (0, 0, "")), (slice_of, rank, name))
        run.transaction(f"R{position}", snapshot=10 * position + 5, full=True)
        run.reads(f"R{position}", [(item, row[2]) for item, row in rows.items()])
    assert find_anomalies(run.finish()) == []


# ---------------------------------------------------------------- one wrong thing

PLAIN = ("write", "write", "delete", "fail", "repeat", "read")


def lost(table: Table, seen: list[tuple[str, str | None]]) -> None:
    table.run.transaction("Z", answer="ok")
    table.run.writes("Z", ["a"])


def told_failed(table: Table, seen: list[tuple[str, str | None]]) -> None:
    table.run.transaction(table.committed[0][0], answer="fail")


def batch_twice(table: Table, seen: list[tuple[str, str | None]]) -> None:
    table.run.transaction("Z", position=10_000, batch=table.committed[-1][1])


def row_twice(table: Table, seen: list[tuple[str, str | None]]) -> None:
    table.run.transaction("Z", snapshot=9_000, full=True)
    table.run.reads("Z", [*seen, seen[0]])


def row_missing(table: Table, seen: list[tuple[str, str | None]]) -> None:
    table.run.transaction("Z", snapshot=9_000, full=True)
    table.run.reads("Z", seen[1:])


def aborted_row(table: Table, seen: list[tuple[str, str | None]]) -> None:
    table.run.transaction("Y", answer="fail")
    table.run.writes("Y", ["a"])
    table.run.transaction("Z", snapshot=9_000)
    table.run.reads("Z", [("a", "Y")])


def future_row(table: Table, seen: list[tuple[str, str | None]]) -> None:
    table.run.transaction("Z", snapshot=5)
    table.run.reads("Z", seen[:1])


def old_row(table: Table, seen: list[tuple[str, str | None]]) -> None:
    table.run.transaction("Y", position=9_500, places=["x"])
    table.run.writes("Y", ["a"])
    table.run.transaction("Z", snapshot=9_600)
    table.run.reads("Z", seen[:1])


def overwritten(table: Table, seen: list[tuple[str, str | None]]) -> None:
    for name, position in (("Y", 9_500), ("Z", 9_600)):
        table.run.transaction(name, position=position, places=["x"])
        table.run.reads(name, seen[:1])
        table.run.writes(name, ["a"])


def two_answers(table: Table, seen: list[tuple[str, str | None]]) -> None:
    table.run.transaction("Z", snapshot=9_000)
    table.run.reads("Z", [seen[0], ("a", None)])


def skew(table: Table, seen: list[tuple[str, str | None]]) -> None:
    for name, position, item in (("Y", 9_500, "a"), ("Z", 9_600, "b")):
        table.run.transaction(name, position=position, places=["x"])
        table.run.reads(name, seen[:2])
        table.run.writes(name, [item])


def opposite(table: Table, seen: list[tuple[str, str | None]]) -> None:
    """Two readers saw two blind writes in opposite order."""
    for name, position, item in (("Y1", 9_500, "a"), ("Y2", 9_600, "b")):
        table.run.transaction(name, position=position, places=["x"])
        table.run.writes(name, [item])
    for name, rows in (("Z1", [("a", "Y1"), seen[1]]), ("Z2", [seen[0], ("b", "Y2")])):
        table.run.transaction(name)
        table.run.reads(name, rows)


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (lost, AnomalyKind.LOST_UPDATE),
        (told_failed, AnomalyKind.WRONG_ANSWER),
        (batch_twice, AnomalyKind.DUPLICATE),
        (row_twice, AnomalyKind.DUPLICATE),
        (row_missing, AnomalyKind.LOST_UPDATE),
        (aborted_row, AnomalyKind.DIRTY_READ),
        (future_row, AnomalyKind.DIRTY_READ),
        (old_row, AnomalyKind.LOST_UPDATE),
        (overwritten, AnomalyKind.LOST_UPDATE),
        (two_answers, AnomalyKind.NON_REPEATABLE_READ),
        (skew, AnomalyKind.WRITE_SKEW),
        (opposite, AnomalyKind.CYCLE),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@settings(max_examples=15)
@given(steps=operations(PLAIN, "x"))
def test_one_error_in_a_serial_run_is_found(
    harm: object, kind: AnomalyKind, steps: list[tuple[object, ...]]
) -> None:
    recorded = [(*step[:3], True, *step[4:]) if step[0] == "delete" else step for step in steps]
    table = play([*recorded, ("write", ["a", "b"], "x", True, 0, 2)])
    harm(table, table.seen(sorted({key for key, _ in table.rows}), table.rows))  # type: ignore[operator]
    assert kind in {one.kind for one in find_anomalies(table.run.finish())}
