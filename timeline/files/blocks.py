"""
The blocks of log files: chosen by their headers, then read, one file after the other.

Shared by all who read log files, whatever they make of a block's content.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, TypeVar

from timeline.codecs.log_blocks import LogBlock, iter_blocks, read_content
from timeline.errors import CorruptTableError, MissingFileError
from timeline.files.block_selection import SelectedBlocks, find_damaged, select_blocks
from timeline.model.file_group import LogFile
from timeline.model.times import InstantTime
from timeline.ports.events import EventSink
from timeline.ports.storage import ObjectMissingError, Storage

__all__ = ["OpenedFile", "find_blocks", "opened", "read_blocks"]

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
    damaged = find_damaged(logs, blocks, visible, base_time)
    if damaged is not None:
        raise CorruptTableError(
            "a log file lost a part of what was published in it: restore it from a backup, or "
            f"restore the table to a state before {damaged.instant_time}: {damaged.path}",
            kind="log_torn",
            path=damaged.path,
        )
    return select_blocks(blocks, visible)
