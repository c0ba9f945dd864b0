"""
Blocks of log files to bytes and back, and the start of each record in a block.

Only the first record's position is known, and each length gives the next position. So a plain walk
takes one Python step per record, which costs as much as decoding ten columns. Instead, this module
guesses likely record starts all over the block (positions from which a few lengths in a row are
plausible) and makes all walks at once. It accepts a guess only if the walk from the proven position
before it arrives exactly there; it walks the unproven rest plainly. So the result is exact for any
bytes, and only the time differs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError, counted

_LENGTH: Final = struct.Struct(">i")
_SAMPLE_RECORDS: Final = 256
_GUESSED_RECORDS_MIN: Final = 8 * _SAMPLE_RECORDS  # below, the plain walk is as fast
_WINDOW_BYTES_MAX: Final = 4096  # for larger records the walk is a small part of the work
_PROBED_BYTES_MAX: Final = 1024 * 1024
_PROBE_HOPS: Final = 8

Integers = npt.NDArray[np.int64]
BytesLike = bytes | bytearray | memoryview


def corrupt_block_error(path: str, why: str) -> CorruptTableError:
    """Return the error for a block with wrong framing; `why` names the finding."""
    return CorruptTableError(
        f"a log block is damaged ({why}): restore the file from a backup, or roll its instant "
        f"back with 'hoodoo rollback TABLE INSTANT': path={path}",
        kind="bad_record",
        path=path,
    )


def record_borders(content: BytesLike, count: int, *, path: str) -> Integers:
    """
    Find the length prefixes of all records.

    Args:
        content: Records, each after its length as a big-endian int32.
        count: The expected number of records.
        path: The file's name in errors.

    Shapes: (count + 1,): the position of each length, and the end of the last record.

    Raises:
        CorruptTableError: A length is negative, or the content is not `count` records.
    """
    size = len(content)
    if not 0 <= count <= size // _LENGTH.size:
        raise corrupt_block_error(path, f"{counted(count, 'record')} in {size} bytes")
    try:
        places, at = _walk(content, 0, {size}, _SAMPLE_RECORDS)
        borders = np.array([*places, at], np.int64)
        if at < size:
            window = int(np.diff(borders).max())
            many = min(count, (size - at) // window) >= _GUESSED_RECORDS_MIN
            if many and window <= _WINDOW_BYTES_MAX:
                rest = _guessed(content, count, borders)
            else:
                places, at = _walk(content, at, {size}, size)
                rest = np.array([*places, at], np.int64)
            borders = np.concatenate((borders[:-1], rest))
    except (struct.error, ValueError) as error:
        raise corrupt_block_error(path, "a length is negative or runs past the end") from error
    if len(borders) != count + 1:
        raise corrupt_block_error(path, f"{counted(len(borders) - 1, 'record')} instead of {count}")
    return borders


def _walk(content: BytesLike, at: int, stops: set[int], limit: int) -> tuple[list[int], int]:
    """Walk plainly to one of some positions, or over a number of records."""
    places: list[int] = []
    note, length_at = places.append, _LENGTH.unpack_from
    while at not in stops and len(places) < limit:
        (length,) = length_at(content, at)
        if length < 0:
            raise ValueError("negative length")
        note(at)
        at += _LENGTH.size + length
    return places, at


def _guessed(content: BytesLike, count: int, sample: Integers) -> Integers:
    """Return the positions from the end of the sample on, and the end of the content."""
    size, first = len(content), int(sample[-1])
    view = memoryview(content)
    lengths: Any = np.ndarray((size - 3,), ">i4", view, strides=(1,))
    words: Any = np.ndarray((size - 7,), "<u8", view, strides=(1,))
    number = min(2 * int(count**0.5), _PROBED_BYTES_MAX // int(np.diff(sample).max()))
    guesses = _guesses(lengths, words, sample, number)
    limits = np.append(guesses[1:], size)
    steps, at = _walk_all(lengths, guesses, limits, 4 * (count // number))
    inside = steps < limits[:, None]
    chains = {int(start): commit_log for commit_log, start in enumerate(guesses)}
    stops = {*chains, size}
    parts: list[Any] = []
    place = first
    while place < size:
        commit_log = chains.get(place)
        if commit_log is not None and place < at[commit_log] <= size:
            # Proven: consecutive walks that end where the next begins are taken over as one run.
            until = commit_log
            while until < len(guesses) - 1 and at[until] == guesses[until + 1]:
                until += 1
            if at[until] > size or at[until] <= guesses[until]:
                until -= 1
            parts.append(steps[commit_log : until + 1][inside[commit_log : until + 1]])
            place = int(at[until])
        else:
            (length,) = _LENGTH.unpack_from(content, place)
            if length < 0:
                raise ValueError("negative length")
            parts.append([place])
            place += _LENGTH.size + length
        if place not in stops:
            places, place = _walk(content, place, stops, size)
            parts.append(places)
    parts.append([size])
    return np.concatenate([np.asarray(part, np.int64) for part in parts])


def _guesses(lengths: Any, words: Any, sample: Integers, number: int) -> Integers:
    """Return ascending likely record starts; the first one, the sample's end, is certain."""
    first, last = int(sample[-1]), len(words) - 1 - _LENGTH.size
    window = int(np.diff(sample).max()) * 5 // 4  # slightly more than the longest record so far
    spread = np.linspace(first, last, number + 1).astype(np.int64)[1:-1]
    places = (spread[:, None] + np.arange(window)).ravel()
    places = places[places <= last]
    # Most records of one block begin alike: with their commit time.
    known = words[sample[:-1] + 4]
    alike = ~np.bitwise_or.reduce(known ^ known[0])
    places = places[(words[places + 4] ^ known[0]) & alike == 0]
    ahead = places
    for _ in range(_PROBE_HOPS):
        length = lengths[np.minimum(ahead, last)].astype(np.int64)
        fits = (ahead > last) | (length >= 0) & (length < 2 * window)
        places, ahead = places[fits], np.minimum((ahead + 4 + length)[fits], last + 1)
    _, firsts = np.unique(np.searchsorted(spread, places, side="right"), return_index=True)
    return np.unique(np.append(places[firsts], first))


