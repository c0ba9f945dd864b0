"""The blocks of log files: which of them count, in which order (fmt 5.7), and their content."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, TypeVar

from timeline.codecs.log_blocks import (
    DATA_BLOCKS,
    BlockType,
    HeaderKey,
    LogBlock,
    iter_blocks,
    read_content,
)
from timeline.errors import CorruptTableError, MissingFileError
from timeline.model.file_names import LogFile
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import EventSink
from timeline.ports.storage import ObjectMissingError, Storage
from timeline.snapshot import Snapshot

__all__ = [
    "OpenedFile",
    "SelectedBlocks",
    "VisibleInstants",
    "find_blocks",
    "find_corrupt_log",
    "opened",
    "read_blocks",
    "select_blocks",
]

# ---- Selection of blocks (fmt 5.7)
#
# Headers alone decide, before any record is decoded. Three kinds of blocks are left out: those of
# invisible instants, of instants that were rolled back, and of instants that a log compaction has
# merged. The block of a log compaction takes the position of the newest instant it replaces, not
# its own: blocks that others wrote between the two are newer.

_COUNTING = DATA_BLOCKS | {BlockType.DELETE}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleInstants:
    """
    The instants whose blocks count, as a plain value that can be sent to another process.

    ``times`` are requested times; every instant below ``archived_below`` counts too.
    """

    times: frozenset[InstantTime]
    archived_below: InstantTime | None = None

    @classmethod
    def of(cls, snapshot: Snapshot) -> VisibleInstants:
        """
        Return the visible instants of a snapshot (fmt 6.3, 6.5).

        Outside: the times of the archived timeline if savepoints keep every write of the active
        one.
        """
        active, as_of = snapshot.active, snapshot.as_of
        times, below = set(snapshot.completions), active.archived_below
        if active.first_write_time is None:
            archived = snapshot.archived.completions
            times.update(time for time in archived if as_of is None or time <= as_of)
        if below is not None and as_of is not None and as_of < below:
            below = as_of + "0"  # the least text above it
        return cls(times=frozenset(times), archived_below=below)

    def __contains__(self, time: object) -> bool:
        below = self.archived_below
        return time in self.times or (below is not None and str(time) < below)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedBlocks:
    """Data and delete blocks in the order they are applied, and the corrupt ones."""

    blocks: tuple[LogBlock, ...]
    corrupt: tuple[LogBlock, ...] = ()


def select_blocks(blocks: Iterable[LogBlock], visible: Container[InstantTime]) -> SelectedBlocks:
    """
    Select the blocks of a slice that count.

    Args:
        blocks: Of all log files, in the files' order.
        visible: The instants that count in the snapshot.

    Raises:
        CorruptTableError: A block lacks a header entry that it needs.
    """
    corrupt: list[LogBlock] = []
    rolled_back: set[InstantTime] = set()
    by_instant: dict[InstantTime, list[LogBlock]] = {}  # in the order instants first appear
    for block in blocks:
        if block.block_type is BlockType.CORRUPT:
            corrupt.append(block)
        elif block.block_type is BlockType.COMMAND:
            rolled_back.add(block.target_instant_time)
        elif block.block_type in _COUNTING and block.instant_time in visible:
            by_instant.setdefault(block.instant_time, []).append(block)
    for time in rolled_back:
        by_instant.pop(time, None)
    order = _after_log_compactions(
        {time: found[0].compacted_times for time, found in by_instant.items()}
    )
    return SelectedBlocks(
        blocks=tuple(block for time in order for block in by_instant[time]),
        corrupt=tuple(corrupt),
    )


def find_corrupt_log(
    logs: Sequence[LogFile],
    blocks: Sequence[LogBlock],
    visible: Container[InstantTime],
    base_time: InstantTime | None,
) -> LogFile | None:
    """
    Return the first log file that lost a committed part (F21), or None.

    A crash truncates data that was not committed yet; such damage is ignored. In a file of one
    instant that counts, no block may be corrupt and at least one must exist. Logs of version 6 are
    named after the base file below and keep blocks of crashed writes: they are never reported as
    damaged.

    Args:
        logs: Of a slice.
        blocks: All blocks found in them.
        visible: The instants that count in the snapshot.
        base_time: Requested time of the base file below, None without one.
    """
    found: dict[str, list[LogBlock]] = {log.path: [] for log in logs}
    needless = {base_time}
    for block in blocks:
        found[block.path].append(block)
        if block.block_type is BlockType.COMMAND:
            needless.add(block.target_instant_time)
        elif block.header.get(HeaderKey.INSTANT_TIME) in visible:
            needless.update(block.compacted_times)
    for log in logs:
        if log.instant_time in needless or log.instant_time not in visible:
            continue
        whole = [one for one in found[log.path] if one.block_type is not BlockType.CORRUPT]
        times = {one.header.get(HeaderKey.INSTANT_TIME) for one in whole}
        if times <= {log.instant_time} and not 0 < len(whole) == len(found[log.path]):
            return log
    return None


def _after_log_compactions(
    compacted: dict[InstantTime, tuple[InstantTime, ...]],
) -> list[InstantTime]:
    """Return the instants to read, oldest first; ``compacted`` maps each to those it replaces."""
    if not any(compacted.values()):
        return list(compacted)
    stands_for: dict[InstantTime, InstantTime] = {}
    newest_first: dict[InstantTime, None] = {}
    for time in reversed(compacted):
        replaced = compacted[time]
        if replaced:
            # If a later one replaces this one, that one replaces all of these.
            final = stands_for.get(time, time)
            for original in replaced:
                stands_for[original] = final
            if final == time and not any(original in compacted for original in replaced):
                newest_first[time] = None  # its instants were removed: it keeps its position
            continue
        newest_first.setdefault(stands_for.get(time, time))
    return list(newest_first)[::-1]


# ---- Reading of selected blocks, file by file

_KEPT_OPEN_MAX = 64  # log files of a slice, between finding blocks and reading them

Decoded = TypeVar("Decoded")


class OpenedFile:
    """An open file of the storage as a ``ByteSource``."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read_at(self, offset: int, length: int, /) -> bytes:
        """As the protocol."""
        self._file.seek(offset)
        return bytes(self._file.read(length))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


