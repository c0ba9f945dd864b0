"""
Sync a table with its catalogs after a commit.

A sync reads a snapshot and compares the entries, then the partitions. It is incremental: only
partitions of commits after the entry's last synced commit are compared. It compares all of them if
that commit is unknown, archived or restored away.

Several writers may sync at once. The entry's last commit decides: a sync moves it only if no other
sync moved it since the entry was read. Else it starts again with a newer snapshot, because its
older one may have dropped a partition that the other sync added. The last commit never goes back.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from filegroups.reading.scan import view_of
from hoodoo.sync.catalog import Catalog, EntryChangedError, FoundEntry
from hoodoo.sync.partition_values import Values, decodes, values_of_paths
from hoodoo.sync.settings import SyncSettings, SyncTool
from hoodoo.sync.table_entry import (
    NEVER,
    EntryPlan,
    PartitionChanges,
    SyncedUntil,
    TableEntry,
    partition_changes,
)
from timeline.context import TableContext
from timeline.errors import HoodooError, UnavailableError, UnsupportedTableError, counted
from timeline.model.instant_time import InstantTime
from timeline.snapshot import Snapshot

_ATTEMPTS = 10
NEXT_STEP = (
    "the commit stays. Remove the cause, then run 'hoodoo sync TABLE' or table.sync(); the next "
    "write syncs these changes as well"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySync:
    """The changes of one entry by a sync."""

    catalog: str
    entry: str  # database.table
    created: bool
    columns_changed: bool
    properties_changed: bool
    partitions_added: int
    partitions_moved: int
    partitions_dropped: int
    last_commit: InstantTime

    @property
    def is_any(self) -> bool:
        """Whether the sync changed more than the last commit."""
        return (
            self.created or self.columns_changed or self.properties_changed or self.partitions > 0
        )

    @property
    def partitions(self) -> int:
        """The number of changed partitions."""
        return self.partitions_added + self.partitions_moved + self.partitions_dropped

    @property
    def text(self) -> str:
        """One line for people."""
        did = ["created"] if self.created else []
        did += ["columns changed"] if self.columns_changed and not self.created else []
        did += ["properties changed"] if self.properties_changed and not self.created else []
        for count, word in (
            (self.partitions_added, "added"),
            (self.partitions_moved, "moved"),
            (self.partitions_dropped, "dropped"),
        ):
            did += [f"{counted(count, 'partition')} {word}"] if count else []
        return f"{self.entry}: {', '.join(did) or 'no change'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The result of a sync: its snapshot's newest commit, and each entry."""

    requested_time: InstantTime
    completion_time: InstantTime | None
    entries: tuple[EntrySync, ...]

    @property
    def text(self) -> str:
        """One line for people."""
        return "; ".join(one.text for one in self.entries)


def open_catalog(settings: SyncSettings, tool: SyncTool) -> Catalog:
    """
    Return a catalog; it connects at the first request.

    Raises:
        MissingExtraError: The packages of the catalog are not installed.
    """
    if tool is SyncTool.GLUE:
        from hoodoo.sync.glue import GlueCatalog

        return GlueCatalog(settings)
    from hoodoo.sync.hive import HiveMetastore

    return HiveMetastore(settings, _user())