def _walk_all(
    lengths: Any, starts: Integers, limits: Integers, hops_max: int
) -> tuple[Integers, Integers]:
    """
    Walk from every start until the next start is reached or passed.

    A walk that found a bad length or was too long ends at its start.

    Shapes: starts, limits (n,) -> positions (n, hops), which repeat the limit after the end, and
    the end of each walk (n,).
    """
    last = len(lengths) - 1
    at, steps = starts.copy(), []
    good = np.ones(len(starts), np.bool_)
    for _ in range(hops_max):
        going = good & (at < limits)
        if not going.any():
            break
        steps.append(np.where(going, at, limits))
        length = lengths[np.minimum(at, last)].astype(np.int64)
        good &= ~going | (length >= 0) & (at <= last)
        at = np.where(going & good, at + 4 + length, at)
    good &= at >= limits
    places = np.stack(steps, axis=1)
    return places, np.where(good, at, starts)


# ---- The frames of a log file: the start, the header and the content position of each block
# A reader of a slice must know every block before it decodes one, because rollback blocks and
# compacted blocks cancel others (fmt 5.7). So blocks are found from headers and ends alone, a window
# of the file at a time, and the content of a block is read only on request.
#
# Damage is classified as in Java (fmt 5.2). If the size, the end or the follower of a block does not
# fit, a crash tore the block before its write was committed: it is returned as ``CORRUPT`` and the
# search continues after it. If the frame fits, the block was written whole. If its inside then
# contradicts itself, the file was damaged later. Skipping the block would lose committed rows, so
# that is an error. Every length is checked against the block before it is used (SEC3).

WINDOW_BYTES: Final = 64 * 1024
"""Longest single read for a header or for the search of the next block, bytes."""

HEADER_BYTES_MAX: Final = 128 * 1024 * 1024
"""Longest header that is read, bytes; the positions of 40 million records fit."""

