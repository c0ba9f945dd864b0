"""Ranges, applied one after the other by the table's own rules, give the table (fmt 6.6)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filegroups.writing.workload import LocalWorkload
from hoodoo.table import Table
from tests.stateful.tables import Features, create, open_again
from tests.unit.timeline.engine import Meddled, StillClock
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.errors import HoodooError, InstantNotFoundError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import SLOTS
from timeline.ports.ports import Storage

Row = dict[str, Any]

ROWS = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from("abc"), "p": st.sampled_from("xy"), "ts": st.integers(0, 4)}
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda row: (row["id"], row["p"]),
)
#: Upserts are frequent, so that late rows and plans, compactions and ranges of every length
#: overlap.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), ROWS),
        st.tuples(st.just("upsert"), ROWS),
        st.tuples(st.just("beside"), ROWS, ROWS),
        st.tuples(st.just("partial"), ROWS),
        st.tuples(st.just("delete"), ROWS),
        st.tuples(st.just("overwrite"), ROWS),
        st.tuples(st.sampled_from(["savepoint", "restore", "roll back"])),
        st.tuples(
            st.sampled_from(["plan", "finish", "compact", "join logs", "cluster", "archive"])
        ),
        st.tuples(st.just("poll")),
        st.tuples(st.just("poll")),
    ),
    max_size=12,
)


@dataclass(frozen=True, kw_only=True)
class Kind(Features):
    """Also writers of buckets that commit at the same time."""

    non_blocking: bool = False

    @property
    def properties(self) -> dict[str, object]:
        mode = "hoodie.write.concurrency.mode"
        options = {mode: "NON_BLOCKING_CONCURRENCY_CONTROL"} if self.non_blocking else {}
        return {**super().properties, **options}


PLAIN = st.builds(
    Kind,
    appends=st.booleans(),
    version=st.sampled_from([9, 8]),
    by_event=st.booleans(),
    index=st.sampled_from(["SIMPLE", "BUCKET"]),
)
BESIDE = st.builds(
    Kind,
    appends=st.just(True),
    by_event=st.booleans(),
    index=st.just("BUCKET"),
    non_blocking=st.just(True),
)
KINDS = st.one_of(PLAIN, BESIDE)


@dataclass
class Reader:
    """Polls from the last completion time that the table returned, and keeps the rows it got."""

    by_event: bool
    since: str = "earliest"
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    images: list[Row] = field(default_factory=list)

    def poll(self, table: Table, *, rows: bool = True) -> None:
        if rows:
            found = table.changes(self.since, columns=[*NAMES, "_hoodie_commit_time"])
            for row in found.read_all().to_pylist():
                key = (row["p"], row["id"])
                held = self.rows.get(key)
                if held is None or self._order(held) <= self._order(row):
                    self.rows[key] = row
        try:
            changes = table.changes(self.since, images=True).read_all().to_pylist()
        except InstantNotFoundError as error:
            if error.kind != "changes_taken_back":
                raise
            self.images.clear()
            changes = table.changes("earliest", images=True).read_all().to_pylist()
        for change in changes:
            if change["before"] is not None:
                self.images.remove(change["before"])
            if change["after"] is not None:
                self.images.append(change["after"])
        times = [one.completion_time for one in table.timeline if one.completion_time]
        self.since = max(times, default=self.since)

    def _order(self, row: Row) -> tuple[Any, ...]:
        """As the table merges: a late row loses, of equal ones the one that was written later."""
        return (row["ts"] if self.by_event else 0, row["_hoodie_commit_time"])


NAMES = ("id", "p", "ts", "ts2", "v")


def sorted_rows(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    return sorted(tuple(str(row[name]) for name in NAMES) for row in rows)


class Story:
    """A table, its steps, and a reader that polls between them."""

    def __init__(self, kind: Kind, storage: Storage | None = None) -> None:
        self.kind, self.clock = kind, StillClock()
        self.storage = MemoryStorage() if storage is None else storage
        self.table = create(self.storage, kind, self.clock)
        self.reader = Reader(kind.by_event)
        self.only_rows = True  # neither deleted nor replaced
        self.planned: str | None = None
        self.count = 0

    def act(self, step: Sequence[Any]) -> None:
        what, rest = step[0], step[1:]
        getattr(self, what.replace(" ", "_"))(*rest)

    def rows_of(self, drawn: Sequence[Row]) -> pa.Table:
        rows = []
        for row in drawn:
            self.count += 1
            rows.append({**row, "ts2": 0, "v": f"v{self.count}"})
        return pa.Table.from_pylist(rows, schema=pa.schema(self.kind.columns))

    def upsert(self, drawn: Sequence[Row]) -> None:
        self.table.upsert(self.rows_of(drawn))

    def beside(self, drawn: Sequence[Row], concurrent: Sequence[Row]) -> None:
        """Another writer begins later, completes first, and is polled before this one completes."""
        self.count += 1
        other = open_again(
            self.storage, self.kind, self.clock, name="rival", first_id=self.count * 1_000_003
        )
        rows = self.rows_of(concurrent)

        def commit_other() -> None:
            other.upsert(rows)
            self.reader.poll(self.table, rows=self.only_rows)

        workload: Any = Meddled(
            LocalWorkload(self.table.context.ports, self.rows_of(drawn)), commit_other
        )
        self.table._run(WriteOperation.UPSERT, workload)
        other.close()

    def partial(self, drawn: Sequence[Row]) -> None:
        there = {(row["p"], row["id"]) for row in self.table.to_arrow().to_pylist()}
        rows = [row for row in drawn if (row["p"], row["id"]) in there]
        if rows and not self.kind.non_blocking:
            self.table.upsert(self.rows_of(rows).select(["id", "p", "ts", "v"]), partial=True)

    def delete(self, drawn: Sequence[Row]) -> None:
        self.only_rows = False
        self.table.delete(self.rows_of(drawn).select(["id", "p"]))

    def overwrite(self, drawn: Sequence[Row]) -> None:
        self.only_rows = False
        self.table.insert_overwrite(self.rows_of(drawn))

    def savepoint(self) -> None:
        if not self.table.savepoints and self.table.to_arrow().num_rows:
            self.table.savepoint()

    def restore(self) -> None:
        for one in self.table.savepoints:
            self.only_rows = False
            self.table.restore(one.requested_time)
            self.table.delete_savepoint(one.requested_time)
            self.planned = None

    def roll_back(self) -> None:
        """The newest write, where nothing forbids it."""
        writes = [one for one in self.table.timeline if one.action in ("commit", "deltacommit")]
        newest = max((one.requested_time for one in writes if not one.archived), default=None)
        if newest is not None:
            with suppress(HoodooError):
                self.table.rollback(newest)
                self.only_rows = False

    def poll(self) -> None:
        self.reader.poll(self.table, rows=self.only_rows)


def _service(name: str) -> Callable[[Story], None]:
    def run(story: Story) -> None:
        services = story.table.services
        if name == "plan" and story.kind.appends and story.planned is None:
            result = services.schedule("compact")
            story.planned = None if result is None else result.requested_time
        elif name == "finish" and story.planned is not None:
            services.execute(story.planned)
            story.planned = None
        elif name == "compact" and story.kind.appends and story.planned is None:
            services.compact()
        elif name == "join logs" and story.kind.appends:
            services.log_compact()
        elif name == "cluster" and not story.kind.buckets and story.planned is None:
            services.cluster(["ts", "id"])
        elif name == "archive":
            services.archive()

    return run


for _name in ("plan", "finish", "compact", "join logs", "cluster", "archive"):
    setattr(Story, _name.replace(" ", "_"), _service(_name))


_NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))


@settings(
    max_examples=500 if _NIGHTLY else 15, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(kind=KINDS, steps=STEPS)
def test_successive_ranges_replay_to_the_table(kind: Kind, steps: list[tuple[Any, ...]]) -> None:
    story = Story(kind)
    for step in steps:
        story.act(step)
    story.poll()
    table = sorted_rows(story.table.to_arrow().to_pylist())
    assert sorted_rows(story.reader.images) == table
    if story.only_rows:
        assert sorted_rows(list(story.reader.rows.values())) == table


@pytest.mark.parametrize("how", ["restore", "roll_back"])
@pytest.mark.parametrize("appends", [True, False])
def test_images_do_not_continue_from_a_restored_away_commit(appends: bool, how: str) -> None:
    story = Story(Kind(appends=appends))
    story.upsert([{"id": "a", "p": "x", "ts": 1}])
    story.savepoint()
    kept = story.table.timeline[-1].completion_time
    story.upsert([{"id": "b", "p": "x", "ts": 1}])
    story.poll()
    story.act((how,))
    with pytest.raises(InstantNotFoundError) as refused:
        story.table.changes(story.reader.since, images=True)
    assert refused.value.kind == "changes_taken_back"
    assert story.table.changes(kept, images=True).read_all().num_rows == 0
    story.poll()
    story.upsert([{"id": "c", "p": "x", "ts": 1}])
    story.poll()  # from the restore's own completion on
    assert sorted_rows(story.reader.images) == sorted_rows(story.table.to_arrow().to_pylist())


def test_images_continue_where_the_restored_away_commit_completed_after_the_range_began() -> None:
    story = Story(Kind(appends=False))
    story.upsert([{"id": "a", "p": "x", "ts": 1}])
    began = len(story.table.timeline)
    story.beside([{"id": "b", "p": "x", "ts": 1}], [{"id": "c", "p": "y", "ts": 1}])
    slow, quick = sorted(story.table.timeline[began:], key=lambda one: one.requested_time)
    assert slow.requested_time < story.reader.since == quick.completion_time
    story.table.savepoint(quick.requested_time)
    story.table.restore(quick.requested_time)
    assert story.table.to_arrow()["id"].to_pylist() == ["a", "c"]
    assert story.table.changes(story.reader.since, images=True).read_all().num_rows == 0


def test_images_read_no_slots_from_before_the_range() -> None:
    story = Story(Kind(appends=False))
    for number in range(20):
        story.upsert([{"id": "a", "p": "x", "ts": number}])
    since = story.table.timeline[-1].completion_time
    result = story.table.upsert(story.rows_of([{"id": "b", "p": "y", "ts": 1}]))
    story.table.rollback(result.requested_time)
    observed = RecordingStorage(story.storage)
    reader = open_again(observed, story.kind, story.clock, name="reader", first_id=1_000_003)
    assert reader.changes(since, images=True).read_all().num_rows == 0
    slots = [one for one in observed.operations() if one.startswith(f"read {SLOTS}")]
    assert len(slots) < 10


def test_a_range_reads_each_pending_plan_once() -> None:
    story = Story(Kind(appends=True))
    for ts in range(2):
        story.upsert([{"id": "a", "p": "x", "ts": ts}])
    story.act(("plan",))
    observed = RecordingStorage(story.storage)
    reader = open_again(observed, story.kind, story.clock, name="reader", first_id=1_000_003)
    assert reader.changes("earliest").read_all()["ts"].to_pylist() == [1]
    assert sum(f"{story.planned}.compaction" in one for one in observed.operations()) == 1