def _user() -> str:
    """Return the account of this process, which owns new entries as in Hudi."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without an entry for its account
        return "hoodoo"


def sync_table(
    context: TableContext,
    settings: SyncSettings,
    *,
    full: bool = False,
    catalog_of: Callable[[SyncSettings, SyncTool], Catalog] = open_catalog,
) -> SyncResult | None:
    """
    Sync a table with all its catalogs, also if no option switches the sync on.

    Args:
        context: The table.
        settings: The options.
        full: Compare all partitions, also without need.
        catalog_of: Opens a catalog.

    Returns:
        The result; None for a table without a completed write.

    Raises:
        UnavailableError: A catalog does not answer, or other syncs keep changing the entry.
        UnsafeSetupError: A catalog refuses, or its database is missing.
        InvalidInputError: A partition path does not fit the partition columns.
        UnsupportedTableError: A column has no type in a catalog.
    """
    if not context.snapshot().active.completed_writes:
        return None
    done: list[EntrySync] = []
    last = SyncedUntil()
    for tool in settings.tools:
        own = settings.of_tool(tool)
        with closing(catalog_of(own, tool)) as catalog:
            for number in range(len(_plan(context, own, context.cached_snapshot()).entries())):
                each, until = _sync_entry(context, own, catalog, number, full=full)
                done.append(each)
                last = last.later(until)
    context.ports.events.emit(
        "sync.done", rt=last.requested_time, entries="; ".join(one.text for one in done)
    )
    return SyncResult(
        requested_time=last.requested_time,
        completion_time=last.completion_time,
        entries=tuple(done),
    )


def _plan(context: TableContext, settings: SyncSettings, snapshot: Snapshot) -> EntryPlan:
    schema = snapshot.newest_schema_json or context.config.create_schema_json
    if schema is None:
        raise UnsupportedTableError(
            "the table has no schema to sync: write to it first", kind="no_schema"
        )
    return EntryPlan.of(settings, context.config, context.ports.storage.base_uri, schema)


def _sync_entry(
    context: TableContext, settings: SyncSettings, catalog: Catalog, number: int, *, full: bool
) -> tuple[EntrySync, SyncedUntil]:
    """Sync one entry, again if another process changed it meanwhile."""
    since: SyncedUntil | None = None
    created = False
    for _ in range(_ATTEMPTS):
        try:
            found, is_new = _found_entry(context, settings, catalog, number)
            created = created or is_new
            # After the entry: a snapshot must include all that the entry's last commit includes, or
            # it would drop partitions of later commits.
            snapshot = context.snapshot()
            plan = _plan(context, settings, snapshot)
            # An attempt that lost may have changed partitions by its older snapshot: repeat it all.
            since = found.entry.synced if since is None else since
            each = _Attempt(context, settings, catalog, snapshot, plan, plan.entries()[number])
            return each.run(found, NEVER if full else since, created=created)
        except EntryChangedError:
            context.ports.events.emit("sync.repeated", catalog=catalog.name)
    raise UnavailableError(
        f"other syncs changed the entry during {counted(_ATTEMPTS, 'attempt')}; {NEXT_STEP}: "
        f"{catalog.name}",
        kind="sync_contended",
    )


def _found_entry(
    context: TableContext, settings: SyncSettings, catalog: Catalog, number: int
) -> tuple[FoundEntry, bool]:
    """
    Return the entry of the catalog, which has a last commit, and whether it had to be created.

    Raises:
        EntryChangedError: Another process changed or dropped it at this moment.
    """
    wanted = _plan(context, settings, context.cached_snapshot()).entries()[number]
    found = catalog.find(wanted.database, wanted.name)
    created = found is None
    if found is None:
        catalog.ensure_database(wanted.database, create=settings.auto_create_database)
        catalog.create(wanted.with_synced(NEVER))
        found = catalog.find(wanted.database, wanted.name)
    elif found.entry.synced == SyncedUntil():  # made by CREATE TABLE, or by hand
        catalog.replace(found, found.entry.with_synced(NEVER), cascade=False)
        found = catalog.find(wanted.database, wanted.name)
    if found is None:
        raise EntryChangedError
    return found, created


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt to sync one entry by one snapshot."""

    context: TableContext
    settings: SyncSettings
    catalog: Catalog
    snapshot: Snapshot
    plan: EntryPlan
    wanted: TableEntry

    def run(
        self, found: FoundEntry, since: SyncedUntil, *, created: bool
    ) -> tuple[EntrySync, SyncedUntil]:
        held = found.entry
        current = held.updated(self.wanted, comments=self.settings.sync_comment)
        columns_changed = current.columns != held.columns
        properties_changed = _rest(current) != _rest(held)
        if held.partition_columns != self.wanted.partition_columns:
            raise _other_partitioning(held, self.wanted, self.catalog)
        if columns_changed or properties_changed:
            self.catalog.replace(found, current, cascade=columns_changed)
            found = self.catalog.find(held.database, held.name) or found
        changes = self._partitions(since)
        if changes is not None:
            self.catalog.add_partitions(found, changes.added)
            self.catalog.move_partitions(found, changes.moved)
            self.catalog.drop_partitions(found.entry, changes.dropped)
        until = _until(self.snapshot)
        each = EntrySync(
            catalog=self.catalog.name,
            entry=f"{held.database}.{held.name}",
            created=created,
            columns_changed=columns_changed,
            properties_changed=properties_changed,
            partitions_added=len(changes.added) if changes else 0,
            partitions_moved=len(changes.moved) if changes else 0,
            partitions_dropped=len(changes.dropped) if changes else 0,
            last_commit=until.requested_time,
        )
        moved = found.entry.with_synced(until)
        if moved != found.entry and (each.is_any or not self.settings.conditional):
            self.catalog.replace(found, moved, cascade=False)
        return each, until

    def _partitions(self, since: SyncedUntil) -> PartitionChanges | None:
        if not self.plan.fields:
            return None
        context, snapshot = self.context, self.snapshot
        paths = None
        if self.settings.incremental:
            paths = changed_partitions(snapshot, since)
        if paths is not None and not paths:
            return None
        view = view_of(context, snapshot)
        candidates = sorted(view.partition_paths()) if paths is None else sorted(paths)
        slices = view.latest_slices(candidates) if candidates else ()
        live = {one.file_group.partition_path for one in slices}
        by_values = self._values(candidates)
        wanted = None if paths is None else list(by_values)
        registered = self.catalog.partitions(self.wanted, wanted)
        gone = registered if paths is None else by_values
        return partition_changes(
            {
                values: self.plan.location_of(path)
                for values, path in by_values.items()
                if path in live
            },
            gone,
            registered,
        )

    def _values(self, paths: Sequence[str]) -> Mapping[Values, str]:
        return values_of_paths(
            paths,
            self.plan.fields,
            self.plan.extractor,
            decode=decodes(self.context.config, self.settings.decode_partition),
        )