_MAGIC: Final = b"#HUDI#"
_FORMAT_VERSION: Final = 1
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_TWO_INTS: Final = struct.Struct(">ii")
_FRONT: Final = len(_MAGIC) + _LONG.size  # magic and size
_SIZE_MIN: Final = 4 + 4 + 4 + 8 + 0 + 4 + 8  # of an empty block
_SIZE_MAX: Final = 2**31 - 1  # Java keeps the size of a block in an int
_TAIL: Final = 4 + 8  # an empty footer and the reverse pointer
_ENTRIES_MAX: Final = 1024
_ROLLBACK_COMMAND: Final = "0"

# Blocks that seem whole until their end is read, and are not. Crashes leave one or two; a file with
# this many was made to be slow.
_FALSE_FRAMES_MAX: Final = 10_000


class BlockType(IntEnum):
    """The content types of a block (fmt 5.2)."""

    COMMAND = 0
    DELETE = 1
    CORRUPT = 2
    AVRO_DATA = 3
    HFILE_DATA = 4
    PARQUET_DATA = 5
    CDC_DATA = 6


_WITH_ROWS = frozenset({BlockType.AVRO_DATA, BlockType.HFILE_DATA, BlockType.PARQUET_DATA})


class HeaderKey(IntEnum):
    """The known entries of a block's header (fmt 5.3)."""

    INSTANT_TIME = 0
    TARGET_INSTANT_TIME = 1
    SCHEMA = 2
    COMMAND_BLOCK_TYPE = 3
    COMPACTED_BLOCK_TIMES = 4
    RECORD_POSITIONS = 5
    BLOCK_IDENTIFIER = 6
    IS_PARTIAL = 7
    BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS = 8


DATA_BLOCKS: Final = frozenset({BlockType.AVRO_DATA, BlockType.HFILE_DATA, BlockType.PARQUET_DATA})
"""Block types with records of the table."""

_BLOCK_TYPES: Final = {int(one): one for one in BlockType}
_HEADER_KEYS: Final = {int(one): one for one in HeaderKey}


class ByteSource(Protocol):
    """Bytes that can be read in ranges, for example of an open file of the storage."""

    def read_at(self, offset: int, length: int, /) -> bytes:
        """Return `length` bytes from `offset` on; fewer only at the end of the source."""


@dataclass(frozen=True, slots=True)
class BytesSource:
    """A source over bytes in memory."""

    data: bytes

    def read_at(self, offset: int, length: int, /) -> bytes:
        return self.data[offset : offset + length]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBlock:
    """
    One block of a log file, without its content.

    A ``CORRUPT`` block has the damaged region as its content and an empty header.
    """

    block_type: BlockType
    # By `HeaderKey`; unknown keys keep their number.
    header: Mapping[int, str] = field(default_factory=dict, hash=False)
    content_offset: int
    content_length: int
    offset: int = 0  # of the block's first byte
    end_offset: int = 0  # of the first byte after the block
    path: str = ""

    @property
    def instant_time(self) -> str:
        """Requested time of the writing instant; `CorruptTableError` if the block has none."""
        return self._demanded(HeaderKey.INSTANT_TIME)

    @property
    def schema_json(self) -> str:
        """The writer's Avro schema; `CorruptTableError` if the block has none."""
        return self._demanded(HeaderKey.SCHEMA)

    @property
    def target_instant_time(self) -> str:
        """The instant that a rollback block cancels; `CorruptTableError` if the block has none."""
        return self._demanded(HeaderKey.TARGET_INSTANT_TIME)

    @property
    def has_rows(self) -> bool:
        """Whether it contains records, in the writer's schema."""
        return self.block_type in _WITH_ROWS

    @property
    def is_partial(self) -> bool:
        """Whether the records contain only the columns of the block's schema."""
        return self.header.get(HeaderKey.IS_PARTIAL, "").lower() == "true"

    @property
    def compacted_times(self) -> tuple[str, ...]:
        """Instants whose blocks this one replaces, as listed; empty for an ordinary block."""
        listed = self.header.get(HeaderKey.COMPACTED_BLOCK_TIMES, "")
        return tuple(time for part in listed.split(",") if (time := part.strip()))

    @property
    def record_positions_base(self) -> str | None:
        """Requested time of the base file that the record positions refer to, if any."""
        return self.header.get(HeaderKey.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS)

    def _demanded(self, key: HeaderKey) -> str:
        value = self.header.get(key)
        if value is None:
            raise _damaged(self.path, self.offset, f"a block's header lacks {key.name}")
        return value


