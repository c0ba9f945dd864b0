"""
Write the archived timeline: level 0 files, manifests, ``_version_``, merged levels (fmt 8).

Java Hudi writes all of it under the table's lock. In hoodoo two archivers may work at once, so each
manifest is created only if absent, and from the manifest before it. A whole manifest with a number
beyond ``_version_`` is from an archiver that did not write ``_version_`` yet; the next one
builds on it. A file that no kept manifest names is deleted only when it is old, because another
archiver may be about to name it.

File names do not identify the table. So after its writes a writer checks that the table is still
the same, and deletes its files from the archived timeline of another table (SLOT-10).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType

from tableservices.archiving.plan import ArchivingSettings
from timeline.archived import (
    ArchiveFiles,
    missing_archive_file,
    newest_manifest,
    read_archive_files,
    version_file_number,
)
from timeline.codecs.archive_manifest import (
    ArchivedInstant,
    ArchiveFile,
    archive_file,
    encode_manifest,
    parse_manifest,
)
from timeline.codecs.archived_instants import (
    encode_archived_instants,
    merge_archive_files,
    parse_archived_instants,
)
from timeline.context import TableContext
from timeline.errors import CorruptTableError, TableReplacedError
from timeline.model.file_names import HISTORY, parse_instant_name, timeline_path
from timeline.model.instant import Action, Instant, State
from timeline.ports.ports import (
    AmbiguousWriteError,
    ObjectExistsError,
    ObjectMissingError,
    Storage,
)

#: Files written to the archived timeline, by path; their bytes identify them.
CreatedFiles = dict[str, bytes]

_MANIFEST = re.compile(r"manifest_([0-9]{1,18})")
_VERSION = f"{HISTORY}/_version_"
_MANIFESTS_KEPT = 3


def archived_between(storage: Storage, first: str, last: str) -> frozenset[tuple[str, str]]:
    """
    Return requested time and action of the archived instants in files that overlap a range.

    Outside: 1 list, 2 gets, 1 get per file whose range overlaps.
    """
    _, found = read_archive_files(
        storage,
        newest_manifest(storage)[1],
        lambda one: one.first_time <= last and first <= one.last_time,
        lambda data, path: parse_archived_instants(data, path=path, times_only=True),
    )
    return frozenset((row.requested_time, row.action) for rows in found for row in rows)


@contextmanager
def undo_if_table_replaced(context: TableContext) -> Iterator[CreatedFiles]:
    """
    Write the archived timeline within the block; record created files in the yielded value.

    Outside: 1 get; in another table a get and a delete for each of them, 1 list, 1 get, 1 put.

    Raises:
        TableReplacedError: The table was dropped. All created files were deleted from the table
            created in its place.
    """
    made: CreatedFiles = {}
    try:
        yield made
    finally:
        try:
            context.commit_log.assert_same_table()
        except TableReplacedError:
            _take_away(context.ports.storage, made)
            raise


def _take_away(storage: Storage, made: CreatedFiles) -> None:
    """Delete manifests before the files they name, then correct a ``_version_`` beyond them."""
    for path, data in reversed(made.items()):
        with suppress(ObjectMissingError):
            if storage.read(path) == data:
                storage.delete(path)
    found = (match for name in storage.names(HISTORY) if (match := _MANIFEST.fullmatch(name)))
    newest = max((int(match[1]) for match in found), default=0)
    if version_file_number(storage) <= newest:
        return
    if newest:
        storage.write(_VERSION, str(newest).encode(), durable=True)
    else:
        storage.delete(_VERSION)


def append_to_archive(
    storage: Storage, rows: Sequence[ArchivedInstant], made: CreatedFiles | None = None
) -> None:
    """
    Write archived instants to a new file of level 0 and name it in a manifest.

    Without rows, only write a missing ``_version_``: its archiver may have died or paused before.
    Outside: 1 put, see ``_write_manifest``.

    Args:
        storage: The table's.
        rows: Ascending by requested time.
        made: Receives the created files.
    """
    made = {} if made is None else made
    if not rows:
        _write_version_file(storage)
        return
    times = [row.requested_time for row in rows]
    data = encode_archived_instants(rows)
    added = archive_file(min(times), max(times), level=0, size_bytes=len(data))
    path = f"{HISTORY}/{added.file_name}"
    made[path] = data
    storage.write(path, data, durable=True)

    def with_added(files: ArchiveFiles) -> ArchiveFiles | None:
        return None if any(_same(one, added) for one in files) else (*files, added)

    _write_manifest(storage, with_added, made)
    if storage.stat(path) is None:  # deleted by a cleanup before the manifest named it
        storage.write(path, data, durable=True)


def merge_levels(context: TableContext, settings: ArchivingSettings) -> int:
    """
    Merge many small files, level by level, then delete unneeded files; return the merges.

    Outside: 1 list and 2 gets a level; per merge 1 get per file, 1 put, see ``_write_manifest`` and
    ``undo_if_table_replaced``; 1 list, and where manifests are deleted 1 get for each, 1 get, the
    deletes.
    """
    storage = context.ports.storage
    merges = level = 0
    while True:
        inputs = _to_merge(newest_manifest(storage)[1], level, settings)
        if len(inputs) < 2:
            break
        with undo_if_table_replaced(context) as made:
            _merge(storage, inputs, level, made)
        merges += 1
        level += 1
    _tidy(context, manifests_kept=_MANIFESTS_KEPT + level)
    return merges


def _to_merge(files: ArchiveFiles, level: int, settings: ArchivingSettings) -> ArchiveFiles:
    """Return the oldest files of a level if there are enough, up to the size limit."""
    of_level = sorted((one for one in files if one.level == level), key=_name)
    if len(of_level) < settings.merged_files:
        return ()
    chosen: list[ArchiveFile] = []
    for one in of_level[: settings.merged_files]:
        if sum(each.size_bytes for each in (*chosen, one)) > settings.merged_bytes_max:
            break
        chosen.append(one)
    return tuple(chosen)


def _merge(storage: Storage, inputs: ArchiveFiles, level: int, made: CreatedFiles) -> None:
    paths = [f"{HISTORY}/{one.file_name}" for one in inputs]
    try:
        data = merge_archive_files((path, storage.read(path)) for path in paths)
    except ObjectMissingError as error:
        if not set(inputs) <= set(newest_manifest(storage)[1]):
            return  # another archiver merged them
        raise missing_archive_file(str(error)) from error
    merged = archive_file(
        min(one.first_time for one in inputs),
        max(one.last_time for one in inputs),
        level=level + 1,
        size_bytes=len(data),
    )
    path = f"{HISTORY}/{merged.file_name}"
    made[path] = data
    storage.write(path, data, durable=True)
    gone = {one.file_name for one in inputs}

    def with_merged(files: ArchiveFiles) -> ArchiveFiles | None:
        if not gone <= {one.file_name for one in files}:
            return None  # another archiver merged them
        first = next(at for at, one in enumerate(files) if one.file_name in gone)
        left = [one for one in files if one.file_name not in gone]
        return (*left[:first], merged, *left[first:])

    _write_manifest(storage, with_merged, made)


def _write_manifest(
    storage: Storage, change: Callable[[ArchiveFiles], ArchiveFiles | None], made: CreatedFiles
) -> None:
    """
    Create the next manifest from the newest one, then write ``_version_``.

    ``change`` returns None when there is nothing to do. Outside: 2 lists, 2 gets, 1 create, 1 put;
    again from the start when another archiver took the number.
    """
    while True:
        number, files = newest_manifest(storage)
        changed = change(files)
        if changed is None:
            break
        path = f"{HISTORY}/manifest_{number + 1}"
        made[path] = encode_manifest(changed)
        try:
            storage.create(path, made[path])
            break
        except AmbiguousWriteError:
            continue
        except ObjectExistsError:
            if newest_manifest(storage)[0] == number:
                storage.delete(path)  # partial file of an archiver that died during the write
    _write_version_file(storage)


def _write_version_file(storage: Storage) -> None:
    """Write ``_version_``; repeat after each newer manifest, so that it is never behind."""
    version = -1
    while True:
        number, _ = newest_manifest(storage)
        if number in (0, version):
            return
        # A greater number is another archiver's, of manifests made since the listing.
        if version_file_number(storage) < number:
            storage.write(_VERSION, str(number).encode(), durable=True)
        version = number


def _tidy(context: TableContext, *, manifests_kept: int) -> None:
    """Delete all but the newest manifests, and old files that none of these names."""
    storage = context.ports.storage
    stats = {entry.name: entry for entry in storage.list(HISTORY) if not entry.is_folder}
    manifests = sorted(
        (name for name in stats if _MANIFEST.fullmatch(name)),
        key=lambda name: int(name.partition("_")[2]),
        reverse=True,
    )
    if len(manifests) <= manifests_kept:
        return
    named: set[str] = set()
    for name in manifests[:manifests_kept]:
        path = f"{HISTORY}/{name}"
        try:
            named.update(one.file_name for one in parse_manifest(storage.read(path), path=path))
        except (ObjectMissingError, CorruptTableError):
            return  # another archiver is at work
    old_ms = storage.now_ms() - context.limits.heartbeat.tolerated_ms
    files = [name for name in stats if name.endswith(".parquet") and name not in named]
    gone = manifests[manifests_kept:] + [n for n in files if stats[n].modified_ms < old_ms]
    context.commit_log.assert_same_table()  # manifests of another table have the same names (SLOT-10)
    for name in gone:
        storage.delete(f"{HISTORY}/{name}")


def _same(one: ArchiveFile, other: ArchiveFile) -> bool:
    return one.file_name == other.file_name


def _name(one: ArchiveFile) -> str:
    return one.file_name


# ---- Move instants: their rows to the archived timeline, then the deletes of their files

_PASSES = 2


def move_instants(
    context: TableContext,
    completed: Sequence[str],
    names: frozenset[str],
    fixed: Mapping[str | None, bytes] = MappingProxyType({}),
) -> None:
    """
    Move completed instants to the archived timeline; repeating it after a crash changes nothing.

    Outside: the reads of ``archived_between``; 1 get for each completed file and plan; those of
    ``append_to_archive`` and ``undo_if_table_replaced``; the deletes, completed files last.

    Args:
        context: The table, or its metadata table by the storage of that folder.
        completed: Names of the completed files, ascending by requested time.
        names: All files of the timeline.
        fixed: The contents of completed files that are known, by name.
    """
    storage = context.ports.storage
    named = {name: one for name in completed if (one := parse_instant_name(name))}
    instants = list(named.values())
    times = [one.requested_time for one in instants]
    pending = _pending_of(instants, names)
    rows: list[ArchivedInstant | None] = [None]
    for _ in range(_PASSES):  # files that disappear during the reads are archived by then
        if None not in rows:
            break
        archived = archived_between(storage, min(times), max(times))
        missing = [
            (name, one, pending[one.requested_time], fixed.get(name))
            for name, one in named.items()
            if (one.requested_time, one.action.value) not in archived
        ]
        rows = context.ports.for_each(lambda one: archived_row(storage, *one), missing)
    with undo_if_table_replaced(context) as made:
        append_to_archive(storage, [row for row in rows if row is not None], made)
    begun = [timeline_path(name) for one in instants for name in pending[one.requested_time]]
    context.ports.for_each(storage.delete, begun)
    for name in completed:
        if name in names:
            storage.delete(timeline_path(name))


def _pending_of(instants: Sequence[Instant], names: frozenset[str]) -> dict[str, list[str]]:
    """Return the pending files of these completed instants, by requested time."""
    actions = {one.requested_time: one.action for one in instants}
    found: dict[str, list[str]] = {one.requested_time: [] for one in instants}
    for name in sorted(names):
        one = parse_instant_name(name)
        if one is None or one.completed:
            continue
        if actions.get(one.requested_time) is one.action.completes_as:
            found[one.requested_time].append(name)
    return found


#: Pending files whose content is archived as the plan; the first non-empty one (fmt 8).
_PLANS = (
    (Action.CLEAN, State.REQUESTED),
    (Action.COMPACTION, State.REQUESTED),
    (Action.LOGCOMPACTION, State.REQUESTED),
    (Action.REPLACECOMMIT, State.INFLIGHT),
    (Action.REPLACECOMMIT, State.REQUESTED),
    (Action.CLUSTERING, State.INFLIGHT),
    (Action.CLUSTERING, State.REQUESTED),
)


def archived_row(
    storage: Storage, name: str, instant: Instant, pending: Sequence[str], fixed: bytes | None
) -> ArchivedInstant | None:
    """Return the archived form of a completed instant; None when another engine archived it."""
    begun = {(one.action, one.state): n for n in pending if (one := parse_instant_name(n))}
    plans = [begun[kind] for kind in _PLANS if kind in begun]
    try:
        # The file must exist, even where its slot has the content.
        found = storage.read(timeline_path(name))
        contents = [storage.read(timeline_path(one)) for one in plans]
    except ObjectMissingError:
        return None
    plan = next(filter(None, contents), None)
    return ArchivedInstant(
        requested_time=instant.requested_time,
        completion_time=instant.completion_time,
        action=instant.action.value,
        metadata=fixed or found or None,
        plan=plan,
    )
