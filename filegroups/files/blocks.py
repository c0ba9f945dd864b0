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

# ------------------------------ Which blocks of a slice's logs count, and in which order (fmt 5.7)
#
# Decided from headers alone, before a single record is decoded: blocks of instants that are
# not visible, of instants that were rolled back, and of instants whose content a log
# compaction has put together anew are left out. The block of a log compaction takes the place
# of the newest instant it replaces, not its own: what others wrote between the two is newer.

_COUNTING = DATA_BLOCKS | {BlockType.DELETE}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleInstants:
    """
    Whose blocks count, as a plain value that can be sent to another process.

    ``times`` are requested times; every instant below ``archived_below`` counts too.
    """

    times: frozenset[InstantTime]
    archived_below: InstantTime | None = None

    @classmethod
    def of(cls, snapshot: Snapshot) -> VisibleInstants:
        """
        What a snapshot shows (fmt 6.3, 6.5).

        Outside: the history's times where savepoints keep every write of the timeline.
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
    """Data and delete blocks in the order they are applied, and what was corrupt."""

    blocks: tuple[LogBlock, ...]
    corrupt: tuple[LogBlock, ...] = ()


def select_blocks(blocks: Iterable[LogBlock], visible: Container[InstantTime]) -> SelectedBlocks:
    """
    Choose the blocks of a slice that count.

    Args:
        blocks: Of all log files, in the files' order.
        visible: The instants that count in the snapshot that is read.

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
    A log file that lost a part of what was published in it, the first such (F21).

    A crash tears what was not published yet, and that is passed over. In a file of one instant
    that counts, nothing may be torn and something must be there. Logs of version 6 are named
    after the base file below and keep what crashed in them: they are never called damaged.

    Args:
        logs: Of a slice.
        blocks: All that were found in them.
        visible: The instants that count in the snapshot that is read.
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
    """The instants to read, oldest first; ``compacted`` has what each of all replaces."""
    if not any(compacted.values()):
        return list(compacted)
    stands_for: dict[InstantTime, InstantTime] = {}
    newest_first: dict[InstantTime, None] = {}
    for time in reversed(compacted):
        replaced = compacted[time]
        if replaced:
            # Itself replaced by a later one: then that one stands for all of these.
            final = stands_for.get(time, time)
            for original in replaced:
                stands_for[original] = final
            if final == time and not any(original in compacted for original in replaced):
                newest_first[time] = None  # what it replaces is gone: its own place is left
            continue
        newest_first.setdefault(stands_for.get(time, time))
    return list(newest_first)[::-1]


# ----------- The blocks of log files: chosen by their headers, then read, one file after the other
#
# Shared by all who read log files, whatever they make of a block's content.

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
        """Give the file back; a second time is no error."""
        self._file.close()


@contextmanager
def opened(storage: Storage, path: str) -> Iterator[OpenedFile]:
    """
    A file that is read in ranges.

    Raises:
        MissingFileError: It is gone.

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
    The blocks of a slice's logs that count, in the order in which they are applied, unread.

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
        storage: Where the table lies.
        events: Told of corrupt blocks that hold nothing that was published (``log.corrupt``).
        logs: In the order of ``LogFile.order``.
        visible: The instants whose blocks count.
        decode: Makes something of a block and its content, which is not kept.
        base_time: Requested time of the base file below, None without one.

    Returns:
        What ``decode`` made, in the order in which blocks are applied.

    Raises:
        MissingFileError: A log file is gone.
        CorruptTableError: A log file is damaged, and what was lost with it was published.
        UnsupportedTableError: A block is of a kind that is not known.

    Outside: 1 open_input for each file; 2 for those above the first 64 that have blocks that
    count.
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