def iter_blocks(source: ByteSource, size_bytes: int, *, path: str) -> Iterator[LogBlock]:
    """
    Find the blocks of a log file, in the file's order.

    Every byte of the file belongs to exactly one of the returned blocks; adjacent damaged regions
    are one ``CORRUPT`` block. An empty file has no blocks.

    Args:
        source: The file. It is read front to back, about 64 KiB for each block.
        size_bytes: Size of the file; later bytes are ignored.
        path: The file's name in errors.

    Raises:
        CorruptTableError: the file does not begin with a block, is shorter than `size_bytes`, or a
            whole block contradicts itself.
        UnsupportedTableError: a whole block has a type, a command or a log format version that this
            release does not know.

    Outside: about 1 read for each block, and 1 for each 64 KiB of a damaged region.
    """
    reader = _LogReader(source, size_bytes, path)
    beginning = reader.window(0, min(len(_MAGIC), size_bytes))
    if not _MAGIC.startswith(beginning):
        raise _damaged(path, 0, "it does not begin with a block")
    offset = damaged_from = 0
    false_frames = 0
    while offset < size_bytes:
        end_offset = _end_of_block(reader, offset)
        if end_offset is not None and _ends_well(reader, offset, end_offset):
            if damaged_from < offset:
                yield _corrupt(path, damaged_from, offset)
            yield _block(reader, offset, end_offset)
            offset = damaged_from = end_offset
            continue
        false_frames += end_offset is not None
        if false_frames > _FALSE_FRAMES_MAX:
            raise _damaged(path, offset, "it has too many broken blocks")
        offset = reader.find_magic(offset + len(_MAGIC))
    if damaged_from < size_bytes:
        yield _corrupt(path, damaged_from, size_bytes)


def read_content(source: ByteSource, block: LogBlock) -> bytes:
    """
    Read the content of one block.

    Raises:
        CorruptTableError: the file is shorter than it was when the block was found.

    Outside: 1 read.
    """
    content = source.read_at(block.content_offset, block.content_length)
    if len(content) != block.content_length:
        raise _damaged(block.path, block.content_offset, "it ends inside a block")
    return content


def encode_block(block_type: BlockType, header: Mapping[int, str], content: bytes) -> bytes:
    """
    Write a block; errors are those of ``block_frame``.

    Args:
        block_type: Anything but ``CORRUPT``.
        header: Entries by `HeaderKey`, written in the mapping's order.
        content: Encoded by the codec of the block's type.
    """
    head, tail = block_frame(block_type, header, len(content))
    return b"".join((head, content, tail))


def block_frame(
    block_type: BlockType, header: Mapping[int, str], content_length: int
) -> tuple[bytes, bytes]:
    """
    Return the bytes before and after a block's content, for a writer that streams it.

    Raises:
        InvalidInputError: the type is ``CORRUPT``, a header's text is not valid Unicode, or the
            block would be larger than Java can read (2 GiB).
    """
    if block_type is BlockType.CORRUPT:
        raise InvalidInputError(
            "a corrupt block cannot be written: write the block with its real type",
            kind="log_block_type",
        )
    inside = b"".join((_TWO_INTS.pack(_FORMAT_VERSION, block_type), _encode_header(header)))
    size = len(inside) + _LONG.size + content_length + _TAIL
    if size > _SIZE_MAX:
        raise InvalidInputError(
            f"a log block must be smaller than 2 GiB: write fewer rows at once: {size} bytes",
            kind="log_block_size",
            size_bytes=size,
        )
    head = b"".join((_MAGIC, _LONG.pack(size), inside, _LONG.pack(content_length)))
    return head, _INT.pack(0) + _LONG.pack(size + len(_MAGIC))


