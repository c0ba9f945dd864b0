"""
The timeline of a version 6 table in the layout of versions 8 and 9 (fmt 2.2, 11.2).

The new files are made in their own folder, where version 6 does not look, before the
properties say that they count; the old ones are deleted after it. So a crash leaves a whole
table of one version or the other, and the upgrade is begun anew.

Completion times are those of Java Hudi, the ages of the old files, where they can be true:
after the instant's request and not after the next one's. A copied table has files of any
age; there an instant completes a millisecond after it was requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from tableservices.archiving.history_files import add_to_history
from timeline.codecs.instant_avro import encode_commit
from timeline.codecs.legacy_commit import decode_legacy_commit
from timeline.context import TableContext
from timeline.model.filenames import (
    instant_file_name,
    parse_instant_name,
    pending_file_names,
)
from timeline.model.instant import Action, Instant
from timeline.model.times import InstantTime, WallMs, instant_time, wall_ms
from timeline.places import HOODIE, TIMELINE, timeline_path

__all__ = ["delete_old_timeline", "write_new_timeline"]

_COMMITS = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})


def write_new_timeline(context: TableContext) -> int:
    """
    Make every instant's files in the new layout, active and archived; returns how many.

    Outside: 1 delete, 1 list, 1 get and 1 put per file; for the archive 1 get per file and a few puts.
    """
    storage = context.world.storage
    storage.delete_folder(TIMELINE)  # of a try that was cut off; the old timeline went on since
    made = 0
    for name, data in _converted(context):
        storage.write(timeline_path(name), data, durable=True)
        made += 1
    archived = context.history.instants(times_only=False)
    if archived:
        add_to_history(storage, archived)
    return made


def _converted(context: TableContext) -> Iterator[tuple[str, bytes]]:
    read = context.world.storage.read
    active = context.active()
    completions = _completions(context, active.instants)
    for instant in active.instants:
        old = instant_file_name(instant)
        new = replace(
            instant,
            completion_time=completions[instant.requested_time, instant.action],
            legacy=False,
        )
        path = f"{HOODIE}/{old}"
        yield instant_file_name(new), _content(read(path), instant.action, path)
        for name in _pending_names(instant):
            if name in active.file_names:
                path = f"{HOODIE}/{name}"
                inflight = name.endswith("inflight")
                action = instant.action if inflight else Action.CLEAN  # plans are Avro already
                yield name, _content(read(path), action, path)


def _pending_names(instant: Instant) -> Iterator[str]:
    """Names that its pending states may have; those of a compaction tell that it is one."""
    for action in Action:
        if action.completes_as is instant.action:
            yield from pending_file_names(action, instant.requested_time)


def _content(data: bytes, action: Action, path: str) -> bytes:
    """What the file holds in the new layout: commits are JSON in the old one, all else is alike."""
    if not data or action not in _COMMITS:
        return data
    metadata = decode_legacy_commit(data, path=path)
    if action is Action.REPLACECOMMIT:
        replaced = metadata.partition_to_replace_file_ids or {}
        return encode_commit(replace(metadata, partition_to_replace_file_ids=replaced))
    return encode_commit(replace(metadata, partition_to_replace_file_ids=None))


def _completions(
    context: TableContext, instants: tuple[Instant, ...]
) -> dict[tuple[InstantTime, Action], InstantTime]:
    """By requested time and action, as a savepoint has the time of its commit."""
    ages = {
        entry.name: context.zone.instant_time(entry.modified_ms)
        for entry in context.world.storage.list(HOODIE)
        if not entry.is_folder
    }
    found: dict[tuple[InstantTime, Action], InstantTime] = {}
    following: InstantTime | None = None
    for time, same in groupby(reversed(instants), key=lambda one: one.requested_time):
        soonest = instant_time(WallMs(wall_ms(time) + 1))
        for one in same:
            aged = ages.get(instant_file_name(one), "")
            possible = aged >= soonest and (following is None or aged < following)
            found[time, one.action] = aged if possible else soonest
        following = time
    return found


def delete_old_timeline(context: TableContext) -> None:
    """Delete the instants' files of the old layout, once the properties name the new one."""
    storage = context.world.storage
    for name in storage.names(HOODIE):
        if parse_instant_name(name) is not None:
            storage.delete(f"{HOODIE}/{name}")
