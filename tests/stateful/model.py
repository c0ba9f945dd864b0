"""
The dictionary that a table must equal, in plain Python from the merge rules (fmt 7).

Written a second time on purpose, record by record and without the engine: it shares only the
specification with the engine's vectorised merge. Of a record it knows the row of its base file and
the changes in the logs above. Merge-on-read remembers deletes that copy-on-write forgets (fmt 7: a
later record below a delete's ordering does not revive the key).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Row = dict[str, Any]
Key = tuple[str, str]  # partition path, record key

IS_DELETED = "_hoodie_is_deleted"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a record: a row, or (with ``row`` None) a delete."""

    time: str  # requested time of its write
    order: tuple[int, ...]
    row: Row | None
    joined: str = ""  # requested time of the log compaction that holds it


@dataclass(slots=True)
class Record:
    """The content of a file group for one key."""

    group: object  # its file group, by any name
    base: Change | None = None
    logs: list[Change] = field(default_factory=list)


@dataclass
class Model:
    """
    All records of a table, and the expected results of reads.

    Args:
        by_event: Event-time ordering; else the newest change wins.
        appends: Merge-on-read.
        everywhere: A key is unique in the whole table.
    """

    ordering: tuple[str, ...]
    by_event: bool
    appends: bool
    everywhere: bool
    records: dict[Key, Record] = field(default_factory=dict)

    # ---- the merge

    def merged(self, older: Change | None, newer: Change | None) -> Change | None:
        """The later of two changes in the order of writing, unless it is late."""
        if older is None or newer is None:
            return newer if older is None else older
        return older if self.by_event and newer.order < older.order else newer

    def found_row(self, record: Record, among: frozenset[str] | None = None) -> Change | None:
        """Return a record as a read finds it, or only from writes with some requested times."""
        kept = [one for one in record.logs if among is None or {one.time, one.joined} & among]
        base = record.base
        if base is not None and among is not None and base.time not in among:
            base = None
        found = self.merged(base, self.folded(kept))
        if found is None or found.row is None or (among is not None and found.time not in among):
            return None
        return found

    def folded(self, changes: Iterable[Change]) -> Change | None:
        """Merge several changes of a record."""
        folded: Change | None = None
        for one in changes:
            folded = self.merged(folded, one)
        return folded

    def visible(self) -> dict[Key, Change]:
        found = {key: self.found_row(record) for key, record in self.records.items()}
        return {key: one for key, one in found.items() if one is not None}

    def rows(self) -> list[Row]:
        return [one.row for one in self.visible().values() if one.row is not None]

    def changed(self, among: frozenset[str]) -> list[Row]:
        """Return the incremental read of these writes (fmt 6.6)."""
        found = (self.found_row(record, among) for record in self.records.values())
        return [one.row for one in found if one is not None and one.row is not None]

    def last_written(self, among: frozenset[str]) -> list[Row]:
        """The same where only the newest slices are left."""
        found = self.visible().values()
        return [one.row for one in found if one.row is not None and one.time in among]

    # ---- writes

    def change_of(self, row: Row) -> Change:
        kept = {name: value for name, value in row.items() if name != "p"}
        order = tuple(kept[name] for name in self.ordering) if self.by_event else ()
        return Change("", order, None if row.get(IS_DELETED) else row)

    def upsert(self, rows: Iterable[tuple[Key, Row]], time: str, groups: Groups) -> None:
        """Merge a batch; the later of equal rows counts."""
        batch: dict[Any, tuple[Key, Change]] = {}
        for key, row in rows:
            change = self.change_of(row)
            same = key[1] if self.everywhere else key
            old = batch.get(same)
            if old is None or self.merged(old[1], change) is change:
                batch[same] = (key, change)
        for key, change in batch.values():
            self._apply(key, Change(time, change.order, change.row), groups)

    def delete(self, keys: Iterable[Key], time: str) -> None:
        """Delete by key: with the ordering value of the existing row, whatever it is."""
        for given in set(keys):
            key = self._home(given)
            record = self.records.get(key)
            found = self.found_row(record) if record is not None else None
            if record is None or found is None:
                continue
            if self.appends:
                record.logs.append(Change(time, found.order, None))
            else:
                del self.records[key]

    def replace(self, partitions: Iterable[str] | None) -> None:
        """Forget partitions as wholes, all of them with None."""
        gone = None if partitions is None else set(partitions)
        for key in [key for key in self.records if gone is None or key[0] in gone]:
            del self.records[key]

    def insert(self, rows: Iterable[tuple[Key, Row]], time: str, groups: Groups) -> None:
        """Add rows whose keys the table does not hold."""
        for key, row in rows:
            change = self.change_of(row)
            self._apply(key, Change(time, change.order, change.row), groups)

    def fold(self, groups: Groups) -> None:
        """Fold after a write: a new base file replaces all earlier knowledge of its file group."""
        for key in list(self.records):
            record = self.records[key]
            record.group = groups.held(key, record.group)
            if self.appends and record.group not in groups.rewritten:
                if (
                    record.group not in groups.written
                ):  # late rows of a rewrite that changed nothing
                    record.logs = [one for one in record.logs if one.time != groups.time]
                continue
            found = self.found_row(record)
            if found is None:
                del self.records[key]
            else:
                record.base, record.logs = found, []

    def join_logs(self, groups: Collection[object], time: str) -> None:
        """Drop changes that lost against others, also for incremental reads."""
        for record in self.records.values():
            folded = self.folded(record.logs)
            if record.group in groups and folded is not None:
                record.logs = [replace(folded, joined=time)]

    def forget_all_but(self, groups: Collection[object]) -> None:
        """A file group that is no more remembers no deletes."""
        for key, record in list(self.records.items()):
            if record.group not in groups:
                del self.records[key]

    def copy_of_records(self) -> dict[Key, Record]:
        """The part that a savepoint copies."""
        return {
            key: Record(one.group, one.base, list(one.logs)) for key, one in self.records.items()
        }

    def _home(self, key: Key) -> Key:
        """Where a key lives now, in a table where it is unique."""
        if self.everywhere:
            for one in self.records:
                if one[1] == key[1]:
                    return one
        return key

    def _apply(self, key: Key, change: Change, groups: Groups) -> None:
        home = self._home(key)
        record = self.records.get(home)
        if record is None:
            # A delete of an absent key is kept only if it is appended to a log.
            if change.row is not None or groups.appended(key):
                self.records[key] = Record(groups.home(key), None, [change])
            return
        if home != key and change.row is not None:
            found = self.found_row(record)
            if found is None or self.merged(found, change) is change:
                del self.records[home]
                self.records[key] = Record(groups.home(key), None, [change])
            return
        record.logs.append(change)


