"""HFiles of the writer are read back whole, and have the bytes that released readers need."""

from __future__ import annotations

import gzip
import struct
from io import BytesIO
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filegroups.files.hfile import HFile, open_hfile
from filegroups.files.hfile_writer import BLOCK_BYTES, KEY_BYTES_MAX, encode_hfile, write_hfile
from timeline.codecs.log_blocks import BytesSource
from timeline.errors import InternalError, InvalidInputError, InvariantError

HEAD = struct.Struct(">8siiqBii")
SUFFIX = b"\0\x7f" + b"\xff" * 7 + b"\x04"


def entries(pairs: list[tuple[bytes, bytes]]) -> pa.Table:
    keys, values = ([pair[side] for pair in pairs] for side in (0, 1))
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def encoded(table: pa.Table, *, block_bytes: int = BLOCK_BYTES) -> bytes:
    return encode_hfile(table, schema_json='{"a":1}', created_ms=77, block_bytes=block_bytes)


def opened(data: bytes) -> HFile:
    return open_hfile(BytesSource(data), len(data), path="x.hfile")


def blocks(data: bytes) -> list[tuple[int, bytes, int, int]]:
    """Return offset, magic, previous offset and bytes per checksum of each block."""
    found, at = [], 0
    while not data.startswith(b"TRABLK", at):
        magic, size, _, previous, _, per_checksum, _ = HEAD.unpack_from(data, at)
        found.append((at, magic, previous, per_checksum))
        at += HEAD.size + size
    assert len(data) == at + 4096
    return found


def unpacked(data: bytes) -> bytes:
    """Return the contents of all blocks."""
    found = []
    for at, *_ in blocks(data):
        size = HEAD.unpack_from(data, at)[1] - 4  # without the checksum
        found.append(gzip.decompress(data[at + HEAD.size : at + HEAD.size + size]))
    return b"".join(found)


PAIRS = st.dictionaries(st.binary(max_size=20), st.binary(max_size=60), max_size=40)


@given(PAIRS, st.integers(1, 400))
def test_entries_are_read_back_whatever_the_block_size(
    pairs: dict[bytes, bytes], block_bytes: int
) -> None:
    table = entries(sorted(pairs.items()))
    data = encoded(table, block_bytes=block_bytes)
    assert data == encoded(table.combine_chunks(), block_bytes=block_bytes)
    file = opened(data)
    assert file.entry_count == len(pairs)
    assert file.read_all().equals(table)
    assert file.get_rows(sorted(pairs)).equals(table)


@given(PAIRS, st.integers(1, 400))
def test_few_entries_have_the_bytes_of_many(pairs: dict[bytes, bytes], block_bytes: int) -> None:
    table = entries(sorted(pairs.items())[:32])
    sink = BytesIO()
    write_hfile(sink, [table], schema_json='{"a":1}', created_ms=77, block_bytes=block_bytes)
    assert encoded(table, block_bytes=block_bytes) == sink.getvalue()


@pytest.mark.parametrize("keys", [[b"b", b"a"], [b"a", b"a"]])
def test_few_entries_out_of_order_are_a_defect(keys: list[bytes]) -> None:
    with pytest.raises(InvariantError):
        encoded(entries([(key, b"") for key in keys]))


@given(PAIRS, st.binary(max_size=300), st.integers(1, 400))
def test_values_that_look_like_entries_are_no_entries(
    pairs: dict[bytes, bytes], around: bytes, block_bytes: int
) -> None:
    block = unpacked(encoded(entries(sorted(pairs.items()))))
    held = {key: block[:2000] + around + value for key, value in pairs.items()}
    table = entries(sorted(held.items()))
    file = opened(encoded(table, block_bytes=block_bytes))
    assert file.read_all().equals(table)
    assert file.get_rows(sorted(held)[::2]).equals(table.take(np.arange(0, len(held), 2)))


def test_a_value_of_many_bytes_is_read() -> None:
    table = entries([(b"a", b"1"), (b"b", bytes(17_000_000)), (b"c", b"3")])
    assert opened(encoded(table)).read_all().equals(table)


