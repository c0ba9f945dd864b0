"""A catalog in memory, with the comparison that real ones make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hoodoo.sync.catalog import EntryChangedError, FoundEntry
from hoodoo.sync.partition_values import Values
from hoodoo.sync.table_entry import TableEntry


@dataclass
class MemoryCatalog:
    """Entries by name; ``before_replace`` runs once, as another process at that moment."""

    name: str = "memory"
    entries: dict[str, TableEntry] = field(default_factory=dict)
    registered: dict[Values, str] = field(default_factory=dict)
    asked: list[list[Values] | None] = field(default_factory=list)
    before_replace: Callable[[], object] | None = None

    def ensure_database(self, database: str, *, create: bool) -> None:
        pass

    def find(self, database: str, name: str) -> FoundEntry | None:
        found = self.entries.get(name)
        return None if found is None else FoundEntry(entry=found, raw=None)

    def create(self, entry: TableEntry) -> None:
        self.entries.setdefault(entry.name, entry)

    def replace(self, found: FoundEntry, entry: TableEntry, *, cascade: bool) -> None:
        run, self.before_replace = self.before_replace, None
        if run is not None:
            run()
        if self.entries[entry.name].synced != found.entry.synced:
            raise EntryChangedError
        self.entries[entry.name] = entry

    def partitions(self, entry: TableEntry, wanted: Iterable[Values] | None) -> dict[Values, str]:
        chosen = None if wanted is None else sorted(wanted)
        self.asked.append(chosen)
        return {
            values: place
            for values, place in self.registered.items()
            if chosen is None or values in chosen
        }

    def add_partitions(self, found: FoundEntry, added: Mapping[Values, str]) -> None:
        self.registered |= added

    def move_partitions(self, found: FoundEntry, moved: Mapping[Values, str]) -> None:
        self.registered |= moved

    def drop_partitions(self, entry: TableEntry, dropped: Iterable[Values]) -> None:
        for values in dropped:
            self.registered.pop(values, None)

    def close(self) -> None:
        pass