@contextmanager
def opened(storage: Storage, path: str) -> Iterator[OpenedFile]:
    """
    Open a file for reads of ranges.

    Raises:
        MissingFileError: It is missing.

    Outside: 1 open_input.
    """
    try:
        file = storage.open_input(path)
    except ObjectMissingError as error:
        raise MissingFileError(f"a file of the table is gone: {path}", path=path) from error
    with file:
        yield OpenedFile(file)


def find_blocks(
    storage: Storage,
    logs: Sequence[LogFile],
    visible: Container[InstantTime],
    base_time: InstantTime | None = None,
) -> tuple[LogBlock, ...]:
    """
    Return the blocks of a slice's logs that count, unread, in the order they are applied.

    Errors and calls outside: as ``read_blocks``, 1 open_input for each file.
    """
    found: list[LogBlock] = []
    for log in logs:
        with opened(storage, log.path) as source:
            found.extend(iter_blocks(source, log.size_bytes, path=log.path))
    return _selected(found, logs, visible, base_time).blocks


def read_blocks(
    storage: Storage,
    events: EventSink,
    logs: Sequence[LogFile],
    visible: Container[InstantTime],
    decode: Callable[[LogBlock, bytes], Decoded],
    *,
    base_time: InstantTime | None = None,
) -> list[Decoded]:
    """
    Read the blocks of a slice's logs that count.

    Args:
        storage: Storage of the table.
        events: Receives corrupt blocks without committed data (``log.corrupt``).
        logs: In the order of ``LogFile.order``.
        visible: The instants whose blocks count.
        decode: Decodes a block and its content, which is not kept.
        base_time: Requested time of the base file below, None without one.

    Returns:
        The results of ``decode``, in the order in which blocks are applied.

    Raises:
        MissingFileError: A log file is missing.
        CorruptTableError: A log file is damaged, and the lost part was committed.
        UnsupportedTableError: A block is of an unknown kind.

    Outside: 1 open_input for each file; 2 for those after the first 64 that have blocks that count.
    """
    files = {log.path: log for log in logs}
    with ExitStack() as kept:
        sources: dict[str, OpenedFile] = {}
        found: list[LogBlock] = []
        for log in files.values():
            source = kept.enter_context(opened(storage, log.path))
            found.extend(iter_blocks(source, log.size_bytes, path=log.path))
            if len(sources) < _KEPT_OPEN_MAX:
                sources[log.path] = source
            else:
                source.close()
        selected = _selected(found, list(files.values()), visible, base_time)
        for block in selected.corrupt:
            events.emit(
                "log.corrupt", path=block.path, offset=block.offset, bytes=block.content_length
            )
        decoded: dict[tuple[str, int], Decoded] = {}
        for path in dict.fromkeys(block.path for block in selected.blocks):
            source = sources.get(path) or kept.enter_context(opened(storage, path))
            for block in selected.blocks:
                if block.path == path:
                    decoded[path, block.offset] = decode(block, read_content(source, block))
            source.close()
    return [decoded[block.path, block.offset] for block in selected.blocks]


def _selected(
    blocks: Sequence[LogBlock],
    logs: Sequence[LogFile],
    visible: Container[InstantTime],
    base_time: InstantTime | None,
) -> SelectedBlocks:
    damaged = find_corrupt_log(logs, blocks, visible, base_time)
    if damaged is not None:
        raise CorruptTableError(
            "a log file lost a part of what was published in it: restore it from a backup, or "
            f"restore the table to a state before {damaged.instant_time}: {damaged.path}",
            kind="log_torn",
            path=damaged.path,
        )
    return select_blocks(blocks, visible)
