"""
The start of each record of a log block: the length prefixes, followed from many positions at once.

Only the first record's position is known, and each length gives the next position. So a plain walk
takes one Python step per record, which costs as much as decoding ten columns. Instead, this module
guesses likely record starts all over the block (positions from which a few lengths in a row are
plausible) and makes all walks at once. It accepts a guess only if the walk from the proven position
before it arrives exactly there; it walks the unproven rest plainly. So the result is exact for any
bytes, and only the time differs.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from timeline.errors import CorruptTableError

__all__ = ["corrupt_block_error", "record_borders"]

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
        f"the log block is damaged ({why}): restore the file or roll its instant back: path={path}",
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
        raise corrupt_block_error(path, f"{count} records in {size} bytes")
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
        raise corrupt_block_error(path, f"{len(borders) - 1} records instead of {count}")
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
    chains = {int(start): chain for chain, start in enumerate(guesses)}
    stops = {*chains, size}
    parts: list[Any] = []
    place = first
    while place < size:
        chain = chains.get(place)
        if chain is not None and place < at[chain] <= size:
            # Proven: consecutive walks that end where the next begins are taken over as one run.
            until = chain
            while until < len(guesses) - 1 and at[until] == guesses[until + 1]:
                until += 1
            if at[until] > size or at[until] <= guesses[until]:
                until -= 1
            parts.append(steps[chain : until + 1][inside[chain : until + 1]])
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