def test_a_hundred_thousand_keys_fill_several_blocks() -> None:
    numbers = np.arange(100_000)
    keys = pa.array([f"key-{number:07d}" for number in numbers]).cast(pa.binary())
    table = pa.table({"key": keys, "value": keys})
    data = encoded(table)
    of_data = [block for block in blocks(data) if block[1] == b"DATABLK*"]
    assert len(of_data) == 527  # 100,000 entries of 21 + 2 * 11 bytes, 190 in 8 KiB
    assert opened(data).read_all().equals(table)
    chosen = np.sort(np.random.default_rng(3).choice(numbers, 500, replace=False))
    found = opened(data).get_rows([keys[number].as_py() for number in chosen])
    assert found.equals(table.take(chosen))


def test_a_block_ends_before_the_entry_that_does_not_fit() -> None:
    pairs = [(b"a", b"12345"), (b"b", b"12345"), (b"c", b"12345"), (b"d", b"1" * 100)]
    each = 21 + 1 + 5
    for room, count in ((2 * each - 1, 4), (2 * each, 3), (3 * each, 2), (1000, 1)):
        data = encoded(entries(pairs), block_bytes=room)
        assert [magic for _, magic, _, _ in blocks(data)].count(b"DATABLK*") == count


def test_each_block_names_the_one_before_and_has_one_checksum() -> None:
    data = encoded(entries([(bytes([65 + n]), b"v" * 40) for n in range(9)]), block_bytes=130)
    for magic, count in ((b"DATABLK*", 5), (b"IDXROOT2", 2), (b"FILEINF2", 1)):
        places = [(at, previous) for at, each, previous, _ in blocks(data) if each == magic]
        assert len(places) == count
        assert places[0][1] == -1
        assert all(later[1] == earlier[0] for earlier, later in pairwise(places))
    assert {per_checksum for *_, per_checksum in blocks(data)} == {2**30}


def test_the_last_key_and_the_index_keys_have_the_suffix_of_hbase() -> None:
    data = encoded(entries([(b"aa", b"1"), (b"bb", b"2")]), block_bytes=1)
    info = opened(data).info
    assert info[b"hfile.LASTKEY"] == b"\0\x02bb" + SUFFIX
    assert unpacked(data).count(b"\0\x02aa" + SUFFIX) == 2  # the entry and the index
    assert info[b"schema"] == b'{"a":1}'
    assert info[b"hfile.CREATE_TIME_TS"] == struct.pack(">q", 77)


@pytest.mark.parametrize("keys", [[b"b", b"a"], [b"a", b"a"], [b"a", b"\xff", b"\x7f"]])
def test_keys_out_of_order_or_twice_are_a_defect(keys: list[bytes]) -> None:
    with pytest.raises(InternalError):
        encoded(entries([(key, b"") for key in keys]))


def test_a_key_that_hbase_cannot_store_is_refused() -> None:
    longest = entries([(b"k" * KEY_BYTES_MAX, b"v")])
    assert opened(encoded(longest)).read_all().equals(longest)
    with pytest.raises(InvalidInputError) as caught:
        encoded(entries([(b"k" * (KEY_BYTES_MAX + 1), b"v")]))
    assert caught.value.kind == "long_key"


@given(st.data())
@settings(max_examples=50)
def test_the_bytes_do_not_depend_on_the_parts(data: st.DataObject) -> None:
    keys = sorted(data.draw(st.sets(st.binary(max_size=6), max_size=40)))
    table = entries([(key, key * 3) for key in keys])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(keys)), max_size=4)))
    parts = [table[start:stop] for start, stop in pairwise([0, *cuts, len(keys)])]
    options = {"schema_json": "{}", "created_ms": 7, "block_bytes": 64}
    sink = BytesIO()
    written = write_hfile(sink, parts, **options)  # type: ignore[arg-type]
    whole = encode_hfile(table, **options)  # type: ignore[arg-type]
    assert sink.getvalue() == whole
    assert (written.entries, written.size_bytes) == (len(keys), len(whole))


def test_parts_out_of_order_are_a_defect() -> None:
    parts = [entries([(key, b"")]) for key in (b"b", b"a")]
    with pytest.raises(InvariantError):
        write_hfile(BytesIO(), parts, schema_json="{}", created_ms=0, block_bytes=1)