def _encode_header(header: Mapping[int, str]) -> bytes:
    parts = [_INT.pack(len(header))]
    for key, text in header.items():
        try:
            value = text.encode()
        except UnicodeEncodeError as failure:
            raise InvalidInputError(
                "a header of a log block has invalid Unicode: correct the value, then write "
                f"again: key={int(key)}",
                kind="unencodable_metadata",
            ) from failure
        parts += (_TWO_INTS.pack(key, len(value)), value)
    return b"".join(parts)


class _LogReader:
    """
    Read a file through two windows, so that nearby small reads cost one request.

    One window moves front to back; the other reads a block's end. If the end fits, its window
    becomes the first, because it already has the next block's beginning. If not, the search
    continues in the first window without reading it again.
    """

    __slots__ = ("_ahead", "_source", "_window", "path", "size_bytes")

    def __init__(self, source: ByteSource, size_bytes: int, path: str) -> None:
        self._source = source
        self.size_bytes = size_bytes
        self.path = path
        self._window = (0, b"")
        self._ahead = (0, b"")

    def window(self, offset: int, length: int) -> bytes:
        """Return at most a window of bytes inside the file, near the last ones."""
        self._window = self._covering(self._window, offset, length)
        start, data = self._window
        return data[offset - start : offset - start + length]

    def ahead(self, offset: int, length: int) -> bytes:
        """Return the same from elsewhere in the file; the window stays where it is."""
        start, data = self._window
        if start <= offset and offset + length <= start + len(data):
            return data[offset - start : offset - start + length]
        self._ahead = self._covering(self._ahead, offset, length)
        start, data = self._ahead
        return data[offset - start : offset - start + length]

    def move_ahead(self, offset: int) -> None:
        """Make the window of `ahead` the first one, if it covers the offset."""
        start, data = self._ahead
        if start <= offset < start + len(data):
            self._window = self._ahead

    def long_value(self, offset: int, length: int) -> bytes:
        """Return bytes of any length, read window by window."""
        parts = []
        while length:
            step = min(length, WINDOW_BYTES)
            parts.append(self.window(offset, step))
            offset, length = offset + step, length - step
        return b"".join(parts)

    def find_magic(self, offset: int) -> int:
        """Return the position of the next magic from the offset on, or the file's size."""
        while offset + len(_MAGIC) <= self.size_bytes:
            self.window(offset, len(_MAGIC))
            start, data = self._window
            found = data.find(_MAGIC, offset - start)
            if found >= 0:
                return start + found
            # A magic across the window's end begins in its last five bytes.
            offset = start + len(data) - len(_MAGIC) + 1
        return self.size_bytes

    def _covering(self, held: tuple[int, bytes], offset: int, length: int) -> tuple[int, bytes]:
        start, data = held
        if start <= offset and offset + length <= start + len(data):
            return held
        wanted = max(length, min(WINDOW_BYTES, self.size_bytes - offset))
        data = self._source.read_at(offset, wanted)
        if len(data) != wanted:
            raise _damaged(self.path, offset, "it is shorter than it was listed")
        return offset, data


def _end_of_block(reader: _LogReader, offset: int) -> int | None:
    """Return the end that the block at the offset gives, or None if it is outside the file."""
    if offset + _FRONT > reader.size_bytes:
        return None
    (size,) = _LONG.unpack(reader.window(offset + len(_MAGIC), _LONG.size))
    end_offset = offset + _FRONT + int(size)
    return end_offset if size >= _SIZE_MIN and end_offset <= reader.size_bytes else None


def _ends_well(reader: _LogReader, offset: int, end_offset: int) -> bool:
    """Return whether the reverse pointer fits and the next block, or the file's end, follows."""
    follow = min(len(_MAGIC), reader.size_bytes - end_offset)
    tail = reader.ahead(end_offset - _TAIL, _TAIL + follow)
    (pointer,) = _LONG.unpack_from(tail, _TAIL - _LONG.size)
    # To Java, fewer bytes than a magic are the file's end, whatever they are.
    whole = follow < len(_MAGIC) or tail[_TAIL:] == _MAGIC
    return whole and int(pointer) == end_offset - offset - _LONG.size


