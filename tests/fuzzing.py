"""
Damaged and hostile variants of good files, the same ones on every run.

A mutant is a good file after one to four changes of kinds that break readers: flipped
bits, cuts, insertions, repeated or missing stretches, pieces of other files, and numbers
replaced by typical forged lengths and counts.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence

_FORGED = (
    *(0, 1, -1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 127, 128, 255, 256, 1024, 65_535, 65_536),
    *(2**20, 2**24, 2**28, 2**30, 2**31 - 1, -(2**31), -2, -64),
    *(2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63)),
)
_STRETCH_MAX = 64
_CHANGES_MAX = 4

Change = Callable[[bytearray, random.Random, bytes], None]


def mutants(
    seed: int, good: Sequence[bytes], count: int, *, words: Sequence[bytes] = ()
) -> Iterator[bytes]:
    """
    Draw mutants of good files.

    Args:
        seed: The same seed gives the same mutants.
        good: The files to start from; each is equally likely.
        count: Mutants to draw.
        words: Bytes with a meaning in the format, which are inserted now and then.
    """
    chance = random.Random(seed)
    changes: list[Change] = [
        _flip_bit, _set_byte, _cut, _cut_front, _insert, _repeat, _remove, _zero,
        _forge_number, _forge_number, _forge_varint, _nudge_number, _splice,
    ]  # fmt: skip
    if words:

        def insert_word(data: bytearray, chance: random.Random, other: bytes) -> None:
            at = chance.randint(0, len(data))
            data[at:at] = chance.choice(words)

        changes.append(insert_word)
    for _ in range(count):
        data = bytearray(chance.choice(good))
        for _ in range(chance.randint(1, _CHANGES_MAX)):
            chance.choice(changes)(data, chance, chance.choice(good))
        yield bytes(data)


def _place(data: bytearray, chance: random.Random) -> int:
    return chance.randrange(len(data)) if data else 0


def _stretch(data: bytearray, chance: random.Random) -> slice:
    start = _place(data, chance)
    return slice(start, start + chance.randint(1, _STRETCH_MAX))


def _flip_bit(data: bytearray, chance: random.Random, other: bytes) -> None:
    if data:
        data[_place(data, chance)] ^= 1 << chance.randrange(8)


def _set_byte(data: bytearray, chance: random.Random, other: bytes) -> None:
    if data:
        data[_place(data, chance)] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))


def _cut(data: bytearray, chance: random.Random, other: bytes) -> None:
    del data[_place(data, chance) :]


def _cut_front(data: bytearray, chance: random.Random, other: bytes) -> None:
    del data[: chance.randint(0, 16)]


def _insert(data: bytearray, chance: random.Random, other: bytes) -> None:
    at = chance.randint(0, len(data))
    data[at:at] = chance.randbytes(chance.randint(1, _STRETCH_MAX))


def _repeat(data: bytearray, chance: random.Random, other: bytes) -> None:
    stretch = _stretch(data, chance)
    data[stretch.start : stretch.start] = data[stretch] * chance.randint(1, 8)


def _remove(data: bytearray, chance: random.Random, other: bytes) -> None:
    del data[_stretch(data, chance)]


def _zero(data: bytearray, chance: random.Random, other: bytes) -> None:
    stretch = _stretch(data, chance)
    data[stretch] = bytes(len(data[stretch]))


def _forge_number(data: bytearray, chance: random.Random, other: bytes) -> None:
    """Overwrite two, four or eight bytes by a number, in either byte order."""
    order = chance.choice("<>")
    width, code = chance.choice(((2, "H"), (4, "I"), (8, "Q")))
    value = chance.choice((*_FORGED, len(data), len(data) + 1)) % 2 ** (8 * width)
    at = _place(data, chance)
    data[at : at + width] = struct.pack(order + code, value)


def _nudge_number(data: bytearray, chance: random.Random, other: bytes) -> None:
    """Make a number of four or eight big-endian bytes a little larger or smaller."""
    width, code = chance.choice(((4, ">I"), (8, ">Q")))
    at = _place(data, chance)
    if at + width <= len(data):
        (value,) = struct.unpack_from(code, data, at)
        value += chance.choice((-8, -4, -2, -1, 1, 2, 4, 8))
        struct.pack_into(code, data, at, value % 2 ** (8 * width))


def _forge_varint(data: bytearray, chance: random.Random, other: bytes) -> None:
    """Replace a byte by an Avro number, whose bytes may be many."""
    value = chance.choice(_FORGED)
    left = ((value << 1) ^ (value >> 63)) % 2**64
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    at = _place(data, chance)
    data[at : at + 1] = bytes([*out, left])


def _splice(data: bytearray, chance: random.Random, other: bytes) -> None:
    """Continue with the rest of another file, or write a piece of it over this one."""
    start = chance.randint(0, len(other))
    at = chance.randint(0, len(data))
    if chance.random() < 0.5:
        data[at:] = other[start:]
    else:
        piece = other[start : start + chance.randint(1, 4 * _STRETCH_MAX)]
        data[at : at + len(piece)] = piece
