"""HFiles of Java are read, and damaged ones are refused by name."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from filegroups.files.hfile import HFile, open_hfile
from tests.interop import golden_tables
from timeline.codecs.log_blocks import BytesSource
from timeline.errors import CorruptTableError, UnsupportedTableError

GOLDEN = ".hoodie/metadata/files/files-0000-0_0-762-1128_00000000000000000.hfile"


def opened(data: bytes) -> HFile:
    return open_hfile(BytesSource(data), len(data), path="x.hfile")


def pairs(file: HFile, keys: Sequence[bytes] | None = None) -> list[tuple[bytes, bytes]]:
    table = file.read_all() if keys is None else file.get_rows(keys)
    return [(row["key"], row["value"]) for row in table.to_pylist()]


# ---- a writer of the same format, for shapes the golden files do not have


def vint(number: int) -> bytes:
    if -112 <= number <= 127:
        return struct.pack("b", number)
    width = (number.bit_length() + 7) // 8
    return struct.pack("b", -112 - width) + number.to_bytes(width, "big")


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def row_key(key: bytes) -> bytes:
    return struct.pack(">h", len(key)) + key + b"\0" + b"\x7f" + b"\xff" * 7 + b"\x04"


def framed(magic: bytes, content: bytes, *, gzipped: bool) -> bytes:
    data = gzip.compress(content, mtime=0) if gzipped else content
    checksum = b"\0\0\0\0"
    return (
        struct.pack(
            ">8siiqBii",
            magic,
            len(data) + len(checksum),
            len(content),
            -1,
            0,
            16384,
            33 + len(data),
        )
        + data
        + checksum
    )


def made(
    blocks: Sequence[Sequence[tuple[bytes, bytes]]],
    *,
    gzipped: bool = True,
    versions: bool = True,
    leaves: bool = False,
    compression: int | None = None,
    version: int = 3,
) -> bytes:
    """Return a file of some data blocks, with an index of one level or of two."""
    out = b""
    children: list[tuple[bytes, int]] = []
    for block in blocks:
        content = b""
        for key, value in block:
            key_bytes = row_key(key)
            content += struct.pack(">ii", len(key_bytes), len(value)) + key_bytes + value
            content += b"\0" if versions else b""
        children.append((block[0][0], len(out)))
        out += framed(b"DATABLK*", content, gzipped=gzipped)
    last_data = children[-1][1] if children else 0
    if leaves:
        roots = []
        for half in (children[:2], children[2:]):
            items = [struct.pack(">qi", at, 0) + row_key(key) for key, at in half]
            starts = [0]
            for item in items:
                starts.append(starts[-1] + len(item))
            content = struct.pack(f">{len(starts) + 1}i", len(items), *starts) + b"".join(items)
            roots.append((half[0][0], len(out)))
            out += framed(b"IDXLEAF2", content, gzipped=gzipped)
        children = roots
    load_on_open = len(out)
    root = b"".join(
        struct.pack(">qi", at, 0) + vint(len(row_key(key))) + row_key(key) for key, at in children
    )
    pairs = [(b"KEY_VALUE_VERSION", struct.pack(">i", 1 if versions else 0)), (b"schema", b"{}")]
    info = b""
    for name, text in pairs:
        pair = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(text)) + text
        info += b"\x0a" + varint(len(pair)) + pair
    out += framed(b"IDXROOT2", root, gzipped=gzipped)
    out += framed(b"IDXROOT2", b"", gzipped=gzipped)
    out += framed(b"FILEINF2", b"PBUF" + varint(len(info)) + info, gzipped=gzipped)
    numbers = {
        2: load_on_open,
        5: len(children),
        7: sum(map(len, blocks)),
        8: 2 if leaves else 1,
        9: 0,
        10: last_data,
        12: compression if compression is not None else (1 if gzipped else 2),
    }
    message = b"".join(varint(tag << 3) + varint(number) for tag, number in numbers.items())
    message += b"\x5a\x03abc"  # field 11, a text without meaning here
    trailer = b'TRABLK"$' + varint(len(message)) + message
    return out + trailer.ljust(4092, b"\0") + struct.pack(">i", version)


ENTRIES = [(f"k{number:04d}".encode(), f"v{number}".encode() * 3) for number in range(40)]
BLOCKS = [ENTRIES[start : start + 10] for start in range(0, 40, 10)]


@pytest.mark.parametrize("gzipped", [True, False])
@pytest.mark.parametrize("versions", [True, False])
@pytest.mark.parametrize("leaves", [True, False])
def test_every_entry_and_each_key_is_found(gzipped: bool, versions: bool, leaves: bool) -> None:
    file = opened(made(BLOCKS, gzipped=gzipped, versions=versions, leaves=leaves))
    assert file.entry_count == 40
    assert file.info[b"schema"] == b"{}"
    assert pairs(file) == ENTRIES
    wanted = [ENTRIES[number] for number in (0, 9, 10, 25, 39)]
    absent = [b"", b"k0009x", b"k0040", b"z"]
    assert pairs(file, sorted([key for key, _ in wanted] + absent)) == wanted


def test_a_file_without_entries_is_empty() -> None:
    file = opened(made([]))
    assert pairs(file) == []
    assert pairs(file, [b"a"]) == []


def test_the_golden_file_holds_the_list_of_partitions(tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_cow_mdt_record_index", tmp_path) / GOLDEN
    file = opened(path.read_bytes())
    assert pairs(file) == [(b"__all_partitions__", bytes.fromhex("00000000000002020000000000"))]
    assert file.info[b"minRecordKey"] == b"__all_partitions__"
    assert file.info[b"schema"].startswith(b'{"type":"record","name":"HoodieMetadataRecord"')


def test_only_the_block_of_a_key_is_read() -> None:
    class Counted:
        def __init__(self, data: bytes) -> None:
            self.data = data
            self.read: list[int] = []

        def read_at(self, offset: int, length: int, /) -> bytes:
            self.read.append(offset)
            return self.data[offset : offset + length]

    source = Counted(made(BLOCKS, leaves=True))
    file = open_hfile(source, len(source.data), path="x")
    source.read.clear()
    assert pairs(file, [b"k0000", b"k0003"]) == [ENTRIES[0], ENTRIES[3]]
    second = source.data.index(b"DATABLK*", 8)
    leaf = source.data.index(b"IDXLEAF2")
    assert not [offset for offset in source.read if second <= offset < leaf]
    of_two = source.read.copy()
    source.read.clear()
    assert pairs(file, [key for key, _ in BLOCKS[0]]) == BLOCKS[0]
    assert source.read == of_two  # more keys of a block need no more reads


@pytest.mark.parametrize(
    ("changes", "kind"),
    [({"version": 2}, "hfile_version"), ({"compression": 3}, "hfile_compression")],
)
def test_other_forms_are_refused_by_name(changes: dict[str, int], kind: str) -> None:
    with pytest.raises(UnsupportedTableError) as caught:
        opened(made(BLOCKS, **changes))  # type: ignore[arg-type]
    assert caught.value.kind == kind


def test_no_flipped_bit_of_a_packed_file_hides_an_entry() -> None:
    entry = [[ENTRIES[0]]]
    good = made(entry)
    for at in range(good.index(b'TRABLK"$') + 40):
        for bit in range(8):
            data = bytearray(good)
            data[at] ^= 1 << bit
            with suppress(CorruptTableError, UnsupportedTableError):
                assert pairs(opened(bytes(data)), [ENTRIES[0][0]]) == entry[0], (at, bit)


def test_damage_is_named_and_never_more() -> None:
    chance = random.Random(7)
    good = made(BLOCKS, leaves=True, gzipped=False)
    named = 0
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 127, 128, 255))
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        try:
            file = opened(bytes(data))
            file.read_all()
            file.get_rows([b"k0001", b"k0022", b"k0039"])
        except (CorruptTableError, UnsupportedTableError):
            named += 1
    assert named > 500
