"""
The checkpoint of a streamer: in the commit of each batch, under Hudi's keys.

Java's streamer reads ``streamer.checkpoint.key.v2`` of the newest commit that has it, and so does
this one. Commits of other writers have none and are skipped, also in the archived timeline. The
streamer without a name uses Hudi's keys. A named streamer has a key of its own, which Java and the
other streamers ignore.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from timeline.codecs.legacy_commit import decode_archived_commit
from timeline.context import TableContext
from timeline.errors import CorruptTableError
from timeline.model.instant_time import InstantTime
from timeline.snapshot import Snapshot

#: Hudi's keys, from table version 8 on and before; the newer one wins.
_KEYS = ("streamer.checkpoint.key.v2", "deltastreamer.checkpoint.key")
_RESET_KEYS = ("streamer.checkpoint.reset.key.v2", "deltastreamer.checkpoint.reset_key")
_IGNORE_KEY = "deltastreamer.checkpoint.ignore_key"
_OWN_KEY = "hoodoo.streamer.checkpoint"
_SOURCE_KEY = "hoodoo.streamer.source"
_WRITES = ("commit", "deltacommit", "replacecommit")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """
    The checkpoint in one commit.

    Args:
        instant: The requested time of the commit.
        value: The position in the source after its batch; None if the commit has only a wish.
        source: The source's address; None if Java wrote it.
        reset: The wish of ``hoodoo.streamer.checkpoint`` that the commit fulfilled.
        ignored: The wish of ``hoodoo.streamer.ignore.checkpoint`` that the commit fulfilled.
    """

    instant: InstantTime
    value: str | None
    source: str | None
    reset: str | None
    ignored: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKeys:
    """The keys of one streamer; ``identifier`` is None for the streamer without a name."""

    identifier: str | None

    @property
    def _suffix(self) -> str:
        return "" if self.identifier is None else f".{self.identifier}"

    def read(self, instant: InstantTime, extra: Mapping[str, str]) -> StoredCheckpoint | None:
        """Return the checkpoint in a commit's metadata; None if it has none of this streamer."""
        if self.identifier is None:
            value = _first(extra, _KEYS)
            reset = _first(extra, _RESET_KEYS)
        else:
            value = extra.get(_OWN_KEY + self._suffix)
            reset = extra.get(f"{_OWN_KEY}.reset{self._suffix}")
        if not (value or reset):
            return None
        return StoredCheckpoint(
            instant=instant,
            value=value or None,
            source=extra.get(_SOURCE_KEY + self._suffix),
            reset=reset,
            ignored=extra.get(_IGNORE_KEY + self._suffix),
        )

    def write(
        self, value: str, source: str, *, reset: str | None, ignored: str | None
    ) -> dict[str, str]:
        """Return the entries of a commit; ``reset`` and ``ignored`` as of ``StoredCheckpoint``."""
        named = self.identifier is not None
        entries = {
            (_OWN_KEY + self._suffix) if named else _KEYS[0]: value,
            _SOURCE_KEY + self._suffix: source,
        }
        if reset is not None:
            entries[f"{_OWN_KEY}.reset{self._suffix}" if named else _RESET_KEYS[0]] = reset
        if ignored is not None:
            entries[_IGNORE_KEY + self._suffix] = ignored
        return entries

    def batch_id(self, before: StoredCheckpoint | None) -> str:
        """
        Return the id of the batch that follows a commit.

        A batch id is committed once. So of two streamers that read one checkpoint, one commits.
        """
        after = "the start" if before is None else before.instant
        return f"streamer{self._suffix} after {after}"


def find_checkpoint(
    context: TableContext, snapshot: Snapshot, keys: CheckpointKeys
) -> StoredCheckpoint | None:
    """
    Return the newest checkpoint of a streamer in the visible commits; None if there is none.

    Outside: 1 get for each active commit until it is found; then as ``ArchivedTimeline.instants``.
    """
    for instant, extra in _newest_first(context, snapshot):
        found = keys.read(instant, extra)
        if found is not None:
            return found
    return None


def committed_by_java(
    snapshot: Snapshot, keys: CheckpointKeys, after: InstantTime | None
) -> InstantTime | None:
    """
    Return the requested time of the newest commit of Java's streamer since a commit, or None.

    Args:
        snapshot: The newest one.
        keys: Those of the streamer without a name; Java's streamer has no other.
        after: The newest commit of the stream before; None if there was none.

    Outside: 1 get for each commit since then.
    """
    for instant in snapshot.writes_newest_first():
        if instant.requested_time == after:
            return None
        found = keys.read(instant.requested_time, snapshot.commits.read(instant).extra_metadata)
        if found is not None and found.source is None:
            return found.instant
    return None


def _newest_first(
    context: TableContext, snapshot: Snapshot
) -> Iterator[tuple[InstantTime, Mapping[str, str]]]:
    for instant in snapshot.writes_newest_first():
        yield instant.requested_time, snapshot.commits.read(instant).extra_metadata
    rows = context.archived_timeline.instants(times_only=False)
    rows = [row for row in rows if row.action in _WRITES and row.metadata]
    for row in sorted(rows, key=lambda one: one.completion_time or "", reverse=True):
        path = f"archived timeline ({row.requested_time})"
        try:
            metadata = decode_archived_commit(row.metadata or b"", action=row.action, path=path)
        except CorruptTableError:
            continue
        yield row.requested_time, metadata.extra_metadata


def _first(extra: Mapping[str, str], keys: tuple[str, ...]) -> str | None:
    return next(filter(None, (extra.get(key) for key in keys)), None)
