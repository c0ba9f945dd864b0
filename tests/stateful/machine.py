"""The machine: random operations on a table, and after each one all reads against the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write_request import CommitResult
from hoodoo.table import Table
from hoodoo.verify.verify import verify
from tableservices.service import ServiceResult
from tests.stateful.model import IS_DELETED, Groups, Key, Model, Record, Row
from tests.stateful.tables import Features, create, features, open_again
from tests.unit.timeline.engine import Meddled, StillClock
from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import HoodooError, InstantNotFoundError
from timeline.model.commit_metadata import WriteOperation
from timeline.ports.ports import Storage

KEYS = ("a", "b", "k:1", "ü", "e f", "Z")
PARTITIONS = ("x", "y z")

drawn_rows = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from(KEYS),
            "p": st.sampled_from(PARTITIONS),
            "ts": st.integers(0, 4),  # so few that ties and late rows happen often
            "ts2": st.integers(0, 2),
            IS_DELETED: st.sampled_from([False, False, False, True]),
        }
    ),
    min_size=1,
    max_size=5,
)
BAD: dict[str, Callable[[Row], Row]] = {
    "null key": lambda row: {**row, "id": None},
    "null ordering": lambda row: {**row, "ts": None},
    "missing column": lambda row: {name: row[name] for name in row if name != "v"},
    "another type": lambda row: {**row, "ts": "soon"},
    "no key column": lambda row: {name: row[name] for name in row if name != "id"},
}


@dataclass(frozen=True)
class Moment:
    """A past state, and the instants that had completed by then."""

    time: str
    rows: list[Row]


@dataclass(frozen=True)
class Kept:
    """A savepoint's copy of the model and of the machine's state."""

    records: dict[Key, Record]
    moments: tuple[Moment, ...]
    completions: dict[str, str]


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [(name, str(row[name])) for name in sorted(row)])


class TableMachine(RuleBasedStateMachine):
    """
    One table and its model.

    Subclasses choose another storage or kinds of tables.
    """

    kinds: st.SearchStrategy[Features] = features()

    model: Model
    chosen: Features

    def new_storage(self) -> Storage:
        return MemoryStorage()

    @initialize(data=st.data())
    def a_table(self, data: st.DataObject) -> None:
        self.chosen = data.draw(self.kinds, label="table")
        self.clock = StillClock()
        self.storage = self.new_storage()
        self.handles = [create(self.storage, self.chosen, self.clock)]
        self.model = self.chosen.model()
        self.moments: list[Moment] = []
        self.completions: dict[str, str] = {}  # requested time -> completion time
        self.saved: dict[str, Kept] = {}  # by the requested time of the write that is kept
        self.cleaned = self.archived = False
        self.evolved = False
        self.steps = 0
        self.values = 0

    @property
    def table(self) -> Table:
        """The handle of this step: two writers, one table."""
        return self.handles[self.steps % len(self.handles)]

    # ---- operations

    @rule(given=drawn_rows)
    def upsert(self, given: list[Row]) -> None:
        rows = self._rows(given)
        result, groups = self._write(lambda: self.table.upsert(self._arrow(rows)))
        self.model.upsert(self._keyed(rows), result.requested_time, groups)
        self._fold(result, groups)

    @rule(given=drawn_rows, bulk=st.booleans())
    def insert_of_fresh_keys(self, given: list[Row], bulk: bool) -> None:
        held = {self._distinct(key) for key in self.model.records}
        rows = self._unique([row for row in given if self._distinct(self._key(row)) not in held])
        if not rows:
            return
        operation = self.table.bulk_insert if bulk else self.table.insert
        result, groups = self._write(lambda: operation(self._arrow(rows)))
        self.model.insert(self._keyed(rows), result.requested_time, groups)
        self._fold(result, groups)

    @precondition(lambda self: self.moments)
    @rule(given=drawn_rows)
    def delete(self, given: list[Row]) -> None:
        rows = self._rows(given)
        keys = self._arrow(rows).select(["id", "p"])
        result, groups = self._write(lambda: self.table.delete(keys))
        self.model.delete([self._key(row) for row in rows], result.requested_time)
        self._fold(result, groups)

    @precondition(lambda self: self.moments and self._has_every_column())
    @rule(given=drawn_rows)
    def merge(self, given: list[Row]) -> None:
        """Matched rows get a value, or go if the source's ts is odd; the others are inserted."""
        rows = self._unique(given)
        merge = self.table.merge(self._arrow(rows)).when_matched_delete("source.ts % 2 = 1")
        merge.when_matched_update({"v": "source.v"}).when_not_matched_insert_all()
        result, groups = self._write(merge.execute)
        time, visible = result.requested_time, self.model.visible()
        by_key = {self._distinct(key): (key, change.row) for key, change in visible.items()}
        for key, row in self._keyed(rows):
            home, held = by_key.get(self._distinct(key), (key, None))
            if held is None:
                self.model.upsert([(key, row)], time, groups)
            elif row["ts"] % 2:
                self.model.delete([home], time)
            else:
                self.model.upsert([(home, {**held, "v": row["v"]})], time, groups)
        self._fold(result, groups)

    @rule(given=drawn_rows, whole=st.booleans())
    def insert_overwrite(self, given: list[Row], whole: bool) -> None:
        rows = self._unique(given)
        paths = {self._key(row)[0] for row in rows}
        if self.model.everywhere and not whole:
            elsewhere = {key[1] for key in self.model.records if key[0] not in paths}
            rows = [row for row in rows if row["id"] not in elsewhere]
            paths = {self._key(row)[0] for row in rows}
            if not rows:
                return
        operation = self.table.insert_overwrite_table if whole else self.table.insert_overwrite
        result, groups = self._write(lambda: operation(self._arrow(rows)))
        self.model.replace(None if whole else paths)
        self.model.insert(self._keyed(rows), result.requested_time, groups)
        self._fold(result, groups)

    @precondition(lambda self: self.moments)
    @rule(partition=st.sampled_from(PARTITIONS))
    def delete_partition(self, partition: str) -> None:
        path = self.chosen.partition_path(partition)
        result, groups = self._write(lambda: self.table.delete_partitions([path]))
        self.model.replace([path])
        self._fold(result, groups)

    @rule(given=drawn_rows, concurrent=drawn_rows)
    def upsert_while_another_writer_publishes(
        self, given: list[Row], concurrent: list[Row]
    ) -> None:
        """The other one commits after this one has assigned its rows: neither loses a row."""
        mine, other = self._rows(given), self._rows(concurrent)
        writer, second = self.table, self._another("rival")
        committed: list[tuple[CommitResult, Groups]] = []
        there: list[frozenset[tuple[str, int]]] = []

        def commit_other() -> None:
            committed.append(self._write(lambda: second.upsert(self._arrow(other))))
            result, groups = committed[0]
            self.model.upsert(self._keyed(other), result.requested_time, groups)
            self.model.fold(groups)
            # rows for buckets that the concurrent write opened are rebased
            there.append(self._buckets_there())

        workload: Any = Meddled(
            LocalWorkload(writer.context.ports, self._arrow(mine)), commit_other
        )
        result = writer._run(WriteOperation.UPSERT, workload)
        assert committed
        groups = self._groups(result, there[0])
        theirs = committed[0][0]
        self.completions[theirs.requested_time] = theirs.completion_time
        self.model.upsert(self._keyed(mine), result.requested_time, groups)
        # If both are committed, this one may have begun first: both exist as of the later one.
        self._fold(result, groups, as_of=max(result.requested_time, theirs.requested_time))
        second.close()

    @rule()
    def clean(self) -> None:
        if self.table.services.clean() is not None:
            self.cleaned = True

    @rule()
    def archive(self) -> None:
        if self.table.services.archive() is not None:
            self.archived = True

    @precondition(lambda self: self.moments and self._newest_write() not in self.saved)
    @rule()
    def savepoint(self) -> None:
        time = self.table.savepoint().requested_time
        self.saved[time] = Kept(
            self.model.copy_of_records(), tuple(self.moments), dict(self.completions)
        )

    @precondition(lambda self: self.saved)
    @rule(oldest=st.booleans())
    def restore(self, oldest: bool) -> None:
        """To the newest savepoint, or to the oldest one after deleting the others."""
        *later, target = sorted(self.saved, reverse=oldest)
        for time in later if oldest else ():
            self.table.delete_savepoint(time)
            del self.saved[time]
        kept = self.saved[target]
        if self.table.restore(target) is not None:
            self.model.records = kept.records
            self.saved[target] = Kept(self.model.copy_of_records(), kept.moments, kept.completions)
            self.moments, self.completions = list(kept.moments), dict(kept.completions)

    @precondition(lambda self: self.moments)
    @rule(given=drawn_rows, writes=st.integers(2, 5), compacts=st.booleans())
    def a_savepoint_outlives_an_archive(
        self, given: list[Row], writes: int, compacts: bool
    ) -> None:
        """Savepoint, more writes, archive, restore; then a compaction before the next write."""
        if self._newest_write() not in self.saved:
            self.savepoint()
        for _ in range(writes):
            self.steps += 1  # the writers alternate
            self.upsert(given)
        self.archive()
        self.restore(oldest=False)
        if compacts and self.chosen.appends:
            self.compact()

    @precondition(lambda self: self.saved)
    @rule()
    def delete_the_oldest_savepoint(self) -> None:
        oldest = min(self.saved)
        self.table.delete_savepoint(oldest)
        del self.saved[oldest]

    @precondition(lambda self: self.chosen.appends)
    @rule()
    def compact(self) -> None:
        self._moved(self.table.services.compact())

    @precondition(lambda self: self.chosen.appends)
    @rule()
    def compact_logs(self) -> None:
        result = self.table.services.log_compact()
        self._moved(result)
        if result is not None:
            time = result.requested_time
            self.model.join_logs(self._groups_with_log_of(time), time)
            self.completions[time] = result.completion_time or ""

    @precondition(lambda self: self.moments and not self.chosen.buckets)
    @rule(curve=st.sampled_from(["linear", "zorder", "hilbert"]))
    def cluster(self, curve: str) -> None:
        self._moved(self.table.services.cluster(["ts", "id"], curve=curve))

    @precondition(lambda self: not self.evolved)
    @rule()
    def add_a_column_from_now_on(self) -> None:
        self.evolved = True

    @rule()
    def a_second_writer_or_a_new_handle(self) -> None:
        name = f"writer {self.steps}"
        if len(self.handles) == 1:
            self.handles.append(self._another(name))
        else:
            self.handles.pop(0).close()

    @rule(given=drawn_rows, how=st.sampled_from(sorted(BAD)))
    def bad_rows_are_refused(self, given: list[Row], how: str) -> None:
        if how in ("null ordering", "another type") and "ts" not in self.chosen.ordering:
            return
        if how == "null ordering" and not self.chosen.by_event:
            return
        bad = BAD[how](self._rows(given)[-1])
        before = [str(entry) for entry in self.table.timeline]
        with pytest.raises(HoodooError):
            self.table.upsert(pa.Table.from_pylist([bad]))
        assert [str(entry) for entry in self.table.timeline] == before

    # ---- invariants after each of them

    @invariant()
    def the_snapshot_is_the_model(self) -> None:
        self.steps += 1
        wanted = self._filled(self.model.rows())
        assert in_order(self.table.to_arrow().to_pylist()) == in_order(wanted)

    @invariant()
    def a_filtered_projection_is_that_of_the_model(self) -> None:
        if not self.moments:
            return
        least, partition = self.steps % 5, PARTITIONS[self.steps % 2]
        found = self.table.scan(columns=["v", "id"], filter=[("ts", ">=", least)]).read_all()
        wanted = [row for row in self.model.rows() if row["ts"] >= least]
        given = [{"v": row["v"], "id": row["id"]} for row in wanted]
        assert in_order(found.to_pylist()) == in_order(given)
        path = self.chosen.partition_path(partition)
        inside = [one.row for key, one in self.model.visible().items() if key[0] == path]
        some = self.table.scan(columns=["id"], partitions=[path]).read_all()
        assert sorted(some.column("id").to_pylist()) == sorted(row["id"] for row in inside if row)

    @invariant()
    def an_earlier_time_shows_what_was_there_then(self) -> None:
        if not self.moments:
            return
        chosen = self.moments[(self.steps * 7) % len(self.moments)]
        try:
            found = self.table.as_of(chosen.time).to_arrow()
        except InstantNotFoundError:
            assert self.cleaned, "refused though nothing was cleaned"
            return
        wanted = [{name: row.get(name) for name in found.schema.names} for row in chosen.rows]
        assert in_order(found.to_pylist()) == in_order(wanted)

    @invariant()
    def changes_are_what_was_written_since(self) -> None:
        if not self.moments:
            return
        times = sorted(self.completions.values())
        since = times[(self.steps * 5) % len(times)]
        among = frozenset(time for time, done in self.completions.items() if done > since)
        found = in_order(self.table.changes(since).read_all().to_pylist())
        wanted = [self.model.changed(among)]
        if self.cleaned or self.archived:  # then a range comes from the newest slices (fmt 6.6)
            wanted.append(self.model.last_written(among))
        note(f"changes since {since}: {sorted(among)}")
        assert found in [in_order(self._filled(each)) for each in wanted]

    @invariant()
    def the_table_is_sound(self) -> None:
        found = verify(self.table.context)
        assert found.problems == ()

    def teardown(self) -> None:
        for handle in getattr(self, "handles", ()):
            handle.close()

    # ---- how

    def _write(self, act: Callable[[], CommitResult]) -> tuple[CommitResult, Groups]:
        before = self._buckets_there()
        result = act()
        return result, self._groups(result, before)

    def _buckets_there(self) -> frozenset[tuple[str, int]]:
        if self.chosen.buckets is None:
            return frozenset()
        groups = [one.file_group for one in self.handles[0].file_slices()]
        return frozenset((group.partition_path, int(group.file_id[:8])) for group in groups)

    def _groups(
        self, result: CommitResult | ServiceResult, there: frozenset[tuple[str, int]]
    ) -> Groups:
        pinned = self.handles[0].current_state()
        rewritten = frozenset(
            (one.file_group.partition_path, one.file_group.file_id)
            for one in pinned.file_slices()
            if one.base_file is not None and one.base_file.requested_time == result.requested_time
        )
        snapshot = self.handles[0].context.snapshot()
        write = snapshot.active.find(result.requested_time)
        stats = {} if write is None else snapshot.commits.read(write).partition_to_write_stats
        written = {(path, one.file_id) for path, several in stats.items() for one in several}
        columns = ["_hoodie_partition_path", "_hoodie_record_key", "_hoodie_file_name"]
        homes = {
            (path, key): (path, file_name.partition("_")[0])
            for path, key, file_name in zip(
                *(
                    pinned.to_arrow(with_hoodie_columns=True).column(name).to_pylist()
                    for name in columns
                ),
                strict=True,
            )
        }
        return Groups(
            result.requested_time,
            frozenset(written),
            rewritten,
            homes,
            self._groups_there(),
            self.chosen.buckets,
            there,
        )

    def _newest_write(self) -> str:
        newest = self.table.context.active().newest_completed_write
        return newest.requested_time if newest is not None else ""

    def _moved(self, result: ServiceResult | None) -> None:
        """A service moved rows, it changed none."""
        if result is not None:
            self.model.fold(self._groups(result, frozenset()))
            self.model.forget_all_but(self._groups_there())

    def _groups_there(self) -> frozenset[tuple[str, str]]:
        found = [one.file_group for one in self.handles[0].file_slices()]
        return frozenset((group.partition_path, group.file_id) for group in found)

    def _groups_with_log_of(self, requested_time: str) -> frozenset[tuple[str, str]]:
        return frozenset(
            (one.file_group.partition_path, one.file_group.file_id)
            for one in self.handles[0].file_slices()
            if any(log.instant_time == requested_time for log in one.log_files)
        )

    def _fold(self, result: CommitResult, groups: Groups, as_of: str | None = None) -> None:
        self.model.fold(groups)
        self.completions[result.requested_time] = result.completion_time
        self.moments.append(Moment(as_of or result.requested_time, self.model.rows()))

    def _another(self, name: str) -> Table:
        first = (self.steps + 1) * 1_000_003
        return open_again(self.storage, self.chosen, self.clock, name=name, first_id=first)

    def _rows(self, given: Sequence[Row]) -> list[Row]:
        """Drawn rows with a value that no other row has."""
        made = []
        for row in given:
            self.values += 1
            one = {**row, "v": f"v{self.values}"}
            if not self.chosen.delete_column:
                del one[IS_DELETED]
            if self.evolved:
                one["more"] = self.values
            made.append(one)
        return made

    def _unique(self, given: Sequence[Row]) -> list[Row]:
        """One row a key, none of them a delete."""
        last = {self._distinct(self._key(row)): {**row, IS_DELETED: False} for row in given}
        return self._rows(list(last.values()))

    def _arrow(self, rows: Sequence[Row]) -> pa.Table:
        columns = [*self.chosen.columns, *([("more", pa.int64())] if self.evolved else [])]
        return pa.Table.from_pylist(list(rows), schema=pa.schema(columns))

    def _filled(self, rows: Sequence[Row]) -> list[Row]:
        names = self.table.schema.names
        return [{name: row.get(name) for name in names} for row in rows]

    def _has_every_column(self) -> bool:
        return not self.evolved or "more" in self.table.schema.names

    def _key(self, row: Row) -> Key:
        return self.chosen.partition_path(row["p"]), row["id"]

    def _distinct(self, key: Key) -> object:
        return key[1] if self.model.everywhere else key

    def _keyed(self, rows: Sequence[Row]) -> list[tuple[Key, Row]]:
        return [(self._key(row), row) for row in rows]