def _corrupt(path: str, offset: int, end_offset: int) -> LogBlock:
    return LogBlock(
        block_type=BlockType.CORRUPT,
        content_offset=offset,
        content_length=end_offset - offset,
        offset=offset,
        end_offset=end_offset,
        path=path,
    )


def _block(reader: _LogReader, offset: int, end_offset: int) -> LogBlock:
    """Read the frame and header of a whole block."""
    path = reader.path
    version, ordinal = _TWO_INTS.unpack(reader.window(offset + _FRONT, _TWO_INTS.size))
    if version != _FORMAT_VERSION:
        raise _unknown(path, offset, "log_format_version", f"log format version {version}")
    block_type = _BLOCK_TYPES.get(ordinal)
    if block_type is None:
        raise _unknown(path, offset, "log_block_type", f"block type {ordinal}")
    if block_type is BlockType.CORRUPT:
        return _corrupt(path, offset, end_offset)
    limit = end_offset - _LONG.size  # the reverse pointer is already checked
    header, position = _read_header(reader, offset + _FRONT + _TWO_INTS.size, limit)
    if position + _LONG.size > limit:
        raise _damaged(path, offset, "a header is longer than its block")
    (content_length,) = _LONG.unpack(reader.window(position, _LONG.size))
    content_offset = position + _LONG.size
    footer = content_offset + int(content_length)
    if not content_offset <= footer <= limit - _INT.size:
        raise _damaged(path, offset, "its content is longer than its block")
    if footer == limit - _INT.size:
        whole = reader.ahead(footer, _INT.size) == _INT.pack(0)
    else:
        whole = _read_header(reader, footer, limit)[1] == limit
    if not whole:
        raise _damaged(path, offset, "the parts of a block do not fill it")
    if block_type is BlockType.COMMAND:
        command = header.get(HeaderKey.COMMAND_BLOCK_TYPE)
        if command != _ROLLBACK_COMMAND:
            raise _unknown(path, offset, "log_command", f"command {command!r}")
    reader.move_ahead(end_offset)
    return LogBlock(
        block_type=block_type,
        header=header,
        content_offset=content_offset,
        content_length=int(content_length),
        offset=offset,
        end_offset=end_offset,
        path=path,
    )


def _read_header(reader: _LogReader, offset: int, limit: int) -> tuple[dict[int, str], int]:
    """Return the entries of a header or footer, and its end; read nothing beyond `limit`."""
    limit_of_header = min(limit, offset + HEADER_BYTES_MAX)
    count, position = _int_at(reader, offset, limit_of_header)
    if not 0 <= count <= _ENTRIES_MAX:
        raise _damaged(reader.path, offset, f"a header claims {count} entries")
    header: dict[int, str] = {}
    for _ in range(count):
        key, position = _int_at(reader, position, limit_of_header)
        length, position = _int_at(reader, position, limit_of_header)
        if not 0 <= length <= limit_of_header - position:
            raise _damaged(reader.path, offset, "a header is longer than its block")
        try:
            header[_HEADER_KEYS.get(key, key)] = reader.long_value(position, length).decode()
        except UnicodeDecodeError as failure:
            raise _damaged(reader.path, offset, "a header is not text") from failure
        position += length
    return header, position


def _int_at(reader: _LogReader, offset: int, limit: int) -> tuple[int, int]:
    if offset + _INT.size > limit:
        raise _damaged(reader.path, offset, "a header is longer than its block")
    (value,) = _INT.unpack(reader.window(offset, _INT.size))
    return int(value), offset + _INT.size


def _damaged(path: str, offset: int, why: str) -> CorruptTableError:
    return CorruptTableError(
        f"a log file is damaged ({why}): restore it from a backup, or roll its write back with "
        f"'hoodoo rollback TABLE INSTANT': {path}, byte {offset}",
        kind="bad_log_file",
        path=path,
        offset=offset,
    )


def _unknown(path: str, offset: int, kind: str, what: str) -> UnsupportedTableError:
    return UnsupportedTableError(
        f"a log file has an unknown {what}: a newer writer wrote it, or it is damaged. Read it "
        f"with the release that wrote it: {path}, byte {offset}",
        kind=kind,
        path=path,
        offset=offset,
    )
