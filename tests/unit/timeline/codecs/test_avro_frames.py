"""Record starts are found for any bytes, even if they imitate the length of a record."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate

import pytest

from timeline.codecs.log_blocks import record_borders
from timeline.errors import CorruptTableError

DICE = random.Random(7)


def framed(records: list[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(4, "big") + each for each in records)


def alike(row: int) -> bytes:
    return b"\x02\x22" + b"2026110112000000" + str(row * 7919).encode() * (1 + row % 5)


def zeros(row: int) -> bytes:
    return bytes(DICE.randrange(120))


def noise(row: int) -> bytes:
    return bytes(DICE.choices(b"\0\0\0\1\2\x05", k=DICE.randrange(90)))


def false_frames(row: int) -> bytes:
    # the inside of every record is itself a list of plausible records
    return framed([b"\x02\x22" + bytes(10)] * DICE.randrange(1, 6))


def empty(row: int) -> bytes:
    return b""


def growing(row: int) -> bytes:
    return b"x" * (5 if row < 5_000 else 900)


def lonely_giant(row: int) -> bytes:
    return b"y" * (200_000 if row == 9_000 else 20)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 12_000])
@pytest.mark.parametrize("make", [alike, zeros, noise, false_frames, empty, growing, lonely_giant])
def test_borders_are_those_of_the_plain_walk(make: Callable[[int], bytes], count: int) -> None:
    records = [make(row) for row in range(count)]
    expected = [0, *accumulate(len(each) + 4 for each in records)]
    assert record_borders(framed(records), count, path="p").tolist() == expected


@pytest.mark.parametrize("at", [300, 6_000, 11_999])
@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0"])
def test_a_wrong_length_anywhere_is_an_error(at: int, length: bytes) -> None:
    records = [alike(row) for row in range(12_000)]
    content = bytearray(framed(records))
    place = sum(len(each) + 4 for each in records[:at])
    content[place : place + 4] = length
    with pytest.raises(CorruptTableError):
        record_borders(bytes(content), 12_000, path="p")


@pytest.mark.parametrize("count", [11_999, 12_001])
def test_a_wrong_count_is_an_error(count: int) -> None:
    content = framed([alike(row) for row in range(12_000)])
    with pytest.raises(CorruptTableError, match="12000 records instead of"):
        record_borders(content, count, path="p")
