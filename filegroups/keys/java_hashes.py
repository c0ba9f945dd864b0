"""
Hashes of texts as Java computes them, over whole columns.

``String.hashCode`` over UTF-16 code units, and xxHash32 over UTF-8 bytes. Arrow stores UTF-8, so
texts beyond ASCII are re-encoded in blocks, never one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["java_hashes", "xx_hashes"]

_BLOCK_TEXTS = 65_536
_INVERSE_31 = pow(31, -1, 1 << 32)
_P1, _P2, _P3 = np.uint32(2_654_435_761), np.uint32(2_246_822_519), np.uint32(3_266_489_917)
_P4, _P5 = np.uint32(668_265_263), np.uint32(374_761_393)
_LANE_STARTS = ((int(_P1) + int(_P2)) & 0xFFFF_FFFF, int(_P2), 0, -int(_P1) & 0xFFFF_FFFF)
_LANE_TURNS = (1, 7, 12, 18)

_Words = npt.NDArray[np.uint32]


def java_hashes(texts: pa.Array) -> _Words:
    """
    Return ``String.hashCode`` of each text; 0 for an empty one.

    Shapes: texts (n,) strings without nulls -> (n,) unsigned 32-bit numbers.
    """
    blocks = [np.zeros(0, np.uint32)]
    for start in range(0, len(texts), _BLOCK_TEXTS):
        units, ends = _utf16(texts.slice(start, _BLOCK_TEXTS))
        blocks.append(_polynomials(units, ends))
    return np.concatenate(blocks)


def xx_hashes(texts: pa.Array) -> _Words:
    """
    Return xxHash32 with seed 0 of each text's UTF-8 bytes.

    Shapes: texts (n,) strings without nulls -> (n,) unsigned 32-bit numbers.
    """
    hashes = np.zeros(len(texts), np.uint32)
    starts, data = _utf8(texts)
    lengths = np.diff(starts)
    order = np.argsort(lengths, kind="stable")
    bounds = np.flatnonzero(np.diff(lengths[order])) + 1
    for group in np.split(order, bounds):
        if len(group) == 0:
            continue
        span = np.arange(lengths[group[0]])
        for first in range(0, len(group), _BLOCK_TEXTS):
            rows = group[first : first + _BLOCK_TEXTS]
            hashes[rows] = _xx_hash(data[starts[rows][:, None] + span])
    return hashes


def _utf8(texts: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the start of each text in its bytes (n + 1 numbers), and the bytes."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0:
        return np.zeros(len(texts) + 1, np.int32), np.zeros(0, np.uint8)
    starts = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    held = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return starts - starts[0], held[starts[0] : starts[-1]]


def _utf16(texts: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return all code units in sequence, and the start of each text (n + 1 numbers)."""
    starts, data = _utf8(texts)
    if data.max(initial=0) < 0x80:
        return data, starts.astype(np.int64)
    recoded = data.tobytes().decode("utf-8", "surrogatepass").encode("utf-16-le", "surrogatepass")
    units = np.frombuffer(recoded, "<u2")
    # Every byte except 10xxxxxx starts a code point; from F0 on it has two code units.
    width = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)
    before = np.concatenate([[0], np.cumsum(width)])
    return units, before[starts]


def _polynomials(units: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> _Words:
    # h = u0*31^(k-1) + ... + u(k-1). 31 has an inverse modulo 2^32. So one running sum of
    # u*31^-position over all texts gives each text's sum as a difference of two positions.
    falling = _powers(_INVERSE_31, len(units))
    sums = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(units.astype(np.uint32) * falling, dtype=np.uint32, out=sums[1:])
    rising = _powers(31, len(units))
    lasts = np.maximum(ends[1:] - 1, 0)
    differences = sums[ends[1:]] - sums[ends[:-1]]
    return differences * rising[lasts] if len(units) else differences


def _powers(factor: int, count: int) -> _Words:
    powers = np.ones(max(count, 1), np.uint32)
    done = 1
    while done < count:
        step = np.uint32(pow(factor, done, 1 << 32))
        more = min(done, count - done)
        powers[done : done + more] = powers[:more] * step
        done += more
    return powers


def _xx_hash(matrix: npt.NDArray[np.uint8]) -> _Words:
    """Hash texts of one length. Shapes: (n, length) bytes -> (n,)."""
    count, length = matrix.shape
    full = length // 4
    packed = np.ascontiguousarray(matrix[:, : full * 4]).view("<u4").astype(np.uint32)
    words = [packed[:, place] for place in range(full)]
    done = 0
    if length >= 16:
        lanes = [np.full(count, start, np.uint32) for start in _LANE_STARTS]
        while done + 4 <= full:
            for lane in range(4):
                lanes[lane] = _turned(lanes[lane] + words[done + lane] * _P2, 13) * _P1
            done += 4
        value = np.zeros(count, np.uint32)
        for state, turn in zip(lanes, _LANE_TURNS, strict=True):
            value += _turned(state, turn)
    else:
        value = np.full(count, _P5, np.uint32)
    value += np.uint32(length)
    for word in words[done:]:
        value = _turned(value + word * _P3, 17) * _P4
    for place in range(full * 4, length):
        value = _turned(value + matrix[:, place].astype(np.uint32) * _P5, 11) * _P1
    value ^= value >> np.uint32(15)
    value *= _P2
    value ^= value >> np.uint32(13)
    value *= _P3
    value ^= value >> np.uint32(16)
    return value


def _turned(value: _Words, bits: int) -> _Words:
    return (value << np.uint32(bits)) | (value >> np.uint32(32 - bits))