@dataclass(frozen=True)
class Groups:
    """
    The places of a write's rows, according to the table's file slices.

    Args:
        time: Requested time of this write.
        written: File groups with a base or log file of this write.
        rewritten: File groups with a base file of this write.
        homes: File group of each visible key.
        file_groups: All existing ones, by partition path and file id.
        buckets: Number of buckets of a partition; None without a bucket index.
        there: Buckets (partition path, number) that existed before the write.
    """

    time: str = ""
    written: frozenset[object] = frozenset()
    rewritten: frozenset[object] = frozenset()
    homes: Mapping[Key, object] = field(default_factory=dict)
    file_groups: frozenset[tuple[str, str]] = frozenset()
    buckets: int | None = None
    there: frozenset[tuple[str, int]] = frozenset()

    def home(self, key: Key) -> object:
        """Return the file group; of an invisible delete, that of its bucket."""
        return self.homes.get(key) or self._bucket(key)

    def held(self, key: Key, before: object) -> object:
        return self.homes.get(key, before)

    def _bucket(self, key: Key) -> object:
        if self.buckets is None:
            return None
        prefix = f"{bucket_of(key[1], self.buckets):08d}"
        named = (one for one in self.file_groups if one[0] == key[0])
        return next((one for one in named if one[1].startswith(prefix)), None)

    def appended(self, key: Key) -> bool:
        return self.buckets is not None and (key[0], bucket_of(key[1], self.buckets)) in self.there


def bucket_of(key: str, buckets: int) -> int:
    """The bucket of a record key without commas (fmt 9)."""
    number = 0
    for unit in key:
        number = (31 * number + ord(unit)) % (1 << 32)
    return ((31 + number) & 0x7FFFFFFF) % buckets