def changed_partitions(snapshot: Snapshot, since: SyncedUntil) -> set[str] | None:
    """
    Return the partition paths of writes that completed after a sync; None if they are unknown.

    They are unknown without a last commit, and if that commit is archived or restored away, or a
    later one may be archived.

    Outside: the times of the archived timeline, once, and 1 get for each commit that is new.
    """
    known = any(
        one.requested_time == since.requested_time for one in snapshot.active.completed_writes
    )
    if not known or not since.completion_time:
        return None
    if snapshot.archived.newest_completion > since.completion_time:
        return None
    writes = snapshot.writes_between(since.completion_time, None)
    return {path for one in writes for path in snapshot.commits.read(one).partition_paths()}


def _until(snapshot: Snapshot) -> SyncedUntil:
    writes = snapshot.active.completed_writes
    return SyncedUntil(
        max((one.requested_time for one in writes), default=""),
        max((one.completion_time or one.requested_time for one in writes), default=""),
    )


def _rest(entry: TableEntry) -> tuple[object, ...]:
    return (
        entry.location,
        entry.input_format,
        entry.output_format,
        entry.serde,
        dict(entry.properties),
        dict(entry.serde_properties),
    )


def _other_partitioning(held: TableEntry, wanted: TableEntry, catalog: Catalog) -> HoodooError:
    def text(entry: TableEntry) -> str:
        named: Iterable[str] = (f"{one.name} {one.kind}" for one in entry.partition_columns)
        return ", ".join(named) or "none"

    return UnsupportedTableError(
        "the entry has other partition columns than the table, and a catalog cannot change them: "
        "drop the entry (its data stays if it is external), then sync again; or set "
        f"hoodie.datasource.hive_sync.partition_fields: {held.database}.{held.name} in "
        f"{catalog.name} has {text(held)}; the table has {text(wanted)}",
        kind="sync_partitioning",
    )
